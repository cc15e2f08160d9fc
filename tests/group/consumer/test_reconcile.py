"""One step of a member towards its target, rule by rule (KIP-848, "Reconciliation")."""

from __future__ import annotations

import uuid
from collections.abc import Collection

from muster.coordinator.group.consumer.assignors.assignor import Assignment
from muster.coordinator.group.consumer.reconcile import Reconciler
from muster.coordinator.group.consumer.state import NOBODY, Current, Held, MemberState

ORDERS, CLICKS = uuid.UUID(int=1), uuid.UUID(int=2)
STABLE, UNREVOKED, UNRELEASED = (
    MemberState.STABLE,
    MemberState.UNREVOKED_PARTITIONS,
    MemberState.UNRELEASED_PARTITIONS,
)


def parts(*orders: int) -> Assignment:
    return {ORDERS: frozenset(orders)} if orders else {}


def held(epoch: int, *orders: int) -> Held:
    return {ORDERS: dict.fromkeys(orders, epoch)} if orders else {}


def step(
    has: Current,
    target: Assignment,
    *,
    epoch: int = 5,
    owned: Assignment | None = None,
    taken: Collection[int] = (),
    subscribed: Collection[uuid.UUID] = (ORDERS, CLICKS),
    changed: bool = False,
) -> Current:
    """`taken`: partitions of ORDERS that somebody owns."""
    return Reconciler(
        target=target,
        target_epoch=epoch,
        subscribed=subscribed,
        owner_epoch=lambda topic_id, partition: 3 if topic_id == ORDERS and partition in taken else NOBODY,
        owned=owned,
        subscription_changed=changed,
    ).step(has)


def test_a_member_that_is_there_stays_there() -> None:
    has = Current(5, 4, STABLE, held(5, 0))
    assert step(has, parts(0, 1)) is has


def test_a_member_keeps_what_it_has_and_gets_what_is_free() -> None:
    then = step(Current(4, 3, STABLE, held(4, 0)), parts(0, 1), taken={0})
    assert then == Current(5, 4, STABLE, {ORDERS: {0: 4, 1: 5}}, {})


def test_what_others_hold_is_waited_for() -> None:
    then = step(Current(4, 3, STABLE, held(4, 0)), parts(0, 1, 2), taken={0, 2})
    assert then == Current(5, 4, UNRELEASED, {ORDERS: {0: 4, 1: 5}}, {})
    assert step(then, parts(0, 1, 2), taken={0, 1, 2}) == then._replace(previous_epoch=5)
    freed = step(then, parts(0, 1, 2), taken={0, 1})
    assert freed == Current(5, 5, STABLE, {ORDERS: {0: 4, 1: 5, 2: 5}}, {})


def test_a_partition_of_a_member_that_is_away_for_a_while_is_not_free() -> None:
    reconciler = Reconciler(
        target=parts(0), target_epoch=5, subscribed=[ORDERS], owner_epoch=lambda *_: -2, owned=None
    )
    assert reconciler.step(Current()).state is UNRELEASED


def test_a_member_gives_up_before_it_gets_anything() -> None:
    has = Current(4, 3, STABLE, held(4, 0, 1))
    assert step(has, parts(1, 2), owned=parts(0, 1)) == Current(4, 4, UNREVOKED, held(4, 1), held(4, 0))


def test_a_member_that_does_not_say_what_it_owns_may_own_it() -> None:
    has = Current(4, 3, STABLE, held(4, 0, 1))
    unrevoked = step(has, parts(1))
    assert unrevoked == Current(4, 4, UNREVOKED, held(4, 1), held(4, 0))
    assert step(unrevoked, parts(1)) is unrevoked


def test_what_a_member_owns_no_longer_is_not_asked_for() -> None:
    has = Current(4, 3, STABLE, held(4, 0, 1))
    assert step(has, parts(1, 2), owned=parts(1)) == Current(5, 4, STABLE, {ORDERS: {1: 4, 2: 5}}, {})


def test_an_acknowledged_revocation_leads_on() -> None:
    has = Current(4, 4, UNREVOKED, held(4, 1), held(4, 0))
    assert step(has, parts(1, 2), owned=parts(0, 1)) is has
    assert step(has, parts(1, 2), owned=parts(1), taken={0, 1}) == Current(
        5, 4, STABLE, {ORDERS: {1: 4, 2: 5}}, {}
    )


def test_an_acknowledged_revocation_may_lead_to_another() -> None:
    has = Current(4, 4, UNREVOKED, held(4, 1, 2), held(4, 0))
    then = step(has, parts(1), epoch=6, owned=parts(1, 2))
    assert then == Current(4, 4, UNREVOKED, held(4, 1), held(4, 2))


def test_what_a_member_was_to_give_up_may_be_its_own_again() -> None:
    """It is assigned again, in the new epoch: a member that does not know of this cannot commit for it."""
    has = Current(4, 4, UNREVOKED, held(4, 1), held(4, 0))
    then = step(has, parts(0, 1), epoch=6, owned=parts(1), taken={0, 1})
    assert then == Current(6, 4, STABLE, {ORDERS: {1: 4, 0: 6}}, {})


def test_topics_that_are_not_subscribed_to_are_no_target() -> None:
    target = {ORDERS: frozenset({0}), CLICKS: frozenset({0})}
    assert step(Current(), target, subscribed=[ORDERS]) == Current(5, 0, STABLE, held(5, 0), {})


def test_a_topic_that_is_given_up_goes_before_there_is_a_new_target() -> None:
    has = Current(5, 4, STABLE, {ORDERS: {0: 4}, CLICKS: {0: 5, 1: 5}})
    target = {ORDERS: frozenset({0}), CLICKS: frozenset({0, 1})}
    kept, gone = {ORDERS: {0: 4}}, {CLICKS: {0: 5, 1: 5}}
    assert step(has, target, subscribed=[ORDERS]) is has  # already reported and acknowledged
    assert step(has, target, subscribed=[ORDERS], changed=True) == Current(5, 5, UNREVOKED, kept, gone)
    owned = {CLICKS: frozenset({1})}
    assert step(has, target, subscribed=[ORDERS], changed=True, owned=owned).state is UNREVOKED
    assert step(has, target, subscribed=[ORDERS], changed=True, owned=parts(0)) == Current(
        5, 5, STABLE, kept, {}
    )
    assert step(has, target, changed=True) is has


def test_a_topic_that_is_given_up_while_revoking_is_to_be_given_up_too() -> None:
    has = Current(4, 4, UNREVOKED, {ORDERS: {0: 4}, CLICKS: {0: 4}}, {CLICKS: {1: 3}})
    then = step(has, parts(0), subscribed=[ORDERS], changed=True)
    assert then == Current(4, 4, UNREVOKED, {ORDERS: {0: 4}}, {CLICKS: {1: 3, 0: 4}})


def test_a_state_of_a_later_version_is_left() -> None:
    assert step(Current(5, 4, MemberState.UNKNOWN, held(5, 0)), parts(0)).state is STABLE
