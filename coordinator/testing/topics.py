"""A topic in a test."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, NamedTuple, TypeGuard

from muster.coordinator.testing.arguments import check_count, check_text, check_whole_number
from muster.coordinator.testing.faces import Async, Blocking, Calls, both, waits
from muster.coordinator.testing.waiting import TIMEOUT_S, Duration, Seen, wait_until
from muster.coordinator.topics.aborted import AbortedRanges
from muster.coordinator.topics.partitions import FetchPartition
from muster.protocol import record_batch

if TYPE_CHECKING:
    from muster.coordinator.testing.core import Core
    from muster.coordinator.topics.catalogue import Topic as CatalogueTopic

Sent = bytes | tuple[bytes | None, bytes | None]
"""A record to write: its value, or its key and value."""

_COMMITTED: Final = "read_committed"
_LEVELS: Final = ("read_uncommitted", _COMMITTED)
_READ_BYTES: Final = 16 * 1024 * 1024
_LOOK_BYTES: Final = 4 * 1024
"""Read at once where the first record answers the question."""


class Record(NamedTuple):
    """A record in a topic. `timestamp` is epoch milliseconds."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class TopicCalls(Calls):
    """One topic. It need not exist."""

    __slots__ = ("name",)

    def __init__(self, core: Core, name: str) -> None:
        __tracebackhide__ = True
        check_text("name", name)
        super().__init__(core)
        self.name = name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    @property
    def partitions(self) -> int:
        """Number of partitions. Raises KafkaError if the topic does not exist."""

        async def partitions() -> int:
            return self._core.topic(self.name).partitions

        return self._look(partitions)

    def end_offsets(self) -> dict[int, int]:
        """The log end offset of each partition. Raises KafkaError."""

        async def ends() -> dict[int, int]:
            topic = self._core.topic(self.name)
            return {
                number: (await self._core.offsets(topic, number))[1] for number in range(topic.partitions)
            }

        return self._look(ends)

    @both
    async def records(self, *, isolation_level: str = "read_uncommitted") -> list[Record]:
        """Its records, by partition and offset: all of them, or those that a reader with `isolation_level`
        "read_committed" sees. Raises KafkaError, and ValueError for any other isolation level."""
        return await read(self._core, self.name, isolation_level)

    @both
    async def produce(self, records: Iterable[Sent], *, partition: int = 0) -> int:
        """Write records to one partition as one batch; returns the offset of the first. Raises KafkaError,
        and ValueError if there are no records."""
        return await write(self._core, self.name, records, partition)

    @waits
    async def exists(self, *, timeout: Duration = TIMEOUT_S) -> int:
        """Wait until every broker knows the topic; returns its number of partitions. Raises WaitFailed."""

        async def look() -> tuple[Seen, int]:
            topics = [node.catalogue.by_name(self.name) for node in self._core.running]
            known = [topic.partitions for topic in topics if topic is not None]
            return Seen(len(known) == len(topics), "not on every broker"), max(known, default=0)

        return await wait_until(self._core.news, f"topic {self.name} to exist", look, timeout)

    @waits
    async def has_records(self, *, at_least: int = 1, timeout: Duration = TIMEOUT_S) -> int:
        """Wait until its partitions hold that many records in total, counted by offsets; returns the number.
        Raises WaitFailed."""
        check_count("at_least", at_least, "a number of records")

        async def look() -> tuple[Seen, int]:
            topic = self._core.topic(self.name)
            count = 0
            for number in range(topic.partitions):
                start, end = await self._core.offsets(topic, number)
                count += end - start
            return Seen(count >= at_least, f"{count} records"), count

        wanted = f"topic {self.name} to have {at_least} records or more"
        return await wait_until(self._core.news, wanted, look, timeout)

    @waits
    async def deleted(self, *, timeout: Duration = TIMEOUT_S) -> None:
        """Wait until no broker knows the topic. Raises WaitFailed."""

        async def look() -> tuple[Seen, None]:
            there = any(node.catalogue.by_name(self.name) for node in self._core.running)
            return Seen(not there, "it exists"), None

        await wait_until(self._core.news, f"topic {self.name} to be deleted", look, timeout)


class Topic(TopicCalls, Blocking):
    """One topic, blocking API."""

    __slots__ = ()


class AsyncTopic(TopicCalls, Async):
    """One topic, async API."""

    __slots__ = ()


# --- on the brokers' loop -----------------------------------------------------------------------------------


