"""Markers on their way to partition leaders: to whom, how often and until when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pytest

from muster.coordinator.base.clock import ManualClock
from muster.coordinator.base.log import Logger
from muster.coordinator.peers.marker_holds import MarkerHold, MarkerHolds
from muster.coordinator.peers.markers import Markers, Whereabouts
from muster.coordinator.storage.store import LETTER_BYTES_MAX, Lease, LeaseKind, StoreError
from muster.coordinator.transactions.events import MarkersDue
from muster.protocol.api import ApiKey
from muster.protocol.codec import encode
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.message import Message
from muster.protocol.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from tests.peers.support import EVERYONE
from tests.support.facts import turns, until

SHARD = 7
VERSION = 2
EPOCH = 3
A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)


def due(
    *partitions: tuple[str, int], id: str = "etl", producer_id: int = 40, commits: bool = True
) -> MarkersDue:
    return MarkersDue(id, producer_id, 5, commits, frozenset(partitions), 2)


class Cluster:
    """Nodes that answer as the test says and record what they were asked."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.leaders: dict[tuple[str, int], int] = {A0: 1, A1: 2, B0: 1}
        self.leaderless: set[tuple[str, int]] = set()
        self.unheard: dict[tuple[str, int], int] = {}
        """Leaders that become known once the topics are read."""
        self.codes: dict[tuple[str, int], list[ErrorCode]] = {}
        """Error codes with which each partition answers in turn; NONE after that."""
        self.refusals: list[Exception] = []
        self.asked: list[tuple[int, WriteTxnMarkersRequest]] = []
        self.under: list[tuple[Lease, int] | None] = []
        self.lost = 0
        """Number of questions still to go unanswered."""
        self.answering = asyncio.Event()
        self.answering.set()
        self.store_failures: list[Exception] = []
        self.serving = True
        self.marked: list[tuple[int, int, str, list[tuple[str, int]]]] = []
        self.holds = MarkerHolds()
        self.markers = Markers(
            self.ask,
            self.clock,
            serving=lambda lease: self.serving,
            leader=self.leader,
            read_topics=self.read_topics,
            marked=self.note,
            holds=self.holds,
        )

    def leader(self, topic: str, partition: int) -> int | Whereabouts:
        if (topic, partition) in self.leaderless:
            return Whereabouts.NO_LEADER
        return self.leaders.get((topic, partition), Whereabouts.UNKNOWN)

    async def read_topics(self) -> None:
        if self.store_failures:
            raise self.store_failures.pop()
        self.leaders.update(self.unheard)

    def note(self, shard: int, epoch: int, due: MarkersDue, partitions: Iterable[tuple[str, int]]) -> None:
        self.marked.append((shard, epoch, due.transactional_id, sorted(partitions)))

    async def ask(
        self,
        node_id: int,
        api_key: ApiKey,
        request: Message,
        *,
        timeout_ms: int,
        under: tuple[Lease, int] | None = None,
    ) -> Any:
        assert api_key is ApiKey.WRITE_TXN_MARKERS
        assert isinstance(request, WriteTxnMarkersRequest)
        self.asked.append((node_id, request))
        self.under.append(under)
        if len(encode(request, VERSION)) > LETTER_BYTES_MAX:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE)
        await self.answering.wait()
        if self.lost:
            self.lost -= 1
            over = asyncio.Event()
            self.clock.at(self.clock.now_ms() + timeout_ms, over.set)
            await over.wait()
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"no answer within {timeout_ms} ms")
        if self.refusals:
            raise self.refusals.pop(0)
        Result = WriteTxnMarkersResponse.WritableTxnMarkerResult
        Topic = WriteTxnMarkersResponse.WritableTxnMarkerTopicResult
        Partition = WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult
        return WriteTxnMarkersResponse(
            markers=[
                Result(
                    producer_id=marker.producer_id,
                    topics=[
                        Topic(
                            name=topic.name,
                            partitions=[
                                Partition(partition_index=index, error_code=self.code((topic.name, index)))
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in request.markers
            ]
        )

    def code(self, partition: tuple[str, int]) -> int:
        codes = self.codes.get(partition)
        return codes.pop(0) if codes else ErrorCode.NONE

    def sent(self) -> list[tuple[int, list[tuple[int, list[str]]]]]:
        """What was asked: the node, and each marker's producer and partitions."""
        return [
            (
                node_id,
                [
                    (
                        marker.producer_id,
                        [
                            f"{topic.name}-{index}"
                            for topic in marker.topics
                            for index in topic.partition_indexes
                        ],
                    )
                    for marker in request.markers
                ],
            )
            for node_id, request in self.asked
        ]

    def passing(self, fact: Callable[[], object]) -> Callable[[], object]:
        """`fact`, advancing the clock on every call."""

        def now() -> object:
            self.clock.advance(20)
            return fact()

        return now

    def done(self) -> list[tuple[str, int]]:
        return sorted(each for *_, partitions in self.marked for each in partitions)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.markers.close()


async def test_each_leader_is_asked_once_for_all_its_partitions(cluster: Cluster) -> None:
    cluster.markers.observe(SHARD, EPOCH, [due(A0, A1, B0)])
    await until(lambda: cluster.done() == [A0, A1, B0])
    assert sorted(cluster.sent()) == [(1, [(40, ["a-0", "b-0"])]), (2, [(40, ["a-1"])])]
    assert {each[:3] for each in cluster.marked} == {(SHARD, EPOCH, "etl")}
    assert list(cluster.markers.under_way(EVERYONE)) == []


async def test_the_marker_says_what_the_decision_was(cluster: Cluster) -> None:
    cluster.markers.observe(SHARD, EPOCH, [due(A0, commits=False)])
    await until(lambda: cluster.done() == [A0])
    (marker,) = cluster.asked[0][1].markers
    assert (marker.producer_id, marker.producer_epoch) == (40, 5)
    assert not marker.transaction_result
    assert (marker.coordinator_epoch, marker.transaction_version) == (EPOCH, 2)
    assert cluster.under == [(Lease(LeaseKind.TRANSACTION, SHARD), EPOCH)]


async def test_what_comes_while_a_request_is_under_way_goes_into_the_next(cluster: Cluster) -> None:
    cluster.answering.clear()
    cluster.markers.observe(SHARD, EPOCH, [due(A0)])
    await until(lambda: len(cluster.asked) == 1)
    cluster.markers.observe(SHARD, EPOCH, [due(A0, id="x", producer_id=41)])
    cluster.markers.observe(SHARD, EPOCH, [due(B0, id="y", producer_id=42)])
    cluster.answering.set()
    await until(lambda: len(cluster.marked) == 3)
    assert cluster.sent() == [(1, [(40, ["a-0"])]), (1, [(41, ["a-0"]), (42, ["b-0"])])]


async def test_two_of_one_producer_are_not_in_one_request_whose_answer_would_be_one(cluster: Cluster) -> None:
    cluster.markers.observe(SHARD, EPOCH, [due(A0), due(B0, id="x")])
    await until(lambda: len(cluster.marked) == 2)
    assert cluster.sent() == [(1, [(40, ["a-0"])]), (1, [(40, ["b-0"])])]


_TOPICS = [f"{number:0200}" for number in range(5_000)]
_MANY = [
    [due(*((topic, 0) for topic in _TOPICS))],
    [due((topic, 0), id=topic, producer_id=number) for number, topic in enumerate(_TOPICS)],
]


@pytest.mark.parametrize("dues", _MANY, ids=["one transaction", "many transactions"])
async def test_what_does_not_fit_a_letter_goes_into_several(cluster: Cluster, dues: list[MarkersDue]) -> None:
    cluster.leaders = {(topic, 0): 1 for topic in _TOPICS}
    cluster.markers.observe(SHARD, EPOCH, dues)
    await until(lambda: cluster.done() == sorted(cluster.leaders))
    assert len(cluster.asked) == 3
    assert list(cluster.markers.under_way(EVERYONE)) == []


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
    ids=lambda code: code.name,
)
async def test_a_partition_that_does_not_take_its_marker_gets_it_again_from_its_leader_then(
    cluster: Cluster, code: ErrorCode
) -> None:
    cluster.codes[A0] = [code]
    cluster.markers.observe(SHARD, EPOCH, [due(A0, B0)])
    await until(lambda: cluster.done() == [B0])
    cluster.leaders[A0] = 2
    cluster.clock.advance(20)
    await until(lambda: cluster.done() == [A0, B0])
    assert cluster.sent() == [(1, [(40, ["a-0", "b-0"])]), (2, [(40, ["a-0"])])]


@pytest.mark.parametrize(
    "refusal", [KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no answer"), ValueError("a bug")], ids=str
)
async def test_a_node_that_cannot_be_asked_is_asked_again(cluster: Cluster, refusal: Exception) -> None:
    cluster.refusals = [refusal]
    cluster.markers.observe(SHARD, EPOCH, [due(A0)])
    await until(cluster.passing(lambda: cluster.done() == [A0]))
    assert len(cluster.asked) == 2


async def test_a_question_that_was_lost_is_asked_again_within_seconds(cluster: Cluster) -> None:
    cluster.lost = 1
    cluster.markers.observe(SHARD, EPOCH, [due(A0)])
    await until(lambda: len(cluster.asked) == 1)
    began_ms = cluster.clock.now_ms()
    await until(cluster.passing(lambda: cluster.done() == [A0]))
    assert len(cluster.asked) == 2
    assert cluster.clock.now_ms() - began_ms < 10_000


async def test_nobody_is_asked_for_a_partition_without_a_leader_until_it_has_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    warned: list[dict[str, object]] = []
    monkeypatch.setattr(Logger, "warning", lambda self, event, **fields: warned.append(fields))
    cluster.leaderless.add(A0)
    cluster.markers.observe(SHARD, EPOCH, [due(A0)])
    cluster.clock.advance(15_000)
    assert cluster.asked == []
    assert warned == [{"transactional_id": "etl", "partitions": ["a-0"]}]
    assert list(cluster.markers.under_way(EVERYONE)) == [
        "the markers of 1 transactions are still being written"
    ]
    cluster.leaderless.clear()
    cluster.clock.advance(1_000)
    await until(lambda: cluster.done() == [A0])


async def test_markers_to_nodes_that_do_not_live_are_not_under_way(cluster: Cluster) -> None:
    cluster.answering.clear()
    cluster.markers.observe(SHARD, EPOCH, [due(A0, A1)])
    writing = ["the markers of 1 transactions are still being written"]
    await until(lambda: len(cluster.asked) == 2)
    assert list(cluster.markers.under_way({2})) == writing
    assert list(cluster.markers.under_way({3})) == []
    cluster.leaders |= {A0: 3, A1: 3}  # it has taken over from both
    assert list(cluster.markers.under_way({3})) == writing
    cluster.answering.set()
    await until(lambda: cluster.done() == [A0, A1])


async def test_a_partition_that_is_gone_needs_no_marker(cluster: Cluster) -> None:
    cluster.markers.observe(SHARD, EPOCH, [due(A0, ("gone", 0))])
    await until(lambda: cluster.done() == [A0, ("gone", 0)])
    assert cluster.sent() == [(1, [(40, ["a-0"])])]


@pytest.mark.parametrize("failure", [StoreError("away"), ValueError("unreadable")], ids=["store", "other"])
async def test_a_partition_that_was_not_heard_of_yet_is_not_gone(
    cluster: Cluster, failure: Exception
) -> None:
    cluster.unheard["new", 0] = 2
    cluster.store_failures = [failure]
    cluster.markers.observe(SHARD, EPOCH, [due(("new", 0))])
    await until(cluster.passing(lambda: cluster.marked))
    assert cluster.sent() == [(2, [(40, ["new-0"])])]


async def test_a_leader_that_does_not_know_the_partition_is_believed_when_the_store_says_so_too(
    cluster: Cluster,
) -> None:
    cluster.codes[A0] = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    cluster.markers.observe(SHARD, EPOCH, [due(A0)])
    await until(cluster.passing(lambda: cluster.done() == [A0]))
    assert len(cluster.asked) == 2  # the topic exists, but its leader did not know it yet


@pytest.mark.parametrize(
    "code",
    [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED],
    ids=lambda each: each.name,
)
async def test_a_marker_that_was_overtaken_ends_the_others_of_its_transaction(
    cluster: Cluster, code: ErrorCode
) -> None:
    cluster.codes[A0] = [code]
    cluster.leaderless.add(A1)
    cluster.markers.observe(SHARD, EPOCH, [due(A0, A1)])
    await until(lambda: not list(cluster.markers.under_way(EVERYONE)))
    cluster.leaderless.clear()
    cluster.clock.advance(10_000)
    await asyncio.sleep(0)
    assert cluster.marked == []
    assert len(cluster.asked) == 1


async def test_a_shard_that_went_is_marked_for_no_more(cluster: Cluster) -> None:
    cluster.answering.clear()
    cluster.markers.observe(SHARD, EPOCH, [due(A0)])
    cluster.markers.observe(SHARD + 1, EPOCH, [due(A0, id="x", producer_id=41)])
    await until(lambda: len(cluster.asked) == 2)
    cluster.markers.forget(SHARD)
    cluster.answering.set()
    await until(lambda: len(cluster.marked) == 1)
    assert [each[2] for each in cluster.marked] == ["x"]
    assert list(cluster.markers.under_way(EVERYONE)) == []


async def test_who_waits_for_the_end_of_a_transaction_hears_of_its_last_marker(cluster: Cluster) -> None:
    cluster.codes[A1] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert not cluster.markers.owes("etl")
    cluster.markers.observe(SHARD, EPOCH, [due(A0, A1), due(B0, id="x", producer_id=41)])
    waiting = [asyncio.ensure_future(cluster.markers.pause("etl", 600)) for _ in range(2)]
    other = asyncio.ensure_future(cluster.markers.pause("y", 600))
    await until(lambda: len(cluster.marked) == 2)
    assert not any(each.done() for each in waiting)
    assert [cluster.markers.owes(each) for each in ("etl", "x", "y")] == [True, False, False]
    await until(cluster.passing(lambda: all(each.done() for each in waiting)))
    assert not cluster.markers.owes("etl")
    assert cluster.done() == [A0, A1, B0]
    assert not other.done()
    other.cancel()
    with pytest.raises(asyncio.CancelledError):
        await other
    assert cluster.markers._waiting == {}


async def test_who_waits_for_the_end_of_a_transaction_waits_for_no_longer_than_it_says(
    cluster: Cluster,
) -> None:
    cluster.answering.clear()
    cluster.markers.observe(SHARD, EPOCH, [due(A0)])
    await cluster.markers.pause("etl", 0.01)
    assert cluster.marked == []
    assert cluster.markers._waiting == {}


async def test_the_same_transaction_told_again_in_another_epoch_is_sent_anew(cluster: Cluster) -> None:
    cluster.answering.clear()
    cluster.markers.observe(SHARD, EPOCH, [due(A0)])
    await until(lambda: len(cluster.asked) == 1)
    cluster.markers.forget(SHARD)
    cluster.markers.observe(SHARD, EPOCH + 1, [due(A0)])
    cluster.answering.set()
    await until(lambda: len(cluster.marked) == 1)
    assert [each[1] for each in cluster.marked] == [EPOCH + 1]
    assert [marker.coordinator_epoch for _, request in cluster.asked for marker in request.markers] == [3, 4]


async def test_a_broker_whose_lease_may_be_over_sends_once_it_is_renewed(cluster: Cluster) -> None:
    cluster.serving = False
    cluster.markers.observe(SHARD, EPOCH, [due(A0)])
    for _ in range(3):
        await until(lambda: cluster.markers._timer is not None)
        assert cluster.asked == []
        cluster.clock.advance(1_000)
    await until(lambda: cluster.markers._timer is not None)
    cluster.serving = True
    cluster.clock.advance(1_000)
    await until(lambda: cluster.done() == [A0])


async def test_a_broker_that_has_lost_the_lease_sends_nothing(cluster: Cluster) -> None:
    cluster.serving = False
    cluster.markers.observe(SHARD, EPOCH, [due(A0)])
    await until(lambda: cluster.markers._timer is not None)
    cluster.markers.forget(SHARD)
    cluster.serving = True
    cluster.clock.advance(1_000)
    await turns()
    assert list(cluster.markers.under_way(EVERYONE)) == []
    assert cluster.asked == []


# --- markers that are held ----------------------------------------------------------------------------------


async def test_held_markers_wait_and_are_not_under_way(cluster: Cluster) -> None:
    number = cluster.holds.hold(MarkerHold("etl", "a"))
    cluster.markers.observe(SHARD, EPOCH, [due(A0, B0), due(A1, id="x", producer_id=41)])
    await until(lambda: cluster.done() == [A1, B0])
    assert list(cluster.markers.under_way(EVERYONE)) == []
    assert cluster.holds.release(number)
    assert not cluster.holds.release(number)
    await until(lambda: cluster.done() == [A0, A1, B0])


async def test_markers_stay_held_by_another_hold(cluster: Cluster) -> None:
    of_id, of_topic = (cluster.holds.hold(MarkerHold("etl", topic)) for topic in (None, "a"))
    cluster.markers.observe(SHARD, EPOCH, [due(A0, B0)])
    cluster.holds.release(of_id)
    await until(lambda: cluster.done() == [B0])
    assert cluster.holds.holds() == [MarkerHold("etl", "a")]
    assert cluster.holds.release_all("etl")
    assert not cluster.holds.release_all("etl")
    assert not cluster.holds.release(of_topic)
    await until(lambda: cluster.done() == [A0, B0])


async def test_held_markers_go_with_their_shard_and_their_broker(cluster: Cluster) -> None:
    cluster.holds.hold(MarkerHold("etl"))
    cluster.markers.observe(SHARD, EPOCH, [due(A0)])
    cluster.markers.forget(SHARD)
    cluster.markers.observe(SHARD, EPOCH + 1, [due(A0)])
    cluster.holds.release_all()
    await until(lambda: cluster.done() == [A0])
    assert [epoch for _, epoch, *_ in cluster.marked] == [EPOCH + 1]
    cluster.holds.hold(MarkerHold("etl"))
    cluster.markers.observe(SHARD, EPOCH + 2, [due(A0)])
    cluster.markers.close()
    cluster.holds.release_all()
    assert len(cluster.asked) == 1
