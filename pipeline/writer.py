"""Rows to records: the writers of the format "muster", for batches and streams.

Columns are those of Spark's kafka sink: `value` (binary or text), and where they are there `key` (binary or
text), `topic` (text), `partition` (int), `headers` (array<struct<key: string, value: binary>>).

Each record is written at least once: a task returns when every record is acknowledged, and a task or a batch
that Spark repeats writes its records again. Those of a stream carry the ids of the query and of the batch in
headers, so that who reads them can tell a repetition: a record that is there twice with the same batch. Row
numbers would say more, but rows of a repeated task may come in another order, and dropping by them lose some.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, StringType, StructType

from muster.client.errors import ClientError
from muster.client.produce.settings import ProducerOptions
from muster.client.producer import Producer, RecordFuture
from muster.pipeline.errors import OptionError, PipelineError
from muster.pipeline.writer_options import TOPIC, WriterOptions
from muster.protocol.errors import KafkaError

if TYPE_CHECKING:
    from pyarrow import Array, RecordBatch

QUERY_HEADER: Final = "muster.query"
"""The id of the streaming query, which its checkpoint keeps: a UUID."""
BATCH_HEADER: Final = "muster.batch"
"""The id of the micro-batch: a decimal number, the same when the batch is repeated."""

Headers = Sequence[tuple[str, bytes | None]]

_COLUMNS: Final[dict[str, tuple[tuple[Any, ...], str]]] = {
    "key": ((BinaryType, StringType), "binary or string"),
    "value": ((BinaryType, StringType), "binary or string"),
    "topic": ((StringType,), "string"),
    "partition": ((IntegerType,), "int"),
    "headers": ((ArrayType,), "array<struct<key: string, value: binary>>"),
}
"""By column: the types it may have, and what to call them."""


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What a task tells the driver: every record was acknowledged."""

    records: int


def batch_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> DataSourceArrowWriter:
    """The writer of `df.write.format("muster")`. Raises OptionError for an option or a column that will not
    do."""
    return _BatchWriter(_Rows.of(schema, WriterOptions.of(options), overwrite))


def stream_writer(
    schema: StructType, options: Mapping[str, str], overwrite: bool
) -> DataSourceStreamArrowWriter:
    """The writer of `df.writeStream.format("muster")`. Raises OptionError for an option or a column that will
    not do."""
    return _StreamWriter(_Rows.of(schema, WriterOptions.of(options), overwrite))


class _BatchWriter(DataSourceArrowWriter):
    """There is nothing to commit: records are there as soon as they are written, and cannot be taken back."""

    def __init__(self, rows: _Rows) -> None:
        self._rows = rows

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        return asyncio.run(self._rows.write(iterator, ()))


class _StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, rows: _Rows) -> None:
        self._rows = rows

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        headers = _batch_headers() if self._rows.options.batch_headers else ()
        return asyncio.run(self._rows.write(iterator, headers))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is left to do: see `_BatchWriter`."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was written stays; the batch is repeated under the same id."""


def _batch_headers() -> Headers:
    """Spark hands the ids to the driver's side of a writer alone; to tasks it tells them as properties."""
    context = TaskContext.get()
    query, batch = (
        context and context.getLocalProperty(name)
        for name in ("sql.streaming.queryId", "streaming.sql.batchId")
    )
    if not query or not batch:
        raise PipelineError(
            "this Spark does not tell tasks which batch they write: option batchHeaders=false writes records"
            f" without the headers {QUERY_HEADER} and {BATCH_HEADER}"
        )
    return ((QUERY_HEADER, query.encode()), (BATCH_HEADER, batch.encode()))


