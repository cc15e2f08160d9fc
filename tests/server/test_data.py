"""Produce, Fetch, ListOffsets, OffsetForLeaderEpoch and DeleteRecords over the wire."""

from __future__ import annotations

import asyncio
import itertools
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from muster.coordinator.base import log
from muster.coordinator.server.apis import producing
from muster.coordinator.server.brokers import Brokers
from muster.coordinator.topics.partitions import Partitions
from muster.protocol.compression import Codec
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.message import Message
from muster.protocol.messages.connection import ApiVersionsRequest
from muster.protocol.messages.data import (
    DeleteRecordsRequest,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
)
from muster.protocol.messages.transactions import InitProducerIdRequest
from muster.protocol.record_batch import Record, batches, build, records
from muster.protocol.types import ZERO_UUID
from tests.server.conftest import StartBrokers
from tests.support.facts import until
from tests.support.wire import Wire


class Topic:
    """A topic of one broker and a connection to it."""

    def __init__(self, wire: Wire, topic_id: UUID, brokers: Brokers) -> None:
        self.wire = wire
        self.topic_id = topic_id
        self.brokers = brokers

    async def produce(
        self, records_: bytes | None, version: int = 12, *, partition: int = 0, **request: Any
    ) -> Any:
        """Produce to a single partition and return its part of the response."""
        response = await self.wire.call(
            self.producing(records_, version, partition=partition, **request), version
        )
        return response.responses[0].partition_responses[0]

    def producing(
        self, records_: bytes | None, version: int = 12, *, partition: int = 0, acks: int = -1, **request: Any
    ) -> Message:
        part = ProduceRequest.PartitionProduceData(index=partition, records=records_)
        topic = ProduceRequest.TopicProduceData(
            partition_data=[part], **self.named("name", version >= 13, request)
        )
        return ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=[topic], **request)

    async def fetch(self, offset: int = 0, version: int = 12, **request: Any) -> Any:
        """Fetch from a single partition and return its part of the response."""
        response = await self.wire.call(self.fetching(offset, version, **request), version)
        assert (response.error_code, response.session_id) == (0, 0)
        return response.responses[0].partitions[0]

    def fetching(
        self,
        offset: int = 0,
        version: int = 12,
        *,
        partition: int = 0,
        leader_epoch: int = -1,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        **request: Any,
    ) -> Message:
        part = FetchRequest.FetchPartition(
            partition=partition,
            fetch_offset=offset,
            current_leader_epoch=leader_epoch,
            partition_max_bytes=1 << 20,
        )
        topic = FetchRequest.FetchTopic(partitions=[part], **self.named("topic", version >= 13, request))
        return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=min_bytes, topics=[topic], **request)

    def named(self, field: str, by_id: bool, request: dict[str, Any]) -> dict[str, Any]:
        if by_id:
            return {"topic_id": request.pop("topic_id", self.topic_id)}
        return {field: request.pop("name", "t")}


@pytest.fixture
async def topic(start_brokers: StartBrokers) -> Any:
    brokers = await start_brokers()
    created = await brokers.brokers[0].catalogue.create("t", partitions=2)
    async with await Wire.connect(brokers.brokers[0].port) as wire:
        yield Topic(wire, created.topic_id, brokers)


def batch(*values: bytes, timestamp: int = 1_000, **fields: Any) -> bytes:
    return build([Record(offset, timestamp, b"k", value) for offset, value in enumerate(values)], **fields)


def values_in(data: bytes) -> list[bytes | None]:
    return [record.value for position, header in batches(data) for record in records(data, position, header)]


# --- Produce ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3, 14))
async def test_what_is_produced_in_any_version_is_fetched(topic: Topic, version: int) -> None:
    stored = await topic.produce(batch(b"a", b"b"), version)
    assert (stored.error_code, stored.base_offset) == (ErrorCode.NONE, 0)
    again = await topic.produce(batch(b"c"), version)
    assert again.base_offset == 2
    fetched = await topic.fetch()
    assert values_in(fetched.records) == [b"a", b"b", b"c"]
    assert fetched.high_watermark == 3


