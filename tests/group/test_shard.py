"""The shard: details of its steps that the transcripts cannot show."""

from __future__ import annotations

import copy
import uuid

import pytest

from muster.coordinator.base.step import RequestContext, Step
from muster.coordinator.group.classic.states import GroupState
from muster.coordinator.group.config import GroupConfig
from muster.coordinator.group.events import (
    AllSynced,
    Assigned,
    GroupCreated,
    MemberAdded,
    MemberIdentity,
    MemberIdIssued,
    MemberRejoined,
    MemberRemoved,
    MemberReplaced,
    MetadataChanged,
    PendingMemberRemoved,
    ProtocolChosen,
    RebalanceCompleted,
    StateChanged,
    Trigger,
)
from muster.coordinator.group.shard import Shard
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.classic_group import JoinGroupResponse, SyncGroupRequest
from muster.protocol.types import STRING_BYTES_MAX
from tests.group.harness import START_MS, Harness
from tests.group.requests import (
    assignment,
    context,
    heartbeat_request,
    join,
    join_request,
    leave_request,
    stable,
    subscription,
    sync_request,
)

HEARTBEAT = context(ApiKey.HEARTBEAT)
SYNC = context(ApiKey.SYNC_GROUP)


@pytest.fixture
def harness() -> Harness:
    return Harness()


