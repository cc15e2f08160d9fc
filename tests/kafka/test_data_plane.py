"""Data plane answers compared with Apache Kafka's: Produce, idempotent producers, Fetch, ListOffsets."""

from __future__ import annotations

import time
import uuid
from struct import pack_into
from typing import Any

import google_crc32c
import pytest

from muster.coordinator.testing import Broker
from muster.protocol.compression import Codec, compress
from muster.protocol.messages.data import (
    DeleteRecordsRequest,
    FetchRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
)
from muster.protocol.messages.transactions import DescribeProducersRequest, InitProducerIdRequest
from muster.protocol.record_batch import HEADER_BYTES, Record, batches, build, records
from tests.kafka.conftest import KafkaOfConfigs
from tests.kafka.stories import CHOSEN_BY_STORIES, KAFKA_CONFIGS, Side, Story, assert_told_alike
from tests.support.wire_topics import until

pytestmark = pytest.mark.kafka

DAY_MS = 86_400_000
NOW_MS = time.time_ns() // 1_000_000


# --- requests -----------------------------------------------------------------------------------------------


def batch(*values: bytes, key: bytes | None = b"k", at_ms: int = NOW_MS, **fields: Any) -> bytes:
    found = [Record(offset, at_ms + offset, key, value) for offset, value in enumerate(values)]
    return build(found, **fields)


def altered(data: bytes, position: int, form: str, value: int) -> bytes:
    """The batch with a header field changed, and a matching checksum."""
    changed = bytearray(data)
    pack_into(form, changed, position, value)
    pack_into(">I", changed, 17, google_crc32c.value(bytes(changed[21:])))
    return bytes(changed)


def producing(
    side: Side, *parts: tuple[str, int, bytes | None], acks: int = -1, transactional_id: str | None = None
) -> ProduceRequest:
    """Takes (topic, partition, records) tuples; parts of the same topic are grouped."""
    topics: dict[str, list[ProduceRequest.PartitionProduceData]] = {}
    for topic, partition, data in parts:
        found = topics.setdefault(topic, [])
        found.append(ProduceRequest.PartitionProduceData(index=partition, records=data))
    return ProduceRequest(
        acks=acks,
        timeout_ms=10_000,
        transactional_id=transactional_id,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=topic if topic.startswith("__") else side.name(topic), partition_data=found
            )
            for topic, found in topics.items()
        ],
    )


def by_id(topic_id: uuid.UUID, data: bytes) -> ProduceRequest:
    part = ProduceRequest.PartitionProduceData(index=0, records=data)
    topic = ProduceRequest.TopicProduceData(topic_id=topic_id, partition_data=[part])
    return ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic])


def listing(
    side: Side, topic: str, *asked: tuple[int, int], epoch: int = -1, **fields: Any
) -> ListOffsetsRequest:
    """Takes (partition, timestamp) pairs."""
    parts = [
        ListOffsetsRequest.ListOffsetsPartition(
            partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch
        )
        for partition, timestamp in asked
    ]
    name = topic if topic.startswith("__") else side.name(topic)
    return ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=parts)], **fields
    )


def fetching(
    side: Side,
    topic: str,
    offset: int = 0,
    *,
    partition: int = 0,
    bytes_max: int = 1 << 20,
    epoch: int = -1,
    fetched_epoch: int = -1,
    topic_id: uuid.UUID | None = None,
    **fields: Any,
) -> FetchRequest:
    part = FetchRequest.FetchPartition(
        partition=partition,
        fetch_offset=offset,
        partition_max_bytes=bytes_max,
        current_leader_epoch=epoch,
        last_fetched_epoch=fetched_epoch,
    )
    name = topic if topic.startswith("__") else side.name(topic)
    of_topic = (
        FetchRequest.FetchTopic(topic=name, partitions=[part])
        if topic_id is None
        else FetchRequest.FetchTopic(topic_id=topic_id, partitions=[part])
    )
    return FetchRequest(**{"max_wait_ms": 0, "min_bytes": 1, "topics": [of_topic], **fields})


