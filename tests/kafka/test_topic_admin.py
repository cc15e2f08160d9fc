"""Topic administration, with answers compared with Apache Kafka's."""

from __future__ import annotations

import itertools
import uuid
from typing import Any

import pytest

from muster.coordinator.config import Settings
from muster.coordinator.testing import Broker
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.cluster import DescribeLogDirsRequest, ElectLeadersRequest
from muster.protocol.messages.data import ProduceRequest
from muster.protocol.messages.metadata import DescribeTopicPartitionsRequest, MetadataRequest
from muster.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
)
from muster.protocol.messages.topics import CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest
from muster.protocol.record_batch import Record, build
from muster.protocol.types import ZERO_UUID
from tests.kafka.conftest import KafkaOfConfigs
from tests.kafka.stories import KAFKA_CONFIGS, Side, Story, assert_told_alike
from tests.support.wire_topics import until

pytestmark = pytest.mark.kafka


# --- stories ------------------------------------------------------------------------------------------------


def create_topics(side: Side) -> None:
    numbers = itertools.count(1)

    def new() -> str:
        return side.name(f"new-{next(numbers)}")

    def creating(*names: str, validate_only: bool = False, **fields: Any) -> CreateTopicsRequest:
        fields = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": [], **fields}
        if isinstance(fields["assignments"], dict):
            fields["assignments"] = [
                CreateTopicsRequest.CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
                for index, brokers in fields["assignments"].items()
            ]
        fields["configs"] = [
            CreateTopicsRequest.CreatableTopicConfig(name=name, value=value)
            for name, value in fields["configs"]
        ]
        topics = [CreateTopicsRequest.CreatableTopic(name=name, **fields) for name in names]
        return CreateTopicsRequest(topics=topics, validate_only=validate_only)

    side.create(**{"there": 1, "a.b": 1})
    for version in range(2, 8):
        side.ask(f"v{version}", creating(new(), configs=[("retention.ms", "77")]), version)
    for partitions in (0, -1, -2, 10_001):
        side.ask(f"{partitions} partitions", creating(new(), num_partitions=partitions), 4)
    for replicas in (0, -1, -2, 2):
        side.ask(f"{replicas} replicas", creating(new(), replication_factor=replicas), 4)
    for title, assignments in {
        "assigned": {0: [1], 1: [1]},
        "assigned with a gap": {0: [1], 2: [1]},
        "assigned from 1": {1: [1]},
        "assigned to nobody": {0: []},
        "assigned to an unknown broker": {0: [7]},
        "assigned to an unknown and a known broker": {0: [1, 7]},
        "assigned to the same broker twice": {0: [1, 1]},
        "assigned to a broker below 0": {0: [-1]},
        "assigned below 0": {-1: [1]},
        "assigned to more brokers here than there": {0: [1], 1: [1, 7]},
    }.items():
        request = creating(new(), assignments=assignments, num_partitions=-1, replication_factor=-1)
        side.ask(title, request, 4)
    side.ask("assigned, and counted", creating(new(), assignments={0: [1]}), 4)
    side.ask(
        "assigned, and replicas counted",
        creating(new(), assignments={0: [1]}, num_partitions=-1, replication_factor=1),
        4,
    )
    twice = creating(new(), num_partitions=-1, replication_factor=-1)
    twice.topics[0].assignments = [
        CreateTopicsRequest.CreatableReplicaAssignment(partition_index=0, broker_ids=[1]) for _ in range(2)
    ]
    side.ask("assigned twice", twice, 4)
    for name in ("", ".", "..", "a b", "a/b", "ä"):
        side.ask(f"called '{name}'", creating(name), 4)
    for length in (249, 250):
        called = side.name("x") + "x" * (length - len(side.name("x")))
        (made,) = side.quietly(creating(called), 4).topics
        assert made.error_code == (0 if length == 249 else ErrorCode.INVALID_TOPIC_EXCEPTION)
    side.ask("exists", creating(side.name("there")), 4)
    side.ask("collides", creating(side.name("a_b")), 4)
    side.ask("collides within the request", creating(side.name("c.d"), side.name("c_d")), 4)
    side.ask("named twice", creating(side.name("twice"), side.name("twice"), side.name("other")), 4)
    side.ask("the topic of offsets", creating("__consumer_offsets"), 4)
    side.ask("the topic of metadata", creating("__cluster_metadata"), 4)
    side.ask("nothing", creating(), 4)
    for title, configs in {
        "a config": [("retention.ms", "1000")],
        "a config without a value": [("retention.ms", None)],
        "an unknown config": [("no.such", "1")],
        "a config that is no number": [("retention.ms", "soon")],
        "a config out of bounds": [("segment.bytes", "1")],
        "a config twice": [("retention.ms", "1000"), ("retention.ms", "2000")],
        "a policy that is none": [("cleanup.policy", "burn")],
        "the lag the wrong way round": [("min.compaction.lag.ms", "5"), ("max.compaction.lag.ms", "4")],
    }.items():
        side.ask(title, creating(new(), configs=configs), 4)
    side.ask("validated", creating(new(), validate_only=True), 7)
    wrong = creating(new(), configs=[("retention.ms", "soon")], num_partitions=0)
    side.ask("a config and a count that are wrong", wrong, 4)

    def codes(request: CreateTopicsRequest) -> list[int]:
        found = {each.name: each.error_code for each in side.quietly(request, 7).topics}
        return [found[each.name] for each in request.topics]

    for title, partitions, configs in (
        ("as much as one request may make", 9_999, []),
        ("a partition more", 10_000, []),
        ("a config more", 9_999, [("retention.ms", "1000")]),
    ):
        asked = creating(new(), num_partitions=partitions, configs=configs, validate_only=True)
        side.note(title, codes(asked))
    several = creating(new(), new(), num_partitions=4_999, validate_only=True)
    side.note("as much in two topics", codes(several))
    several.topics += creating(new(), num_partitions=0).topics
    side.note("as much, and a topic without partitions", codes(several))
    several.topics += creating(new()).topics
    side.note("more in several topics", codes(several))
    side.ask("one of two", creating(side.name("there"), side.name("fresh")), 4)
    for timeout_ms in (0, -1):
        hurried = creating(new(), new())
        hurried.timeout_ms = timeout_ms
        side.note(f"within {timeout_ms} ms", codes(hurried))
    side.settle()
    neighbour = MetadataRequest(topics=[MetadataRequest.Topic(name=side.name("other"))])
    side.ask("what became of a neighbour", neighbour, 12)


