"""`muster transactions` compared with Kafka's own tool: both report the same open and hanging transactions,
and either can end one.

A transaction hangs here because the broker does not verify batches (as KIP-890 would), and because a producer
unknown to any coordinator writes one.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, NamedTuple, TypeVar

import pytest

from muster.client import Admin, Producer, ProducerFenced, TopicPartition
from muster.client.admin.offsets import LATEST, READ_COMMITTED
from muster.coordinator.testing import Broker
from muster.protocol.messages.data import ProduceRequest, ProduceResponse
from muster.protocol.record_batch import Record, build
from tests.cli.running import Ended, run
from tests.kafka.conftest import KafkaOfConfigs
from tests.kafka.stories import KAFKA_CONFIGS
from tests.support.java import java
from tests.support.kafka_artifacts import tools_classpath
from tests.support.wire_blocking import WireConnection

pytestmark = pytest.mark.kafka

T = TypeVar("T")

_UNVERIFIED: Final = {**KAFKA_CONFIGS, "transaction.partition.verification.enable": "false"}
_TOOL: Final = "org.apache.kafka.tools.TransactionsCommand"
_TOOL_S_MAX: Final = 120
_PAUSE_S: Final = 0.02  # between two checks of a fact
_HOURS_AGO: Final = 2
_HOUR_MS: Final = 3_600_000
_TRANSACTION_MS_MAX: Final = 600_000
_UNVERIFIED_PRODUCE: Final = 11
"""From version 12 on, a batch adds its partition to the transaction."""


class Cluster(NamedTuple):
    """The cluster that has the transactions."""

    bootstrap: str

    def muster(self, *arguments: str) -> Ended:
        return run(self.bootstrap, "transactions", *arguments)

    def done(self, *arguments: str) -> str:
        """The output of a command that succeeded."""
        ended = self.muster(*arguments)
        assert (ended.code, ended.err) == (0, ""), ended
        return ended.out

    def json(self, *arguments: str) -> Any:
        ended = self.muster(*arguments, "--output", "json")
        assert (ended.code, ended.err) == (0, ""), ended
        return ended.json

    def tool(self, *arguments: str) -> list[list[str]]:
        """The rows that Kafka's tool prints, without its headings."""
        command = [*java(tools_classpath()), _TOOL, "--bootstrap-server", self.bootstrap, *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_S_MAX, check=False)
        assert ended.returncode == 0, (ended.stdout, ended.stderr)
        return [[cell.strip() for cell in line.split("\t")[:-1]] for line in ended.stdout.splitlines()][1:]

    def ask(self, call: Callable[[Admin], Coroutine[Any, Any, T]]) -> T:
        async def asking() -> T:
            async with Admin(self.bootstrap) as admin:
                return await call(admin)

        return asyncio.run(asking())

    def write(self, where: TopicPartition, producer_id: int, epoch: int, at_ms: int) -> int:
        """Write three records of a transaction unknown to its coordinator; returns the first one's offset."""
        batch = build(
            [Record(each, at_ms + each, None, b"lost") for each in range(3)],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=0,
            transactional=True,
        )
        Data = ProduceRequest.TopicProduceData
        part = Data.PartitionProduceData(index=where.partition, records=batch)
        request = ProduceRequest(
            transactional_id="lost",
            acks=-1,
            timeout_ms=30_000,
            topic_data=[Data(name=where.topic, partition_data=[part])],
        )
        host, port = self.bootstrap.split(":")
        with WireConnection(host, int(port), "lost") as connection:
            told = connection.call(request, _UNVERIFIED_PRODUCE, ProduceResponse)
        (written,) = told.responses[0].partition_responses
        assert written.error_code == 0, written
        return written.base_offset

    def stable(self, where: TopicPartition) -> int:
        """The partition's last stable offset."""

        async def ends(admin: Admin) -> int:
            told = await admin.list_offsets({where: LATEST}, isolation_level=READ_COMMITTED)
            end = told.raise_for_failures()[where]
            assert end is not None
            return end.offset

        return self.ask(ends)


