"""Sending records.

Each partition has one batch under way at a time; the next one follows its acknowledgement, so records keep
their order. With acks=all the producer is idempotent (KIP-98): a batch that is sent again because its answer
was lost is written once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from muster.client.cluster import Cluster, all_of, backoff_s, left_out
from muster.client.connection import deadline
from muster.client.errors import ClientError, refusal
from muster.client.partitioner import partition_of
from muster.client.partitions import TopicPartition, grouped
from muster.protocol.compression import Codec
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.data import ProduceRequest, ProduceResponse
from muster.protocol.messages.transactions import InitProducerIdRequest
from muster.protocol.record_batch import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    Record,
    advance_sequence,
    build,
)

ACKS_ALL: Final = -1
BATCH_BYTES: Final = 512 * 1024
"""Keys, values and headers of a batch before packing; half of Kafka's default max.message.bytes. One record
may be larger."""

_RECORD_OVERHEAD_BYTES: Final = 40
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class Outgoing(NamedTuple):
    """A record to send. Without a partition its key decides; without a timestamp (epoch ms) the clock."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp: int | None = None


class Sent(NamedTuple):
    """Where a record went. The offset is -1 with acks=0, the timestamp the one that consumers see."""

    partition: int
    offset: int
    timestamp: int


class _Batch(NamedTuple):
    """Some of a call's records, by their positions in it, with the sequence of the first."""

    positions: list[int]
    records: list[Record]
    sequence: int


