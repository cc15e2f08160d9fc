"""Transactions from raw connections, one after the other, as clients of `transaction.version` 2 send them:
Produce adds the partitions (v12), and EndTxn raises the epoch (v5)."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from google_crc32c import value as crc32c

from muster.protocol.api import response_class
from muster.protocol.codec import decode
from muster.protocol.errors import ErrorCode
from muster.protocol.header import decode_response_header, encode_request
from muster.protocol.message import Message
from muster.protocol.messages.data import ProduceRequest
from muster.protocol.messages.transactions import EndTxnRequest, InitProducerIdRequest
from muster.protocol.record_batch import Record, build
from tests.bench.load import Latencies, Link

PRODUCE_VERSION: Final = 12
"""The first that adds partitions to the transaction."""
END_VERSION: Final = 5
"""The first that raises the epoch."""
INIT_VERSION: Final = 4
RECORDS: Final = 10
"""Of a transaction."""
PARTITIONS: Final = 3
"""That they go to."""
RECORD_BYTES: Final = 1_000

_TIMEOUT_MS: Final = 60_000
_STARTED_S: Final = 60.0
_QUIET_S: Final = 60.0
_RETRY_S: Final = 0.001
_AGAIN: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)
_AGAIN_PRODUCED: Final = {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS}
"""Of Produce: the markers of the transaction before are on their way for longer than the broker waits by
itself, or the coordinator could not be asked. What was stored of a request is not stored again."""

_INT32: Final = struct.Struct(">i")
_UINT32: Final = struct.Struct(">I")
_PRODUCER: Final = struct.Struct(">qh")
_SOMEBODY: Final = 0x7A6B5C4D3E2F1A0B, 0x5A5A
"""Stands in frames for the producer's id and epoch: in batches and in EndTxn the one follows the other."""
_CORRELATION_AT: Final = 8
_LENGTH_AT, _CRC_AT, _SUMMED_FROM, _PRODUCER_AT = 8, 17, 21, 43
"""Of a batch, from its first byte."""


class Frame:
    """A request that is sent again and again, in which only its producer and correlation id change."""

    __slots__ = ("_batches", "_correlation_id", "_frame", "_places")

    def __init__(self, request: ProduceRequest | EndTxnRequest) -> None:
        """`request` is of the producer `_SOMEBODY`, and so are its batches if it has some: their checksums
        are made anew with every producer."""
        api_key = request.__schema__.api_key
        assert api_key is not None
        batches = isinstance(request, ProduceRequest)
        version = PRODUCE_VERSION if batches else END_VERSION
        self._frame = bytearray(encode_request(api_key, version, 0, "bench", request))
        self._correlation_id = 0
        self._places = _places(self._frame, _PRODUCER.pack(*_SOMEBODY))
        self._batches: list[tuple[int, int]] = []
        for at in self._places if batches else ():
            begin = at - _PRODUCER_AT
            (length,) = _INT32.unpack_from(self._frame, begin + _LENGTH_AT)
            self._batches.append((begin, begin + _LENGTH_AT + 4 + length))

    def of(self, producer: tuple[int, int]) -> None:
        """By this producer's id and epoch from now on."""
        frame = self._frame
        for at in self._places:
            _PRODUCER.pack_into(frame, at, *producer)
        for begin, end in self._batches:
            _UINT32.pack_into(frame, begin + _CRC_AT, crc32c(bytes(frame[begin + _SUMMED_FROM : end])))

    def next(self) -> bytes:
        self._correlation_id += 1
        _INT32.pack_into(self._frame, _CORRELATION_AT, self._correlation_id)
        return bytes(self._frame)


def _places(frame: bytearray, what: bytes) -> list[int]:
    found: list[int] = []
    at = frame.find(what)
    while at >= 0:
        found.append(at)
        at = frame.find(what, at + len(what))
    return found


class Transactions:
    """Of several producers, one after the other at each: how many are ended, and how long it took."""

    def __init__(self, *, limit: int | None = None, aborts_every: int = 0) -> None:
        """`limit`: none begins after so many. `aborts_every`: which of them are aborted; by default none."""
        self.ended = 0
        self.end = Latencies()
        """Of EndTxn, until it was answered."""
        self.next = Latencies()
        """From EndTxn until the first records of the producer's next transaction were acknowledged."""
        self._begun = 0
        self._limit = limit
        self._aborts_every = aborts_every
        self._busy = 0
        self._quiet = asyncio.Event()
        self._failure: Exception | None = None

    def start(self, producers: Sequence[TransactionalProducer]) -> None:
        self._busy = len(producers)
        for producer in producers:
            producer.run(self)

    def reset(self) -> None:
        """Forget what was measured so far."""
        self.ended = 0
        self.end.seconds.clear()
        self.next.seconds.clear()

    async def stop(self) -> None:
        """Return when those that have begun are ended. Raises RuntimeError if something was refused."""
        self._limit = 0
        await self.quiet()

    async def quiet(self) -> None:
        """Return when all producers have stopped. Raises RuntimeError if something was refused."""
        async with asyncio.timeout(_QUIET_S):
            await self._quiet.wait()
        if self._failure is not None:
            raise self._failure

    def commits(self) -> bool | None:
        """Of the transaction that begins now; None if none is to begin."""
        if self._limit is not None and self._begun >= self._limit:
            self._busy -= 1
            if not self._busy:
                self._quiet.set()
            return None
        self._begun += 1
        return not self._aborts_every or self._begun % self._aborts_every > 0

    def fail(self, what: str) -> None:
        """It is told when the producers are waited for."""
        self._failure = RuntimeError(what)
        self._quiet.set()


