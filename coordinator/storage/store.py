"""The storage contract: coordinator state as keyed records, a journal of what happened to it, and the leases
that decide who may write both.

Kafka keeps a coordinator's state in a compacted log. Compaction means "the last value per key", which is a
table; so a store is a table of records per lease, a table of leases, and a few small rows (topics, nodes,
producer ids). The journal is a log: its rows are numbered, and removed from the front. `memory`, `sqlite` and
`postgres` implement the contract, and one suite (`tests/storage`) runs against each of them.

Rules that hold for every method of `Store`:

- *Durable on return.* A method that changes something returns once the change would survive a crash of the
  process and of the machine (memory: once it is visible). A caller that is cancelled may find its change
  made. Of leases and registrations only the epochs must outlive all possible holders: where those are one
  process, a backend keeps the rest in memory, and renewing goes on while nothing can be written.
- *Atomic.* Each call is one transaction. The appends of one call share it, each with an outcome of its own;
  the caller decides what to group into a call (`runtime.appender`).
- *Ordered.* Changes made through one store object take effect in the order of the calls, except that
  renewals, releases, registrations and letters may overtake others. A read sees every change whose call
  returned before the read was made.
- *Never blocks the event loop.* Disk and network are accessed from executors or asynchronously. A store
  object belongs to the event loop that opened it; several brokers on that loop may share it.
- *Time.* Terms are counted on the store's own clock, which neither goes back nor jumps: a monotonic one if
  the store lives in one process, the server's if there is a server.
- *Errors.* `StoreConflict`, `StoreBusy`, `StoreFull` and `StoreClosed` mean that nothing was changed. Any
  other `StoreError` leaves the outcome unknown: whoever keeps state derived from the store drops it and
  reloads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable
from uuid import UUID

FIRST_SEQ = 1
"""The `seq` of a lease's very first record."""


class LeaseKind(StrEnum):
    """What a lease is for."""

    __hash__ = str.__hash__  # Enum's own is Python code, and every step of a shard looks up its lease

    GROUP = "group"
    """A shard of groups; `number` is Kafka's partition of `__consumer_offsets`."""
    TRANSACTION = "transaction"
    """A shard of transactional ids; `number` is Kafka's partition of `__transaction_state`, its epoch the
    coordinator epoch of the markers that its holder writes."""
    DATA = "data"
    """A shard of topic partitions that may be led by any broker; its epoch is their leader epoch."""
    REPLICAS = "replicas"
    """A shard of the topic partitions that share a replica list; `number` is the list's
    (`Store.replica_lists`), its epoch counts toward their leader epoch (`Assignment`)."""


LETTER_BYTES_MAX = 1_048_576
"""Maximum size of a letter's payload."""
LETTERS_KEPT_MAX = 1_000
"""While this many letters to a node wait to be delivered, no more are accepted."""
LETTERS_KEPT_BYTES_MAX = 16_777_216
"""While their payloads add up to this much, no more are accepted."""

LEASE_COUNTS_DEFAULT: Mapping[LeaseKind, int] = MappingProxyType(
    {LeaseKind.GROUP: 50, LeaseKind.TRANSACTION: 50, LeaseKind.DATA: 50, LeaseKind.REPLICAS: 1_000}
)
"""Leases of each kind in a new store: offsets.topic.num.partitions, transaction.state.log.num.partitions, as
many shards for topic data, and the number of replica lists that a cluster may ever use."""

Replicas = tuple[int, ...]
"""A replica list: node ids, the preferred leader first."""


class Lease(NamedTuple):
    """The name of a lease. All exist from the store's creation on; `number` is in [0, count of the kind)."""

    kind: LeaseKind
    number: int


class Grant(NamedTuple):
    """A lease as held by a node.

    `epoch` is at least 1 and grows with every successful claim, for ever: it is kept when the lease is
    released or expires. `remaining_ms` is how long the lease still lasted when the store answered, by the
    store's clock. `announced` means that the holder has loaded what it serves under this epoch: from then on
    clients are sent to it.
    """

    lease: Lease
    node_id: int
    epoch: int
    remaining_ms: int
    announced: bool = False


class JournalRow(NamedTuple):
    """An event, for readers of the lease's journal; `at_ms` is the date, in epoch ms, at the writer."""

    at_ms: int
    key: bytes | None
    value: bytes

    @property
    def size_bytes(self) -> int:
        """Bytes of the key and the value."""
        return len(self.key or b"") + len(self.value)


