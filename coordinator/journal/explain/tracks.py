"""States of members and the group over time, for drawing a timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from muster.coordinator.journal.entries import Entry, Member
from muster.coordinator.journal.explain.facts import Joining, Lost, counts, members, text, whole
from muster.coordinator.journal.explain.names import names_in
from muster.coordinator.journal.explain.phases import EXPIRES_LATE_MS
from muster.coordinator.journal.explain.vocabulary import COMPLETING, DEAD, EMPTY, PREPARING, STABLE
from muster.coordinator.journal.names import Names

_SESSION_MAX_MS: Final = 1_800_000
"""Assumed if the journal does not show a member's session timeout: Kafka's group.max.session.timeout.ms."""


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
    """Its connection has closed, and it has not been heard from since."""


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


@dataclass(slots=True)
class _Silence:
    """A member's connection has closed. The journal does not tell when it comes back on another one, but
    unless it does, its session expires."""

    closed_ms: int
    before: Standing
    """Its state if it came back."""
    session_from_ms: int | None
    """When its session began; None: it has none, since the group owes it an answer."""


class Tracks:
    """The group's row and its members', in order of first appearance."""

    def __init__(
        self, entries: Sequence[Entry], names: Names | None = None, *, now_ms: int | None = None
    ) -> None:
        """`now_ms`, by default the time of the last entry, decides whose session would have expired."""
        self._names = names_in(entries) if names is None else names
        self.group = Track("", "")
        self._rows: dict[str, Track] = {}
        self._ids: dict[str, str] = {}  # member id -> row key, for current members
        self._joining = Joining()
        self._first_ms = entries[0].at_ms if entries else 0
        self._silences: dict[str, _Silence] = {}  # by row key
        self._sessions_ms: dict[str, int] = {}  # timeouts, by row key
        self._coordinated_ms = 0  # when the group was last known to have a coordinator
        for entry in entries:
            self._see(entry)
        last_ms = max((each.at_ms for each in entries), default=0)
        self._outlived(last_ms if now_ms is None else max(now_ms, last_ms))

    @property
    def members(self) -> list[Track]:
        return list(self._rows.values())

    def of(self, member: Member) -> Track | None:
        """A member's row; None if it has none."""
        return self._rows.get(self._key(member))

    def _see(self, entry: Entry) -> None:
        at_ms, who = entry.at_ms, entry.member
        was_joining, lost = self._joining.is_under_way, self._joining.see(entry)
        if entry.group is not None:
            self._coordinated_ms = max(self._coordinated_ms, at_ms)
        if who is not None:
            self._heard(entry, self._key(who))
        match entry.type:
            case "shard_loaded":
                self._loaded(at_ms, lost, was_joining)
            case "group_removed":
                self._removed(at_ms)
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
                for silence in self._silences.values():
                    silence.before = Standing.STABLE
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
                self._silent(entry, self._key(who))
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
            for key in self._rows:
                self._turn_row(key, entry.at_ms, None)
            self._ids.clear()

    def _loaded(self, at_ms: int, lost: Lost, was_joining: bool) -> None:
        """Another coordinator knows only members that are stored, and continues no join."""
        self._outlived(self._coordinated_ms)
        for silence in self._silences.values():
            silence.session_from_ms = at_ms  # sessions begin anew
            if was_joining:
                silence.before = Standing.STABLE
        for member_id, key in list(self._ids.items()):
            standing = self._rows[key].spans[-1].standing
            if member_id in lost.came or standing == Standing.PENDING:
                self._turn_row(key, at_ms, None)
                del self._ids[member_id]
            elif was_joining and standing in (Standing.JOINING, Standing.AWAITED, Standing.SYNCING):
                self._turn_row(key, at_ms, Standing.STABLE)
        for member_id in sorted(lost.went):
            self._known(member_id, at_ms, Standing.STABLE)
        if was_joining:
            self.group.turn(at_ms, STABLE if self._ids else EMPTY)

    def _removed(self, at_ms: int) -> None:
        """The group is deleted: it has no members, but may have given ids to clients."""
        for key in self._ids.values():
            self._turn_row(key, at_ms, None)
        self._ids.clear()

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
        self._turn_row(key, at_ms, standing)

    def _turn_row(self, key: str, at_ms: int, standing: Standing | None) -> None:
        if standing != Standing.SILENT and key in self._silences:
            self._outlived(at_ms, key)
            self._silences.pop(key, None)
        self._rows[key].turn(at_ms, standing)

    # --- members whose connections closed -------------------------------------------------------------------

    def _silent(self, entry: Entry, key: str) -> None:
        """The member's connection closes."""
        before = self._rows[key].spans[-1]
        if before.standing == Standing.SILENT:
            return
        from_ms: int | None = max(entry.at_ms - (whole(entry, "silent_ms") or 0), before.start_ms)
        if self._state in (PREPARING, COMPLETING) and before.standing in (Standing.JOINING, Standing.SYNCING):
            from_ms = None
        self._silences[key] = _Silence(entry.at_ms, Standing(before.standing), from_ms)

    def _heard(self, entry: Entry, key: str) -> None:
        """Note what an entry about a member tells of when it was last heard from, and of its session."""
        session_ms = whole(entry, "session_timeout_ms")
        if session_ms is not None:
            self._sessions_ms[key] = session_ms
        silence, silent_ms = self._silences.get(key), whole(entry, "silent_ms")
        if silence is None or (silent_ms is None and entry.type != "heartbeat_late"):
            return
        heard_ms = entry.at_ms - (silent_ms or 0)
        if heard_ms > silence.closed_ms:
            self._back(key, min(heard_ms, self._expires_ms(key, silence) or heard_ms))
        elif entry.type == "member_removed":
            del self._silences[key]  # it never came back

    def _outlived(self, now_ms: int, *keys: str) -> None:
        """Members that should have been removed since their connections closed, and were not, came back."""
        for key in keys or list(self._silences):
            expires_ms = self._expires_ms(key, self._silences[key])
            if expires_ms is not None and now_ms > expires_ms + EXPIRES_LATE_MS:
                self._back(key, expires_ms)

    def _expires_ms(self, key: str, silence: _Silence) -> int | None:
        if silence.session_from_ms is None:
            return None
        return silence.session_from_ms + self._sessions_ms.get(key, _SESSION_MAX_MS)

    def _back(self, key: str, at_ms: int) -> None:
        """The member had come back by then."""
        silence = self._silences.pop(key)
        self._rows[key].turn(max(at_ms, silence.closed_ms), silence.before)

    def _key(self, member: Member) -> str:
        return f"instance {member.instance}" if member.instance is not None else member.id
