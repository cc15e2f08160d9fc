"""The writers of the format "muster", for batches and streams. rows.py converts rows to records.

Each record is written at least once: a task returns when every record is acknowledged, and a task or a batch
that Spark repeats writes its records again. Records of a stream carry the ids of the query and of the batch
in headers, so that readers can recognize a repetition: a record that is there twice with the same batch. Row
numbers would say more, but a repeated task may get its rows in another order, and deduplicating by number
would then lose some.

With the option `transactionalIdPrefix` a stream's records are written exactly once (exactly_once.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from muster.client.errors import ClientError
from muster.client.produce.settings import ProducerOptions
from muster.client.producer import Producer
from muster.pipeline.errors import OptionError, PipelineError
from muster.pipeline.exactly_once import Committed, ExactlyOnce
from muster.pipeline.marks import Part
from muster.pipeline.rows import Headers, Rows, Sent, arriving
from muster.pipeline.writer_options import TRANSACTIONAL, WriterOptions
from muster.protocol.errors import KafkaError

if TYPE_CHECKING:
    from pyarrow import RecordBatch

QUERY_HEADER: Final = "muster.query"
"""The id of the streaming query, which its checkpoint keeps: a UUID."""
BATCH_HEADER: Final = "muster.batch"
"""The id of the micro-batch: a decimal number, the same when the batch is repeated."""


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What a task reports to the driver: every record was acknowledged."""

    records: int
    committed: Committed | None = None
    """Set if the task wrote exactly once."""


def batch_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> DataSourceArrowWriter:
    """The writer of `df.write.format("muster")`. Raises OptionError for an invalid option or column."""
    read = WriterOptions.of(options)
    if read.transactional_id_prefix is not None:
        raise OptionError(
            f"option {TRANSACTIONAL} is for df.writeStream: nobody could tell that a batch write is repeated"
        )
    return _BatchWriter(Rows.of(schema, read, overwrite), read)


def stream_writer(
    schema: StructType, options: Mapping[str, str], overwrite: bool
) -> DataSourceStreamArrowWriter:
    """The writer of `df.writeStream.format("muster")`. Raises OptionError for an invalid option or column."""
    read = WriterOptions.of(options)
    rows = Rows.of(schema, read, overwrite)
    once = ExactlyOnce.of(rows, read)
    return _StreamWriter(rows, read) if once is None else _ExactlyOnceWriter(once)


class _BatchWriter(DataSourceArrowWriter):
    """There is nothing to commit: records are in the topic as soon as they are written, and cannot be
    undone."""

    def __init__(self, rows: Rows, options: WriterOptions) -> None:
        self._rows = rows
        self._options = options

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        return asyncio.run(_write(self._rows, self._options, iterator, ()))


class _StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, rows: Rows, options: WriterOptions) -> None:
        self._rows = rows
        self._options = options

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        headers = _batch_headers(self._options)
        return asyncio.run(_write(self._rows, self._options, iterator, headers))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is left to do: see `_BatchWriter`."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was written stays; the batch is repeated under the same id."""


class _ExactlyOnceWriter(DataSourceStreamArrowWriter):
    """Spark creates one for each batch that it plans, and pickles it for the tasks: at that moment an attempt
    at the batch begins. Writers that only commit are never pickled."""

    def __init__(self, once: ExactlyOnce) -> None:
        self._once = once
        self._attempt: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        if self._attempt is None:
            self._attempt = self._once.begin()
        return {"_once": self._once, "_attempt": self._attempt}

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        assert self._attempt is not None, "it came here pickled"
        query, batch = _ids(f"option {TRANSACTIONAL} cannot be had")
        context = TaskContext.get()
        assert context is not None, "where there are ids there is a task"
        part = Part(query, int(batch), context.partitionId())
        told = self._once.write(iterator, _batch_headers(self._once.options), part, self._attempt)
        return Written(told.records, told)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        tasks = [each.committed for each in messages if isinstance(each, Written) and each.committed]
        if tasks:
            self._once.finish(batchId, tasks)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What tasks have committed stays, and is recognized when the batch is repeated."""


def _batch_headers(options: WriterOptions) -> Headers:
    if not options.batch_headers:
        return ()
    query, batch = _ids(
        f"option batchHeaders=false writes records without the headers {QUERY_HEADER} and {BATCH_HEADER}"
    )
    return ((QUERY_HEADER, query.encode()), (BATCH_HEADER, batch.encode()))


def _ids(instead: str) -> tuple[str, str]:
    """The ids of the query and of this task's batch. Spark passes them only to the driver's side of a writer;
    tasks get them as local properties."""
    context = TaskContext.get()
    query, batch = (
        context and context.getLocalProperty(name)
        for name in ("sql.streaming.queryId", "streaming.sql.batchId")
    )
    if not query or not batch:
        raise PipelineError(f"this Spark does not tell tasks which batch they write: {instead}")
    return query, batch


async def _write(
    rows: Rows, options: WriterOptions, batches: Iterator[RecordBatch], headers: Headers
) -> Written:
    """Write everything and wait until it is acknowledged. Raises PipelineError for what cannot be written;
    some rows may then be in the topic."""
    settings = {**options.producer, **options.access.client_options}
    producer = Producer(options.bootstrap_servers, **cast(ProducerOptions, settings))
    sent = Sent(producer.post)
    try:
        async with producer:
            try:
                async for batch in arriving(batches):
                    await sent.send(rows.records(batch, headers))
                await producer.flush()
                await sent.rest()
            except BaseException:
                await producer.close(timeout=0)
                sent.look_away()
                raise
    except (KafkaError, ClientError) as error:
        raise PipelineError(options.explained(error)) from error
    return Written(sent.acknowledged)
