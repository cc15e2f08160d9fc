"""The group's own rules: states, members, protocols, leadership."""

from __future__ import annotations

import itertools

import pytest

from muster.coordinator.base.deadlines import Deadlines
from muster.coordinator.base.step import BrokenInvariant, Step
from muster.coordinator.group.classic.group import ClassicGroup, Rebalance
from muster.coordinator.group.classic.states import TRANSITIONS, GroupState
from muster.coordinator.group.config import GroupConfig, GroupConfigs
from muster.coordinator.group.connections import Connections, Former
from muster.coordinator.group.events import Cause, MemberIdentity, StateChanged, Trigger
from muster.coordinator.group.group import PendingMember
from muster.coordinator.group.hard_state import HardState
from muster.coordinator.group.rate_limiters import RateLimiters
from muster.coordinator.group.shared import Shared
from muster.coordinator.group.timers import TimerKey
from muster.coordinator.group.topics import Topics
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.classic_group import JoinGroupResponse
from tests.group.requests import TOO_MANY, member, subscription
from tests.support.each import each

CAUSE = Cause(Trigger.MEMBER_LEFT, MemberIdentity("alice-1", "alice", "/10.0.0.1"), "bye")
EMPTY, PREPARING, COMPLETING, STABLE, DEAD = GroupState


def new_group() -> ClassicGroup:
    config = GroupConfig()
    deadlines: Deadlines[TimerKey] = Deadlines()
    shared = Shared(
        config, GroupConfigs(config), HardState(), deadlines, Connections(), Topics(), RateLimiters()
    )
    return ClassicGroup("orders", shared, 1000)


@pytest.fixture
def group() -> ClassicGroup:
    return new_group()


def test_no_phase_is_negative_if_the_clock_is_set_back() -> None:
    rebalance = Rebalance(CAUSE, 5_000, 5_000)
    rebalance.end_join(5_100)
    rebalance.end_assignment(2_000)
    rebalance.end_join(1_000)
    rebalance.end_assignment(1_030)
    assert (rebalance.join_ms, rebalance.assignment_ms) == (100, 30)


# --- states -------------------------------------------------------------------------------------------------


def test_states_are_spelt_as_kafka_spells_them() -> None:
    assert [str(state) for state in GroupState] == [
        "Empty",
        "PreparingRebalance",
        "CompletingRebalance",
        "Stable",
        "Dead",
    ]


@each("before, after", itertools.product(GroupState, GroupState))
def test_transitions(before: GroupState, after: GroupState) -> None:
    group = new_group()
    group.state = before
    step = Step(1500)
    if (before, after) in TRANSITIONS:
        group.become(after, CAUSE, step, until_ms=9000)
        assert (group.state, group.state_timestamp) == (after, 1500)
        assert step.events == [
            StateChanged(
                1500,
                "orders",
                0,
                *CAUSE,
                before,
                after,
                500,
                waiting_for=(),
                pending_member_ids=(),
                until_ms=9000,
            )
        ]
    else:
        with pytest.raises(BrokenInvariant, match=f"{before} .* cannot become {after}"):
            group.become(after, CAUSE, step)
        assert group.state is before
        assert step.events == []


def test_a_phase_that_began_at_an_unknown_time_has_no_length(group: ClassicGroup) -> None:
    group.state_timestamp = -1
    step = Step(1500)
    group.become(PREPARING, CAUSE, step)
    [event] = step.events
    assert isinstance(event, StateChanged)
    assert event.phase_ms == 0


def test_a_phase_that_began_by_a_clock_ahead_of_ours_has_no_length(group: ClassicGroup) -> None:
    group.state_timestamp = 2_000  # as stored by the previous coordinator
    step = Step(1500)
    group.become(PREPARING, CAUSE, step)
    [event] = step.events
    assert isinstance(event, StateChanged)
    assert event.phase_ms == 0


def test_only_the_dead_are_not_alive(group: ClassicGroup) -> None:
    for state in (EMPTY, PREPARING, COMPLETING, STABLE):
        group.state = state
        assert group.alive() is group
    group.state = DEAD
    with pytest.raises(KafkaError) as refusal:
        group.alive()
    assert refusal.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_an_admin_does_not_find_the_dead(group: ClassicGroup) -> None:
    group.state = DEAD
    with pytest.raises(KafkaError) as refusal:
        group.validate_delete()
    assert (refusal.value.code, refusal.value.why) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        "Group orders not found.",
    )


