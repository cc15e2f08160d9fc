"""Rules for members that joined, rejoined, or joined with changes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import dropwhile, pairwise
from typing import Final, NamedTuple

from muster.coordinator.journal.entries import Entry, Member
from muster.coordinator.journal.explain.facts import flag, growths, member, same_client, text, texts, whole
from muster.coordinator.journal.explain.findings import LOOK_BACK_MS, Case, Finding, is_eviction
from muster.coordinator.journal.explain.former import Former, died, lost_its_coordinator
from muster.coordinator.journal.explain.leaving import (
    says_closing,
    says_poll_deadline,
    says_unsubscribed,
    too_early,
)
from muster.coordinator.journal.explain.names import count, duration, listed
from muster.coordinator.journal.explain.rebalances import FOLLOW_UP_MS
from muster.coordinator.journal.explain.vocabulary import EMPTY, Certainty, Diagnosis, Kind, Trigger

_ALIVE_MS: Final = 15_000
"""A member heard of this recently over an open connection is considered alive."""
_RESTARTS_MIN: Final = 2
_OF_OTHERS: Final = (
    "it asked for a rebalance for its own reasons: this does not look like a consumer group. Kafka Connect "
    "workers do this when connectors or tasks change or move"
)


# --- joined -------------------------------------------------------------------------------------------------


class _Return(NamedTuple):
    """A client that was a member before joins as a new one."""

    removed: Entry
    by: str | None
    """How it is known to be the same client; None: only by its name."""
    certainty: Certainty | None
    """Whether it had been evicted, or had left at its poll deadline; None: it had not."""


def came_back(case: Case) -> Finding | None:
    """A client that was evicted, or left at its poll deadline, joins as a new member."""
    found = _return(case)
    if found is None or found.certainty is None:
        return None
    each = found.removed
    ago = duration(case.start.entry.at_ms - each.at_ms)
    how = f"was evicted ({each.trigger})" if is_eviction(each) else "left"
    if member(each, "requested_by") is not None:
        how = "was removed at the request of another client"
    says = f"the client that {how} {ago} before came back: this rebalance follows from that one"
    of = "epoch" if case.kind is Kind.CONSUMER else "generation"
    generation = "" if each.generation is None else f", in {of} {each.generation}"
    evidence = f"{case.names.short(each.member)} {how} {ago} before{generation}"
    if found.by is not None:
        return Finding(
            Diagnosis.REJOINED_AFTER_EVICTION, found.certainty, says, (evidence, f"it came {found.by}")
        )
    if started_again(case) is not None or coordinator_was_away(case) is not None:
        return None  # started again since, or another process of the same name
    return Finding(Diagnosis.REJOINED_AFTER_EVICTION, found.certainty, says, (evidence,))


def _return(case: Case) -> _Return | None:
    """The newest removal of the client that joins."""
    if case.member is None:
        return None
    former = _former_id(case)
    for each in case.earlier("member_removed"):
        if each.member is None:
            continue
        is_itself = each.member.id == case.member.id  # members of the consumer protocol keep their ids
        same = each.member.id == former if former is not None else same_client(each.member, case.member)
        if not same and not is_itself:
            continue
        evicted = is_eviction(each) or member(each, "requested_by") is not None
        if is_itself or former is not None:
            by = "with the same member id" if is_itself else "on the same connection"
            return _Return(each, by, Certainty.CERTAIN if evicted else _left_at_poll_deadline(case, each))
        by_name = Certainty.POSSIBLE if case.shares_its_name else Certainty.LIKELY
        return _Return(each, None, by_name if evicted else None)
    return None


def _left_at_poll_deadline(case: Case, left: Entry) -> Certainty | None:
    """Whether a client that left and is back on its connection had missed its poll deadline. Otherwise the
    application unsubscribed and subscribed again. Most clients say neither."""
    if says_poll_deadline(left.reason):
        return Certainty.CERTAIN
    if left.member is None or says_closing(left.reason):
        return None
    before = dropwhile(
        lambda each: each is not left, case.before("member_removed", "member_added", "member_replaced")
    )
    joins = (each for each in before if each.type != "member_removed")
    return Certainty.POSSIBLE if too_early(left, left.member, joins) else Certainty.LIKELY


def started_again(case: Case) -> Finding | None:
    """Its former process is gone without leaving, and is still a member until its session expires."""
    former = died(case)
    if former is None:
        return None
    who = case.names.short(former.member)
    says = f"{who} crashed or was killed, and was started again: the group did not grow"
    return Finding(Diagnosis.CRASHED, Certainty.LIKELY, says, _of_former(case, former))


def coordinator_was_away(case: Case) -> Finding | None:
    """Its session ended, as far as the client knows, while the group had no coordinator."""
    former = lost_its_coordinator(case)
    if former is None:
        return None
    gap = "" if former.away_ms is None else f" for {duration(former.away_ms)}"
    says = f"the group had no coordinator{gap}, and its clients gave up their sessions: they join anew"
    return Finding(Diagnosis.COORDINATOR_MOVED, Certainty.LIKELY, says, _of_former(case, former))


def _of_former(case: Case, former: Former) -> tuple[str, ...]:
    start_ms, sign = case.start.entry.at_ms, former.sign
    who, ago = case.names.short(former.member), duration(start_ms - sign.at_ms)
    if sign.type == "shard_loaded":
        evidence = f"broker {sign.broker} loaded the group {ago} before and has not heard from {who} since"
    else:
        evidence = f"the connection of {who} closed {ago} before, without a LeaveGroup"
    if former.expired is None:
        return (evidence,)
    return (evidence, f"its session expired {duration(former.expired.at_ms - start_ms)} later")


def new_member(case: Case) -> Finding | None:
    """There is no earlier sign of it in the group."""
    if started_again(case) is not None or coordinator_was_away(case) is not None:
        return Finding(Diagnosis.NEW_MEMBER, Certainty.POSSIBLE, "another process of the same name")
    returned, known = came_back(case), _return(case)
    if returned is not None and returned.certainty is Certainty.CERTAIN:
        return None
    if known is not None and known.by is not None:
        return _subscribed_again(case, known)
    if returned is not None:
        return Finding(Diagnosis.NEW_MEMBER, Certainty.POSSIBLE, "another process of the same name")
    if _is_first(case):
        return Finding(Diagnosis.NEW_MEMBER, Certainty.CERTAIN, "the first member of the group joined")
    for each in case.earlier("member_removed"):
        if each.member is not None and case.member is not None and same_client(each.member, case.member):
            ago = duration(case.start.entry.at_ms - each.at_ms)
            says = f"a new process; one of the same name left {ago} before: probably a restart"
            return Finding(Diagnosis.NEW_MEMBER, Certainty.LIKELY, says)
    former = _predecessor(case)
    if former is not None and former.member is not None:
        who, ago = case.names.short(former.member), duration(case.start.entry.at_ms - former.at_ms)
        says = (
            f"a new process; {who}, of the same client id, was gone {ago} before: probably its replacement "
            "on another host"
        )
        return Finding(Diagnosis.NEW_MEMBER, Certainty.LIKELY, says)
    return Finding(Diagnosis.NEW_MEMBER, Certainty.CERTAIN, "a new or additional process: the group grew")


def _subscribed_again(case: Case, known: _Return) -> Finding:
    """What it was unless the client had missed its poll deadline."""
    certainty = Certainty.CERTAIN
    if known.certainty is not None:
        certainty = Certainty.LIKELY if known.certainty is Certainty.POSSIBLE else Certainty.POSSIBLE
    reason, ago = known.removed.reason, duration(case.start.entry.at_ms - known.removed.at_ms)
    how = f"the application unsubscribed, and subscribed again {ago} later"
    if says_closing(reason) and not says_unsubscribed(reason):
        how = f"the consumer was closed, and its process joined again {ago} later"
    so = "it is the first member of the group" if _is_first(case) else "the group did not grow"
    return Finding(Diagnosis.NEW_MEMBER, certainty, f"{how}: {so}", (f"it came {known.by}",))


def _is_first(case: Case) -> bool:
    return case.rebalance.from_state == EMPTY and case.start is case.rebalance.starts[0]


def _predecessor(case: Case) -> Entry | None:
    """The removal of a member with the client id of the one that joined, unless another has replaced it."""
    mine = case.member
    if mine is None or mine.instance is not None or not mine.client_id:
        return None
    came = 0
    for each in case.earlier("member_added", "member_removed"):
        who = each.member
        if who is None or who.instance is not None or who.client_id != mine.client_id or who.id == mine.id:
            continue
        if each.type == "member_added":
            came += 1
        elif came:
            came -= 1
        else:
            return each
    return None


def _former_id(case: Case) -> str | None:
    """The id that a member on the same connection had in this group before."""
    for each in (*case.step, *case.earlier("member_id_issued")):
        if each.type in ("member_added", "member_id_issued") and case.is_about(each):
            former = text(each, "former_member_id")
            if former is not None:
                return former
    return None


# --- other metadata -----------------------------------------------------------------------------------------


def subscription_changed(case: Case) -> Finding | None:
    """The member joined with other topics, and not only because a topic was deleted."""
    changed = case.in_step("metadata_changed")
    if changed is None or _lost_topics(case):
        return None
    added, removed = texts(changed, "topics_added"), texts(changed, "topics_removed")
    if not added and not removed:
        return None
    parts = [f"now with {listed(added)}"] * bool(added) + [f"without {listed(removed)}"] * bool(removed)
    return Finding(
        Diagnosis.SUBSCRIPTION_CHANGED, Certainty.CERTAIN, f"its subscription changed: {', '.join(parts)}"
    )


def _subscribes_otherwise(case: Case) -> bool:
    """Whether its topics or its assignors are others."""
    return bool(subscription_changed(case) or _lost_topics(case) or assignor_changed(case))


def _lost_topics(case: Case) -> bool:
    """Whether its topics differ only by some that were deleted: clients drop those by themselves."""
    changed, grown = case.in_step("metadata_changed"), _growth(case)
    if changed is None or grown is None or texts(changed, "topics_added"):
        return False
    removed = texts(changed, "topics_removed")
    deleted = {each.topic for each in growths(grown) if not each.now}
    return bool(removed) and deleted.issuperset(removed)


def assignor_changed(case: Case) -> Finding | None:
    """The member joined with other protocols."""
    changed = case.in_step("metadata_changed")
    if changed is None:
        return None
    before, after = texts(changed, "protocols_before"), texts(changed, "protocols_after")
    if before == after or not before:  # the former ones are unknown
        return None
    says = f"its assignors changed from {listed(before) or 'none'} to {listed(after) or 'none'}"
    return Finding(Diagnosis.ASSIGNOR_CHANGED, Certainty.CERTAIN, says)


def cooperative_follow_up(case: Case) -> Finding | None:
    """The previous rebalance withheld partitions that were to move; those who gave them up rejoin."""
    changed = case.in_step("metadata_changed")
    if changed is not None and _subscribes_otherwise(case):
        return None
    says_so = case.reason is not None and "revoke" in case.reason
    if not says_so and case.protocol is not None and "cooperative" not in case.protocol:
        return None  # with most others, members give up everything in each rebalance
    newest = next(case.before("assigned"), None)
    if not says_so and newest is not None and whole(newest, "lost") == 0:
        return None  # nothing was withheld
    says = "the second half of a cooperative rebalance: withheld partitions are handed out now"
    evidence: list[str] = []
    if changed is not None and flag(changed, "owned_changed"):
        evidence.append("its topics are the same, and it owns other partitions than before")
    if says_so:
        evidence.extend(case.said)
    assigned = next(case.earlier("assigned", window_ms=FOLLOW_UP_MS), None)
    withheld = None if assigned is None else whole(assigned, "lost")
    if withheld:
        evidence.append(f"the rebalance before left {count(withheld, 'partition')} without an owner")
    if not evidence:
        return None
    certainty = Certainty.CERTAIN if len(evidence) > 1 else Certainty.LIKELY
    return Finding(Diagnosis.COOPERATIVE_FOLLOW_UP, certainty, says, tuple(evidence))


def other_metadata(case: Case) -> Finding | None:
    """What changed is unknown, or is the assignor's own data."""
    changed = case.in_step("metadata_changed")
    if changed is None:
        says = "its subscription or its assignor's data changed"
        return Finding(Diagnosis.SUBSCRIPTION_CHANGED, Certainty.POSSIBLE, says)
    if _subscribes_otherwise(case):
        return None
    if not case.of_consumers:
        evidence = "its metadata changed, which is not in the consumer protocol's format"
        return Finding(Diagnosis.UNKNOWN, Certainty.POSSIBLE, _OF_OTHERS, (evidence, *case.said))
    parts = ["the partitions it owns"] * bool(flag(changed, "owned_changed"))
    parts += ["its assignor's data"] * bool(flag(changed, "user_data_changed"))
    evidence = "its topics and assignors are the same"
    if parts:
        evidence += f"; of its metadata only {' and '.join(parts)} changed"
    elif not texts(changed, "protocols_before"):
        evidence = "its metadata is not known from before the coordinator loaded the group"
    if case.is_leader:
        return leader_rejoined(case)._replace(evidence=(evidence, *case.said))
    says = "it asked for a rebalance, and nothing the coordinator knows says why"
    return Finding(Diagnosis.UNKNOWN, Certainty.POSSIBLE, says, (evidence, *case.said))


