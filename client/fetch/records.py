"""Records and batches, as consumers get them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Final, Generic, NamedTuple, TypeVar, overload

from muster.client.partitions import TopicPartition
from muster.protocol.record_reader import Headers

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")

CREATE_TIME: Final = 0
"""`timestamp_type`: the producer's clock."""
LOG_APPEND_TIME: Final = 1
"""`timestamp_type`: the broker's, when the record was appended."""


class ConsumerRecord(NamedTuple, Generic[K, V]):
    """A record as it was read. `timestamp` is in epoch ms, -1 for none; `timestamp_type` says whose clock it
    is from. `leader_epoch` is that of the leader that appended the record, -1 if unknown.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: K
    value: V
    headers: Headers
    leader_epoch: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class Batch(Sequence[ConsumerRecord[K, V]], Generic[K, V]):
    """Records of one partition, in order: a sequence of `ConsumerRecord` that is also available by column.
    The columns (`values`, `keys`, `offsets`, `timestamps`) cost nothing; the records are created on first
    access. A slice is a Batch. A consumer never returns an empty one.
    """

    __slots__ = (
        "_headers",
        "_records",
        "keys",
        "leader_epoch",
        "next_offset",
        "offsets",
        "partition",
        "timestamp_type",
        "timestamps",
        "topic",
        "values",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        offsets: Sequence[int],
        timestamps: Sequence[int],
        headers: Sequence[Headers] | None = None,
        *,
        keys: Sequence[K],
        values: Sequence[V],
        next_offset: int,
        timestamp_type: int = CREATE_TIME,
        leader_epoch: int = -1,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offsets = offsets
        """Ascending; there may be gaps."""
        self.timestamps = timestamps
        """Epoch ms, -1 for none."""
        self.keys = keys
        self.values = values
        self._headers = headers
        self.next_offset = next_offset
        """The offset after this batch: what to commit once all of it is processed."""
        self.timestamp_type = timestamp_type
        self.leader_epoch = leader_epoch
        self._records: list[ConsumerRecord[K, V]] | None = None

    def __repr__(self) -> str:
        return f"<Batch {self.topic}-{self.partition} offsets {self.first_offset} to {self.offsets[-1]}>"

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def first_offset(self) -> int:
        return self.offsets[0]

    @property
    def headers(self) -> Sequence[Headers]:
        """The headers of each record; () for none."""
        return [()] * len(self.values) if self._headers is None else self._headers

    @property
    def records(self) -> list[ConsumerRecord[K, V]]:
        if self._records is None:
            # Like `ConsumerRecord(...)` for each, without a Python call.
            self._records = list(
                map(
                    tuple.__new__,
                    repeat(ConsumerRecord),
                    zip(
                        repeat(self.topic),
                        repeat(self.partition),
                        self.offsets,
                        self.timestamps,
                        repeat(self.timestamp_type),
                        self.keys,
                        self.values,
                        repeat(()) if self._headers is None else self._headers,
                        repeat(self.leader_epoch),
                    ),
                )
            )
        return self._records

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[ConsumerRecord[K, V]]:
        return iter(self.records)

    @overload
    def __getitem__(self, index: int) -> ConsumerRecord[K, V]: ...

    @overload
    def __getitem__(self, index: slice) -> Batch[K, V]: ...

    def __getitem__(self, index: int | slice) -> ConsumerRecord[K, V] | Batch[K, V]:
        if isinstance(index, int):
            return self.records[index]
        start, stop, step = index.indices(len(self.values))
        if step != 1:
            raise ValueError("a batch is sliced without a step: its records stay in order")
        return self._part(start, stop)

    def _part(self, start: int, stop: int) -> Batch[K, V]:
        offsets = self.offsets[start:stop]
        if stop == len(self.offsets) or start == len(self.offsets):
            next_offset = self.next_offset
        else:
            next_offset = offsets[-1] + 1 if offsets else self.offsets[start]
        return Batch(
            self.topic,
            self.partition,
            offsets,
            self.timestamps[start:stop],
            None if self._headers is None else self._headers[start:stop],
            keys=self.keys[start:stop],
            values=self.values[start:stop],
            next_offset=next_offset,
            timestamp_type=self.timestamp_type,
            leader_epoch=self.leader_epoch,
        )

    def with_contents(self, keys: Sequence[K2], values: Sequence[V2]) -> Batch[K2, V2]:
        """The same records with other keys and values, as returned by deserializers."""
        return Batch(
            self.topic,
            self.partition,
            self.offsets,
            self.timestamps,
            self._headers,
            keys=keys,
            values=values,
            next_offset=self.next_offset,
            timestamp_type=self.timestamp_type,
            leader_epoch=self.leader_epoch,
        )