@pytest.fixture(scope="module", params=["Apache Kafka", "muster"])
def cluster(request: pytest.FixtureRequest, kafka_of_configs: KafkaOfConfigs) -> Iterator[Cluster]:
    """Where the commands are tried."""
    if request.param == "muster":
        with Broker(transaction_partition_verification_enable=False) as broker:
            yield Cluster(broker.bootstrap)
    else:
        yield Cluster(kafka_of_configs.unused(_UNVERIFIED).bootstrap)


def transactional(cluster: Cluster, transactional_id: str) -> Producer[bytes, bytes]:
    """A producer whose transactions outlast the commands of a test."""
    return Producer(
        cluster.bootstrap, transactional_id=transactional_id, transaction_timeout_ms=_TRANSACTION_MS_MAX
    )


def fields(rows: list[dict[str, Any]], *names: str) -> list[list[str]]:
    """Rows as Kafka's tool prints them: -1 for null."""
    return sorted([str(-1 if row[name] is None else row[name]) for name in names] for row in rows)


def test_open_transactions_are_listed_and_described(cluster: Cluster) -> None:
    async def play() -> None:
        async with (
            Admin(cluster.bootstrap) as admin,
            transactional(cluster, "open-1") as first,
            transactional(cluster, "done-1") as second,
            transactional(cluster, "idle-1"),
        ):
            await admin.create_topic("open", 3)
            async with second.transaction() as transaction:
                await transaction.send("open", b"v", partition=2)
            # A commit returns before its markers are written.
            async with asyncio.timeout(_TOOL_S_MAX):
                while (await admin.describe_transaction("done-1")).state != "CompleteCommit":  # noqa: ASYNC110
                    await asyncio.sleep(_PAUSE_S)
            async with first.transaction() as transaction:
                await transaction.send("open", b"v", partition=1)
                await transaction.send("open", b"v", partition=0)
                await asyncio.to_thread(told)

    def told() -> None:
        listed = cluster.json("list")
        assert [each["transactional_id"] for each in listed] == ["done-1", "idle-1", "open-1"]
        assert fields(listed, "transactional_id", "coordinator", "producer_id", "state") == sorted(
            cluster.tool("list")
        )
        for filters in (
            ("--state", "ongoing"),
            ("--producer-id", str(listed[2]["producer_id"])),
            ("--longer-than", "1ms"),
            ("--pattern", "open-[0-9]"),
        ):
            assert [each["transactional_id"] for each in cluster.json("list", *filters)] == ["open-1"]
        assert cluster.json("list", "--longer-than", "1h") == []
        assert cluster.json("list", "--pattern", "open") == [], "a part is no match"

        (open_1,) = cluster.json("describe", "open-1")
        names = ("coordinator", "transactional_id", "producer_id", "producer_epoch", "state", "timeout_ms")
        ((*theirs, began, _, partitions),) = cluster.tool("describe", "--transactional-id", "open-1")
        assert fields([open_1], *names) == [theirs]
        assert str(open_1["start_timestamp"]) == began
        assert 0 <= open_1["open_ms"] < _HOUR_MS
        assert {f"{at['topic']}-{at['partition']}" for at in open_1["partitions"]} == set(
            partitions.split(",")
        )
        by_side = cluster.done("describe", "open-1", "idle-1", "done-1").splitlines()
        assert by_side[0].split()[:4] == ["TRANSACTIONAL", "ID", "STATE", "COORDINATOR"]
        assert [line.split()[:2] for line in by_side[1:]] == [
            ["open-1", "Ongoing"],
            ["idle-1", "Empty"],
            ["done-1", "CompleteCommit"],
        ]
        assert by_side[1].endswith(" open:0,1")
        assert cluster.json("describe", "idle-1")[0]["start_timestamp"] is None
        in_columns = cluster.done("describe", "open-1", "--output", "csv").splitlines()
        assert in_columns[0].startswith("transactional_id,state,coordinator,producer_id,")
        assert in_columns[1].endswith(',"open-0,open-1"')

        unknown = cluster.muster("describe", "open-1", "nobody")
        assert unknown.code == 1
        assert "open-1" in unknown.out
        assert unknown.err == (
            "muster transactions describe: nobody: the transactional id is not known "
            "(TRANSACTIONAL_ID_NOT_FOUND; muster transactions list shows the transactional ids)\n"
        )
        bad = cluster.muster("list", "--pattern", "open(")
        assert (bad.code, bad.out) == (1, "")
        assert "pattern 'open(': the regular expression is not valid" in bad.err

        # An open transaction is not a hanging one, however long nothing has been written.
        assert cluster.json("find-hanging", "--topic", "open", "--longer-than", "1ms") == []
        refused = cluster.muster("abort", "--topic", "open", "--partition", "1", "--start-offset", "0")
        assert (refused.code, refused.out) == (1, "")
        assert "it does not hang: the coordinator of open-1 still has it" in refused.err

    asyncio.run(play())


