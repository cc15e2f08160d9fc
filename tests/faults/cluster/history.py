"""What clients of the cluster did and were told, as plain data: filled in by the load, judged by `checker`.

Moments are seconds of one monotonic clock, the same for all clients.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(slots=True)
class Commit:
    """One offset that a member sent for one partition; `acknowledged_at` once it was told that it is
    committed."""

    offset: int
    sent_at: float
    acknowledged_at: float | None = None

    def took_long(self, seconds: float) -> bool:
        """Whether it was not acknowledged within so many."""
        return self.acknowledged_at is None or self.acknowledged_at - self.sent_at >= seconds


class Seen(NamedTuple):
    """An offset that somebody found committed, -1 for none; the question was asked and answered then."""

    offset: int
    asked_at: float
    answered_at: float


@dataclass(slots=True)
class Stint:
    """A member's time with a partition: it reads from the offset that the group has committed."""

    member: str
    partition: int
    begun_at: float
    first_offset: int | None = None
    first_read_at: float = 0.0
    next_offset: int = 0
    judged: bool = False


@dataclass
class GroupHistory:
    """One group's. `rebalances` counts the assignments that its members were told of."""

    group: str
    commits: dict[int, list[Commit]] = field(default_factory=dict)
    stints: list[Stint] = field(default_factory=list)
    reads: dict[int, dict[int, bytes]] = field(default_factory=dict)
    """By partition and offset."""
    rebalances: int = 0

    def begin(self, member: str, partition: int, now: float) -> Stint:
        stint = Stint(member, partition, now)
        self.stints.append(stint)
        return stint

    def read(self, stint: Stint, offset: int, value: bytes, now: float) -> None:
        """Raises ValueError when the stint goes on elsewhere than behind the record before."""
        if stint.first_offset is None:
            stint.first_offset, stint.first_read_at = offset, now
        elif offset != stint.next_offset:
            began = f"{now - stint.begun_at:.1f} s after it had begun at {stint.first_offset}"
            told = f"read {offset} in place of {stint.next_offset}, {began}"
            raise ValueError(f"{stint.member}, partition {stint.partition}: {told}")
        stint.next_offset = offset + 1
        found = self.reads.setdefault(stint.partition, {}).setdefault(offset, value)
        if found != value:
            raise ValueError(f"{stint.member} read {value!r} at {offset}, where {found!r} was read before")

    def read_again(self, stint: Stint, offset: int, value: bytes) -> None:
        """A record behind the stint's position. Raises ValueError when it is not what was read before."""
        found = self.reads[stint.partition].get(offset)
        if found != value:
            raise ValueError(
                f"{stint.member} read {value!r} again at {offset}, where {found!r} was read before"
            )

    def sent(self, partition: int, offset: int, now: float) -> Commit:
        commit = Commit(offset, now)
        self.commits.setdefault(partition, []).append(commit)
        return commit


@dataclass(slots=True)
class Produced:
    """One producer's records to one partition: numbered from 0, the value says so."""

    producer: str
    partition: int
    sent: int = 0
    acknowledged: dict[int, int | None] = field(default_factory=dict)
    """Number to offset. None: librdkafka takes a batch to be written once a later one of the partition is
    acknowledged, and does not know its offset."""

    def next(self) -> tuple[int, bytes]:
        number = self.sent
        self.sent += 1
        return number, value(self.producer, self.partition, number)

    def up_to(self, end_offset: int) -> Produced:
        """As far as the log's part below this offset can tell."""
        acknowledged = list(self.acknowledged.items())
        known = {number: at for number, at in acknowledged if at is not None and at < end_offset}
        before = max(known, default=-1)
        known |= {number: None for number, at in acknowledged if at is None and number < before}
        return Produced(self.producer, self.partition, self.sent, known)


def value(producer: str, partition: int, number: int) -> bytes:
    return f"{producer} {partition} {number}".encode()


class Owners(NamedTuple):
    """A generation of a group as it was written: its members' partitions, each of (topic, number). Static
    members stand under their instance id."""

    group: str
    generation: int
    owned: tuple[tuple[str, frozenset[tuple[str, int]]], ...]

    @classmethod
    def of(
        cls, group: str, generation: int, owned: Iterable[tuple[str, Iterable[tuple[str, int]]]]
    ) -> Owners:
        return cls(group, generation, tuple((name, frozenset(each)) for name, each in owned))


class Claim(NamedTuple):
    """A lease's epoch was raised by a node; committed at `at`, seconds by the database's clock."""

    lease: str
    epoch: int
    node: int
    at: float


class Write(NamedTuple):
    """A transaction of a node wrote under a lease, whose epoch was `epoch` at that moment (None: not noted);
    committed at `at`."""

    lease: str
    epoch: int | None
    node: int
    at: float
    table: str


class OffsetWrite(NamedTuple):
    """A group's offset was written in the database, in this order per partition; None: it was deleted."""

    group: str
    topic: str
    partition: int
    offset: int | None
