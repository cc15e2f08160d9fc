"""The `muster` command: what it prints, what it refuses, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from muster.build import version
from muster.coordinator import cli, command_line, config
from muster.protocol.messages.data import FetchRequest, ProduceRequest
from muster.protocol.messages.metadata import MetadataRequest
from muster.protocol.record_batch import Record, build
from tests.support.ports import free_ports
from tests.support.served import Served
from tests.support.wire import Wire

DEADLINE_S = 20


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "muster", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env=environment() | variables,
        check=False,
    )


def test_version() -> None:
    ended = run("--version")
    assert (ended.returncode, ended.stdout) == (0, f"muster {version()}\n")


def test_help_tells_every_option_with_its_variable_default_and_unit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["serve", "--help"], {})
    assert ended.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "MUSTER_GROUP_MAX_SIZE" in shown
    assert "--max-connections-per-ip CONNECTIONS " in shown
    assert "--request-elements-max ELEMENTS " in shown
    for name, each in config.SETTINGS.items():
        assert f"{config.option(name)} " in shown
        assert each.meaning in shown
        if each.unit is not None:
            assert f"{config.option(name)} {each.unit.upper()}" in shown
        if each.kafka:
            assert f"Kafka: {each.name})" in shown


def test_without_a_command_it_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([], {}) == 2
    assert "serve" in capsys.readouterr().out


def test_an_interrupt_in_the_middle_of_an_import_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command_line, "parser", interrupted)
    assert cli.main(["groups", "list"], {}) == 130


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        (
            ["--port", "x"],
            {},
            "muster serve: --port: 'x' is not allowed; it takes a whole number, 0 to 65535\n",
        ),
        (
            [],
            {"MUSTER_BROKERS": "0"},
            "muster serve: MUSTER_BROKERS: '0' is not allowed; it takes a whole number, 1 to 64\n",
        ),
    ],
)
def test_a_wrong_value_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], variables: dict[str, str], said: str
) -> None:
    assert cli.main(["serve", *arguments], variables) == 2
    assert capsys.readouterr().err == said


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = run("serve", "--port", port, "--data", str(tmp_path / "data"))
    assert ended.returncode == 1
    assert ended.stderr == (
        f"muster serve: 127.0.0.1:{port} is in use; choose another --port, or 0 for any free one\n"
    )


def test_a_directory_in_use_or_unusable_is_one_line(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as served:
        ended = run("serve", "--port", "0", "--data", str(served.data))
        assert ended.returncode == 1
        assert str(served.data) in ended.stderr
        assert f"process {served.process.pid}" in ended.stderr
        assert "several processes can share a PostgreSQL: --store" in ended.stderr
        assert ended.stderr.count("\n") == 1
    (tmp_path / "logs-unusable").mkdir()
    (tmp_path / "logs-unusable" / "topics").write_text("not a directory")
    ended = run("serve", "--port", "0", "--data", str(tmp_path / "logs-unusable"))
    assert ended.returncode == 1
    assert str(tmp_path / "logs-unusable" / "topics") in ended.stderr
    assert ended.stderr.count("\n") == 1
    (tmp_path / "file").write_text("not a directory")
    ended = run("serve", "--port", "0", "--data", str(tmp_path / "file"))
    assert ended.returncode == 1
    assert str(tmp_path / "file") in ended.stderr
    assert ended.stderr.count("\n") == 1


async def test_nobody_has_to_read_its_log(tmp_path: Path) -> None:
    # Nothing reads its stderr before the end, and a pipe holds 64 KiB.
    with Served(tmp_path / "data", "--log-level", "debug") as served:
        for _ in range(500):
            async with await Wire.connect(served.port) as wire:
                await wire.send_bytes(b"\xff" * 4)
                assert await wire.closed()
        async with await Wire.connect(served.port) as wire:
            assert (await wire.call(MetadataRequest(topics=None), 12)).brokers
        assert served.stop() == 0


async def test_it_says_when_it_is_ready_and_where(tmp_path: Path) -> None:
    with Served(tmp_path / "data", "--brokers", "2") as served:
        assert served.ready_line.startswith(f"muster ready on 127.0.0.1:{served.port},127.0.0.1:")
        assert f" (sqlite, {tmp_path / 'data'}, 50 shards, " in served.ready_line
        async with await Wire.connect(served.port) as wire:
            response = await wire.call(MetadataRequest(topics=None), 12)
            assert [each.node_id for each in response.brokers] == [1, 2]
        assert served.stop() == 0


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_it_serves_and_stops_in_good_order_without_standard_files(tmp_path: Path, closed: str) -> None:
    """Nothing else gets their numbers: uvloop aborts the process when it is to close one of them."""
    port = free_ports(1)
    line = f'exec "{sys.executable}" -m muster serve --port {port} --data "{tmp_path}/data" {closed}'
    with subprocess.Popen(["bash", "-c", line], stderr=subprocess.PIPE) as process:
        try:
            until_ready(port, process)
            if sys.platform == "linux":
                files = [os.readlink(f"/proc/{process.pid}/fd/{number}") for number in range(3)]
                assert files.count(os.devnull) >= closed.count("&-")
                assert not any(each.startswith(("socket:", "anon_inode:", str(tmp_path))) for each in files)
            process.terminate()
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
def test_it_serves_though_its_standard_output_is_full() -> None:
    line = f'exec "{sys.executable}" -m muster serve --port 0 --ephemeral > /dev/full'
    with subprocess.Popen(["bash", "-c", line], stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            logged = json.loads(process.stderr.readline())
            assert logged["event"] == "cannot write to standard output"
            assert logged["why"] == "No space left on device"
            until_ready(int(logged["said"].split()[3].rpartition(":")[2]), process)
            process.terminate()
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()


def until_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while run("cluster", "ready", "--bootstrap-server", f"127.0.0.1:{port}").returncode:
        assert process.poll() is None, "the broker ended"
        assert time.monotonic() < deadline, "the broker does not become ready"


def test_in_memory_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Served(None, "--ephemeral") as served:
        assert "(in memory, 50 shards, " in served.ready_line
        assert served.stop() == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_in_good_order_and_logs_are_json(tmp_path: Path, number: signal.Signals) -> None:
    with Served(tmp_path / "data") as served:
        process = served.process
        process.send_signal(number)
        _, logged = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0
        assert [json.loads(line)["event"] for line in logged.splitlines()] == ["stopping"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_while_it_starts_is_its_exit_code(number: signal.Signals) -> None:
    """The database accepts the connection and does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as database:
        database.settimeout(DEADLINE_S)
        store = f"postgresql://muster@127.0.0.1:{database.getsockname()[1]}/muster"
        with subprocess.Popen(
            [sys.executable, "-m", "muster", "serve", "--port", "0", "--store", store],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        ) as process:
            try:
                connection, _ = database.accept()
                with connection:
                    process.send_signal(number)
                    assert process.communicate(timeout=DEADLINE_S) == (b"", b"")
                    assert process.returncode == 128 + number
            finally:
                process.kill()