def create_partitions(side: Side) -> None:
    side.create(t=2)

    def growing(
        count: int, *names: str, to: list[list[int]] | None = None, validate_only: bool = False
    ) -> CreatePartitionsRequest:
        grown = CreatePartitionsRequest.CreatePartitionsTopic
        assignments = (
            None
            if to is None
            else [CreatePartitionsRequest.CreatePartitionsAssignment(broker_ids=each) for each in to]
        )
        topics = [grown(name=side.name(each), count=count, assignments=assignments) for each in names]
        return CreatePartitionsRequest(topics=topics, timeout_ms=10_000, validate_only=validate_only)

    hurried = growing(3, "t")
    hurried.timeout_ms = 0
    side.note("within 0 ms", [each.error_code for each in side.quietly(hurried, 3).results])
    for version in range(4):
        side.ask(f"validated, v{version}", growing(3, "t", validate_only=True), version)
    for count in (2, 1, 0, -1, 20_000):
        side.ask(f"to {count}", growing(count, "t", validate_only=True), 3)
    for title, to in {
        "assigned": [[1], [1]],
        "too few assigned": [[1]],
        "too many assigned": [[1], [1], [1]],
        "assigned to nobody": [[], []],
        "assigned to an unknown broker": [[1], [7]],
        "assigned to a broker twice": [[1], [1, 1]],
        "assigned to more than there are": [[1, 7], [1, 7]],
        "none assigned": [],
    }.items():
        side.ask(title, growing(4, "t", to=to, validate_only=True), 3)
    side.ask("of a topic that is not there", growing(4, "none"), 3)
    side.ask("of a bad name", growing(4, "a b"), 3)
    side.ask("named twice", growing(4, "t", "t"), 3)
    side.ask("in earnest", growing(4, "t"), 3)
    asked = MetadataRequest(topics=[MetadataRequest.Topic(name=side.name("t"))])

    def are_led() -> bool:
        (topic,) = side.quietly(asked, 12).topics
        return len(topic.partitions) == 4 and not any(each.error_code for each in topic.partitions)

    until(are_led, "four led partitions")
    side.ask("what clients are told then", asked, 12)


