"""`/metrics`: text that Prometheus can read, with correct figures."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

from muster.coordinator.group.classic.group import ClassicGroup
from muster.coordinator.group.group import GroupView
from muster.coordinator.journal.entries import Entry
from muster.coordinator.journal.entries import Member as Identity
from muster.coordinator.topics.led import Led
from muster.coordinator.topics.log import PartitionLog
from muster.coordinator.topics.logs import PartitionId
from muster.coordinator.topics.partitions import Partitions
from muster.coordinator.topics.sources import Looked
from muster.coordinator.web import facts, tallies
from muster.coordinator.web import scrape as scraping
from muster.coordinator.web.tallies import Tallies
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.data import FetchRequest
from muster.protocol.messages.group_admin import DeleteGroupsRequest
from tests.http.conftest import Show, Shown
from tests.http.member import Member
from tests.support.facts import DEADLINE_S, until

_UNKNOWN = "unknown_ends", "unknown_lags"


class Samples(NamedTuple):
    """The result of one scrape."""

    values: dict[tuple[str, frozenset[tuple[str, str]]], float]
    kinds: dict[str, str]

    def value(self, name: str, **labels: str) -> float | None:
        return self.values.get((name, frozenset(labels.items())))

    def of(self, name: str) -> list[dict[str, str]]:
        """The labels of every series with that name."""
        return [dict(labels) for each, labels in self.values if each == name]


async def scrape(shown: Shown) -> Samples:
    values = {}
    kinds = {}
    for family in text_string_to_metric_families(await shown.text("/metrics")):
        assert family.documentation
        assert family.name not in kinds, f"{family.name} stands twice"
        kinds[family.name] = family.type
        for sample in family.samples:
            where = sample.name, frozenset(sample.labels.items())
            assert where not in values, f"{where} stands twice"
            values[where] = sample.value
    return Samples(values, kinds)


async def test_partitions_and_groups_under_the_names_that_dashboards_have(
    shown: Shown, member: Member
) -> None:
    await member.produce(0, 10)
    await member.produce(1, 4)
    assert await member.commit({0: 7, 1: 4}) is ErrorCode.NONE
    found = await scrape(shown)
    assert found.value("kafka_brokers") == 1
    assert found.value("kafka_topic_partitions", topic="orders") == 3
    for partition, end in (("0", 10), ("1", 4), ("2", 0)):
        where = {"topic": "orders", "partition": partition}
        assert found.value("kafka_topic_partition_current_offset", **where) == end
        assert found.value("kafka_topic_partition_oldest_offset", **where) == 0
    for partition, offset, lag in (("0", 7, 3), ("1", 4, 0)):
        where = {"consumergroup": "billing", "topic": "orders", "partition": partition}
        assert found.value("kafka_consumergroup_current_offset", **where) == offset
        assert found.value("kafka_consumergroup_lag", **where) == lag
    assert len(found.of("kafka_consumergroup_lag")) == 2
    assert found.value("kafka_consumergroup_members", consumergroup="billing") == 1
    seconds = {each["partition"]: each for each in found.of("kafka_consumergroup_group_lag_seconds")}
    assert seconds["1"] == {
        "cluster_name": shown.broker.cluster_id,
        "group": "billing",
        "topic": "orders",
        "partition": "1",
        "member_host": "127.0.0.1",
        "consumer_id": member.id,
        "client_id": "web-1",
    }
    assert found.value("kafka_consumergroup_group_lag_seconds", **seconds["1"]) == 0
    assert found.kinds["kafka_consumergroup_lag"] == "gauge"


async def test_rebalances_are_counted_by_cause_and_diagnosis(shown: Shown, member: Member) -> None:
    await shown.journalled("rebalance_completed")
    first = await scrape(shown)
    joined = {"group": "billing", "cause": "member joined", "diagnosis": "new-member"}
    assert first.value("muster_group_rebalances_total", **joined) == 1
    # The member sends nothing while time passes, so its session expires.
    await shown.brokers.advance(40_000, expire_all=True)
    await shown.journalled("rebalance_completed", times=2)
    found = await scrape(shown)
    assert found.value("muster_group_rebalances_total", **joined) == 1
    expired = [each for each in found.of("muster_group_rebalances_total") if each != joined]
    assert [each["cause"] for each in expired] == ["session expired"]
    assert expired[0]["diagnosis"] in ("stalled", "crashed", "unknown")
    evicted = {"group": "billing", "trigger": "session expired"}
    assert found.value("muster_group_evictions_total", **evicted) == 1
    assert found.value("muster_group_members_joined_total", group="billing") == 1
    assert found.value("muster_group_members_left_total", group="billing") == 0
    assert found.value("muster_group_rebalance_phase_seconds_count", group="billing", phase="join") == 1
    assert found.value("muster_rebalance_phase_seconds_count", phase="join") == 1
    assert found.value("muster_rebalance_phase_seconds_bucket", phase="join", le="+Inf") == 1
    assert found.value("muster_group_state", group="billing", state="Empty") == 1
    assert found.kinds["muster_rebalance_phase_seconds"] == "histogram"
    assert found.kinds["muster_group_rebalances"] == "counter"


async def test_commits_that_were_rejected_and_partitions_that_moved(shown: Shown, member: Member) -> None:
    assert await member.commit({0: 1}, generation=77) is ErrorCode.ILLEGAL_GENERATION
    async with await Member.connect(shown.port, client_id="web-2") as second:
        await second.ask_to_join()
        await member.ask_to_join()
        await member.joined()
        await second.joined()
        await second.sync()
        await member.sync({member.id: [0, 1], second.id: [2]})
        await member.synced()
        await second.synced()
        await shown.journalled("assigned", times=2)
        found = await scrape(shown)
    rejected = {"group": "billing", "error": "ILLEGAL_GENERATION"}
    assert found.value("muster_group_commits_rejected_total", **rejected) == 1
    assert found.value("muster_group_partitions_moved_total", group="billing") == 1
    assert found.value("kafka_consumergroup_members", consumergroup="billing") == 2


async def test_a_deleted_group_leaves_no_series_behind(shown: Shown, member: Member) -> None:
    assert await member.commit({0: 0}) is ErrorCode.NONE
    await member.leave()
    assert "billing" in await shown.text("/metrics")
    await member.wire.call(DeleteGroupsRequest(groups_names=["billing"]), 2)
    await shown.journalled("group_removed")
    assert "billing" not in await shown.text("/metrics")


async def test_of_brokers_connections_requests_and_the_journal(shown: Shown, member: Member) -> None:
    found = await scrape(shown)
    counts = shown.broker.connections.counts
    assert found.value("muster_connections", broker="1") == len(shown.broker.connections.open) == 1
    assert found.value("muster_connections_accepted_total", broker="1") == counts.accepted == 1
    assert found.value("muster_requests_total", broker="1") == counts.requests >= 3
    assert found.value("muster_connections_closed_total", broker="1", why="idle") == 0
    assert found.value("muster_journal_entries_dropped_total", broker="1") == 0
    sessions = shown.broker.fetch_sessions
    assert found.value("muster_fetch_sessions", broker="1") == len(sessions) == 0
    opening = FetchRequest.FetchTopic(
        topic="orders",
        partitions=[FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)],
    )
    asked = FetchRequest(max_wait_ms=0, min_bytes=0, session_epoch=0, topics=[opening])
    await member.wire.call(asked, 12)
    found = await scrape(shown)
    assert found.value("muster_fetch_sessions", broker="1") == 1
    assert found.value("muster_fetch_session_partitions", broker="1") == 1
    assert found.value("muster_fetch_sessions_evicted_total", broker="1") == 0
    for kind in ("group", "transaction"):
        shards = {"broker": "1", "kind": kind, "state": "active"}
        assert found.value("muster_coordinator_shards", **shards) == shown.brokers.shards
        for state in ("loading", "failed"):
            assert found.value("muster_coordinator_shards", **{**shards, "state": state}) == 0


async def test_a_shard_that_moves_is_counted_and_its_group_goes_on(show: Show) -> None:
    shown = await show(brokers=2)
    await shown.create_topic()
    names = await shown.groups_of_brokers()
    async with await Member.connect(shown.brokers.brokers[1].port, names[2]) as member:
        await member.alone([0])
    before = await scrape(shown)
    assert before.value("kafka_brokers") == 2
    await shown.brokers.stop_one(1)
    lease = shown.broker.topology.group_lease(names[2])
    await until(lambda: shown.broker.membership.serving(lease))
    await shown.broker.runtime.loaded()
    await shown.journalled("shard_loaded", names[2])
    found = await scrape(shown)
    assert found.value("kafka_consumergroup_members", consumergroup=names[2]) == 1
    assert found.value("muster_coordinator_load_seconds_count", broker="1", kind="group") == 1
    assert found.value("muster_coordinator_load_seconds_count", broker="1", kind="transaction") == 0
    assert found.value("muster_group_members_joined_total", group=names[2]) == 1
    assert len(found.of("kafka_topic_partition_current_offset")) == 3


async def test_a_group_has_its_counters_before_anything_happens_in_it(show: Show, tmp_path: Path) -> None:
    """Otherwise the first late heartbeat after a restart is a new series, and no increase."""
    store = {"ephemeral": False, "data": str(tmp_path)}
    before = await show(**store)
    await before.create_topic()
    async with await Member.connect(before.port) as member:
        await member.alone([0])
    await before.page.close()
    await before.brokers.stop()
    found = await scrape(await show(**store))
    assert found.value("kafka_consumergroup_members", consumergroup="billing") == 1
    for each in ("members_joined", "members_left", "heartbeats_late", "partitions_moved"):
        assert found.value(f"muster_group_{each}_total", group="billing") == 0


async def test_what_is_too_much_is_left_out_and_counted(
    shown: Shown, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await member.commit({0: 0, 1: 0, 2: 0}) is ErrorCode.NONE
    async with await Member.connect(shown.port, "zeta") as other:
        await other.alone([])
        monkeypatch.setattr(scraping, "GROUPS_MAX", 1)
        monkeypatch.setattr(scraping, "PARTITIONS_MAX", 2)
        monkeypatch.setattr(scraping, "GROUP_PARTITIONS_MAX", 2)
        found = await scrape(shown)
    assert found.of("kafka_consumergroup_members") == [{"consumergroup": "billing"}]
    assert len(found.of("kafka_topic_partition_current_offset")) == 2
    assert len(found.of("kafka_consumergroup_current_offset")) == 2
    for what in ("groups", "partitions", "group_partitions"):
        assert found.value("muster_metrics_left_out", what=what) == 1


async def test_long_names_do_not_make_an_answer_of_any_length(shown: Shown) -> None:
    named = "n" * scraping.LABEL_MAX
    async with await Member.connect(shown.port, named, client_id="c" * 5_000) as fits:
        await fits.alone([0])
        assert await fits.commit({0: 0}) is ErrorCode.NONE
        async with await Member.connect(shown.port, named + "n") as too_long:
            await too_long.alone([1])
            found = await scrape(shown)
    assert found.of("kafka_consumergroup_members") == [{"consumergroup": named}]
    assert found.value("muster_metrics_left_out", what="groups") == 1
    labels = found.of("kafka_consumergroup_group_lag_seconds")[0]
    assert (labels["client_id"], labels["consumer_id"]) == ("c" * 500, "c" * 500)


@pytest.mark.parametrize("brokers", [1, 2])
async def test_the_first_scrape_after_a_restart_is_complete(
    show: Show, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, brokers: int
) -> None:
    monkeypatch.setattr(scraping, "_LOOK_S", DEADLINE_S)  # other tests need the disk
    monkeypatch.setattr(facts, "_LAG_S", DEADLINE_S)
    settings = {"ephemeral": False, "data": str(tmp_path), "brokers": brokers}
    before = await show(**settings)
    await before.create_topic(partitions=150)
    group = (await before.groups_of_brokers())[1]
    async with await Member.connect(before.port, group) as member:
        await member.alone([])
        assert await member.commit(dict.fromkeys(range(150), 0)) is ErrorCode.NONE
    await before.page.close()
    await before.brokers.stop()
    shown = await show(**settings)
    _, listed = await shown.get("/api/groups")
    assert [(each["group"], each["lag"]) for each in listed["groups"]] == [(group, 0)]
    found = await scrape(shown)
    assert len(found.of("kafka_topic_partition_current_offset")) == 150
    assert len(found.of("kafka_consumergroup_lag")) == 150
    assert [found.value("muster_metrics_left_out", what=what) for what in _UNKNOWN] == [0, 0]


async def test_what_is_known_in_part_is_left_out_and_counted(
    shown: Shown, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum over it would look as if topics had shrunk, and groups caught up."""
    await shown.create_topic("audit")
    assert await member.commit({0: 0, 1: 0, 2: 0}) is ErrorCode.NONE
    orders = shown.broker.catalogue.named("orders").topic_id
    look_into = Partitions._look_into

    async def too_slow(partitions: Partitions, partition: PartitionId) -> Looked:
        if partition == PartitionId(orders, 1):
            raise TimeoutError  # as if the time were up here
        return await look_into(partitions, partition)

    async def lag() -> int | None:
        lag: int | None = (await shown.get("/api/groups"))[1]["groups"][0]["lag"]
        return lag

    with monkeypatch.context() as disk:
        disk.setattr(Partitions, "_look_into", too_slow)
        found = await scrape(shown)
        assert {each["topic"] for each in found.of("kafka_topic_partition_current_offset")} == {"audit"}
        assert found.of("kafka_consumergroup_lag") == []
        assert [found.value("muster_metrics_left_out", what=what) for what in _UNKNOWN] == [3, 3]
        assert await lag() is None
    found = await scrape(shown)
    assert len(found.of("kafka_topic_partition_current_offset")) == 6
    assert len(found.of("kafka_consumergroup_lag")) == 3
    assert [found.value("muster_metrics_left_out", what=what) for what in _UNKNOWN] == [0, 0]
    assert await lag() == 0


