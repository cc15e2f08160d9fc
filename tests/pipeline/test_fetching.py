"""What a task reads: ranges of partitions, from brokers and from logs in memory, as Arrow batches."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow
import pytest

from muster.client import Producer, TopicPartition
from muster.client.errors import ConnectionLost, RequestTimedOut
from muster.client.network.connection import deadline
from muster.coordinator.testing import Broker
from muster.pipeline.columns import RecordBatch
from muster.pipeline.decoding import RECORDS_MAX
from muster.pipeline.errors import DataLost, PipelineError
from muster.pipeline.fetching import read_rows
from muster.pipeline.offsets import Range
from muster.pipeline.options import SourceOptions, source_options
from muster.protocol.errors import ErrorCode
from muster.protocol.record_batch import ControlType, Record, build
from tests.client.fetch_fakes import T0, FakeCluster, batch, one_topic
from tests.pipeline.logs import add, administered, fill, options, produced
from tests.support.control_batches import build_control
from tests.support.ports import free_ports

ORDERS = TopicPartition("orders", 0)


def values(options: SourceOptions, wanted: Range, **how: Any) -> list[int]:
    return [number for each in read_rows(options, wanted, **how) for number in numbers_in(each)]


def numbers_in(rows: RecordBatch) -> list[int]:
    return [int(value) for value in rows.column("value").to_pylist()]


class PausedLoop(asyncio.SelectorEventLoop):
    """Its clock can be put forward, as if nothing had run for a while."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> PausedLoop:
    """The loop of the one range that the test reads, which closes it."""
    loop = PausedLoop()
    monkeypatch.setattr(asyncio, "new_event_loop", lambda: loop)
    return loop


# --- from a broker ------------------------------------------------------------------------------------------


def test_a_range_is_what_lies_in_it(broker: Broker) -> None:
    broker.create_topic("orders")
    for start in range(0, 40, 4):  # batches of four
        add(broker, "orders", range(start, start + 4))
    reads = options(broker, subscribe="orders")
    assert values(reads, Range(ORDERS, 0, 40)) == list(range(40))
    assert values(reads, Range(ORDERS, 5, 35)) == list(range(5, 35))
    assert values(reads, Range(ORDERS, 6, 7)) == [6]


def test_many_fetches_one_after_the_other(broker: Broker) -> None:
    fill(broker, "orders", 0)
    for start in range(0, 30_000, 1_000):
        add(broker, "orders", range(start, start + 1_000))
    reads = options(broker, subscribe="orders", kafka_max_partition_fetch_bytes="20000")
    assert values(reads, Range(ORDERS, 1, 29_999)) == list(range(1, 29_999))
    whole = list(read_rows(options(broker, subscribe="orders"), Range(ORDERS, 0, 30_000)))
    assert max(each.num_rows for each in whole) <= RECORDS_MAX
    assert len(whole) < 30  # small batches are combined


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_key_header_and_time(broker: Broker, codec: str) -> None:
    broker.create_topic("orders")

    async def send(producer: Producer) -> None:
        await producer.send("orders", b"one", key=b"k", timestamp_ms=1_700_000_000_123)
        headers = [("a", b"1"), ("a", None), ("\u00fc", b"")]
        await producer.send("orders", None, key=None, headers=headers, timestamp_ms=0)

    produced(broker, send, compression_type=codec)
    with_headers = options(broker, subscribe="orders", includeHeaders="true")
    (table,) = read_rows(with_headers, Range(ORDERS, 0, 2))
    assert table.schema == pyarrow.schema(
        [
            ("key", pyarrow.binary()),
            ("value", pyarrow.binary()),
            ("topic", pyarrow.string()),
            ("partition", pyarrow.int32()),
            ("offset", pyarrow.int64()),
            ("timestamp", pyarrow.timestamp("us", tz="UTC")),
            ("timestampType", pyarrow.int32()),
            (
                "headers",
                pyarrow.list_(
                    pyarrow.field(
                        "element",
                        pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())]),
                    )
                ),
            ),
        ]
    )
    table.validate(full=True)
    first, second = table.to_pylist()
    assert first == {
        "key": b"k",
        "value": b"one",
        "topic": "orders",
        "partition": 0,
        "offset": 0,
        "timestamp": datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC),
        "timestampType": 0,
        "headers": None,
    }
    assert (second["key"], second["value"], second["offset"]) == (None, None, 1)
    assert second["headers"] == [
        {"key": "a", "value": b"1"},
        {"key": "a", "value": None},
        {"key": "\u00fc", "value": b""},
    ]
    (without,) = read_rows(options(broker, subscribe="orders"), Range(ORDERS, 0, 2))
    assert without.schema.names == table.schema.names[:-1]


