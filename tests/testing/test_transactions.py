"""Transactions in tests: what may happen between begin and end, and what each reader sees."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import pytest

from muster.client import (
    Admin,
    Consumer,
    GroupMetadata,
    Producer,
    ProducerFenced,
    TopicPartition,
    Transaction,
    TransactionAborted,
)
from muster.coordinator.peers import markers
from muster.coordinator.testing import (
    AsyncBroker,
    Broker,
    Cluster,
    FaultError,
    TransactionFacts,
    WaitFailed,
    transactions,
)
from muster.protocol.api import response_class
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from tests.server.test_offsets import codes, commit
from tests.support.each import each
from tests.support.wire import Wire
from tests.support.wire_blocking import ConnectionClosed, WireConnection

ID: Final = "etl-1"
READ: Final = {("orders", 0): 2}
"""The group's offsets once its two records are processed."""


@asynccontextmanager
async def producing(broker: AsyncBroker, name: str = ID) -> AsyncIterator[Producer[bytes, bytes]]:
    async with Producer(broker.bootstrap, transactional_id=name) as producer:
        yield producer


@asynccontextmanager
async def consuming(broker: AsyncBroker) -> AsyncIterator[Consumer[bytes, bytes]]:
    """A member that has read the two orders."""
    await broker.create_topic("orders")
    await broker.produce("orders", [b"1", b"2"])
    async with Consumer(
        broker.bootstrap,
        group_id="etl",
        topics=["orders"],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        left = 2
        async for _ in consumer:
            left -= 1
            if not left:
                break
        yield consumer


class Seen(NamedTuple):
    """What readers see, and which offsets the group has."""

    committed: list[bytes | None]
    uncommitted: list[bytes | None]
    offsets: dict[tuple[str, int], int]
    pending: dict[tuple[str, int], int]


NOTHING: Final = Seen([], [], {}, {})
WRITTEN: Final = Seen([], [b"3"], {}, {})
"""The record is stored, but hidden from read_committed readers: undecided or aborted."""
PENDING: Final = Seen([], [b"3"], {}, READ)
COMMITTED: Final = Seen([b"3"], [b"3"], READ, {})


async def seen(broker: AsyncBroker) -> Seen:
    group = broker.group("etl")
    committed = await broker.records("totals", isolation_level="read_committed")
    uncommitted = await broker.records("totals", isolation_level="read_uncommitted")
    return Seen(
        [record.value for record in committed],
        [record.value for record in uncommitted],
        group.offsets(),
        group.pending_offsets(),
    )


# --- whatever happens, at any point -------------------------------------------------------------------------


class Point(StrEnum):
    """The point in the transaction's life at which the accident happens."""

    BEGUN = "begun"
    SENT = "the record is written"
    OFFSETS = "the offsets are in it"
    ENDING = "EndTxn has arrived, and is not decided"
    DECIDED = "decided, without markers"
    MARKED = "the markers are written"


class Accident(StrEnum):
    """The accident."""

    KILLED = "the broker is killed and restarted"
    FENCED = "the producer is fenced"
    TIMED_OUT = "the clock moves past the timeout"


BEFORE: Final = {
    Point.BEGUN: NOTHING,
    Point.SENT: WRITTEN,
    Point.OFFSETS: PENDING,
    Point.ENDING: PENDING,
    Point.DECIDED: PENDING,
    Point.MARKED: COMMITTED,
}
"""What is seen at each point, before the accident."""

AFTER: Final[dict[Accident, dict[Point, tuple[Seen, type[Exception] | None]]]] = {
    # An open transaction survives its broker, and the producer continues.
    Accident.KILLED: dict.fromkeys(Point, (COMMITTED, None)),
    Accident.FENCED: {
        Point.BEGUN: (NOTHING, ProducerFenced),
        Point.SENT: (WRITTEN, ProducerFenced),
        Point.OFFSETS: (WRITTEN, ProducerFenced),
        Point.ENDING: (WRITTEN, ProducerFenced),
        Point.DECIDED: (COMMITTED, None),
        Point.MARKED: (COMMITTED, None),
    },
    Accident.TIMED_OUT: {
        Point.BEGUN: (COMMITTED, None),  # the timeout starts with the first record
        Point.SENT: (WRITTEN, TransactionAborted),
        Point.OFFSETS: (WRITTEN, TransactionAborted),
        Point.ENDING: (WRITTEN, TransactionAborted),
        Point.DECIDED: (COMMITTED, None),
        Point.MARKED: (COMMITTED, None),
    },
}
"""What is seen at the end, and the error the producer gets, or None."""


class Play:
    """One transaction, from begin to end, with the accident at its point."""

    def __init__(self, broker: AsyncBroker, point: Point, accident: Accident) -> None:
        self._broker = broker
        self._point = point
        self._accident = accident

    async def _happen(self) -> None:
        broker = self._broker
        assert await seen(broker) == BEFORE[self._point]
        match self._accident:
            case Accident.KILLED:
                await broker.kill(0)
                await broker.restart(0)
            case Accident.FENCED:
                before = broker.transaction(ID).facts
                after = await broker.transaction(ID).fence()
                assert (after.state, after.producer_id) == ("Empty", before.producer_id)
                assert after.producer_epoch > before.producer_epoch
            case Accident.TIMED_OUT:
                await broker.clock.advance("61s")

    async def _at(self, point: Point) -> None:
        if point is self._point:
            await self._happen()

    async def run(self, transaction: Transaction[bytes, bytes], consumer: Consumer[bytes, bytes]) -> None:
        async with transaction:
            await self._at(Point.BEGUN)
            await transaction.send("totals", b"3")
            await self._at(Point.SENT)
            await transaction.commit_offsets(consumer)
            await self._at(Point.OFFSETS)
            if self._point is Point.ENDING:
                await self._commit_while_asking(transaction)
            elif self._point is Point.DECIDED:
                await self._commit_while_decided(transaction)
            else:
                await transaction.commit()
                await self._broker.transaction(ID).ended()
                await self._at(Point.MARKED)

    async def _commit_while_asking(self, transaction: Transaction[bytes, bytes]) -> None:
        faults = self._broker.faults
        async with faults.add(api="EndTxn", transactional_id=ID, delay="1 day") as asked:
            committing = asyncio.create_task(transaction.commit())
            await asked.hit()
            await self._happen()
        await committing

    async def _commit_while_decided(self, transaction: Transaction[bytes, bytes]) -> None:
        async with self._broker.faults.hold_markers(ID) as held:
            await transaction.commit()
            decided = await held.hit()
            assert decided.partitions[0][0] == "__consumer_offsets"
            assert decided.partitions[1:] == (("totals", 0),)
            happening = asyncio.create_task(self._happen())
            if self._accident is Accident.FENCED:  # waits for the end, as a second producer would
                with pytest.raises(WaitFailed, match=r"(?s)another producer's.*now: etl-1: PrepareCommit"):
                    await self._broker.transaction(ID).fence(timeout=0)
            else:
                await happening
                assert await held.hit() == decided
            assert await seen(self._broker) == PENDING
        await happening


async def play(broker: AsyncBroker, point: Point, accident: Accident) -> None:
    expected, told = AFTER[accident][point]
    async with AsyncExitStack() as stack:
        consumer = await stack.enter_async_context(consuming(broker))
        await broker.create_topic("totals")
        producer = await stack.enter_async_context(producing(broker))
        running = Play(broker, point, accident).run(producer.transaction(), consumer)
        if told is None:
            await running
        else:
            with pytest.raises(told):
                await running
        await broker.no_open_transaction()
        assert await seen(broker) == expected


@pytest.mark.parametrize("accident", Accident, ids=lambda each: each.name.lower())
@pytest.mark.parametrize("point", Point, ids=lambda each: each.name.lower())
async def test_what_readers_see_after_an_accident_at_any_point(point: Point, accident: Accident) -> None:
    async with Broker() as broker:
        await play(broker, point, accident)


@pytest.mark.parametrize("point", Point, ids=lambda each: each.name.lower())
async def test_what_readers_see_when_the_broker_comes_back_from_its_disk(
    point: Point, tmp_path: Path
) -> None:
    async with Broker(data=tmp_path) as broker:
        await play(broker, point, Accident.KILLED)


# --- facts and waits ----------------------------------------------------------------------------------------


async def test_facts_from_an_id_that_nobody_has_to_one_that_has_committed() -> None:
    async with Broker() as broker:
        await broker.create_topic("totals", 2)
        transaction = broker.transaction(ID)
        assert transaction.facts == TransactionFacts(ID, "Dead")
        assert broker.transactions() == []
        async with producing(broker) as producer, producing(broker, "etl-2"):
            assert (transaction.state, transaction.facts.started_ms) == ("Empty", None)
            began_ms = broker.clock.now_ms()
            async with producer.transaction() as open_one:
                await open_one.send("totals", b"1", partition=1)
                facts = await transaction.in_state("Ongoing")
                assert facts.partitions == (("totals", 1),)
                assert facts.timeout_ms == 60_000
                assert facts.started_ms is not None
                assert began_ms <= facts.started_ms <= broker.clock.now_ms()
                assert [(each.id, each.is_open) for each in broker.transactions()] == [
                    (ID, True),
                    ("etl-2", False),
                ]
                with pytest.raises(
                    WaitFailed,
                    match=r"(?s)after 0 s waiting for no transaction to be open\n  now: etl-1: Ongoing, "
                    r"producer \d+ in epoch 0, in totals-1",
                ):
                    await broker.no_open_transaction(timeout=0)
                with pytest.raises(WaitFailed, match="etl-1 to have no open transaction"):
                    await transaction.ended(timeout=0)
            assert (await transaction.ended()).state == "CompleteCommit"
            assert transaction.facts.started_ms is None
            await broker.no_open_transaction()
        with pytest.raises(ValueError, match="'Comitted' is not one of Empty, Ongoing"):
            await transaction.in_state("Comitted")
        with pytest.raises(
            LookupError, match=r"^there is no transactional id 'etl'; there are: etl-1, etl-2$"
        ):
            await broker.transaction("etl").fence()


async def test_an_isolation_level_is_checked() -> None:
    async with Broker() as broker:
        await broker.create_topic("totals")
        with pytest.raises(ValueError, match="'committed' is not one of read_uncommitted, read_committed"):
            await broker.records("totals", isolation_level="committed")
        assert await broker.topic("totals").records(isolation_level="read_committed") == []


async def test_what_was_committed_between_aborted_transactions_is_read() -> None:
    async with Broker() as broker:
        await broker.create_topic("totals")
        async with producing(broker) as one, producing(broker, "etl-2") as two:
            for number in range(6):
                aborted = await (one if number % 2 else two).transaction().begin()
                await aborted.send("totals", b"no")
                async with (two if number % 2 else one).transaction() as committed:
                    await committed.send("totals", b"%d" % number)
                await aborted.abort()
                await broker.no_open_transaction()
        await broker.produce("totals", [b"plain"])
        committed_ones = await broker.records("totals", isolation_level="read_committed")
        assert [each.value for each in committed_ones] == [b"0", b"1", b"2", b"3", b"4", b"5", b"plain"]
        assert [each.value for each in await broker.records("totals")].count(b"no") == 6


async def test_who_has_committed_all_but_markers_has_caught_up() -> None:
    async with Broker() as broker, producing(broker) as producer, Admin(broker.bootstrap) as admin:
        await broker.create_topic("orders")
        group = broker.group("etl")

        async def commit(offset: int) -> None:
            await admin.alter_group_offsets("etl", {TopicPartition("orders", 0): offset})

        async def not_caught_up(lag: int) -> None:
            with pytest.raises(WaitFailed, match=rf"catch up\n  now: lag orders-0: {lag}\n"):
                await group.caught_up(timeout=0)

        async with producer.transaction() as transaction:
            await asyncio.gather(*(transaction.send("orders", value) for value in (b"1", b"2")))
        await broker.transaction(ID).ended()
        await commit(1)  # in the middle of the batch
        await not_caught_up(2)
        await commit(2)
        await group.caught_up(timeout=0)
        assert group.lag() == {("orders", 0): 1}

        aborted = await producer.transaction().begin()
        await aborted.send("orders", b"3")
        await not_caught_up(2)
        await aborted.abort()
        await broker.transaction(ID).ended()
        await not_caught_up(3)  # read_uncommitted readers see it
        await commit(4)
        await group.caught_up(timeout=0)

        await admin.delete_records({TopicPartition("orders", 0): 5})
        await commit(3)
        await not_caught_up(2)  # the record was never committed


async def test_pending_offsets_are_the_newest_that_a_commit_would_bring() -> None:
    group, place = GroupMetadata("g", -1, "", None), TopicPartition("t", 0)
    async with Broker() as broker, producing(broker) as one, producing(broker, "etl-2") as two:
        await broker.create_topic("t")
        of_one, of_two = await one.transaction().begin(), await two.transaction().begin()
        await of_one.commit_offsets(group, {place: 5})
        assert broker.group("g").pending_offsets() == {place: 5}
        await of_two.commit_offsets(group, {place: 7})
        assert broker.group("g").pending_offsets() == {place: 7}
        await of_two.abort()
        await broker.transaction("etl-2").ended()
        assert broker.group("g").pending_offsets() == {place: 5}
        async with await Wire.connect(broker.port) as wire:
            assert codes(await wire.call(commit(("t", 0, 6)), 8)) == [0]
        assert broker.group("g").pending_offsets() == {}  # overtaken: its commit no longer changes anything
        await of_one.commit()
        await broker.no_open_transaction()
        assert broker.group("g").offsets() == {place: 6}


async def test_the_coordinator_of_an_id_can_be_killed_for_good() -> None:
    async with Cluster(3) as cluster:
        await cluster.create_topic("totals")
        async with Producer(cluster.bootstrap, transactional_id=ID) as producer:
            before = cluster.transaction(ID).coordinator
            assert before is not None
            async with cluster.faults.hold_markers(ID) as held:
                async with producer.transaction() as transaction:
                    await transaction.send("totals", b"1")
                await held.hit()
                await cluster.kill(before)
                # The broker that takes over sends the markers, and they are held there, too.
                assert (await held.hit()).state == "PrepareCommit"
                assert cluster.transaction(ID).coordinator not in (None, before)
                assert await cluster.records("totals", isolation_level="read_committed") == []
            await cluster.no_open_transaction()
            assert len(await cluster.records("totals", isolation_level="read_committed")) == 1


@pytest.mark.parametrize("way", ["kill", "pause"])
async def test_time_moves_past_the_leases_of_a_broker_that_owes_its_marker(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(markers, "_ASK_TIMEOUT_MS", 100)
    async with Cluster(3, lease_term_ms=300_000) as cluster:
        await cluster.create_topic("totals", 12)
        async with Producer(cluster.bootstrap, transactional_id=ID) as producer:
            coordinator = cluster.transaction(ID).coordinator
            leaders = {each: cluster.leader_of("totals", each) for each in range(12)}
            partition = next(each for each in range(12) if leaders[each] != coordinator)
            async with producer.transaction() as transaction:
                await transaction.send("totals", b"1", partition=partition)
                await (cluster.kill if way == "kill" else cluster.pause)(leaders[partition])
            await cluster.clock.advance("1m")  # long before its leases run out
            assert cluster.transaction(ID).facts.is_open
            await cluster.clock.advance("5m")
            await cluster.no_open_transaction(timeout=0)
            assert cluster.leader_of("totals", partition) != leaders[partition]
            assert len(await cluster.records("totals", isolation_level="read_committed")) == 1


async def test_an_id_is_fenced_in_the_last_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Broker() as broker, producing(broker):
        loop = SimpleNamespace(time=iter([0.0, 29.9997]).__next__)
        monkeypatch.setattr(transactions, "asyncio", SimpleNamespace(get_running_loop=lambda: loop))
        assert (await broker.transaction(ID).fence(timeout=30)).state == "Empty"


async def test_an_id_is_fenced_though_its_coordinator_has_just_died() -> None:
    async with Cluster(3) as cluster:
        await cluster.create_topic("totals")
        async with Producer(cluster.bootstrap, transactional_id=ID) as producer:
            transaction = await producer.transaction().begin()
            await transaction.send("totals", b"1")
            before = cluster.transaction(ID).coordinator
            assert before is not None
            await cluster.kill(before)
            assert not (await cluster.transaction(ID).fence()).is_open
            with pytest.raises(ProducerFenced):
                await transaction.commit()


# --- faults -------------------------------------------------------------------------------------------------


@each(
    "topic, meanwhile",
    [("totals", Seen([], [b"3"], READ, {})), ("__consumer_offsets", Seen([b"3"], [b"3"], {}, READ))],
)
async def test_markers_of_one_topic_are_held_while_the_others_are_written(
    topic: str, meanwhile: Seen
) -> None:
    async with Broker() as broker, consuming(broker) as consumer, producing(broker) as producer:
        await broker.create_topic("totals")
        async with broker.faults.hold_markers(ID, topic=topic) as held:
            async with producer.transaction() as transaction:
                await transaction.send("totals", b"3")
                await transaction.commit_offsets(consumer)
            assert {name for name, _ in (await held.hit()).partitions} == {topic}
            assert await seen(broker) == meanwhile
        await broker.no_open_transaction()
        assert await seen(broker) == COMMITTED


async def test_time_moves_past_the_timeout_while_markers_are_held() -> None:
    async with Broker() as broker, producing(broker) as producer:
        await broker.create_topic("totals")
        transaction = await producer.transaction().begin()
        await transaction.send("totals", b"1")
        async with broker.faults.hold_markers(ID) as held:
            await broker.clock.advance("61s")
            assert (await held.hit()).state == "PrepareAbort"
            await broker.clock.advance("1 day")
            assert broker.transaction(ID).state == "PrepareAbort"
            plain = await broker.produce("totals", [b"plain"])
            assert await broker.records("totals", isolation_level="read_committed") == []
        assert (await broker.transaction(ID).ended()).state == "CompleteAbort"
        (record,) = await broker.records("totals", isolation_level="read_committed")
        assert (record.offset, record.value) == (plain, b"plain")
        await broker.clock.advance("8 days")  # transactional.id.expiration.ms is seven
        assert broker.transaction(ID).state == "Dead"


async def test_markers_go_when_the_last_hold_on_them_does() -> None:
    async with Broker() as broker, producing(broker) as producer:
        await broker.create_topic("totals")
        of_all = await broker.faults.hold_markers(ID)
        of_topic = await broker.faults.hold_markers(ID, topic="totals")
        of_another = await broker.faults.hold_markers("etl-2")
        async with producer.transaction() as transaction:
            await transaction.send("totals", b"1")
        await of_all.hit()
        await of_all.remove()
        await of_all.remove()
        assert (await of_topic.hit()).partitions == (("totals", 0),)
        with pytest.raises(
            WaitFailed, match=r"(?s)etl-2 to be decided, with its markers held.*now: etl-2: Dead"
        ):
            await of_another.hit(timeout=0)
        await broker.faults.clear()
        await broker.transaction(ID).in_state("CompleteCommit")


async def test_the_holds_of_several_topics_wait_for_the_others_together() -> None:
    async with Broker() as broker, producing(broker) as producer:
        for name in ("a", "b", "c"):
            await broker.create_topic(name)
        async with (
            broker.faults.hold_markers(ID, topic="a") as a,
            broker.faults.hold_markers(ID, topic="b") as b,
            broker.faults.hold_markers(ID, topic="d") as d,
        ):
            async with producer.transaction() as transaction:
                for name in ("a", "b", "c"):
                    await transaction.send(name, b"1")
            assert (await a.hit()).partitions == (await b.hit()).partitions == (("a", 0), ("b", 0))
            with pytest.raises(WaitFailed, match="in a-0, b-0"):
                await d.hit(timeout=0)


async def test_the_blocking_face_holds_markers_too() -> None:
    async with Broker() as broker, producing(broker) as producer:
        await broker.create_topic("totals")
        blocking = broker.blocking
        with blocking.faults.hold_markers(ID, topic="totals") as held:
            async with producer.transaction() as transaction:
                await transaction.send("totals", b"1")
            assert held.hit().state == "PrepareCommit"
            assert repr(held) == "<MarkerHold of etl-1 in totals>"
            assert blocking.records("totals", isolation_level="read_committed") == []
        assert blocking.transaction(ID).ended().state == "CompleteCommit"
        assert blocking.transaction(ID).fence().state == "Empty"
        assert len(blocking.topic("totals").records(isolation_level="read_committed")) == 1


async def test_who_is_asked_to_hold_what_is_no_text_says_so() -> None:
    async with Broker() as broker:
        with pytest.raises(TypeError, match=r"^transactional_id: it takes text, not 7$"):
            await broker.faults.hold_markers(7)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"^topic: it takes text, not 7$"):
            broker.blocking.faults.hold_markers(ID, topic=7)  # type: ignore[arg-type]


@each(
    "api, fields",
    [
        ("FindCoordinator", {"error": "COORDINATOR_NOT_AVAILABLE"}),
        ("InitProducerId", {"error": "CONCURRENT_TRANSACTIONS"}),
        ("InitProducerId", {"close_after": True}),
        ("Produce", {"error": "NOT_LEADER_OR_FOLLOWER"}),
        ("Produce", {"close_before": True}),
        ("Produce", {"close_after": True}),
        ("TxnOffsetCommit", {"error": "COORDINATOR_LOAD_IN_PROGRESS"}),
        ("TxnOffsetCommit", {"close_after": True}),
        ("EndTxn", {"error": "CONCURRENT_TRANSACTIONS"}),
        ("EndTxn", {"close_before": True}),
        ("EndTxn", {"close_after": True}),
        ("EndTxn", {"truncate": 6}),
    ],
)
async def test_a_producer_gets_over_one_fault_at_any_of_its_requests(
    api: str, fields: dict[str, Any]
) -> None:
    async with Broker() as broker, consuming(broker) as consumer:
        await broker.create_topic("totals")
        other = await broker.faults.add(api=api, transactional_id="etl-2", **fields)
        rule = await broker.faults.add(api=api, transactional_id=ID, **fields)
        async with producing(broker) as producer, producer.transaction() as transaction:
            await transaction.send("totals", b"3")
            await transaction.commit_offsets(consumer)
        await broker.no_open_transaction()
        assert (rule.fired, other.matched) == (1, 0)
        (firing,) = broker.faults.history()
        assert (firing.api, firing.transactional_id) == (api, ID)
        assert await seen(broker) == COMMITTED


@each("api", ["AddPartitionsToTxn", "AddOffsetsToTxn"])
def test_what_clients_of_the_first_generation_ask_is_met_by_their_transactional_id(api: str) -> None:
    asked = {
        "AddPartitionsToTxn": AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=ID,
            v3_and_below_producer_id=1,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="totals", partitions=[0])
            ],
        ),
        "AddOffsetsToTxn": AddOffsetsToTxnRequest(
            transactional_id=ID, producer_id=1, producer_epoch=0, group_id="etl"
        ),
    }[api]
    with (
        Broker() as broker,
        broker.faults.add(api=api, transactional_id=ID, close_before=True) as rule,
        WireConnection("127.0.0.1", broker.port, "app") as wire,
    ):
        broker.create_topic("totals")
        with pytest.raises(ConnectionClosed):
            wire.call(asked, 3, response_class(asked.__schema__.api_key))
        assert rule.fired == 1