def test_hanging_transactions_are_found_with_those_they_hold_back(cluster: Cluster) -> None:
    at_ms = time.time_ns() // 1_000_000 - _HOURS_AGO * _HOUR_MS
    lost, half = TopicPartition("orders", 0), TopicPartition("orders", 1)

    async def play() -> None:
        async with (
            Admin(cluster.bootstrap) as admin,
            Producer[bytes, bytes](cluster.bootstrap, linger_ms=0) as plain,
            transactional(cluster, "half-1") as producer,
        ):
            await admin.create_topic("orders", 3)
            for _ in range(5):
                await plain.send("orders", b"v", partition=0)
            for group, offset in {"there": 5, "behind": 2, "beyond": 8}.items():
                (await admin.alter_group_offsets(group, {lost: offset})).raise_for_failures()
            async with producer.transaction() as transaction:
                await transaction.send("orders", b"v", partition=2)
                known = await admin.describe_transaction("half-1")
                await asyncio.to_thread(told, known.producer_id, known.producer_epoch)

    def told(producer_id: int, epoch: int) -> None:
        unknown_id = producer_id + 1_000
        assert cluster.write(lost, unknown_id, 0, at_ms) == 5
        assert cluster.write(half, producer_id, epoch, at_ms) == 0
        found = cluster.json("find-hanging", "--topic", "orders")
        assert fields(
            found,
            *("topic", "partition", "producer_id", "producer_epoch", "coordinator_epoch"),
            *("start_offset", "last_timestamp"),
        ) == sorted(row[:-1] for row in cluster.tool("find-hanging", "--topic", "orders"))
        first, second = found
        assert first == {
            **lost._asdict(),
            "producer_id": unknown_id,
            "producer_epoch": 0,
            "coordinator_epoch": None,
            "transactional_id": None,
            "start_offset": 5,
            "start_timestamp": at_ms,
            "last_timestamp": at_ms + 2,
            "why": f"no coordinator knows producer id {unknown_id}",
            "last_stable_offset": 5,
            "log_end_offset": 8,
            "held_back": [
                {"group_id": "there", "committed_offset": 5, "lag": 3},
                {"group_id": "behind", "committed_offset": 2, "lag": 6},
            ],
        }
        assert (second["transactional_id"], second["why"], second["held_back"]) == (
            "half-1",
            "half-1 is Ongoing at its coordinator, without this partition",
            [],
        )
        for scope in ((), ("--broker", "1"), ("--longer-than", "119m")):
            assert cluster.json("find-hanging", *scope) == found
        assert cluster.json("find-hanging", "--topic", "orders", "--partition", "1") == [second]
        assert cluster.json("find-hanging", "--longer-than", "3h") == []

        shown = cluster.done("find-hanging").splitlines()
        assert shown[0].endswith("  OPEN FOR  WHY")
        assert shown[1].split()[:5] == ["orders", "0", "5", str(unknown_id), "0"]
        assert shown[1].endswith(f"  2 h       no coordinator knows producer id {unknown_id}")
        assert shown[4:6] == ["Held back, if they read only committed records:", ""]
        assert [line.split()[:6] for line in shown[7:9]] == [
            ["orders", "0", "there", "5", "5", "3"],
            ["orders", "0", "behind", "2", "5", "6"],
        ]
        assert shown[-1] == (
            "To end the first one: muster transactions abort --topic orders --partition 0 --start-offset 5"
        )
        aborted(unknown_id, producer_id)

    def aborted(unknown_id: int, producer_id: int) -> None:
        which = ("abort", "--topic", "orders", "--partition", "0")
        said = f"orders-0, producer id {unknown_id}, epoch 0, from offset 5 on"
        assert cluster.muster(*which, "--start-offset", "4").err == (
            "muster transactions abort: orders-0 has no transaction that begins at offset 4; those open are: "
            f"producer id {unknown_id}, epoch 0, from offset 5 on\n"
        )
        assert cluster.done(*which, "--start-offset", "5").splitlines() == [
            f"{said}: no coordinator knows producer id {unknown_id}",
            "",
            "Nothing was changed: use --execute to abort it.",
        ]
        assert cluster.stable(lost) == 5
        assert cluster.done(*which, "--producer-id", str(unknown_id), "--execute") == f"{said}: aborted\n"
        assert cluster.stable(lost) == 9, "behind the marker"
        gone = cluster.muster(*which, "--producer-id", str(unknown_id), "--execute")
        assert gone.err == (
            f"muster transactions abort: orders-0 has no transaction of producer id {unknown_id}; "
            "none is open there\n"
        )
        # Kafka's tool ends the other one, and muster's sees that.
        cluster.tool("abort", "--topic", "orders", "--partition", "1", "--start-offset", "0")
        assert cluster.stable(half) == 4
        assert cluster.done("find-hanging") == "no hanging transactions\n"
        # With --force, one that its coordinator still has.
        which = ("abort", "--topic", "orders", "--partition", "2", "--producer-id", str(producer_id))
        assert cluster.json(*which, "--force", "--execute")["aborted"] is True
        assert cluster.stable(TopicPartition("orders", 2)) == 2

    asyncio.run(play())