def test_repr(group: ClassicGroup) -> None:
    alice, bob = member("alice-1"), member("bob-1")
    group.add(alice)
    group.add(bob)
    assert repr(group) == "<ClassicGroup orders Empty generation=0 members=2 parked=0>"
    group.park_join(alice, Step(2000, ticket=1))
    group.park_sync(bob, Step(1500, ticket=2))
    group.generation_id = 7
    group.state = STABLE
    assert repr(group) == "<ClassicGroup orders Stable generation=7 members=2 parked=2>"


# --- members ------------------------------------------------------------------------------------------------


def test_the_first_member_leads_and_another_follows_it_when_it_goes(group: ClassicGroup) -> None:
    alice, bob, carol = member("alice-1"), member("bob-1"), member("carol-1")
    for joining in (alice, bob, carol):
        group.add(joining)
    assert group.leader == "alice-1"
    group.remove(bob, 2000)
    assert group.leader == "alice-1"
    group.remove(alice, 2000)
    assert group.leader == "carol-1"
    group.remove(carol, 2000)
    assert group.leader is None
    group.add(bob)
    assert group.leader == "bob-1"


def test_an_instance_id_has_one_member(group: ClassicGroup) -> None:
    shop = member("store-1-1", instance_id="store-1")
    group.add(shop)
    assert group.static_members == {"store-1": "store-1-1"}
    with pytest.raises(BrokenInvariant, match="has instance 'store-1' already"):
        group.add(member("store-1-2", instance_id="store-1"))
    group.remove(shop, 2000)
    assert group.static_members == {}


def test_a_member_that_waits_is_not_removed_unanswered(group: ClassicGroup) -> None:
    alice = member()
    group.add(alice)
    group.park_join(alice, Step(2000, ticket=1))
    with pytest.raises(BrokenInvariant, match="never be answered"):
        group.remove(alice, 2000)
    alice.parked_join, alice.parked_sync = None, 2
    with pytest.raises(BrokenInvariant, match="never be answered"):
        group.remove(alice, 2000)
    assert group.members == {"alice-1": alice}


def test_removing_a_member_forgets_all_about_it(group: ClassicGroup) -> None:
    alice, bob = member("alice-1", protocols=[("range", b""), ("sticky", b"")]), member("bob-1")
    group.add(alice)
    group.add(bob)
    group.connections.heard("orders", alice, 5)
    group.restart_session(alice, 1000)
    group.pending_syncs = {"alice-1", "bob-1"}
    group.remove(alice, 2000)
    assert group.members == {"bob-1": bob}
    assert group.pending_syncs == {"bob-1"}
    assert group.session_timer("alice-1") not in group.deadlines
    assert group.connections.closed(5) == ([], [Former("orders", alice.identity, 0, 2000)])
    group.state = STABLE
    group.protocol_type = "consumer"
    assert not group.supports("consumer", ["sticky"])


def test_replacing_keeps_the_place(group: ClassicGroup) -> None:
    leader, shop, other = member("l-1", instance_id="l"), member("s-1", instance_id="s"), member("o-1")
    for joining in (leader, shop, other):
        group.add(joining)
        joining.is_new = True
        group.restart_session(joining, 0)
    group.pending_syncs = {"s-1", "o-1"}
    group.replace(shop, shop.identity._replace(member_id="s-2", client_host="/10.0.0.9"))
    assert list(group.members) == ["l-1", "s-2", "o-1"]
    assert group.members["s-2"] is shop
    assert shop.member_id == "s-2"
    assert shop.identity == ("s-2", "s", "/10.0.0.9", "s")
    assert shop.client_host == "/10.0.0.1", "Kafka goes on describing the first one"
    assert not shop.is_new
    assert group.static_members == {"l": "l-1", "s": "s-2"}
    assert group.pending_syncs == {"s-2", "o-1"}
    assert group.leader == "l-1"
    assert group.session_timer("s-1") not in group.deadlines
    group.replace(leader, leader.identity._replace(member_id="l-2"))
    assert group.leader == "l-2"
    assert group.pending_syncs == {"s-2", "o-1"}