def test_the_brokers_clock_is_told_from_the_producers(broker: Broker) -> None:
    broker.create_topic("orders", configs={"message.timestamp.type": "LogAppendTime"})
    add(broker, "orders", [0])
    (batch,) = read_rows(options(broker, subscribe="orders"), Range(ORDERS, 0, 1))
    assert batch.column("timestampType").to_pylist() == [1]


def test_a_reader_that_is_left_early_leaves_nothing_open(broker: Broker) -> None:
    fill(broker, "orders", 0)
    for start in range(0, 30_000, 1_000):
        add(broker, "orders", range(start, start + 1_000))
    reads = options(broker, subscribe="orders", kafka_max_partition_fetch_bytes="20000")
    reading = read_rows(reads, Range(ORDERS, 0, 30_000))
    assert next(reading).num_rows
    reading.close()  # type: ignore[attr-defined]  # whatever stays open causes a warning, here an error


def test_rows_are_consumed_slowly(broker: Broker, paused: PausedLoop) -> None:
    fill(broker, "orders", 0)
    for start in range(0, 30_000, 1_000):
        add(broker, "orders", range(start, start + 1_000))
    reads = options(broker, subscribe="orders", kafka_max_partition_fetch_bytes="20000")
    found = []
    for each in read_rows(reads, Range(ORDERS, 0, 30_000)):
        found += numbers_in(each)
        paused.ahead_s += 60
    assert found == list(range(30_000))