def other_assignor(case: Case) -> Finding | None:
    """The other half of `other_metadata`, when nothing is known."""
    if case.in_step("metadata_changed") is not None:
        return None
    return Finding(Diagnosis.ASSIGNOR_CHANGED, Certainty.POSSIBLE, "its assignors changed")


# --- the leader ---------------------------------------------------------------------------------------------


def topics_grown(case: Case) -> Finding | None:
    """The leader watches topics on behalf of its group."""
    grown = _growth(case)
    if grown is None or (case.in_step("topics_grown") is None and not _may_have_seen_it_first(case)):
        return None
    deleted = [f"topic {each.topic} was deleted" for each in growths(grown) if not each.now]
    changed = [f"{each.topic} {each.before} → {each.now}" for each in growths(grown) if each.now]
    if changed or not deleted:
        deleted.append("the number of partitions changed" + (f": {listed(changed)}" if changed else ""))
    return Finding(Diagnosis.TOPICS_GROWN, Certainty.CERTAIN, "; ".join(deleted))


def _growth(case: Case) -> Entry | None:
    during = (each for each in case.rebalance.entries if each.type == "topics_grown")
    return case.in_step("topics_grown") or next(during, None)


def _may_have_seen_it_first(case: Case) -> bool:
    """Whether growth that the coordinator told only later may be why the member rejoined."""
    if _lost_topics(case):
        return True
    if case.trigger != Trigger.LEADER_REJOINED and not case.is_leader:
        return False
    other = cooperative_follow_up(case)
    return other is None or other.certainty is not Certainty.CERTAIN