def delete_topics(side: Side) -> None:
    ids = side.create(a=1, b=1, c=1, d=1, e=1)

    def deleting(*asked: str | uuid.UUID | tuple[str, uuid.UUID] | None) -> DeleteTopicsRequest:
        states = []
        for each in asked:
            name, topic_id = each if isinstance(each, tuple) else (each, ZERO_UUID)
            if isinstance(each, uuid.UUID):
                name, topic_id = None, each
            states.append(DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=topic_id))
        return DeleteTopicsRequest(topics=states, timeout_ms=10_000)

    side.ask("v1", DeleteTopicsRequest(topic_names=[side.name("a"), "none"], timeout_ms=10_000), 1)
    side.ask("v5", DeleteTopicsRequest(topic_names=[side.name("b"), "none"], timeout_ms=10_000), 5)
    side.ask("v6", deleting(side.name("c"), "none"), 6)
    side.ask("by id", deleting(ids["d"], uuid.UUID(int=7)), 6)
    side.ask("by neither", deleting(None), 6)
    side.ask("by both", deleting((side.name("e"), ids["e"])), 6)
    side.ask("by a bad name", deleting("a b"), 6)
    side.ask("twice", deleting(side.name("e"), side.name("e")), 6)
    side.ask("nothing", deleting(), 6)
    hurried = deleting(side.name("e"))
    hurried.timeout_ms = 0
    side.note("within 0 ms", [each.error_code for each in side.quietly(hurried, 6).responses])
    side.ask("by name and by id", deleting(side.name("e"), ids["e"]), 6)


def describe_topic_partitions(side: Side) -> None:
    made = {"pa": 3, "pb": 2, "pc": 4}
    side.create(**made)
    asked, cursor_of = DescribeTopicPartitionsRequest.TopicRequest, DescribeTopicPartitionsRequest.Cursor

    def describing(
        *names: str, limit: int = 2_000, cursor: tuple[str, int] | None = None
    ) -> DescribeTopicPartitionsRequest:
        real = [side.name(name) if name in made else name for name in names]
        return DescribeTopicPartitionsRequest(
            topics=[asked(name=name) for name in real],
            response_partition_limit=limit,
            cursor=None
            if cursor is None
            else cursor_of(
                topic_name=side.name(cursor[0]) if cursor[0] in made else cursor[0], partition_index=cursor[1]
            ),
        )

    side.ask("in the order of names", describing("pc", "pa", "pb"), 0)
    side.ask("twice the same", describing("pa", "pa"), 0)
    side.ask("some that are not there", describing("pa", "none", "a b"), 0)
    side.ask("the topic of offsets", describing("__consumer_offsets"), 0)
    for limit in (4, 3, 1, 0, -5, 100_000):
        side.ask(f"at most {limit}", describing("pa", "pb", "pc", limit=limit), 0)
    side.ask("going on", describing("pa", "pb", "pc", limit=4, cursor=("pb", 1)), 0)
    side.ask("going on behind the last partition", describing("pa", "pb", cursor=("pb", 9)), 0)
    side.ask("going on where nobody asked", describing("pa", "pb", cursor=("pc", 0)), 0)
    side.ask("going on below 0", describing("pa", "pb", cursor=("pb", -1)), 0)
    side.ask("those refused take no room", describing("none", "pa", limit=1), 0)
    full = describing("pa", side.name("pz"), limit=3)
    side.ask("a full page ends before them too", full, 0)
    side.ask("going on with one that is gone", describing("none", "pa", cursor=("none", 0)), 0)
    side.ask("all, going on below 0", describing(cursor=("pa", -1)), 0)
    side.ask("all, in pages", describing(limit=30), 0)


def elect_leaders(side: Side) -> None:
    made = {"t": 2}
    side.create(**made)

    def electing(
        election_type: int = 0, *, everything: bool = False, **partitions: list[int]
    ) -> ElectLeadersRequest:
        asked = [
            ElectLeadersRequest.TopicPartitions(
                topic=side.name(name) if name in made else name, partitions=indexes
            )
            for name, indexes in partitions.items()
        ]
        return ElectLeadersRequest(
            election_type=election_type, topic_partitions=None if everything else asked
        )

    for version in range(3):
        for election_type in range(2 if version else 1):
            side.ask(
                f"type {election_type}, v{version}", electing(election_type, t=[0, 1, 9], none=[0]), version
            )
    side.ask("of an unknown type", electing(7, t=[0]), 2)
    side.ask("all, of an unknown type", electing(7, everything=True), 2)
    side.ask("a partition twice", electing(t=[0, 0]), 2)
    side.ask("no partition", electing(t=[]), 2)
    side.ask("none", electing(), 2)
    for timeout_ms, version in ((0, 0), (0, 2), (-1, 2)):
        for title, hurried in {
            "some": electing(t=[0, 9], none=[0]),
            "of another type": electing(7 if version else 0, t=[0]),
            "all": electing(everything=True),
            "none": electing(),
        }.items():
            hurried.timeout_ms = timeout_ms
            side.ask(f"{title}, within {timeout_ms} ms, v{version}", hurried, version)
    for election_type in range(2):
        every = side.quietly(electing(election_type, everything=True), 2)
        assert every.error_code == 0
        assert {each.topic for each in every.replica_election_results} >= {
            side.name("t"),
            "__consumer_offsets",
        }
        assert not any(each.partition_result for each in every.replica_election_results)


