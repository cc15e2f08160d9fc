"""The store in a PostgreSQL database, which several processes share.

One connection writes, one call at a time. Leases and registrations are renewed on another, which never waits
for a write, and a few more read. Letters have two of their own (`post_office`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from muster.coordinator.storage.postgres import keys, statements
from muster.coordinator.storage.postgres.appends import Writers
from muster.coordinator.storage.postgres.connect import (
    CONNECT_TIMEOUT_MS_DEFAULT,
    STATEMENT_TIMEOUT_MS_DEFAULT,
    Link,
    Unreachable,
    parse,
)
from muster.coordinator.storage.postgres.eras import Eras
from muster.coordinator.storage.postgres.post_office import PostOffice
from muster.coordinator.storage.postgres.schema import check
from muster.coordinator.storage.postgres.watch import POLL_MS_DEFAULT, Watch
from muster.coordinator.storage.store import (
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
    StoreBusy,
    StoreClosed,
    StoreConflict,
    StoreCounts,
    StoredJournalRow,
    StoredRecord,
    TopicRow,
)

if TYPE_CHECKING:
    from asyncpg import Connection

T = TypeVar("T")

READERS_DEFAULT: Final = 4

_LOADED_ROWS_MAX: Final = 5_000
"""A shard is loaded in slices, each within the statement timeout, so that a cut connection is noticed soon,
however much there is to load."""
_LOST_PRODUCER_IDS: Final = 2**20
"""So many are left out in each new era: more than other brokers can have allocated that the new server has
not heard of."""
_READING_RECORDS: Final = "reading records"
_READING_JOURNAL: Final = "reading a journal"


class PostgresStore:
    """A `Store` in the schema `muster` of the database at `url`, which `migrate` has created.

    `name` is the application_name of its connections: `readers` plus three, and two more once letters are
    sent and received. No statement takes longer than `statement_timeout_ms`, connecting included; those about
    leases no longer than a third of their term. `now_ms` replaces the server's clock in tests.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "muster",
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS_DEFAULT,
        statement_timeout_ms: int = STATEMENT_TIMEOUT_MS_DEFAULT,
        poll_ms: int = POLL_MS_DEFAULT,
        listen: bool = True,
        readers: int = READERS_DEFAULT,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        """Raises StoreError if `url` is not the url of a database."""
        self.changed: list[Callable[[], None]] = []
        self._server = parse(url)
        self._name = name
        self._connect_timeout_ms = connect_timeout_ms
        self._statement_timeout_ms = statement_timeout_ms
        self._lease_timeout_ms = statement_timeout_ms
        self._poll_ms = poll_ms
        self._listen = listen
        self._readers = readers
        self._given_now_ms = now_ms
        self.eras = Eras(name)
        """For whatever else the process keeps in this database."""
        self._epochs: dict[int, int] = {}  # by lease id, the highest that was seen
        self._producer_ids_end = 0  # of the last ones allocated here
        self._producer_ids_era = 0
        self._open = False
        self._calls: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        return f"<PostgresStore {self._server.name} {'open' if self._open else 'closed'}>"

    # --- life -------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Raises StoreError if the database cannot be reached, or does not have this version's schema:
        nothing is created here."""
        writer, leases = self._link(), self._link()
        readers = [self._link() for _ in range(self._readers)]
        watch = Watch(
            self._server,
            self._tell,
            name=self._name,
            connect_timeout_ms=self._connect_timeout_ms,
            statement_timeout_ms=self._statement_timeout_ms,
            poll_ms=self._poll_ms,
            listen=self._listen,
            eras=self.eras,
        )
        try:
            await readers[0].run("looking for the schema", partial(check, server=self._server))
            fixed = await readers[0].run("reading the store", statements.meta.fixed)
            await watch.start()
            await asyncio.gather(writer.up(), leases.up())  # no first claim or renewal waits for this
        except BaseException:
            await watch.close()
            for link in (readers[0], writer, leases):
                await link.close()
            raise
        lease_ids = {Lease(LeaseKind(kind), number): lease_id for lease_id, kind, number in fixed.leases}
        counts = {kind: sum(lease.kind is kind for lease in lease_ids) for kind in LeaseKind}
        self._counts = StoreCounts(fixed.cluster_id, counts)
        self._lease_ids: Mapping[Lease, int] = lease_ids
        self._leases_by_id = {lease_id: lease for lease, lease_id in lease_ids.items()}
        self._writer, self._lease_link, self._watch = writer, leases, watch
        self._writers = Writers(lease_ids, self.eras)
        self._post_office = PostOffice(
            self._server,
            lease_ids,
            name=self._name,
            connect_timeout_ms=self._connect_timeout_ms,
            statement_timeout_ms=self._statement_timeout_ms,
            poll_ms=self._poll_ms,
            listen=self._listen,
            now_ms=self._now_ms,
            eras=self.eras,
            outlived=self._writers.outlived,
        )
        self._reader_links = readers
        self._idle_readers = readers[::-1]  # the one used last comes last
        self._free_readers = asyncio.Semaphore(len(readers))
        self._writing = asyncio.Lock()
        self._unreachable: Unreachable | None = None
        self._open = True

    def _link(self) -> Link:
        return Link(
            self._server,
            name=self._name,
            connect_timeout_ms=self._connect_timeout_ms,
            statement_timeout_ms=self._statement_timeout_ms,
            eras=self.eras,
        )

    async def close(self) -> None:
        if not self._open:
            return
        self._open = False
        while self._calls:
            await asyncio.wait(self._calls)
        # Side by side: each may wait for a server that does not answer.
        links = (self._writer, self._lease_link, *self._reader_links)
        await asyncio.gather(
            self._post_office.close(), self._watch.close(), *(link.close() for link in links)
        )

    def _check_open(self) -> None:
        if not self._open:
            raise StoreClosed(f"the store in {self._server.name} is not open")

    # --- how changes and reads are run ------------------------------------------------------------

    async def _change(
        self, doing: str, apply: Callable[[Connection], Awaitable[T]], *, timeout_ms: int | None = None
    ) -> T:
        """Run on the writer's connection, in the order of the calls."""
        return await self._write(lambda: self._writer.run(doing, apply, timeout_ms=timeout_ms))

    async def _change_under(
        self,
        doing: str,
        epochs: Mapping[Lease, int],
        apply: Callable[[Connection], Awaitable[T]],
        fenced: Callable[[], T],
    ) -> T:
        """As `_change`, by the holder of leases in these epochs. `fenced` is the outcome if the database has
        failed over since they were claimed; that they are current is for `apply` to check."""

        async def change(connection: Connection) -> T:
            era = self._writer.era
            if any(self._writers.outlived(lease, epoch, era) for lease, epoch in epochs.items()):
                return fenced()
            return await apply(connection)

        return await self._change(doing, change)

    async def _hold_under(
        self,
        doing: str,
        grants: Sequence[Grant],
        apply: Callable[[Connection, list[int], list[Grant]], Awaitable[T]],
    ) -> T:
        """As `_hold`, with the ids of the leases and the grants, less those claimed before a failover."""
        asked = list(zip(self._ids([grant.lease for grant in grants]), grants, strict=True))

        async def use(connection: Connection) -> T:
            era = self._lease_link.era
            left = [
                (lease_id, grant)
                for lease_id, grant in asked
                if not self._writers.outlived(grant.lease, grant.epoch, era)
            ]
            return await apply(connection, [lease_id for lease_id, _ in left], [grant for _, grant in left])

        return await self._hold(doing, use)

    async def _write(self, change: Callable[[], Awaitable[T]]) -> T:
        self._check_open()
        return await self._finished(self._in_turn(change))

    async def _in_turn(self, change: Callable[[], Awaitable[T]]) -> T:
        known = self._unreachable
        async with self._writing:
            if self._unreachable is not None and self._unreachable is not known:
                # Detected once for all that waited; otherwise each would wait for a connection again.
                raise Unreachable(str(self._unreachable))
            try:
                return await change()
            except Unreachable as error:
                self._unreachable = Unreachable(str(error))
                raise

    async def _hold(self, doing: str, apply: Callable[[Connection], Awaitable[T]]) -> T:
        """Run on the connection for leases, which overtakes the writer's."""
        self._check_open()
        return await self._finished(self._lease_link.run(doing, apply, timeout_ms=self._lease_timeout_ms))

    async def _read(self, doing: str, query: Callable[[Connection], Awaitable[T]]) -> T:
        self._check_open()
        return await self._finished(self._on_reader(doing, query))

    async def _on_reader(self, doing: str, query: Callable[[Connection], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(self._statement_timeout_ms / 1000):
                await self._free_readers.acquire()
        except TimeoutError:
            raise StoreBusy(f"{doing} in {self._server.name}: too many reads are waiting") from None
        loop = asyncio.get_running_loop()
        began = loop.time()
        idle = self._idle_readers
        reader = next((link for link in reversed(idle) if link.is_up), idle[-1])
        idle.remove(reader)
        try:
            return await reader.run(doing, query)
        except Unreachable:
            connected = [link for link in self._reader_links if link.is_up]
            left_ms = self._statement_timeout_ms - int((loop.time() - began) * 1000)
            if not connected or left_ms <= 0:
                raise
            # The database gives no further connection: nothing was sent, so wait for one that there is.
            return await random.choice(connected).run(doing, query, timeout_ms=left_ms)
        finally:
            idle.append(reader)
            self._free_readers.release()

    async def _finished(self, call: Coroutine[Any, Any, T]) -> T:
        """A call goes on when its caller is cancelled: cutting it off would make its connection unusable."""
        task = asyncio.get_running_loop().create_task(call)
        self._calls.add(task)
        task.add_done_callback(self._end)
        return await asyncio.shield(task)

    def _end(self, call: asyncio.Task[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # retrieved: its caller may be gone

    def _tell(self) -> None:
        for callback in tuple(self.changed):
            callback()

    def _moved(self, revision: int | None) -> bool:
        if revision is not None:
            self._watch.made(revision)
        return revision is not None

    def _now_ms(self) -> int | None:
        return None if self._given_now_ms is None else self._given_now_ms()

    # --- the contract -----------------------------------------------------------------------------

    async def append(self, appends: Sequence[Append]) -> list[Outcome]:
        return await self._write(lambda: self._writers.append(self._writer, appends))

    async def load(self, lease: Lease) -> list[tuple[int, bytes, bytes]]:
        (lease_id,) = self._ids([lease])
        doing = f"loading {lease.kind} {lease.number}"
        rows: list[tuple[int, bytes, bytes]] = []
        after: bytes | None = None
        while True:
            # Nobody writes between the slices: the holder waits for this, and others are fenced.
            found = await self._read(
                doing,
                partial(statements.records.load, lease_id=lease_id, after=after, rows_max=_LOADED_ROWS_MAX),
            )
            rows += [(seq, *keys.restored(key, value)) for seq, key, value in found]
            if len(found) < _LOADED_ROWS_MAX:
                return sorted(rows)
            after = found[-1][1]

    async def read_records(
        self, lease: Lease, seq: int, *, rows_max: int, bytes_max: int
    ) -> list[StoredRecord]:
        (lease_id,) = self._ids([lease])
        found = await self._read(
            _READING_RECORDS, lambda c: statements.records.read(c, lease_id, seq, rows_max, bytes_max)
        )
        return [
            StoredRecord(seq, key, None, deleted_ms)
            if value is None
            else StoredRecord(seq, *keys.restored(key, value))
            for seq, key, value, deleted_ms in found
        ]

    async def next_seq(self, lease: Lease) -> int:
        (lease_id,) = self._ids([lease])
        written = self._writers.next_seq(lease, self._epochs.get(lease_id, 0))
        return (await self.record_bounds(lease)).next_seq if written is None else written

    async def record_bounds(self, lease: Lease) -> RecordBounds:
        (lease_id,) = self._ids([lease])
        return await self._read(_READING_RECORDS, partial(statements.records.bounds, lease_id=lease_id))

    async def remove_tombstones(self, lease: Lease, epoch: int, *, before_ms: int, count_max: int) -> int:
        (lease_id,) = self._ids([lease])
        change = partial(
            statements.records.remove_tombstones,
            lease_id=lease_id,
            epoch=epoch,
            before_ms=before_ms,
            count_max=count_max,
        )
        return await self._change_under("removing tombstones", {lease: epoch}, change, lambda: 0)

    async def read_journal(
        self, lease: Lease, offset: int, *, rows_max: int, bytes_max: int
    ) -> list[StoredJournalRow]:
        (lease_id,) = self._ids([lease])
        return await self._read(
            _READING_JOURNAL,
            lambda c: statements.journal.read(c, lease_id, offset, rows_max, bytes_max),
        )

    async def journal_bounds(self, lease: Lease) -> JournalBounds:
        (lease_id,) = self._ids([lease])
        return await self._read(_READING_JOURNAL, partial(statements.journal.bounds, lease_id=lease_id))

    async def journal_offset_at(self, lease: Lease, at_ms: int) -> int | None:
        (lease_id,) = self._ids([lease])
        return await self._read(_READING_JOURNAL, lambda c: statements.journal.offset_at(c, lease_id, at_ms))

    async def journal_newest(self, lease: Lease) -> int | None:
        (lease_id,) = self._ids([lease])
        return await self._read(_READING_JOURNAL, partial(statements.journal.newest, lease_id=lease_id))

    async def trim_journal(self, lease: Lease, epoch: int, before_offset: int) -> bool:
        (lease_id,) = self._ids([lease])
        change = partial(statements.journal.trim, lease_id=lease_id, epoch=epoch, before_offset=before_offset)
        return await self._change_under("trimming a journal", {lease: epoch}, change, lambda: False)

    async def claim(
        self, leases: Sequence[Lease], node_id: int, term_ms: int, *, incarnation: UUID | None = None
    ) -> list[Grant | None]:
        lease_ids = self._ids(leases)
        self._lease_timeout_ms = min(self._statement_timeout_ms, max(1, term_ms // 3))

        async def claim(connection: Connection) -> dict[Lease, Grant]:
            era = self._writer.era
            claimed, revision = await statements.leases.claim(
                connection,
                self._now_ms(),
                lease_ids,
                node_id,
                term_ms,
                self._writers.seqs_reserved,
                self._epochs,
                incarnation,
            )
            grants = {}
            for lease_id, epoch, first_seq in claimed:
                lease = self._leases_by_id[lease_id]
                self._writers.claimed(lease, epoch, first_seq, era)
                self._saw(lease_id, epoch)
                grants[lease] = Grant(lease, node_id, epoch, term_ms)
            self._moved(revision)
            return grants

        grants = await self._change("claiming leases", claim, timeout_ms=self._lease_timeout_ms)
        return [grants.get(lease) for lease in leases]

    async def announce(self, grants: Sequence[Grant]) -> None:
        self._moved(await self._hold_under("announcing leases", grants, statements.leases.announce))

    async def renew(self, grants: Sequence[Grant], term_ms: int) -> list[int | None]:
        self._lease_timeout_ms = min(self._statement_timeout_ms, max(1, term_ms // 3))
        renewed = await self._hold_under(
            "renewing leases",
            grants,
            lambda c, lease_ids, left: statements.leases.renew(c, self._now_ms(), lease_ids, left, term_ms),
        )
        return [
            term_ms if (self._lease_ids[grant.lease], grant.epoch) in renewed else None for grant in grants
        ]

    async def release(self, grants: Sequence[Grant]) -> None:
        self._moved(await self._hold_under("releasing leases", grants, statements.leases.release))

    async def holders(self, kind: LeaseKind) -> dict[int, Grant]:
        self._check_open()
        lease_ids = [lease_id for lease, lease_id in self._lease_ids.items() if lease.kind is kind]
        held = await self._read(
            "reading the leases", lambda c: statements.leases.holders(c, self._now_ms(), lease_ids)
        )
        for lease_id, _, epoch, _, _ in held:
            self._saw(lease_id, epoch)
        grants = (
            Grant(self._leases_by_id[lease_id], node_id, epoch, remaining_ms, announced)
            for lease_id, node_id, epoch, remaining_ms, announced in held
        )
        return {grant.lease.number: grant for grant in grants}

    def _saw(self, lease_id: int, epoch: int) -> None:
        if epoch > self._epochs.get(lease_id, 0):
            self._epochs[lease_id] = epoch

    def _ids(self, leases: Sequence[Lease]) -> list[int]:
        self._check_open()
        for lease in leases:
            if lease not in self._lease_ids:
                raise StoreConflict(f"there is no lease {lease.kind} {lease.number}")
        return [self._lease_ids[lease] for lease in leases]

    async def create_topic(self, topic: TopicRow) -> None:
        change = partial(statements.topics.create, topic=topic)
        self._moved(await self._change(f"creating topic {topic.name!r}", change))

    async def update_topic(
        self,
        topic: TopicRow,
        *,
        expected: TopicRow | None = None,
        epochs: Mapping[Lease, int] = MappingProxyType({}),
    ) -> None:
        by_id = dict(zip(self._ids(list(epochs)), epochs.values(), strict=True))
        change = partial(statements.topics.update, topic=topic, expected=expected, epochs=by_id)
        doing = f"updating topic {topic.name!r}"

        def fenced() -> int:
            raise StoreConflict(f"{doing}: the database has failed over since the leases were claimed")

        self._moved(await self._change_under(doing, epochs, change, fenced))

    async def delete_topic(self, topic_id: UUID) -> bool:
        change = partial(statements.topics.delete, topic_id=topic_id)
        return self._moved(await self._change(f"deleting topic {topic_id}", change))

    async def topics(self) -> list[TopicRow]:
        return await self._read("reading the topics", statements.topics.read)

    async def replica_lists(self) -> dict[Replicas, int]:
        return await self._read("reading the replica lists", statements.topics.replica_lists)

    async def add_replica_lists(self, lists: Collection[Replicas]) -> None:
        self._check_open()
        leases = self._counts.leases[LeaseKind.REPLICAS]
        change = partial(statements.topics.add_replica_lists, lists=lists, leases=leases)
        self._moved(await self._change("numbering replica lists", change))

    async def broker_configs(self) -> list[BrokerConfigsRow]:
        return await self._read("reading broker configs", statements.broker_configs.read)

    async def update_broker_configs(self, row: BrokerConfigsRow, *, expected: Mapping[str, str]) -> None:
        change = partial(statements.broker_configs.update, row=row, expected=expected)
        self._moved(await self._change("updating broker configs", change))

    async def register_node(self, node: NodeRow) -> None:
        self._lease_timeout_ms = min(self._statement_timeout_ms, max(1, node.term_ms // 3))
        self._moved(
            await self._hold("registering", lambda c: statements.nodes.register(c, self._now_ms(), node))
        )

    async def remove_node(self, node_id: int, incarnation: UUID) -> None:
        change = partial(statements.nodes.remove, node_id=node_id, incarnation=incarnation)
        self._moved(await self._hold("leaving", change))

    async def nodes(self) -> list[NodeRow]:
        return await self._read("reading the nodes", lambda c: statements.nodes.read(c, self._now_ms()))

    async def post(self, letters: Sequence[Letter]) -> list[Posted]:
        self._check_open()
        return await self._post_office.post(letters)

    def open_mailbox(self, node_id: int, incarnation: UUID, deliver: Deliver) -> None:
        self._check_open()
        self._post_office.open_mailbox(node_id, incarnation, deliver)

    def close_mailbox(self, node_id: int, incarnation: UUID) -> None:
        if self._open:
            self._post_office.close_mailbox(node_id, incarnation)

    async def counts(self) -> StoreCounts:
        self._check_open()
        return self._counts

    async def revision(self) -> int:
        return await self._read("reading the revision", statements.meta.revision)

    async def allocate_producer_ids(self, count: int) -> int:
        async def allocate(connection: Connection) -> int:
            era = self._writer.era
            gap = _LOST_PRODUCER_IDS if era != self._producer_ids_era else 0
            first = await statements.meta.allocate_producer_ids(
                connection, count, self._producer_ids_end, gap
            )
            self._producer_ids_end, self._producer_ids_era = first + count, era
            return first

        return await self._change("allocating producer ids", allocate)

    @property
    def era(self) -> int:
        return self.eras.current
