"""Reads fields of entries defensively: an entry may come from a newer or older broker, or from anyone. An
unexpected value counts as absent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from muster.coordinator.journal.entries import Entry, Member
from muster.coordinator.journal.explain.vocabulary import COMPLETING, DEAD, EMPTY, PREPARING

_SAME_INSTANCE: Final = ("member_replaced", "member_fenced")
"""Their old_member_id is a former id of the same member."""


class Move(NamedTuple):
    """A partition that changed owners; None is no owner."""

    topic: str
    partition: int
    from_member: str | None
    to_member: str | None


class Position(NamedTuple):
    """A group's position in a partition, and the partition's end."""

    committed: int
    end: int


class Growth(NamedTuple):
    """Partitions of a topic, before and now; 0 if it did not or does not exist."""

    topic: str
    before: int
    now: int


def whole(entry: Entry, name: str) -> int | None:
    """A field with an integer."""
    return _whole(entry.data.get(name))


def flag(entry: Entry, name: str) -> bool | None:
    """A field with a boolean."""
    value = entry.data.get(name)
    return value if isinstance(value, bool) else None


def text(entry: Entry, name: str) -> str | None:
    """A field with text."""
    value = entry.data.get(name)
    return value if isinstance(value, str) else None


def texts(entry: Entry, name: str) -> list[str]:
    """A field with a list of texts."""
    return [each for each in _list(entry.data.get(name)) if isinstance(each, str)]


def member(entry: Entry, name: str) -> Member | None:
    """A field with a member."""
    return _member(entry.data.get(name))


def members(entry: Entry, name: str) -> list[Member]:
    """A field with a list of members."""
    found = [_member(each) for each in _list(entry.data.get(name))]
    return [each for each in found if each is not None]


def joins(entry: Entry) -> list[tuple[Member, int]]:
    """The slowest members to join and their times in ms, from a rebalance_completed."""
    found: list[tuple[Member, int]] = []
    for each in _list(entry.data.get("joins")):
        match each:
            case [value, int(after_ms)] if (who := _member(value)) is not None:
                found.append((who, after_ms))
    return found


def moves(entry: Entry) -> list[Move]:
    """The moves of an `assigned` or `target_assigned`."""
    found: list[Move] = []
    for each in _list(entry.data.get("moves")):
        match each:
            case [str(topic), int(partition), (str() | None) as old, (str() | None) as new]:
                found.append(Move(topic, partition, old, new))
    return found


def partitions(entry: Entry, name: str = "partitions") -> list[tuple[str, int]]:
    """A field with a list of partitions."""
    found: list[tuple[str, int]] = []
    for each in _list(entry.data.get(name)):
        match each:
            case [str(topic), int(partition)]:
                found.append((topic, partition))
    return found


def growths(entry: Entry) -> list[Growth]:
    """The topics of a topics_grown."""
    found: list[Growth] = []
    for each in _list(entry.data.get("topics")):
        match each:
            case [str(topic), (int() | None) as before, (int() | None) as now]:
                found.append(Growth(topic, before or 0, now or 0))
    return found


def counts(entry: Entry, name: str) -> dict[str, int]:
    """A field with a number for each name."""
    value = entry.data.get(name)
    if not isinstance(value, Mapping):
        return {}
    return {key: each for key, each in value.items() if isinstance(key, str) and _whole(each) is not None}


def positions(entry: Entry) -> dict[tuple[str, int], Position]:
    """A group's positions from a lag_at_commit or rebalance_completed; if there are many, those with the most
    lag."""
    found: dict[tuple[str, int], Position] = {}
    of_lag = {"lag_at_commit": "partitions", "rebalance_completed": "lag_partitions"}
    for each in _list(entry.data.get(of_lag.get(entry.type, ""))):
        match each:
            case [str(topic), int(partition), int(committed), int(behind)]:
                found[topic, partition] = Position(committed, committed + behind)
    return found


def lag(entry: Entry) -> int | None:
    """Records between committed offsets and log ends, from a lag_at_commit or rebalance_completed."""
    return _lag(entry.data.get("total" if entry.type == "lag_at_commit" else "lag"))


def lag_before(entry: Entry) -> int | None:
    """The lag before a rebalance, from its rebalance_completed."""
    return _lag(entry.data.get("lag_before"))


def _lag(value: object) -> int | None:
    return _whole(value.get("total")) if isinstance(value, Mapping) else _whole(value)


def same_client(one: Member, other: Member) -> bool:
    """Whether both ids probably belong to one client: the same instance id or, for dynamic members, the same
    client id and host."""
    if one.instance is not None or other.instance is not None:
        return one.instance == other.instance
    return (one.client_id, one.host) == (other.client_id, other.host)


def mentioned(entry: Entry) -> list[Member]:
    """Every member with an id in an entry."""
    found = [*members(entry, "waiting_for"), *members(entry, "dropped"), *(who for who, _ in joins(entry))]
    for name in ("last_joined", "last", "leader", "owner"):
        one = member(entry, name)
        if one is not None:
            found.append(one)
    if entry.member is not None:
        found.append(entry.member)
        # A leader_changed has one too, but of another member.
        old = text(entry, "old_member_id") if entry.type in _SAME_INSTANCE else None
        if old is not None:
            host = text(entry, "old_client_host") or entry.member.host
            found.append(entry.member._replace(id=old, host=host.lstrip("/")))
    return [each for each in found if each.id]


def everybody(entries: Iterable[Entry]) -> dict[str, Member]:
    """All members in the entries, by id, as last mentioned; requests do not always say a static member's
    instance."""
    found: dict[str, Member] = {}
    for entry in entries:
        for each in mentioned(entry):
            known = found.get(each.id)
            if known is None or known.instance is None or each.instance is not None:
                found[each.id] = each
    return found


_THERE: Final = frozenset(
    {
        "member_added",
        "member_rejoined",
        "member_replaced",
        "metadata_changed",
        "leader_changed",
        "heartbeat_late",
        "revocation_requested",
        "partitions_revoked",
        "partitions_assigned",
    }
)
"""Recorded only of current members."""


class Lost(NamedTuple):
    """The ids of members whose coming or going is lost with a rebalance."""

    came: frozenset[str] = frozenset()
    went: frozenset[str] = frozenset()


class Joining:
    """Who joins and leaves a rebalancing classic group. Its members are stored when it becomes Stable: a
    coordinator that takes over before knows those of before the rebalance."""

    def __init__(self) -> None:
        self._came: set[str] = set()
        self._went: set[str] = set()
        self.is_under_way = False
        """Whether the group rebalances."""

    def see(self, entry: Entry) -> Lost:
        """Take the next entry. Returns whom the group loses and gets back by it."""
        lost = Lost()
        match entry.type:
            case "member_added" if entry.member is not None:
                self._came.add(entry.member.id)
            case "member_removed" if entry.member is not None:
                self._went.add(entry.member.id)
            case "state_changed" if text(entry, "to_state") in (PREPARING, COMPLETING):
                self.is_under_way = True
            case "state_changed" | "protocol_migrated" | "shard_loaded":
                if entry.type == "shard_loaded" and self.is_under_way:
                    lost = Lost(frozenset(self._came), frozenset(self._went - self._came))
                self.is_under_way, self._came, self._went = False, set(), set()
        return lost


def present(entries: Iterable[Entry], before: Iterable[str] = ()) -> set[str]:
    """The ids of the members in the group after the last entry, as far as known; `before` were in it before
    the first."""
    there, joining = set(before), Joining()
    for entry in entries:
        lost = joining.see(entry)
        there = (there - lost.came) | lost.went
        match entry.type:
            case "state_changed":
                if text(entry, "to_state") in (EMPTY, DEAD):
                    there.clear()
                elif text(entry, "to_state") != COMPLETING:  # those did not come in time
                    there.update(each.id for each in members(entry, "waiting_for"))
            case "assigned" | "target_assigned":
                there.update(counts(entry, "owned"))
            case "member_removed" if entry.member is not None:
                there.discard(entry.member.id)
            case _ if entry.type in _THERE and entry.member is not None:
                there.discard(text(entry, "old_member_id") or "" if entry.type == "member_replaced" else "")
                there.add(entry.member.id)
    return there


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _member(value: object) -> Member | None:
    try:
        return Member.from_json(value)
    except ValueError:
        return None