async def read(core: Core, name: str, isolation_level: str) -> list[Record]:
    """All records of a topic that a reader with this isolation level sees."""
    if isolation_level not in _LEVELS:
        raise ValueError(f"isolation_level: {isolation_level!r} is not one of {', '.join(_LEVELS)}")
    topic = core.topic(name)
    committed = isolation_level == _COMMITTED
    return [
        record for number in range(topic.partitions) for record in await _read(core, topic, number, committed)
    ]


async def _read(core: Core, topic: CatalogueTopic, number: int, committed: bool) -> list[Record]:
    leader = await core.next_leader(topic, number)
    at, end = await leader.partitions.of(topic).offsets(topic, number)
    return [
        record
        async for batch in _batches(core, topic, number, at, end, _READ_BYTES, committed)
        for record in batch
    ]


async def has_records(core: Core, topic: CatalogueTopic, number: int, at: int, end: int) -> bool:
    """Whether a partition has records between two offsets, and not only markers of transactions. Records that
    were deleted count. Raises KafkaError."""
    start, _ = await core.offsets(topic, number)
    if at < start:
        return True
    async with aclosing(_batches(core, topic, number, at, end, _LOOK_BYTES)) as batches:
        async for batch in batches:
            if batch:
                return True
    return False


async def _batches(
    core: Core, topic: CatalogueTopic, number: int, at: int, end: int, bytes_max: int, committed: bool = False
) -> AsyncGenerator[list[Record]]:
    """The records of each batch between two offsets; none of one with markers, or one that is aborted if only
    `committed` records are asked for."""
    while at < end:
        asked = FetchPartition(topic, number, at, bytes_max, read_committed=committed)
        partitions = (await core.next_leader(topic, number)).partitions
        (fetched,) = await partitions.fetch([asked], min_bytes=0, max_bytes=bytes_max, max_wait_ms=0)
        if fetched.error is not None:
            raise fetched.error
        if not fetched.records:
            break
        records, aborted = bytes(fetched.records), AbortedRanges(fetched.aborted)
        for position, header in record_batch.batches(records):
            if not header.is_control and not aborted.cover(header):
                yield [
                    Record(topic.name, number, *each)
                    for each in record_batch.records(records, position, header)
                    if each.offset >= at  # the first batch may begin before the log does
                ]
            at = header.next_offset


async def create(core: Core, name: str, partitions: int, configs: Mapping[str, str] | None) -> None:
    """Create a topic, known on return to every running broker that is not paused."""
    check_text("name", name)
    check_whole_number("partitions", partitions)
    if not isinstance(configs, Mapping | None):
        raise TypeError(f"configs: it takes text by name, not {configs!r}")
    for config, value in (configs or {}).items():
        if not isinstance(config, str) or not isinstance(value, str):
            raise TypeError(f"configs: {config}: it takes text such as '{value}', not {value!r}")
    nodes = core.awake
    await nodes[0].catalogue.create(name, partitions=partitions, configs=configs)
    for node in nodes:
        await node.catalogue.refresh()


async def write(core: Core, name: str, records: Iterable[Sent], partition: int) -> int:
    """Append one batch; returns the offset of its first record."""
    check_text("topic", name)
    check_whole_number("partition", partition)
    topic = core.topic(name)
    leader = await core.next_leader(topic, partition, awake=True)
    now_ms = leader.clock.now_ms()
    takes = "it takes a list, as in [b'tea'] or [(b'key', b'tea')]"
    if isinstance(records, bytes | str | Mapping) or not isinstance(records, Iterable):
        raise TypeError(f"records: {takes}")
    # A pair would pass for two values, and is one record whose list was forgotten.
    if _is_pair(records):
        raise TypeError(f"records: a tuple of two is one record, a key and a value: {takes}")
    pairs = [_pair(each) for each in records]
    if not pairs:
        raise ValueError("records: the list is empty")
    contents = [record_batch.Record(number, now_ms, *pair) for number, pair in enumerate(pairs)]
    return (await leader.partitions.append(topic, partition, record_batch.build(contents))).base_offset


def _is_pair(given: object) -> TypeGuard[tuple[bytes | None, bytes | None]]:
    return (
        isinstance(given, tuple) and len(given) == 2 and all(isinstance(each, bytes | None) for each in given)
    )


def _pair(record: Sent) -> tuple[bytes | None, bytes | None]:
    """Key and value. Raises TypeError if it is not a record."""
    pair = (None, record) if isinstance(record, bytes) else record
    if _is_pair(pair):
        return pair
    raise TypeError(
        f"records: {record!r} is not a record: it takes a value in bytes, or a tuple of key and value"
    )
