"""Transaction coordinators get few questions about many transactions, and each caller gets its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from muster.coordinator.base.clock import ManualClock
from muster.coordinator.peers import coordinators as module
from muster.coordinator.peers.coordinators import TransactionCoordinators
from muster.coordinator.peers.markers import Markers
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from tests.support.facts import until

HERE, THERE = 1, 2
A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)
NONE = ErrorCode.NONE


class Nodes:
    """A broker, and the questions it asks itself and another broker."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, list[str]]] = []
        self.requests: list[AddPartitionsToTxnRequest] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.refusals: list[Exception] = []
        self.codes: dict[str, ErrorCode] = {}
        """Error codes of an id's partitions, where not NONE."""
        self.codes_of: dict[tuple[str, int], ErrorCode] = {}
        """Those of single partitions."""
        self.error_code = NONE
        self.markers = Markers(
            self.ask,
            ManualClock(),
            serving=lambda lease: True,
            leader=lambda topic, partition: HERE,
            read_topics=asyncio.Event().wait,
            marked=lambda *told: None,
        )
        self.coordinators = TransactionCoordinators(
            self.ask,
            lambda transactional_id: (
                None if transactional_id == "nobody's" else self.node_id(transactional_id)
            ),
            self.markers,
            node_id=HERE,
        )

    def node_id(self, transactional_id: str) -> int:
        return HERE if transactional_id.startswith("here") else THERE

    async def ask(self, node_id: int, api_key: ApiKey, request: Any, **how: Any) -> Any:
        assert api_key is ApiKey.ADD_PARTITIONS_TO_TXN
        self.asked.append((node_id, [each.transactional_id for each in request.transactions]))
        self.requests.append(request)
        await self.may_answer.wait()
        if self.refusals:
            raise self.refusals.pop(0)
        Result = AddPartitionsToTxnResponse.AddPartitionsToTxnResult
        Topic = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
        Partition = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult
        return AddPartitionsToTxnResponse(
            error_code=self.error_code,
            results_by_transaction=[
                Result(
                    transactional_id=asked.transactional_id,
                    topic_results=[
                        Topic(
                            name=topic.name,
                            results_by_partition=[
                                Partition(
                                    partition_index=index,
                                    partition_error_code=self.codes_of.get(
                                        (topic.name, index), self.codes.get(asked.transactional_id, NONE)
                                    ),
                                )
                                for index in topic.partitions
                            ],
                        )
                        for topic in asked.topics
                    ],
                )
                for asked in request.transactions
            ],
        )

    def join(
        self, transactional_id: str, *partitions: tuple[str, int], adds: bool = True
    ) -> asyncio.Future[Any]:
        return asyncio.ensure_future(
            self.coordinators.join(transactional_id, 40, 6, frozenset(partitions or [A0]), adds=adds)
        )


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    nodes = Nodes()
    yield nodes
    nodes.coordinators.close()
    nodes.markers.close()


async def code(joining: asyncio.Future[Any]) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        await joining
    return refused.value.code


async def test_what_comes_while_a_broker_is_asked_goes_into_the_next_question(nodes: Nodes) -> None:
    nodes.may_answer.clear()
    first = nodes.join("x")
    await until(lambda: nodes.asked, "the first question")
    more = [nodes.join("y", A1, B0), nodes.join("z", adds=False)]
    await asyncio.sleep(0)
    nodes.may_answer.set()
    assert await first == {A0: NONE}
    assert [await each for each in more] == [{A1: NONE, B0: NONE}, {A0: NONE}]
    assert nodes.asked == [(THERE, ["x"]), (THERE, ["y", "z"])]
    asked = nodes.requests[1].transactions
    assert [(each.producer_id, each.producer_epoch, each.verify_only) for each in asked] == [
        (40, 6, False),
        (40, 6, True),
    ]
    assert [(topic.name, topic.partitions) for topic in asked[0].topics] == [("a", [1]), ("b", [0])]


