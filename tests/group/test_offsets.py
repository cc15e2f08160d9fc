"""Offsets where a transcript would be clumsy: topic ids, times to the millisecond, reads of hard state."""

from __future__ import annotations

import uuid
from random import Random

import pytest

from muster.coordinator.base.step import Step
from muster.coordinator.group.classic.states import GroupState
from muster.coordinator.group.committed_offset import CommittedOffset
from muster.coordinator.group.config import GroupConfig
from muster.coordinator.group.effects import TopicsImage
from muster.coordinator.group.events import GroupRemoved, OffsetsRemoved, Trigger
from muster.coordinator.group.hard_state import StoredGroup
from muster.coordinator.group.offsets import FetchOffsets
from muster.coordinator.group.records import group_metadata, offset_commit
from muster.coordinator.group.shard import Shard
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.offsets import OffsetDeleteRequest, OffsetFetchRequest, OffsetFetchResponse
from muster.protocol.types import INT64_MAX, ZERO_UUID
from tests.group.harness import START_MS, Harness
from tests.group.requests import commit_request, context, join, join_request, stable, subscription
from tests.support.each import each

A, B = uuid.UUID(int=1), uuid.UUID(int=2)
COMMIT = context(ApiKey.OFFSET_COMMIT)
FETCH = context(ApiKey.OFFSET_FETCH)
Partitions = OffsetFetchResponse.Group.Topics.Partitions


@pytest.fixture
def harness() -> Harness:
    return Harness()


def fetch(harness: Harness, topic: str, topic_id: uuid.UUID, *partitions: int) -> list[Partitions]:
    wanted = OffsetFetchRequest.Group.Topics(
        name=topic, topic_id=topic_id, partition_indexes=list(partitions)
    )
    group: OffsetFetchResponse.Group = harness.ask(
        Shard.fetch_offsets, FetchOffsets("orders", [wanted]), FETCH
    )
    assert group.group_id == "orders"
    [found] = group.topics
    assert (found.name, found.topic_id) == (topic, topic_id)
    return found.partitions


def fetch_all(harness: Harness) -> dict[tuple[str, int], int]:
    group: OffsetFetchResponse.Group = harness.ask(Shard.fetch_offsets, FetchOffsets("orders", None), FETCH)
    return {
        (topic.name, partition.partition_index): partition.committed_offset
        for topic in group.topics
        for partition in topic.partitions
    }


# --- commit -------------------------------------------------------------------------------------------------


def test_what_a_commit_stores(harness: Harness) -> None:
    harness.advance(5)
    request = commit_request({("orders", 0): 42}, topic_id=A, metadata="here")
    request.topics[0].partitions[0].committed_leader_epoch = 3
    response = harness.ask(Shard.commit_offsets, request, COMMIT)
    assert [(topic.name, topic.topic_id) for topic in response.topics] == [("orders", A)]
    assert harness.shard.hard.offsets == {
        "orders": {("orders", 0): CommittedOffset(42, 3, "here", START_MS + 5, -1, A)}
    }


@pytest.mark.parametrize(
    ("retention_ms", "expires_ms"),
    [
        (-1, -1),
        (0, START_MS),
        (1, START_MS + 1),
        (INT64_MAX - START_MS + 1, INT64_MAX),
        (INT64_MAX, INT64_MAX),
    ],
)
def test_an_explicit_retention_is_stored_as_a_time(
    harness: Harness, retention_ms: int, expires_ms: int
) -> None:
    request = commit_request({("orders", 0): 42}, topic_id=A, retention_time_ms=retention_ms)
    harness.ask(Shard.commit_offsets, request, COMMIT)
    committed = harness.shard.hard.offsets["orders"]["orders", 0]
    assert committed.expire_timestamp == expires_ms
    assert committed.topic_id == (A if retention_ms == -1 else ZERO_UUID)


def test_a_commit_without_metadata_stores_an_empty_string(harness: Harness) -> None:
    harness.ask(Shard.commit_offsets, commit_request({("orders", 0): 1}, metadata=None), COMMIT)
    assert harness.shard.hard.offsets["orders"]["orders", 0].metadata == ""


