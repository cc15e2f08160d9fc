"""States of members and the group over time, for drawing a timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from muster.coordinator.journal.entries import Entry, Member
from muster.coordinator.journal.explain.facts import Joining, counts, members, text
from muster.coordinator.journal.explain.names import names_in
from muster.coordinator.journal.explain.vocabulary import COMPLETING, DEAD, EMPTY, PREPARING, STABLE
from muster.coordinator.journal.names import Names


class Standing(StrEnum):
    """A member's state."""

    PENDING = "pending"
    """Given a member id and waited for."""
    JOINING = "joining"
    """Sent JoinGroup and waits for the others."""
    AWAITED = "awaited"
    """The group waits for its JoinGroup."""
    SYNCING = "syncing"
    """Joined the new generation and waits for its assignment."""
    STABLE = "stable"
    REVOKING = "revoking"
    """Has to give up partitions, in a consumer group."""
    SILENT = "silent"
    """Its connection has closed, and its session has not expired."""


@dataclass(frozen=True, slots=True)
class Span:
    """A period, epoch ms; an end of None is now."""

    start_ms: int
    end_ms: int | None
    standing: str
    """A Standing, or for the group Kafka's name of its state."""


@dataclass(slots=True)
class Track:
    """A row: the group's or a member's (a static member keeps its row under new member ids)."""

    name: str
    host: str
    spans: list[Span] = field(default_factory=list)

    @property
    def is_present(self) -> bool:
        """Whether it is present at the end."""
        return bool(self.spans) and self.spans[-1].end_ms is None

    def turn(self, at_ms: int, standing: str | None) -> None:
        """Enter this state; None: it is gone."""
        if self.spans and self.spans[-1].end_ms is None:
            last = self.spans[-1]
            if last.standing == standing:
                return
            self.spans[-1] = Span(last.start_ms, max(at_ms, last.start_ms), last.standing)
        if standing is not None:
            self.spans.append(Span(at_ms, None, standing))