async def test_a_log_that_cannot_be_read_hides_no_other(
    shown: Shown, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await member.commit({0: 0, 1: 0, 2: 0}) is ErrorCode.NONE
    opened = Partitions._opened

    def damaged(partitions: Partitions, led: Led) -> PartitionLog:
        if led.partition == 1:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "damaged")
        return opened(partitions, led)

    monkeypatch.setattr(Partitions, "_opened", damaged)
    found = await scrape(shown)
    for name in ("kafka_topic_partition_current_offset", "kafka_consumergroup_lag"):
        assert sorted(each["partition"] for each in found.of(name)) == ["0", "2"]
    assert [found.value("muster_metrics_left_out", what=what) for what in _UNKNOWN] == [1, 1]


async def test_a_scrape_keeps_no_idle_log_open(shown: Shown) -> None:
    first = await scrape(shown)
    assert len(first.of("kafka_topic_partition_current_offset")) == 3
    assert shown.broker.partitions.in_use() == []
    async with await Member.connect(shown.port) as member:
        await member.produce(2, 5)
    found = await scrape(shown)
    assert found.value("kafka_topic_partition_current_offset", topic="orders", partition="2") == 5
    assert [each.partition for each in shown.broker.partitions.in_use()] == [2]


@pytest.mark.interpreted
async def test_a_group_is_viewed_once_and_not_once_a_member(
    shown: Shown, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it rebalances, a view counts all members."""
    viewed = 0
    view = ClassicGroup.view

    def counted(group: ClassicGroup) -> GroupView:
        nonlocal viewed
        viewed += 1
        return view(group)

    async def views() -> int:
        nonlocal viewed
        viewed = 0
        await scrape(shown)
        return viewed

    monkeypatch.setattr(ClassicGroup, "view", counted)
    assert await views() == 1
    async with await Member.connect(shown.port, client_id="web-2") as second:
        await second.ask_to_join()
        group = facts.find(shown.brokers, "billing").group
        await until(lambda: len(group.identities()) == 2, "the second member")
        assert await views() == 1


async def test_labels_may_be_anything(shown: Shown) -> None:
    name = 'a "b"\n\\ü'
    async with await Member.connect(shown.port, name) as member:
        await member.alone([])
        found = await scrape(shown)
    assert found.value("kafka_consumergroup_members", consumergroup=name) == 1


# --- the tallies alone --------------------------------------------------------------------------------------


def entry(type: str, group: str | None = "billing", *, trigger: str | None = None, **data: object) -> Entry:
    return Entry(type, 1, 1, 7, group, 1, trigger=trigger, member=Identity("m", "c", "h"), data=data)


def test_late_heartbeats_and_evictions_are_told_apart_from_leaving() -> None:
    made = Tallies()
    made.observe([entry("heartbeat_late", late_ms=12_000), entry("heartbeat_late", late_ms=12_500)])
    made.observe([entry("member_removed", trigger=each) for each in ("member left", "session expired")])
    tally = made.groups["billing"]
    assert (tally.late, tally.left, dict(tally.evicted)) == (2, 1, {"session expired": 1})

    assert (made.lateness.sum, made.lateness.counts[tallies.LATENESS_BUCKETS.index(15.0)]) == (24.5, 2)


def test_a_member_that_an_admin_removed_did_not_leave_of_its_own_accord() -> None:
    made = Tallies()
    admin = Identity("", "admin", "10.0.0.9").to_json()
    made.observe([entry("member_removed", trigger="member left", requested_by=admin)])
    made.observe([entry("member_removed", trigger="member left", requested_by=None)])
    tally = made.groups["billing"]
    assert (tally.left, dict(tally.evicted)) == (1, {"requested": 1})


def test_rebalances_nobody_asks_about_are_counted_in_the_end() -> None:
    made = Tallies()
    for _ in range(150):
        made.observe([entry("rebalance_completed", trigger="member left", join_ms=1, assignment_ms=1)])
    tally = made.groups["billing"]
    assert len(tally.unexplained) == 100
    assert dict(tally.rebalances) == {("member left", "unknown"): 50}


def test_a_group_that_becomes_empty_has_only_the_phases_that_there_were() -> None:
    made = Tallies()

    def done(members: int, **phases: int) -> None:
        of_classic = {"join_ms": 0, "assignment_ms": 0}
        made.observe(
            [entry("rebalance_completed", trigger="member left", members=members, **of_classic | phases)]
        )

    done(1, join_ms=1_000, assignment_ms=2_000)
    done(0)
    done(0, join_ms=500)
    assert made.groups["billing"].phases == {"join": (2, 1.5), "assignment": (1, 2.0)}
    assert (sum(made.phases["assignment"].counts), made.completed) == (1, 1)
    done(0, assignment_ms=4_000)  # the last member left while its assignment was waited for
    assert made.groups["billing"].phases["assignment"] == (2, 6.0)
    done(1, target_ms=1_000, reconcile_ms=2_000)
    done(0, target_ms=0, reconcile_ms=0)
    phases = made.groups["billing"].phases
    assert (phases["target"], phases["reconcile"]) == ((1, 1.0), (1, 2.0))
    assert sum(made.phases["reconcile"].counts) == 1
    assert (made.completed, len(made.groups["billing"].unexplained)) == (1, 6)


def test_labels_and_groups_have_a_bound() -> None:
    made = Tallies(groups_max=2)
    made.observe([entry("commit_refused", error=f"E{number}") for number in range(80)])
    assert len(made.groups["billing"].commits_refused) == 51
    assert made.groups["billing"].commits_refused["other"] == 30
    made.observe([entry("member_added", "a"), entry("member_added"), entry("member_added", "b")])
    assert list(made.groups) == ["billing", "b"]


def test_groups_that_another_process_has_are_forgotten_and_those_on_the_move_are_not() -> None:
    made = Tallies()
    made.observe([entry("member_added"), entry("member_added", "audit")])
    made.keep({"audit"}, {7})
    assert set(made.groups) == {"billing", "audit"}  # its shard is here and being loaded
    made.keep({"audit"}, {8})
    assert set(made.groups) == {"audit"}


def test_the_last_rebalance_before_a_takeover_is_left_to_the_journal() -> None:
    made = Tallies()
    made.observe([entry("rebalance_completed", trigger="member left")])
    assert made.groups["billing"].last is not None
    made.observe([entry("shard_loaded", None)._replace(shard=8)])
    assert made.groups["billing"].last is not None, "it is of another shard"
    made.observe([entry("shard_loaded", None)])
    assert made.groups["billing"].last is None


def test_a_copy_stays_as_it_was() -> None:
    made = Tallies()
    made.observe([entry("rebalance_completed", trigger="member left", join_ms=30, assignment_ms=5)])
    copy, histogram = made.groups["billing"].copy(), made.phases["join"].copy()
    made.observe([entry("rebalance_completed", trigger="member left"), entry("member_added")])
    assert (len(copy.unexplained), copy.joined, copy.phases["join"]) == (1, 0, (1, 0.03))
    assert sum(histogram.counts) == 1