def cutting(side: Side, topic: str, partition: int, offset: int) -> DeleteRecordsRequest:
    cut = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=partition, offset=offset)
    name = topic if topic.startswith("__") else side.name(topic)
    of_topic = DeleteRecordsRequest.DeleteRecordsTopic(name=name, partitions=[cut])
    return DeleteRecordsRequest(topics=[of_topic], timeout_ms=10_000)


def ending(
    side: Side, topic: str, epoch: int, *, partition: int = 0, current: int = -1
) -> OffsetForLeaderEpochRequest:
    """Asks where a leader epoch ends."""
    part = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
        partition=partition, leader_epoch=epoch, current_leader_epoch=current
    )
    of_topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=side.name(topic), partitions=[part])
    return OffsetForLeaderEpochRequest(topics=[of_topic], replica_id=-1)


# --- stories ------------------------------------------------------------------------------------------------


def produce(side: Side) -> None:
    ids = side.create(plain=2)
    side.configured("compacted", cleanup_policy="compact")
    side.configured("small", max_message_bytes="1000")
    side.configured("stamped", message_timestamp_type="LogAppendTime")
    side.configured("strict", message_timestamp_before_max_ms="3600000")
    good = batch(b"a", b"b")
    for version in range(3, 13):
        side.ask(f"v{version}", producing(side, ("plain", 0, good)), version)
    side.ask("by id", by_id(ids["plain"], good), 13)
    side.ask("by an id that no topic has", by_id(uuid.UUID(int=7), good), 13)
    side.ask("by no id", by_id(uuid.UUID(int=0), good), 13)
    side.ask("acks 1", producing(side, ("plain", 0, good), acks=1), 12)
    side.ask("acks 2", producing(side, ("plain", 0, good), acks=2), 12)
    side.ask("acks -2", producing(side, ("plain", 0, good), acks=-2), 12)

    mixed = producing(
        side,
        ("plain", 1, good),
        ("plain", 9, good),
        ("plain", -1, good),
        ("none", 0, good),
        ("__consumer_offsets", 0, good),
        ("small", 0, batch(b"x" * 2_000)),
        ("compacted", 0, good),
    )
    side.ask("errors are each partition's own", mixed, 12)
    side.ask("a bad name", producing(side, ("a b", 0, good)), 12)
    side.ask("nothing to produce", ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=[]), 12)
    side.ask("an internal topic", producing(side, ("__consumer_offsets", 0, good)), 12)
    side.ask("too large", producing(side, ("small", 0, batch(b"x" * 2_000))), 12)
    side.ask(
        "large, but compressed", producing(side, ("small", 0, batch(b"x" * 2_000, codec=Codec.GZIP))), 12
    )
    side.ask("larger than any topic takes", producing(side, ("plain", 0, batch(b"x" * 1_100_000))), 12)

    side.ask("no bytes", producing(side, ("plain", 0, b"")), 12)
    side.ask("two batches", producing(side, ("plain", 0, good + good)), 12)
    side.ask("garbage", producing(side, ("plain", 0, b"\x02" * 100)), 12)
    side.ask("half a batch", producing(side, ("plain", 0, good[: len(good) // 2])), 12)
    side.ask("a wrong checksum", producing(side, ("plain", 0, good[:-1] + b"!")), 12)
    side.ask("magic 1", producing(side, ("plain", 0, good[:16] + b"\x01" + good[17:])), 12)
    side.ask("magic 3", producing(side, ("plain", 0, good[:16] + b"\x03" + good[17:])), 12)
    side.ask("magic 0", producing(side, ("plain", 0, good[:16] + b"\x00" + good[17:])), 12)
    for length in (-5, 0, 10, 30, 48):
        side.ask(f"a length of {length}", producing(side, ("plain", 0, altered(good, 8, ">i", length))), 12)
    side.ask("a base offset", producing(side, ("plain", 0, altered(good, 0, ">q", 5))), 12)
    side.ask("a wrong record count", producing(side, ("plain", 0, altered(good, 57, ">i", 3))), 12)
    side.ask("a wrong last offset", producing(side, ("plain", 0, altered(good, 23, ">i", 7))), 12)
    side.ask("an unknown codec", producing(side, ("plain", 0, altered(good, 21, ">h", 6))), 12)
    side.ask("not what the codec says", producing(side, ("plain", 0, altered(good, 21, ">h", 1))), 12)
    side.ask("a control batch", producing(side, ("plain", 0, batch(b"a", control=True))), 12)
    side.ask("stamped by the client", producing(side, ("plain", 1, batch(b"a", log_append_time_ms=5))), 12)
    for version, codec in ((7, Codec.NONE), (12, Codec.NONE), (12, Codec.GZIP)):
        made_up = batch(b"a", b"b", log_append_time_ms=NOW_MS, codec=codec)
        title = f"the log's time, stamped by the client, {codec.name}, v{version}"
        side.ask(title, producing(side, ("stamped", 0, made_up)), version)
    for codec in Codec:
        packed = batch(b"a" * 50, codec=codec)
        side.ask(f"{codec.name}", producing(side, ("plain", 0, packed)), 12)
        side.ask(f"{codec.name} in v6", producing(side, ("plain", 0, packed)), 6)
    plain = good[HEADER_BYTES:]
    for title, frames in (
        ("records in two LZ4 frames", (plain[:8], plain[8:])),
        ("an LZ4 frame behind the records", (plain, b"more")),
    ):
        body = b"".join(compress(Codec.LZ4, each) for each in frames)
        framed = altered(batch(b"a", b"b", codec=Codec.LZ4)[:HEADER_BYTES] + body, 8, ">i", 49 + len(body))
        side.ask(title, producing(side, ("plain", 1, framed)), 12)
    stored = len(plain).to_bytes(3, "little") + b"\x80" + plain
    body = b"\x04\x22\x4d\x18" + bytes([0x61, 0x40, 1, 0, 0, 0, 0xD0]) + stored + bytes(4)
    framed = altered(batch(b"a", b"b", codec=Codec.LZ4)[:HEADER_BYTES] + body, 8, ">i", 49 + len(body))
    side.ask("an LZ4 frame with a dictionary", producing(side, ("plain", 1, framed)), 12)

    keyless = build(
        [Record(0, NOW_MS, b"k", b"a"), Record(1, NOW_MS, None, b"b"), Record(2, NOW_MS, None, b"c")]
    )
    for version in (7, 8, 12):
        side.ask(f"without keys, compacted, v{version}", producing(side, ("compacted", 0, keyless)), version)
    side.ask("from the future", producing(side, ("plain", 0, batch(b"a", at_ms=NOW_MS + DAY_MS))), 12)
    side.ask("from the past", producing(side, ("strict", 0, batch(b"a", b"b", at_ms=NOW_MS - DAY_MS))), 12)
    side.ask("from before 1970", producing(side, ("plain", 0, batch(b"a", b"b", at_ms=-DAY_MS))), 12)
    side.ask("from before 1970, strict", producing(side, ("strict", 0, batch(b"a", at_ms=-DAY_MS))), 12)
    long_ago = batch(b"a", at_ms=-(2**63) + NOW_MS - DAY_MS)
    side.ask("from before what 64 bits count from now", producing(side, ("plain", 0, long_ago)), 12)
    not_utf8 = build([Record(0, NOW_MS, b"k", b"v", (("\udcff", b"x"),))])
    side.ask("a header's name that is not UTF-8", producing(side, ("plain", 0, not_utf8)), 12)
    for acks in (1, -1):
        for timeout_ms in (0, -1):
            hurried = producing(side, ("plain", 0, good), acks=acks)
            hurried.timeout_ms = timeout_ms
            side.ask(f"acks {acks}, timeout {timeout_ms}", hurried, 12)
    side.ask("without a time", producing(side, ("strict", 0, batch(b"a", at_ms=-1))), 12)
    side.ask("the log's time", producing(side, ("stamped", 0, batch(b"a", at_ms=NOW_MS - DAY_MS))), 12)
    side.ask("what was stored", fetching(side, "plain", 0), 12)

    side.configured("packed", compression_type="gzip")
    doomed = batch(b"a", b"b", delete_horizon_ms=NOW_MS - DAY_MS)
    for topic in ("plain", "packed", "stamped"):
        told = side.ask(f"a delete horizon, {topic}", producing(side, (topic, 0, doomed)), 12)
        offset = told.responses[0].partition_responses[0].base_offset
        fetched = side.quietly(fetching(side, topic, offset), 12)
        data = fetched.responses[0].partitions[0].records
        ((position, header),) = batches(data)
        horizon_ms = header.delete_horizon_ms
        side.note(f"the horizon, {topic}", horizon_ms and horizon_ms - NOW_MS, of=(fetched, 12))
        if not header.is_log_append_time:
            times = [each.timestamp - NOW_MS for each in records(data, position, header)]
            side.note(f"the times, {topic}", times, of=(fetched, 12))


def idempotent_producers(side: Side) -> None:
    side.create(t=2, aside=1)
    side.configured("stamped", message_timestamp_type="LogAppendTime")

    def init(title: str, producer_id: int = -1, epoch: int = -1, version: int = 5) -> Any:
        request = InitProducerIdRequest(
            transactional_id=None,
            transaction_timeout_ms=60_000,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        return side.ask(title, request, version)

    def write(
        title: str,
        sequence: int,
        count: int = 1,
        *,
        epoch: int = 0,
        who: int | None = None,
        partition: int = 0,
        topic: str = "t",
    ) -> None:
        data = batch(
            *[b"v"] * count,
            producer_id=producer if who is None else who,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        side.ask(title, producing(side, (topic, partition, data)), 12)

    def are_given_out() -> bool:
        """Kafka's broker gets a thousand ids from its controller when first asked for one."""
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        return all(side.quietly(request, version).error_code == 0 for version in range(6))

    until(are_given_out, "producer ids")
    producer = init("a producer").producer_id
    init("with the id it has", producer, 0)
    init("with an id of no epoch", producer, -1)
    init("with an epoch of no id", -1, 0)

    write("first", 0, 3)
    write("first again", 0, 3)
    write("stamped", 0, topic="stamped")
    write("stamped again", 0, topic="stamped")
    write("second", 3)
    write("a gap", 9)
    write("a part of the first", 1)
    write("the first with more", 0, 4)
    for sequence in range(4, 9):
        write(f"sequence {sequence}", sequence)
    write("one of the last five", 5)
    write("the sixth from the end", 3)
    write("the first, long after", 0, 3)
    write("a new epoch, not from 0", 5, epoch=1)
    write("a new epoch", 0, epoch=1)
    write("the old epoch", 9, epoch=0)
    write("another partition, any sequence", 17, partition=1)
    write("an id nobody was given", 7, who=CHOSEN_BY_STORIES[1])
    write("and its next", 8, who=CHOSEN_BY_STORIES[1])
    write("and a gap", 10, who=CHOSEN_BY_STORIES[1])
    write("before the last number", 2**31 - 2, 2, who=CHOSEN_BY_STORIES[2])
    write("after the last number", 0, who=CHOSEN_BY_STORIES[2])
    write("over the last number", 2**31 - 1, 3, who=CHOSEN_BY_STORIES[3])
    write("and on", 2, who=CHOSEN_BY_STORIES[3])
    write("an id without an epoch", 0, epoch=-1, who=CHOSEN_BY_STORIES[4], topic="aside")
    write("an id without a sequence", -1, who=CHOSEN_BY_STORIES[5])
    write("a sequence without an id", 0, epoch=-1, who=-1)

    transactional = batch(b"v", producer_id=producer, producer_epoch=1, base_sequence=1, transactional=True)
    side.ask("a transactional batch", producing(side, ("t", 0, transactional)), 12)
    side.ask(
        "a transactional id alone", producing(side, ("aside", 0, batch(b"v")), transactional_id="tx"), 12
    )

    asked = DescribeProducersRequest.TopicRequest(name=side.name("t"), partition_indexes=[0, 1, 9])
    none = DescribeProducersRequest.TopicRequest(name="none", partition_indexes=[0])
    bad = DescribeProducersRequest.TopicRequest(name="a b", partition_indexes=[0])
    side.ask("described", DescribeProducersRequest(topics=[asked, none, bad]), 0)

    side.quietly(cutting(side, "t", 0, -1), 2)
    write("a gap, its records deleted", 99, epoch=1)
    write("next, its records deleted", 1, epoch=1)


def list_offsets(side: Side) -> None:
    side.create(t=2, old=1)
    side.quietly(producing(side, ("old", 0, batch(b"a", b"b", at_ms=-DAY_MS))), 12)
    for timestamp in (-1, -2, -3, 0):
        side.ask(f"before 1970, {timestamp}", listing(side, "old", (0, timestamp)), 11)
    side.quietly(producing(side, ("old", 0, batch(b"a", b"b", at_ms=-1))), 12)
    for timestamp in (-3, 0, 1):
        side.ask(f"until 1970, {timestamp}", listing(side, "old", (0, timestamp)), 11)
    start = NOW_MS - 10_000
    for shift in (0, 100, 50):
        side.quietly(producing(side, ("t", 0, batch(b"a", b"b", at_ms=start + shift))), 12)
    epoch = side.leader_epoch("t")
    for version in range(1, 12):
        for timestamp in (-1, -2, -3, -4, -5, -6, -7):
            side.ask(f"{timestamp} in v{version}", listing(side, "t", (0, timestamp)), version)
    for shift in (-1, 0, 1, 2, 50, 51, 99, 100, 101, 102):
        side.ask(f"time {shift}", listing(side, "t", (0, start + shift)), 11)
    side.ask("since ever", listing(side, "t", (0, 0)), 11)
    side.ask("read committed", listing(side, "t", (0, -1), isolation_level=1), 11)
    side.ask("an unknown isolation level", listing(side, "t", (0, -1), isolation_level=2), 11)
    side.ask("empty", listing(side, "t", (1, -1), (1, -2)), 11)
    for timestamp in (-1, -2, -3, -4, -5, -6, 0):
        side.ask(f"empty, {timestamp}", listing(side, "t", (1, timestamp)), 11)
    side.ask("partitions that are not there", listing(side, "t", (0, -1), (9, -1), (-1, -1)), 11)
    side.ask("a topic that is not there", listing(side, "none", (0, -1)), 11)
    side.ask("a bad name", listing(side, "a b", (0, -1)), 11)
    side.ask("the present epoch", listing(side, "t", (0, -1), epoch=epoch), 11)
    side.ask("a future epoch", listing(side, "t", (0, -1), epoch=epoch + 1), 11)

    def of_epoch(asked: int, current: int = -1, partition: int = 0) -> OffsetForLeaderEpochRequest:
        return ending(side, "t", asked, partition=partition, current=current)

    side.ask("end of the present epoch", of_epoch(epoch), 4)
    side.ask("end of an epoch to come", of_epoch(epoch + 1), 4)
    side.ask("end of an epoch before the first", of_epoch(-1), 4)
    side.ask("asked in an epoch to come", of_epoch(epoch, epoch + 1), 4)
    side.ask("end of the epoch of an empty log", of_epoch(epoch, partition=1), 4)
    side.ask("end of the epoch of no log", of_epoch(epoch, partition=9), 4)

    def deleting(offset: int, topic: str = "t", partition: int = 0) -> DeleteRecordsRequest:
        return cutting(side, topic, partition, offset)

    side.configured("compacted", cleanup_policy="compact")
    side.ask("delete beyond the end", deleting(7), 2)
    side.ask("delete below 0", deleting(-2), 2)
    side.ask("delete in the middle of a batch", deleting(3), 2)
    side.ask("delete what is deleted", deleting(1), 2)
    side.ask("delete of a partition that is not there", deleting(1, partition=9), 2)
    side.ask("delete of a topic that is not there", deleting(1, "none"), 2)
    side.ask("delete of a bad name", deleting(1, "a b"), 2)
    side.ask("delete of a compacted topic", deleting(0, "compacted"), 2)
    side.configured("kept", cleanup_policy="")
    side.ask("delete of a topic without a cleanup policy", deleting(0, "kept"), 2)
    for timestamp in (-1, -2, -3, -4, start, start + 100):
        shown = timestamp if timestamp < 0 else f"time {timestamp - start}"
        side.ask(f"after deletion, {shown}", listing(side, "t", (0, timestamp)), 11)
    side.ask("fetched below the start", fetching(side, "t", 1), 12)
    side.ask("fetched from the start", fetching(side, "t", 3), 12)


def fetch(side: Side) -> None:
    ids = side.create(t=2, other=1)
    for values in ((b"a", b"b", b"c"), (b"d",), (b"e", b"f")):
        side.quietly(producing(side, ("t", 0, batch(*values))), 12)
    epoch = side.leader_epoch("t")
    for version in range(4, 13):
        side.ask(f"v{version}", fetching(side, "t"), version)
    for version in range(13, 19):
        side.ask(f"v{version}", fetching(side, "t", topic_id=ids["t"]), version)
    for offset in range(7):
        side.ask(f"from {offset}", fetching(side, "t", offset), 12)
    side.ask("from beyond the end", fetching(side, "t", 8), 12)
    side.ask("from below 0", fetching(side, "t", -1), 12)
    side.ask("from the middle of a batch, one byte", fetching(side, "t", 1, bytes_max=1), 12)
    side.ask("one byte in all", fetching(side, "t", 1, max_bytes=1), 12)
    side.ask("no bytes of the partition", fetching(side, "t", 1, bytes_max=0), 12)
    side.ask("read committed", fetching(side, "t", isolation_level=1), 12)
    side.ask("an unknown isolation level", fetching(side, "t", isolation_level=2), 6)
    side.ask("an empty partition", fetching(side, "t", partition=1), 12)
    side.ask("no such partition", fetching(side, "t", partition=9), 12)
    side.ask("no such topic", fetching(side, "none"), 12)
    side.ask("a bad name", fetching(side, "a b"), 12)
    side.ask("no such id", fetching(side, "t", topic_id=uuid.UUID(int=7)), 18)
    side.ask("no id", fetching(side, "t", topic_id=uuid.UUID(int=0)), 18)
    side.ask("the present epoch", fetching(side, "t", epoch=epoch), 12)
    side.ask("a future epoch", fetching(side, "t", epoch=epoch + 1), 12)
    side.ask("fetched in the present epoch", fetching(side, "t", 3, fetched_epoch=epoch), 12)
    side.ask("fetched in an epoch that never was", fetching(side, "t", 3, fetched_epoch=epoch + 1), 12)
    side.ask("nothing", FetchRequest(max_wait_ms=0, min_bytes=1, topics=[]), 12)
    side.ask("an unknown session", fetching(side, "t", session_id=4_711, session_epoch=1), 12)
    side.ask("a session from nowhere", fetching(side, "t", session_id=0, session_epoch=3), 12)
    side.ask("the end of an unknown session", fetching(side, "t", session_id=4_711, session_epoch=-1), 12)
    side.ask("a session", fetching(side, "t", session_id=0, session_epoch=0), 12)


# --- told ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("story", [produce, idempotent_producers, list_offsets, fetch])
def test_apache_kafka_answers_as_muster_does(story: Story, kafka_of_configs: KafkaOfConfigs) -> None:
    # A lease that expires on a busy machine starts another leader epoch.
    with Broker(auto_create_topics_enable=False, lease_term_ms=600_000) as broker:
        assert_told_alike(story, kafka_of_configs(KAFKA_CONFIGS), broker)
