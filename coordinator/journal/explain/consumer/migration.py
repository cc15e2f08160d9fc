"""A group's migration from one protocol to the other (KIP-848): how it began, and how far it has come."""

from __future__ import annotations

from muster.coordinator.journal.entries import Entry
from muster.coordinator.journal.explain.facts import text, texts, whole
from muster.coordinator.journal.explain.findings import Case, Finding
from muster.coordinator.journal.explain.names import count, listed
from muster.coordinator.journal.explain.rebalances import Rebalance
from muster.coordinator.journal.explain.vocabulary import Certainty, Diagnosis, Kind
from muster.coordinator.journal.names import Names


def migrated(case: Case) -> Entry | None:
    """The entry for the group's change of type, if it is in the step that the case is about."""
    return next((each for each in case.step if each.type == "protocol_migrated"), None)


def finding(case: Case) -> Finding | None:
    """The group changed its type."""
    entry = migrated(case)
    if entry is None:
        return None
    members = whole(entry, "members")
    size = "" if members is None else f" of {count(members, 'member')}"
    who = "a member" if case.member is None else case.names.short(case.member)
    if text(entry, "to_type") == Kind.CONSUMER:
        says = (
            f"the first member of the consumer protocol made the classic group{size} a consumer group; the "
            "others keep their partitions and the classic protocol until they are restarted with the new one"
        )
        return Finding(
            Diagnosis.UPGRADED, Certainty.CERTAIN, says, (f"{who} joined with the consumer protocol",)
        )
    says = f"nobody speaks the consumer protocol any more: what is left is a classic group{size}"
    evidence = f"{who} was the last that spoke it"
    if not _spoke_it(case):
        evidence = f"{who} is gone, and all others speak the classic protocol"
    return Finding(Diagnosis.DOWNGRADED, Certainty.CERTAIN, says, (evidence,))


def _spoke_it(case: Case) -> bool:
    """Whether the member behind a downgrade is known to have spoken the consumer protocol. It may be a
    classic one, if the group was not allowed to be downgraded when the last of the others left."""
    if case.removed is None:
        return True  # replaced by a classic member, or became one
    for each in case.before("protocol_migrated", "member_added", "member_replaced"):
        if each.type == "protocol_migrated":
            if text(each, "to_type") == Kind.CONSUMER:
                return case.is_about(each)  # the others spoke the classic protocol
        elif case.is_about(each):
            added = each.type == "member_added"
            return not texts(each, "protocols") if added else text(each, "protocol") == Kind.CONSUMER
    return False


# --- how far it is ------------------------------------------------------------------------------------------


def standing(rebalance: Rebalance, names: Names) -> list[str]:
    """How far a migration has come after a rebalance; nothing if none is in progress."""
    before, after = rebalance.mix_before, rebalance.mix
    if rebalance.kind is not Kind.CONSUMER or after is None:
        return []
    if after.classic and after.consumer:
        total = after.classic + after.consumer
        who = listed([names.short(each) for each in after.classic_ids])
        speaks = "speaks" if after.classic == 1 else "speak"
        still = f"{after.classic} of {total} members still {speaks} the classic protocol"
        return [f"{still}: {who}" if len(after.classic_ids) == after.classic else still]
    if before is not None and before.classic and before.consumer and not after.classic and after.consumer:
        return [f"the migration is over: {_all(after.consumer)} the consumer protocol"]
    return []


def _all(members: int) -> str:
    return "the one member speaks" if members == 1 else f"all {members} members speak"
