"""Two brokers, four groups, and a bad minute: then the pipeline, and a report of what happened.

    python examples/spark/demo.py --to ./demo

Each consumer is a process. One group is deployed, one has a crash, one has a member that stalls and one
that flaps, one has static members; then a group's broker dies. Their topic and the coordinator's journal go
through `muster-pipeline ingest`, `rebalances` and `report`; the last line says where the report is. It
takes a minute, plus two runs of Spark.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from muster.client import Consumer, Producer
from muster.coordinator.testing import Cluster, WaitFailed
from muster.pipeline.environment import check_java, check_packages
from muster.pipeline.errors import PipelineError

TOPIC = "orders"
JOURNAL = "__group_events"
PARTITIONS = 12
SESSION_MS = 8_000
RECORDS_A_SECOND = 400
DEADLINE_S = 60.0


class Worker:
    """A member of a group, as a process."""

    def __init__(self, bootstrap: str, group: str, name: str, static: bool) -> None:
        self._started = [bootstrap, group, name, name if static else ""]
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, __file__, "worker", *self._started])

    def restart(self) -> None:
        """Stop it and start it again, as a deploy does."""
        self.end()
        self._process = self._start()

    def crash(self) -> None:
        """SIGKILL, as from the OOM killer."""
        self._process.kill()
        self._process.wait(DEADLINE_S)

    def start_again(self) -> None:
        """Start it after a crash."""
        self._process = self._start()

    def stall(self) -> None:
        """SIGSTOP: its connections stay open, as in a long GC pause."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT: it continues after a stall."""
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Stop it cleanly if possible."""
        self.go_on()
        self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self.crash()


class Group:
    """The processes of a group."""

    def __init__(self, cluster: Cluster, name: str, count: int, static: bool = False) -> None:
        self.name = name
        self._cluster = cluster
        self.workers = [
            Worker(cluster.bootstrap, name, f"{name}-{number}", static) for number in range(1, count + 1)
        ]

    def stable(self, members: int | None = None) -> None:
        """Wait until it is Stable."""
        self._cluster.wait_for_group(self.name, members=members or len(self.workers), timeout_s=DEADLINE_S)

    def end(self) -> None:
        """End all of its processes."""
        for each in self.workers:
            each.end()


@contextmanager
def bad_minute(cluster: Cluster) -> Iterator[None]:
    """Everything that the report is about. Inside the block, all is well again and the groups still run."""
    with ExitStack() as to_end:
        groups = [
            Group(cluster, "payments", 3),
            Group(cluster, "search-index", 3),
            Group(cluster, "mail", 2),
            Group(cluster, "audit", 2, static=True),
        ]
        for group in groups:
            to_end.callback(group.end)
        payments, search, mail, audit = groups
        to_end.enter_context(records(cluster.bootstrap))
        for group in groups:
            group.stable()
        time.sleep(5)

        say("deploy of payments: each process is stopped and started again")
        for worker in payments.workers:
            worker.restart()
            payments.stable()
        say("deploy of audit, whose members are static: nobody rebalances")
        for worker in audit.workers:
            worker.restart()
            audit.stable()

        say("a process of search-index crashes; a member of mail stalls")
        search.workers[0].crash()
        mail.workers[0].stall()
        search.stable(2)
        mail.stable(1)
        search.workers[0].start_again()
        mail.workers[0].go_on()
        search.stable()
        mail.stable()

        say("a process of mail is restarted again and again")
        for _ in range(3):
            mail.workers[1].restart()
            mail.stable()

        dead = cluster.coordinator_of("payments")
        assert dead is not None
        say(f"broker {dead + 1}, which coordinates payments, dies; it comes back later")
        cluster.kill(dead)
        for group in groups:
            group.stable()
        cluster.restart(dead)
        time.sleep(12)  # lag is sampled ten seconds after a rebalance
        yield


@contextmanager
def records(bootstrap: str) -> Iterator[None]:
    """Produce records for as long as the block lasts."""
    over = threading.Event()
    sender = threading.Thread(target=lambda: asyncio.run(_send(bootstrap, over)))
    sender.start()
    try:
        yield
    finally:
        over.set()
        sender.join(DEADLINE_S)


async def _send(bootstrap: str, over: threading.Event) -> None:
    number = 0
    async with Producer(bootstrap) as producer:
        while not over.is_set():
            async with asyncio.TaskGroup() as sending:
                for _ in range(RECORDS_A_SECOND // 10):
                    number += 1
                    value = f'{{"order": {number}, "cents": {number * 37 % 10_000}}}'
                    sending.create_task(producer.send(TOPIC, value.encode(), key=str(number).encode()))
            await asyncio.sleep(0.1)


async def work(bootstrap: str, group: str, name: str, instance: str) -> None:
    """A worker's process: takes a few milliseconds for each record."""
    loop = asyncio.get_running_loop()
    async with Consumer(
        bootstrap,
        group_id=group,
        client_id=name,
        group_instance_id=instance or None,
        topics=TOPIC,
        auto_offset_reset="earliest",
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=1_000,
        auto_commit_interval_ms=1_000,
    ) as consumer:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, consumer.stop)
        async for _ in consumer:
            await asyncio.sleep(0.002)


def pipeline(*arguments: str) -> None:
    """Run a command of `muster-pipeline`."""
    say(f"muster-pipeline {' '.join(arguments)}")
    done = subprocess.run([sys.executable, "-m", "muster.pipeline.cli", *arguments], check=False)
    if done.returncode:
        sys.exit(done.returncode)


def say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--to", default="demo", metavar="DIRECTORY", help="lake and report (default ./demo)")
    to = parser.parse_args().to
    if Path(to).exists():
        sys.exit(f"--to: {to} is there already; name another one, or remove it")
    try:
        check_packages()
        check_java(os.environ)
    except PipelineError as error:
        sys.exit(str(error))
    say("two brokers and four groups start")
    lake, report = f"{to}/lake", f"{to}/report"
    with Cluster(2, lease_term_ms=5_000) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        with bad_minute(cluster):
            servers = ("--bootstrap-server", cluster.bootstrap)
            pipeline("ingest", *servers, "--topics", f"{TOPIC},{JOURNAL}", "--to", lake, "--once")
    pipeline("rebalances", "--events", f"{lake}/topics", "--to", lake)
    pipeline("report", "--from", lake, "--to", report)
    say(f"the report is {Path(report).resolve() / 'report.html'}: open it in a browser")


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        asyncio.run(work(*sys.argv[2:]))
    else:
        # Otherwise its processes would survive, one of them perhaps frozen.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            main()
        except WaitFailed as error:
            sys.exit(str(error))
        except KeyboardInterrupt:
            sys.exit(130)
