"""Reads the records of a range of offsets: the work of one task, on an executor, in its own event loop.

The next Fetch is sent before the last response is unpacked, so that the broker works meanwhile. Each Fetch
stands alone (no fetch session): a task reads one partition, from one offset to another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

from muster.client.errors import ClientError, NotKafka, refusal
from muster.client.fetch.fetched import AbortedTransaction, Part
from muster.client.fetch.requests import READ_COMMITTED, READ_UNCOMMITTED, FetchSettings, fetch_request
from muster.client.fetch.session import CLOSE, NO_SESSION, Asked, Plan
from muster.client.network.cluster import Cluster
from muster.client.network.connection import Versioned, deadline
from muster.client.network.servers import parse_servers
from muster.client.partitions import NO_LEADER_EPOCH
from muster.pipeline.asking import APPEARS_S, earliest, is_local
from muster.pipeline.columns import RecordBatch
from muster.pipeline.decoding import rows
from muster.pipeline.errors import PipelineError, data_lost
from muster.pipeline.offsets import Range
from muster.pipeline.options import SourceOptions
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.message import VERSION_MAX
from muster.protocol.messages.data import FetchRequest, FetchResponse

_PROGRESS_S: Final = 30.0
"""How long a range may make no progress, while a broker restarts or a leader is elected."""
_STALE_S: Final = 10.0
"""How old a Fetch sent ahead may be when it is needed. The loop does not run while Spark consumes rows, so an
older one may have run out of time unattended, which says nothing of the broker; it is sent again."""
_WAIT_MS: Final = 500
_BY_NAME: Final = 12  # the last version of Fetch without topic ids
_ANOTHER_TOPIC: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID})


def _connected(options: SourceOptions) -> Cluster:
    return Cluster(
        parse_servers(options.bootstrap_servers),
        client_id=options.client_id,
        security=options.access.security,
        patient=True,
    )


def read_rows(
    options: SourceOptions, wanted: Range, connect: Callable[[SourceOptions], Cluster] = _connected
) -> Iterator[RecordBatch]:
    """The records of the range, in order, with the columns that the options select, in nonempty batches of
    at most RECORDS_MAX.

    Raises DataLost if some no longer exist, unless `failOnDataLoss` is false, and PipelineError if the
    partition cannot be read for 30 s, or a batch is corrupt.
    """
    loop = asyncio.new_event_loop()
    cluster = connect(options)
    fetching = _Fetching(cluster, options, wanted)
    upcoming: asyncio.Task[_Answer] | None = None
    asked_at = 0.0
    try:
        position, epoch = wanted.start, NO_LEADER_EPOCH
        while position < wanted.until:
            if upcoming is not None and not upcoming.done() and loop.time() - asked_at > _STALE_S:
                _drop(loop, upcoming)
                upcoming = None
            answer = loop.run_until_complete(upcoming or fetching.answer(position, epoch))
            upcoming = None
            begin, position = position, answer.position
            if answer.part is None:
                continue
            epoch = answer.part.last_epoch
            if position < wanted.until:
                asked_at = loop.time()
                upcoming = _started(loop, fetching.answer(position, epoch))
            yield from rows(answer.part, wanted.where, begin, wanted.until, headers=options.include_headers)
    except (ClientError, KafkaError) as error:
        said = options.access.in_options(str(error))
        raise PipelineError(f"{wanted.where} could not be read: {said}") from error
    finally:
        if upcoming is not None:
            _drop(loop, upcoming)
        loop.run_until_complete(cluster.close())
        loop.close()


def _started(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, _Answer]
) -> asyncio.Task[_Answer]:
    """Start the task; if connected, it also sends its first request."""
    task = loop.create_task(coroutine)
    loop.run_until_complete(asyncio.sleep(0))
    return task


def _drop(loop: asyncio.AbstractEventLoop, task: asyncio.Task[_Answer]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError, ClientError, KafkaError, PipelineError):
        loop.run_until_complete(task)


class _Answer(NamedTuple):
    """The part received, None for a gap, and the offset to continue from."""

    part: Part | None
    position: int


class _Fetching:
    """Fetches from one partition, retried while that may help."""

    def __init__(self, cluster: Cluster, options: SourceOptions, wanted: Range) -> None:
        self._cluster = cluster
        self._options = options
        self._wanted = wanted
        self._appears: float | None = None
        """Until when the topic may be unknown to a broker, once one did not know it."""
        self._settings = FetchSettings(
            max_wait_ms=_WAIT_MS,
            partition_max_bytes=options.partition_fetch_bytes,
            isolation_level=READ_COMMITTED if options.read_committed else READ_UNCOMMITTED,
        )

    async def answer(self, position: int, last_epoch: int) -> _Answer:
        """What is at `position`, or where to continue. Raises ClientError, KafkaError or PipelineError."""
        until = deadline(_PROGRESS_S)
        self._appears = None
        tries = self._cluster.tries()
        while True:
            try:
                with tries:
                    found = await self._asked(position, last_epoch, until)
            except (ClientError, KafkaError) as error:
                if isinstance(error, KafkaError) and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    if self._is_gone(until):
                        return self._lost(position, str(error))
                elif self._cluster.is_final(error) or deadline(0) >= until:
                    raise
                self._cluster.stale(self._wanted.where.topic)
                await asyncio.sleep(tries.again())
                continue
            if isinstance(found, _Answer):
                return found
            if deadline(0) >= until:
                return self._lost(position, found)

    async def _asked(self, position: int, last_epoch: int, until: float) -> _Answer | str:
        """Send one Fetch. If there is nothing yet: what is wrong if it stays so."""
        where = self._wanted.where
        node, leader_epoch = await self._cluster.leadership(where, until)
        asked = Asked(
            position, leader_epoch, last_epoch, self._settings.partition_max_bytes, self._wanted.topic_id
        )

        def build(_: int) -> FetchRequest:
            return fetch_request(Plan(NO_SESSION, CLOSE, {where: asked}, {}), self._settings, _WAIT_MS)

        version = VERSION_MAX if asked.topic_id is not None else _BY_NAME
        response: FetchResponse = await self._cluster.call(
            Versioned(ApiKey.FETCH, build, version), until, node=node
        )
        if response.error_code:
            raise refusal(response.error_code, about=str(where))
        for topic in response.responses:
            for each in topic.partitions:
                if each.partition_index == where.partition:
                    return await self._received(position, last_epoch, each, response.throttle_time_ms, until)
        raise NotKafka(f"the broker's answer to Fetch leaves out {where}")

    async def _received(
        self,
        position: int,
        last_epoch: int,
        each: FetchResponse.PartitionData,
        throttled_ms: int,
        until: float,
    ) -> _Answer | str:
        where = self._wanted.where
        if each.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return await self._out_of_range(position, until)
        if each.error_code in _ANOTHER_TOPIC:
            return await self._perhaps_another(position, until)
        if each.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self._appears = None  # Metadata lists it, or would not have named a leader, which is only behind.
            raise refusal(ErrorCode.LEADER_NOT_AVAILABLE, f"the leader of {where} does not know it")
        if each.error_code:
            raise refusal(each.error_code, about=str(where))
        if each.diverging_epoch.end_offset >= 0:
            cut = each.diverging_epoch.end_offset
            return self._lost(position, f"the log of {where} was cut at offset {cut}")
        if each.records:
            aborted = None
            if self._options.read_committed:
                aborted = [
                    AbortedTransaction(one.producer_id, one.first_offset)
                    for one in each.aborted_transactions or ()
                ]
            part = Part(where, each.records, position, last_epoch, aborted)
            if part.next_offset > position or part.is_damaged:
                return _Answer(part, part.next_offset)
            raise NotKafka(f"a broker sends less than one batch of {where} at offset {position}")
        end = each.last_stable_offset if self._options.read_committed else each.high_watermark
        if end < self._wanted.until:
            # Planning saw a later end: the log was truncated since, or its leader does not know that end.
            return f"the log of {where} ends before offset {position + 1}"
        # A broker that throttles answers nothing, and so does one whose remote storage is slow.
        if throttled_ms == 0 and await is_local(self._cluster, where, position, until):
            return _Answer(None, self._wanted.until)  # Compaction left nothing up to the end.
        return f"a broker returned nothing of {where} at offset {position}"

    # --- what is not there ----------------------------------------------------------------------------------

    def _is_gone(self, until: float) -> bool:
        """Whether what a broker does not know was deleted: a new topic or partition is soon known to all."""
        if self._appears is None:
            self._appears = deadline(APPEARS_S)
        return deadline(0) >= min(self._appears, until)

    def _lost(self, position: int, what: str) -> _Answer:
        data_lost(
            self._options, f"{what}; offsets {position} to {self._wanted.until - 1} were still to be read"
        )
        return _Answer(None, self._wanted.until)

    async def _out_of_range(self, position: int, until: float) -> _Answer:
        where = self._wanted.where
        start = (await earliest(self._cluster, self._options, [where], until))[where]
        if position < start:
            gone = min(start, self._wanted.until)
            data_lost(self._options, f"{where}: the records at offsets {position} to {gone - 1} were deleted")
            return _Answer(None, gone)
        return self._lost(position, f"the log of {where} ends before offset {position}")

    async def _perhaps_another(self, position: int, until: float) -> _Answer:
        """Handle a topic id that a broker does not know: the topic was deleted, or is so new that not all
        brokers know it."""
        topic = self._wanted.where.topic
        await self._cluster.refresh([topic], until)
        found = self._cluster.image.topic(topic)
        if (found is None or found.topic_id != self._wanted.topic_id) and self._is_gone(until):
            again = "" if found is None else " and created again"
            return self._lost(position, f"topic {topic} was deleted{again}")
        raise refusal(ErrorCode.LEADER_NOT_AVAILABLE, about=str(self._wanted.where))