def test_too_much_metadata_concerns_its_partition_alone(harness: Harness) -> None:
    request = commit_request({("orders", 0): 1, ("clicks", 0): 2})
    request.topics[0].partitions[0].committed_metadata = "x" * 4097
    response = harness.ask(Shard.commit_offsets, request, COMMIT)
    assert [(topic.name, topic.partitions[0].error_code) for topic in response.topics] == [
        ("orders", ErrorCode.OFFSET_METADATA_TOO_LARGE),
        ("clicks", ErrorCode.NONE),
    ]
    assert fetch_all(harness) == {("clicks", 0): 2}


def test_commits_of_the_same_partition_have_the_same_answer(harness: Harness) -> None:
    answers = [
        harness.ask(Shard.commit_offsets, commit_request({("orders", 0): offset}), COMMIT)
        for offset in (1, 2)
    ]
    assert answers[0] is answers[1]


def test_a_commit_of_nothing_is_answered(harness: Harness) -> None:
    assert harness.ask(Shard.commit_offsets, commit_request({}), COMMIT).topics == []
    assert harness.shard.hard.offsets == {}


# --- fetch --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "asked", "found"),
    [(A, A, True), (A, B, False), (A, ZERO_UUID, True), (ZERO_UUID, A, True), (ZERO_UUID, ZERO_UUID, True)],
)
def test_an_offset_of_a_topic_made_anew_is_none(
    harness: Harness, stored: uuid.UUID, asked: uuid.UUID, found: bool
) -> None:
    harness.ask(Shard.commit_offsets, commit_request({("orders", 0): 42}, topic_id=stored), COMMIT)
    [partition] = fetch(harness, "orders", asked, 0)
    assert partition.committed_offset == (42 if found else -1)


def test_what_a_fetch_tells(harness: Harness) -> None:
    request = commit_request({("orders", 0): 42}, metadata="here")
    request.topics[0].partitions[0].committed_leader_epoch = 3
    harness.ask(Shard.commit_offsets, request, COMMIT)
    assert fetch(harness, "orders", ZERO_UUID, 1, 0) == [
        Partitions(partition_index=1, committed_offset=-1, committed_leader_epoch=-1, metadata=""),
        Partitions(partition_index=0, committed_offset=42, committed_leader_epoch=3, metadata="here"),
    ]


def test_fetches_and_other_views_wait_for_what_they_tell(harness: Harness) -> None:
    """Every operation that reveals hard state must say so; the others must not wait for the disk."""
    alice, _ = stable(harness, "alice", "bob")
    reads = {}
    for name, operation, request, api in (
        ("fetch", Shard.fetch_offsets, FetchOffsets("orders", None), ApiKey.OFFSET_FETCH),
        ("describe", Shard.describe, "orders", ApiKey.DESCRIBE_GROUPS),
        ("describe nothing", Shard.describe, "nowhere", ApiKey.DESCRIBE_GROUPS),
        ("list", Shard.list_groups, None, ApiKey.LIST_GROUPS),
        (
            "delete",
            Shard.delete_offsets,
            OffsetDeleteRequest(group_id="orders", topics=[]),
            ApiKey.OFFSET_DELETE,
        ),
        (
            "commit",
            Shard.commit_offsets,
            commit_request({}, member_id=alice, generation_id=2),
            ApiKey.OFFSET_COMMIT,
        ),
    ):
        harness.ask(operation, request, context(api))
        reads[name] = harness.last.reads_hard_state
    assert reads == {
        "fetch": True,
        "describe": True,
        "describe nothing": True,
        "list": True,
        "delete": True,
        "commit": False,
    }


# --- retention ----------------------------------------------------------------------------------------------

MINUTE = 60_000
RETENTION = GroupConfig(
    group_initial_rebalance_delay_ms=0,
    offsets_retention_minutes=10,
    offsets_retention_check_interval_ms=15 * MINUTE,
)


@each("age_ms, kept", [(10 * MINUTE - 1, True), (10 * MINUTE, False)])
def test_retention_is_over_at_the_millisecond(age_ms: int, kept: bool) -> None:
    harness = Harness(RETENTION)
    harness.advance(15 * MINUTE - age_ms)
    harness.ask(Shard.commit_offsets, commit_request({("orders", 0): 1}), COMMIT)
    harness.advance(age_ms)
    assert fetch_all(harness) == ({("orders", 0): 1} if kept else {})