class StoredJournalRow(NamedTuple):
    """A row of a lease's journal. Rows are numbered from 0 without gaps, in append order; `at_ms` need not
    grow with `offset`, since holders' clocks differ."""

    offset: int
    at_ms: int
    key: bytes | None
    value: bytes

    @property
    def size_bytes(self) -> int:
        """Bytes of the key and the value."""
        return len(self.key or b"") + len(self.value)


class _Sized(Protocol):
    @property
    def size_bytes(self) -> int: ...


S = TypeVar("S", bound=_Sized)


def whole_rows(rows: Iterable[S], bytes_max: int) -> list[S]:
    """The first `rows`: as many as fit into `bytes_max`, but at least one if there are any."""
    found: list[S] = []
    for row in rows:
        bytes_max -= row.size_bytes
        if found and bytes_max < 0:
            break
        found.append(row)
    return found


class JournalBounds(NamedTuple):
    """The rows in a lease's journal: from `start` up to, but not including, `end`, the next row's offset."""

    start: int
    end: int
    size_bytes: int
    """Bytes of all keys and values."""


class Append(NamedTuple):
    """Records for one lease: (key, value) upserts the key, (key, None) deletes it, in order; the last one per
    key wins. `journal` holds rows for the end of the lease's journal, written with the records or not at all.

    With neither, it only checks whether `epoch` is still the lease's.
    """

    lease: Lease
    epoch: int
    records: Sequence[tuple[bytes, bytes | None]]
    journal: Sequence[JournalRow] = ()
    at_ms: int = 0
    """Epoch time by the writer's clock, recorded in tombstones."""


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
        """Bytes of the key and the value."""
        return len(self.key) + len(self.value or b"")


class RecordBounds(NamedTuple):
    """The extent of a lease's records, tombstones included."""

    next_seq: int
    """As `Store.next_seq`."""
    size_bytes: int
    """Bytes of all keys and values."""


class Outcome(Enum):
    """The outcome of one `Append`."""

    WRITTEN = "written"
    """Durable."""
    FENCED = "fenced"
    """The epoch is not the lease's current one: nothing of this append was written or ever will be."""


class Assignment(NamedTuple):
    """The brokers a partition is assigned to. The holder of the list's lease leads it, in the leader epoch
    `epoch_base` + the lease's epoch.

    A reassigned partition names the lease it was led under before, and that lease's epoch at the time: it may
    be led under the new lease once the old one has been claimed again.
    """

    replicas: Replicas
    epoch_base: int = 0
    moved_from: Lease | None = None
    moved_epoch: int = 0


class TopicRow(NamedTuple):
    """One topic. `configs` holds only what differs from the broker's defaults; `created_ms` is epoch time.
    `assignments` covers the partitions that have a replica list; the others belong to a data shard."""

    topic_id: UUID
    name: str
    partitions: int
    configs: Mapping[str, str] = MappingProxyType({})
    created_ms: int = 0
    assignments: Mapping[int, Assignment] = MappingProxyType({})


class BrokerConfigsRow(NamedTuple):
    """What AlterConfigs has set on brokers, under Kafka's broker config names. `broker` is a node id in
    decimal, or "" for all brokers."""

    broker: str
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One broker as clients reach it: host and port are the advertised ones.

    It is listed until `term_ms` after its last registration. `incarnation` is new with every start of a
    broker, to tell apart two brokers with the same id. A `drained` node should hold no lease.
    """

    node_id: int
    host: str
    port: int
    rack: str | None
    term_ms: int
    incarnation: UUID
    drained: bool = False
    listeners: str = ""
    """Where its listeners are reached, if it has several: `NAME://HOST:PORT`, comma-separated."""
    keeps_replicas: bool = True
    """Whether it supports replica lists; a broker of an earlier version, on its way out, does not."""
    keeps_transactions: bool = True
    """Likewise, whether it supports transaction shards."""
    age_ms: int = field(default=0, compare=False)
    """Set when read: how long ago it last registered, by the store's clock."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A small message to a node. Raises ValueError for more than LETTER_BYTES_MAX."""

    node_id: int
    payload: bytes = field(repr=False)
    incarnation: UUID | None = None
    """The incarnation of the node it is for; None: whichever is registered."""
    under: tuple[Lease, int] | None = None
    """The lease and the epoch that its sender acts under: sent only while that is the lease's current
    epoch."""

    def __post_init__(self) -> None:
        if len(self.payload) > LETTER_BYTES_MAX:
            raise ValueError(f"a letter of {len(self.payload)} bytes; allowed are {LETTER_BYTES_MAX}")


