"""What clients of the cluster did and were told, as plain data: recorded by the load, judged by `checker`.

Moments are seconds of one monotonic clock, the same for all clients.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(slots=True)
class Commit:
    """One offset that a member sent for one partition; `acknowledged_at` is when it learned that the commit
    succeeded."""

    offset: int
    sent_at: float
    acknowledged_at: float | None = None

    def took_long(self, seconds: float) -> bool:
        """Whether it was not acknowledged within this many seconds."""
        return self.acknowledged_at is None or self.acknowledged_at - self.sent_at >= seconds


class Seen(NamedTuple):
    """A committed offset that somebody found, -1 for none, with the times of the query and the answer."""

    offset: int
    asked_at: float
    answered_at: float


@dataclass(slots=True)
class Stint:
    """A member's time with a partition: it reads on from the group's committed offset."""

    member: str
    partition: int
    begun_at: float
    first_offset: int | None = None
    first_read_at: float = 0.0
    next_offset: int = 0
    judged: bool = False


@dataclass
class GroupHistory:
    """One group's history. `rebalances` counts the assignments that its members received."""

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
        """Record a read. Raises ValueError if it does not follow the stint's previous record."""
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
        """A record below the stint's position. Raises ValueError if it differs from what was read before."""
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
    """One producer's records to one partition, numbered from 0; the value contains the number."""

    producer: str
    partition: int
    sent: int = 0
    acknowledged: dict[int, int | None] = field(default_factory=dict)
    """Number -> offset. None: librdkafka treats a batch as written once a later one of the partition is
    acknowledged, and does not know its offset."""

    def next(self) -> tuple[int, bytes]:
        number = self.sent
        self.sent += 1
        return number, value(self.producer, self.partition, number)

    def up_to(self, end_offset: int) -> Produced:
        """As far as the part of the log below this offset can show."""
        acknowledged = list(self.acknowledged.items())
        known = {number: at for number, at in acknowledged if at is not None and at < end_offset}
        before = max(known, default=-1)
        known |= {number: None for number, at in acknowledged if at is None and number < before}
        return Produced(self.producer, self.partition, self.sent, known)


def value(producer: str, partition: int, number: int) -> bytes:
    return f"{producer} {partition} {number}".encode()


class Owners(NamedTuple):
    """A generation of a group as written: its members' partitions as (topic, number). Static members appear
    under their instance id."""

    group: str
    generation: int
    owned: tuple[tuple[str, frozenset[tuple[str, int]]], ...]

    @classmethod
    def of(
        cls, group: str, generation: int, owned: Iterable[tuple[str, Iterable[tuple[str, int]]]]
    ) -> Owners:
        return cls(group, generation, tuple((name, frozenset(each)) for name, each in owned))


class Claim(NamedTuple):
    """A node raised a lease's epoch; committed at `at`, in seconds of the database's clock."""

    lease: str
    epoch: int
    node: int
    at: float


class Write(NamedTuple):
    """A node's transaction wrote under a lease whose epoch was `epoch` at that moment (None: not recorded);
    committed at `at`."""

    lease: str
    epoch: int | None
    node: int
    at: float
    table: str


class OffsetWrite(NamedTuple):
    """A group's offset written to the database, in order per partition; None: it was deleted."""

    group: str
    topic: str
    partition: int
    offset: int | None
