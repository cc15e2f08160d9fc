"""The storage contract: coordinator state as keyed records, a journal of what happened to it, and the leases
that say who may write both.

Kafka keeps a coordinator's state in a compacted log. Compaction means "the last value per key", and that is a
table; so a store is a table of records per lease, a table of leases, and a few small rows (topics, nodes,
producer ids). The journal is a log: its rows are numbered, and go from the front. `memory`, `sqlite` and
`postgres` implement the contract, and one suite (`tests/storage`) runs against each of them.

Rules that hold for every method of `Store`:

- *Durable on return.* A method that changes something returns when the change survives the death of the
  process and of the machine (memory: when it is visible). A caller that is cancelled may find its change
  made. Of leases and registrations only the epochs must survive the death of all who could hold them: where
  that is one process, a backend keeps the rest in its memory, and renewing goes on while nothing can be
  written.
- *Atomic.* Each call is one transaction. The appends of one call share it, each with an outcome of its own;
  what is grouped into a call is the caller's business (`runtime.appender`).
- *Ordered.* Changes of one store object take effect in the order in which its methods were called, but that
  renewals, releases, registrations and letters may overtake others. A read sees every change whose call
  returned before the read was made.
- *Never blocks the event loop.* Disk and network are reached from executors or asynchronously. A store object
  belongs to the event loop that opened it; several brokers on that loop may share it.
- *Time.* Terms are counted on the store's own clock, which never goes back nor leaps: a monotonic one where
  the store lives in one process, the server's where there is a server.
- *Errors.* `StoreConflict`, `StoreBusy`, `StoreFull` and `StoreClosed` mean that nothing was changed. Any
  other `StoreError` leaves the outcome unknown: whoever keeps state derived from the store drops it and
  loads again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable
from uuid import UUID

FIRST_SEQ = 1
"""The `seq` of the first record of a lease that never had any."""


class LeaseKind(StrEnum):
    """What a lease is for."""

    __hash__ = str.__hash__  # Enum's own is Python code, and every step of a shard looks its lease up

    GROUP = "group"
    """A shard of groups; `number` is Kafka's partition of `__consumer_offsets`."""
    TRANSACTION = "transaction"
    """A shard of transactional ids; `number` is Kafka's partition of `__transaction_state`, its epoch the
    coordinator epoch of the markers that its holder has written."""
    DATA = "data"
    """A shard of topic partitions that may be led by any broker; its epoch is their leader epoch."""
    REPLICAS = "replicas"
    """A shard of the topic partitions with one replica list; `number` is that of the list
    (`Store.replica_lists`), its epoch counts into their leader epoch (`Assignment`)."""


LETTER_BYTES_MAX = 1_048_576
"""Of a letter's payload."""
LETTERS_KEPT_MAX = 1_000
"""When as many letters to a node wait to be delivered, no more are taken."""
LETTERS_KEPT_BYTES_MAX = 16_777_216
"""Of their payloads: when as much waits, no more is taken."""

LEASE_COUNTS_DEFAULT: Mapping[LeaseKind, int] = MappingProxyType(
    {LeaseKind.GROUP: 50, LeaseKind.TRANSACTION: 50, LeaseKind.DATA: 50, LeaseKind.REPLICAS: 1_000}
)
"""Leases of each kind in a new store: offsets.topic.num.partitions, transaction.state.log.num.partitions, as
many shards for topic data, and as many replica lists as a cluster may ever use."""

Replicas = tuple[int, ...]
"""A replica list: node ids, the preferred leader first."""


class Lease(NamedTuple):
    """The name of a lease. All exist from the store's creation on, `number` in [0, count of the kind)."""

    kind: LeaseKind
    number: int


class Grant(NamedTuple):
    """A lease as held by a node.

    `epoch` is at least 1 and grows with every successful claim, for ever: it is kept when the lease is
    released or runs out. `remaining_ms` is how long the lease lasted when the store answered, by the store's
    clock. `announced` says that the holder has loaded what it serves under this epoch: clients are sent to it
    from then on.
    """

    lease: Lease
    node_id: int
    epoch: int
    remaining_ms: int
    announced: bool = False