class Posted(Enum):
    """The outcome of one `Letter`."""

    SENT = "sent"
    """It will be delivered, unless something happens to the node or the store."""
    FENCED = "fenced"
    """The epoch it was to be sent under is over. Nobody will see it."""
    UNDELIVERABLE = "undeliverable"
    """No such node is registered, or too many letters to it are waiting. Nobody will see it."""


Deliver = Callable[[Sequence[bytes]], None]
"""Called on the event loop with the payloads of letters, those of one sender in the order sent. Must not
block or raise."""


class StoreCounts(NamedTuple):
    """What was fixed when the store was created."""

    cluster_id: UUID
    leases: Mapping[LeaseKind, int]
    """Number of leases per kind."""


class StoreError(Exception):
    """A store operation failed. The text says what was being done, where (file or server), and why.

    After an I/O error or a lost connection, the outcome of a write is unknown.
    """


class StoreConflict(StoreError):
    """The change contradicts what is stored: a name taken, a row changed or gone. Nothing was changed."""


class NodeIdTaken(StoreConflict):
    """Another broker has registered with this node id, and its registration has not expired."""

    def __init__(self, holder: NodeRow, remaining_ms: int) -> None:
        """`remaining_ms` is how long the holder's registration still lasts, by the store's clock."""
        self.holder = holder
        self.remaining_ms = remaining_ms
        super().__init__(
            f"node id {holder.node_id} is in use by the broker at {holder.host}:{holder.port}; "
            f"its registration expires in {remaining_ms} ms"
        )


class StoreBusy(StoreError):
    """Changes cannot be accepted now: too many are waiting, or the server cannot be reached. Nothing was
    changed; the call may be retried later.
    """


class StoreFull(StoreError):
    """There is no space to write. Nothing was changed, and reads go on; until there is space, writes fail
    like this.
    """


class StoreRefused(StoreError):
    """The store will never accept something in what it was given: it is too large, for example. Nothing was
    changed."""


class StoreClosed(StoreError):
    """The store is not open, or is closing. Nothing was changed."""


class StoreDamaged(StoreError):
    """What is stored is not what was written: the text names the file and says what can be done."""


class StoreLocked(StoreError):
    """Raised by `open`: another process uses the data directory. The text names both and ends with advice for
    a broker that starts; `fact` is without it."""

    def __init__(self, fact: str, advice: str = "") -> None:
        super().__init__(f"{fact}; {advice}" if advice else fact)
        self.fact = fact