def reassign_partitions(side: Side) -> None:
    side.create(t=3)
    Alter, Listing = AlterPartitionReassignmentsRequest, ListPartitionReassignmentsRequest

    def reassigning(name: str = "t", **fields: Any) -> AlterPartitionReassignmentsRequest:
        lists: dict[int, list[int] | None] = fields.pop("lists")
        parts = [
            Alter.ReassignablePartition(partition_index=index, replicas=replicas)
            for index, replicas in lists.items()
        ]
        topic = Alter.ReassignableTopic(name=side.name(name), partitions=parts)
        return Alter(topics=[topic], timeout_ms=10_000, **fields)

    for version in range(2):
        for title, replicas in {
            "to where it is": [1],
            "to nobody": [],
            "to an unknown broker": [7],
            "to a broker below 0": [-1],
            "to an unknown and a known broker": [1, 7],
            "to a broker twice": [1, 1],
            "cancelled": None,
        }.items():
            side.ask(f"{title}, v{version}", reassigning(lists={0: replicas}), version)
        some = reassigning(lists={0: [1], 1: None, 2: [7], 3: [1], -1: [1]})
        side.ask(f"some of them, v{version}", some, version)
        several = reassigning(lists={0: [7], 1: [7]})
        for lists in ({0: [1], 1: None}, {0: []}):
            several.topics[0].partitions += reassigning(lists=lists).topics[0].partitions
        side.ask(f"several times, v{version}", several, version)
        side.ask(f"of a topic that is not there, v{version}", reassigning("none", lists={0: [1]}), version)
        side.ask(f"cancelled of none, v{version}", reassigning("none", lists={0: None}), version)
    for title, more in {"to where it is": [1], "to more": [1, 7], "to nobody": []}.items():
        fixed = reassigning(lists={0: more}, allow_replication_factor_change=False)
        side.ask(f"{title}, with as many replicas", fixed, 1)
    side.ask("no partition", reassigning(lists={}), 1)
    side.ask("nothing", Alter(topics=[], timeout_ms=10_000), 1)
    for timeout_ms in (0, -1):
        hurried = reassigning(lists={0: [1], 9: [1]})
        hurried.topics += reassigning("none", lists={0: None}).topics
        hurried.timeout_ms = timeout_ms
        side.ask(f"within {timeout_ms} ms", hurried, 1)
        side.ask(f"nothing, within {timeout_ms} ms", Alter(topics=[], timeout_ms=timeout_ms), 1)
    side.ask("all that go on", Listing(), 0)
    for name, partitions in {"t": [0, 9], "none": [0]}.items():
        named = Listing.ListPartitionReassignmentsTopics(name=side.name(name), partition_indexes=partitions)
        side.ask(f"those of {name}", Listing(topics=[named]), 0)
    side.ask("those of nothing", Listing(topics=[]), 0)
    described = MetadataRequest(topics=[MetadataRequest.Topic(name=side.name("t"))])
    side.ask("what clients are told then", described, 12)


def describe_log_dirs(side: Side) -> None:
    side.create(t=2, empty=1)
    data = build([Record(0, 1_000, b"k", b"v" * 500)])
    part = ProduceRequest.PartitionProduceData(index=1, records=data)
    topic = ProduceRequest.TopicProduceData(name=side.name("t"), partition_data=[part])
    side.quietly(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic]), 12)

    def describing(**partitions: list[int]) -> DescribeLogDirsRequest:
        return DescribeLogDirsRequest(
            topics=[
                DescribeLogDirsRequest.DescribableLogDirTopic(topic=side.name(name), partitions=indexes)
                for name, indexes in partitions.items()
            ]
        )

    for version in range(1, 6):
        side.ask(f"v{version}", describing(t=[0, 1], empty=[0]), version)
    side.ask("some that are not there", describing(t=[1, 9], none=[0]), 5)
    side.ask("no partition", describing(t=[]), 5)
    side.ask("none", describing(), 5)
    everything = side.quietly(DescribeLogDirsRequest(topics=None), 5)
    (folder,) = everything.results
    assert {each.name for each in folder.topics} >= {side.name("t"), side.name("empty"), "__consumer_offsets"}


# --- told ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "story",
    [
        create_topics,
        create_partitions,
        delete_topics,
        describe_topic_partitions,
        elect_leaders,
        reassign_partitions,
        describe_log_dirs,
    ],
)
def test_apache_kafka_answers_as_muster_does(story: Story, kafka_of_configs: KafkaOfConfigs) -> None:
    # A lease that expires on a busy machine starts another leader epoch.
    settings = {"lease_term_ms": 600_000, "log_retention_ms": Settings().log_retention_ms}
    with Broker(auto_create_topics_enable=False, **settings) as broker:
        assert_told_alike(story, kafka_of_configs(KAFKA_CONFIGS), broker)
