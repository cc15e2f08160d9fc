"""Writes a stream's rows exactly once: one transaction per task, with a mark in it (marks.py).

This order ensures that the latest attempt at a batch has the last word on it:

1. The driver plans the batch, and records a new attempt in the ledger. If the previous attempt was cut off,
   it lists the existing transactional ids *after* that.
2. A task takes over its transactional id, which ends its previous owner's transaction and fences that owner;
   *then* it reads the ledger and its own mark. So a task of an older attempt either finds that it is too
   late, or had its id before the driver listed them.
3. When all tasks are done, the driver fences the ids that only an earlier attempt used: what those have not
   committed, they never will. If they have committed anything, that is an error.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from muster.client.admin.offsets import alter_group_offsets, list_group_offsets
from muster.client.admin.transactions import describe_transactions, fence_producers, list_transactions
from muster.client.errors import ClientError, ProducerFenced
from muster.client.group.group_metadata import GroupMetadata
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.client.network.servers import parse_servers
from muster.client.partitions import OffsetAndMetadata, TopicPartition
from muster.client.produce.settings import ProducerOptions
from muster.client.produce.transaction import Transaction
from muster.client.producer import Producer
from muster.pipeline.errors import PipelineError
from muster.pipeline.marks import (
    Digest,
    Ledger,
    Mark,
    Names,
    Part,
    check_repeated,
    check_surplus,
    forgotten,
    is_written,
)
from muster.pipeline.rows import Headers, Rows, Sent, arriving
from muster.pipeline.writer_options import WriterOptions
from muster.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from pyarrow import RecordBatch

T = TypeVar("T")

_AT_ONCE_MAX: Final = 100
"""Groups or transactional ids asked for at once."""


@dataclass(frozen=True, slots=True)
class Committed:
    """What a task has committed to the topic, in this attempt or an earlier one."""

    records: int
    query: str
    attempt: str


@dataclass(frozen=True, slots=True)
class ExactlyOnce:
    """A query's writer. Its calls block, and raise PipelineError."""

    rows: Rows
    options: WriterOptions
    names: Names

    @classmethod
    def of(cls, rows: Rows, options: WriterOptions) -> ExactlyOnce | None:
        """None if the options do not ask for it."""
        prefix = options.transactional_id_prefix
        return None if prefix is None else cls(rows, options, Names(prefix))

    # --- in the driver --------------------------------------------------------------------------------------

    def begin(self) -> str:
        """Begin an attempt at a batch, before its tasks start. Returns the attempt's id."""

        async def begin(notes: _Notes) -> str:
            found = await notes.ledger()
            if found == Ledger() and await notes.tasks():
                raise PipelineError(forgotten(self.names))
            ledger = found.begun(uuid.uuid4().hex)
            await notes.write(ledger)
            if ledger.cut_off:
                await notes.write(ledger.with_tasks(await notes.tasks()))
            return ledger.attempt

        return self._noting(begin)

    def finish(self, batch: int, tasks: list[Committed]) -> None:
        """Record that a batch is finished."""
        query, attempt = tasks[0].query, tasks[0].attempt

        async def finish(notes: _Notes) -> None:
            ledger = await notes.ledger()
            done = ledger.done(self.names, query, batch, len(tasks), attempt)
            surplus = ledger.surplus(batch, len(tasks))
            if surplus:
                await notes.shut_out(surplus)
                check_surplus(await notes.marks(surplus), query, batch)
            await notes.write(done)

        self._noting(finish)

    def _noting(self, what: Callable[[_Notes], Awaitable[T]]) -> T:
        async def run() -> T:
            async with _Notes(self.options, self.names) as notes:
                return await what(notes)

        try:
            return asyncio.run(run())
        except (KafkaError, ClientError) as error:
            raise PipelineError(self.options.explained(error)) from error

    # --- in the tasks ---------------------------------------------------------------------------------------

    def write(self, batches: Iterator[RecordBatch], headers: Headers, part: Part, attempt: str) -> Committed:
        """Write the rows of a task unless they are already committed. Raises PipelineError if they differ
        from the committed ones, or if this attempt may not write."""
        try:
            return asyncio.run(self._write(batches, headers, part, attempt))
        except (KafkaError, ClientError) as error:
            if _is_fenced(error) or _is_fenced(error.__cause__):
                timeout_ms = self.options.producer["transaction_timeout_ms"]
                raise PipelineError(
                    f"{part}: another attempt has taken its transactional id, {self.names.task(part.task)}, "
                    f"or it took longer than kafka.transaction.timeout.ms ({timeout_ms}); it commits nothing"
                ) from error
            raise PipelineError(self.options.explained(error)) from error

    async def _write(
        self, batches: Iterator[RecordBatch], headers: Headers, part: Part, attempt: str
    ) -> Committed:
        options, own = self.options, self.names.task(part.task)
        settings = {**options.producer, **options.access.client_options, "transactional_id": own}
        async with Producer(options.bootstrap_servers, **cast(ProducerOptions, settings)) as producer:
            async with _Notes(options, self.names) as notes:
                (await notes.ledger()).check(self.names, part, attempt)
                mark = (await notes.marks([part.task]))[part.task]
            records = (self.rows.records(batch, headers) async for batch in arriving(batches))
            digest = Digest()
            if is_written(self.names, part, mark):
                assert mark is not None
                async for each in records:
                    for record in each:
                        digest.add(record)
                check_repeated(part, mark, digest)
                # Again, or brokers might forget it while the batch is still being repeated.
                async with producer.transaction() as transaction:
                    await self._commit(transaction, part, digest)
            else:
                async with producer.transaction() as transaction:
                    sent = Sent(transaction.post)
                    try:
                        async for each in records:
                            await sent.send(digest.through(each))
                        await self._commit(transaction, part, digest)
                    except BaseException:
                        sent.look_away()
                        raise
            return Committed(digest.rows, part.query, attempt)

    async def _commit(self, transaction: Transaction[Any, Any], part: Part, digest: Digest) -> None:
        """Commit the transaction, with the part's mark."""
        place = OffsetAndMetadata(part.batch, Mark.of(part, digest).text)
        group = GroupMetadata(self.names.task(part.task), -1, "", None)
        await transaction.commit_offsets(group, {_place(self.options): place})
        await transaction.commit()