def test_an_error_stands_at_the_transactional_id_that_the_rule_names() -> None:
    asked = DescribeTransactionsRequest(transactional_ids=["etl-2", ID])
    with (
        Broker() as broker,
        broker.faults.add(
            api="DescribeTransactions", transactional_id=ID, error="COORDINATOR_LOAD_IN_PROGRESS"
        ),
        WireConnection("127.0.0.1", broker.port, "app") as wire,
    ):
        answer = wire.call(asked, 0, DescribeTransactionsResponse)
        assert {each.transactional_id: each.error_code for each in answer.transaction_states} == {
            "etl-2": ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
            ID: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        }


def test_a_rule_for_requests_that_name_no_transactional_id_is_a_mistake() -> None:
    with (
        Broker() as broker,
        pytest.raises(
            FaultError,
            match=r"^transactional_id: Heartbeat requests name no transactional_id; these do: .*EndTxn",
        ),
    ):
        broker.faults.add(api="Heartbeat", transactional_id=ID, close_after=True)


# --- snapshots ----------------------------------------------------------------------------------------------


async def test_an_open_transaction_is_in_a_snapshot() -> None:
    async with Broker() as broker, producing(broker) as producer:
        await broker.create_topic("totals")
        transaction = await producer.transaction().begin()
        await transaction.send("totals", b"1")
        snapshot = await broker.snapshot()
        await transaction.commit()
        await broker.no_open_transaction()
        await broker.restore(snapshot)
        assert broker.transaction(ID).state == "Ongoing"
        assert await broker.records("totals", isolation_level="read_committed") == []
        await broker.transaction(ID).fence()
        await broker.no_open_transaction()
        assert await broker.records("totals", isolation_level="read_committed") == []
        assert len(await broker.records("totals")) == 1