def test_deleted_records_are_lost_or_passed_over(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    fill(broker, "orders", 20)
    administered(broker, lambda admin: admin.delete_records({ORDERS: 8}))
    with pytest.raises(DataLost, match=r"orders-0: the records at offsets 3 to 7 were deleted"):
        values(options(broker, subscribe="orders"), Range(ORDERS, 3, 20))
    lenient = options(broker, subscribe="orders", failOnDataLoss="false")
    assert values(lenient, Range(ORDERS, 3, 20)) == list(range(8, 20))
    assert "offsets 3 to 7 were deleted" in caplog.text
    assert values(lenient, Range(ORDERS, 3, 5)) == []


def test_a_log_that_ends_too_soon_is_lost(broker: Broker) -> None:
    fill(broker, "orders", 5)
    with pytest.raises(DataLost, match="the log of orders-0 ends before offset 9"):
        values(options(broker, subscribe="orders"), Range(ORDERS, 9, 12))
    assert values(options(broker, subscribe="orders", failOnDataLoss="false"), Range(ORDERS, 9, 12)) == []


def test_a_topic_that_was_created_again_is_another_one(broker: Broker) -> None:
    fill(broker, "orders", 5)
    topic = administered(broker, lambda admin: admin.describe_topic("orders"))
    administered(broker, lambda admin: admin.delete_topic("orders"))
    with pytest.raises(DataLost, match="orders"):
        values(options(broker, subscribe="orders"), Range(ORDERS, 0, 5, topic.topic_id))
    fill(broker, "orders", 9)
    with pytest.raises(DataLost, match="topic orders was deleted and created again"):
        values(options(broker, subscribe="orders"), Range(ORDERS, 0, 5, topic.topic_id))


def test_faults_on_the_way_are_gone_through(broker: Broker) -> None:
    fill(broker, "orders", 0)
    for start in range(0, 3_000, 100):
        add(broker, "orders", range(start, start + 100))
    reads = options(broker, subscribe="orders", kafka_max_partition_fetch_bytes="1000")
    wrong: list[dict[str, Any]] = [
        {"api": "Fetch", "nth": 2, "times": 1, "close_before": True},
        {"api": "Fetch", "nth": 5, "times": 2, "error": "NOT_LEADER_OR_FOLLOWER"},
    ]
    for each in wrong:
        with broker.faults.add(**each) as fault:
            assert values(reads, Range(ORDERS, 0, 3_000)) == list(range(3_000))
            assert fault.fired


def test_an_unreachable_broker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.pipeline.fetching._PROGRESS_S", 1.0)
    port = free_ports(1)
    reads = source_options(
        {"kafka.bootstrap.servers": f"127.0.0.1:{port}", "subscribe": "orders"}, streaming=False
    )
    with pytest.raises(PipelineError, match=f"orders-0 could not be read: .*127.0.0.1:{port}"):
        values(reads, Range(ORDERS, 0, 1))


# --- from logs in memory ------------------------------------------------------------------------------------


def read_from(cluster: FakeCluster, start: int, until: int, **given: str) -> list[int]:
    cluster.learn()
    named = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
    reads = source_options(
        named | {name.replace("_", "."): each for name, each in given.items()}, streaming=False
    )
    wanted = Range(T0, start, until, cluster.ids["t"])
    return values(reads, wanted, connect=lambda _: cluster)


def numbers(offset: int, count: int, **how: Any) -> bytes:
    return batch(offset, *(b"%d" % (offset + index) for index in range(count)), **how)


def test_gaps_that_compaction_left() -> None:
    cluster = one_topic()
    kept = [Record(4, 0, None, b"4"), Record(7, 0, None, b"7")]
    cluster.append(T0, numbers(1, 2), build(kept, base_offset=3, last_offset=9), numbers(12, 2))
    empty = build([], base_offset=14, last_offset=19, max_timestamp=0)
    cluster.append(T0, empty)
    assert read_from(cluster, 0, 20) == [1, 2, 4, 7, 12, 13]
    assert read_from(cluster, 5, 12) == [7]
    assert read_from(cluster, 15, 20) == []


def test_a_gap_up_to_the_end_of_the_log() -> None:
    cluster = one_topic()
    cluster.append(T0, numbers(0, 2), numbers(9, 1))
    part_of = cluster._part_of

    def higher(*arguments: Any) -> Any:
        part = part_of(*arguments)
        part.high_watermark = part.last_stable_offset = 15
        return part

    cluster._part_of = higher  # type: ignore[method-assign]
    assert read_from(cluster, 0, 15) == [0, 1, 9]


def test_aborted_and_control_batches() -> None:
    cluster = one_topic()
    how: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    marker = partial(build_control, timestamp=0, producer_id=7, producer_epoch=0, coordinator_epoch=0)
    cluster.append(
        T0,
        numbers(0, 2),
        numbers(2, 2, **how),
        marker(ControlType.ABORT, offset=4),
        numbers(5, 2, **how),
        marker(ControlType.COMMIT, offset=7),
        numbers(8, 1),
    )
    cluster.logs[T0].aborted = [(7, 2)]
    assert read_from(cluster, 0, 9) == [0, 1, 2, 3, 5, 6, 8]
    assert read_from(cluster, 0, 9, kafka_isolation_level="read_committed") == [0, 1, 5, 6, 8]


def test_a_log_that_was_cut_between_two_fetches() -> None:
    cluster = one_topic()
    cluster.append(T0, numbers(0, 2), numbers(2, 2))
    cluster.logs[T0].diverging = (0, 1)
    with pytest.raises(DataLost, match="the log of t-0 was cut at offset 1"):
        read_from(cluster, 0, 4)


def test_the_epoch_of_what_was_read_goes_with_the_next_fetch() -> None:
    cluster = one_topic()
    cluster.append(T0, numbers(0, 2, epoch=3), numbers(2, 2, epoch=5))
    cluster.logs[T0].leader_epoch = 6
    assert read_from(cluster, 0, 4, kafka_max_partition_fetch_bytes="1") == [0, 1, 2, 3]
    parts = [each.topics[0].partitions[0] for each in cluster.fetches]
    assert [(each.fetch_offset, each.last_fetched_epoch) for each in parts] == [(0, -1), (2, 3)]
    assert {each.current_leader_epoch for each in parts} == {6}


def test_a_log_that_never_gets_there_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.pipeline.fetching._PROGRESS_S", 0.5)
    cluster = one_topic()
    cluster.append(T0, numbers(0, 2))
    with pytest.raises(DataLost, match=r"t-0 ends before offset 3; offsets 2 to 4"):
        read_from(cluster, 0, 5)


@pytest.mark.parametrize("lenient", ["false", "true"])
@pytest.mark.parametrize("answer", ["none", "empty"])
def test_a_pause_before_the_next_fetch_is_needed(paused: PausedLoop, answer: str, lenient: str) -> None:
    """The Fetch sent ahead runs out of time meanwhile, or its answer is only that there is nothing yet."""
    cluster = one_topic()
    cluster.append(T0, numbers(0, 2), numbers(2, 2), numbers(4, 2))
    cluster.learn()
    call = cluster.call
    empty: list[bool] = []

    async def called(request: Any, until: float, **named: Any) -> Any:
        await asyncio.sleep(0.05)  # the way to the broker; the loop stands still meanwhile
        if answer == "none" and deadline(0) >= until:
            raise RequestTimedOut("127.0.0.1:1 did not answer FETCH in time")
        response = await call(request, until, **named)
        if answer == "empty" and len(cluster.fetches) == 2:
            empty.append(True)
            part = response.responses[0].partitions[0]
            part.records, part.high_watermark = b"", 2
        return response

    cluster.call = called  # type: ignore[method-assign]
    reads = source_options(
        {
            "kafka.bootstrap.servers": "127.0.0.1:1",
            "subscribe": "t",
            "kafka.max.partition.fetch.bytes": "1",
            "failOnDataLoss": lenient,
        },
        streaming=False,
    )
    found = []
    for each in read_rows(reads, Range(T0, 0, 6, cluster.ids["t"]), connect=lambda _: cluster):
        found += numbers_in(each)
        paused.ahead_s += 60
    assert found == list(range(6))
    assert len(empty) == (answer == "empty")


def test_a_damaged_batch_is_told_after_what_comes_before_it() -> None:
    cluster = one_topic()
    damaged = bytearray(numbers(2, 2))
    damaged[-1] ^= 1
    cluster.append(T0, numbers(0, 2), bytes(damaged), numbers(4, 2))
    cluster.learn()
    reads = source_options({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}, streaming=False)
    reading = read_rows(reads, Range(T0, 0, 6), connect=lambda _: cluster)
    assert numbers_in(next(reading)) == [0, 1]
    with pytest.raises(PipelineError, match="the batch at offset 2 cannot be read"):
        next(reading)


def test_throttled_answers_are_no_gap() -> None:
    cluster = one_topic()
    cluster.append(T0, numbers(0, 2))
    fetch = cluster._fetch
    throttled = []

    async def answered(*arguments: Any) -> Any:
        response = await fetch(*arguments)
        if not throttled:
            throttled.append(True)
            response.throttle_time_ms = 1
            response.responses[0].partitions[0].records = b""
        return response

    cluster._fetch = answered  # type: ignore[method-assign]
    assert read_from(cluster, 0, 2) == [0, 1]
    assert throttled


@pytest.fixture
def tiered() -> FakeCluster:
    """The records of its topic are in remote storage, and Fetch does not get them at first."""
    cluster = one_topic()
    cluster.append(T0, numbers(0, 2))
    cluster.logs[T0].local_start = 2
    fetch = cluster._fetch

    async def answered(*arguments: Any) -> Any:
        response = await fetch(*arguments)
        if len(cluster.fetches) == 1:
            response.responses[0].partitions[0].records = b""
        return response

    cluster._fetch = answered  # type: ignore[method-assign]
    return cluster


def test_remote_storage_that_is_slow_is_no_gap(tiered: FakeCluster) -> None:
    assert read_from(tiered, 0, 2) == [0, 1]
    assert len(tiered.fetches) == 2


def test_a_broker_too_old_for_remote_storage_has_gaps_alone(tiered: FakeCluster) -> None:
    tiered.version = 7
    assert read_from(tiered, 0, 2) == []


def test_remote_storage_that_never_answers(
    tiered: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("muster.pipeline.fetching._PROGRESS_S", 0.0)
    told = "a broker returned nothing of t-0 at offset 0; offsets 0 to 1 were still to be read"
    with pytest.raises(DataLost, match=told):
        read_from(tiered, 0, 2)
    tiered.requests.clear()
    assert read_from(tiered, 0, 2, failOnDataLoss="false") == []
    assert told in caplog.text


@pytest.mark.parametrize("lenient", ["false", "true"])
@pytest.mark.parametrize(
    "code", [None, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION], ids=str
)
def test_a_topic_that_a_broker_does_not_know_yet(code: ErrorCode | None, lenient: str) -> None:
    """Metadata does not list it at first, nor does the leader know it, unless `code` is None."""
    cluster = one_topic()
    cluster.append(T0, numbers(0, 2))
    if code is not None:
        cluster.logs[T0].refuses = [code]
    else:
        cluster.missing["t"] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    refresh = cluster.refresh

    async def refreshed(*arguments: Any) -> Any:
        if not cluster.refreshed:
            cluster.missing["t"] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        response = await refresh(*arguments)
        cluster.missing.clear()
        return response

    cluster.refresh = refreshed  # type: ignore[method-assign]
    assert read_from(cluster, 0, 2, failOnDataLoss=lenient) == [0, 1]
    assert cluster.refreshed


@pytest.mark.parametrize("fails", ["false", "true"])
def test_a_leader_that_does_not_know_a_partition_that_metadata_lists(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is behind, however long that takes; a deleted partition would not be listed."""
    monkeypatch.setattr("muster.pipeline.fetching.APPEARS_S", 0.0)
    cluster = one_topic()
    cluster.append(T0, numbers(0, 2))
    cluster.logs[T0].refuses = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 3
    assert read_from(cluster, 0, 2, failOnDataLoss=fails) == [0, 1]
    monkeypatch.setattr("muster.pipeline.fetching._PROGRESS_S", 0.5)
    cluster.logs[T0].refuses = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 1000
    with pytest.raises(PipelineError, match="t-0 could not be read") as failed:
        read_from(cluster, 0, 2, failOnDataLoss=fails)
    assert not isinstance(failed.value, DataLost)
    cluster.missing["t"] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if fails == "false":
        assert read_from(cluster, 0, 2, failOnDataLoss=fails) == []
    else:
        with pytest.raises(DataLost, match="offsets 0 to 1 were still to be read"):
            read_from(cluster, 0, 2, failOnDataLoss=fails)


def test_failures_that_pass_and_failures_that_stay() -> None:
    cluster = one_topic()
    cluster.append(T0, numbers(0, 2))
    cluster.logs[T0].refuses = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH]
    cluster.response_errors = [ErrorCode.REQUEST_TIMED_OUT]
    assert read_from(cluster, 0, 2) == [0, 1]
    cluster.logs[T0].refuses = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    with pytest.raises(PipelineError, match="t-0 could not be read"):
        read_from(cluster, 0, 2)


def test_a_connection_that_is_lost_is_made_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    cluster = one_topic()
    cluster.append(T0, numbers(0, 2))
    call = cluster.call
    lost = []

    async def losing(*arguments: Any, **named: Any) -> Any:
        if not lost:
            lost.append(True)
            raise ConnectionLost("gone")
        return await call(*arguments, **named)

    cluster.call = losing  # type: ignore[method-assign]
    assert read_from(cluster, 0, 2) == [0, 1]
    assert lost