def test_what_is_not_there_is_named(cluster: Cluster) -> None:
    def refused(*arguments: str) -> str:
        ended = cluster.muster(*arguments)
        assert (ended.code, ended.out) == (1, ""), ended
        return ended.err

    assert "there is no broker 7; there are 1" in refused("find-hanging", "--broker", "7")
    assert "UNKNOWN_TOPIC_OR_PARTITION" in refused("find-hanging", "--topic", "nothing")
    missing = ("abort", "--topic", "nothing", "--partition", "0", "--start-offset", "0", "--execute")
    assert "UNKNOWN_TOPIC_OR_PARTITION" in refused(*missing)


def test_a_fenced_producer_cannot_commit(cluster: Cluster) -> None:
    async def play() -> None:
        async with (
            Admin(cluster.bootstrap) as admin,
            transactional(cluster, "fenced-1") as producer,
        ):
            await admin.create_topic("fenced")
            before = await admin.describe_transaction("fenced-1")
            transaction = await producer.transaction().begin()
            await transaction.send("fenced", b"v")
            fenced = (await admin.fence_producers(["fenced-1", "fenced-new"])).raise_for_failures()
            assert fenced["fenced-1"].producer_id == before.producer_id
            assert fenced["fenced-1"].producer_epoch > before.producer_epoch
            assert fenced["fenced-new"].producer_epoch == 0
            assert (await admin.describe_transaction("fenced-1")).partitions == []
            with pytest.raises(ProducerFenced):
                await transaction.commit()

    asyncio.run(play())
