"""`muster cluster`, as a user runs it: on brokers in memory, which share their leases like any others."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Final

import pytest

from muster.build import version
from muster.coordinator.cluster.placement import shard_of
from muster.coordinator.server.broker import Broker as Node
from muster.coordinator.storage.store import Grant, LeaseKind, NodeRow, Store, StoreBusy
from muster.coordinator.testing import Cluster
from tests.cli.running import DEADLINE_S, Muster, run, started
from tests.support.leases import TERM_MS

SHARDS: Final = ("group_shards", "transaction_shards", "data_shards")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(3, rack="r1", lease_term_ms=TERM_MS) as running:
        yield running


@pytest.fixture
def muster(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> Muster:
    return Muster(cluster.bootstrap, capfd)


def test_it_describes_brokers_and_what_each_serves(cluster: Cluster, muster: Muster) -> None:
    facts = muster("cluster", "describe", "--output", "json").json
    assert list(facts) == ["cluster_id", "controller", "brokers", "answered_by"]
    assert facts["answered_by"]["node_id"] in (1, 2, 3)
    assert facts["answered_by"]["version"] == version()
    assert facts["controller"] == 1
    assert [
        [broker[name] for name in ("node_id", "host", "port", "rack")] for broker in facts["brokers"]
    ] == [[index + 1, "127.0.0.1", port, "r1"] for index, port in enumerate(cluster.ports)]
    for broker in facts["brokers"]:
        assert (broker["drained"], broker["loading"], broker["term_ms"]) == (False, 0, TERM_MS)
        assert 0 <= broker["renewed_ago_ms"] < TERM_MS
        assert all(broker[kind] > 0 for kind in SHARDS)
    for kind in SHARDS:
        assert sum(broker[kind] for broker in facts["brokers"]) == 50
    first, _, head, *rows = muster.done("cluster", "describe").splitlines()
    said = rf"cluster {facts['cluster_id']}, described by node [123], muster {re.escape(version())}"
    assert re.fullmatch(said, first)
    assert re.split("  +", head) == [
        *("NODE", "HOST", "PORT", "RACK", "CONTROLLER"),
        *("DRAINED", "GROUP SHARDS", "TRANSACTION SHARDS", "DATA SHARDS", "LOADING", "RENEWED MS AGO"),
    ]
    shards = [[*(str(each[kind]) for kind in SHARDS), "0"] for each in facts["brokers"]]
    assert [row.split()[:-1] for row in rows] == [
        [str(index + 1), "127.0.0.1", str(port), "r1", "no" if index else "yes", "no", *shards[index]]
        for index, port in enumerate(cluster.ports)
    ]


def test_it_shows_every_lease(cluster: Cluster, muster: Muster) -> None:
    facts = muster("cluster", "describe", "--leases", "--output", "json").json
    leases = facts["leases"]
    assert [(each["kind"], each["number"]) for each in leases] == [
        (kind, number) for kind in ("group", "transaction", "data") for number in range(50)
    ]
    for each in leases:
        assert each["holder"] in (1, 2, 3)
        assert each["epoch"] >= 1
        assert 0 < each["remaining_ms"] <= TERM_MS
        assert each["announced"] is True
    groups = [f"g{number}" for number in range(20)]
    for group_id in groups:
        assert leases[shard_of(group_id)]["holder"] == (cluster.coordinator_of(group_id) or 0) + 1
    *_, table = muster.done("cluster", "describe", "--leases").split("\n\n")
    head, *rows = table.splitlines()
    assert re.split("  +", head) == ["SHARD", "NUMBER", "BROKER", "EPOCH", "REMAINING MS", "LOADED"]
    assert [row.split()[:4] for row in rows] == [
        [each["kind"], str(each["number"]), str(each["holder"]), str(each["epoch"])] for each in leases
    ]


class Telling:
    """A store whose answers a test can change, for cluster descriptions only."""

    def __init__(self, store: Store) -> None:
        self.nodes = store.nodes
        self.holders = store.holders


@pytest.fixture
def telling(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Telling:
    """What the first broker reads when it describes the cluster, as the `muster` command requests."""
    node = cluster._core.brokers.brokers[0]
    told = Telling(node.store)
    monkeypatch.setattr(Node, "store", property(lambda broker: told))
    return told


@pytest.fixture
def first(cluster: Cluster, muster: Muster) -> Muster:
    """The command, knowing only the first broker."""
    muster.bootstrap = f"127.0.0.1:{cluster.ports[0]}"
    return muster


def test_a_shard_that_is_being_loaded_and_one_without_a_broker_are_shown(
    telling: Telling, first: Muster
) -> None:
    """As the store reports it just after a broker's death."""
    read = telling.holders

    async def holders(kind: LeaseKind) -> dict[int, Grant]:
        held = await read(kind)
        if kind is LeaseKind.DATA:
            del held[7]
            held[8] = held[8]._replace(node_id=1, announced=False)
        return held

    telling.holders = holders
    facts = first("cluster", "describe", "--leases", "--output", "json").json
    gone, loading = (each for each in facts["leases"] if each["kind"] == "data" and each["number"] in (7, 8))
    nobody = dict.fromkeys(("holder", "epoch", "remaining_ms", "announced"))
    assert gone == {"kind": "data", "number": 7, **nobody}
    assert (loading["holder"], loading["announced"]) == (1, False)
    assert [broker["loading"] for broker in facts["brokers"]] == [1, 0, 0]
    assert first.done("cluster", "describe").endswith("\n\n1 shards have no broker at the moment\n")
    assert first.refused("cluster", "ready") == (
        "muster cluster ready: broker 1 is not ready: it is still loading 1 shards\n"
    )
    ended = first("cluster", "ready", "--output", "json")
    why = "it is still loading 1 shards"
    assert (ended.code, ended.json) == (1, {"node_id": 1, "ready": False, "why": why})