class JournalRow(NamedTuple):
    """What happened, for whoever reads the lease's journal; `at_ms` is epoch time by the writer's clock."""

    at_ms: int
    key: bytes | None
    value: bytes

    @property
    def size_bytes(self) -> int:
        """What the row counts for: its key and value."""
        return len(self.key or b"") + len(self.value)


class StoredJournalRow(NamedTuple):
    """A row of a lease's journal. Rows are numbered from 0 without gaps, in the order of their appends;
    `at_ms` need not grow with `offset`, since holders' clocks differ."""

    offset: int
    at_ms: int
    key: bytes | None
    value: bytes

    @property
    def size_bytes(self) -> int:
        """What the row counts for: its key and value."""
        return len(self.key or b"") + len(self.value)


class _Sized(Protocol):
    @property
    def size_bytes(self) -> int: ...


S = TypeVar("S", bound=_Sized)


def whole_rows(rows: Iterable[S], bytes_max: int) -> list[S]:
    """The first of `rows`: as many as `bytes_max` has room for, but at least one if there is any."""
    found: list[S] = []
    for row in rows:
        bytes_max -= row.size_bytes
        if found and bytes_max < 0:
            break
        found.append(row)
    return found


class JournalBounds(NamedTuple):
    """Which rows a lease's journal has: those from `start` to below `end`, which is the next row's offset."""

    start: int
    end: int
    size_bytes: int
    """Of all keys and values."""


class Append(NamedTuple):
    """Records for one lease: (key, value) upserts the key, (key, None) deletes it, in order; the last one per
    key wins. `journal` are rows for the end of the lease's journal, written with the records or not at all.

    With neither it only asks whether `epoch` is still the lease's.
    """

    lease: Lease
    epoch: int
    records: Sequence[tuple[bytes, bytes | None]]
    journal: Sequence[JournalRow] = ()
    at_ms: int = 0
    """Epoch time by the writer's clock, of which tombstones tell."""


class StoredRecord(NamedTuple):
    """A lease's record as readers of `__consumer_offsets` see it: the last value of a key, or a tombstone
    (`value` None), which says that the key was deleted at `deleted_ms`, epoch time by the writer's clock."""

    seq: int
    key: bytes
    value: bytes | None
    deleted_ms: int = -1
    """-1: not deleted."""

    @property
    def size_bytes(self) -> int:
        """What the record counts for: its key and value."""
        return len(self.key) + len(self.value or b"")


class RecordBounds(NamedTuple):
    """What a lease's records come to, tombstones included."""

    next_seq: int
    """As `Store.next_seq`."""
    size_bytes: int
    """Of all keys and values."""


class Outcome(Enum):
    """What became of one `Append`."""

    WRITTEN = "written"
    """Durable."""
    FENCED = "fenced"
    """The epoch is not the lease's present one: nothing of this append was written, nor ever will be."""


class Assignment(NamedTuple):
    """Which brokers a partition is assigned to. The holder of the list's lease leads it, in the leader epoch
    `epoch_base` + the lease's epoch.

    A partition that was reassigned names the lease it was led under before, and that lease's epoch at the
    time: it may be led under the new lease once the old one has been claimed anew since.
    """

    replicas: Replicas
    epoch_base: int = 0
    moved_from: Lease | None = None
    moved_epoch: int = 0


class TopicRow(NamedTuple):
    """One topic: `configs` has only what differs from the broker's defaults, `created_ms` is epoch time.
    `assignments` are those of the partitions that have a replica list; the others belong to a data shard."""

    topic_id: UUID
    name: str
    partitions: int
    configs: Mapping[str, str] = MappingProxyType({})
    created_ms: int = 0
    assignments: Mapping[int, Assignment] = MappingProxyType({})