async def test_a_question_has_one_transaction_of_each_id(nodes: Nodes) -> None:
    nodes.may_answer.clear()
    joining = [nodes.join("w"), nodes.join("x"), nodes.join("x", A1), nodes.join("y"), nodes.join("x", B0)]
    await until(lambda: nodes.asked, "the first question")
    nodes.may_answer.set()
    assert [await each for each in joining] == [{A0: NONE}, {A0: NONE}, {A1: NONE}, {A0: NONE}, {B0: NONE}]
    assert nodes.asked == [(THERE, ["w", "x", "y"]), (THERE, ["x"]), (THERE, ["x"])]


async def test_a_question_has_a_size(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BATCH_MAX", 2)
    joining = [nodes.join(each) for each in "vwxyz"]
    await asyncio.gather(*joining)
    assert [ids for _, ids in nodes.asked] == [["v", "w"], ["x", "y"], ["z"]]
    nodes.asked.clear()
    monkeypatch.setattr(module, "_BATCH_MAX", 100)
    monkeypatch.setattr(module, "_BATCH_BYTES_MAX", 200)
    many = [("a", number) for number in range(100)]
    await asyncio.gather(nodes.join("v", *many), nodes.join("w"), nodes.join("x"), nodes.join("y", *many))
    assert [ids for _, ids in nodes.asked] == [["v"], ["w", "x"], ["y"]]


async def test_this_broker_asks_itself_without_a_queue(nodes: Nodes) -> None:
    nodes.may_answer.clear()
    joining = [nodes.join("here-1"), nodes.join("here-2"), nodes.join("here-1", A1)]
    await until(lambda: len(nodes.asked) == 3, "the questions")
    nodes.may_answer.set()
    assert [await each for each in joining] == [{A0: NONE}, {A0: NONE}, {A1: NONE}]
    assert nodes.asked == [(HERE, ["here-1"]), (HERE, ["here-2"]), (HERE, ["here-1"])]


async def test_each_is_told_what_is_its_own(nodes: Nodes) -> None:
    nodes.codes = {"x": ErrorCode.PRODUCER_FENCED, "y": ErrorCode.TRANSACTION_ABORTABLE}
    x, y, z = nodes.join("x"), nodes.join("y"), nodes.join("z")
    assert await code(x) is ErrorCode.PRODUCER_FENCED
    assert (await y, await z) == ({A0: ErrorCode.TRANSACTION_ABORTABLE}, {A0: NONE})
    nodes.error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert await code(nodes.join("z")) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert await code(nodes.join("nobody's")) is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_the_code_that_counts_is_that_of_the_bad_partition(nodes: Nodes) -> None:
    nodes.codes_of = {A0: ErrorCode.OPERATION_NOT_ATTEMPTED, B0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert await code(nodes.join("x", A0, B0)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await code(nodes.join("x", A0)) is ErrorCode.OPERATION_NOT_ATTEMPTED


async def test_a_question_without_an_answer_is_refused_to_all_and_the_next_is_asked(nodes: Nodes) -> None:
    nodes.refusals = [KafkaError(ErrorCode.REQUEST_TIMED_OUT), RuntimeError("a bug")]
    assert [await code(each) for each in (nodes.join("x"), nodes.join("y"))] == [
        ErrorCode.REQUEST_TIMED_OUT
    ] * 2
    assert await code(nodes.join("x")) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert await nodes.join("x") == {A0: NONE}


async def test_nobody_waits_longer_because_others_wait_for_the_same_broker(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ASK_TIMEOUT_MS", 20)
    nodes.may_answer.clear()
    for joining in [nodes.join("x"), nodes.join("x", A1), nodes.join("y")]:
        assert await code(joining) is ErrorCode.REQUEST_TIMED_OUT
    last = nodes.join("x", B0)
    await asyncio.sleep(0)
    nodes.may_answer.set()
    assert await last == {B0: NONE}
    assert nodes.asked == [(THERE, ["x", "y"]), (THERE, ["x"])], "who was refused is asked about no more"


async def test_who_waits_when_the_broker_stops_is_refused(nodes: Nodes) -> None:
    nodes.may_answer.clear()
    first = nodes.join("x")
    await until(lambda: nodes.asked, "the first question")
    gone, second = nodes.join("y"), nodes.join("z")
    await asyncio.sleep(0)
    gone.cancel()
    nodes.coordinators.close()
    for each in (first, second):
        assert await code(each) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert await code(nodes.join("x")) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert [ids for _, ids in nodes.asked] == [["x"]]
