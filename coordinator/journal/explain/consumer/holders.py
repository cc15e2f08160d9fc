"""Who has which partition and who is to get it, followed through a rebalance of a consumer group."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from muster.coordinator.journal.entries import Entry, Member
from muster.coordinator.journal.explain.facts import counts, moves, partitions, text, whole

Partition = tuple[str, int]


class Held(NamedTuple):
    """Partitions that a member must revoke, or has revoked."""

    member: Member
    partitions: tuple[Partition, ...]
    since_ms: int
    """When it was told to."""
    until_ms: int | None
    """When it is removed unless it has revoked them; None: it speaks the classic protocol, or the time is
    unknown."""
    revoked_ms: int | None
    """When it had revoked them; None: not yet."""


@dataclass(slots=True)
class _State:
    """What is known of a partition. Ids of members are those that they have now."""

    holder: str | None
    """The member that has it; None: it is free."""
    next: str | None
    """The member that is to have it by the target; None: nobody, or the journal does not tell."""
    since_ms: int
    """Since when it waits: for its holder to let it go or, if it is free, for the next one to take it."""
    request: int | None = None
    """The index of the request to revoke it that its holder has yet to follow."""

    def free(self, at_ms: int) -> None:
        self.holder, self.since_ms, self.request = None, at_ms, None


class Holders:
    """The partitions that a rebalance moves, as of its last entry.

    Who has a partition changes when it is assigned, revoked, or its holder removed, and not by targets; only
    if no entry has told yet, it is the one that had it by the target before.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.requests: list[Held] = []
        """What members were told to revoke, in this order."""
        self._open: dict[str, list[int]] = {}
        """The indexes of the requests that members have yet to follow, by member."""
        self._states: dict[Partition, _State] = {}
        self._present: dict[str, int] = {}
        """The members that have been in the group since the last target, each with the time of its first
        target since it joined."""
        self._removed: set[str] = set()
        """Members that were removed, also those that are back."""
        for entry in entries:
            self._see(entry)

    # --- what the rebalance waits for -----------------------------------------------------------------------

    def told(self) -> list[Held]:
        """What members were told to revoke and have not."""
        pending = {each.request for each in self._states.values()}
        return [each for at, each in enumerate(self.requests) if at in pending]

    def untold(self) -> dict[str, tuple[list[Partition], int]]:
        """What members have yet to be told to revoke, by member, and since when others are to get it."""
        found: dict[str, tuple[list[Partition], int]] = {}
        for part, each in self._states.items():
            holder = each.holder
            if holder is None or holder not in self._present or each.next in (None, holder):
                continue
            if each.request is not None:
                continue
            some, since_ms = found.setdefault(holder, ([], each.since_ms))
            some.append(part)
            found[holder] = some, min(since_ms, each.since_ms)
        return found

    def free(self) -> dict[str, int]:
        """The members whose partitions are free, and since when; not those that were told to revoke others
        first: they get them afterwards."""
        busy = {each.holder for each in self._states.values() if each.request is not None}
        found: dict[str, int] = {}
        for each in self._states.values():
            who = each.next
            if each.holder is None and who is not None and who in self._present and who not in busy:
                since_ms = max(each.since_ms, self._present[who])
                found[who] = min(found.get(who, since_ms), since_ms)
        return found

    def waiters(self, some: Iterable[Partition]) -> list[str]:
        """The members that are to get these partitions from others."""
        states = (self._states[part] for part in some if part in self._states)
        found = dict.fromkeys(each.next for each in states if each.next != each.holder)
        return [each for each in found if each is not None and each in self._present]

    # --- entries --------------------------------------------------------------------------------------------

    def _see(self, entry: Entry) -> None:
        if entry.type == "target_assigned":
            self._target(entry)
        who = entry.member
        if who is None:
            return
        match entry.type:
            case "revocation_requested":
                self._requested(who, entry)
            case "partitions_revoked":
                self._revoked(who, entry)
            case "partitions_assigned":
                for part in partitions(entry):
                    self._states[part] = _State(who.id, who.id, entry.at_ms)
            case "member_removed":
                self._present.pop(who.id, None)
                self._removed.add(who.id)
                for each in self._states.values():
                    if each.holder == who.id:
                        each.free(entry.at_ms)
            case "member_replaced":
                old_id = text(entry, "old_member_id")
                if old_id is not None:
                    self._renamed(old_id, who.id)

    def _target(self, entry: Entry) -> None:
        present = dict.fromkeys(counts(entry, "owned"))
        for topic, partition, old, new in moves(entry):
            if new is not None:
                present[new] = None  # owned is cut if there are many
            each = self._states.get((topic, partition))
            if each is None:
                holder = None if old in self._removed else old
                self._states[topic, partition] = _State(holder, new, entry.at_ms)
                continue
            if new != each.next and each.holder in (None, each.next):
                each.since_ms = entry.at_ms
            each.next = new
        self._present = {each: self._present.get(each, entry.at_ms) for each in present}

    def _requested(self, who: Member, entry: Entry) -> None:
        some = tuple(partitions(entry))
        for part in some:
            each = self._states.setdefault(part, _State(who.id, None, entry.at_ms))
            each.holder, each.request = who.id, len(self.requests)
        self._open.setdefault(who.id, []).append(len(self.requests))
        self.requests.append(Held(who, some, entry.at_ms, whole(entry, "until_ms"), None))

    def _revoked(self, who: Member, entry: Entry) -> None:
        some = set(partitions(entry))
        known, still_open = False, []
        for at in self._open.pop(who.id, ()):
            each = self.requests[at]
            if some and some.isdisjoint(each.partitions):
                still_open.append(at)
                continue
            self.requests[at] = each._replace(revoked_ms=entry.at_ms)
            some.update(each.partitions)
            known = True
        if still_open:
            self._open[who.id] = still_open
        after_ms = whole(entry, "after_ms")
        if not known and after_ms is not None:  # it was told before the journal begins
            since_ms = entry.at_ms - max(after_ms, 0)
            self.requests.append(Held(who, tuple(partitions(entry)), since_ms, None, entry.at_ms))
        for part in some:
            state = self._states.setdefault(part, _State(None, None, entry.at_ms))
            if state.holder == who.id:
                state.free(entry.at_ms)

    def _renamed(self, old_id: str, new_id: str) -> None:
        """A static member is back under another id, and is not told again what its former self was told."""
        for each in self._states.values():
            if each.holder == old_id:
                each.holder, each.request = new_id, None
            if each.next == old_id:
                each.next = new_id
        if old_id in self._present:
            self._present[new_id] = self._present.pop(old_id)