class _Notes:
    """Reads and writes marks and the ledger. Each call takes up to kafka.max.block.ms, and raises KafkaError,
    ClientError, or PipelineError if others have overwritten a note."""

    def __init__(self, options: WriterOptions, names: Names) -> None:
        self._names = names
        self._place = _place(options)
        self._limit_s = options.max_block_s
        self._cluster = Cluster(
            parse_servers(options.bootstrap_servers),
            client_id=options.client_id,
            security=options.access.security,
        )

    async def __aenter__(self) -> _Notes:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._cluster.close()

    async def ledger(self) -> Ledger:
        """The ledger; empty before the first batch."""
        name = self._names.ledger
        found = (await self._read([name]))[name]
        return Ledger() if found is None else Ledger.read(found, name)

    async def write(self, ledger: Ledger) -> None:
        place = OffsetAndMetadata(ledger.finished + 1, ledger.text)
        wanted = {self._place: place}
        until = deadline(self._limit_s)
        (await alter_group_offsets(self._cluster, self._names.ledger, wanted, until)).raise_for_failures()

    async def marks(self, tasks: Iterable[int]) -> dict[int, Mark | None]:
        """The marks of these tasks, none of which has an open transaction."""
        names = {self._names.task(task): task for task in tasks}
        texts = await self._read(names)
        return {
            task: None if (text := texts[name]) is None else Mark.read(text, name)
            for name, task in names.items()
        }

    async def tasks(self) -> int:
        """A number above that of any task that has ever begun."""
        listed = await list_transactions(self._cluster, deadline(self._limit_s))
        numbers = (self._names.number_of(each.transactional_id) for each in listed)
        known = max((number + 1 for number in numbers if number is not None), default=0)
        # While a coordinator moves, no broker lists its ids. To ask for an id by name is to wait for it.
        while begun := await self._begun(range(known, known + _AT_ONCE_MAX)):
            known = max(begun) + 1
        return known

    async def _begun(self, tasks: Iterable[int]) -> list[int]:
        """Those of these tasks that have ever begun."""
        names = {self._names.task(task): task for task in tasks}
        found = await describe_transactions(self._cluster, names, deadline(self._limit_s))
        for error in found.failed.values():
            if error.code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise error
        return [names[name] for name in found.succeeded]

    async def shut_out(self, tasks: Iterable[int]) -> None:
        """Fence earlier owners of these tasks' ids, so that they can commit nothing more."""
        names = map(self._names.task, tasks)
        (await fence_producers(self._cluster, names, deadline(self._limit_s))).raise_for_failures()

    async def _read(self, groups: Iterable[str]) -> dict[str, str | None]:
        wanted, texts = list(groups), dict[str, str | None]()
        for first in range(0, len(wanted), _AT_ONCE_MAX):
            asked = wanted[first : first + _AT_ONCE_MAX]
            until = deadline(self._limit_s)
            found = await list_group_offsets(self._cluster, asked, until, require_stable=True)
            for group, offsets in found.raise_for_failures().items():
                place = offsets.get(self._place)
                texts[group] = None if place is None else place.metadata
        return texts


def _is_fenced(error: BaseException | None) -> bool:
    return isinstance(error, ProducerFenced) or (
        isinstance(error, KafkaError)
        and error.code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)
    )


def _place(options: WriterOptions) -> TopicPartition:
    """Where notes are stored: an offset needs a topic, and partition 0 always exists."""
    assert options.topic is not None, "checked with the options"
    return TopicPartition(options.topic, 0)
