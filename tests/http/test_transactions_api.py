"""Transactions as JSON: the state of their ids, and who holds back whom since when."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from muster.coordinator.cluster.coordinators import TRANSACTIONS
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.transactions import WriteTxnMarkersRequest
from tests.http.conftest import Show, Shown
from tests.http.member import Member
from tests.http.transactional import STRAY, UNVERIFIED, Transactional
from tests.support.facts import until
from tests.support.wire import Wire

MINUTE_MS = 60_000


@pytest.fixture
async def unverified(show: Show) -> Shown:
    """A broker that lets producers write without asking a coordinator, as brokers did before KIP-890."""
    shown = await show(**UNVERIFIED)
    await shown.create_topic()
    return shown


def now_ms(shown: Shown) -> int:
    return shown.broker.clock.now_ms()


async def is_over(shown: Shown, producer: Transactional) -> None:
    """Return when the producer's transaction has all its markers."""
    shard = shown.broker.transaction_runtime.hosts()[
        shown.broker.transaction_runtime.number_of(producer.id)
    ].machine
    assert shard is not None
    await until(lambda: shard.transactions[producer.id].state.is_idle, f"the markers of {producer.id}")


async def listed(shown: Shown, query: str = "") -> dict[str, Any]:
    status, body = await shown.get(f"/api/transactions{query}")
    assert status == 200, body
    assert isinstance(body, dict)
    return body


async def test_ids_say_where_they_stand_open_ones_first(shown: Shown) -> None:
    async with (
        await Transactional.connect(shown.port, "a-idle"),
        await Transactional.connect(shown.port, "b/open") as open,
    ):
        began_ms = now_ms(shown)
        await open.begin(0, 2)
        body = await listed(shown)
        first, second = body["transactions"]
        assert (first["transactional_id"], first["state"], first["broker"]) == ("b/open", "Ongoing", 1)
        assert (first["producer_id"], first["producer_epoch"]) == open.producer
        assert (first["partitions"], first["unmarked"], first["topics"]) == (2, 2, ["orders"])
        assert first["timeout_ms"] == MINUTE_MS
        assert began_ms <= first["started_ms"] <= body["at_ms"]
        assert (second["transactional_id"], second["state"], second["started_ms"]) == (
            "a-idle",
            "Empty",
            None,
        )
        assert (body["more"], body["elsewhere"], body["held_back"]) == (0, [], [])

        for query, found in (
            ("?find=B/", ["b/open"]),
            ("?state=Empty", ["a-idle"]),
            ("?limit=1", ["b/open"]),
        ):
            some = await listed(shown, query)
            assert [each["transactional_id"] for each in some["transactions"]] == found
        assert (await listed(shown, "?limit=1"))["more"] == 1
        status, refused = await shown.get("/api/transactions?state=Odd")
        assert (status, refused["error"]) == (
            400,
            "state: 'Odd' is not allowed; it takes Empty, Ongoing, PrepareCommit, PrepareAbort, "
            "CompleteCommit, CompleteAbort",
        )


async def test_an_id_may_have_braces(shown: Shown) -> None:
    async with await Transactional.connect(shown.port, "${APP}") as open:
        await open.begin(1)
        status, body = await shown.get("/api/transactions/$%7BAPP%7D")
        assert (status, body["transactional_id"]) == (200, "${APP}")


async def test_an_id_has_its_partitions_and_the_groups_whose_offsets_it_commits(shown: Shown) -> None:
    async with await Transactional.connect(shown.port, "b/open") as open:
        await open.begin(1)
        await open.commit_offset("billing", 0, 5)
        status, body = await shown.get("/api/transactions/b%2Fopen")
        assert (status, body["state"], body["groups"]) == (200, "Ongoing", ["billing"])
        number = shown.broker.runtime.number_of("billing")
        assert body["partitions"] == [
            {"topic": "__consumer_offsets", "partition": number, "marked": False},
            {"topic": "orders", "partition": 1, "marked": False},
        ]
        (held,) = body["held_back"]
        assert (held["topic"], held["partition"], held["verdict"]) == (
            "__consumer_offsets",
            number,
            "under way",
        )
        assert [each["group"] for each in held["groups"]] == ["billing"]
        assert (held["last_stable_offset"], held["end"]) == (None, None)

        await open.end(commits=True)

        await is_over(shown, open)
        _, body = await shown.get("/api/transactions/b%2Fopen")
        assert (body["state"], body["partitions"], body["groups"]) == ("CompleteCommit", [], [])
        assert body["held_back"] == []
    status, refused = await shown.get("/api/transactions/other")
    assert (status, refused) == (404, {"error": "there is no transactional id 'other'"})


