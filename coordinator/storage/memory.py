"""A store in memory, for tests, the simulator and `serve --ephemeral`. It lives as long as its object."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import islice
from operator import attrgetter
from types import MappingProxyType
from uuid import UUID, uuid4

from muster.coordinator.base.clock import monotonic_ms
from muster.coordinator.storage.lease_table import LeaseTable
from muster.coordinator.storage.mailboxes import Mailboxes
from muster.coordinator.storage.store import (
    FIRST_SEQ,
    LEASE_COUNTS_DEFAULT,
    Append,
    BrokerConfigsRow,
    Deliver,
    Grant,
    JournalBounds,
    Lease,
    LeaseKind,
    Letter,
    NodeRow,
    Outcome,
    Posted,
    RecordBounds,
    Replicas,
    StoreClosed,
    StoreConflict,
    StoreCounts,
    StoredJournalRow,
    StoredRecord,
    TopicRow,
    whole_rows,
)
from muster.coordinator.storage.texts import numbered


@dataclass(slots=True)
class _LeaseRow:
    epoch: int = 0
    next_seq: int = FIRST_SEQ
    # In order of seq, since an upsert removes the key and inserts it again at the end.
    records: dict[bytes, tuple[int, bytes]] = field(default_factory=dict)
    tombstones: list[StoredRecord] = field(default_factory=list)  # by seq
    journal: list[StoredJournalRow] = field(default_factory=list)
    journal_end: int = 0
    journal_bytes: int = 0

    @property
    def journal_start(self) -> int:
        return self.journal_end - len(self.journal)

    def copy(self) -> _LeaseRow:
        """A copy that shares the rows, which are immutable."""
        return replace(
            self, records=dict(self.records), tombstones=list(self.tombstones), journal=list(self.journal)
        )

    def stored(self, from_seq: int) -> Iterator[StoredRecord]:
        """Records and tombstones, by seq."""
        live = (
            StoredRecord(seq, key, value) for key, (seq, value) in self.records.items() if seq >= from_seq
        )
        first = bisect_left(self.tombstones, from_seq, key=attrgetter("seq"))
        return merge(live, islice(self.tombstones, first, None), key=attrgetter("seq"))

    def owned_in(self, epoch: int) -> bool:
        return self.epoch == epoch and epoch >= 1  # below 1: never claimed


@dataclass(frozen=True, slots=True)
class MemoryImage:
    """The contents of a `MemoryStore` at one moment, except lease holders, nodes and allocated ids."""

    leases: Mapping[Lease, _LeaseRow]
    topics: Mapping[UUID, TopicRow]
    replica_lists: Mapping[Replicas, int]
    broker_configs: Mapping[str, BrokerConfigsRow]


class MemoryStore:
    """A `Store` without a disk. Every method finishes within one turn of the event loop, so calls never wait.

    Like a file, it can be closed and opened again: nothing is lost, and leases keep their terms.
    """

    def __init__(
        self,
        *,
        now_ms: Callable[[], int] = monotonic_ms,
        lease_counts: Mapping[LeaseKind, int] | None = None,
        cluster_id: UUID | None = None,
    ) -> None:
        counts = {**LEASE_COUNTS_DEFAULT, **(lease_counts or {})}
        self.changed: list[Callable[[], None]] = []
        self.era = 0
        self._now_ms = now_ms
        self._open = False
        self._counts = StoreCounts(cluster_id or uuid4(), counts)
        self._leases: dict[Lease, _LeaseRow] = {}  # only those ever asked for
        self._topics: dict[UUID, TopicRow] = {}
        self._replica_lists: dict[Replicas, int] = {}
        self._broker_configs: dict[str, BrokerConfigsRow] = {}
        self._lease_table = LeaseTable()
        self._mailboxes = Mailboxes()
        self._revision = 0
        self._next_producer_id = 0

    def __repr__(self) -> str:
        records = sum(len(row.records) for row in self._leases.values())
        return f"<MemoryStore records={records} topics={len(self._topics)} {self._lease_table!r}>"

    async def open(self) -> None:
        self._open = True

    async def close(self) -> None:
        self._open = False
        self._mailboxes.close_all()

    # --- images -----------------------------------------------------------------------------------

    def image(self) -> MemoryImage:
        """A snapshot of what is stored."""
        leases = {lease: row.copy() for lease, row in self._leases.items()}
        return MemoryImage(leases, dict(self._topics), dict(self._replica_lists), dict(self._broker_configs))

    def restore(self, image: MemoryImage) -> None:
        """Restore an image of this store. Epochs are kept: whoever has read what was stored before must claim
        again."""
        for lease, now in self._leases.items():
            then = image.leases.get(lease)
            self._leases[lease] = _LeaseRow() if then is None else then.copy()
            self._leases[lease].epoch = now.epoch
        self._topics = dict(image.topics)
        self._replica_lists |= image.replica_lists  # numbers are never reused
        self._broker_configs = dict(image.broker_configs)
        self._change()

    # --- records ----------------------------------------------------------------------------------

    async def append(self, appends: Sequence[Append]) -> list[Outcome]:
        self._check_open()
        return [self._append(append) for append in appends]

    def _append(self, append: Append) -> Outcome:
        row = self._leases.get(append.lease)
        if row is None or not row.owned_in(append.epoch):
            return Outcome.FENCED
        for key, value in append.records:
            row.records.pop(key, None)
            if value is not None:
                row.records[key] = (row.next_seq, value)
            else:
                row.tombstones.append(StoredRecord(row.next_seq, key, None, append.at_ms))
            row.next_seq += 1
        for told in append.journal:
            row.journal.append(StoredJournalRow(row.journal_end, *told))
            row.journal_end += 1
            row.journal_bytes += told.size_bytes
        return Outcome.WRITTEN

    async def load(self, lease: Lease) -> list[tuple[int, bytes, bytes]]:
        self._check_open()
        row = self._lease_row(lease)
        return [(seq, key, value) for key, (seq, value) in row.records.items()]

    async def read_records(
        self, lease: Lease, seq: int, *, rows_max: int, bytes_max: int
    ) -> list[StoredRecord]:
        self._check_open()
        return whole_rows(islice(self._lease_row(lease).stored(seq), rows_max), bytes_max)

    async def next_seq(self, lease: Lease) -> int:
        self._check_open()
        return self._lease_row(lease).next_seq

    async def record_bounds(self, lease: Lease) -> RecordBounds:
        self._check_open()
        row = self._lease_row(lease)
        return RecordBounds(row.next_seq, sum(record.size_bytes for record in row.stored(FIRST_SEQ)))

    async def remove_tombstones(self, lease: Lease, epoch: int, *, before_ms: int, count_max: int) -> int:
        self._check_open()
        row = self._lease_row(lease)
        if not row.owned_in(epoch):
            return 0
        before = len(row.tombstones)
        newest_seq = row.next_seq - 1
        row.tombstones = [
            each
            for number, each in enumerate(row.tombstones)
            if each.seq == newest_seq or (each.deleted_ms >= before_ms and before - number <= count_max)
        ]
        return before - len(row.tombstones)

    # --- the journal ------------------------------------------------------------------------------

    async def read_journal(
        self, lease: Lease, offset: int, *, rows_max: int, bytes_max: int
    ) -> list[StoredJournalRow]:
        self._check_open()
        row = self._lease_row(lease)
        first = max(offset - row.journal_start, 0)
        return whole_rows(islice(row.journal, first, first + rows_max), bytes_max)

    async def journal_bounds(self, lease: Lease) -> JournalBounds:
        self._check_open()
        row = self._lease_row(lease)
        return JournalBounds(row.journal_start, row.journal_end, row.journal_bytes)

    async def journal_offset_at(self, lease: Lease, at_ms: int) -> int | None:
        self._check_open()
        return next((row.offset for row in self._lease_row(lease).journal if row.at_ms >= at_ms), None)

    async def journal_newest(self, lease: Lease) -> int | None:
        self._check_open()
        newest = max(self._lease_row(lease).journal, key=lambda row: row.at_ms, default=None)
        return None if newest is None else newest.offset

    async def trim_journal(self, lease: Lease, epoch: int, before_offset: int) -> bool:
        self._check_open()
        row = self._lease_row(lease)
        if not row.owned_in(epoch):
            return False
        count = max(before_offset - row.journal_start, 0)
        row.journal_bytes -= sum(each.size_bytes for each in row.journal[:count])
        del row.journal[:count]
        return True

    # --- leases -----------------------------------------------------------------------------------

    async def claim(
        self, leases: Sequence[Lease], node_id: int, term_ms: int, *, incarnation: UUID | None = None
    ) -> list[Grant | None]:
        self._check_open()
        rows = {lease: self._lease_row(lease) for lease in leases}
        now_ms = self._now_ms()
        taken = self._lease_table.begin_claim(leases, node_id, now_ms, incarnation)
        for lease in taken:
            rows[lease].epoch += 1
        epochs = {lease: rows[lease].epoch for lease in taken}
        grants = self._lease_table.end_claim(taken, node_id, epochs, term_ms, now_ms)
        if grants:
            self._tell()
        return [grants.get(lease) for lease in leases]

    async def announce(self, grants: Sequence[Grant]) -> None:
        self._check_open()
        self._check_known(grants)
        if self._lease_table.announce(grants):
            self._tell()

    async def renew(self, grants: Sequence[Grant], term_ms: int) -> list[int | None]:
        self._check_open()
        self._check_known(grants)
        return self._lease_table.renew(grants, term_ms, self._now_ms())

    async def release(self, grants: Sequence[Grant]) -> None:
        self._check_open()
        self._check_known(grants)
        if self._lease_table.release(grants):
            self._tell()

    async def holders(self, kind: LeaseKind) -> dict[int, Grant]:
        self._check_open()
        return self._lease_table.holders(kind, self._now_ms())

    def runs_out_in(self, sparing: Container[int]) -> int | None:
        return self._lease_table.runs_out_in(sparing, self._now_ms())

    def let_pass(self, ms: int, sparing: Container[int]) -> None:
        if self._lease_table.let_pass(ms, sparing, self._now_ms()):
            self._tell()

    # --- topics -----------------------------------------------------------------------------------

    async def create_topic(self, topic: TopicRow) -> None:
        self._check_open()
        if topic.topic_id in self._topics:
            raise StoreConflict(f"creating topic {topic.name!r}: the id {topic.topic_id} is taken")
        self._check_name_free(topic)
        self._topics[topic.topic_id] = topic
        self._change()

    async def update_topic(
        self,
        topic: TopicRow,
        *,
        expected: TopicRow | None = None,
        epochs: Mapping[Lease, int] = MappingProxyType({}),
    ) -> None:
        self._check_open()
        stored = self._topics.get(topic.topic_id)
        if stored is None:
            raise StoreConflict(f"updating topic {topic.name!r}: there is no topic with id {topic.topic_id}")
        if expected is not None and stored != expected:
            raise StoreConflict(f"updating topic {topic.name!r}: it was changed in the meantime")
        if any(self._lease_row(lease).epoch != epoch for lease, epoch in epochs.items()):
            raise StoreConflict(f"updating topic {topic.name!r}: a lease has moved in the meantime")
        self._check_name_free(topic)
        self._topics[topic.topic_id] = topic
        self._change()

    async def delete_topic(self, topic_id: UUID) -> bool:
        self._check_open()
        if self._topics.pop(topic_id, None) is None:
            return False
        self._change()
        return True

    async def topics(self) -> list[TopicRow]:
        self._check_open()
        return sorted(self._topics.values(), key=lambda topic: topic.name)

    # --- replica lists ----------------------------------------------------------------------------

    async def replica_lists(self) -> dict[Replicas, int]:
        self._check_open()
        return dict(self._replica_lists)

    async def add_replica_lists(self, lists: Collection[Replicas]) -> None:
        self._check_open()
        new = numbered(self._replica_lists, lists, self._counts.leases[LeaseKind.REPLICAS])
        if new:
            self._replica_lists |= new
            self._change()

    # --- broker configs ---------------------------------------------------------------------------

    async def broker_configs(self) -> list[BrokerConfigsRow]:
        self._check_open()
        return [row for _, row in sorted(self._broker_configs.items())]

    async def update_broker_configs(self, row: BrokerConfigsRow, *, expected: Mapping[str, str]) -> None:
        self._check_open()
        stored = self._broker_configs.get(row.broker)
        if (stored.configs if stored else {}) != expected:
            raise StoreConflict(f"updating configs of broker {row.broker!r}: changed in the meantime")
        if row.configs:
            self._broker_configs[row.broker] = row
        else:
            self._broker_configs.pop(row.broker, None)
        self._change()

    # --- nodes ------------------------------------------------------------------------------------

    async def register_node(self, node: NodeRow) -> None:
        self._check_open()
        if self._lease_table.register(node, self._now_ms()):
            self._tell()

    async def remove_node(self, node_id: int, incarnation: UUID) -> None:
        self._check_open()
        if self._lease_table.remove(node_id, incarnation):
            self._tell()

    async def nodes(self) -> list[NodeRow]:
        self._check_open()
        return self._lease_table.nodes(self._now_ms())

    # --- post -------------------------------------------------------------------------------------

    async def post(self, letters: Sequence[Letter]) -> list[Posted]:
        self._check_open()
        now_ms = self._now_ms()
        return self._mailboxes.post(
            letters,
            in_force=self._in_force,
            registered=lambda node_id: self._lease_table.incarnation(node_id, now_ms),
        )

    def _in_force(self, lease: Lease, epoch: int) -> bool:
        row = self._leases.get(lease)
        return row is not None and row.owned_in(epoch)

    def open_mailbox(self, node_id: int, incarnation: UUID, deliver: Deliver) -> None:
        self._check_open()
        self._mailboxes.open(node_id, incarnation, deliver)

    def close_mailbox(self, node_id: int, incarnation: UUID) -> None:
        self._mailboxes.close(node_id, incarnation)

    # --- the rest ---------------------------------------------------------------------------------

    async def counts(self) -> StoreCounts:
        self._check_open()
        return self._counts

    async def revision(self) -> int:
        self._check_open()
        return self._revision + self._lease_table.revision

    async def allocate_producer_ids(self, count: int) -> int:
        self._check_open()
        first = self._next_producer_id
        self._next_producer_id += count
        return first

    # ----------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if not self._open:
            raise StoreClosed("the in-memory store is not open")

    def _lease_row(self, lease: Lease) -> _LeaseRow:
        row = self._leases.get(lease)
        if row is None:
            if not 0 <= lease.number < self._counts.leases.get(lease.kind, 0):
                raise StoreConflict(f"there is no lease {lease.kind} {lease.number}")
            row = self._leases[lease] = _LeaseRow()
        return row

    def _check_known(self, grants: Sequence[Grant]) -> None:
        for grant in grants:
            self._lease_row(grant.lease)

    def _check_name_free(self, topic: TopicRow) -> None:
        for stored in self._topics.values():
            if stored.name == topic.name and stored.topic_id != topic.topic_id:
                raise StoreConflict(f"the topic name {topic.name!r} is taken by {stored.topic_id}")

    def _change(self) -> None:
        self._revision += 1
        self._tell()

    def _tell(self) -> None:
        for callback in tuple(self.changed):
            callback()