class Store(Protocol):
    """See the module's rules. `term_ms` is in positive milliseconds on the store's own clock."""

    changed: list[Callable[[], None]]
    """Called on the event loop when `revision()` has moved: soon after a change made through this object, and
    within bounded time after one made by another process that shares the state.

    They must not block or raise. One call may stand for several changes, or for none.
    """

    async def open(self) -> None:
        """Create the store or open the existing one.

        Raises StoreLocked, and StoreError for a store written by a newer version or by something else.

        A backend that can prove that no earlier holder lives (it owns the only lock on the data) begins
        without holders and registrations, so that a restart waits for no term. Epochs are kept.
        """

    async def close(self) -> None:
        """Refuse new calls (StoreClosed), finish those already made, close files. Harmless when repeated.

        Leases and registrations are left unchanged: the caller decides whether to release them.
        """

    # --- records ----------------------------------------------------------------------------------

    async def append(self, appends: Sequence[Append]) -> list[Outcome]:
        """Write all of `appends` in one transaction, skipping the fenced ones. Returns outcomes in the order
        given.

        The epoch of each lease is compared in the writing transaction, so that a claim committed before it
        fences it, and the holder of one committed after it loads what it wrote. Each upsert and each delete
        takes the lease's next `seq`; numbers are never reused. A delete leaves a tombstone. Raises StoreBusy
        if too many appends are waiting.
        """

    async def load(self, lease: Lease) -> list[tuple[int, bytes, bytes]]:
        """Every live row of the lease as (seq, key, value), by `seq`: the order of each key's last upsert.

        A holder loads after its claim has returned; then no write of an earlier holder can still arrive.
        """

    async def read_records(
        self, lease: Lease, seq: int, *, rows_max: int, bytes_max: int
    ) -> list[StoredRecord]:
        """Live rows and tombstones from `seq` on, in order of `seq`: at most `rows_max` rows and `bytes_max`
        bytes, but at least one row if there are any. Scans every row of the lease: there is no index on
        `seq`, which every upsert would have to pay for. A tombstone may coexist with a later row of its key.
        """

    async def next_seq(self, lease: Lease) -> int:
        """One more than the `seq` of the last row or tombstone, FIRST_SEQ if there are none; it never goes
        back. For the holder, it reads at most one row once something was appended."""

    async def record_bounds(self, lease: Lease) -> RecordBounds:
        """See `RecordBounds`. Scans every row of the lease."""

    async def remove_tombstones(self, lease: Lease, epoch: int, *, before_ms: int, count_max: int) -> int:
        """Remove the tombstones from before `before_ms`, and the oldest in excess of `count_max`. Returns how
        many. The record with the highest `seq` always stays. Removes nothing if the epoch is not the lease's
        current one."""

    # --- the journal ------------------------------------------------------------------------------

    async def read_journal(
        self, lease: Lease, offset: int, *, rows_max: int, bytes_max: int
    ) -> list[StoredJournalRow]:
        """The rows from `offset` on, or from the first there is: at most `rows_max` rows and `bytes_max`
        bytes, but at least one row if there are any."""

    async def journal_bounds(self, lease: Lease) -> JournalBounds:
        """See `JournalBounds`."""

    async def journal_offset_at(self, lease: Lease, at_ms: int) -> int | None:
        """The offset of the first row with an `at_ms` as high or higher; None if there is none. May scan
        every row."""

    async def journal_newest(self, lease: Lease) -> int | None:
        """The offset of the first row with the highest `at_ms`; None if there are no rows. Scans every
        row."""

    async def trim_journal(self, lease: Lease, epoch: int, before_offset: int) -> bool:
        """Remove the rows below `before_offset`. If none are left, `start` is `end`, which does not change.
        Returns False, without removing anything, if the epoch is not the lease's current one."""

    # --- leases -----------------------------------------------------------------------------------

    async def claim(
        self, leases: Sequence[Lease], node_id: int, term_ms: int, *, incarnation: UUID | None = None
    ) -> list[Grant | None]:
        """Take each lease that is free, has expired, or is the node's own; None if another holds it, or if an
        earlier holder's write is still in flight: the claim may be retried soon.

        Every grant raises the epoch, even of the node's own lease: a claimer intends to load, and whatever it
        or another had in flight before is fenced. The epoch is durable before anyone sees the grant. Unknown
        leases raise StoreConflict. Grants begin unannounced.

        With an `incarnation`, nothing is granted if the node has none or another one registered: what the
        node holds is then another process's, or soon will be. A registration that has expired counts until
        it is replaced.
        """

    async def announce(self, grants: Sequence[Grant]) -> None:
        """Mark the holder as ready: `holders` says so until the lease is claimed again.

        Lost leases are skipped.
        """

    async def renew(self, grants: Sequence[Grant], term_ms: int) -> list[int | None]:
        """Restart each lease's term. Returns its remaining milliseconds, or None if it is lost.

        Lost means released, claimed since (another epoch, or a claim in flight), or claimed on a server that
        has since been replaced; the new one may not know of the claim. An expired lease that nobody has
        claimed since is renewed: nobody can have written or loaded in between. `remaining_ms` of the given
        grants is ignored.
        The holder counts the answer from when it *sent* the renewal. Does not move `revision()`.
        """

    async def release(self, grants: Sequence[Grant]) -> None:
        """Give up leases; those already lost are skipped.

        Epochs are kept, so appends in flight are fenced not by this but by the next claim.
        """

    async def holders(self, kind: LeaseKind) -> dict[int, Grant]:
        """The grants that have not expired, by lease number."""

    # --- topics -----------------------------------------------------------------------------------

    async def create_topic(self, topic: TopicRow) -> None:
        """Raises StoreConflict if the name or the id is taken."""

    async def update_topic(
        self,
        topic: TopicRow,
        *,
        expected: TopicRow | None = None,
        epochs: Mapping[Lease, int] = MappingProxyType({}),
    ) -> None:
        """Replace the row with the same `topic_id`.

        Raises StoreConflict if there is none, if it is not `expected`, if the new name is taken, or if one of
        `epochs` is not the lease's current one. `expected` is the row that the change was computed from: two
        brokers that change a topic at once cannot undo each other's change. A node that claims one of the
        leases in `epochs` after the change sees it when it reads the topics.
        """

    async def delete_topic(self, topic_id: UUID) -> bool:
        """Delete a topic. Returns whether it existed."""

    async def topics(self) -> list[TopicRow]:
        """All topics, in order of name."""

    # --- replica lists ----------------------------------------------------------------------------

    async def replica_lists(self) -> dict[Replicas, int]:
        """The number of each replica list that has one: the lease `REPLICAS` of that number is for the
        partitions with that list."""

    async def add_replica_lists(self, lists: Collection[Replicas]) -> None:
        """Number those of `lists` that have no number yet. Numbers are never reused.

        Raises StoreConflict if there are not enough leases left.
        """

    # --- broker configs ---------------------------------------------------------------------------

    async def broker_configs(self) -> list[BrokerConfigsRow]:
        """The configs set on brokers, in order of `broker`; brokers without configs are left out."""

    async def update_broker_configs(self, row: BrokerConfigsRow, *, expected: Mapping[str, str]) -> None:
        """Replace the configs set on one broker, or on all.

        Raises StoreConflict if the current configs are not `expected`, which the change was computed from
        (empty if none are set).
        """

    # --- nodes ------------------------------------------------------------------------------------

    async def register_node(self, node: NodeRow) -> None:
        """Insert or replace the node's row and start its term. A mere renewal does not move `revision()`.

        Raises NodeIdTaken until the registration of another incarnation with this id has expired.
        """

    async def remove_node(self, node_id: int, incarnation: UUID) -> None:
        """Remove this incarnation's registration; harmless if it is not there."""

    async def nodes(self) -> list[NodeRow]:
        """The nodes whose term has not expired, in order of id, with their `age_ms`."""

    # --- post -------------------------------------------------------------------------------------

    async def post(self, letters: Sequence[Letter]) -> list[Posted]:
        """Send letters to nodes. Returns each one's outcome, in the order given.

        Nothing of this is durable: a letter arrives at most once, and is lost with the node, with the server,
        or if the node does not take it within about a minute. Letters can be sent only to registered nodes,
        and are for the incarnation registered when they are sent. Does not move `revision()`. Raises
        StoreBusy if too many letters wait to be sent.
        """

    def open_mailbox(self, node_id: int, incarnation: UUID, deliver: Deliver) -> None:
        """Deliver letters to this incarnation of a node from now on, until `close_mailbox` or until the store
        closes. A node has one mailbox: a new incarnation's replaces the old one."""

    def close_mailbox(self, node_id: int, incarnation: UUID) -> None:
        """Deliver nothing more; harmless if there is no such mailbox, or the store is closed."""

    # --- the rest ---------------------------------------------------------------------------------

    async def counts(self) -> StoreCounts:
        """The cluster id and the number of leases per kind."""

    async def revision(self) -> int:
        """Grows with every change of topics, replica lists, broker configs, nodes and lease holders; equal
        revisions mean no change.

        A lease or registration that expires changes no row and does not move it.
        """

    async def allocate_producer_ids(self, count: int) -> int:
        """Allocate `count` producer ids never given out before, from 0 upwards. Returns the first.

        A new `era` may not know of the last allocations: do not go on with what is left of them.
        """

    @property
    def era(self) -> int:
        """Grows when this object finds that another server has taken the state's place, which may lack what
        was acknowledged last."""


@runtime_checkable
class Ageing(Protocol):
    """Stores that can make time pass for some holders: those whose holders are all in one process.

    For tests that move time. Live nodes would have renewed meanwhile and are spared; what the others hold
    expires. A database counts everybody's terms by its own clock and offers nothing of the kind.
    """

    def runs_out_in(self, sparing: Container[int]) -> int | None:
        """Milliseconds until the first lease or registration of a node not in `sparing` expires, 0 if one has
        expired by itself since the last `let_pass`; None if none is left to expire."""

    def let_pass(self, ms: int, sparing: Container[int]) -> None:
        """Act as if `ms` had passed for all nodes but those in `sparing`. `changed` is called if anything
        expired by this, or by itself since the last call."""
