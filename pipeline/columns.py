"""Records as Arrow batches with exactly the schema of Spark's own kafka source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from muster.client.fetch.records import Batch
from muster.client.partitions import TopicPartition
from muster.pipeline.errors import OptionError, PipelineError
from muster.protocol.record_reader import Headers

_US_PER_MS: Final = 1_000
_MS_MAX: Final = (2**63 - 1) // _US_PER_MS
"""Spark's timestamps are microseconds in 64 bits: they end in the year 294247."""
_HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
_HEADERS_TYPE: Final = pa.list_(pa.field("element", _HEADER))
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_FIELDS: Final = (
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", _TIMESTAMP),
    ("timestampType", pa.int32()),
)
_SCHEMA: Final = pa.schema(_FIELDS)
_SCHEMA_WITH_HEADERS: Final = pa.schema((*_FIELDS, ("headers", _HEADERS_TYPE)))

RecordBatch = Any
"""A pyarrow.RecordBatch."""


def schema(*, headers: bool) -> StructType:
    """The same for Spark; `headers`: include that column."""
    return from_arrow_schema(_SCHEMA_WITH_HEADERS if headers else _SCHEMA)


def check_schema(given: StructType, *, headers: bool) -> None:
    """Raises OptionError for another schema, which a user gave with `.schema(...)`."""
    told, ours = given.simpleString(), schema(headers=headers).simpleString()
    if told != ours:
        raise OptionError(
            f"schema: it is always {ours}, not {told}. Leave out .schema(...), and cast or parse columns"
            " after load()"
        )


def have_times(timestamps: Any) -> Any:
    """Which of these times, in epoch ms, Spark's timestamps can express."""
    return (timestamps >= -_MS_MAX) & (timestamps <= _MS_MAX)


def as_arrow(batch: Batch[bytes | None, bytes | None], *, headers: bool) -> RecordBatch:
    """The records of a batch; without headers there is no Python loop over them. A record without a timestamp
    has -1 ms, as in Spark's source. Raises PipelineError for a time that Spark cannot express."""
    offsets = batch.offsets
    timestamps = np.array(batch.timestamps, np.int64)
    beyond = np.flatnonzero(~have_times(timestamps))
    if len(beyond):
        index = beyond[0]
        raise PipelineError(
            f"{batch.topic_partition}: the record at offset {offsets[index]} has the timestamp"
            f" {timestamps[index]} ms, too large for Spark; startingOffsets and endingOffsets can leave it"
            " out"
        )
    return assembled(
        batch.topic_partition,
        keys=pa.array(batch.keys, pa.binary()),
        values=pa.array(batch.values, pa.binary()),
        offsets=np.arange(offsets.start, offsets.stop) if isinstance(offsets, range) else offsets,
        timestamps=timestamps,
        timestamp_type=batch.timestamp_type,
        headers=headers_column(batch.headers) if headers else None,
    )


def assembled(
    where: TopicPartition,
    *,
    keys: Any,
    values: Any,
    offsets: Any,
    timestamps: Any,
    timestamp_type: int,
    headers: Any | None,
) -> RecordBatch:
    """A batch of rows. Keys, values and `headers` (None: no such column) are Arrow arrays; offsets and
    `timestamps`, in epoch ms, are numpy arrays; times that Spark cannot express must not be among them."""
    count = len(keys)
    columns = [
        keys,
        values,
        pa.repeat(pa.scalar(where.topic, pa.string()), count),
        pa.repeat(pa.scalar(where.partition, pa.int32()), count),
        pa.array(offsets, pa.int64()),
        pa.array(timestamps * _US_PER_MS).cast(_TIMESTAMP),
        pa.repeat(pa.scalar(timestamp_type, pa.int32()), count),
    ]
    if headers is None:
        return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
    return pa.RecordBatch.from_arrays([*columns, headers], schema=_SCHEMA_WITH_HEADERS)


def headers_column(of_records: Sequence[Headers]) -> Any:
    """One list per record; null without headers, as in Spark's source."""
    names: list[str] = []
    values: list[bytes | None] = []
    starts: list[int | None] = []
    for headers in of_records:
        starts.append(len(names) if headers else None)
        for name, value in headers:
            names.append(name)
            values.append(value)
    starts.append(len(names))
    pairs = pa.StructArray.from_arrays(
        [pa.array(names, pa.string()), pa.array(values, pa.binary())], fields=list(_HEADER)
    )
    return pa.ListArray.from_arrays(pa.array(starts, pa.int32()), pairs, type=_HEADERS_TYPE)
