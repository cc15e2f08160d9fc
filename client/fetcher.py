"""Reading partitions from given positions on.

One Fetch is under way per leader, on a connection of its own, and its records are handed out before the next
one is sent: what is held in memory is one answer per leader. A partition that cannot be read for a while
(its leader is gone, or moves) is tried again for as long as the caller has patience.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from muster.client.admin import EARLIEST, LATEST, list_offsets
from muster.client.cluster import Cluster, backoff_s
from muster.client.connection import deadline
from muster.client.errors import ClientError, refusal
from muster.client.partitions import TopicPartition, grouped
from muster.protocol.errors import DecodeError, ErrorCode, KafkaError
from muster.protocol.messages.data import FetchRequest, FetchResponse
from muster.protocol.record_batch import HEADER_BYTES, crc_matches, peek, records

MAX_WAIT_MS: Final = 500
"""How long a broker waits for records before it answers with none: fetch.max.wait.ms."""

_LANE: Final = "fetch"
_MIN_BYTES: Final = 1
_MAX_BYTES: Final = 16 * 1024 * 1024
_PARTITION_MAX_BYTES: Final = 1024 * 1024
_READ_UNCOMMITTED: Final = 0


class Fetched(NamedTuple):
    """A record as it was read; the timestamp in epoch ms."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def where(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class _Answer(NamedTuple):
    """What came of one Fetch; `failed` says why nothing did."""

    asked: dict[TopicPartition, int]
    began: float
    response: FetchResponse | None
    failed: Exception | None


class _Failure(NamedTuple):
    """Why a partition could not be read; `began`: when that was asked, -inf where there is nothing to wait
    for."""

    began: float
    error: Exception


