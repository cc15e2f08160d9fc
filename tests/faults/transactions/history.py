"""What transactional producers sent and were told, over all the lives of one data directory.

Plain data, recorded by the load and judged by `checker`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

Place: TypeAlias = tuple[str, int]
"""Topic and partition."""


class Producer(NamedTuple):
    """One start of a transactional id or, with KIP-890, one of its transactions."""

    id: int
    epoch: int


class Slot(NamedTuple):
    """The place where a group's offset is kept."""

    group: str
    topic: str
    partition: int


@dataclass
class Batch:
    """A batch as it is sent to one place."""

    place: Place
    sequence: int
    values: tuple[bytes, ...]
    acknowledged: bool = False


@dataclass
class Transaction:
    """What it should write, and its outcome. The offset that it commits for its slots is its number."""

    transactional_id: str
    number: int
    producer: Producer
    batches: list[Batch] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    late: set[bytes] = field(default_factory=set)
    """Values that its producer sent after it had been fenced."""
    commits: bool | None = None
    """Whether its EndTxn asks for a commit; None until that is sent."""
    ended: bool = False
    """Whether it was acknowledged to have ended as requested."""
    fenced: bool = False
    """Whether it is known to have been aborted because another producer has replaced its own."""
    shown: bool = False
    """Whether a reader of committed records or offsets has seen something of it."""
    settled: bool | None = None
    """Whether it was found committed at rest after a kill: that is final."""

    @property
    def name(self) -> str:
        return f"transaction {self.number} of {self.transactional_id}"

    @property
    def metadata(self) -> str:
        """The metadata of its offsets."""
        return f"{self.transactional_id} {self.number}"

    @property
    def groups(self) -> list[str]:
        """The groups of its slots."""
        return [*dict.fromkeys(slot.group for slot in self.slots)]

    @property
    def over(self) -> bool:
        return self.ended or self.fenced or self.settled is not None

    @property
    def why_hidden(self) -> str:
        """Why read_committed readers must not see it; empty if they may."""
        if self.settled is not None:
            return "" if self.settled else "was aborted by an earlier life"
        if self.fenced:
            return "is of a producer that was fenced"
        if self.commits is None:
            return "is open"
        return "" if self.commits else "was to be aborted"

    @property
    def why_shown(self) -> str:
        """Why they must see it; empty if they need not."""
        if self.settled:
            return "was there in an earlier life"
        if self.commits and self.ended:
            return "was acknowledged as committed"
        return "was seen before" if self.shown else ""

    def values(self, place: Place) -> tuple[bytes, ...]:
        """The values that it should write there, in order."""
        return tuple(value for batch in self.batches if batch.place == place for value in batch.values)


@dataclass
class Transactional:
    """The history of one transactional id."""

    name: str
    producers: list[Producer] = field(default_factory=list)
    """In the order in which the coordinator returned them."""
    transactions: list[Transaction] = field(default_factory=list)

    def begin(self, producer: Producer) -> Transaction:
        self.transactions.append(Transaction(self.name, len(self.transactions) + 1, producer))
        return self.transactions[-1]

    @property
    def open(self) -> Transaction | None:
        """The last transaction, unless it is over."""
        last = self.transactions[-1] if self.transactions else None
        return None if last is None or last.over else last

    def value(self, transaction: Transaction, index: int) -> bytes:
        return b"%s %d %d" % (self.name.encode(), transaction.number, index)

    def offsets(self, slot: Slot) -> list[Transaction]:
        """The transactions that have an offset for this slot."""
        return [each for each in self.transactions if slot in each.slots]