@pytest.mark.parametrize(("character", "lost"), [("a", 0), ("é", 0), ("𝄞", 2)])  # a cut pair is dropped
def test_a_client_id_of_any_length_gives_a_member_id(harness: Harness, character: str, lost: int) -> None:
    longest = character * (STRING_BYTES_MAX // len(character.encode()))
    [member_id] = stable(harness, longest)
    assert len(member_id.encode()) == STRING_BYTES_MAX - lost
    assert member_id.rstrip("0123456789abcdef-").strip(character) == ""


def code_of(answer: object) -> ErrorCode | None:
    return answer.code if isinstance(answer, KafkaError) else None


# --- what a step says of hard state -------------------------------------------------------------------------


def test_which_replies_wait_for_earlier_records(harness: Harness) -> None:
    [alice] = stable(harness, "alice")
    assert harness.last.rows  # the leader's SyncGroup stores the assignment with its reply
    harness.ask(Shard.heartbeat, heartbeat_request(alice, 1), HEARTBEAT)
    assert not harness.last.reads_hard_state
    harness.ask(Shard.sync, sync_request(alice, 1), SYNC)
    assert harness.last.reads_hard_state
    assert not harness.last.rows


def test_a_leader_that_syncs_shows_its_assignment_in_the_hard_state_at_once(harness: Harness) -> None:
    ticket = join(harness, join_request())
    alice = harness.answers[ticket].member_id
    assert harness.shard.hard.groups["orders"].generation_id == 0
    harness.ask(Shard.sync, sync_request(alice, 1, {alice: assignment(0)}), SYNC)
    stored = harness.shard.hard.groups["orders"]
    assert (stored.generation_id, stored.leader, stored.protocol_name) == (1, alice, "range")
    assert [member.assignment for member in stored.members] == [assignment(0)]
    assert stored.state_timestamp == START_MS
    assert stored == harness.group().stored()


# --- member ids, timeouts -----------------------------------------------------------------------------------


def test_member_ids_are_named_after_the_instance_or_the_client() -> None:
    shard = Shard(3, GroupConfig())
    shard.loaded(Step(0))
    for ticket, (instance_id, prefix) in enumerate((("store-1", "store-1-"), (None, "alice-"))):
        group_id = f"group-{ticket}"
        step = Step(0, context(ApiKey.JOIN_GROUP, version=5), ticket)
        shard.join(join_request(instance_id=instance_id, group_id=group_id), step)
        due = Step(3000)
        shard.advance(due)
        response = [*step.replies, *due.replies][-1].response
        assert isinstance(response, JoinGroupResponse)
        assert response.member_id.startswith(prefix)
        assert str(uuid.UUID(response.member_id.removeprefix(prefix))) == response.member_id.removeprefix(
            prefix
        )
    assert repr(shard) == "<Shard 3 groups=2 <HardState groups=2 offsets=0 in 0 groups>>"


@pytest.mark.parametrize(
    ("version", "rebalance_timeout_ms", "expected"),
    [(0, 300_000, 45_000), (0, -1, 45_000), (1, 300_000, 300_000), (1, -1, 0), (1, 0, 0)],
)
def test_the_rebalance_timeout_of_a_version_that_has_none_is_the_sessions(
    harness: Harness, version: int, rebalance_timeout_ms: int, expected: int
) -> None:
    join(harness, join_request(rebalance_timeout_ms=rebalance_timeout_ms), version=version)
    if expected:
        [member] = harness.group().members.values()
        assert (member.rebalance_timeout_ms, member.session_timeout_ms) == (expected, 45_000)
        assert (member.client_id, member.client_host) == ("alice", "/10.0.0.1")
    else:  # nobody waits for its SyncGroup
        assert harness.group().members == {}


@pytest.mark.parametrize("session_timeout_ms", [6_000, 1_800_000])
def test_session_timeouts_at_the_bounds_are_allowed(harness: Harness, session_timeout_ms: int) -> None:
    ticket = join(harness, join_request(session_timeout_ms=session_timeout_ms))
    assert harness.answers[ticket].error_code == 0


def test_the_bounds_of_session_timeouts_are_the_broker_s() -> None:
    config = GroupConfig(group_min_session_timeout_ms=10, group_max_session_timeout_ms=20)
    harness = Harness(config)
    for session_timeout_ms, refused in ((9, True), (10, False), (20, False), (21, True)):
        ticket = join(harness, join_request(session_timeout_ms=session_timeout_ms), version=9)
        expected = ErrorCode.INVALID_SESSION_TIMEOUT if refused else None
        assert code_of(harness.answers[ticket]) == expected


def test_defaults_are_kafka_s() -> None:
    config = GroupConfig()
    assert config == GroupConfig(
        group_initial_rebalance_delay_ms=3_000,
        group_min_session_timeout_ms=6_000,
        group_max_session_timeout_ms=1_800_000,
        group_max_size=2**31 - 1,
        offset_metadata_max_bytes=4_096,
        offsets_retention_minutes=7 * 24 * 60,
        offsets_retention_check_interval_ms=600_000,
    )
    assert config.offsets_retention_ms == 7 * 24 * 3600 * 1000


# --- refusals -----------------------------------------------------------------------------------------------


def test_answers_to_joins_name_the_member_where_the_core_decides(harness: Harness) -> None:
    """The router echoes the id in the request; where Kafka answers with another, the core sets it."""
    ticket = join(harness, join_request(), version=4)
    required = harness.answers[ticket]
    assert required.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert (required.generation_id, required.leader, required.protocol_name, required.members) == (
        -1,
        "",
        None,
        [],
    )
    [alice] = stable(harness, "bob")
    parked = join(harness, join_request(), "carol")
    carol = next(each for each in harness.group().members if each != alice)
    harness.ask(Shard.leave, leave_request(carol), context(ApiKey.LEAVE_GROUP))
    removed = harness.answers[parked]
    assert (removed.error_code, removed.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "")
    pending = harness.ask(Shard.join, join_request(), context(ApiKey.JOIN_GROUP, "dave")).member_id
    named = harness.ask(
        Shard.join, join_request(pending, instance_id="d"), context(ApiKey.JOIN_GROUP, "dave")
    )
    assert (named.error_code, named.member_id) == (ErrorCode.UNKNOWN_SERVER_ERROR, "")
    full = Harness(GroupConfig(group_initial_rebalance_delay_ms=0, group_max_size=1))
    stable(full, "alice")
    refused = full.answers[join(full, join_request("ghost"))]
    assert (refused.error_code, refused.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")


def test_leaving_from_v3_on_looks_at_the_list(harness: Harness) -> None:
    [alice] = stable(harness, "alice")
    request = leave_request(alice)
    request.member_id = "ghost"
    response = harness.ask(Shard.leave, request, context(ApiKey.LEAVE_GROUP, version=3))
    assert response.error_code == 0
    assert [(member.member_id, member.error_code) for member in response.members] == [(alice, 0)]
    assert harness.group().state is GroupState.EMPTY


@pytest.mark.parametrize("api_version", [0, 2])
def test_leaving_before_v3_looks_at_the_one_member(harness: Harness, api_version: int) -> None:
    [alice] = stable(harness, "alice")
    request = leave_request("ghost")
    request.member_id = alice
    response = harness.ask(Shard.leave, request, context(ApiKey.LEAVE_GROUP, version=api_version))
    assert (response.error_code, response.members) == (0, [])
    assert harness.group().state is GroupState.EMPTY


def test_a_sync_for_no_group_that_names_no_protocol_hears_of_the_protocol_first(harness: Harness) -> None:
    for version, code in ((5, ErrorCode.INCONSISTENT_GROUP_PROTOCOL), (4, ErrorCode.UNKNOWN_MEMBER_ID)):
        request = sync_request("ghost", 1, protocol_type=None)
        assert code_of(harness.ask(Shard.sync, request, context(ApiKey.SYNC_GROUP, version=version))) == code


def test_what_a_follower_assigns_is_not_looked_at(harness: Harness) -> None:
    tickets = [join(harness, join_request(), client) for client in ("alice", "bob")]
    alice = harness.answers[tickets[0]].member_id
    tickets.append(join(harness, join_request(alice), "alice"))
    bob = harness.answers[tickets[1]].member_id
    waiting = harness.send(Shard.sync, sync_request(bob, 2, {alice: b"x", bob: b"y"}), SYNC)
    harness.ask(Shard.sync, sync_request(alice, 2, {alice: assignment(0), bob: assignment(1)}), SYNC)
    assert harness.answers[waiting].assignment == assignment(1)


def test_an_assignment_that_is_given_twice_counts_as_given_last(harness: Harness) -> None:
    ticket = join(harness, join_request())
    alice = harness.answers[ticket].member_id
    request = sync_request(alice, 1)
    request.assignments = [
        SyncGroupRequest.Assignment(member_id=alice, assignment=assignment(number)) for number in (1, 2)
    ]
    assert harness.ask(Shard.sync, request, SYNC).assignment == assignment(2)


# --- the journal's events -----------------------------------------------------------------------------------


def test_a_rebalance_is_told_step_by_step(harness: Harness) -> None:
    config = GroupConfig(group_initial_rebalance_delay_ms=3_000)
    harness = Harness(config)
    harness.advance(7)
    ask = context(ApiKey.JOIN_GROUP)
    member_id = harness.ask(Shard.join, join_request(reason="hello"), ask).member_id
    harness.advance(5)
    harness.send(Shard.join, join_request(member_id, reason="hello again"), ask)
    harness.advance(3_000)
    harness.advance(11)
    harness.ask(Shard.sync, sync_request(member_id, 1), SYNC)
    at = START_MS + 7
    joined, synced = at + 3_005, at + 3_016
    who = MemberIdentity(member_id, "alice", "/10.0.0.1", None)
    common = ("orders", 0, Trigger.MEMBER_JOINED, who, "hello again")
    delayed = ("orders", 1, Trigger.INITIAL_DELAY_OVER, None, None)
    from_leader = ("orders", 1, Trigger.LEADER_SYNCED, who, None)
    assert harness.take_events() == [
        GroupCreated(at, "orders", 0, Trigger.REQUESTED, None, None),
        MemberIdIssued(
            at,
            "orders",
            0,
            Trigger.MEMBER_ID_ISSUED,
            who,
            "hello",
            expires_ms=at + 45_000,
            former_member_id=None,
        ),
        MemberAdded(
            at + 5,
            *common,
            protocols=("range",),
            topics=("orders",),
            session_timeout_ms=45_000,
            rebalance_timeout_ms=300_000,
            former_member_id=None,
        ),
        StateChanged(at + 5, *common, "Empty", "PreparingRebalance", 5, (), (), until_ms=joined),
        ProtocolChosen(joined, *delayed, protocol="range", before=None, votes={"range": 1}),
        StateChanged(
            joined,
            *delayed,
            "PreparingRebalance",
            "CompletingRebalance",
            3_000,
            (),
            (),
            until_ms=joined + 300_000,
            leader=who,
        ),
        Assigned(
            synced,
            *from_leader,
            partitions=0,
            kept=0,
            moved=0,
            lost=0,
            moves=(),
            owned={member_id: 0},
            truncated=False,
            protocol="range",
        ),
        StateChanged(synced, *from_leader, "CompletingRebalance", "Stable", 11, (), (), until_ms=None),
        RebalanceCompleted(
            synced,
            "orders",
            1,
            Trigger.MEMBER_JOINED,
            who,
            "hello again",
            started_ms=at + 5,
            join_ms=3_000,
            assignment_ms=11,
            restarts=0,
            members=1,
            dropped=(),
            last_joined=who,
            joins=((who, 0),),
        ),
        AllSynced(synced, "orders", 1, Trigger.MEMBER_SYNCED, who, None, after_ms=0, last=who),
    ]


def test_those_who_did_not_rejoin_are_told(harness: Harness) -> None:
    alice, bob, carol = stable(harness, "alice", "bob", "carol", rebalance_timeout_ms=10_000)
    identities = {each: harness.group().members[each].identity for each in (alice, bob, carol)}
    harness.take_events()
    join(harness, join_request(alice, rebalance_timeout_ms=10_000, reason="new partitions"))
    issued = harness.ask(Shard.join, join_request(), context(ApiKey.JOIN_GROUP, "dave")).member_id
    harness.advance(9_999)
    harness.ask(Shard.heartbeat, heartbeat_request(bob, 2), HEARTBEAT)
    harness.advance(1)
    changed = [event for event in harness.events if isinstance(event, StateChanged)]
    assert [(event.to_state, event.waiting_for, event.pending_member_ids) for event in changed] == [
        ("PreparingRebalance", (identities[bob], identities[carol]), ()),
        ("CompletingRebalance", (identities[bob], identities[carol]), (issued,)),
    ]
    removed = [event for event in harness.events if isinstance(event, MemberRemoved)]
    assert [(event.member, event.trigger, event.silent_ms, event.connected) for event in removed] == [
        (identities[bob], Trigger.REBALANCE_TIMED_OUT, 1, True),
        (identities[carol], Trigger.REBALANCE_TIMED_OUT, 10_000, True),
    ]
    harness.advance(20)
    harness.ask(Shard.sync, sync_request(alice, 3), SYNC)
    [completed] = [event for event in harness.events if isinstance(event, RebalanceCompleted)]
    assert completed.trigger == Trigger.LEADER_REJOINED
    assert completed.reason == "new partitions"
    assert completed.dropped == (identities[bob], identities[carol])
    assert completed.last_joined == identities[alice]
    assert (completed.join_ms, completed.assignment_ms, completed.members) == (10_000, 20, 1)


def test_a_rebalance_that_empties_the_group_waited_for_joins_and_a_leader(harness: Harness) -> None:
    alice, bob = stable(harness, "alice", "bob", rebalance_timeout_ms=10_000)
    join(harness, join_request(alice, rebalance_timeout_ms=10_000))
    harness.take_events()
    harness.advance(1_000)
    harness.ask(Shard.leave, leave_request(bob), context(ApiKey.LEAVE_GROUP))
    harness.advance(2_000)
    harness.ask(Shard.leave, leave_request(alice), context(ApiKey.LEAVE_GROUP))
    [completed] = [event for event in harness.events if isinstance(event, RebalanceCompleted)]
    assert (completed.join_ms, completed.assignment_ms, completed.restarts) == (1_000, 2_000, 1)
    assert completed.members == 0
    assert completed.trigger == Trigger.MEMBER_LEFT


def test_a_generation_without_an_assignment_counts_as_waiting_for_the_leader(harness: Harness) -> None:
    alice, bob = stable(harness, "alice", "bob", rebalance_timeout_ms=10_000)
    harness.take_events()
    join(harness, join_request(alice, rebalance_timeout_ms=10_000))
    harness.advance(1_000)
    join(harness, join_request(bob, rebalance_timeout_ms=10_000), "bob")
    harness.advance(6_000)
    harness.ask(Shard.leave, leave_request(alice), context(ApiKey.LEAVE_GROUP))
    harness.advance(500)
    join(harness, join_request(bob, rebalance_timeout_ms=10_000), "bob")
    harness.advance(20)
    harness.ask(Shard.sync, sync_request(bob, 4), SYNC)
    [completed] = [event for event in harness.events if isinstance(event, RebalanceCompleted)]
    assert (completed.join_ms, completed.assignment_ms, completed.restarts) == (1_500, 6_020, 1)
    leaders = [event.leader for event in harness.events if isinstance(event, StateChanged)]
    assert [None if each is None else each.member_id for each in leaders] == [None, alice, None, bob, None]


def test_the_next_rebalance_is_told_afresh(harness: Harness) -> None:
    alice, bob = stable(harness, "alice", "bob", rebalance_timeout_ms=10_000)
    harness.advance(100)
    harness.take_events()
    join(harness, join_request(alice, rebalance_timeout_ms=10_000))
    join(harness, join_request(bob, rebalance_timeout_ms=10_000), "bob")
    harness.ask(Shard.sync, sync_request(alice, 3), SYNC)
    [completed] = [event for event in harness.events if isinstance(event, RebalanceCompleted)]
    assert (completed.started_ms, completed.restarts, completed.dropped) == (START_MS + 100, 0, ())


@pytest.mark.parametrize(
    ("changed", "leader", "trigger"),
    [
        (False, True, Trigger.LEADER_REJOINED),
        (True, True, Trigger.METADATA_CHANGED),
        (True, False, Trigger.METADATA_CHANGED),
    ],
)
def test_why_a_known_member_makes_a_stable_group_rebalance(
    harness: Harness, changed: bool, leader: bool, trigger: Trigger
) -> None:
    alice, bob = stable(harness, "alice", "bob")
    harness.take_events()
    protocols = [("range", subscription("orders", "clicks") if changed else subscription("orders"))]
    join(harness, join_request(alice if leader else bob, protocols=protocols))
    told = harness.take_events()
    assert [type(event) for event in told] == [MetadataChanged] * changed + [StateChanged]
    assert {event.trigger for event in told} == {trigger}
    join(harness, join_request(bob if leader else alice, protocols=protocols))
    told = harness.take_events()
    assert [type(event) for event in told] == [MetadataChanged] * changed + [MemberRejoined, StateChanged]
    assert [event.trigger for event in told[-2:]] == [Trigger.MEMBER_REJOINED, Trigger.ALL_JOINED]


def test_a_change_before_the_assignment_is_told(harness: Harness) -> None:
    alice = harness.answers[join(harness, join_request())].member_id
    harness.take_events()
    join(harness, join_request(alice, protocols=[("range", subscription("clicks"))]))
    told = [(type(event), event.trigger) for event in harness.take_events()]
    assert told == [
        (MetadataChanged, Trigger.METADATA_CHANGED),
        (StateChanged, Trigger.METADATA_CHANGED),
        (StateChanged, Trigger.ALL_JOINED),
    ]


@pytest.mark.parametrize("synced", [False, True])
def test_a_join_that_only_repeats_the_answer_is_a_sign_of_life_for_the_journal(
    harness: Harness, synced: bool
) -> None:
    """As in Kafka, it does not extend the session; the member's silence counts from it."""
    tickets = [join(harness, join_request(session_timeout_ms=10_000), client) for client in ("alice", "bob")]
    alice = harness.answers[tickets[0]].member_id
    join(harness, join_request(alice, session_timeout_ms=60_000))
    bob = harness.answers[tickets[1]].member_id
    if synced:
        harness.ask(Shard.sync, sync_request(alice, 2), SYNC)
    harness.advance(4_000)
    join(harness, join_request(bob, session_timeout_ms=10_000), "bob")
    harness.advance(6_000)
    [removed] = [event for event in harness.events if isinstance(event, MemberRemoved)]
    assert removed.member is not None
    assert (removed.member.member_id, removed.silent_ms) == (bob, 6_000)


def test_a_static_member_from_another_host_is_told(harness: Harness) -> None:
    first = RequestContext(9, "shop", "/10.0.0.1", 1)
    second = RequestContext(9, "shop", "/10.0.0.2", 2)
    old = harness.ask(Shard.join, join_request(instance_id="s"), first).member_id
    harness.ask(Shard.sync, sync_request(old, 1), SYNC)
    harness.take_events()
    harness.advance(700)
    new = harness.ask(Shard.join, join_request(instance_id="s", reason="restarted"), second).member_id
    [event] = harness.take_events()
    assert event == MemberReplaced(
        START_MS + 700,
        "orders",
        1,
        Trigger.STATIC_MEMBER_REPLACED,
        MemberIdentity(new, "shop", "/10.0.0.2", "s"),
        "restarted",
        old_member_id=old,
        old_client_host="/10.0.0.1",
        old_silent_ms=700,
        old_connected=True,
    )
    # As in Kafka, the group keeps the client id and host of the first process. Events show the new ones.
    assert harness.group().members[new].client_host == "/10.0.0.1"
    harness.disconnect(2)
    third = RequestContext(9, "shop", "/10.0.0.3", 3)
    harness.ask(Shard.join, join_request(instance_id="s"), third)
    replaced = harness.take_events()[-1]
    assert isinstance(replaced, MemberReplaced)
    assert (replaced.old_client_host, replaced.old_connected) == ("/10.0.0.2", False)


def test_pending_members_are_told_with_how_long_they_were_waited_for(harness: Harness) -> None:
    member_id = harness.ask(Shard.join, join_request(), context(ApiKey.JOIN_GROUP)).member_id
    harness.advance(1_234)
    harness.ask(Shard.leave, leave_request(member_id), context(ApiKey.LEAVE_GROUP))
    event = harness.take_events()[-1]
    assert isinstance(event, PendingMemberRemoved)
    assert (event.waited_ms, event.trigger) == (1_234, Trigger.MEMBER_LEFT)


# --- timers -------------------------------------------------------------------------------------------------


def test_deadlines_are_where_they_should_be() -> None:
    harness = Harness(GroupConfig(group_initial_rebalance_delay_ms=1_000))
    sweep = harness.shard.next_deadline()
    assert sweep == START_MS + 600_000
    group_timers = harness.shard.deadlines
    ticket = join(harness, join_request(session_timeout_ms=10_000, rebalance_timeout_ms=60_000))
    group = harness.group()
    [alice] = group.members
    assert group_timers.get(group.join_timer) == START_MS + 1_000
    assert group_timers.get(group.session_timer(alice)) == START_MS + 300_000
    harness.advance(1_000)
    assert harness.answers[ticket].generation_id == 1
    assert group_timers.get(group.session_timer(alice)) == START_MS + 11_000
    assert group_timers.get(group.sync_timer) == START_MS + 61_000
    harness.advance(10)
    harness.ask(Shard.sync, sync_request(alice, 1), SYNC)
    assert group_timers.get(group.sync_timer) is None
    assert group_timers.get(group.session_timer(alice)) == START_MS + 11_010
    harness.advance(10)
    harness.ask(Shard.heartbeat, heartbeat_request(alice, 1), HEARTBEAT)
    assert group_timers.get(group.session_timer(alice)) == START_MS + 11_020
    # A SyncGroup in Stable is not a heartbeat, as in Kafka.
    harness.advance(10)
    harness.ask(Shard.sync, sync_request(alice, 1), SYNC)
    assert group_timers.get(group.session_timer(alice)) == START_MS + 11_020
    harness.unload()
    assert harness.shard.next_deadline() is None


def test_who_waited_in_sync_in_vain_has_a_session_again(harness: Harness) -> None:
    tickets = [join(harness, join_request(session_timeout_ms=10_000), client) for client in ("alice", "bob")]
    alice = harness.answers[tickets[0]].member_id
    join(harness, join_request(alice, session_timeout_ms=60_000))
    bob = harness.answers[tickets[1]].member_id
    waiting = harness.send(Shard.sync, sync_request(bob, 2), SYNC)
    harness.advance(30_000)
    join(harness, join_request(), "carol")
    assert code_of(harness.answers[waiting]) == ErrorCode.REBALANCE_IN_PROGRESS
    group = harness.group()
    assert harness.shard.deadlines.get(group.session_timer(bob)) == START_MS + 40_000


def test_the_last_wait_of_the_initial_delay_is_what_is_left() -> None:
    harness = Harness(GroupConfig())
    first = join(harness, join_request(rebalance_timeout_ms=6_001))
    for _ in range(2):
        harness.advance(2_999)
        join(harness, join_request(rebalance_timeout_ms=6_001))
        harness.advance(1)
    join(harness, join_request(rebalance_timeout_ms=6_001))
    assert harness.shard.next_deadline() == START_MS + 6_001
    assert first not in harness.answers
    harness.advance(1)
    assert len(harness.answers[first].members) == 4


@pytest.mark.parametrize(("returns_after_ms", "members"), [(19, 2), (None, 1)])
def test_who_was_just_given_an_id_holds_up_the_first_generation(
    returns_after_ms: int | None, members: int
) -> None:
    harness = Harness(GroupConfig(group_initial_rebalance_delay_ms=1, newcomers_return_within_ms=20))
    asked = context(ApiKey.JOIN_GROUP, "bob")
    bob = harness.ask(Shard.join, join_request(), asked).member_id
    first = join(harness, join_request())
    if returns_after_ms is not None:
        harness.advance(returns_after_ms)
        assert first not in harness.answers
        harness.send(Shard.join, join_request(bob), asked)
        harness.advance(2)  # one in which bob joined, and one in which nobody does
    else:
        harness.advance(19)
        assert first not in harness.answers
        harness.advance(1)
    assert len(harness.answers[first].members) == members


def test_nobody_to_lead_is_waited_for_a_second_at_least(harness: Harness) -> None:
    leader, _ = stable(harness, "leader", instance_id="l"), None
    [member_id] = leader
    harness.group().members[member_id].rebalance_timeout_ms = 0
    ticket = harness.send(
        Shard.join,
        join_request(member_id, instance_id="l", rebalance_timeout_ms=0),
        context(ApiKey.JOIN_GROUP),
    )
    assert ticket in harness.answers  # alone, it is everybody
    harness.advance(1)
    assert harness.group().state is GroupState.EMPTY  # and nobody waits for its SyncGroup


@pytest.mark.parametrize(("size_max", "state"), [(2, GroupState.STABLE), (1, GroupState.PREPARING_REBALANCE)])
def test_a_group_is_loaded_as_it_was_unless_it_is_too_large(
    harness: Harness, size_max: int, state: GroupState
) -> None:
    stable(harness, "alice", "bob")
    harness.reload(GroupConfig(group_max_size=size_max))
    assert harness.group().state is state


# --- copies -------------------------------------------------------------------------------------------------


@pytest.mark.interpreted
def test_a_shard_is_copied_whole(harness: Harness) -> None:
    alice, _ = stable(harness, "alice", "bob")
    twin = copy.deepcopy(harness.shard)
    harness.ask(Shard.leave, leave_request(alice), context(ApiKey.LEAVE_GROUP))
    assert [group.state for group in twin.groups.values()] == [GroupState.STABLE]
    assert twin.durable() == harness.shard.durable()
    step = Step(START_MS, context(ApiKey.LEAVE_GROUP), 99)
    twin.leave(leave_request(alice), step)
    assert [group.state for group in twin.groups.values()] == [GroupState.PREPARING_REBALANCE]
    assert len(step.replies) == 1