def test_only_a_static_member_of_the_group_is_replaced(group: ClassicGroup) -> None:
    alice = member()
    group.add(alice)
    with pytest.raises(BrokenInvariant, match="cannot replace"):
        group.replace(alice, alice.identity)
    with pytest.raises(BrokenInvariant, match="cannot replace"):
        group.replace(other := member("s-1", instance_id="s"), other.identity)
    assert list(group.members) == ["alice-1"]


def test_updating_a_member(group: ClassicGroup) -> None:
    alice = member(protocols=[("range", b"1")])
    group.add(alice)
    group.state, group.protocol_type = STABLE, "consumer"
    group.update(alice, (("sticky", b"2"),), 60_000, 10_000)
    assert alice.protocols == (("sticky", b"2"),)
    assert (alice.rebalance_timeout_ms, alice.session_timeout_ms) == (60_000, 10_000)
    assert group.supports("consumer", ["sticky"])
    assert not group.supports("consumer", ["range"])
    assert "range" not in group._supporters, "names that nobody offers any more would gather for ever"


def test_validating_a_member(group: ClassicGroup) -> None:
    alice, shop = member("alice-1"), member("shop-1", instance_id="s")
    group.add(alice)
    group.add(shop)
    assert group.validate("alice-1", None) is alice
    assert group.validate("shop-1", "s") is shop
    assert group.validate("shop-1", None) is shop
    for member_id, instance_id, code in (
        ("bob-1", None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("alice-1", "nobody", ErrorCode.UNKNOWN_MEMBER_ID),
        ("alice-1", "s", ErrorCode.FENCED_INSTANCE_ID),
        ("bob-1", "s", ErrorCode.FENCED_INSTANCE_ID),
    ):
        with pytest.raises(KafkaError) as refusal:
            group.validate(member_id, instance_id)
        assert refusal.value.code == code


def test_everybody_has_joined_when_all_wait_and_nobody_is_pending(group: ClassicGroup) -> None:
    alice = member()
    assert group.all_joined
    group.add(alice)
    assert not group.all_joined
    step = Step(2000, ticket=1)
    group.park_join(alice, step)
    assert group.all_joined
    group.pending_members["bob-1"] = PendingMember(MemberIdentity("bob-1", "bob", "/10.0.0.1"), 0)
    assert not group.all_joined
    group.add(member("bob-1"))
    assert group.pending_members == {}
    assert not group.all_joined


def test_a_join_that_is_asked_again_is_answered_once(group: ClassicGroup) -> None:
    alice = member()
    group.add(alice)
    step = Step(2000, ticket=1)
    group.park_join(alice, step)
    assert step.replies == []
    step.ticket = 2
    group.park_join(alice, step)
    [(ticket, refusal)] = step.replies
    assert ticket == 1
    assert isinstance(refusal, JoinGroupResponse)
    assert refusal.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert group.joins_parked == 1
    assert alice.parked_join == 2
    assert group.last_joins == ((alice.identity, 2000),)
    group.answer_join(alice, refusal, step)
    group.answer_join(alice, refusal, step)
    assert step.replies[1:] == [(2, refusal)]
    assert group.joins_parked == 0


def test_a_refused_join_names_no_protocol_and_the_member(group: ClassicGroup) -> None:
    alice = member()
    group.add(alice)
    step = Step(1500)
    group.refuse_join(alice, ErrorCode.NOT_COORDINATOR, step)
    assert step.replies == []
    for member_id, told in ((None, "alice-1"), ("", ""), ("other", "other")):
        step = Step(1500)
        step.ticket = 1
        group.park_join(alice, step)
        group.refuse_join(alice, ErrorCode.NOT_COORDINATOR, step, member_id=member_id)
        [(ticket, refusal)] = step.replies
        assert ticket == 1
        assert refusal == JoinGroupResponse(
            error_code=ErrorCode.NOT_COORDINATOR,
            generation_id=-1,
            protocol_type=None,
            protocol_name=None,
            leader="",
            skip_assignment=False,
            member_id=told,
            members=[],
        )


def test_a_sync_that_is_asked_again_is_answered_once(group: ClassicGroup) -> None:
    alice = member()
    step = Step(1500)
    refusal = KafkaError(ErrorCode.NOT_COORDINATOR, "")
    assert not group.answer_sync(alice, refusal, step)
    step.ticket = 1
    group.park_sync(alice, step)
    step.ticket = 2
    group.park_sync(alice, step)
    [(ticket, superseded)] = step.replies
    assert ticket == 1
    assert isinstance(superseded, KafkaError)
    assert superseded.code == ErrorCode.REBALANCE_IN_PROGRESS
    assert group.answer_sync(alice, refusal, step)
    assert step.replies[1:] == [(2, refusal)]
    assert alice.parked_sync is None


# --- protocols ----------------------------------------------------------------------------------------------


def test_an_empty_group_takes_any_protocol_of_any_type(group: ClassicGroup) -> None:
    assert group.supports("consumer", ["range"])
    assert not group.supports("", ["range"])
    assert not group.supports("consumer", [])


def test_other_groups_take_what_all_members_offer(group: ClassicGroup) -> None:
    group.add(member("alice-1", protocols=[("range", b""), ("sticky", b"")]))
    group.add(member("bob-1", protocols=[("range", b""), ("copy", b"")]))
    group.state, group.protocol_type = PREPARING, "consumer"
    assert group.supports("consumer", ["sticky", "range"])
    assert not group.supports("consumer", ["sticky", "copy"])
    assert not group.supports("connect", ["range"])
    assert not group.supports("consumer", [])


@pytest.mark.parametrize(
    ("offers", "chosen"),
    [
        (["range"], "range"),
        (["range,sticky"], "range"),
        (["range,sticky", "sticky,range", "sticky,range"], "sticky"),
        (["range,sticky", "sticky"], "sticky"),
        # A tie: Kafka takes them in hash table order, regardless of who came first.
        (["range,sticky", "sticky,range"], "sticky"),
        (["sticky,range", "range,sticky"], "sticky"),
        (["copy,range,sticky", "sticky,range", "range,copy,sticky"], "range"),
    ],
)
def test_the_vote(group: ClassicGroup, offers: list[str], chosen: str) -> None:
    for number, offer in enumerate(offers):
        group.add(member(f"m-{number}", protocols=[(name, b"") for name in offer.split(",")]))
    assert group.select_protocol(group.votes()) == chosen


def test_nobody_votes_in_a_group_without_members(group: ClassicGroup) -> None:
    with pytest.raises(BrokenInvariant, match="nobody to vote"):
        group.votes()


@pytest.mark.parametrize(
    ("protocol_type", "protocol_name", "metadata", "topics"),
    [
        (
            "consumer",
            "range",
            [subscription("orders", "clicks"), subscription("orders")],
            {"orders", "clicks"},
        ),
        ("consumer", "range", [subscription()], set()),
        ("consumer", "range", [], set()),
        ("consumer", None, [subscription("orders")], None),
        ("consumer", "range", [subscription("orders"), b"?"], None),
        ("consumer", "range", [TOO_MANY], None),
        ("connect", "range", [subscription("orders")], None),
        ("", None, [], None),
    ],
)
def test_subscriptions(
    group: ClassicGroup,
    protocol_type: str,
    protocol_name: str | None,
    metadata: list[bytes],
    topics: set[str] | None,
) -> None:
    group.protocol_type, group.protocol_name = protocol_type, protocol_name
    for number, blob in enumerate(metadata):
        group.add(member(f"m-{number}", protocols=[("range", blob)]))
    assert group.subscriptions() == topics
    group.subscribed_topics = group.subscriptions()
    for topic in ("orders", "payments"):
        assert group.is_subscribed(topic) == (
            protocol_type == "consumer" if topics is None else topic in topics
        )


def test_the_rebalance_waits_for_the_slowest(group: ClassicGroup) -> None:
    assert group.rebalance_timeout_ms == 0
    for number, timeout_ms in enumerate((10, 30, 20)):
        group.add(member(f"m-{number}", rebalance_timeout_ms=timeout_ms))
    assert group.rebalance_timeout_ms == 30
