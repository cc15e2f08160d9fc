"""The image of a cluster: what remains of two answers."""

from __future__ import annotations

import uuid

from muster.client.network.metadata import NO_NODE, MetadataImage, Node
from muster.client.partitions import TopicPartition
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.metadata import MetadataResponse
from muster.protocol.types import ZERO_UUID
from tests.support.each import each

FIRST, SECOND = uuid.UUID(int=1), uuid.UUID(int=2)
WHERE = TopicPartition("t", 0)


def told(
    leader: int = 1,
    leader_epoch: int = 5,
    *,
    topic_id: uuid.UUID = FIRST,
    partitions: int = 1,
    error: ErrorCode = ErrorCode.NONE,
    name: str = "t",
    brokers: tuple[int, ...] = (1, 2),
) -> MetadataResponse:
    each = [
        MetadataResponse.Topic.Partition(
            partition_index=index,
            leader_id=leader,
            leader_epoch=leader_epoch,
            replica_nodes=[1, 2],
            isr_nodes=[1],
            offline_replicas=[2],
        )
        for index in reversed(range(partitions))
    ]
    topic = MetadataResponse.Topic(
        error_code=error, name=name, topic_id=topic_id, partitions=[] if error else each
    )
    nodes = [MetadataResponse.Broker(node_id=node, host="h", port=node, rack="r") for node in brokers]
    return MetadataResponse(brokers=nodes, cluster_id="c", controller_id=2, topics=[topic])


def image(*answers: MetadataResponse) -> MetadataImage:
    so_far = MetadataImage()
    for answer in answers:
        so_far = so_far.updated(answer)
    return so_far


def leadership(of: MetadataImage) -> tuple[int, int]:
    partition = of.partition(WHERE)
    assert partition is not None
    return partition.leader, partition.leader_epoch


def test_what_is_told() -> None:
    known = image(told(partitions=3))
    topic = known.topic("t")
    assert topic is not None
    assert list(topic.partitions) == [0, 1, 2]
    assert topic.partitions[0] == (1, 5, (1, 2), (1,), (2,))
    assert known.nodes == {1: Node(1, "h", 1, "r"), 2: Node(2, "h", 2, "r")}
    assert (known.cluster_id, known.controller) == ("c", 2)
    assert known.name_of(FIRST) == "t"
    assert known.name_of(SECOND) is None
    assert known.partition(TopicPartition("t", 3)) is None
    assert known.partition(TopicPartition("u", 0)) is None


@each(
    "second, stays",
    [
        (told(2, 6), (2, 6)),
        (told(2, 5), (2, 5)),
        (told(2, 4), (1, 5)),
        (told(2, -1), (2, -1)),  # a broker that reports no epochs
        (told(2, 4, topic_id=SECOND), (2, 4)),  # deleted and created again
        (told(2, 4, topic_id=ZERO_UUID), (1, 5)),  # a broker that reports no ids
        (told(NO_NODE, 6), (NO_NODE, 6)),
    ],
)
def test_an_epoch_does_not_go_back_unless_the_topic_is_another(
    second: MetadataResponse, stays: tuple[int, int]
) -> None:
    assert leadership(image(told(1, 5), second)) == stays


def test_an_id_is_kept_when_a_broker_tells_none_and_follows_its_topic() -> None:
    assert image(told(), told(topic_id=ZERO_UUID)).name_of(FIRST) == "t"
    again = image(told(), told(topic_id=SECOND))
    assert (again.name_of(FIRST), again.name_of(SECOND)) == (None, "t")


def test_what_an_answer_does_not_speak_of_stays_unless_all_were_asked_for() -> None:
    known = image(told(), told(name="u", topic_id=SECOND))
    assert set(known.topics) == {"t", "u"}
    only = known.updated(told(name="u", topic_id=SECOND), of_all_topics=True)
    assert set(only.topics) == {"u"}
    assert only.name_of(FIRST) is None


@each(
    "error, there",
    [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, False), (ErrorCode.LEADER_NOT_AVAILABLE, True)],
)
@each("of_all", [False, True])
def test_a_topic_that_is_gone_goes_and_one_in_trouble_stays(
    error: ErrorCode, there: bool, of_all: bool
) -> None:
    known = image(told()).updated(told(error=error), of_all_topics=of_all)
    assert (known.topic("t") is not None) is there
    assert image(told(error=error)).topic("t") is None


def test_a_broker_that_knows_of_no_nodes_takes_none_away() -> None:
    assert set(image(told(), told(brokers=())).nodes) == {1, 2}
    assert set(image(told(), told(brokers=(2,))).nodes) == {2}


def test_hints_are_taken_when_they_are_newer_and_speak_of_known_nodes() -> None:
    known = image(told())
    assert leadership(known.with_leader(WHERE, 2, 6)) == (2, 6)
    assert known.with_leader(WHERE, 2, 5) is known
    assert known.with_leader(WHERE, 3, 6) is known
    assert known.with_leader(TopicPartition("u", 0), 2, 6) is known
    three = known.with_node(Node(3, "h", 3))
    assert leadership(three.with_leader(WHERE, 3, 6)) == (3, 6)
    assert three.with_node(Node(3, "h", 3)) is three
    assert leadership(known) == (1, 5), "an image is a value"


def test_nodes_can_be_forgotten() -> None:
    known = image(told())
    assert set(known.without_nodes([1]).nodes) == {2}
    assert not known.without_nodes().nodes
    assert known.without_nodes().topics == known.topics