@each("age_ms, kept", [(4 * MINUTE - 1, True), (4 * MINUTE, False)])
def test_an_explicit_expiry_comes_at_the_millisecond(age_ms: int, kept: bool) -> None:
    harness = Harness(RETENTION)
    harness.advance(15 * MINUTE - age_ms)
    request = commit_request({("orders", 0): 1}, retention_time_ms=4 * MINUTE)
    harness.ask(Shard.commit_offsets, request, COMMIT)
    harness.advance(age_ms)
    assert fetch_all(harness) == ({("orders", 0): 1} if kept else {})


def test_the_sweep_runs_at_its_interval() -> None:
    harness = Harness(GroupConfig(offsets_retention_minutes=1, offsets_retention_check_interval_ms=100_000))
    assert harness.shard.next_deadline() == START_MS + 100_000
    harness.ask(Shard.commit_offsets, commit_request({("orders", 0): 1}), COMMIT)
    harness.advance(99_999)
    assert fetch_all(harness) == {("orders", 0): 1}
    harness.advance(1)
    assert fetch_all(harness) == {}
    assert harness.shard.next_deadline() == START_MS + 200_000


def test_a_sweep_interval_of_zero_is_no_endless_loop() -> None:
    harness = Harness(GroupConfig(offsets_retention_check_interval_ms=0))
    assert harness.shard.next_deadline() == START_MS + 1
    harness.advance(3)
    assert harness.shard.next_deadline() == START_MS + 4


# --- sweeps that a moved clock passes over ------------------------------------------------------------------


def skip(harness: Harness, until_ms: int) -> int | None:
    """Skip sweeps up to `until_ms` after the start; returns the shard's next deadline."""
    harness.shard.skip_sweeps(START_MS + until_ms, harness.now_ms)
    return harness.shard.next_deadline()


def test_sweeps_that_find_nothing_are_left_out_and_the_next_keeps_its_turn() -> None:
    harness = Harness(RETENTION)
    harness.advance(MINUTE)
    assert skip(harness, 7 * 24 * 60 * MINUTE) == START_MS + (7 * 24 * 60 + 15) * MINUTE
    assert skip(harness, 15 * MINUTE - 1) == START_MS + 15 * MINUTE  # less was to be skipped after all


def test_a_sweep_comes_the_moment_the_first_offset_is_past_its_retention() -> None:
    harness = Harness(RETENTION)
    harness.ask(Shard.commit_offsets, commit_request({("orders", 0): 1}), COMMIT)
    harness.advance(3 * MINUTE)
    request = commit_request({("orders", 1): 1}, retention_time_ms=4 * MINUTE)
    harness.ask(Shard.commit_offsets, request, COMMIT)
    for when_ms, left in ((7 * MINUTE, {("orders", 0): 1}), (10 * MINUTE, {})):
        assert skip(harness, 60 * MINUTE) == START_MS + when_ms
        harness.advance(START_MS + when_ms - 1 - harness.now_ms)
        assert fetch_all(harness) != left
        harness.advance(1)
        assert fetch_all(harness) == left
    assert skip(harness, 60 * MINUTE) == START_MS + 70 * MINUTE


def test_an_offset_that_is_past_its_retention_already_is_swept_at_once() -> None:
    harness = Harness(RETENTION)
    harness.ask(Shard.commit_offsets, commit_request({("orders", 0): 1}), COMMIT)
    harness.advance(12 * MINUTE)
    assert skip(harness, 60 * MINUTE) == harness.now_ms
    harness.advance(0)
    assert fetch_all(harness) == {}


def test_offsets_in_use_call_for_no_sweep() -> None:
    harness = Harness(RETENTION)
    [alice] = stable(harness, "alice")
    request = commit_request({("orders", 0): 1}, member_id=alice, generation_id=1)
    harness.ask(Shard.commit_offsets, request, COMMIT)
    harness.shard.presume_alive(START_MS + 60 * MINUTE, (), Step(harness.now_ms))
    skip(harness, 30 * MINUTE)
    harness.advance(30 * MINUTE)
    assert fetch_all(harness) == {("orders", 0): 1}


def test_an_empty_group_without_offsets_goes_at_the_next_regular_sweep_as_ever() -> None:
    harness = Harness(RETENTION)
    stable(harness, "alice")
    assert skip(harness, 60 * MINUTE) is not None
    harness.advance(20 * MINUTE)  # alice's session has expired
    assert harness.group().state is GroupState.EMPTY
    skip(harness, 60 * MINUTE)
    harness.advance(10 * MINUTE - 1)
    assert "orders" in harness.shard.groups
    harness.advance(1)
    assert "orders" not in harness.shard.groups


