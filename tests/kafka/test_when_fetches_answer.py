"""When a Fetch is answered, at once or after its wait, compared with Apache Kafka (KIP-74, KIP-541).

Every Fetch of a story may wait for ten minutes, and also reads an empty partition: the bell. Once the broker
has looked at all of them, the bell gets more bytes than any of them needs. So an answer that includes these
has waited, and one that does not came at once, however slow the machine is.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import pytest

from muster.coordinator.testing import Broker
from muster.protocol.messages.data import DeleteRecordsRequest, FetchRequest, FetchResponse
from muster.protocol.messages.topics import DeleteTopicsRequest
from muster.protocol.record_batch import Record, build
from tests.kafka.conftest import KafkaOfConfigs
from tests.kafka.partition_writes import PartitionWrites
from tests.kafka.stories import CHOSEN_BY_STORIES, KAFKA_CONFIGS, Side, Story, assert_told_alike
from tests.kafka.test_data_plane import NOW_MS, batch, producing
from tests.kafka.test_transaction_log import UNVERIFIED, unverified

pytestmark = pytest.mark.kafka

BELL_BYTES: Final = 300_000
"""More than any Fetch here waits for."""
WAIT_MS: Final = 600_000
_LOOKS: Final = 20
"""Round trips of other requests within which a broker looks at an earlier Fetch."""
_LOOK_SECONDS: Final = 0.5
VALUE: Final = bytes(100)
ONE: Final = len(batch(VALUE))
"""Size of a batch with one record."""
LARGE: Final = len(batch(bytes(5_000)))


class Part(NamedTuple):
    """One partition of a Fetch."""

    topic: str
    partition: int = 0
    offset: int = 0
    max_bytes: int = 1 << 20
    epoch: int = -1
    fetched_epoch: int = -1


BELL: Final = Part("bell")


def fetching(
    side: Side, *parts: Part, min_bytes: int, ids: Mapping[str, uuid.UUID] | None = None, **fields: Any
) -> FetchRequest:
    """By name, or by topic id if `ids` are given. Parts of one topic are grouped."""
    topics: dict[str, list[FetchRequest.FetchPartition]] = {}
    for part in parts:
        topics.setdefault(part.topic, []).append(
            FetchRequest.FetchPartition(
                partition=part.partition,
                fetch_offset=part.offset,
                partition_max_bytes=part.max_bytes,
                current_leader_epoch=part.epoch,
                last_fetched_epoch=part.fetched_epoch,
            )
        )
    asked = [
        FetchRequest.FetchTopic(topic=side.name(topic), partitions=found)
        if ids is None
        else FetchRequest.FetchTopic(topic_id=ids[topic], partitions=found)
        for topic, found in topics.items()
    ]
    limits = {"max_wait_ms": WAIT_MS, "min_bytes": min_bytes, "max_bytes": 1 << 20}
    return FetchRequest(**{**limits, "topics": asked, **fields})


def append(side: Side, topic: str, *values: bytes, partition: int = 0, at_ms: int = NOW_MS) -> None:
    answer = side.quietly(producing(side, (topic, partition, batch(*values, at_ms=at_ms))), 12)
    assert not answer.responses[0].partition_responses[0].error_code


def look(side: Side) -> None:
    """Return when the broker has looked at everything sent before."""
    time.sleep(0)
    began = time.monotonic()
    done = 0
    while done < _LOOKS or time.monotonic() - began < _LOOK_SECONDS:
        side.quietly(fetching(side, Part("bell", 1), min_bytes=0, max_wait_ms=0), 12)
        done += 1


def ask_when(
    side: Side,
    requests: Mapping[str, FetchRequest],
    version: int,
    *steps: Callable[[], object],
    bell_id: uuid.UUID | None = None,
) -> None:
    """Record each answer, and whether it came before the bell rang. `steps` run one after the other, once the
    broker has looked at all requests."""

    def between() -> None:
        for step in (*steps, lambda: append(side, "bell", bytes(BELL_BYTES))):
            look(side)
            step()

    answers = side.ask_side_by_side(requests, version, between, but="session_id")
    for title, answer in answers.items():
        assert isinstance(answer, FetchResponse)
        rung = any(
            part.high_watermark > 0
            for topic in answer.responses
            if topic.topic == side.name("bell") or topic.topic_id == bell_id
            for part in topic.partitions
        )
        side.note(f"{title}: when", "after the wait" if rung else "at once")


def fetches(side: Side) -> None:
    side.create(t=3, bell=2, large=1, empty=1)
    side.configured("rolled", segment_ms="60000")
    for _ in range(10):
        append(side, "t", VALUE)
    for _ in range(3):
        append(side, "t", VALUE, partition=1)
    append(side, "t", VALUE, VALUE, VALUE, partition=2)
    append(side, "large", bytes(5_000))
    for segment in range(2):
        for _ in range(4 - 2 * segment):
            append(side, "rolled", VALUE, at_ms=NOW_MS + segment * 600_000)
    epoch = side.leader_epoch("t")
    two = 2 * ONE + 10
    cases: dict[str, tuple[tuple[Part, ...], int, dict[str, Any]]] = {
        "a partition's limit, reached": ((Part("t", max_bytes=two),), two, {}),
        "a partition's limit, below the minimum": ((Part("t", max_bytes=two),), two + 1, {}),
        "whole batches to a partition's limit": ((Part("t", max_bytes=2 * ONE),), 2 * ONE, {}),
        "the request's limit, reached": ((Part("t"),), two, {"max_bytes": two}),
        "the request's limit below the minimum": ((Part("t"),), 100_000, {"max_bytes": two}),
        "all there is": ((Part("t", 1),), 3 * ONE, {}),
        "one byte more than there is": ((Part("t", 1),), 3 * ONE + 1, {}),
        "two limits that add up": (
            (Part("t", max_bytes=two), Part("t", 1, max_bytes=two)),
            2 * two,
            {},
        ),
        "two limits, one byte short": (
            (Part("t", max_bytes=two), Part("t", 1, max_bytes=two)),
            2 * two + 1,
            {},
        ),
        "two partitions to the request's limit": (
            (Part("t", max_bytes=two), Part("t", 1, max_bytes=two)),
            100_000,
            {"max_bytes": 3 * ONE + 10},
        ),
        "the second has no room for a batch": (
            (Part("t", max_bytes=2 * ONE), Part("t", 1)),
            two,
            {"max_bytes": two},
        ),
        "the second has no room, and too low a limit": (
            (Part("t", max_bytes=2 * ONE), Part("t", 1, max_bytes=9)),
            two,
            {"max_bytes": two},
        ),
        "what is left of the request's limit after a piece": (
            (Part("t", max_bytes=two), Part("t", 1)),
            100_000,
            {"max_bytes": two + ONE - 1},
        ),
        "a batch beyond all limits": ((Part("large", max_bytes=100),), LARGE, {"max_bytes": LARGE}),
        "a batch beyond its partition's limit, one byte short": (
            (Part("large", max_bytes=100),),
            LARGE + 1,
            {},
        ),
        "a batch beyond the request's limit": ((Part("large"),), LARGE + 1, {"max_bytes": 100}),
        "a batch beyond its limit and another partition": (
            (Part("large", max_bytes=100), Part("t", max_bytes=two)),
            LARGE + two,
            {},
        ),
        "a batch beyond its limit and another partition, one byte short": (
            (Part("large", max_bytes=100), Part("t", max_bytes=two)),
            LARGE + two + 1,
            {},
        ),
        "a batch beyond its limit behind another partition": (
            (Part("t", 1), Part("large", max_bytes=100)),
            3 * ONE + 100,
            {},
        ),
        "a batch beyond its limit behind another partition, one byte short": (
            (Part("t", 1), Part("large", max_bytes=100)),
            3 * ONE + 101,
            {},
        ),
        "no bytes of a partition": ((Part("t", max_bytes=0),), 1, {}),
        "no bytes of the second": ((Part("t", 1), Part("t", max_bytes=0)), 3 * ONE + 1, {}),
        "no bytes at all": ((Part("t"),), 1, {"max_bytes": 0}),
        "nothing wanted": ((Part("empty"),), 0, {}),
        "less than nothing wanted": ((Part("empty"),), -1, {}),
        "no wait": ((Part("empty"),), 1, {"max_wait_ms": 0}),
        "a negative wait": ((Part("empty"),), 1, {"max_wait_ms": -1}),
        "an empty partition": ((Part("empty"),), 1, {}),
        "the end": ((Part("t", offset=10),), 1, {}),
        "the end of one, records of another": ((Part("t", offset=10), Part("t", 1)), 1, {}),
        "the middle of a batch": ((Part("t", 2, 1),), len(batch(VALUE, VALUE, VALUE)), {}),
        "the middle of a batch, one byte short": (
            (Part("t", 2, 1),),
            len(batch(VALUE, VALUE, VALUE)) + 1,
            {},
        ),
        "the middle of a batch, limited": ((Part("t", 2, 1, 50),), len(batch(VALUE, VALUE, VALUE)), {}),
        "an older segment": ((Part("rolled"),), 100_000, {}),
        "an older segment's last record": ((Part("rolled", offset=3),), 100_000, {}),
        "an older segment to a limit": ((Part("rolled", max_bytes=10),), 100_000, {}),
        "the last segment": ((Part("rolled", offset=4),), 100_000, {}),
        "the end of the last segment": ((Part("rolled", offset=6),), 100_000, {}),
        "an older segment behind another partition": ((Part("t", 1), Part("rolled")), 100_000, {}),
        "an older segment behind the request's limit": (
            (Part("t"), Part("rolled")),
            two + 1,
            {"max_bytes": two},
        ),
        "out of range": ((Part("t", offset=99),), 1, {}),
        "out of range and an empty partition": ((Part("empty"), Part("t", offset=99)), 1, {}),
        "a partition that is not there": ((Part("empty"), Part("t", 9)), 1, {}),
        "a topic that is not there": ((Part("empty"), Part("none")), 1, {}),
        "a bad name": ((Part("empty"), Part("a b")), 1, {}),
        "an epoch to come": ((Part("t", offset=10, epoch=epoch + 1),), 1, {}),
        "the present epoch": ((Part("t", offset=10, epoch=epoch),), 1, {}),
        "fetched in the present epoch": ((Part("t", offset=10, fetched_epoch=epoch),), 1, {}),
        "diverged": ((Part("t", offset=11, fetched_epoch=epoch),), 1, {}),
        "diverged beside an empty partition": (
            (Part("empty"), Part("t", offset=11, fetched_epoch=epoch)),
            1,
            {},
        ),
        "fetched in an epoch that never was": ((Part("t", offset=10, fetched_epoch=epoch + 1),), 1, {}),
        "a session": ((Part("empty"),), 1, {"session_id": 0, "session_epoch": 0}),
        "a session with a full answer": (
            (Part("t", max_bytes=two),),
            two,
            {"session_id": 0, "session_epoch": 0},
        ),
    }
    asked = {
        title: fetching(side, *parts, BELL, min_bytes=min_bytes, **fields)
        for title, (parts, min_bytes, fields) in cases.items()
    }
    ask_when(side, asked, 12)


def fetches_by_id(side: Side) -> None:
    ids = side.create(t=1, bell=2, empty=1)
    append(side, "t", VALUE)
    ids["none"] = uuid.UUID(int=7)
    ids["no id"] = uuid.UUID(int=0)
    cases = {
        "records": ((Part("t"), BELL), 1),
        "none": ((Part("empty"), BELL), 1),
        "a topic that is not there": ((Part("empty"), Part("none"), BELL), 1),
        "a topic that is not there, and records": ((Part("t"), Part("none"), BELL), 1),
        "no id": ((Part("empty"), Part("no id"), BELL), 1),
        "a partition that is not there": ((Part("empty", 9), BELL), 1),
        "only a topic that is not there": ((Part("none"),), 1),
        "only a partition that is not there": ((Part("t", 9),), 1),
        "nothing": ((), 1),
    }
    asked = {
        title: fetching(side, *parts, min_bytes=min_bytes, ids=ids)
        for title, (parts, min_bytes) in cases.items()
    }
    ask_when(side, asked, 18, bell_id=ids["bell"])


def fetches_of_packed_topics(side: Side) -> None:
    side.create(bell=2, empty=1)
    side.configured("packed", compression_type="zstd")
    asked = {
        "packed": fetching(side, Part("packed"), BELL, min_bytes=1),
        "packed, behind another": fetching(side, Part("empty"), Part("packed"), BELL, min_bytes=1),
    }
    ask_when(side, asked, 9)


def appends_while_fetches_wait(side: Side) -> None:
    side.create(capped=1, beyond=1, grown=1, pair=2, cut=1, gone=1, halves=2, bell=2)
    side.configured("rolling", segment_ms="60000")
    for topic in ("cut", "gone", "rolling"):
        append(side, topic, VALUE, VALUE)
    cases: dict[str, tuple[tuple[Part, ...], int]] = {
        "no more than a partition's limit counts": ((Part("capped", max_bytes=ONE - 5),), ONE),
        "no more than a partition's limit counts of two": (
            (Part("pair", 0, max_bytes=ONE - 5), Part("pair", 1)),
            3 * ONE,
        ),
        "a batch beyond its limit": ((Part("beyond", max_bytes=100),), 101),
        "a batch beyond its limit is as good as its limit": ((Part("beyond", max_bytes=100),), 100),
        "grown to the byte": ((Part("grown"),), 2 * ONE),
        "grown, one byte short": ((Part("grown"),), 2 * ONE + 1),
        "grown in both": ((Part("halves"), Part("halves", 1)), 2 * ONE),
        "a new segment begins at what is waited for": ((Part("rolling", offset=2),), 100_000),
        "a new segment begins behind what was read": ((Part("rolling", offset=1),), 100_000),
        "a new segment behind another partition": ((Part("capped"), Part("rolling", offset=2)), 100_000),
        "records deleted": ((Part("cut"),), 100_000),
        "a topic deleted": ((Part("gone"),), 100_000),
        "a topic deleted beside another": ((Part("capped"), Part("gone", offset=2)), 100_000),
    }
    asked = {
        title: fetching(side, *parts, BELL, min_bytes=min_bytes)
        for title, (parts, min_bytes) in cases.items()
    }

    def grow() -> None:
        for topic in ("capped", "grown", "halves", "pair"):
            append(side, topic, VALUE)
        append(side, "beyond", bytes(5_000))

    def grow_again() -> None:
        for topic in ("grown", "capped"):
            append(side, topic, VALUE)
        for topic in ("halves", "pair"):
            append(side, topic, VALUE, partition=1)

    def roll() -> None:
        append(side, "rolling", VALUE, at_ms=NOW_MS + 600_000)

    def delete() -> None:
        cut = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=1)
        of_topic = DeleteRecordsRequest.DeleteRecordsTopic(name=side.name("cut"), partitions=[cut])
        side.quietly(DeleteRecordsRequest(topics=[of_topic], timeout_ms=10_000), 2)
        gone = DeleteTopicsRequest.DeleteTopicState(name=side.name("gone"), topic_id=uuid.UUID(int=0))
        side.quietly(DeleteTopicsRequest(topics=[gone], timeout_ms=10_000), 6)
        side.settle()  # Kafka answers before its brokers end the topic's logs

    ask_when(side, asked, 12, grow, grow_again, roll, delete)


CONTROL: Final = 78
"""Size of a marker's batch."""
WRITE: Final = (b"k", VALUE)
P, Q = CHOSEN_BY_STORIES[400:402]


