"""The inference table: for each trigger, the rules that infer what was behind it.

A rule looks at one start of a rebalance and the entries before and after it, and returns a finding or None.
The most certain finding is the diagnosis, the others are alternatives; among equals, the order here decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from muster.coordinator.journal.explain import incidents, joining, leaving
from muster.coordinator.journal.explain.consumer import migration, reasons
from muster.coordinator.journal.explain.findings import Case, Finding, Rule, weigh
from muster.coordinator.journal.explain.names import duration
from muster.coordinator.journal.explain.vocabulary import Certainty, Diagnosis, Kind, Trigger

RULES: Final[Mapping[str, tuple[Rule, ...]]] = {
    Trigger.SESSION_EXPIRED: (
        leaving.crashed,
        leaving.stalled,
        leaving.never_came_along,
        joining.rolling_restart,
        leaving.static_and_closed,
        leaving.static_past_poll_deadline,
        leaving.vanished,
        leaving.expired_for_unknown_reasons,
        leaving.stalled_or_not,
    ),
    Trigger.MEMBER_LEFT: (
        leaving.removed_by_admin,
        leaving.said_poll_deadline,
        leaving.said_closing,
        leaving.left_and_closed,
        leaving.left_and_came_back,
        leaving.left_and_stays,
        leaving.just_left,
    ),
    Trigger.MEMBER_JOINED: (
        joining.rolling_restart,
        joining.came_back,
        joining.started_again,
        joining.coordinator_was_away,
        joining.new_member,
    ),
    Trigger.METADATA_CHANGED: (
        incidents.begun_anew,
        joining.subscription_changed,
        joining.assignor_changed,
        joining.topics_grown,
        joining.cooperative_follow_up,
        joining.other_metadata,
        joining.other_assignor,
    ),
    Trigger.LEADER_REJOINED: (
        incidents.begun_anew,
        joining.topics_grown,
        joining.cooperative_follow_up,
        joining.said_metadata,
        joining.leader_rejoined,
    ),
    Trigger.STATIC_MEMBER_REPLACED: (
        joining.duplicate_instance,
        joining.rolling_restart,
        joining.static_replaced,
    ),
    Trigger.SYNC_TIMED_OUT: (
        leaving.sync_timed_out,
        leaving.stayed_away,
        leaving.stayed_away_and_closed,
        leaving.stayed_away_past_poll_deadline,
    ),
    Trigger.GROUP_FULL: (incidents.full, leaving.group_is_full),
    Trigger.LOADED_OVERSIZE: (leaving.group_is_full,),
    Trigger.NEW_MEMBER_EXPIRED: (leaving.waited_in_vain,),
    Trigger.SHARD_UNLOADED: (incidents.moved,),
    Trigger.JOIN_REFUSED: (reasons.instance_in_use, incidents.refused),
    Trigger.MEMBER_FENCED: (reasons.fenced,),
    Trigger.STATIC_MEMBER_AWAY: (reasons.away,),
}

OF_CONSUMER_GROUPS: Final[Mapping[str, tuple[Rule, ...]]] = {
    **RULES,
    # Static members of the consumer protocol say when they leave for a while.
    Trigger.SESSION_EXPIRED: (
        reasons.never_came_back,
        leaving.crashed,
        reasons.stalled,
        leaving.never_came_along,
        leaving.vanished,
        leaving.expired_for_unknown_reasons,
        leaving.stalled_or_not,
    ),
    Trigger.METADATA_CHANGED: (
        joining.subscription_changed,
        reasons.regex_changed,
        reasons.subscription_changed,
    ),
    # A static member that returns unchanged changes nothing.
    Trigger.STATIC_MEMBER_REPLACED: (
        joining.duplicate_instance,
        joining.subscription_changed,
        reasons.regex_changed,
        reasons.assignor_brought,
        joining.rolling_restart,
        joining.static_replaced,
    ),
    Trigger.ASSIGNOR_CHANGED: (reasons.assignor_changed,),
    Trigger.TOPICS_CHANGED: (reasons.topics_changed,),
    Trigger.REGEX_RESOLVED: (reasons.regex_resolved,),
    Trigger.REVOCATION_TIMED_OUT: (reasons.slow_to_revoke,),
    Trigger.REBALANCE_TIMED_OUT: (reasons.did_not_rejoin,),
}

_UNKNOWN: Final = Finding(
    Diagnosis.UNKNOWN, Certainty.CERTAIN, "the journal lacks its beginning or the reason for it"
)


def diagnose(case: Case) -> list[Finding]:
    """The findings, the most certain first; at least one."""
    gone_over = migration.finding(case)
    if gone_over is not None and gone_over.diagnosis is Diagnosis.UPGRADED:
        return [gone_over]
    former = leaving.left_before(case)
    if former is not None:
        ago = duration(case.start.entry.at_ms - former.start.entry.at_ms)
        lost = f"it was removed {ago} before, in a rebalance that was lost when the coordinator moved"
        return [each._replace(evidence=(lost, *each.evidence)) for each in diagnose(former)]
    rules = OF_CONSUMER_GROUPS if case.kind is Kind.CONSUMER else RULES
    found = [rule(case) for rule in rules.get(case.trigger or "", ())]
    weighed = weigh([each for each in found if each is not None]) or [_UNKNOWN]
    if gone_over is not None:
        went = weighed[0]
        why = () if went is _UNKNOWN else (f"{went.says} ({went.diagnosis})",)
        return [gone_over._replace(evidence=(*gone_over.evidence, *why))]
    return weighed