@each("seed", range(20))
def test_leaving_sweeps_out_changes_nothing_in_the_end(seed: int) -> None:
    """Compared with the plain way: every sweep at its time."""
    random = Random(seed)
    plain, skipping = Harness(RETENTION), Harness(RETENTION)
    for number in range(6):
        pause_ms = random.randrange(20 * MINUTE)
        retention_ms = random.choice([-1, random.randrange(1, 40 * MINUTE)])
        for harness in (plain, skipping):
            harness.advance(pause_ms)
            request = commit_request({("orders", number): number}, retention_time_ms=retention_ms)
            harness.ask(Shard.commit_offsets, request, COMMIT)
    end_ms = plain.now_ms + 60 * MINUTE
    plain.advance(60 * MINUTE)
    while skipping.now_ms < end_ms:
        skipping.shard.skip_sweeps(end_ms, skipping.now_ms)
        deadline_ms = skipping.shard.next_deadline()
        assert deadline_ms is not None
        skipping.advance(max(min(deadline_ms, end_ms) - skipping.now_ms, 0))
    assert fetch_all(skipping) == fetch_all(plain) == {}
    assert plain.shard.groups.keys() == skipping.shard.groups.keys()


@each(
    "state_timestamp, committed_ms, expired",
    [
        (-1, START_MS + 5 * MINUTE, True),
        (-1, START_MS + 6 * MINUTE, False),
        (START_MS + 5 * MINUTE, START_MS + 6 * MINUTE, True),
        (START_MS + 6 * MINUTE, START_MS + 5 * MINUTE, False),
    ],
)
def test_a_group_that_does_not_say_since_when_it_is_empty_goes_by_its_commits(
    state_timestamp: int, committed_ms: int, expired: bool
) -> None:
    harness = Harness(RETENTION)
    empty = StoredGroup("consumer", 5, None, None, state_timestamp, ())
    committed = CommittedOffset(42, -1, "", committed_ms, -1, ZERO_UUID)
    step = Step(harness.now_ms)
    harness.shard.hard.emit(group_metadata("orders", empty), step)
    harness.shard.hard.emit(offset_commit("orders", "orders", 0, committed), step)
    harness._finish(step)
    harness.reload()
    harness.advance(15 * MINUTE)
    assert fetch_all(harness) == ({} if expired else {("orders", 0): 42})
    assert ("orders" in harness.shard.groups) is not expired


def test_what_is_subscribed_to_does_not_expire_even_with_an_expiry_of_its_own() -> None:
    harness = Harness(RETENTION)
    [alice] = stable(harness, "alice", session_timeout_ms=30 * MINUTE)
    request = commit_request({("orders", 0): 1}, member_id=alice, generation_id=1, retention_time_ms=MINUTE)
    harness.ask(Shard.commit_offsets, request, COMMIT)
    harness.advance(20 * MINUTE)
    assert fetch_all(harness) == {("orders", 0): 1}


def test_offsets_that_expire_are_told_together() -> None:
    harness = Harness(RETENTION)
    harness.ask(Shard.commit_offsets, commit_request({("orders", 1): 1, ("clicks", 0): 1}), COMMIT)
    harness.take_events()
    harness.advance(15 * MINUTE)
    told = [event for event in harness.events if isinstance(event, OffsetsRemoved)]
    assert [event.partitions for event in told] == [(("orders", 1), ("clicks", 0))]
    assert told[0].trigger == Trigger.RETENTION


# --- topics -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "image", "forgotten"),
    [
        (A, TopicsImage(), False),
        (A, TopicsImage(frozenset({("orders", A)})), True),
        (A, TopicsImage(frozenset({("orders", B)})), False),
        (ZERO_UUID, TopicsImage(frozenset({("orders", B)})), True),
        (A, TopicsImage(frozenset({("clicks", A)})), False),
        (A, TopicsImage(frozenset({("orders", B), ("orders", A)})), True),
        (A, TopicsImage(frozenset(), {"orders": A}), False),
        (A, TopicsImage(frozenset(), {"orders": B}), True),
        (ZERO_UUID, TopicsImage(frozenset(), {"orders": B}), False),
        (A, TopicsImage(frozenset(), {"clicks": B}), True),
        (A, TopicsImage(frozenset(), {}), True),
        (ZERO_UUID, TopicsImage(frozenset(), {"clicks": B}), True),
    ],
)
def test_offsets_of_deleted_topics(
    harness: Harness, stored: uuid.UUID, image: TopicsImage, forgotten: bool
) -> None:
    request = commit_request({("orders", 0): 1, ("orders", 1): 2}, topic_id=stored)
    harness.ask(Shard.commit_offsets, request, COMMIT)
    harness.take_events()
    for _ in range(2):  # reporting it again changes nothing
        harness.topics_changed(image)
    assert fetch_all(harness) == ({} if forgotten else {("orders", 0): 1, ("orders", 1): 2})
    partitions = (("orders", 0), ("orders", 1))
    told = OffsetsRemoved(START_MS, "orders", 0, Trigger.TOPIC_DELETED, None, None, partitions)
    assert harness.take_events() == ([told] if forgotten else [])