def said_metadata(case: Case) -> Finding | None:
    """The leader's own reason."""
    if case.reason is None or "metadata" not in case.reason:
        return None
    says = "the partitions of its topics changed"
    return Finding(Diagnosis.TOPICS_GROWN, Certainty.LIKELY, says, case.said)


def leader_rejoined(case: Case) -> Finding:
    """A rejoin of the leader always causes a rebalance, whatever its reason."""
    says = (
        "the leader asked for a rebalance, usually because it found new topics or partitions, but the "
        "coordinator knows of no change"
        if case.of_consumers
        else _OF_OTHERS
    )
    return Finding(Diagnosis.LEADER_REJOINED, Certainty.LIKELY, says, case.said)


# --- static members -----------------------------------------------------------------------------------------


class Replacement(NamedTuple):
    """A static member that returned under a new member id."""

    entry: Entry
    instance: str
    host: str
    old_host: str | None

    @property
    def old_was_alive(self) -> bool:
        silent_ms = whole(self.entry, "old_silent_ms")
        return flag(self.entry, "old_connected") is True and (silent_ms is None or silent_ms < _ALIVE_MS)

    @property
    def is_itself(self) -> bool:
        """Whether the same process came back: those of the consumer protocol keep their ids."""
        return self.entry.member is not None and text(self.entry, "old_member_id") == self.entry.member.id


