"""What clients sent and were told, over all the lives of one data directory.

Plain data, recorded by the load and judged by `checker`. A life ends with a kill: what was not acknowledged
by then may or may not have happened, and once somebody has looked, that is settled.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Commits:
    """One committer's commits: each carries the next number, to all of its partitions at once."""

    group: str
    topic: str
    partitions: tuple[int, ...]
    sent: int = 0
    acknowledged: int = 0
    first_of_life: int = 1
    """Commits sent before this that are not there by now will never come."""

    @property
    def unacknowledged(self) -> int:
        return self.sent - max(self.acknowledged, self.first_of_life - 1)

    def metadata(self, number: int) -> str:
        """The metadata of a commit, which shows whether it belongs to the offset beside it."""
        return f"{self.group} {self.topic} {number}"

    def settle(self, number: int) -> None:
        """After a kill, `number` was read: that is the outcome."""
        self.acknowledged, self.first_of_life = number, self.sent + 1


@dataclass
class Sent:
    """A batch as sent: its number of records, and its sequence if the producer is idempotent."""

    records: int
    sequence: int = -1
    offset: int | None = None  # as acknowledged


@dataclass
class Produced:
    """One producer's batches to one partition, in the order sent, each sent before the next."""

    name: str
    topic: str
    partition: int
    producer_id: int = -1
    batches: list[Sent] = field(default_factory=list)
    settled: int = 0
    """This many batches were read after a kill: they stay."""
    ended: bool = False
    """It died with its connection: batches missing then will never come."""

    @property
    def idempotent(self) -> bool:
        return self.producer_id >= 0

    @property
    def unacknowledged(self) -> int:
        return sum(1 for each in self.batches if each.offset is None)

    @property
    def acknowledged(self) -> int:
        """The number of leading batches that must be there."""
        count = len(self.batches)
        while count > self.settled and self.batches[count - 1].offset is None:
            count -= 1
        return count

    def value(self, number: int, record: int) -> bytes:
        return b"%s %d %d/%d " % (self.name.encode(), number, record, self.batches[number].records)

    def settle(self, count: int) -> None:
        """After a kill, `count` batches were read. That is the end of a producer that does not retry."""
        self.settled, self.ended = count, not self.idempotent


@dataclass(frozen=True)
class GroupState:
    """What a group's coordinator must still know after a crash, as in Kafka: the last generation that was
    synced or emptied, and its members (id to assignment)."""

    generation: int
    members: tuple[tuple[str, bytes], ...]

    @property
    def state(self) -> str:
        return "Stable" if self.members else "Empty"


@dataclass
class GroupLife:
    """One group's acknowledged state and, while a request that changes it is in flight, the next one."""

    group: str
    durable: GroupState
    under_way: GroupState | None = None

    @property
    def possible(self) -> list[GroupState]:
        return [self.durable] if self.under_way is None else [self.durable, self.under_way]