class Tracks:
    """The group's row and its members', in order of first appearance."""

    def __init__(self, entries: Sequence[Entry], names: Names | None = None) -> None:
        self._names = names_in(entries) if names is None else names
        self.group = Track("", "")
        self._rows: dict[str, Track] = {}
        self._ids: dict[str, str] = {}  # member id -> row key, for current members
        self._joining = Joining()
        self._first_ms = entries[0].at_ms if entries else 0
        for entry in entries:
            self._see(entry)

    @property
    def members(self) -> list[Track]:
        return list(self._rows.values())

    def _see(self, entry: Entry) -> None:
        at_ms, who = entry.at_ms, entry.member
        was_joining, lost = self._joining.is_under_way, self._joining.see(entry)
        match entry.type:
            case "shard_loaded":
                self._loaded(at_ms, lost, was_joining)
            case "state_changed":
                self._state_changed(entry)
            case "target_assigned":
                for member_id in counts(entry, "owned"):
                    self._there(member_id, at_ms)
            case "assigned":
                for member_id in counts(entry, "owned"):
                    self._known(member_id, at_ms, Standing.SYNCING)
            case "rebalance_completed":
                for member_id, key in self._ids.items():
                    # Members of a consumer group that are assigned nothing appear only here.
                    if self._rows[key].spans[-1].standing == Standing.JOINING:
                        self._known(member_id, at_ms, Standing.STABLE)
            case _ if who is None:
                return
            case "member_id_issued":
                self._turn(who, at_ms, Standing.PENDING)
            case "member_added":
                self._turn(who, at_ms, Standing.JOINING)
            case "member_rejoined":
                self._was_there(who)
                self._turn(who, at_ms, Standing.JOINING)
            case "member_removed":
                self._was_there(who)
                self._turn(who, at_ms, None)
                self._ids.pop(who.id, None)
            case "pending_member_removed":
                self._turn(who, at_ms, None)
                self._ids.pop(who.id, None)
            case "heartbeat_late":
                self._was_there(who)
            case "revocation_requested":
                self._was_there(who)
                self._turn(who, at_ms, Standing.REVOKING)
            case "partitions_revoked" | "partitions_assigned":
                self._was_there(who)
                self._turn(who, at_ms, Standing.STABLE)
            case "member_disconnected" if entry.data.get("after_removal_ms") is None:
                self._was_there(who)
                self._turn(who, at_ms, Standing.SILENT)
            case "member_replaced":
                self._was_there(who)
                self._ids.pop(text(entry, "old_member_id") or "", None)
                standing = Standing.STABLE if self._state == STABLE else Standing.JOINING
                self._turn(who, at_ms, standing)

    @property
    def _state(self) -> str | None:
        return self.group.spans[-1].standing if self.group.spans else None

    def _state_changed(self, entry: Entry) -> None:
        to_state = text(entry, "to_state")
        if to_state is None:
            return
        before = text(entry, "from_state")
        if not self.group.spans and before is not None:
            self.group.turn(self._first_ms, before)
        self.group.turn(entry.at_ms, None if to_state == DEAD else to_state)
        waiting = {each.id: each for each in members(entry, "waiting_for")}
        if to_state == PREPARING:
            for each in waiting.values():
                self._was_there(each)
                self._turn(each, entry.at_ms, Standing.AWAITED)
            if entry.member is not None and entry.member.id in self._ids:
                self._turn(entry.member, entry.at_ms, Standing.JOINING)
        elif to_state in (COMPLETING, STABLE):
            standing = Standing.SYNCING if to_state == COMPLETING else Standing.STABLE
            if to_state == STABLE:  # before, the list is of those who did not come in time
                for each in waiting.values():
                    self._ids.setdefault(each.id, self._key(each))
            for member_id in list(self._ids):
                self._known(member_id, entry.at_ms, standing)
        elif to_state in (EMPTY, DEAD):
            for row in self._rows.values():
                row.turn(entry.at_ms, None)
            self._ids.clear()

    def _loaded(self, at_ms: int, lost: set[str], was_joining: bool) -> None:
        """Another coordinator knows only members that are stored, and continues no join."""
        for member_id, key in list(self._ids.items()):
            row = self._rows[key]
            standing = row.spans[-1].standing
            if member_id in lost or standing == Standing.PENDING:
                row.turn(at_ms, None)
                del self._ids[member_id]
            elif was_joining and standing in (Standing.JOINING, Standing.AWAITED, Standing.SYNCING):
                row.turn(at_ms, Standing.STABLE)
        if was_joining:
            self.group.turn(at_ms, STABLE if self._ids else EMPTY)

    def _there(self, member_id: str, at_ms: int) -> None:
        """A member of a consumer group: it does not wait for the others."""
        if self._rows.get(self._ids.get(member_id, "")) is None:
            self._known(member_id, at_ms, Standing.STABLE)

    def _known(self, member_id: str, at_ms: int, standing: Standing) -> None:
        member = self._names.of_id(member_id) or Member(member_id, "", "")
        row = self._rows.get(self._ids.get(member_id, ""))
        if row is not None and row.is_present and row.spans[-1].standing == Standing.PENDING:
            return  # not a member yet
        self._turn(member, at_ms, standing)

    def _was_there(self, member: Member) -> None:
        """Add a member without any earlier entry: the journal begins in the middle."""
        if self._key(member) not in self._rows:
            self._turn(member, self._first_ms, Standing.STABLE)

    def _turn(self, member: Member, at_ms: int, standing: Standing | None) -> None:
        key = self._key(member)
        if key not in self._rows:
            if standing is None:
                return
            self._rows[key] = Track(self._names.short(member), member.host)
        if standing is not None:
            self._ids[member.id] = key
            self._rows[key].host = member.host or self._rows[key].host
        self._rows[key].turn(at_ms, standing)

    def _key(self, member: Member) -> str:
        return f"instance {member.instance}" if member.instance is not None else member.id