def replacement(entry: Entry) -> Replacement | None:
    """The replacement in a member_replaced; None for other entries."""
    member = entry.member
    if entry.type != "member_replaced" or member is None or member.instance is None:
        return None
    old = text(entry, "old_client_host")
    return Replacement(entry, member.instance, member.host, None if old is None else old.lstrip("/"))


def duplicate_instance(case: Case) -> Finding | None:
    """Two live processes with one instance id keep fencing each other."""
    mine = _instance(case)
    if mine is None:
        return None
    there = _replacements(case, mine)
    others = (each for each in _near(case, "member_fenced") if text(each, "error") != "FENCED_MEMBER_EPOCH")
    fenced = [each for each in others if _of_instance(each, mine)]
    evidence: list[str] = []
    certainty: Certainty | None = None
    alive = [each for each in there if each.old_was_alive]
    back = [earlier for earlier, later in pairwise(there) if later.host == earlier.old_host != earlier.host]
    if back:
        evidence.append(f"{mine} moved from {back[0].old_host} to {back[0].host} and back")
        # Once, and with each former process gone, a deploy that is rolled back does that too.
        certainty = Certainty.CERTAIN if alive or len(back) > 1 else Certainty.POSSIBLE
    if alive:
        evidence.append("the replaced process was still alive: connected, and heard of just before")
        certainty = certainty or Certainty.LIKELY
        if len(alive) > 1:
            evidence.append(f"that happened {count(len(alive), 'time')} within 10 minutes")
            certainty = Certainty.CERTAIN
    if fenced:
        evidence.append("the replaced process kept sending requests, which were fenced")
        certainty = Certainty.CERTAIN
    if certainty is None:
        return None
    hosts = _hosts(there, fenced)
    where = f" (hosts {listed(hosts)})" if len(hosts) > 1 else f" (host {hosts[0]})" if hosts else ""
    says = f"two processes use the instance id {mine}{where} and fence each other"
    return Finding(Diagnosis.DUPLICATE_INSTANCE_ID, certainty, says, tuple(evidence))