class Fetcher:
    """Reads the partitions it is assigned.

    `reset` is where to go on when the log does not have a position any more, EARLIEST or LATEST; None raises
    KafkaError(OFFSET_OUT_OF_RANGE). `patience_s` bounds how long a partition may go without an answer.
    """

    def __init__(self, cluster: Cluster, *, patience_s: float, reset: int | None = None) -> None:
        self._cluster = cluster
        self._patience_s = patience_s
        self._reset = reset
        self._positions: dict[TopicPartition, int] = {}
        self._fetches: dict[int, asyncio.Task[_Answer]] = {}
        self._unsettled: dict[TopicPartition, _Failure] = {}
        self._troubled: dict[TopicPartition, float] = {}
        self._failures = 0

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The offset that comes next in each assigned partition."""
        return dict(self._positions)

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these and no others, from these offsets on."""
        self._positions = dict(positions)
        self._unsettled.clear()
        self._troubled.clear()

    def stop(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these no further."""
        for where in partitions:
            self._positions.pop(where, None)
            self._troubled.pop(where, None)

    async def poll(self, wait_s: float = MAX_WAIT_MS / 1000) -> list[Fetched]:
        """Records as they come, of each partition in order; none when there are none for `wait_s`.

        Raises ClientError or KafkaError when a partition cannot be read, at the end of the patience or at
        once when waiting cannot help. Nothing is lost when it is cancelled.
        """
        await self._settle()
        await self._fetch_from_idle_leaders()
        if not self._fetches:
            await asyncio.sleep(wait_s)
            return []
        done, _ = await asyncio.wait(
            self._fetches.values(), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED
        )
        fetched: list[Fetched] = []
        for node in [node for node, task in self._fetches.items() if task in done]:
            self._take(self._fetches.pop(node).result(), fetched)
        # Records that were taken are handed out before anything is waited for, or raised.
        if not fetched:
            await self._settle()
        return fetched

    async def close(self) -> None:
        """End what is under way."""
        for task in self._fetches.values():
            task.cancel()
        if self._fetches:
            await asyncio.wait(self._fetches.values())
        self._fetches.clear()

    # --- out ------------------------------------------------------------------------------------------------

    async def _fetch_from_idle_leaders(self) -> None:
        began = deadline(0)
        try:
            led = await self._cluster.by_leader(self._positions, began + self._patience_s)
        except (ClientError, KafkaError) as error:
            await self._trouble(dict.fromkeys(self._positions, _Failure(began, error)))
            return
        for node, partitions in led.items():
            if node not in self._fetches:
                asked = {where: self._positions[where] for where in partitions}
                self._fetches[node] = asyncio.create_task(
                    self._fetch(node, asked), name=f"fetch from broker {node}"
                )

    async def _fetch(self, node: int, asked: dict[TopicPartition, int]) -> _Answer:
        request = FetchRequest(
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=_MIN_BYTES,
            max_bytes=_MAX_BYTES,
            isolation_level=_READ_UNCOMMITTED,
            topics=[
                FetchRequest.FetchTopic(
                    topic=topic,
                    partitions=[
                        FetchRequest.FetchPartition(
                            partition=index, fetch_offset=offset, partition_max_bytes=_PARTITION_MAX_BYTES
                        )
                        for index, offset in parts
                    ],
                )
                for topic, parts in grouped(asked.items()).items()
            ],
        )
        began = deadline(0)
        try:
            until = began + self._patience_s
            response: FetchResponse = await self._cluster.call(request, until, node=node, lane=_LANE)
        except (ClientError, KafkaError) as error:
            return _Answer(asked, began, None, error)
        failed = refusal(response.error_code) if response.error_code else None
        return _Answer(asked, began, response, failed)

    # --- in -------------------------------------------------------------------------------------------------

    def _take(self, answer: _Answer, fetched: list[Fetched]) -> None:
        if answer.response is None or answer.failed is not None:
            assert answer.failed is not None
            self._unsettled |= dict.fromkeys(answer.asked, _Failure(answer.began, answer.failed))
            return
        for topic in answer.response.responses:
            for each in topic.partitions:
                where = TopicPartition(topic.topic, each.partition_index)
                asked = answer.asked.get(where)
                if asked is None or self._positions.get(where) != asked:
                    continue  # It was assigned anew meanwhile.
                if each.error_code:
                    error = refusal(each.error_code, about=str(where))
                    self._unsettled[where] = _Failure(answer.began, error)
                    continue
                self._troubled.pop(where, None)
                try:
                    self._unpack(where, each.records or b"", fetched)
                except KafkaError as damage:
                    self._unsettled[where] = _Failure(-math.inf, damage)
        if not self._unsettled:
            self._failures = 0

    def _unpack(self, where: TopicPartition, data: bytes, fetched: list[Fetched]) -> None:
        """Hand out the records from the position on. The first batch may begin before it, and the last one
        may be cut short where the broker had no more room."""
        position = 0
        try:
            while len(data) - position >= HEADER_BYTES:
                header = peek(data, position)
                if header.size > len(data) - position:
                    break
                if not crc_matches(data, position, header):
                    raise KafkaError(
                        ErrorCode.CORRUPT_MESSAGE, f"{where}: the batch at {header.base_offset} is damaged"
                    )
                if not header.is_control:
                    fetched.extend(
                        Fetched(where.topic, where.partition, *record)
                        for record in records(data, position, header)
                        if record.offset >= self._positions[where]
                    )
                self._positions[where] = max(self._positions[where], header.next_offset)
                position += header.size
        except DecodeError as error:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{where}: {error}") from error

    async def _settle(self) -> None:
        """Do what can be done about fetches that failed."""
        unsettled, self._unsettled = self._unsettled, {}
        troubled: dict[TopicPartition, _Failure] = {}
        for where, failure in unsettled.items():
            if where not in self._positions:
                continue
            if getattr(failure.error, "code", None) is ErrorCode.OFFSET_OUT_OF_RANGE:
                await self._find_position(where)
            else:
                troubled[where] = failure
        if troubled:
            await self._trouble(troubled)

    async def _find_position(self, where: TopicPartition) -> None:
        """The log does not reach back, or on, to the position: go to where `reset` says."""
        until = deadline(self._patience_s)
        if self._reset is None:
            start = await list_offsets(self._cluster, {where: EARLIEST}, until)
            end = await list_offsets(self._cluster, {where: LATEST}, until)
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{where} has no offset {self._positions[where]}; it has {start[where]} to {end[where]}",
            )
        self._positions |= await list_offsets(self._cluster, {where: self._reset}, until)

    async def _trouble(self, partitions: Mapping[TopicPartition, _Failure]) -> None:
        """Wait a moment before the next try, or raise when it cannot help or the patience is at its end."""
        now = deadline(0)
        for where, (began, error) in partitions.items():
            since = self._troubled[where] = min(began, self._troubled.get(where, began))
            if self._cluster.is_final(error) or now - since >= self._patience_s:
                raise error
        self._cluster.forget()
        await asyncio.sleep(backoff_s(self._failures))
        self._failures += 1
