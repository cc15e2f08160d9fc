"""The brokers that the story is played against, each a separate process, set up as users have them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tests.support.apache_kafka import ApacheKafka
from tests.support.kafka_artifacts import KAFKA_VERSION
from tests.support.postgres import Postgres
from tests.support.proxy import Proxy
from tests.support.served import Served

_LOG_LINES_SHOWN: Final = 40
# Kafka's default of 3 s is for people who start members by hand. The story waits for facts, and only needs it
# long enough for members that start together to share their first rebalance.
_INITIAL_REBALANCE_DELAY_MS: Final = 500
_CONSUMER_GROUPS: Final = {
    "group.consumer.min.session.timeout.ms": "3000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "1000",
}
"""Groups of the consumer protocol learn soon of assignments, and may have short sessions. librdkafka gives up
a heartbeat after its interval, and a revocation is reported only once: with 300 ms, a busy machine had
members that never learned of it."""


def _cannot() -> None:
    raise NotImplementedError("this broker is not to be killed")


@dataclass(frozen=True)
class Target:
    """A running broker."""

    name: str
    bootstrap: str
    log: Path
    proxy: Proxy | None = None
    """The proxy for all connections, if they have to be cut."""
    kill_and_start: Callable[[], None] = _cannot
    """SIGKILL the broker, and restart it on the same data."""
    nodes: Mapping[int, Served] = field(default_factory=dict)
    """Brokers in separate processes, by node id: one may be killed while the others go on."""

    def last_log_lines(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
        return "\n".join(f"    {line[:500]}" for line in lines) or "    (nothing)"


KAFKA: Final = "kafka"
CLUSTER: Final = "cluster"
CUT: Final = "cut"
TARGETS: Final = {
    KAFKA: f"Apache Kafka {KAFKA_VERSION}",
    "serve": "`muster serve`",
    CLUSTER: "three `muster serve` over PostgreSQL, `kill -9`",
    CUT: "`muster serve`, connections cut, `kill -9`",
}
"""By their names on the command line: as in the table of docs/compatibility.md, Apache Kafka first."""
KAFKA_CUT: Final = "kafka-cut"
"""Apache Kafka with its connections cut: for trying out changes to that story, not in the table."""
FOR_ONE_STORY: Final = frozenset({CLUSTER, CUT, KAFKA_CUT})
"""Whatever happens to these would affect all their users."""


@contextmanager
def running(name: str, configs: Mapping[str, str] | None = None) -> Iterator[Target]:
    """Start one of `TARGETS`, or `KAFKA_CUT`; its folder is deleted afterwards. `configs` are additional
    broker configs under Kafka's names."""
    if name in (CUT, KAFKA_CUT):
        with Proxy() as proxy, _running(name, proxy, configs or {}) as target:
            yield replace(target, bootstrap=f"127.0.0.1:{proxy.port}", proxy=proxy)
    else:
        with _running(name, None, configs or {}) as target:
            yield target


@contextmanager
def _running(name: str, proxy: Proxy | None, more: Mapping[str, str]) -> Iterator[Target]:
    if name in (KAFKA, KAFKA_CUT):
        configs = {
            "group.initial.rebalance.delay.ms": str(_INITIAL_REBALANCE_DELAY_MS),
            "auto.create.topics.enable": "true",
            # How long a killed broker is waited for when it registers again.
            "broker.session.timeout.ms": "4000",
            # Abort a transaction soon after its timeout.
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
            **_CONSUMER_GROUPS,
            **more,
        }
        with ApacheKafka(configs, advertised_port=proxy.port if proxy else None) as kafka:
            if proxy is not None:
                proxy.upstream_port = kafka.port
            log = kafka.folder / "output.txt"
            yield Target(name, kafka.bootstrap, log, kill_and_start=kafka.restart)
        return
    options = ["--group-initial-rebalance-delay-ms", str(_INITIAL_REBALANCE_DELAY_MS)]
    for config, value in {**_CONSUMER_GROUPS, **more}.items():
        options += [f"--{config.replace('.', '-')}", value]
    folder = Path(tempfile.mkdtemp(prefix="muster-story-"))
    log = folder / "log.txt"
    try:
        if name == CLUSTER:
            with _nodes(log, options) as nodes:
                addresses = ",".join(node.bootstrap for node in nodes.values())
                yield Target(name, addresses, log, nodes=nodes)
            return
        if proxy is not None:
            options += ["--advertised", f"127.0.0.1:{proxy.port}"]
        with Served(folder / "data", *options, log=log) as served:
            if proxy is not None:
                proxy.upstream_port = served.port
            yield Target(name, served.bootstrap, log, kill_and_start=lambda: _kill_and_start(served))
    finally:
        shutil.rmtree(folder)


@contextmanager
def _nodes(log: Path, options: Sequence[str]) -> Iterator[dict[int, Served]]:
    """Three brokers over a database of their own; they share one log file."""
    with Postgres() as postgres, ExitStack() as running:
        url = postgres.new_database()
        nodes = {
            node_id: Served(None, *options, "--store", url, "--node-id", str(node_id), log=log)
            for node_id in (1, 2, 3)
        }
        for node in nodes.values():
            running.enter_context(node)
        yield nodes


def _kill_and_start(served: Served) -> None:
    served.kill()
    served.start()