def _hosts(replaced: Sequence[Replacement], fenced: Sequence[Entry]) -> list[str]:
    """The hosts of the instance's processes."""
    found = {host for each in replaced for host in (each.host, each.old_host)}
    for each in fenced:
        found |= {each.member.host if each.member is not None else None, text(each, "old_client_host")}
    return sorted({host.lstrip("/") for host in found if host})


def rolling_restart(case: Case) -> Finding | None:
    """Several static members come back one after another."""
    mine = _instance(case)
    if mine is None:
        return None
    found = [replacement(each) for each in _near(case, "member_replaced")]
    restarted = {
        each.instance for each in found if each is not None and not each.old_was_alive and not each.is_itself
    }
    back = {
        each.member.instance
        for each in _near(case, "member_added")
        if each.member is not None and each.member.instance is not None and _had_gone(case, each.member)
    }
    restarted |= back
    if mine not in restarted or len(restarted) < _RESTARTS_MIN:
        return None
    says = f"a rolling restart: {count(len(restarted), 'static member')} came back within 10 minutes"
    names = listed(sorted(restarted))
    return Finding(Diagnosis.ROLLING_RESTART, Certainty.LIKELY, says, (f"restarted: {names}",))


def static_replaced(case: Case) -> Finding | None:
    """A static member is now a new process, or came back after it had left temporarily."""
    there = _replacements(case, _instance(case))
    if not there or rolling_restart(case) is not None:
        return None
    this = there[-1]
    if this.is_itself:
        says = (
            "the same process came back after it had left temporarily: it missed its poll deadline, or "
            "unsubscribed and subscribed again"
        )
        evidence = ("it came with the same member id",)
        return Finding(Diagnosis.STATIC_MEMBER_REPLACED, Certainty.LIKELY, says, evidence)
    moved = (
        f" on another host, {this.host} instead of {this.old_host}"
        if this.old_host not in (None, this.host)
        else ""
    )
    says = f"its process was restarted{moved}"
    certainty = Certainty.POSSIBLE if this.old_was_alive else Certainty.LIKELY
    return Finding(Diagnosis.STATIC_MEMBER_REPLACED, certainty, says)


def _instance(case: Case) -> str | None:
    return None if case.member is None else case.member.instance


def _near(case: Case, kind: str) -> list[Entry]:
    """Entries of a type from ten minutes before to ten minutes after, in order."""
    before = [each for each in case.rebalance.earlier(LOOK_BACK_MS) if each.type == kind][::-1]
    here = [each for each in case.rebalance.entries if each.type == kind]
    end_ms = case.start.entry.at_ms + LOOK_BACK_MS
    after = [each for each in case.rebalance.stream[case.rebalance.last :][:1_000] if each.type == kind]
    return before + here + [each for each in after if each.at_ms <= end_ms]


def _replacements(case: Case, instance: str | None) -> list[Replacement]:
    found = (replacement(each) for each in _near(case, "member_replaced"))
    return [each for each in found if each is not None and each.instance == instance]


def _of_instance(entry: Entry, instance: str) -> bool:
    return entry.member is not None and entry.member.instance == instance


def _had_gone(case: Case, member: Member) -> bool:
    """Whether the journal shows the static member removed before."""
    gone = (each for each in _near(case, "member_removed") if each.trigger != Trigger.GROUP_FULL)
    return any(_of_instance(each, member.instance or "") for each in gone)