class BrokerConfigsRow(NamedTuple):
    """What AlterConfigs has set on brokers, by Kafka's broker config names. `broker` is a node id in decimal,
    or "" for all brokers."""

    broker: str
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One broker as clients reach it: host and port are the advertised ones.

    It is listed until `term_ms` after it registered last. `incarnation` is new with every start of a broker,
    so that two of them with one id are told apart. A node that is `drained` should hold no lease.
    """

    node_id: int
    host: str
    port: int
    rack: str | None
    term_ms: int
    incarnation: UUID
    drained: bool = False
    listeners: str = ""
    """Where each of its listeners is reached, if it has several: `NAME://HOST:PORT`, with commas."""
    keeps_replicas: bool = True
    """Whether it knows replica lists; a broker of an earlier version, on its way out, does not."""
    keeps_transactions: bool = True
    """Likewise, whether it knows transaction shards."""
    age_ms: int = field(default=0, compare=False)
    """Set in answers: how long ago it registered last, by the store's clock."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A small message to a node. Raises ValueError for more than LETTER_BYTES_MAX."""

    node_id: int
    payload: bytes = field(repr=False)
    incarnation: UUID | None = None
    """Which one of the node it is for; None: whichever is registered."""
    under: tuple[Lease, int] | None = None
    """The lease and the epoch in which its sender speaks: sent only while that is the lease's present one."""

    def __post_init__(self) -> None:
        if len(self.payload) > LETTER_BYTES_MAX:
            raise ValueError(f"a letter of {len(self.payload)} bytes; allowed are {LETTER_BYTES_MAX}")


class Posted(Enum):
    """What became of one `Letter`."""

    SENT = "sent"
    """It will be delivered, unless something happens to the node or the store."""
    FENCED = "fenced"
    """The epoch it was to be sent under is over. Nobody will see it."""
    UNDELIVERABLE = "undeliverable"
    """No such node is registered, or as many letters to it wait as may. Nobody will see it."""


Deliver = Callable[[Sequence[bytes]], None]
"""Given the payloads of letters on the event loop, those of one sender in the order of sending. Must not
block or raise."""


class StoreCounts(NamedTuple):
    """What was fixed when the store was created."""

    cluster_id: UUID
    leases: Mapping[LeaseKind, int]
    """Number of leases per kind."""


class StoreError(Exception):
    """A store operation failed. The text says what was being done, where (file or server), and why.

    I/O errors, a lost connection: the outcome of a write is unknown.
    """


class StoreConflict(StoreError):
    """The change contradicts what is stored: a name taken, a row changed or gone. Nothing was changed."""


class NodeIdTaken(StoreConflict):
    """Another broker has registered with this node id, and its registration has not run out."""

    def __init__(self, holder: NodeRow, remaining_ms: int) -> None:
        """`remaining_ms` is how long the holder's registration still lasts, by the store's clock."""
        self.holder = holder
        self.remaining_ms = remaining_ms
        super().__init__(
            f"node id {holder.node_id} is in use by the broker at {holder.host}:{holder.port}; "
            f"its registration expires in {remaining_ms} ms"
        )


class StoreBusy(StoreError):
    """Changes cannot be taken now: too many wait already, or the server cannot be reached. Nothing was
    changed; the same call may be made again later.
    """


class StoreFull(StoreError):
    """There is no room to write. Nothing was changed, and reading goes on; until there is room, writing fails
    in this way.
    """


class StoreClosed(StoreError):
    """The store is not open, or closing. Nothing was changed."""


class StoreDamaged(StoreError):
    """What is stored is not what was written: the text names the file and says what can be done."""


class StoreLocked(StoreError):
    """Raised by `open`: another process uses the data directory. The text names both."""


