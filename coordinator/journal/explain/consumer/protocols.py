"""Which protocol the members of a consumer group speak, as far as its entries show."""

from __future__ import annotations

from typing import NamedTuple

from muster.coordinator.journal.entries import Entry
from muster.coordinator.journal.explain.facts import text, texts, whole
from muster.coordinator.journal.explain.vocabulary import Kind


class Mix(NamedTuple):
    """How many members speak which protocol."""

    classic: int
    consumer: int
    classic_ids: tuple[str, ...]
    """Ids of members of the classic protocol, as far as known."""


class Protocols:
    """Follows a group's entries."""

    def __init__(self) -> None:
        self._known: dict[str, Kind] = {}
        self._unnamed: int | None = None
        """Number of members of the classic protocol that no entry names. None: their number and protocol are
        unknown, since the journal begins later."""

    def see(self, entry: Entry) -> None:
        known, who = self._known, entry.member
        match entry.type:
            case "group_created":
                self._known, self._unnamed = {}, 0
            case "protocol_migrated" if text(entry, "to_type") == Kind.CONSUMER:
                self._known = dict.fromkeys(known, Kind.CLASSIC)
                self._unnamed = max((whole(entry, "members") or 0) - len(known), 0)
            case "protocol_migrated":
                self._known, self._unnamed = {}, None
            case "member_added" if who is not None:
                known[who.id] = Kind.CLASSIC if texts(entry, "protocols") else Kind.CONSUMER
            case "member_replaced" if who is not None:
                self._forget(text(entry, "old_member_id") or "")
                is_consumer = text(entry, "protocol") == Kind.CONSUMER
                known[who.id] = Kind.CONSUMER if is_consumer else Kind.CLASSIC
            case "member_removed" if who is not None:
                self._forget(who.id)

    def _forget(self, member_id: str) -> None:
        if self._known.pop(member_id, None) is None and self._unnamed:
            self._unnamed -= 1

    def mix(self) -> Mix | None:
        """The mix after the entries so far; None if they do not show it."""
        if self._unnamed is None:
            return None
        classic = tuple(member_id for member_id, kind in self._known.items() if kind is Kind.CLASSIC)
        return Mix(len(classic) + self._unnamed, len(self._known) - len(classic), classic)