def fetches_of_committed_records(side: Side) -> None:
    side.create(bell=2)
    first, below, rolled, behind = (
        PartitionWrites(side, name) for name in ("first", "below", "rolled", "behind")
    )
    one = len(build([Record(0, NOW_MS, *WRITE)]))
    first.begin(P, WRITE)
    for log in (first, below, rolled):
        log.put(WRITE)
        log.put(WRITE)
    below.begin(P, WRITE)
    below.put(WRITE)
    rolled.begin(P, WRITE)
    rolled.put(WRITE)
    rolled.begin_segment()
    rolled.put(WRITE)
    rolled.begin(Q, WRITE)
    behind.put(WRITE)
    behind.begin_segment()
    behind.put(WRITE)
    behind.begin(P, WRITE)
    behind.put(WRITE)
    cases = {
        "nothing but what is undecided": (Part("first"), 1),
        "behind the first undecided": (Part("first", offset=1), 1),
        "the end, behind the undecided": (Part("first", offset=3), 1),
        "beyond the end": (Part("first", offset=4), 1),
        "what is decided": (Part("below"), 2 * one),
        "one byte more than what is decided": (Part("below"), 2 * one + 1),
        "the last decided": (Part("below", offset=1), one),
        "the last decided, one byte short": (Part("below", offset=1), one + 1),
        "the first undecided": (Part("below", offset=2), 1),
        "a limit within what is decided": (Part("below", max_bytes=one + 10), one + 10),
        "a limit within what is undecided": (Part("below", max_bytes=3 * one), 2 * one + 1),
        "decided in an older segment": (Part("rolled"), 2 * one),
        "decided in an older segment, one byte short": (Part("rolled"), 2 * one + 1),
        "the first undecided in an older segment": (Part("rolled", offset=2), 1),
        "undecided in an older segment": (Part("rolled", offset=3), 1),
        "undecided in the last segment": (Part("rolled", offset=4), 1),
        "an older segment than the undecided": (Part("behind"), 100_000),
        "beside the undecided": (Part("behind", offset=1), one),
        "beside the undecided, one byte short": (Part("behind", offset=1), one + 1),
    }
    asked = {
        title: fetching(side, part, BELL, min_bytes=min_bytes, isolation_level=1)
        for title, (part, min_bytes) in cases.items()
    }
    ask_when(side, asked, 12)