async def test_errors_are_each_partitions_own(topic: Topic) -> None:
    good = ProduceRequest.PartitionProduceData(index=0, records=batch(b"a"))
    missing = ProduceRequest.PartitionProduceData(index=9, records=batch(b"a"))
    broken = ProduceRequest.PartitionProduceData(index=1, records=batch(b"a")[:-1])
    request = ProduceRequest(
        acks=1,
        timeout_ms=1_000,
        topic_data=[
            ProduceRequest.TopicProduceData(name="t", partition_data=[good, missing, broken]),
            ProduceRequest.TopicProduceData(name="none", partition_data=[good]),
            ProduceRequest.TopicProduceData(name="__consumer_offsets", partition_data=[good]),
        ],
    )
    response = await topic.wire.call(request, 9)
    codes = [[part.error_code for part in each.partition_responses] for each in response.responses]
    assert codes[0][:2] == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert codes[0][2] in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)
    assert codes[1] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert codes[2] == [ErrorCode.INVALID_TOPIC_EXCEPTION]
    assert response.responses[0].partition_responses[1].error_message


async def test_what_nobody_expected_fails_one_partition_alone(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = Partitions.append

    def breaking(self: Partitions, of: Any, partition: int, *args: Any, **options: Any) -> Any:
        if partition == 1:
            broken = asyncio.get_running_loop().create_future()
            broken.set_exception(RuntimeError("secret of the inside"))
            return broken
        return append(self, of, partition, *args, **options)

    monkeypatch.setattr(Partitions, "append", breaking)
    monkeypatch.setattr(log._Output, "level", 99)
    parts = [ProduceRequest.PartitionProduceData(index=index, records=batch(b"a")) for index in (1, 0)]
    named = ProduceRequest.TopicProduceData(name="t", partition_data=parts)
    response = await topic.wire.call(ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=[named]), 9)
    failed, stored = response.responses[0].partition_responses
    assert (failed.error_code, failed.base_offset) == (ErrorCode.UNKNOWN_SERVER_ERROR, -1)
    assert "secret" not in failed.error_message
    assert (stored.error_code, stored.base_offset) == (ErrorCode.NONE, 0)