@dataclass(frozen=True, slots=True)
class _Rows:
    """Writes the rows of a task, whose columns are known."""

    columns: tuple[str, ...]
    options: WriterOptions

    @classmethod
    def of(cls, schema: StructType, options: WriterOptions, overwrite: bool) -> _Rows:
        """Raises OptionError."""
        if overwrite:
            raise OptionError(
                'a topic is not overwritten: write with mode("append"), streams with outputMode("append")'
            )
        for field in schema.fields:
            if field.name not in _COLUMNS:
                raise OptionError(
                    f"column {field.name}: the writer takes {', '.join(_COLUMNS)}. Make one value of the"
                    " others, say to_json(struct(*)) AS value"
                )
            types, called = _COLUMNS[field.name]
            if not isinstance(field.dataType, types) or (
                field.name == "headers" and not _are_headers(field.dataType)
            ):
                raise OptionError(
                    f"column {field.name} is {field.dataType.simpleString()}; the writer takes {called}:"
                    " cast it"
                )
        names = tuple(schema.fieldNames())
        if "value" not in names:
            raise OptionError("column value is missing: the writer takes one, binary or string")
        if options.topic is None and "topic" not in names:
            raise OptionError(
                f"where do the records go? Option {TOPIC} names the topic, or a column topic does"
            )
        return cls(names, options)

    async def write(self, batches: Iterator[RecordBatch], headers: Headers) -> Written:
        """Write everything and wait until it is acknowledged. Raises PipelineError for what cannot be
        written; part of the rows may be there then."""
        options = self.options
        settings = {**options.producer, **options.access.client_options}
        producer = Producer(options.bootstrap_servers, **cast(ProducerOptions, settings))
        waiting: deque[RecordFuture] = deque()
        written = 0
        try:
            async with producer:
                try:
                    for batch in batches:
                        # The records of one batch are on their way while the next one is taken apart.
                        before = len(waiting)
                        await self._post(producer, batch, headers, waiting)
                        written += await _acknowledged(waiting, before)
                    await producer.flush()
                    written += await _acknowledged(waiting, len(waiting))
                except BaseException:
                    # One record failed, so the task does. What became of the others is looked at, or asyncio
                    # would complain that nobody did.
                    await producer.close(timeout=0)
                    for each in waiting:
                        each.exception()
                    raise
        except (KafkaError, ClientError) as error:
            raise PipelineError(_explained(error, self.options)) from error
        return Written(written)

    async def _post(
        self,
        producer: Producer[bytes, bytes],
        batch: RecordBatch,
        headers: Headers,
        futures: deque[RecordFuture],
    ) -> None:
        count = batch.num_rows
        columns = {name: batch.column(at) for at, name in enumerate(self.columns)}
        nothing = [None] * count
        values = _bytes(columns["value"])
        keys = _bytes(columns["key"]) if "key" in columns else nothing
        partitions = columns["partition"].to_pylist() if "partition" in columns else nothing
        own = columns["headers"].to_pylist() if "headers" in columns else nothing
        topics = (
            [self.options.topic] * count if self.options.topic is not None else columns["topic"].to_pylist()
        )
        post, remember = producer.post, futures.append
        for topic, key, value, partition, pairs in zip(topics, keys, values, partitions, own, strict=True):
            if topic is None:
                raise PipelineError(
                    f"a row has no topic: its column topic is null, and there is no option {TOPIC}"
                )
            if partition is not None and partition < 0:
                raise PipelineError(
                    f"a row has partition {partition}: partitions are numbered from 0, null is any"
                )
            all_headers = (*map(_pair, pairs), *headers) if pairs else headers
            remember(await post(topic, value, key=key, partition=partition, headers=all_headers))


async def _acknowledged(waiting: deque[RecordFuture], count: int) -> int:
    """Wait for the first so many; each is forgotten when it is there."""
    for _ in range(count):
        await waiting[0]
        waiting.popleft()
    return count


def _bytes(column: Array) -> list[bytes | None]:
    import pyarrow

    kind = pyarrow.types
    if kind.is_string(column.type):
        column = column.cast(pyarrow.binary())
    elif kind.is_large_string(column.type):
        column = column.cast(pyarrow.large_binary())
    found: list[bytes | None] = column.to_pylist()
    return found


def _pair(header: Mapping[str, Any] | None) -> tuple[str, bytes | None]:
    if header is None or header["key"] is None:
        raise PipelineError(
            "a row has a header without a key: headers take a name, and a value that may be null"
        )
    return header["key"], header["value"]


def _are_headers(array: ArrayType) -> bool:
    element = array.elementType
    return (
        isinstance(element, StructType)
        and element.fieldNames() == ["key", "value"]
        and isinstance(element.fields[0].dataType, StringType)
        and isinstance(element.fields[1].dataType, BinaryType)
    )


def _explained(error: Exception, options: WriterOptions) -> str:
    """The broker's words and its code, or the client's; and where the cluster was looked for."""
    if isinstance(error, KafkaError):
        return f"{error.why} ({error.code.name})"
    said = options.access.in_options(str(error))
    return f"{said} (kafka.bootstrap.servers: {options.bootstrap_servers})"
