"""The cluster's brokers and shards as JSON."""

from __future__ import annotations

import pytest

from muster.coordinator.web import cluster_facts
from muster.protocol.errors import ErrorCode
from tests.http.conftest import Show, Shown
from tests.http.member import Member
from tests.server.test_replicas import create
from tests.support.facts import until
from tests.support.wire import Wire
from tests.support.wire_configs import BROKER, SET, altering


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the store, however slow the machine is."""
    monkeypatch.setattr(cluster_facts, "_ASK_S", 60.0)


async def test_brokers_say_what_they_hold_and_how_they_are(show: Show) -> None:
    shown = await show(brokers=2)
    _, body = await shown.get("/api/brokers")
    assert [(each["node_id"], each["here"], each["drained"]) for each in body["brokers"]] == [
        (1, True, False),
        (2, True, False),
    ]
    for kind in ("group", "data"):
        held = sum(each[f"{kind}_shards"] for each in body["brokers"])
        assert held == body["shards"][kind]
    assert body["without_broker"] == 0
    assert [each["controller"] for each in body["brokers"]] == [True, False]
    shown.brokers._running.discard(1)  # as if it ran in another process
    try:
        _, body = await shown.get("/api/brokers")
        other = body["brokers"][1]
        assert (other["here"], other["connections"]) == (False, None)
    finally:
        shown.brokers._running.add(1)


async def test_a_broker_that_is_drained_is_seen_and_so_is_that_it_went_away(show: Show) -> None:
    shown = await show(brokers=2)
    wire = await Wire.connect(shown.brokers.brokers[1].port)
    try:
        drain = altering((BROKER, "2", [("muster.drained", SET, "true")]))
        answer = await wire.call(drain, 1)
    finally:
        await wire.close()
    assert answer.responses[0].error_code == ErrorCode.NONE
    await until(lambda: shown.broker.topology.nodes[2].drained, "the second broker drained")
    _, body = await shown.get("/api/brokers")
    assert [each["drained"] for each in body["brokers"]] == [False, True]
    await shown.brokers.stop_one(1)
    await until(lambda: list(shown.broker.topology.nodes) == [1], "the second broker gone")
    _, body = await shown.get("/api/brokers")
    assert [each["node_id"] for each in body["brokers"]] == [1]


async def test_shards_say_who_leads_them_under_which_lease(shown: Shown, member: Member) -> None:
    number = shown.broker.topology.group_lease("billing").number
    _, body = await shown.get("/api/shards?kind=group")
    assert len(body["shards"]) == shown.brokers.shards
    mine = body["shards"][number]
    assert (mine["kind"], mine["number"], mine["broker"]) == ("group", number, 1)
    assert (mine["state"], mine["announced"], mine["groups"], mine["failure"]) == ("active", True, 1, None)
    assert mine["epoch"] >= 1
    assert mine["remaining_ms"] is not None
    assert (mine["transactional_ids"], mine["partitions"]) == (None, 2)
    _, data = await shown.get("/api/shards?kind=data")
    assert sum(each["partitions"] for each in data["shards"]) == 3  # those of orders
    _, transactions = await shown.get("/api/shards?kind=transaction")
    assert len(transactions["shards"]) == 50
    for each in transactions["shards"]:
        assert (each["state"], each["announced"], each["failure"]) == ("active", True, None)
        assert (each["groups"], each["transactional_ids"], each["partitions"]) == (None, 0, 1)


async def test_shards_come_in_pages_and_by_broker(show: Show) -> None:
    shown = await show(brokers=2)
    _, everything = await shown.get("/api/shards")
    _, page = await shown.get("/api/shards?skip=3&limit=2")
    places = [(each["kind"], each["number"]) for each in everything["shards"]]
    assert [(each["kind"], each["number"]) for each in page["shards"]] == places[3:5]
    assert page["more"] == len(everything["shards"]) - 5
    _, theirs = await shown.get("/api/shards?broker=2")
    assert {each["broker"] for each in theirs["shards"]} == {2}
    status, refused = await shown.get("/api/shards?kind=other")
    assert (status, refused) == (
        400,
        {"error": "kind: 'other' is not allowed; it takes group, transaction, data, replicas"},
    )


async def test_partitions_with_replica_lists_are_led_under_shards_of_their_own(show: Show) -> None:
    shown = await show(brokers=2)
    assert (await create(shown.broker, assigned=[[2, 1], [1, 2]])).error_code == ErrorCode.NONE
    _, shards = await shown.get("/api/shards?kind=replicas")
    led = [(each["kind"], each["broker"], each["partitions"]) for each in shards["shards"]]
    assert sorted(led) == [("replicas", 1, 1), ("replicas", 2, 1)]
    _, data = await shown.get("/api/shards?kind=data")
    assert sum(each["partitions"] for each in data["shards"]) == 0
    _, topic = await shown.get("/api/topics/t")
    assert [each["leader"] for each in topic["partitions"]] == [2, 1]
    _, body = await shown.get("/api/brokers")
    assert body["shards"]["replicas"] == 2
    assert body["without_broker"] == 0
