"""What transactional producers sent and what they were told, over all the lives of one data directory.

Plain data, filled in by the load and judged by `checker`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

Place: TypeAlias = tuple[str, int]
"""Topic and partition."""


class Producer(NamedTuple):
    """One start of a transactional id, or with KIP-890 one transaction of it."""

    id: int
    epoch: int


class Slot(NamedTuple):
    """Where a group's offset is kept."""

    group: str
    topic: str
    partition: int


@dataclass
class Batch:
    """As it is sent to one place."""

    place: Place
    sequence: int
    values: tuple[bytes, ...]
    acknowledged: bool = False


@dataclass
class Transaction:
    """What it is to write, and how it went. The offset that it commits for its slots is its number."""

    transactional_id: str
    number: int
    producer: Producer
    batches: list[Batch] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    late: set[bytes] = field(default_factory=set)
    """Values that its producer sent after it had been fenced."""
    commits: bool | None = None
    """What its EndTxn asks for; None before that is sent."""
    ended: bool = False
    """It is acknowledged to have ended as asked for."""
    fenced: bool = False
    """It is known to have been aborted because another producer has taken its place."""
    shown: bool = False
    """A reader of committed records or offsets has seen something of it."""
    settled: bool | None = None
    """Whether it was found to be committed, when all was at rest after a kill: that stays."""

    @property
    def name(self) -> str:
        return f"transaction {self.number} of {self.transactional_id}"

    @property
    def metadata(self) -> str:
        """What stands beside its offsets."""
        return f"{self.transactional_id} {self.number}"

    @property
    def groups(self) -> list[str]:
        """Of its slots."""
        return [*dict.fromkeys(slot.group for slot in self.slots)]

    @property
    def over(self) -> bool:
        return self.ended or self.fenced or self.settled is not None

    @property
    def why_hidden(self) -> str:
        """Why readers of what is committed must not see it; empty when they may."""
        if self.settled is not None:
            return "" if self.settled else "was aborted by an earlier life"
        if self.fenced:
            return "is of a producer that was fenced"
        if self.commits is None:
            return "is open"
        return "" if self.commits else "was to be aborted"

    @property
    def why_shown(self) -> str:
        """Why they must see it; empty when they need not."""
        if self.settled:
            return "was there in an earlier life"
        if self.commits and self.ended:
            return "was acknowledged as committed"
        return "was seen before" if self.shown else ""

    def values(self, place: Place) -> tuple[bytes, ...]:
        """Those that it is to write there, in order."""
        return tuple(value for batch in self.batches if batch.place == place for value in batch.values)


@dataclass
class Transactional:
    """One transactional id's."""

    name: str
    producers: list[Producer] = field(default_factory=list)
    """As the coordinator named them, in order."""
    transactions: list[Transaction] = field(default_factory=list)

    def begin(self, producer: Producer) -> Transaction:
        self.transactions.append(Transaction(self.name, len(self.transactions) + 1, producer))
        return self.transactions[-1]

    @property
    def open(self) -> Transaction | None:
        """The last one, unless it is over."""
        last = self.transactions[-1] if self.transactions else None
        return None if last is None or last.over else last

    def value(self, transaction: Transaction, index: int) -> bytes:
        return b"%s %d %d" % (self.name.encode(), transaction.number, index)

    def offsets(self, slot: Slot) -> list[Transaction]:
        """Those that have an offset for this slot."""
        return [each for each in self.transactions if slot in each.slots]
