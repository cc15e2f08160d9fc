"""Groups and topics as `muster.coordinator.testing` shows them, with members of our own client."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from muster.client import Consumer
from muster.coordinator.base.movable_clock import MovableClock
from muster.coordinator.journal.explain.vocabulary import Trigger
from muster.coordinator.testing import (
    AsyncBroker,
    AsyncCluster,
    Broker,
    Cluster,
    MemberFacts,
    WaitFailed,
    groups,
)
from muster.coordinator.testing.core import Core
from muster.protocol.errors import KafkaError
from tests.support.leases import TERM_MS

LONG_S = 60.0
GROUP = "billing"


@pytest.fixture
async def broker() -> AsyncIterator[AsyncBroker]:
    async with Broker() as running:
        await running.create_topic("orders", 6)
        yield running


@asynccontextmanager
async def reading(broker: AsyncCluster, client_id: str, group: str = GROUP) -> AsyncIterator[Consumer]:
    """A member that reads while the block lasts, and leaves at its end."""
    consumer = Consumer(
        broker.bootstrap,
        group_id=group,
        topics=["orders"],
        client_id=client_id,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=50,
        heartbeat_interval_ms=200,
    )

    async def read() -> None:
        async with consumer:
            async for _ in consumer:
                pass

    task = asyncio.create_task(read())
    try:
        yield consumer
    finally:
        consumer.stop()
        await asyncio.wait([task], timeout=LONG_S)
        assert task.done()


# --- facts --------------------------------------------------------------------------------------------------


async def test_a_group_that_does_not_exist_is_dead(broker: AsyncBroker) -> None:
    group = broker.group("nobody")
    assert group.facts == ("Dead", 0)
    assert (group.state, group.generation, group.members) == ("Dead", 0, [])
    assert (group.assignment, group.offsets(), group.lag(), group.timeline()) == ({}, {}, {}, [])
    with pytest.raises(LookupError, match="group nobody has not rebalanced"):
        group.why()
    assert broker.groups() == []


async def test_the_facts_of_a_group_and_of_its_members(broker: AsyncBroker) -> None:
    group = broker.group(GROUP)
    async with reading(broker, "web-1"), reading(broker, "web-2"):
        assert await group.stable(members=2) == ("Stable", 2)
        first, second = sorted(group.members, key=lambda member: member.client_id)
        assert isinstance(first, MemberFacts)
        assert (first.client_id, second.client_id) == ("web-1", "web-2")
        assert first.host == "127.0.0.1"
        assert first.instance is None
        assert first.topics == ("orders",)
        assert first.connected
        assert len(first.assignment) == len(second.assignment) == 3
        assert group.assignment == {
            ("orders", part): (first if ("orders", part) in first.assignment else second).id
            for part in range(6)
        }
        assert group.generation >= 1
        assert group.member("web-1").facts == first
        assert group.member(second.id).facts == second
        assert broker.groups() == [GROUP]
    await group.empty()
    assert group.facts == ("Empty", 0)


async def test_commits_and_lag(broker: AsyncBroker) -> None:
    group = broker.group(GROUP)
    await broker.produce("orders", [b"1", b"2", b"3"], partition=1)
    async with reading(broker, "web-1"):
        assert await group.committed("orders", 1, at_least=3) == 3
        await group.caught_up()
    await group.empty()
    await broker.produce("orders", [b"4"], partition=1)
    assert group.offsets()["orders", 1] == 3
    assert group.lag() == {("orders", partition): int(partition == 1) for partition in range(6)}
    await broker.produce("orders", [b"5", b"6"], partition=4)  # in a partition without any commit
    with pytest.raises(WaitFailed, match=r"group billing to catch up\n  now: lag orders-1: 1, orders-4: 2"):
        await group.caught_up(timeout=0.05)
    with pytest.raises(WaitFailed, match=r"commit orders-1 at 4 or more\n  now: committed offset 3; Empty"):
        await group.committed("orders", 1, at_least=4, timeout=0.05)
    with pytest.raises(WaitFailed, match="now: no commit for the partition; orders has 6 partitions; Empty"):
        await group.committed("orders", 6, timeout=0)
    with pytest.raises(WaitFailed, match="now: no commit for the partition; Empty"):
        await group.committed("other", 5, timeout=0)
    with pytest.raises(LookupError, match=r"^group billing has no member 'web-1'; it has no members$"):
        await group.evict("web-1")


async def test_a_wait_begins_before_and_ends_with_the_fact(broker: AsyncBroker) -> None:
    group = broker.group(GROUP)
    waiting = asyncio.create_task(group.stable(members=2))
    async with reading(broker, "web-1"), reading(broker, "web-2"):
        assert (await waiting).members == 2
        generation = group.generation
        waiting = asyncio.create_task(group.stable(generation=generation + 1))
        async with reading(broker, "web-3"):
            await waiting
            assert group.generation > generation
            await group.stable(members=3)


# --- what can be done to members ----------------------------------------------------------------------------


async def test_a_member_is_evicted_as_by_an_admin(broker: AsyncBroker) -> None:
    group = broker.group(GROUP)
    async with reading(broker, "web-1"):
        await group.stable(members=1)
        before = group.member("web-1").facts.id
        generation = group.generation
        await group.evict("web-1")
        await group.stable(members=1, generation=generation + 1)  # it comes back as a new member
        assert group.member("web-1").facts.id != before
        with pytest.raises(LookupError, match=r"^group billing has no member 'web-9'; its members: web-1 \("):
            await group.member("web-9").evict()


async def test_a_member_that_is_disconnected_comes_back_in_its_generation(broker: AsyncBroker) -> None:
    group = broker.group(GROUP)
    async with reading(broker, "web-1") as consumer:
        await group.stable(members=1)
        before, generation = group.member("web-1").facts.id, group.generation
        await group.member("web-1").disconnect()
        async with asyncio.timeout(LONG_S):
            while not group.member("web-1").facts.connected:  # noqa: ASYNC110 - until it heartbeats again
                await asyncio.sleep(0.01)
        assert group.generation == generation
        assert group.member("web-1").facts.id == before
        assert consumer.assignment


async def test_a_member_that_crashed_stays_until_its_session_expires(
    broker: AsyncBroker,
) -> None:
    group = broker.group(GROUP)
    async with reading(broker, "web-1"), reading(broker, "web-2"):
        await group.stable(members=2)
        kept_away = await group.member("web-2").crash()
        assert not group.member("web-2").facts.connected
        await group.member("web-2").disconnected()
        assert group.facts == ("Stable", 2)
        await broker.clock.advance("45s")
        await group.stable(members=1)
        assert [member.client_id for member in group.members] == ["web-1"]
        await group.member("web-2").disconnected()
        with pytest.raises(WaitFailed, match="member web-3 of group"):
            await group.member("web-3").disconnected(timeout=0)  # was never a member: a typo, say
        await kept_away.remove()
        await group.stable(members=2)  # it was alive all along


async def test_a_crash_that_fails_leaves_no_fault_behind(
    broker: AsyncBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def in_vain(*call: object) -> None:
        raise WaitFailed("timed out")

    async with reading(broker, "web-1"):
        await broker.group(GROUP).stable(members=1)
        with monkeypatch.context() as patched:
            patched.setattr(groups, "wait_until", in_vain)
            with pytest.raises(WaitFailed, match="timed out"):
                await broker.group(GROUP).member("web-1").crash()
        assert broker.faults.rules() == []


async def test_members_that_share_a_client_id_cannot_be_told_apart(broker: AsyncBroker) -> None:
    group = broker.group(GROUP)
    async with reading(broker, "web"), reading(broker, "web"):
        await group.stable(members=2)
        with pytest.raises(LookupError, match=r"^'web' may be any of these members of group billing: web#?"):
            await group.member("web").crash()
        with pytest.raises(ValueError, match="several members have the client id 'web'"):
            await group.member(group.members[0].id).crash()


async def test_who_shares_its_client_id_with_others_cannot_crash_alone() -> None:
    async with Cluster(2, lease_term_ms=TERM_MS) as cluster:
        await cluster.create_topic("orders", 6)
        others = next(
            name
            for name in (f"shipping-{number}" for number in range(100))
            if cluster.coordinator_of(name) != cluster.coordinator_of(GROUP)
        )
        async with reading(cluster, "web"), reading(cluster, "web", others):
            await cluster.group(GROUP).stable(members=1)
            await cluster.group(others).stable(members=1)
            said = rf"^a member of group {others} has the client id 'web' too: give each client its own$"
            with pytest.raises(ValueError, match=said):
                await cluster.group(GROUP).member("web").crash()
            assert cluster.faults.rules() == []
        await cluster.group(others).empty()


@pytest.mark.parametrize(
    "client_id",
    [
        "rdkafka",
        "muster",
        "aiokafka-0.14.0",
        "aiokafka-0.12.1.dev0",
        "kafka-python-3.0.12",
        "faststream-0.7.8",
        "faststream-0.6.0rc1",
    ],
)
async def test_a_client_id_that_clients_share_by_default_crashes_nobody(
    broker: AsyncBroker, client_id: str
) -> None:
    async with reading(broker, client_id):
        await broker.group(GROUP).stable(members=1)
        with pytest.raises(ValueError, match=rf"^'{client_id}' is the client id of every [\w-]+ \w+ that "):
            await broker.group(GROUP).member(client_id).crash()
        assert broker.faults.rules() == []
        assert broker.group(GROUP).members[0].connected


@pytest.mark.parametrize("client_id", ["aiokafka-1", "kafka-python-2a", "muster-1"])
async def test_a_client_id_that_only_looks_like_a_default_may_crash(
    broker: AsyncBroker, client_id: str
) -> None:
    async with reading(broker, client_id):
        await broker.group(GROUP).stable(members=1)
        rule = await broker.group(GROUP).member(client_id).crash()
        assert len(broker.faults.rules()) == 1
        await rule.remove()


async def test_a_short_name_is_known_when_its_twin_has_left(broker: AsyncBroker) -> None:
    group = broker.group(GROUP)
    async with reading(broker, "web"):
        await group.stable(members=1)
        first = group.member("web").facts.id
        async with reading(broker, "web"):
            await group.stable(members=2)
            names = {each.id: each.name for each in group.members}
        await group.stable(members=1)
        assert group.member(names.pop(first)).facts.id == first
        (gone,) = names.values()
        await group.member(gone).disconnected(timeout=5)
    await group.empty()
    await group.member(gone).disconnected(timeout=5)


async def test_who_stalls_is_missed_though_its_connection_is_open(broker: AsyncBroker) -> None:
    group = broker.group(GROUP)
    async with reading(broker, "web-1"), reading(broker, "web-2"):
        await group.stable(members=2)
        before = group.member("web-2").facts.id
        await group.member("web-2").stall()
        await broker.clock.advance("45s")
        assert before not in [member.id for member in group.members]


# --- failed waits -------------------------------------------------------------------------------------------


async def test_a_failed_wait_tells_how_it_is_and_what_happened(broker: AsyncBroker) -> None:
    group = broker.group(GROUP)
    async with reading(broker, "web-1"):
        await group.stable(members=1)
        with pytest.raises(WaitFailed) as failed:
            await group.stable(members=2, timeout=0.05)
    said = str(failed.value)
    assert said.startswith("timed out after 0.05 s waiting for group billing to be Stable with 2 members\n")
    assert "now: Stable, generation 1: web-1 (web-1-" in said
    assert "events:" in said
    assert "web-1" in said.split("events:")[1]
    assert isinstance(failed.value, AssertionError)
    # pytest's traceback ends at the test's own line.
    frames = [entry for entry in failed.traceback if not entry.frame.f_locals.get("__tracebackhide__")]
    assert frames[-1].path.name == "test_groups.py"


async def test_the_story_of_a_failed_wait_is_bounded(broker: AsyncBroker) -> None:
    group = broker.group(GROUP)
    for number in range(12):
        async with reading(broker, f"web-{number}"):
            await group.stable(members=1)
    with pytest.raises(WaitFailed, match="older lines omitted") as failed:
        await group.stable(timeout=0)
    assert len(str(failed.value).splitlines()) < 70
    assert len(str(group.timeline()).splitlines()) >= len(group.timeline()) > 60


async def test_the_reason_of_a_rebalance(broker: AsyncBroker) -> None:
    group = broker.group(GROUP)
    async with reading(broker, "web-1"):
        await group.stable(members=1)
        generation = group.generation
        async with reading(broker, "web-2"):
            joined = await group.rebalanced(cause="member joined", after=generation)
            assert joined.cause == "member joined"
            await group.stable(members=2)
        left = await group.rebalanced(cause="member left", after=joined.generation or 0)
        assert left.generation is not None
        assert group.why(generation=left.generation).cause == "member left"
        with pytest.raises(WaitFailed, match=r"group billing to rebalance with cause 'session expired'"):
            await group.rebalanced(cause="session expired", timeout=0.05)


async def time_passes(core: Core, ms: int) -> None:
    """Without the journal entry of `clock.advance`."""
    clock = core.brokers.shared.clock
    assert isinstance(clock, MovableClock)
    clock.move_to(clock.now_ms() + ms)


async def test_a_rebalance_that_hangs_is_explained_by_whom_it_waits_for(broker: AsyncBroker) -> None:
    group = broker.group(GROUP)
    async with reading(broker, "web-1"):
        await group.stable(members=1)
        slow = group.member("web-1").facts.id
        async with (
            broker.faults.add(api="JoinGroup", member=slow, delay="1h"),
            reading(broker, "web-2"),
        ):
            await group.in_state("PreparingRebalance")
            assert group.why().diagnosis == "new-member"
            core = broker._core
            core.thread.run(lambda: time_passes(core, 5_000), LONG_S)
            found = group.why()
            assert found.diagnosis == "slow-join"
            assert [each.member.id for each in found.waiting] == [slow]


# --- topics -------------------------------------------------------------------------------------------------


async def test_topics_and_their_records(broker: AsyncBroker) -> None:
    topic = broker.topic("orders")
    assert (await topic.exists(), topic.partitions) == (6, 6)
    assert await topic.produce([b"tea", (b"alice", None)], partition=3) == 0
    assert await topic.produce([b"milk"], partition=3) == 2
    assert topic.end_offsets() == {0: 0, 1: 0, 2: 0, 3: 3, 4: 0, 5: 0}
    assert await topic.has_records(at_least=3) == 3
    assert [(each.partition, each.offset, each.key, each.value) for each in await topic.records()] == [
        (3, 0, None, b"tea"),
        (3, 1, b"alice", None),
        (3, 2, None, b"milk"),
    ]
    with pytest.raises(WaitFailed, match=r"topic orders to have 4 records or more\n  now: 3 records"):
        await topic.has_records(at_least=4, timeout=0.05)
    with pytest.raises(WaitFailed, match="topic orders to be deleted"):
        await topic.deleted(timeout=0.05)
    with pytest.raises(WaitFailed, match="topic nothing"):
        await broker.topic("nothing").exists(timeout=0.05)
    with pytest.raises(KafkaError, match="no topic nothing"):
        await broker.produce("nothing", [b"v"])
    with pytest.raises(KafkaError, match="has no partition 6"):
        await broker.produce("orders", [b"v"], partition=6)
    with pytest.raises(ValueError, match="the list is empty"):
        await broker.produce("orders", [])
    for wrong in ("text", 1, None, ("k", "v"), (b"k",), [b"k", b"v"]):
        with pytest.raises(
            TypeError, match=r"^records: .* is not a record: it takes a value in bytes, or a tuple of"
        ):
            await broker.produce("orders", [wrong])  # type: ignore[list-item]
    for wrong in (b"v", "v", {b"k": b"v"}, 5):
        with pytest.raises(TypeError, match=r"^records: it takes a list"):
            await broker.produce("orders", wrong)  # type: ignore[arg-type]
    for pair in ((b"k", b"v"), (None, b"v")):
        said = "^records: a tuple of two is one record, a key and a value: it takes a list"
        with pytest.raises(TypeError, match=said):
            await broker.produce("orders", pair)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        (5, {}, "name: it takes text, not 5"),
        ("t", {"partitions": "3"}, "partitions: it takes a whole number, not '3'"),
        ("t", {"partitions": True}, "partitions: it takes a whole number, not True"),
        ("t", {"configs": ["x"]}, r"configs: it takes text by name, not \['x'\]"),
        ("t", {"configs": {"retention.ms": 5}}, "configs: retention.ms: it takes text such as '5', not 5"),
    ],
)
async def test_what_is_no_topic_is_told_by_its_field(
    broker: AsyncBroker, name: object, options: dict[str, object], said: str
) -> None:
    with pytest.raises(TypeError, match=f"^{said}$"):
        await broker.create_topic(name, **options)  # type: ignore[arg-type]


async def test_what_could_only_be_waited_for_in_vain_is_refused(broker: AsyncBroker) -> None:
    group = broker.group(GROUP)
    with pytest.raises(ValueError, match=r"^state: 'stable' is not one of Empty, PreparingRebalance, "):
        await group.in_state("stable")
    with pytest.raises(ValueError, match=r"^state: 'Steady' is not one of Empty"):
        await broker.wait_for_group(GROUP, "Steady")
    with pytest.raises(ValueError, match=r"^cause: 'session_expired' is not one of .*, session expired, "):
        await group.rebalanced(cause="session_expired")
    with pytest.raises(ValueError, match=r"^partition=-1 is not allowed; it takes a partition, 0 or more$"):
        await group.committed("orders", -1)
    for members in (-1, "2", True):
        with pytest.raises(ValueError, match=r"^members=.* is not allowed; it takes a number"):
            await group.stable(members=members)  # type: ignore[arg-type]
    for cause in (*Trigger, "unknown"):
        with pytest.raises(WaitFailed):
            await group.rebalanced(cause=cause, timeout=0)


async def test_the_states_of_a_consumer_group_can_be_waited_for() -> None:
    settings = {"group_id": GROUP, "topics": ["orders"], "group_protocol": "consumer"}
    async with Broker(group_consumer_assignment_interval_ms=15_000) as broker:
        await broker.create_topic("orders", 6)
        group = broker.group(GROUP)
        async with (
            Consumer(broker.bootstrap, **settings) as first,
            Consumer(broker.bootstrap, **settings) as second,
        ):
            await first.get(timeout=0)
            await group.stable(members=1)
            await second.get(timeout=0)
            await group.in_state("Assigning", members=2)  # until the interval is over
            assert await broker.wait_for_group(GROUP, "Assigning") == ("Assigning", 2)
        with pytest.raises(WaitFailed, match="to be Reconciling"):
            await group.in_state("Reconciling", timeout=0)


async def test_a_number_to_wait_for_must_be_one(broker: AsyncBroker) -> None:
    group, topic = broker.group(GROUP), broker.topic("t")
    for given in ("2", -1, 1.5, True):
        for call, said in (
            (group.stable(generation=given), "generation={} is not allowed; it takes a generation"),  # type: ignore[arg-type]
            (group.rebalanced(after=given), "after={} is not allowed; it takes a generation"),  # type: ignore[arg-type]
            (group.committed("t", at_least=given), "at_least={} is not allowed; it takes an offset"),  # type: ignore[arg-type]
            (topic.has_records(at_least=given), "at_least={} is not allowed; it takes a number of records"),  # type: ignore[arg-type]
        ):
            with pytest.raises(ValueError, match=f"^{re.escape(said.format(repr(given)))}, 0 or more$"):
                await call


async def test_what_is_no_name_or_partition_is_told_by_its_field(broker: AsyncBroker) -> None:
    await broker.create_topic("t")
    for named, call in (
        ("group_id", broker.group),
        ("name", broker.topic),
        ("transactional_id", broker.transaction),
        ("group_id", broker.group_state),
        ("topic", broker.leader_of),
        ("group_id", broker.coordinator_of),
        ("name", broker.group(GROUP).member),
    ):
        with pytest.raises(TypeError, match=f"^{named}: it takes text, not 5$"):
            call(5)  # type: ignore[operator]
    for asking in (broker.move(5, to=0), broker.unpin(5), broker.hold(5), broker.release(5)):  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"^group_id: it takes text, not 5$"):
            await asking
    said = "^partition: it takes a whole number, not '0'$"
    with pytest.raises(TypeError, match=said):
        await broker.produce("t", [b"v"], partition="0")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=said):
        await broker.topic("t").produce([b"v"], partition="0")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=said):
        await broker.group(GROUP).committed("t", "0")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=said):
        broker.leader_of("t", "0")  # type: ignore[arg-type]


# --- several brokers ----------------------------------------------------------------------------------------


async def test_a_group_is_seen_whoever_coordinates_it() -> None:
    async with Cluster(3, lease_term_ms=TERM_MS) as cluster:
        await cluster.create_topic("orders", 3)
        home = cluster.coordinator_of(GROUP)
        assert home is not None
        other = (home + 1) % 3
        await cluster.move(GROUP, other)
        assert cluster.coordinator_of(GROUP) == other
        assert await cluster.unpin(GROUP)
        await cluster.produce("orders", [b"v"], partition=1)
        await cluster.kill(cluster.leader_of("orders", 1))
        await cluster.clock.advance(TERM_MS / 1_000)
        assert await cluster.topic("orders").has_records(at_least=1) == 1


async def test_what_several_brokers_know_of_a_group_is_told_once() -> None:
    async with Cluster(3, lease_term_ms=TERM_MS) as cluster:
        await cluster.create_topic("orders", 3)
        group = cluster.group(GROUP)
        async with reading(cluster, "web-1"):
            await group.stable(members=1)
            home = cluster.coordinator_of(GROUP)
            assert home is not None
            await cluster.clock.advance("1s")
            await cluster.kill(home)
            # Another broker takes over and reads what the dead one wrote.
            await cluster.clock.advance(TERM_MS / 1_000)
            assert cluster.coordinator_of(GROUP) not in (None, home)
            lines = str(group.timeline()).splitlines()
    assert lines.count("group created") == 1
    assert sum("; topics orders; assignors" in line for line in lines) == 1
    assert lines.count("the test clock was advanced by 1.0 s") == 1


async def test_what_happens_again_and_again_is_one_line(broker: AsyncBroker) -> None:
    group = broker.group(GROUP)
    async with reading(broker, "web-1"):
        await group.stable(members=1)
        kept_away = await group.member("web-1").crash()
        await kept_away.hit(5)
        await kept_away.remove()
    lines = str(group.timeline()).splitlines()
    assert len(lines) < len(group.timeline())
    assert any("injected fault: close_before on" in line and line.endswith(" times)") for line in lines)