@pytest.mark.parametrize("version", [12, 13])
async def test_what_was_stored_is_told_so_when_another_topic_is_deleted_meanwhile(
    topic: Topic, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue = topic.brokers.brokers[0].catalogue
    kept = await catalogue.create("kept")
    gone = catalogue.named("t")

    def moved(self: Partitions, of: Any, *args: Any, **options: Any) -> Any:
        if of.name == "t":
            refused = asyncio.get_running_loop().create_future()
            refused.set_exception(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return refused
        return asyncio.ensure_future(deleting(append(self, of, *args, **options)))

    async def deleting(stored: asyncio.Future[Any]) -> Any:
        await stored
        await catalogue.delete(gone)
        return stored.result()

    append = Partitions.append
    monkeypatch.setattr(Partitions, "append", moved)
    part = ProduceRequest.PartitionProduceData(index=0, records=batch(b"a"))
    topics = [
        ProduceRequest.TopicProduceData(
            partition_data=[part], **({"topic_id": each.topic_id} if version >= 13 else {"name": each.name})
        )
        for each in (kept, gone)
    ]
    response = await topic.wire.call(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics), version)
    codes = [each.partition_responses[0].error_code for each in response.responses]
    assert codes == [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER]


@pytest.mark.parametrize("acks", [2, -2])
async def test_acks_other_than_none_leader_or_all_are_refused(topic: Topic, acks: int) -> None:
    assert (await topic.produce(batch(b"a"), acks=acks)).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert (await topic.fetch()).high_watermark == 0


async def test_zstd_needs_version_7(topic: Topic) -> None:
    compressed = batch(b"a" * 100, codec=Codec.ZSTD)
    assert (await topic.produce(compressed, 6)).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert (await topic.produce(compressed, 7)).error_code == ErrorCode.NONE


async def test_an_unknown_topic_id_has_its_own_code(topic: Topic) -> None:
    assert (await topic.produce(batch(b"a"), 13, topic_id=uuid4())).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert (await topic.produce(batch(b"a"), 13, topic_id=ZERO_UUID)).error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_a_batch_of_a_transaction_needs_a_transactional_id(topic: Topic) -> None:
    assert (await topic.produce(batch(b"a"), transactional_id="t")).error_code == ErrorCode.NONE
    batched = batch(b"a", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    assert (await topic.produce(batched)).error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


async def test_acks_0_is_not_answered_and_an_error_closes(topic: Topic) -> None:
    await topic.wire.send(topic.producing(batch(b"a"), acks=0), 12)
    assert values_in((await topic.fetch()).records) == [b"a"]  # the next answer belongs to the next request
    async with await Wire.connect(topic.brokers.brokers[0].port) as wire:
        await wire.send(topic.producing(batch(b"a"), acks=0, partition=9), 12)
        assert await wire.closed()


async def test_what_a_producer_has_in_flight_is_written_in_one_go_and_answered_in_order(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    (broker,) = topic.brokers.brokers
    held, went_on, commits = threading.Event(), threading.Event(), []

    def commit(logs: Any) -> Any:
        commits.append(len(logs))
        held.set()
        assert went_on.wait(10)
        return committing(logs)

    committing = broker.partitions._writer._commit
    monkeypatch.setattr(broker.partitions._writer, "_commit", commit)
    await topic.wire.send(topic.producing(batch(b"0")), 12)
    await until(held.is_set)
    (connection,) = (each for each in broker.connections.open.values() if each.wire.in_line)
    for value in (b"1", b"2", b"3"):
        await topic.wire.send(topic.producing(batch(value)), 12)
    await topic.wire.send(topic.producing(batch(b"x"), partition=9), 12)
    await topic.wire.send(topic.fetching(), 12)
    await until(lambda: connection.wire.in_line and len(connection.wire._frames) == 1)
    went_on.set()
    answers = [await topic.wire.receive() for _ in range(5)]
    parts = [answer.responses[0].partition_responses[0] for answer in answers]
    assert [part.base_offset for part in parts] == [0, 1, 2, 3, -1]
    assert parts[-1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    fetched = (await topic.wire.receive()).responses[0].partitions[0]
    assert values_in(fetched.records) == [b"0", b"1", b"2", b"3"]
    assert len(commits) == 2


@pytest.fixture
def went_on(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Nothing is written before it is set."""
    (broker,) = topic.brokers.brokers
    went_on = threading.Event()

    def commit(logs: Any) -> Any:
        assert went_on.wait(10)
        return committing(logs)

    committing = broker.partitions._writer._commit
    monkeypatch.setattr(broker.partitions._writer, "_commit", commit)
    yield went_on
    went_on.set()


@pytest.mark.parametrize("timeout_ms", [0, -1, 1])
@pytest.mark.parametrize("acks", [-1, 0, 1])
async def test_a_produce_is_answered_when_it_is_stored_whatever_its_timeout(
    topic: Topic, acks: int, timeout_ms: int, went_on: threading.Event
) -> None:
    request = topic.producing(batch(b"a"), acks=acks)
    request.timeout_ms = timeout_ms
    started = time.monotonic()
    await topic.wire.send(request, 12)
    async with await Wire.connect(topic.brokers.brokers[0].port) as other:
        while time.monotonic() < started + 0.01:  # a timeout of 1 ms, too, is over
            await other.call(ApiVersionsRequest(), 3)
    went_on.set()
    if acks:
        part = (await topic.wire.receive()).responses[0].partition_responses[0]
        assert (part.error_code, part.base_offset) == (ErrorCode.NONE, 0)
    assert values_in((await topic.fetch()).records) == [b"a"]


@pytest.mark.interpreted  # for its constant
@pytest.mark.parametrize("acks", [-1, 0, 1])
async def test_a_produce_does_not_wait_for_ever_for_a_store_that_stands_still(
    topic: Topic, acks: int, went_on: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producing, "_WRITE_TIMEOUT_S", 0.01)
    request = topic.producing(batch(b"a"), acks=acks)
    request.timeout_ms = 10
    await topic.wire.send(request, 12)
    if acks:
        part = (await topic.wire.receive()).responses[0].partition_responses[0]
        assert part.error_code == ErrorCode.REQUEST_TIMED_OUT
    else:
        assert await topic.wire.closed()
    went_on.set()
    async with await Wire.connect(topic.brokers.brokers[0].port) as other:
        stored = await Topic(other, topic.topic_id, topic.brokers).produce(batch(b"b"))
        assert stored.base_offset == 1


async def test_a_name_that_is_not_utf8_is_answered_and_the_connection_stays(topic: Topic) -> None:
    header = bytes.fromhex("0003 0001 00000007 0002 c328")
    body = bytes.fromhex("00000001 0003 74ff74")
    await topic.wire.send_bytes(struct.pack(">i", len(header + body)) + header + body)
    assert "t\ufffdt".encode() in await topic.wire.receive_bytes()
    assert (await topic.produce(batch(b"a"))).base_offset == 0


async def test_an_idempotent_producer_gets_an_id_and_its_repeats_are_stored_once(topic: Topic) -> None:
    initial = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000)
    first, second = await topic.wire.call(initial, 4), await topic.wire.call(initial, 4)
    assert (first.error_code, first.producer_epoch) == (ErrorCode.NONE, 0)
    assert first.producer_id != second.producer_id
    sent = batch(b"a", producer_id=first.producer_id, producer_epoch=0, base_sequence=0)
    assert (await topic.produce(sent)).base_offset == 0
    repeated = await topic.produce(sent)
    assert (repeated.error_code, repeated.base_offset) == (ErrorCode.NONE, 0)
    gap = batch(b"a", producer_id=first.producer_id, producer_epoch=0, base_sequence=5)
    assert (await topic.produce(gap)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (await topic.fetch()).high_watermark == 1


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"transactional_id": None, "producer_id": 5, "producer_epoch": -1}, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_init_producer_id_refusals(port: int, fields: dict[str, Any], code: ErrorCode) -> None:
    async with await Wire.connect(port) as wire:
        refused = await wire.call(InitProducerIdRequest(transaction_timeout_ms=1_000, **fields), 4)
        assert (refused.error_code, refused.producer_id) == (code, -1)


async def test_a_batch_that_is_too_large_is_refused_alone(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(message_max_bytes=1_000)
    catalogue = brokers.brokers[0].catalogue
    await catalogue.create("t", partitions=2)
    await catalogue.create("wide", configs={"max.message.bytes": "5000"})
    small, large, huge = (batch(b"x" * size) for size in (10, 2_000, 9_000))
    asked = {"t": [large, small], "wide": [large]}
    request = ProduceRequest(
        acks=-1,
        timeout_ms=10_000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=name,
                partition_data=[
                    ProduceRequest.PartitionProduceData(index=index, records=data)
                    for index, data in enumerate(parts)
                ],
            )
            for name, parts in asked.items()
        ],
    )
    too_large = ErrorCode.MESSAGE_TOO_LARGE
    async with await Wire.connect(brokers.brokers[0].port) as wire:
        answer = await wire.call(request, 12)
        found = [[part.error_code for part in each.partition_responses] for each in answer.responses]
        assert found == [[too_large, 0], [0]]
        request.topic_data[1].partition_data[0].records = huge
        answer = await wire.call(request, 12)
        assert answer.responses[1].partition_responses[0].error_code == too_large
        just_fits = batch(b"x" * (900 + 1_000 - len(batch(b"x" * 900))))
        assert len(just_fits) == 1_000
        request.topic_data[0].partition_data[0].records = just_fits
        assert (await wire.call(request, 12)).responses[0].partition_responses[0].error_code == 0


@pytest.mark.parametrize("version", [7, 8, 12])
async def test_records_to_blame_are_named_from_version_8_on(topic: Topic, version: int) -> None:
    await topic.brokers.brokers[0].catalogue.create("keys", configs={"cleanup.policy": "compact"})
    now_ms = time.time_ns() // 1_000_000
    keyless = build([Record(0, now_ms, b"k", b"a"), Record(1, now_ms, None, b"b")])
    late = build([Record(0, now_ms, b"k", b"a"), Record(1, now_ms + 10**10, b"k", b"b")])
    for name, data, code in (("keys", keyless, 87), ("t", late, 32)):
        refused = await topic.produce(data, version, name=name)
        assert refused.error_code == code
        assert [each.batch_index for each in refused.record_errors] == ([1] if version >= 8 else [])
        assert all(each.batch_index_error_message for each in refused.record_errors)
        assert (refused.error_message is not None) == (version >= 8)


# --- Fetch --------------------------------------------------------------------------------------------------


async def test_every_version_fetches(topic: Topic) -> None:
    await topic.produce(batch(b"a", b"b"))
    for version in range(4, 19):
        fetched = await topic.fetch(1, version)
        assert fetched.error_code == ErrorCode.NONE, version
        # Whole batches: the client drops what it did not ask for.
        assert values_in(fetched.records) == [b"a", b"b"], version


async def test_a_fetch_waits_for_records(topic: Topic) -> None:
    await topic.wire.send(topic.fetching(max_wait_ms=60_000), 12)
    async with await Wire.connect(topic.brokers.brokers[0].port) as wire:
        await wire.call(topic.producing(batch(b"late")), 12)
    fetched = (await topic.wire.receive()).responses[0].partitions[0]
    assert values_in(fetched.records) == [b"late"]


async def test_a_fetch_ends_when_its_time_is_over(topic: Topic) -> None:
    clock = topic.brokers.brokers[0].clock
    began_ms = clock.now_ms()
    fetched = await topic.fetch(max_wait_ms=50, min_bytes=1_000_000)
    assert (fetched.error_code, fetched.records) == (ErrorCode.NONE, b"")
    assert clock.now_ms() - began_ms >= 50


async def test_a_parked_fetch_goes_with_its_connection(topic: Topic) -> None:
    broker = topic.brokers.brokers[0]
    wire = await Wire.connect(broker.port)
    await wire.send(topic.fetching(max_wait_ms=2**31 - 1), 12)
    async with asyncio.timeout(30):
        while not broker.partitions._fetches:  # noqa: ASYNC110
            await asyncio.sleep(0)
        wire.abort()
        while broker.partitions._fetches:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_what_is_not_there_neither_ends_a_wait_nor_begins_one(topic: Topic) -> None:
    def fetching(*parts: tuple[str, int, int]) -> FetchRequest:
        return FetchRequest(
            max_wait_ms=600_000,
            min_bytes=1,
            topics=[
                FetchRequest.FetchTopic(
                    topic=name,
                    partitions=[
                        FetchRequest.FetchPartition(
                            partition=partition, fetch_offset=offset, partition_max_bytes=1
                        )
                    ],
                )
                for name, partition, offset in parts
            ],
        )

    def told(response: Message) -> list[tuple[ErrorCode, list[bytes | None]]]:
        assert isinstance(response, FetchResponse)
        parts = [part for each in response.responses for part in each.partitions]
        return [(ErrorCode(part.error_code), values_in(part.records or b"")) for part in parts]

    missing = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])
    absent = ("none", 0, 0), ("t", 9, 0)
    assert told(await topic.wire.call(fetching(*absent), 12)) == [missing, missing]
    refused = (ErrorCode.OFFSET_OUT_OF_RANGE, [])
    assert told(await topic.wire.call(fetching(*absent, ("t", 0, 5)), 12)) == [missing, missing, refused]
    async with await Wire.connect(topic.brokers.brokers[0].port) as other:
        waiting = asyncio.ensure_future(other.call(fetching(*absent, ("t", 0, 0)), 12))
        partitions = topic.brokers.brokers[0].partitions
        await until(lambda: len(partitions._fetches) == 1 and partitions._fetches.all_wait, "the fetch waits")
        await topic.produce(batch(b"a"))
        assert told(await waiting) == [missing, missing, (ErrorCode.NONE, [b"a"])]


@pytest.mark.parametrize(
    ("asked", "version", "code"),
    [
        ({"offset": 5}, 12, ErrorCode.OFFSET_OUT_OF_RANGE),
        ({"offset": -1}, 12, ErrorCode.OFFSET_OUT_OF_RANGE),
        ({"partition": 9}, 12, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"name": "none"}, 12, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"topic_id": UUID(int=5)}, 13, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"leader_epoch": 99}, 12, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"leader_epoch": 0}, 12, ErrorCode.FENCED_LEADER_EPOCH),
    ],
)
async def test_fetch_refusals(topic: Topic, asked: dict[str, Any], version: int, code: ErrorCode) -> None:
    refused = await topic.fetch(version=version, max_wait_ms=60_000, **asked)
    assert (refused.error_code, refused.high_watermark, refused.records) == (code, -1, b"")


async def test_aborted_transactions_are_listed_only_to_who_reads_committed(topic: Topic) -> None:
    assert (await topic.fetch(isolation_level=0)).aborted_transactions is None
    assert (await topic.fetch(isolation_level=1)).aborted_transactions == []


async def test_an_unknown_isolation_level_is_refused(topic: Topic) -> None:
    assert (await topic.fetch(version=6, isolation_level=2)).error_code == ErrorCode.INVALID_REQUEST
    part = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
    named = ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[part])
    asked = ListOffsetsRequest(replica_id=-1, topics=[named], isolation_level=2)
    (found,) = (await topic.wire.call(asked, 7)).topics[0].partitions
    assert (found.error_code, found.offset) == (ErrorCode.INVALID_REQUEST, -1)


@pytest.mark.parametrize(
    ("session_id", "session_epoch", "code"),
    [
        (0, 0, ErrorCode.NONE),  # wants a session and gets none
        (0, -1, ErrorCode.NONE),
        (7, -1, ErrorCode.NONE),  # closes one
        (7, 0, ErrorCode.NONE),
        (7, 3, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (0, 3, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
    ],
)
async def test_without_slots_there_are_no_fetch_sessions(
    start_brokers: StartBrokers, session_id: int, session_epoch: int, code: ErrorCode
) -> None:
    brokers = await start_brokers(max_incremental_fetch_session_cache_slots=0)
    created = await brokers.brokers[0].catalogue.create("t", partitions=2)
    async with await Wire.connect(brokers.brokers[0].port) as wire:
        topic = Topic(wire, created.topic_id, brokers)
        request = topic.fetching(session_id=session_id, session_epoch=session_epoch)
        response = await wire.call(request, 12)
    assert (response.error_code, response.session_id) == (code, 0)
    assert len(response.responses) == (code == ErrorCode.NONE)


async def test_where_logs_diverge_is_told_of_that_fetch_alone(topic: Topic) -> None:
    await topic.produce(batch(b"a"))
    request = topic.fetching(9)
    assert isinstance(request, FetchRequest)
    request.topics[0].partitions[0].last_fetched_epoch = 1
    response = await topic.wire.call(request, 12)
    found = response.responses[0].partitions[0].diverging_epoch
    assert (found.epoch, found.end_offset) == (1, 1)
    found = (await topic.fetch()).diverging_epoch
    assert (found.epoch, found.end_offset) == (-1, -1)


# --- ListOffsets, OffsetForLeaderEpoch, DeleteRecords -------------------------------------------------------


async def listed(topic: Topic, timestamp: int, version: int, **fields: Any) -> Any:
    part = ListOffsetsRequest.ListOffsetsPartition(
        partition_index=fields.pop("partition", 0), timestamp=timestamp, **fields
    )
    named = ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[part])
    response = await topic.wire.call(ListOffsetsRequest(replica_id=-1, topics=[named]), version)
    return response.topics[0].partitions[0]


async def test_offsets_are_found_by_time_in_every_version(topic: Topic) -> None:
    for timestamp in (1_000, 3_000, 2_000):
        await topic.produce(batch(b"v", timestamp=timestamp))
    expected = {-1: 3, -2: 0, 0: 0, 1_001: 1, 3_000: 1, 3_001: -1}
    for version, (timestamp, offset) in itertools.product(range(1, 12), expected.items()):
        found = await listed(topic, timestamp, version)
        assert (found.error_code, found.offset) == (ErrorCode.NONE, offset), (version, timestamp)


@pytest.mark.parametrize(("timestamp", "since"), [(-3, 7), (-4, 8), (-5, 9), (-6, 11), (-7, 99)])
async def test_special_timestamps_need_their_version(topic: Topic, timestamp: int, since: int) -> None:
    for timestamp_ms in (1_000, 3_000, 2_000):
        await topic.produce(batch(b"v", timestamp=timestamp_ms))
    for version in range(1, 12):
        found = await listed(topic, timestamp, version)
        assert found.error_code == (ErrorCode.NONE if version >= since else ErrorCode.UNSUPPORTED_VERSION)
    if timestamp == -3:
        assert ((await listed(topic, -3, 11)).offset, (await listed(topic, -3, 11)).timestamp) == (1, 3_000)


async def test_list_offsets_refusals(topic: Topic) -> None:
    assert (await listed(topic, -1, 6, partition=9)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await listed(topic, -1, 6, current_leader_epoch=99)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    part = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
    twice = ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[part, part])
    response = await topic.wire.call(ListOffsetsRequest(replica_id=-1, topics=[twice]), 6)
    assert [each.error_code for each in response.topics[0].partitions] == [ErrorCode.INVALID_REQUEST]


async def test_the_end_of_a_leader_epoch(topic: Topic) -> None:
    await topic.produce(batch(b"a", b"b"))

    async def end(epoch: int, name: str = "t") -> tuple[int, int, int]:
        part = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=0, leader_epoch=epoch)
        asked = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=name, partitions=[part])
        response = await topic.wire.call(OffsetForLeaderEpochRequest(topics=[asked]), 4)
        found = response.topics[0].partitions[0]
        return found.error_code, found.leader_epoch, found.end_offset

    assert await end(1) == (ErrorCode.NONE, 1, 2)
    assert await end(1, "none") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)


async def test_records_are_deleted_below_an_offset(topic: Topic) -> None:
    for value in (b"a", b"b", b"c"):
        await topic.produce(batch(value))

    async def delete(offset: int, partition: int = 0) -> tuple[int, int]:
        part = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=partition, offset=offset)
        named = DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[part])
        response = await topic.wire.call(DeleteRecordsRequest(topics=[named], timeout_ms=1_000), 2)
        found = response.topics[0].partitions[0]
        return found.error_code, found.low_watermark

    assert await delete(2) == (ErrorCode.NONE, 2)
    assert (await listed(topic, -2, 6)).offset == 2
    assert (await topic.fetch(0)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert values_in((await topic.fetch(2)).records) == [b"c"]
    assert await delete(9) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert await delete(0, partition=9) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert await delete(-1) == (ErrorCode.NONE, 3)
