"""From what a member says to what it has: subscription, epoch, target, reconciliation, in this order.

Heartbeats of the consumer protocol and JoinGroups of the classic one both end here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from muster.coordinator.base.step import Step
from muster.coordinator.group.consumer import records, targets, telling
from muster.coordinator.group.consumer.assignors.assignor import Assignment
from muster.coordinator.group.consumer.group import ConsumerGroup, identity
from muster.coordinator.group.consumer.member import ConsumerMember
from muster.coordinator.group.consumer.reconcile import Reconciler
from muster.coordinator.group.consumer.regexes import REFRESH_MIN_MS, Look
from muster.coordinator.group.consumer.state import (
    MemberState,
    ResolvedRegex,
    Subscription,
)
from muster.coordinator.group.events import Cause, Trigger

NOBODY_SAID: Final = Subscription()


def advance(
    group: ConsumerGroup,
    member: ConsumerMember,
    said: Subscription,
    owned: Assignment | None,
    cause: Cause,
    step: Step,
) -> None:
    """Run all of these steps."""
    changed = say(group, member, said, cause, step)
    if group.state.epoch > group.state.assignment_epoch:
        make_target(group, member, cause, step)
    reconcile(group, member, owned, step, subscription_changed=changed)


def say(group: ConsumerGroup, member: ConsumerMember, said: Subscription, cause: Cause, step: Step) -> bool:
    """Adopt what a member says about itself, and give the group a new epoch if that matters. Returns whether
    the member's subscription has changed."""
    member_id, group_id = member.member_id, group.group_id
    before = group.state.subscriptions.get(member_id, NOBODY_SAID)
    assignor = group.assignor
    if said != before or member_id not in group.state.subscriptions:
        if member_id in group.state.subscriptions:
            telling.metadata(group, member, before, said, step)
        group.emit(records.subscription(group_id, member_id, said), step)
        member.identity = identity(member_id, said)
    topics_changed = before.topics != said.topics
    regex_changed, resolved = _say_regex(group, before.regex, said.regex, step)
    trigger: Trigger | None = None
    if topics_changed or resolved:
        trigger = Trigger.METADATA_CHANGED
    elif group.assignor != assignor:
        trigger = Trigger.ASSIGNOR_CHANGED
    if trigger is not None or group.is_stale or group.owed is not None:
        _renew_epoch(group, trigger, cause, step)
    return topics_changed or regex_changed


def _renew_epoch(group: ConsumerGroup, trigger: Trigger | None, cause: Cause, step: Step) -> None:
    """Begin a new epoch: for `trigger`, because subscribed topics have changed, or because one is owed."""
    state = group.state
    metadata_hash = targets.metadata_hash(state.subscribed_topics(), group.topics)
    group.is_stale = False
    if trigger is None:
        if metadata_hash != state.metadata_hash:
            cause = Cause(Trigger.TOPICS_CHANGED)
        elif group.owed is not None:
            cause = group.owed
        else:
            return
    elif cause.trigger in (Trigger.HEARTBEAT, Trigger.MEMBER_REJOINED):
        cause = cause._replace(trigger=trigger)
    group.bump(cause, metadata_hash, step)


def has_other_topics(group: ConsumerGroup) -> bool:
    """Whether subscribed topics have changed since the last epoch began. Writes nothing."""
    if not group.is_stale:
        return False
    state = group.state
    group.is_stale = targets.metadata_hash(state.subscribed_topics(), group.topics) != state.metadata_hash
    return group.is_stale


def make_target(group: ConsumerGroup, member: ConsumerMember, cause: Cause, step: Step) -> None:
    """Make a new target, unless the last one is too young: then a later heartbeat makes it. `member` is the
    sender, which may be joining."""
    state, group_id = group.state, group.group_id
    interval_ms = group.configs.of(group_id).consumer_assignment_interval_ms
    if state.assigned_at_ms and _is_young(state.assigned_at_ms, interval_ms - 1, step.now_ms):
        return
    before, assignor = {**group.departed, **state.targets}, group.assignor
    group.departed.clear()
    replaces = cause.trigger is Trigger.STATIC_MEMBER_REPLACED
    newcomer = member.member_id if replaces or cause.trigger is Trigger.MEMBER_JOINED else None
    made = targets.make(state, assignor, group.topics, newcomer, replaces=replaces)
    for member_id, assignment in made.items():
        if member_id not in state.targets or state.targets[member_id] != assignment:
            group.emit(records.target(group_id, member_id, assignment), step)
    group.emit(records.target_epoch(group_id, state.epoch, step.now_ms), step)
    if group.course is not None:
        group.course.target_ms = step.now_ms
    step.events.append(telling.target(group, before, assignor, step))


