"""The format "muster": topics read by `spark.read` and `spark.readStream`, in Arrow batches.

    rows = spark.readStream.format("muster").option("kafka.bootstrap.servers", "127.0.0.1:9092") \\
        .option("subscribe", "orders").option("kafka.group.id", "billing").load()

Options and columns are those of Spark's own kafka source (options.py). How Spark calls the source:

* In the driver, one process holds the stream's reader while the query runs, and calls its methods one at a
  time. The reader is never notified that the query has ended.
* `latestOffset` gets the offsets up to which the last batch was finished. `commit` is called a batch late,
  and never for the last batch of a query, so both commit to the group.
* The checkpoint holds the ends of batches: until batch 0 is finished, a restarted query asks `initialOffset`
  again. Where the answer would be another one by then, batch 0 is empty, so that its end is the start.
* `read` runs in other processes, with a copy of the reader as constructed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from muster.client.partitions import TopicPartition
from muster.pipeline.asking import BlockingCluster, Look, Unresolved, first_look, look, resolved
from muster.pipeline.columns import RecordBatch, check_schema, schema
from muster.pipeline.commits import Commits
from muster.pipeline.errors import PipelineError, data_lost
from muster.pipeline.fetching import read_rows
from muster.pipeline.losses import checked_starts
from muster.pipeline.offsets import Offsets, OffsetsJson, Place, Range, divided, limited
from muster.pipeline.options import Edge, SourceOptions, check_names, include_headers, source_options

_IDLE_S: Final = 0.2
"""The least time between two looks of an idle reader: Spark asks a hundred times a second."""


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, wanted: Range) -> None:
        super().__init__(wanted)


class DefaultSource(DataSource):
    """The format "muster"."""

    @classmethod
    def name(cls) -> str:
        return "muster"

    def schema(self) -> StructType:
        check_names(self.options)
        return schema(headers=include_headers(self.options))

    def reader(self, schema: Any) -> DataSourceReader:
        options = source_options(self.options, streaming=False)
        check_schema(schema, headers=options.include_headers)
        return BatchReader(options)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        options = source_options(self.options, streaming=True)
        check_schema(schema, headers=options.include_headers)
        return StreamReader(options)

    def writer(self, schema: Any, overwrite: bool) -> Any:
        from muster.pipeline.writer import batch_writer

        return batch_writer(schema, self.options, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        from muster.pipeline.writer import stream_writer

        return stream_writer(schema, self.options, overwrite)


def _rows(options: SourceOptions, partition: InputPartition) -> Iterator[RecordBatch]:
    """The rows of a partition. For a batch without partitions, Spark makes up one with the value None."""
    if isinstance(partition.value, Range):
        yield from read_rows(options, partition.value)


class BatchReader(DataSourceReader):
    """Reads the records between two bounds, which are looked up once."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[RangePartition]:
        options = self._options
        cluster = BlockingCluster(options)
        try:
            found = cluster.ask(lambda asked, until: first_look(asked, options, until))
            starts = cluster.ask(
                lambda asked, until: resolved(asked, options, options.starting, "starting", found, until)
            )
            ends = cluster.ask(
                lambda asked, until: resolved(asked, options, options.ending, "ending", found, until)
            )
        finally:
            cluster.close()
        for where in sorted(ends):
            # Retention may have moved the start of a log beyond the end that was looked up before it.
            if starts[where] > ends[where] and options.ending is not Edge.LATEST:
                raise PipelineError(
                    f"{where} would start at offset {starts[where]} but end at {ends[where]}: check the"
                    " starting… and ending… options"
                )
        ranges = [
            Range(where, starts[where], ends[where], found.topic_ids.get(where.topic)) for where in ends
        ]
        return [RangePartition(each) for each in divided(ranges, options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        return _rows(self._options, partition)


class _Begun(NamedTuple):
    """Where a batch begins, as last determined."""

    at: Offsets
    seen: Look
    starts: dict[TopicPartition, int]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads records from offsets to offsets, as Spark's checkpoint stores them. `clock` returns seconds, and
    `sleep` takes them."""

    def __init__(
        self,
        options: SourceOptions,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._clock, self._sleep = clock, sleep
        self._connected: BlockingCluster | None = None
        self._commits = None
        if options.commit_offsets:
            assert options.group_id is not None, "checked with the options"
            self._commits = Commits(options.group_id, clock)
        self._initial: Offsets | None = None
        self._unresolved: Unresolved | None = None
        self._is_start_planned = options.starts_the_same
        self._target: dict[TopicPartition, int] | None = None
        self._seen: Look | None = None
        self._idle_at: Offsets | None = None
        self._look_again_at = 0.0
        self._begun: _Begun | None = None

    # --- in the driver --------------------------------------------------------------------------------------

    def initialOffset(self) -> OffsetsJson:
        """Where a query without a checkpoint begins. Spark asks twice, so the answer is cached.

        Partitions may have been added since the first batch was planned, and the options need not say where
        those begin: they are left out here, as they are there. If no batch was planned, `latestOffset`
        complains."""
        if self._initial is None:
            options = self._options
            found = self._cluster.ask(lambda asked, until: first_look(asked, options, until))
            starts: Mapping[TopicPartition, int]
            try:
                starts = self._cluster.ask(
                    lambda asked, until: resolved(asked, options, options.starting, "starting", found, until)
                )
            except Unresolved as unresolved:
                self._unresolved, starts = unresolved, unresolved.offsets
            places = {
                where: Place(offset, found.ends[where].leader_epoch) for where, offset in starts.items()
            }
            self._initial = Offsets(places, found.topic_ids)
            if self._unresolved is None:
                self._finished(self._initial)
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit this run to what is there now."""
        found = self._look(await_named=True)
        self._target = {where: end.offset for where, end in found.ends.items()}

    def latestOffset(self, start: OffsetsJson, limit: ReadLimit) -> OffsetsJson:
        """Where the next batch ends. Everything before `start` is finished, so it is committed."""
        begun = Offsets.from_json(start)
        if begun == self._initial and self._unresolved is not None:
            raise self._unresolved
        self._finished(begun)
        if begun == self._initial and not self._is_start_planned:
            self._is_start_planned = True
            return start
        if begun == self._idle_at:
            # An earlier look would not do: processAllAvailable() returns when Spark is told of nothing new.
            self._sleep(max(self._look_again_at - self._clock(), 0.0))
        self._look_again_at = self._clock() + _IDLE_S
        seen = self._seen = self._look(begun)
        starts = self._starts(begun, seen)
        ends = {where: max(starts[where], end.offset) for where, end in seen.ends.items()}
        if self._target is not None:
            # What is only in the position was missed, and has its target from now on. What is in neither
            # came later.
            missed = {where: end for where, end in ends.items() if where in begun.places}
            self._target = targets = missed | self._target
            ends = {
                where: max(starts[where], min(end, targets[where]))
                for where, end in ends.items()
                if where in targets
            }
        if isinstance(limit, ReadMaxRows):
            ends = limited(starts, ends, limit.max_rows)
        end = self._offsets(begun, seen, ends)
        if self._target is not None and end == begun:
            self._finished(begun, is_last=True)
        self._idle_at = end if end == begun else None
        return end.to_json()

    def reportLatestOffset(self) -> OffsetsJson | None:
        """The ends of the logs, for the query's progress: the distance from `endOffset` to them is the
        lag."""
        return None if self._seen is None else self._seen.offsets().to_json()

    def partitions(self, start: OffsetsJson, end: OffsetsJson) -> Sequence[RangePartition]:
        """The ranges of a batch, which an earlier process may have planned."""
        begun, ended = Offsets.from_json(start), Offsets.from_json(end)
        if begun == self._initial and self._unresolved is not None:
            if ended.places.keys() - begun.places.keys():
                raise self._unresolved
            self._unresolved = None
        starts = self._starts(begun, None)
        self._is_start_planned = True
        if begun == self._initial and self._options.starts_the_same:
            for where, place in sorted(ended.places.items()):
                if (first := starts.get(where, 0)) > place.offset:
                    data_lost(
                        self._options,
                        f"{where}: the first batch was to end at offset {place.offset}, and the query would"
                        f" now start at {first}; what was to be read before is not known any more",
                    )
        ranges = []
        for where, place in ended.places.items():
            topic_id = ended.topic_ids.get(where.topic)
            same = begun.topic_ids.get(where.topic, topic_id) == topic_id
            # What brokers do not know now may be back when the task runs.
            before = begun.places[where].offset if same and where in begun.places else 0
            ranges.append(Range(where, starts.get(where, before), place.offset, topic_id))
        return [RangePartition(each) for each in divided(ranges, self._options.min_partitions)]

    def commit(self, end: OffsetsJson) -> None:
        self._finished(Offsets.from_json(end))

    def stop(self) -> None:
        """Spark calls this if the query's process exits by itself; usually it is terminated."""
        if self._connected is not None:
            self._connected.close()
            self._connected = None

    # --- in the tasks ---------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        return _rows(self._options, partition)

    # --- within ---------------------------------------------------------------------------------------------

    @property
    def _cluster(self) -> BlockingCluster:
        if self._connected is None:
            self._connected = BlockingCluster(self._options)
        return self._connected

    def _look(self, begun: Offsets | None = None, *, await_named: bool = False) -> Look:
        """What there is, for a batch that begins there."""
        known = () if begun is None else begun.places.keys()
        return self._cluster.ask(
            lambda asked, until: look(asked, self._options, until, known, await_named=await_named)
        )

    def _finished(self, offsets: Offsets, *, is_last: bool = False) -> None:
        if self._commits is not None:
            there = {where: place.offset for where, place in offsets.places.items()}
            self._commits.commit(self._cluster, there, is_last=is_last)

    def _offsets(self, begun: Offsets, seen: Look, ends: Mapping[TopicPartition, int]) -> Offsets:
        """The position with these offsets. A partition whose offset is unchanged keeps its epoch: a new
        leader alone is no news."""
        places = {}
        for where, offset in ends.items():
            known = begun.topic_ids.get(where.topic) == seen.topic_ids.get(where.topic)
            before = begun.places.get(where) if known else None
            if before is not None and before.offset == offset:
                places[where] = before
            else:
                places[where] = Place(offset, seen.ends[where].leader_epoch)
        return Offsets(places, seen.topic_ids)

    def _starts(self, begun: Offsets, seen: Look | None) -> dict[TopicPartition, int]:
        """Where to resume the partitions after `begun`, given what was `seen`; None: what was seen last for
        the same position, or a new look."""
        if self._begun is not None and self._begun.at == begun and seen in (None, self._begun.seen):
            return self._begun.starts
        found = self._look(begun) if seen is None else seen
        starts = self._cluster.ask(
            lambda asked, until: checked_starts(asked, self._options, begun, found, until)
        )
        self._begun = _Begun(begun, found, starts)
        return starts
