"""Commits that a consumer group refused during and after a rebalance, by member."""

from __future__ import annotations

from muster.coordinator.journal.entries import Entry
from muster.coordinator.journal.explain.facts import member, text, whole
from muster.coordinator.journal.explain.names import count
from muster.coordinator.journal.explain.rebalances import LOOK_ENTRIES_MAX, Rebalance
from muster.coordinator.journal.explain.vocabulary import Kind
from muster.coordinator.journal.names import Names


def since(rebalance: Rebalance, names: Names) -> list[str]:
    """A sentence for each member and error, with the latest commit as the example."""
    if rebalance.kind is not Kind.CONSUMER:
        return []
    found: dict[tuple[str, str], list[Entry]] = {}
    for each in (*rebalance.entries, *rebalance.after[:LOOK_ENTRIES_MAX]):
        if each.type == "commit_refused" and each.member is not None:
            who = names.short(each.member)
            found.setdefault((who, text(each, "error") or "an error"), []).append(each)
    return [_said(who, error, some, names) for (who, error), some in found.items()]


def _said(who: str, error: str, some: list[Entry], names: Names) -> str:
    last = some[-1]
    epoch, owner = whole(last, "committed_generation_id"), member(last, "owner")
    topic, partition = text(last, "topic"), whole(last, "partition")
    at = "" if epoch is None else f" in epoch {epoch}"
    said = f"{count(len(some), 'commit')} of {who}{at} refused with {error}"
    if topic and owner is not None and last.member is not None and owner.id != last.member.id:
        said += f": {topic}-{partition} is {names.short(owner)}'s now"
    return said
