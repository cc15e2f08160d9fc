"""Rows to records: which columns a writer accepts, and what it makes of them.

The columns are those of Spark's kafka sink: `value` (binary or text) and, optionally, `key` (binary or text),
`topic` (text), `partition` (int), `headers` (array<struct<key: string, value: binary>>).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.types import ArrayType, BinaryType, IntegerType, StringType, StructType

from muster.client.producer import RecordFuture
from muster.pipeline.errors import OptionError, PipelineError
from muster.pipeline.writer_options import TOPIC, WriterOptions

if TYPE_CHECKING:
    from pyarrow import Array, RecordBatch

Headers = Sequence[tuple[str, bytes | None]]
Post = Callable[..., Awaitable[RecordFuture]]
"""`post` of a producer, or of a transaction."""

_COLUMNS: Final[dict[str, tuple[tuple[Any, ...], str]]] = {
    "key": ((BinaryType, StringType), "binary or string"),
    "value": ((BinaryType, StringType), "binary or string"),
    "topic": ((StringType,), "string"),
    "partition": ((IntegerType,), "int"),
    "headers": ((ArrayType,), "array<struct<key: string, value: binary>>"),
}
"""By column: the types it may have, and what to call them."""


class Record(NamedTuple):
    """A row as it is sent. Without a partition, the producer chooses one."""

    topic: str
    key: bytes | None
    value: bytes | None
    partition: int | None
    headers: Headers


@dataclass(frozen=True, slots=True)
class Rows:
    """Converts rows with these columns to records."""

    columns: tuple[str, ...]
    topic: str | None
    """The topic of every record; None: the column `topic` names it."""

    @classmethod
    def of(cls, schema: StructType, options: WriterOptions, overwrite: bool) -> Rows:
        """Raises OptionError."""
        if overwrite:
            raise OptionError(
                'a topic is not overwritten: write with mode("append"), streams with outputMode("append");'
                " for streams that need another mode, write each batch in foreachBatch"
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
        return cls(names, options.topic)

    def records(self, batch: RecordBatch, headers: Headers) -> Iterator[Record]:
        """The records of these rows, with `headers` appended to their own. Raises PipelineError at an invalid
        row."""
        count = batch.num_rows
        columns = {name: batch.column(at) for at, name in enumerate(self.columns)}
        nothing = [None] * count
        values = _bytes(columns["value"])
        keys = _bytes(columns["key"]) if "key" in columns else nothing
        partitions = columns["partition"].to_pylist() if "partition" in columns else nothing
        own = columns["headers"].to_pylist() if "headers" in columns else nothing
        topics = [self.topic] * count if self.topic is not None else columns["topic"].to_pylist()
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
            yield Record(topic, key, value, partition, all_headers)


async def arriving(batches: Iterator[RecordBatch]) -> AsyncIterator[RecordBatch]:
    """The batches as Spark hands them over. Waiting for one takes a thread: meanwhile the loop sends what was
    posted before, which would expire otherwise."""
    while (batch := await asyncio.to_thread(next, batches, None)) is not None:
        yield batch


class Sent:
    """Records in flight, in the order in which they were posted."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self._waiting: deque[RecordFuture] = deque()
        self.acknowledged = 0

    async def send(self, records: Iterator[Record]) -> None:
        """Post these records, then wait until those posted before are acknowledged: one batch is in flight
        while the next is converted."""
        before = len(self._waiting)
        post, remember = self._post, self._waiting.append
        for topic, key, value, partition, headers in records:
            remember(await post(topic, value, key=key, partition=partition, headers=headers))
        await self._acknowledged(before)

    async def rest(self) -> None:
        """Wait until all remaining records are acknowledged."""
        await self._acknowledged(len(self._waiting))

    def look_away(self) -> None:
        """One record failed, and with it the task. Retrieve the results of the others, or asyncio would
        complain that nobody did."""
        for each in self._waiting:
            if each.done():
                _looked_at(each)
            else:
                each.add_done_callback(_looked_at)

    async def _acknowledged(self, count: int) -> None:
        """Wait for the first `count` records; forget each when it is acknowledged."""
        for _ in range(count):
            await self._waiting[0]
            self._waiting.popleft()
        self.acknowledged += count


def _looked_at(future: RecordFuture) -> None:
    if not future.cancelled():
        future.exception()


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