def _is_young(at_ms: int, age_max_ms: int, now_ms: int) -> bool:
    """Whether something that was stored is no older than that. A time in the future does not count: another
    broker's clock was ahead of this one's."""
    return 0 <= now_ms - at_ms <= age_max_ms


def reconcile(
    group: ConsumerGroup,
    member: ConsumerMember,
    owned: Assignment | None,
    step: Step,
    *,
    subscription_changed: bool = False,
) -> None:
    """Take the member's next step towards its target."""
    state, member_id = group.state, member.member_id
    has = group.current(member_id)
    settled = has.state is MemberState.STABLE and has.epoch == state.assignment_epoch
    if settled and not subscription_changed:
        return
    has_then = Reconciler(
        target=state.target(member_id),
        target_epoch=state.assignment_epoch,
        subscribed=group.subscribed_ids(member_id),
        owner_epoch=state.owner_epoch,
        owned=owned,
        subscription_changed=subscription_changed,
        subscribes=bool(state.topics_of(group.subscription(member_id))),
    ).step(has)
    if has_then != has:
        group.put_current(member_id, has_then, step)
        telling.progress(group, member, has, has_then, step)


# --- regular expressions ------------------------------------------------------------------------------------


def _say_regex(group: ConsumerGroup, before: str, after: str, step: Step) -> tuple[bool, bool]:
    """Called after the member's record was written. Returns whether its regular expression has changed, and
    whether the new one is resolved already, or there is none."""
    state = group.state
    changed, resolved, wanted = before != after, False, False
    had_regexes = bool(state.regex_users) or bool(before)
    # One that goes now still counts, as in Kafka: else members that keep changing theirs could cause any
    # number of look-ups.
    last_ms = max((each.at_ms for each in state.regexes.values()), default=None)
    if changed:
        if before and before not in state.regex_users:
            group.emit(records.regex_tombstone(group.group_id, before), step)
        if after:
            resolved = after in state.regexes
            wanted = state.regex_users[after] == 1
        else:
            resolved = bool(before)
    if wanted or had_regexes:
        _look_up(group, wanted, last_ms, step)
    return changed, resolved


def _look_up(group: ConsumerGroup, wanted: bool, last_ms: int | None, step: Step) -> None:
    """Have the topics of the group's regular expressions looked up, if due. `last_ms` is when they last
    were."""
    state = group.state
    if group.looking_up or not state.regex_users:
        return
    if last_ms is not None and _is_young(last_ms, REFRESH_MIN_MS, step.now_ms):
        return
    refresh_ms = group.config.group_consumer_regex_refresh_interval_ms
    due = (
        wanted
        or len(state.regexes) != len(state.regex_users)
        or group.looked_in < group.topics.added
        or (last_ms is not None and step.now_ms > last_ms + refresh_ms)
    )
    if due:
        group.looking_up = True
        sees = group.configs.sees
        step.jobs.append(
            Look(
                group.group_id,
                frozenset(state.regex_users),
                tuple(group.topics.ids),
                group.topics.version,
                step.now_ms,
                None if sees is None else sees(step.context),
            )
        )


def resolved(
    group: ConsumerGroup, look: Look, found: Mapping[str, frozenset[str]], cause: Cause, step: Step
) -> None:
    """Adopt what was found, with a new epoch if it differs from before."""
    state, group_id = group.state, group.group_id
    bump = False
    for regex, topics in found.items():
        if regex not in state.regex_users:
            continue
        known = state.regexes.get(regex)
        bump |= topics != (frozenset() if known is None else known.topics)
        group.emit(records.regex(group_id, regex, ResolvedRegex(topics, look.version, look.at_ms)), step)
        bump |= known is None and not topics and _is_to_have_others(group, regex)
    group.looked_in = look.version
    metadata_hash = targets.metadata_hash(state.subscribed_topics(), group.topics)
    if bump or metadata_hash != state.metadata_hash:
        group.bump(cause if bump else Cause(Trigger.TOPICS_CHANGED), metadata_hash, step)
    group.settle(cause, step)


def _is_to_have_others(group: ConsumerGroup, regex: str) -> bool:
    """Whether the target of a member with this regular expression still has topics of its previous
    subscription: nobody would have those partitions, since it has given them up."""
    state = group.state
    return any(
        said.regex == regex and not state.target(member_id).keys() <= group.subscribed_ids(member_id)
        for member_id, said in state.subscriptions.items()
    )