class TransactionalProducer:
    """One transactional id, with one request in flight to each leader, or to its coordinator."""

    def __init__(
        self,
        transactional_id: str,
        coordinator: Link,
        writes: Mapping[Link, Mapping[int, int]],
        topic: str,
    ) -> None:
        """`writes`: how many records go to which partitions of the topic in a transaction, by the connection
        to their leader."""
        self._id = transactional_id
        self._coordinator = coordinator
        self._writes = {link: Frame(_produce(transactional_id, topic, each)) for link, each in writes.items()}
        self._ends = {commits: Frame(_end(transactional_id, commits)) for commits in (True, False)}
        self._unanswered = 0
        self._commits = True
        self._sent_s: float | None = None
        """EndTxn of the transaction before."""

    async def init(self) -> None:
        """Return when the coordinator has given it an id and an epoch."""
        request = InitProducerIdRequest(transactional_id=self._id, transaction_timeout_ms=_TIMEOUT_MS)
        async with asyncio.timeout(_STARTED_S):
            while (answer := await self._coordinator.call(request, INIT_VERSION)).error_code in _AGAIN:  # noqa: ASYNC110
                await asyncio.sleep(_RETRY_S)
        if answer.error_code:
            raise RuntimeError(f"InitProducerId: {ErrorCode(answer.error_code).name}")
        self._become(answer.producer_id, answer.producer_epoch)

    def run(self, transactions: Transactions) -> None:
        """One transaction after the other, as long as there are some to begin."""
        self._all = transactions
        self._begin()

    def _become(self, producer_id: int, epoch: int) -> None:
        for frame in (*self._writes.values(), *self._ends.values()):
            frame.of((producer_id, epoch))

    def _begin(self) -> None:
        commits = self._all.commits()
        if commits is None:
            return
        self._commits = commits
        self._unanswered = len(self._writes)
        for link, frame in self._writes.items():
            link.on_frame = partial(self._written, link, frame)
            link.write(frame.next())

    def _written(self, link: Link, frame: Frame, answer: bytes) -> None:
        response = _decoded(ProduceRequest, PRODUCE_VERSION, answer)
        codes = {each.error_code for topic in response.responses for each in topic.partition_responses}
        if codes & _AGAIN_PRODUCED and codes <= {ErrorCode.NONE, *_AGAIN_PRODUCED}:
            asyncio.get_running_loop().call_later(_RETRY_S, lambda: link.write(frame.next()))
        elif codes != {ErrorCode.NONE}:
            self._all.fail(f"Produce: {sorted(ErrorCode(code).name for code in codes)}")
        else:
            self._unanswered -= 1
            if not self._unanswered:
                self._end()

    def _end(self) -> None:
        now_s = time.perf_counter()
        if self._sent_s is not None:
            self._all.next.seconds.append(now_s - self._sent_s)
        self._coordinator.on_frame = self._ended
        self._sent_s = now_s
        self._coordinator.write(self._ends[self._commits].next())

    def _ended(self, answer: bytes) -> None:
        response = _decoded(EndTxnRequest, END_VERSION, answer)
        if response.error_code:
            self._all.fail(f"EndTxn: {ErrorCode(response.error_code).name}")
            return
        assert self._sent_s is not None
        self._all.end.seconds.append(time.perf_counter() - self._sent_s)
        self._all.ended += 1
        self._become(response.producer_id, response.producer_epoch)
        self._begin()


def shares(producer: int, partitions: int) -> dict[int, int]:
    """How many records of a transaction go to which of so many partitions, by the producer's number."""
    chosen = [(producer * PARTITIONS + index) % partitions for index in range(PARTITIONS)]
    return {
        partition: RECORDS // PARTITIONS + (index < RECORDS % PARTITIONS)
        for index, partition in enumerate(chosen)
    }


def _produce(transactional_id: str, topic: str, records: Mapping[int, int]) -> ProduceRequest:
    parts = [
        ProduceRequest.PartitionProduceData(index=partition, records=_batch(count))
        for partition, count in records.items()
    ]
    topics = [ProduceRequest.TopicProduceData(name=topic, partition_data=parts)]
    return ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=30_000, topic_data=topics)


def _batch(records: int) -> bytes:
    """Every transaction has an epoch of its own, and its sequences begin at 0."""
    now_ms = time.time_ns() // 1_000_000
    value = b"x" * (RECORD_BYTES - 20)
    return build(
        [Record(number, now_ms, b"k%d" % number, value) for number in range(records)],
        producer_id=_SOMEBODY[0],
        producer_epoch=_SOMEBODY[1],
        base_sequence=0,
        transactional=True,
    )


def _end(transactional_id: str, commits: bool) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=_SOMEBODY[0],
        producer_epoch=_SOMEBODY[1],
        committed=commits,
    )


def _decoded(request: type[Message], version: int, frame: bytes) -> Any:
    api_key = request.__schema__.api_key
    assert api_key is not None
    _, offset = decode_response_header(api_key, version, frame)
    return decode(response_class(api_key), version, frame, offset)