async def test_under_nohup_a_hangup_ends_nothing(tmp_path: Path) -> None:
    served = Served(tmp_path / "data").start(under=("nohup",))
    try:
        served.process.send_signal(signal.SIGHUP)
        async with await Wire.connect(served.port) as wire:
            await wire.call(MetadataRequest(topics=[]), 12)
    finally:
        assert served.stop() == 0


async def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """While it drains: until the grace is over, it waits for a client that asked for 20 MB and reads none of
    it."""
    with Served(tmp_path / "data", "--shutdown-grace-ms", "600000") as served:
        async with await Wire.connect(served.port) as wire:
            await wire.call(MetadataRequest(topics=[MetadataRequest.Topic(name="t")]), 12)
            batch = build([Record(0, 1, None, bytes(1_000_000))])
            part = ProduceRequest.PartitionProduceData(index=0, records=batch)
            topic = ProduceRequest.TopicProduceData(name="t", partition_data=[part])
            for _ in range(20):
                await wire.call(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic]), 9)
        idle = await Wire.connect(served.port)
        wanted = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=2**30)
        fetch = FetchRequest.FetchTopic(topic="t", partitions=[wanted])
        await idle.send(FetchRequest(max_wait_ms=0, min_bytes=1, topics=[fetch]), 12)
        size = await asyncio.wait_for(idle._reader.readexactly(4), DEADLINE_S)
        idle._reader._transport.pause_reading()  # type: ignore[attr-defined]
        assert int.from_bytes(size) > 20_000_000, "the sockets' buffers take less than is waited for"
        async with await Wire.connect(served.port) as wire:
            await wire.call(MetadataRequest(topics=[]), 12)
            served.process.send_signal(signal.SIGTERM)
            assert await wire.closed(DEADLINE_S)
        with pytest.raises(ConnectionError):
            await Wire.connect(served.port)
        assert served.process.poll() is None
        served.process.send_signal(signal.SIGHUP)  # a terminal that is closed may send two
        served.process.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(served.process.wait, DEADLINE_S)
        assert code == 128 + signal.SIGTERM
        idle.abort()


