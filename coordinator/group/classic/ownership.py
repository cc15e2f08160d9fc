"""Who owns which partitions by the leaders' assignments, and what moved between two of them.

To the group itself, assignments are opaque: this is for those who ask what a rebalance has changed. Nothing
that a leader can send is an error here, and what would take too long to compare is not compared.
"""

from __future__ import annotations

import struct as binary
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from muster.coordinator.group.classic.member import LISTED_MAX, ClassicMember
from muster.coordinator.group.events import MOVES_MAX, Move
from muster.protocol.text import LENIENT

Ownership = Mapping[ClassicMember, bytes]
"""What each member was assigned in a generation, as bytes; members that have left since are included."""

_INT16: Final = binary.Struct(">h")
_INT32: Final = binary.Struct(">i")

_Owners = dict[str, dict[int, ClassicMember]]


class Compared(NamedTuple):
    """What an assignment changed from the previous one, as `events.Assigned` reports it."""

    partitions: int | None = None
    kept: int | None = None
    moved: int | None = None
    lost: int | None = None
    moves: tuple[Move, ...] | None = None
    owned: Mapping[str, int] | None = None
    truncated: bool = False


UNREADABLE: Final = Compared()


class _Unreadable(Exception):
    """The bytes are not an assignment, or too many."""


def compare(before: Ownership, after: Ownership) -> Compared:
    """What moved. UNREADABLE if either holds bytes that are not a ConsumerProtocolAssignment, or more than is
    worth looking at."""
    try:
        old, _ = _owners(before)
        new, counts = _owners(after)
    except _Unreadable:
        return UNREADABLE
    kept = moved = lost = 0
    moves: list[Move] = []
    for topic, owners in new.items():
        had = old.get(topic, {})
        for partition, owner in owners.items():
            former = had.get(partition)
            if former is owner:
                kept += 1
                continue
            moved += former is not None
            if len(moves) < MOVES_MAX:
                from_id = None if former is None else former.member_id
                moves.append(Move(topic, partition, from_id, owner.member_id))
    for topic, owners in old.items():
        has = new.get(topic, {})
        for partition in owners.keys() - has.keys():
            lost += 1
            if len(moves) < MOVES_MAX:
                moves.append(Move(topic, partition, owners[partition].member_id, None))
    owned = {member.member_id: count for member, count in counts[:MOVES_MAX]}
    partitions = sum(map(len, new.values()))
    changed = partitions - kept + lost
    return Compared(
        partitions=partitions,
        kept=kept,
        moved=moved,
        lost=lost,
        moves=tuple(sorted(moves)),  # by partition: no two moves share one
        owned=owned,
        truncated=changed > MOVES_MAX or len(counts) > MOVES_MAX,
    )


def owner(ownership: Ownership, topic: str, partition: int) -> ClassicMember | None:
    """Who was assigned the partition; None: nobody, or not known."""
    try:
        return _owners(ownership)[0].get(topic, {}).get(partition)
    except _Unreadable:
        return None


def withholds(ownership: Ownership, partitions: Collection[tuple[str, int]]) -> bool:
    """Whether one of these partitions has no owner; False if that is not known."""
    try:
        owners = _owners(ownership)[0] if partitions else {}
    except _Unreadable:
        return False
    return any(partition not in owners.get(topic, ()) for topic, partition in partitions)


def unseen(ownership: Ownership, grown: Iterable[tuple[str, int, int]]) -> set[str]:
    """Of topics with other partition counts (name, then, now), those that the leader assigned by the former
    count: none of the new partitions, or also partitions that are gone. Empty if the assignment cannot be
    read."""
    try:
        owners, _ = _owners(ownership)
    except _Unreadable:
        return set()
    found: set[str] = set()
    for name, then, now in grown:
        fewer = min(then, now)
        beyond = any(partition >= fewer for partition in owners.get(name, ()))
        if beyond != (now > then):
            found.add(name)
    return found


def _owners(ownership: Ownership) -> tuple[_Owners, list[tuple[ClassicMember, int]]]:
    """The owner of each partition, and how many each member has. Raises _Unreadable."""
    owners: _Owners = {}
    counts: list[tuple[ClassicMember, int]] = []
    room = LISTED_MAX
    for member, assignment in ownership.items():
        count = 0
        for topic, partitions in assigned_partitions(assignment, room):
            owners.setdefault(topic, {}).update(dict.fromkeys(partitions, member))
            count += len(partitions)
            room -= 1 + len(partitions)
        counts.append((member, count))
    return owners, counts


def assigned_partitions(blob: bytes, room: int = LISTED_MAX) -> list[tuple[str, tuple[int, ...]]]:
    """Reads what `embedded.decode_assignment` reads, in a third of the time: a generation of thousands of
    members is read at once. Raises _Unreadable where that raises DecodeError, and if there are more than
    `room` topics and partitions."""
    found: list[tuple[str, tuple[int, ...]]] = []
    try:
        version, topics = _INT16.unpack_from(blob)[0], _INT32.unpack_from(blob, 2)[0]
        room -= topics
        if version < 0 or topics < 0 or room < 0:
            raise _Unreadable
        at = 6
        for _ in range(topics):
            length = _INT16.unpack_from(blob, at)[0]
            at += 2 + length
            name = blob[at - length : at]
            count = _INT32.unpack_from(blob, at)[0]
            room -= count
            if length < 0 or count < 0 or room < 0:
                raise _Unreadable
            found.append((name.decode("utf-8", LENIENT), binary.unpack_from(f">{count}i", blob, at + 4)))
            at += 4 + 4 * count
        user_data = _INT32.unpack_from(blob, at)[0]
    except (binary.error, UnicodeDecodeError):
        raise _Unreadable from None
    if user_data < -1 or at + 4 + user_data > len(blob):
        raise _Unreadable
    return found