async def test_one_that_is_under_way_holds_back_who_stands_there(shown: Shown, member: Member) -> None:
    await member.produce(0, 4)
    assert await member.commit({0: 4, 1: 0}) is ErrorCode.NONE
    async with await Transactional.connect(shown.port) as open:
        since_ms = now_ms(shown)
        await open.begin(0)
        await open.write(0, 3, at_ms=since_ms)
        (held,) = (await listed(shown))["held_back"]
        assert held == {
            "topic": "orders",
            "partition": 0,
            "since_ms": since_ms,
            "verdict": "under way",
            "why": None,
            "transactional_id": "etl-1",
            "producer_id": open.producer[0],
            "producer_epoch": 0,
            "start_offset": 4,
            "other_transactions": 0,
            "last_stable_offset": 4,
            "end": 7,
            "groups": [{"group": "billing", "offset": 4, "before": 0, "lag": 3}],
            "more_groups": 0,
            "broker": 1,
        }
        # Only readers of uncommitted records get beyond it.
        assert await member.commit({0: 6}) is ErrorCode.NONE
        assert (await listed(shown))["held_back"][0]["groups"] == []
        await open.end(commits=False)
        await is_over(shown, open)
        assert (await listed(shown))["held_back"] == []


async def test_one_that_nobody_will_end_hangs_until_an_admin_ends_it(unverified: Shown) -> None:
    shown = unverified
    since_ms = now_ms(shown) - MINUTE_MS
    async with (
        await Member.connect(shown.port) as member,
        await Transactional.connect(shown.port) as open,
        await Transactional.stray(shown.port) as stray,
    ):
        await member.alone([0])
        assert await member.commit({0: 0}) is ErrorCode.NONE
        await stray.write(0, 2, at_ms=since_ms)
        await open.begin(0)
        await open.write(0, 1, at_ms=now_ms(shown))
        await open.write(1, 1, at_ms=now_ms(shown))  # a partition it has not added
        both = (await listed(shown))["held_back"]
        assert [(each["partition"], each["verdict"], each["why"]) for each in both] == [
            (0, "hanging", f"no coordinator knows producer id {STRAY[0]}"),
            (1, "hanging", "etl-1 is Ongoing at its coordinator, without this partition"),
        ]
        assert [each["transactional_id"] for each in both] == [None, "etl-1"]
        assert (both[0]["since_ms"], both[0]["other_transactions"]) == (since_ms, 1)
        assert both[0]["groups"] == [{"group": "billing", "offset": 0, "before": 0, "lag": 3}]

    async with await Wire.connect(shown.port) as wire:
        Marker = WriteTxnMarkersRequest.WritableTxnMarker
        topic = Marker.WritableTxnMarkerTopic(name="orders", partition_indexes=[0, 9])
        marker = Marker(
            producer_id=STRAY[0],
            producer_epoch=STRAY[1],
            transaction_result=False,
            topics=[topic],
            coordinator_epoch=0,
        )
        await wire.call(WriteTxnMarkersRequest(markers=[marker]), 1)
    (left,) = [each for each in (await listed(shown))["held_back"] if each["partition"] == 0]
    assert (left["verdict"], left["transactional_id"]) == ("under way", "etl-1")
    _, events = await shown.get("/api/events")
    (entry,) = [each for each in events["entries"] if each["type"] == "transaction_ended_by_client"]
    assert entry["partitions"] == [["orders", 0]]  # the one that exists
    assert entry["text"].endswith(f"aborted the transaction of producer {STRAY[0]} on 1 partition")