def test_offsets_of_topics_that_have_not_changed_are_not_looked_at(harness: Harness) -> None:
    """There may be a million of them."""

    class Asked(dict[str, uuid.UUID]):
        def __getitem__(self, name: str) -> uuid.UUID:
            asked.append(name)
            return super().__getitem__(name)

    asked: list[str] = []
    of_two = commit_request({("orders", 0): 1, ("clicks", 0): 2}, topic_id=A)
    harness.ask(Shard.commit_offsets, of_two, COMMIT)
    both = {"orders": A, "clicks": A}
    harness.topics_changed(TopicsImage(live=Asked(both)))
    assert set(asked) == {"clicks", "orders"}, "whatever was committed before the first list"
    harness.ask(Shard.commit_offsets, of_two, COMMIT)
    asked.clear()
    harness.topics_changed(TopicsImage(live=Asked(both | {"more": B})))
    assert asked == ["more"]  # it is new
    asked.clear()
    harness.topics_changed(TopicsImage(live=Asked({"orders": A, "clicks": B, "more": B})))
    assert set(asked) == {"clicks"}
    assert fetch_all(harness) == {("orders", 0): 1}


@each("topic_id", [A, ZERO_UUID])
def test_an_offset_committed_late_for_a_deleted_topic_goes_with_the_next_change(
    harness: Harness, topic_id: uuid.UUID
) -> None:
    """Late: the topic was deleted after the broker had found it, and the shard was told of that first."""
    harness.topics_changed(TopicsImage(live={"orders": A}))
    harness.topics_changed(TopicsImage(live={}))
    harness.ask(Shard.commit_offsets, commit_request({("orders", 0): 1}, topic_id=topic_id), COMMIT)
    harness.topics_changed(TopicsImage(frozenset({("clicks", A)})))  # does not list what there is
    assert fetch_all(harness) == {("orders", 0): 1}
    harness.topics_changed(TopicsImage(live={"clicks": B}))
    assert fetch_all(harness) == {}


def test_the_group_stays_when_its_topics_go(harness: Harness) -> None:
    harness.ask(Shard.commit_offsets, commit_request({("orders", 0): 1}, topic_id=A), COMMIT)
    harness.topics_changed(TopicsImage(frozenset({("orders", A)})))
    assert "orders" in harness.shard.groups


# --- subscriptions ------------------------------------------------------------------------------------------


def test_a_subscription_is_read_by_the_part_that_all_versions_share(harness: Harness) -> None:
    """A client that claims a version but encodes its later fields wrong is understood all the same."""
    broken = b"\x00\x63" + subscription("orders")[2:-4] + b"\x7f"
    join(harness, join_request(protocols=[("range", broken)]))
    assert harness.group().subscribed_topics == frozenset({"orders"})


def test_deleting_offsets_is_told(harness: Harness) -> None:
    harness.ask(Shard.commit_offsets, commit_request({("orders", 0): 1, ("clicks", 0): 2}), COMMIT)
    harness.take_events()
    request = OffsetDeleteRequest(
        group_id="orders",
        topics=[
            OffsetDeleteRequest.Topic(
                name=topic,
                partitions=[OffsetDeleteRequest.Topic.Partition(partition_index=each) for each in (0, 1)],
            )
            for topic in ("orders", "payments")
        ],
    )
    response = harness.ask(Shard.delete_offsets, request, context(ApiKey.OFFSET_DELETE))
    assert [
        (topic.name, [(each.partition_index, each.error_code) for each in topic.partitions])
        for topic in response.topics
    ] == [("orders", [(0, 0), (1, 0)]), ("payments", [(0, 0), (1, 0)])]
    assert harness.take_events() == [
        OffsetsRemoved(START_MS, "orders", 0, Trigger.REQUESTED, None, None, (("orders", 0),))
    ]
    harness.advance(7)
    harness.ask(Shard.delete_group, "orders", context(ApiKey.DELETE_GROUPS))
    common = (START_MS + 7, "orders", 0, Trigger.REQUESTED, None, None)
    assert harness.take_events() == [OffsetsRemoved(*common, (("clicks", 0),)), GroupRemoved(*common)]