class Producer:
    """Sends to one cluster. Not for concurrent use: a call to `send` ends before the next begins."""

    def __init__(self, cluster: Cluster, *, acks: int = ACKS_ALL, codec: Codec = Codec.NONE) -> None:
        self._cluster = cluster
        self._acks = acks
        self._codec = codec
        self._producer_id = NO_PRODUCER_ID
        self._producer_epoch = NO_PRODUCER_EPOCH
        self._sequences: dict[TopicPartition, int] = {}
        self._keyless = 0

    async def send(self, topic: str, records: Sequence[Outgoing], until: float) -> list[Sent]:
        """Send, and return where each went once all are acknowledged.

        Raises KafkaError for what a broker refuses, ClientError when no answer comes in time. Records of the
        same call may have been written then, up to the refused one of each partition.
        """
        if self._acks == ACKS_ALL and self._producer_id == NO_PRODUCER_ID:
            await self._cluster.retrying(lambda: self._begin(until), until)
        count = await self._cluster.retrying(lambda: self._partitions(topic, until), until)
        queues = self._batched(topic, records, count)
        sent: dict[int, Sent] = {}
        try:
            await self._send(queues, sent, until)
        except BaseException:
            # Sequences are given away that the broker has not seen, or may have: as another producer there
            # is no gap in them, and nothing of this call is sent again.
            self._producer_id, self._producer_epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
            self._sequences.clear()
            raise
        return [sent[index] for index in range(len(records))]

    async def _send(
        self, queues: dict[TopicPartition, list[_Batch]], sent: dict[int, Sent], until: float
    ) -> None:
        """Round after round until the queues are empty."""
        tries = 0
        while queues:
            failed = await self._round(queues, sent, until)
            if failed is None:
                tries = 0
                continue
            wait_s = backoff_s(tries)
            tries += 1
            if deadline(wait_s) >= until:
                raise failed
            self._cluster.forget()
            await asyncio.sleep(wait_s)

    async def _begin(self, until: float) -> None:
        response = await self._cluster.call(
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0), until
        )
        if response.error_code:
            raise refusal(response.error_code, about="producer id")
        self._producer_id, self._producer_epoch = response.producer_id, response.producer_epoch

    async def _partitions(self, topic: str, until: float) -> int:
        count = len((await self._cluster.topic(topic, until)).partitions)
        if not count:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {topic} has no partitions yet")
        return count

    # --- batches --------------------------------------------------------------------------------------------

    def _batched(
        self, topic: str, records: Sequence[Outgoing], count: int
    ) -> dict[TopicPartition, list[_Batch]]:
        """The batches of each partition, in the order in which they go out."""
        # Records without a key go to one partition per call, which makes larger batches (KIP-480).
        keyless = self._keyless % count
        self._keyless += 1
        now_ms = int(time.time() * 1000)
        chosen: dict[int, list[tuple[int, Record]]] = {}
        for index, each in enumerate(records):
            if each.partition is not None:
                partition = each.partition
            else:
                partition = keyless if each.key is None else partition_of(each.key, count)
            timestamp = now_ms if each.timestamp is None else each.timestamp
            record = Record(0, timestamp, each.key, each.value, each.headers)
            chosen.setdefault(partition, []).append((index, record))
        return {
            (where := TopicPartition(topic, partition)): self._cut(where, numbered)
            for partition, numbered in chosen.items()
        }

    def _cut(self, where: TopicPartition, numbered: list[tuple[int, Record]]) -> list[_Batch]:
        batches: list[_Batch] = []
        part: list[tuple[int, Record]] = []
        size_bytes = 0
        for index, record in numbered:
            record_bytes = _size_bytes(record)
            if part and size_bytes + record_bytes > BATCH_BYTES:
                batches.append(self._batch(where, part))
                part, size_bytes = [], 0
            part.append((index, record))
            size_bytes += record_bytes
        batches.append(self._batch(where, part))
        return batches

    def _batch(self, where: TopicPartition, part: list[tuple[int, Record]]) -> _Batch:
        sequence = NO_SEQUENCE
        if self._acks == ACKS_ALL:
            sequence = self._sequences.get(where, 0)
            self._sequences[where] = advance_sequence(sequence, len(part))
        return _Batch([index for index, _ in part], [record for _, record in part], sequence)

    def _bytes(self, batch: _Batch) -> bytes:
        return build(
            [record._replace(offset=index) for index, record in enumerate(batch.records)],
            codec=self._codec,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=batch.sequence,
        )

    # --- rounds ---------------------------------------------------------------------------------------------

    async def _round(
        self, queues: dict[TopicPartition, list[_Batch]], sent: dict[int, Sent], until: float
    ) -> Exception | None:
        """Send the first batch of every queue and take off what was acknowledged. Returns a failure that may
        pass, raises one that does not."""
        try:
            led = await self._cluster.by_leader(queues, until)
        except (ClientError, KafkaError) as error:
            return self._unless_final(error)
        failures = await all_of(
            self._ask(node, {where: queues[where] for where in partitions}, sent, until)
            for node, partitions in led.items()
        )
        for where in [where for where, batches in queues.items() if not batches]:
            del queues[where]
        return next((each for each in failures if each is not None), None)

    async def _ask(
        self, node: int, queues: Mapping[TopicPartition, list[_Batch]], sent: dict[int, Sent], until: float
    ) -> Exception | None:
        topics = grouped((where, self._bytes(batches[0])) for where, batches in queues.items())
        request = ProduceRequest(
            acks=self._acks,
            timeout_ms=max(1, int((until - deadline(0)) * 1000)),
            topic_data=[
                ProduceRequest.TopicProduceData(
                    name=name,
                    partition_data=[
                        ProduceRequest.PartitionProduceData(index=index, records=batch)
                        for index, batch in parts
                    ],
                )
                for name, parts in topics.items()
            ],
        )
        try:
            if self._acks == 0:
                connection = await self._cluster.connection(node, until)
                await connection.tell(request, until)
                for where, batches in queues.items():
                    _acknowledge(where, batches.pop(0), -1, -1, sent)
                return None
            response: ProduceResponse = await self._cluster.call(request, until, node=node)
        except (ClientError, KafkaError) as error:
            return self._unless_final(error)
        told = {
            TopicPartition(topic.name, each.index): each
            for topic in response.responses
            for each in topic.partition_responses
        }
        left_out(queues.keys() - told.keys(), "Produce")
        failed = None
        for where, batches in queues.items():
            failed = self._take(where, batches, told[where], sent) or failed
        return failed

    def _take(
        self,
        where: TopicPartition,
        batches: list[_Batch],
        told: ProduceResponse.TopicProduceResponse.PartitionProduceResponse,
        sent: dict[int, Sent],
    ) -> Exception | None:
        batch = batches[0]
        if told.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            _acknowledge(where, batches.pop(0), told.base_offset, told.log_append_time_ms, sent)
            return None
        if told.error_code in _TOO_LARGE and len(batch.records) > 1:
            batches[:1] = _halves(batch)
            return None
        why = told.error_message
        if told.record_errors:
            first = told.record_errors[0]
            if 0 <= first.batch_index < len(batch.positions):
                why = (
                    f"{first.batch_index_error_message or why} (record {batch.positions[first.batch_index]})"
                )
        return self._unless_final(refusal(told.error_code, why, about=str(where)))

    def _unless_final(self, error: Exception) -> Exception:
        if self._cluster.is_final(error):
            raise error
        return error


def _size_bytes(record: Record) -> int:
    headers = sum(len(name) + len(value or b"") + 4 for name, value in record.headers)
    return _RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"") + headers


def _halves(batch: _Batch) -> list[_Batch]:
    half = len(batch.records) // 2
    sequence = advance_sequence(batch.sequence, half)
    return [
        _Batch(batch.positions[:half], batch.records[:half], batch.sequence),
        _Batch(batch.positions[half:], batch.records[half:], sequence),
    ]


def _acknowledge(
    where: TopicPartition, batch: _Batch, base_offset: int, log_append_time_ms: int, sent: dict[int, Sent]
) -> None:
    for index, (position, record) in enumerate(zip(batch.positions, batch.records, strict=True)):
        offset = -1 if base_offset < 0 else base_offset + index
        timestamp = record.timestamp if log_append_time_ms < 0 else log_append_time_ms
        sent[position] = Sent(where.partition, offset, timestamp)