async def test_when_it_began_is_known_after_a_restart(tmp_path: Path, show: Show) -> None:
    kept = {"ephemeral": False, "data": str(tmp_path), **UNVERIFIED}
    shown = await show(**kept)
    await shown.create_topic()
    since_ms = now_ms(shown) - MINUTE_MS
    async with await Transactional.stray(shown.port) as stray:
        await stray.write(0, 2, at_ms=since_ms)
    await shown.page.close()
    await shown.brokers.stop()
    again = await show(**kept)
    assert (await listed(again))["held_back"] == []  # nobody has requested the partition yet
    async with await Member.connect(again.port) as member:
        await member.produce(0, 1)
    (held,) = (await listed(again))["held_back"]
    assert (held["since_ms"], held["last_stable_offset"], held["end"]) == (since_ms, 0, 3)


def leader(shown: Shown) -> int:
    """The node that leads the first partition of orders."""
    return shown.broker.leader(shown.broker.catalogue.named("orders"), 0).node_id


@contextmanager
def only(shown: Shown, node_id: int) -> Iterator[None]:
    """As if the other one of two brokers ran in another process."""
    shown.brokers._running.discard(2 - node_id)
    try:
        yield
    finally:
        shown.brokers._running.update({0, 1})


async def test_another_process_knows_its_own_ids(show: Show) -> None:
    shown = await show(brokers=2, **UNVERIFIED)
    await shown.create_topic()

    def coordinator(id: str) -> int | None:
        node = shown.broker.topology.coordinator(id, TRANSACTIONS)
        return None if node is None else node.node_id

    names = [f"etl-{number}" for number in range(20)]
    await until(lambda: None not in map(coordinator, names), "coordinators")
    here, there = (next(each for each in names if coordinator(each) == node) for node in (1, 2))
    for port, id in zip((each.port for each in shown.brokers.brokers), (here, there), strict=True):
        async with await Transactional.connect(port, id) as producer:
            await producer.begin(0)
    assert {each["broker"] for each in (await listed(shown))["transactions"]} == {1, 2}
    node_id = leader(shown)
    async with await Transactional.stray(shown.brokers.brokers[node_id - 1].port) as stray:
        await stray.write(0, 1, at_ms=now_ms(shown) - MINUTE_MS)
    with only(shown, node_id):
        body = await listed(shown)
        mine, other = (here, there) if node_id == 1 else (there, here)
        assert [each["transactional_id"] for each in body["transactions"]] == [mine]
        (elsewhere,) = body["elsewhere"]
        assert 0 < elsewhere["transaction_shards"] < 50
        status, refused = await shown.get(f"/api/transactions/{other}")
        assert (status, refused["broker"]["node_id"]) == (421, elsewhere["node_id"])
        assert refused["error"].startswith(
            f"transactional id {other!r} is coordinated by broker {elsewhere['node_id']}"
        )
        # The other process may know whether it hangs; after all timeouts, every process does.
        assert [each["verdict"] for each in body["held_back"]] == ["coordinated elsewhere"]
        await shown.brokers.advance(20 * MINUTE_MS + 1)
        assert [each["verdict"] for each in (await listed(shown))["held_back"]] == ["hanging"]


@pytest.mark.parametrize("minutes", [-24 * 60, 30])
async def test_whether_one_of_another_process_hangs_does_not_depend_on_the_times_of_its_records(
    show: Show, minutes: int
) -> None:
    """A producer sets them: replays have times of the past."""
    shown = await show(brokers=2, **UNVERIFIED)
    await shown.create_topic()
    node_id, at_ms = leader(shown), now_ms(shown) + minutes * MINUTE_MS
    async with await Transactional.stray(shown.brokers.brokers[node_id - 1].port) as stray:
        await stray.write(0, 1, at_ms=at_ms)
    with only(shown, node_id):
        (held,) = (await listed(shown))["held_back"]
        assert (held["verdict"], held["since_ms"]) == ("coordinated elsewhere", at_ms)
        await shown.brokers.advance(20 * MINUTE_MS + 1)
        (held,) = (await listed(shown))["held_back"]
        assert (held["verdict"], held["why"]) == (
            "hanging",
            "it is open for longer than transaction.max.timeout.ms allows",
        )