def markers_while_fetches_wait(side: Side) -> None:
    side.create(bell=2)
    names = ("committed", "aborted", "two", "appended", "rolled")
    logs = {name: PartitionWrites(side, name) for name in names}
    one = len(build([Record(0, NOW_MS, *WRITE)]))
    for log in logs.values():
        log.put(WRITE)
        log.begin(P, WRITE)
        log.put(WRITE)
    logs["two"].begin(Q, WRITE)
    logs["two"].put(WRITE)
    logs["rolled"].begin_segment()
    logs["rolled"].put(WRITE)
    whole = 3 * one + CONTROL
    cases = {
        "committed": (Part("committed"), whole),
        "committed, one byte short": (Part("committed"), whole + 1),
        "committed, from its first": (Part("committed", offset=1), whole - one),
        "committed, from its first, one byte short": (Part("committed", offset=1), whole - one + 1),
        "aborted": (Part("aborted"), whole),
        "aborted, one byte short": (Part("aborted"), whole + 1),
        "the next is open": (Part("two"), 3 * one),
        "the next is open, one byte short": (Part("two"), 3 * one + 1),
        "others were appended": (Part("appended"), one + 1),
        "the end is in another segment": (Part("rolled", offset=1), 100_000),
    }
    asked = {
        title: fetching(side, part, BELL, min_bytes=min_bytes, isolation_level=1)
        for title, (part, min_bytes) in cases.items()
    }

    def append_more() -> None:
        logs["appended"].put(WRITE)
        logs["appended"].begin(P, WRITE)

    def end() -> None:
        for name in ("committed", "two", "rolled"):
            logs[name].end(P, True)
        logs["aborted"].end(P, False)

    ask_when(side, asked, 12, append_more, end)


@pytest.mark.parametrize("story", [fetches_of_committed_records, markers_while_fetches_wait])
def test_apache_kafka_answers_with_committed_records_when_muster_does(
    story: Story, kafka_of_configs: KafkaOfConfigs
) -> None:
    with unverified() as broker:
        assert_told_alike(story, kafka_of_configs(UNVERIFIED), broker)


@pytest.mark.parametrize(
    "story", [fetches, fetches_by_id, fetches_of_packed_topics, appends_while_fetches_wait]
)
def test_apache_kafka_answers_when_muster_does(story: Story, kafka_of_configs: KafkaOfConfigs) -> None:
    # A lease that expires on a busy machine starts another leader epoch.
    with Broker(auto_create_topics_enable=False, lease_term_ms=600_000) as broker:
        assert_told_alike(story, kafka_of_configs(KAFKA_CONFIGS), broker)