def test_an_unknown_group_is_named(harness: Harness) -> None:
    described = harness.ask(Shard.describe, "nowhere", context(ApiKey.DESCRIBE_GROUPS))
    assert (described.group_id, described.error_message) == ("nowhere", "Group nowhere not found.")
    for operation, request, api in (
        (Shard.delete_group, "nowhere", ApiKey.DELETE_GROUPS),
        (Shard.delete_offsets, OffsetDeleteRequest(group_id="nowhere", topics=[]), ApiKey.OFFSET_DELETE),
        (Shard.commit_offsets, commit_request({}, generation_id=1, group_id="nowhere"), ApiKey.OFFSET_COMMIT),
    ):
        refusal = harness.ask(operation, request, context(api))
        assert isinstance(refusal, KafkaError)
        assert (refusal.code, refusal.why) == (ErrorCode.GROUP_ID_NOT_FOUND, "Group nowhere not found.")


# --- who may commit -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "code"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_a_commit_to_an_unknown_group_by_version(harness: Harness, version: int, code: ErrorCode) -> None:
    request = commit_request({("orders", 0): 1}, generation_id=0)
    refusal = harness.ask(Shard.commit_offsets, request, context(ApiKey.OFFSET_COMMIT, version=version))
    assert refusal.code == code
    assert harness.shard.groups == {}


def test_a_commit_of_nothing_but_too_much_metadata_leaves_no_group(harness: Harness) -> None:
    request = commit_request({("orders", 0): 1}, metadata="x" * 4097)
    response = harness.ask(Shard.commit_offsets, request, COMMIT)
    assert response.topics[0].partitions[0].error_code == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert harness.shard.groups == {}


@pytest.mark.parametrize(("character", "units"), [("x", 1), ("é", 1), ("\uffff", 1), ("\U00010000", 2)])
def test_metadata_is_measured_in_utf_16_units(harness: Harness, character: str, units: int) -> None:
    for length, code in (
        (4096 // units, ErrorCode.NONE),
        (4096 // units + 1, ErrorCode.OFFSET_METADATA_TOO_LARGE),
    ):
        request = commit_request({("orders", 0): 1}, metadata=character * length)
        response = harness.ask(Shard.commit_offsets, request, COMMIT)
        assert response.topics[0].partitions[0].error_code == code


@pytest.mark.parametrize(
    ("instance_id", "member_id", "generation_id", "code"),
    [
        ("alice-instance", "", -1, ErrorCode.FENCED_INSTANCE_ID),
        ("alice-instance", "", 0, ErrorCode.FENCED_INSTANCE_ID),
        ("alice-instance", "ghost", -1, ErrorCode.FENCED_INSTANCE_ID),
        ("nobody", "", -1, ErrorCode.UNKNOWN_MEMBER_ID),
        (None, "", -1, ErrorCode.UNKNOWN_MEMBER_ID),
        (None, "", 0, ErrorCode.UNKNOWN_MEMBER_ID),
        (None, "ghost", -1, ErrorCode.UNKNOWN_MEMBER_ID),
        (None, "alice", -1, ErrorCode.ILLEGAL_GENERATION),
        (None, "alice", 0, ErrorCode.ILLEGAL_GENERATION),
        ("alice-instance", "alice", 1, None),
        (None, "alice", 1, None),
    ],
)
def test_a_commit_to_a_group_with_members_comes_from_one_of_them(
    harness: Harness, instance_id: str | None, member_id: str, generation_id: int, code: ErrorCode | None
) -> None:
    [alice] = stable(harness, "alice", instance_id="alice-instance")
    request = commit_request(
        {("orders", 0): 1},
        member_id=alice if member_id == "alice" else member_id,
        generation_id=generation_id,
    )
    request.group_instance_id = instance_id
    answer = harness.ask(Shard.commit_offsets, request, COMMIT)
    assert (answer.code if isinstance(answer, KafkaError) else None) == code