class Store(Protocol):
    """See the module's rules. `term_ms` are positive milliseconds on the store's own clock."""

    changed: list[Callable[[], None]]
    """Called on the event loop when `revision()` has moved: soon after the change where it was made through
    this object, and within a bounded time where another process shares the state and made it.

    They must not block or raise. One call may stand for several changes, and a call may come without any.
    """

    async def open(self) -> None:
        """Create the store or open the existing one.

        Raises StoreLocked, and StoreError for a store written by a newer version or by something else.

        A backend that can prove that no earlier holder lives (it owns the only lock on the data) begins
        without holders and registrations, so that a restart waits for no term. Epochs stay.
        """

    async def close(self) -> None:
        """Refuse new calls (StoreClosed), finish those already made, let go of files. Harmless when repeated.

        Leases and registrations are left as they are: releasing them is the caller's decision.
        """

    # --- records ----------------------------------------------------------------------------------

    async def append(self, appends: Sequence[Append]) -> list[Outcome]:
        """Write all of `appends` in one transaction, skipping the fenced ones; outcomes in the order given.

        The epoch of each lease is compared in the writing transaction, so that a claim committed before it
        fences it and one committed after it loads what it wrote. Each upsert and each delete takes the
        lease's next `seq`; numbers are never reused. A delete leaves a tombstone. StoreBusy when too many
        appends wait already.
        """

    async def load(self, lease: Lease) -> list[tuple[int, bytes, bytes]]:
        """Every live row of the lease as (seq, key, value), by `seq`: the order of each key's last upsert.

        A holder loads after its claim has returned; then nothing of an earlier holder can still arrive.
        """

    async def read_records(
        self, lease: Lease, seq: int, *, rows_max: int, bytes_max: int
    ) -> list[StoredRecord]:
        """Live rows and tombstones from `seq` on, in order of `seq`: at most `rows_max`, and of `bytes_max`
        in all, but at least one if there is any. It looks at every row of the lease: there is no index on
        `seq`, which every upsert would have to pay for. A tombstone may stand beside a later row of its key.
        """

    async def next_seq(self, lease: Lease) -> int:
        """One more than the `seq` of the last row or tombstone, FIRST_SEQ without any; it never goes back.
        Asked by the holder, it looks at no more than a row once something was appended."""

    async def record_bounds(self, lease: Lease) -> RecordBounds:
        """See `RecordBounds`. It looks at every row of the lease."""

    async def remove_tombstones(self, lease: Lease, epoch: int, *, before_ms: int, count_max: int) -> int:
        """Remove the tombstones from before `before_ms`, and the oldest of those above `count_max`; how many.
        The record with the highest `seq` stays in any case. Nothing is removed when the epoch is not the
        lease's present one."""

    # --- the journal ------------------------------------------------------------------------------

    async def read_journal(
        self, lease: Lease, offset: int, *, rows_max: int, bytes_max: int
    ) -> list[StoredJournalRow]:
        """The rows from `offset` on, or from the first there is: at most `rows_max`, and of `bytes_max` in
        all, but at least one if there is any."""

    async def journal_bounds(self, lease: Lease) -> JournalBounds:
        """Which rows there are."""

    async def journal_offset_at(self, lease: Lease, at_ms: int) -> int | None:
        """The offset of the first row with an `at_ms` as high or higher; None when there is none. It may look
        at every row."""

    async def journal_newest(self, lease: Lease) -> int | None:
        """The offset of the first row with the highest `at_ms`; None without rows. It looks at every row."""

    async def trim_journal(self, lease: Lease, epoch: int, before_offset: int) -> bool:
        """Remove the rows below `before_offset`; without rows `start` is `end`, which stays. False when the
        epoch is not the lease's present one, and nothing was removed."""

    # --- leases -----------------------------------------------------------------------------------

    async def claim(self, leases: Sequence[Lease], node_id: int, term_ms: int) -> list[Grant | None]:
        """Take each lease that is free, has run out, or is the node's own; None where another holds it, or
        where an earlier holder's write is still under way: it may be asked for again soon.

        Every grant raises the epoch, the node's own lease too: who claims intends to load, and whatever it or
        another had under way before is fenced. The epoch is durable before the grant is seen by anyone.
        Unknown leases raise StoreConflict. Grants begin unannounced.
        """

    async def announce(self, grants: Sequence[Grant]) -> None:
        """Their holder is ready: `holders` says so until the lease is claimed anew.

        Those lost are passed over.
        """

    async def renew(self, grants: Sequence[Grant], term_ms: int) -> list[int | None]:
        """Begin each lease's term anew; its remaining milliseconds, or None where it is lost.

        Lost means released, or claimed since (another epoch, or a claim under way). A lease that ran out and
        that nobody has claimed since is renewed: nobody can have written or loaded in between. `remaining_ms`
        of the given grants is not looked at. The holder counts the answer from when it *sent* the renewal.
        Does not move `revision()`.
        """

    async def release(self, grants: Sequence[Grant]) -> None:
        """Give leases up; those already lost are passed over.

        The epochs stay, so appends under way are not fenced by this but by the next claim.
        """

    async def holders(self, kind: LeaseKind) -> dict[int, Grant]:
        """The grants that have not run out, by lease number."""

    # --- topics -----------------------------------------------------------------------------------

    async def create_topic(self, topic: TopicRow) -> None:
        """StoreConflict when the name or the id is taken."""

    async def update_topic(
        self,
        topic: TopicRow,
        *,
        expected: TopicRow | None = None,
        epochs: Mapping[Lease, int] = MappingProxyType({}),
    ) -> None:
        """Replace the row with the same `topic_id`.

        StoreConflict when there is none, when it is not `expected`, when the new name is taken, or when one
        of `epochs` is not the lease's present one. `expected` is the row that the change was computed from:
        two brokers that change a topic at once cannot undo each other's change. Who claims one of the leases
        in `epochs` after the change finds it when it reads the topics.
        """

    async def delete_topic(self, topic_id: UUID) -> bool:
        """Whether there was such a topic."""

    async def topics(self) -> list[TopicRow]:
        """Every topic, by name."""

    # --- replica lists ----------------------------------------------------------------------------

    async def replica_lists(self) -> dict[Replicas, int]:
        """The numbers of the replica lists that have one: the lease `REPLICAS` of that number is for the
        partitions with that list."""

    async def add_replica_lists(self, lists: Collection[Replicas]) -> None:
        """Give those of `lists` a number that have none. Numbers are never given twice.

        StoreConflict when there are not enough leases left.
        """

    # --- broker configs ---------------------------------------------------------------------------

    async def broker_configs(self) -> list[BrokerConfigsRow]:
        """What is set on brokers, by their names; those without configs are left out."""

    async def update_broker_configs(self, row: BrokerConfigsRow, *, expected: Mapping[str, str]) -> None:
        """Replace what is set on one broker, or on all.

        StoreConflict when the present configs are not `expected`, from which the change was computed (empty
        where none are set).
        """

    # --- nodes ------------------------------------------------------------------------------------

    async def register_node(self, node: NodeRow) -> None:
        """Insert or replace the node's row and start its term. A mere renewal does not move `revision()`.

        NodeIdTaken while the registration of another incarnation with this id has not run out.
        """

    async def remove_node(self, node_id: int, incarnation: UUID) -> None:
        """Forget this incarnation's registration; harmless when it is not there."""

    async def nodes(self) -> list[NodeRow]:
        """The nodes whose term has not run out, by id, with their `age_ms`."""

    # --- post -------------------------------------------------------------------------------------

    async def post(self, letters: Sequence[Letter]) -> list[Posted]:
        """Send letters to nodes; what became of each, in the order given.

        Nothing of this is durable: a letter arrives at most once, and is lost with the node, with the server,
        and when the node does not take it within about a minute. Only registered nodes can be sent to, and a
        letter is for the incarnation that is registered when it is sent. Does not move `revision()`.
        StoreBusy when too many letters wait to be sent.
        """

    def open_mailbox(self, node_id: int, incarnation: UUID, deliver: Deliver) -> None:
        """Have letters to this incarnation of a node delivered from now on, until `close_mailbox` or the
        store's end. A node has one mailbox: that of a new incarnation takes the place of the old one."""

    def close_mailbox(self, node_id: int, incarnation: UUID) -> None:
        """Deliver nothing more; harmless when there is no such mailbox, or the store is closed."""

    # --- the rest ---------------------------------------------------------------------------------

    async def counts(self) -> StoreCounts:
        """The cluster id and the number of leases per kind."""

    async def revision(self) -> int:
        """Grows with every change of topics, replica lists, broker configs, nodes and lease holders; equal
        revisions mean no change.

        That a lease or a registration ran out changes no row and does not move it.
        """

    async def allocate_producer_ids(self, count: int) -> int:
        """The first of `count` producer ids that were never given out before, from 0 upwards."""


@runtime_checkable
class Ageing(Protocol):
    """Stores in which time can be made to pass for some holders: those whose holders are all in one process.

    For tests that move time. Who is alive would have renewed meanwhile and is spared; what the others hold
    runs out. A database counts everybody's terms by its own clock and offers nothing of the kind.
    """

    def runs_out_in(self, sparing: Container[int]) -> int | None:
        """Milliseconds until the first lease or registration of a node that is not in `sparing` runs out;
        None when there is none left that has not."""

    def let_pass(self, ms: int, sparing: Container[int]) -> None:
        """As if `ms` had gone by for all nodes but those in `sparing`. `changed` is called when something has
        run out by it, or by itself since the last call."""