def page_faults(process_id: int) -> int:
    """Pages that the system has given the process without reading them from a disk."""
    return int(Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[7])


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="others cannot be told to keep memory")
async def test_memory_of_one_answer_is_there_for_the_next(tmp_path: Path) -> None:
    with Served(tmp_path / "data", "--num-partitions", "8") as served:
        async with await Wire.connect(served.port) as wire:
            await wire.call(MetadataRequest(topics=[MetadataRequest.Topic(name="t")]), 12)
            batch = build([Record(0, 1, None, bytes(1_000_000))])
            parts = [ProduceRequest.PartitionProduceData(index=index, records=batch) for index in range(8)]
            for part in parts:
                topic = ProduceRequest.TopicProduceData(name="t", partition_data=[part])
                await wire.call(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic]), 9)
            wanted = [
                FetchRequest.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=2**20)
                for index in range(8)
            ]
            fetch = FetchRequest(
                max_wait_ms=0, min_bytes=1, topics=[FetchRequest.FetchTopic(topic="t", partitions=wanted)]
            )

            async def fetched() -> int:
                answer = await wire.call(fetch, 12)
                return sum(len(part.records) for part in answer.responses[0].partitions)

            for _ in range(5):
                assert await fetched() > 8_000_000
            before = page_faults(served.process.pid)
            for _ in range(10):
                await fetched()
            # Pages of 4 KiB; an answer takes 2,000.
            assert page_faults(served.process.pid) - before < 2_000


def test_what_is_imported_only_when_needed_is_not_imported_to_start() -> None:
    """They would take a third of the time to start, and more of the memory: structlog (with rich), what only
    refusals, compressed batches and tests need, and the rules of why."""
    script = (
        "import sys, muster.coordinator.cli\n"
        "import muster.coordinator.server.brokers, muster.coordinator.storage.sqlite\n"
        "heavy = ('structlog', 'rich', 'uvloop', 'pydoc', 'construct', 'cramjam', 'decimal', 'difflib',"
        " 'termios', 'muster.coordinator.journal.explain')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"


def test_what_a_broker_logs_with_brings_nothing_that_it_does_not_print_with() -> None:
    """structlog by itself would import rich and pygments; rich can still be imported afterwards."""
    script = (
        "import sys\n"
        "from muster.coordinator.base.log import Logger, warm_up\n"
        "warm_up()\n"
        "Logger().error('a line')\n"
        "print([name for name in ('structlog', 'rich', 'pygments') if name in sys.modules])\n"
        "import rich.console\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout == "['structlog']\n"
    assert "a line" in ended.stderr