def test_a_broker_is_ready(cluster: Cluster, muster: Muster) -> None:
    for index, port in enumerate(cluster.ports):
        muster.bootstrap = f"127.0.0.1:{port}"
        assert muster.done("cluster", "ready") == f"broker {index + 1} is ready\n"
        ready = muster("cluster", "ready", "--output", "json").json
        assert ready == {"node_id": index + 1, "ready": True, "why": None}


def test_a_broker_is_not_ready_whose_registration_ran_out_or_that_cannot_read_its_store(
    telling: Telling, first: Muster
) -> None:
    read = telling.nodes

    async def others() -> list[NodeRow]:
        return [node for node in await read() if node.node_id != 1]

    async def unreachable() -> list[NodeRow]:
        raise StoreBusy("the server at db:5432 cannot be reached")

    telling.nodes = others
    assert first.refused("cluster", "ready") == (
        "muster cluster ready: broker 1 is not ready: its registration in the cluster has expired\n"
    )
    telling.nodes = unreachable
    assert first.refused("cluster", "ready") == (
        "muster cluster ready: the broker cannot read its store at the moment; its log says why "
        "(KAFKA_STORAGE_ERROR)\n"
    )


def test_a_broker_is_not_ready_that_cannot_claim_what_no_broker_has(
    cluster: Cluster, telling: Telling, first: Muster, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = telling.holders

    async def holders(kind: LeaseKind) -> dict[int, Grant]:
        held = await read(kind)
        return {number: grant for number, grant in held.items() if grant.node_id != 1}

    assert first.done("cluster", "ready") == "broker 1 is ready\n"
    telling.holders = holders
    membership = cluster._core.brokers.brokers[0].membership
    assert first.done("cluster", "ready") == "broker 1 is ready\n", "they are about to be claimed"
    monkeypatch.setattr(membership._standing, "succeeded", lambda now_ms: False)
    membership._standing.failing = True
    lacking = len(membership._wanted.last)
    why = f"it cannot claim {lacking} shards that no broker has"
    assert lacking > 10
    assert first.refused("cluster", "ready") == f"muster cluster ready: broker 1 is not ready: {why}\n"
    ended = first("cluster", "ready", "--output", "json")
    assert (ended.code, ended.json) == (1, {"node_id": 1, "ready": False, "why": why})
    telling.holders = read
    assert first.done("cluster", "ready") == "broker 1 is ready\n", "it lacks none"
    membership._standing.aside = True
    why = "it could not claim shards, and leaves them to the other brokers until it can"
    assert first.refused("cluster", "ready") == f"muster cluster ready: broker 1 is not ready: {why}\n"


def test_a_drained_broker_hands_its_shards_over_until_it_is_undrained(
    cluster: Cluster, muster: Muster
) -> None:
    assert muster.done("cluster", "drain", "2") == "broker 2 is drained: it has no shards\n"
    one, two, three = muster("cluster", "describe", "--output", "json").json["brokers"]
    assert (two["drained"], *(two[kind] for kind in SHARDS)) == (True, 0, 0, 0)
    assert not one["drained"]
    assert all(one[kind] + three[kind] == 50 for kind in SHARDS)
    # Draining again is no error, and the broker stays drained across a restart.
    assert muster("cluster", "drain", "2", "--output", "json").json == {"node_id": 2, "drained": True}
    cluster.stop(1)
    cluster.restart(1)
    _, two, _ = muster("cluster", "describe", "--output", "json").json["brokers"]
    assert (two["drained"], *(two[kind] for kind in SHARDS)) == (True, 0, 0, 0)
    assert muster.done("cluster", "undrain", "2") == "broker 2 takes shards again\n"
    deadline = time.monotonic() + DEADLINE_S
    while not _shards_of(muster, 2):
        assert time.monotonic() < deadline
    assert muster("cluster", "undrain", "2", "--output", "json").json == {"node_id": 2, "drained": False}


def test_draining_moves_leaders_within_replica_lists_too(cluster: Cluster, muster: Muster) -> None:
    muster.done("topics", "create", "listed", "--replica-assignment", "2:3,2:1,1:2")

    def leaders() -> list[int]:
        (topic,) = muster("topics", "describe", "listed", "--output", "json").json
        assert [each["replicas"] for each in topic["partitions"]] == [[2, 3], [2, 1], [1, 2]]
        return [each["leader"] for each in topic["partitions"]]

    assert leaders() == [2, 2, 1]
    assert muster.done("cluster", "drain", "2") == "broker 2 is drained: it has no shards\n"
    deadline = time.monotonic() + DEADLINE_S
    while leaders() != [3, 1, 1]:
        assert time.monotonic() < deadline
    muster.done("cluster", "undrain", "2")
    while leaders() != [2, 2, 1]:
        assert time.monotonic() < deadline


def _shards_of(muster: Muster, node_id: int) -> int:
    brokers = muster("cluster", "describe", "--output", "json").json["brokers"]
    broker = next(each for each in brokers if each["node_id"] == node_id)
    return sum(broker[kind] for kind in SHARDS)


def test_the_last_broker_is_not_drained(cluster: Cluster, muster: Muster) -> None:
    muster.done("cluster", "drain", "1")
    muster.done("cluster", "drain", "3")
    assert muster.refused("cluster", "drain", "2") == (
        "muster cluster drain: broker 2 is the only one not drained: no other broker can take its shards\n"
    )
    muster.bootstrap = f"127.0.0.1:{cluster.ports[1]}"
    cluster.stop(0)
    cluster.stop(2)
    assert muster.refused("cluster", "drain", "2") == (
        "muster cluster drain: broker 2 is the only one in the cluster: no other broker can take its shards\n"
    )


@pytest.mark.parametrize("action", ["drain", "undrain"])
def test_a_broker_that_is_not_there_is_not_drained(muster: Muster, action: str) -> None:
    assert muster.refused("cluster", action, "7") == (
        f"muster cluster {action}: broker 7 is not in the cluster; its brokers are 1, 2, 3\n"
    )
    assert "'one' is not allowed; it takes a whole number" in muster.misused("cluster", action, "one")


def test_a_group_lives_through_a_drain_in_its_generation(cluster: Cluster, muster: Muster) -> None:
    cluster.create_topic("t", 3)
    member = started(cluster.bootstrap, "consume", "t", "--group", "g", "--from-beginning")
    try:
        cluster.wait_for_group("g", "Stable", timeout_s=DEADLINE_S)
        before = muster("groups", "describe", "g", "--output", "json").json
        holder = (cluster.coordinator_of("g") or 0) + 1
        muster.done("cluster", "drain", str(holder))
        assert cluster.coordinator_of("g") != holder - 1
        run(cluster.bootstrap, "produce", "t", stdin=b"after the drain\n")
        assert member.stdout is not None
        assert member.stdout.readline() == b"after the drain\n"
        (after,) = muster("groups", "describe", "g", "--output", "json").json
        assert after["members"] == before[0]["members"]
        assert after["state"] == "Stable"
    finally:
        member.terminate()
        member.communicate(timeout=DEADLINE_S)
