"""Random sequences of InitProducerId, AddPartitionsToTxn and EndTxn of both generations: Apache Kafka's
coordinator, muster's core and a muster broker give the same answers, and describe the result the same.

The core is called without a broker around it. Its partitions take every marker before the next request;
likewise the next request to a broker waits until the transaction is complete.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import pytest

from muster.coordinator.testing import Broker
from muster.coordinator.transactions.adding import AddPartitions
from muster.coordinator.transactions.ending import End
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from muster.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from tests.kafka.conftest import KafkaOfConfigs, Lives
from tests.kafka.stories import KAFKA_CONFIGS
from tests.support.wire_blocking import WireConnection
from tests.support.wire_topics import await_logs, ensure_topics, until
from tests.transactions.core import Core

pytestmark = pytest.mark.kafka

_SEED: Final = 890
_SEQUENCES: Final = 60
_REQUESTS: Final = 25
_TOPIC: Final = "written"
_PARTITIONS: Final = 3
FIRST_GENERATION, SECOND_GENERATION = 4, 5
"""Versions of EndTxn."""
_NOT_YET: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
_PREPARED: Final = ("PrepareCommit", "PrepareAbort")

Producer = tuple[int, int]
"""Producer id and epoch."""


class Told(NamedTuple):
    """The answer to a request. Producer ids are numbered in order of appearance."""

    code: ErrorCode
    producer: Producer | None = None


class Described(NamedTuple):
    """The answer of DescribeTransactions."""

    code: ErrorCode
    state: str = ""
    timeout_ms: int = 0
    has_begun: bool = False
    producer: Producer | None = None
    partitions: frozenset[tuple[str, int]] = frozenset()


class _Numbers:
    """Maps one side's producer ids to numbers, and back."""

    def __init__(self) -> None:
        self._ids: list[int] = []

    def of(self, producer_id: int, epoch: int) -> Producer:
        if producer_id not in self._ids:
            self._ids.append(producer_id)
        return self._ids.index(producer_id), epoch

    def real(self, producer: Producer | None) -> Producer:
        """None: -1 and -1. An unused number: an id that nobody has."""
        if producer is None:
            return -1, -1
        number, epoch = producer
        return (self._ids[number] if number < len(self._ids) else 2**40), epoch


class OnBroker:
    """A transactional id on Apache Kafka or a muster broker, once its coordinator has loaded."""

    def __init__(self, connection: WireConnection, transactional_id: str) -> None:
        self._connection = connection
        self._id = transactional_id
        self._numbers = _Numbers()
        until(lambda: self._asked().error_code not in _NOT_YET, f"the coordinator of {transactional_id}")

    def _asked(self) -> DescribeTransactionsResponse.TransactionState:
        request = DescribeTransactionsRequest(transactional_ids=[self._id])
        (found,) = self._connection.call(request, 0, DescribeTransactionsResponse).transaction_states
        return found

    def start(self, had: Producer | None, timeout_ms: int) -> Told:
        producer_id, epoch = self._numbers.real(had)
        request = InitProducerIdRequest(
            transactional_id=self._id,
            transaction_timeout_ms=timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        answers: list[InitProducerIdResponse] = []

        def has_ids() -> bool:
            answers[:] = [self._connection.call(request, 5, InitProducerIdResponse)]
            return answers[0].error_code not in _NOT_YET

        until(has_ids, "a block of producer ids")
        (told,) = answers
        if told.error_code:
            return Told(ErrorCode(told.error_code))
        return Told(ErrorCode.NONE, self._numbers.of(told.producer_id, told.producer_epoch))

    def add(self, producer: Producer, partitions: frozenset[int]) -> Told:
        producer_id, epoch = self._numbers.real(producer)
        Topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[Topic(name=_TOPIC, partitions=sorted(partitions))],
        )
        told = self._connection.call(request, 3, AddPartitionsToTxnResponse)
        (code,) = {
            each.partition_error_code
            for topic in told.results_by_topic_v3_and_below
            for each in topic.results_by_partition
        }
        return Told(ErrorCode(code))

    def end(self, producer: Producer, *, commits: bool, version: int) -> Told:
        producer_id, epoch = self._numbers.real(producer)
        request = EndTxnRequest(
            transactional_id=self._id, producer_id=producer_id, producer_epoch=epoch, committed=commits
        )
        told = self._connection.call(request, version, EndTxnResponse)
        if told.error_code or version < SECOND_GENERATION:
            return Told(ErrorCode(told.error_code))
        return Told(ErrorCode.NONE, self._numbers.of(told.producer_id, told.producer_epoch))

    def described(self) -> Described:
        """Describe it, once no more markers are pending."""
        found: list[DescribeTransactionsResponse.TransactionState] = []

        def is_settled() -> bool:
            found[:] = [self._asked()]
            return found[0].transaction_state not in _PREPARED

        until(is_settled, f"the markers of {self._id}")
        return _described(found[0], self._numbers)


class OfCore:
    """A transactional id in muster's core."""

    def __init__(self, transactional_id: str) -> None:
        self._core = Core()
        self._id = transactional_id
        self._numbers = _Numbers()

    def start(self, had: Producer | None, timeout_ms: int) -> Told:
        try:
            got = self._core.start(self._numbers.real(had), transactional_id=self._id, timeout_ms=timeout_ms)
        except KafkaError as refused:
            return Told(refused.code)
        return Told(ErrorCode.NONE, self._numbers.of(*got))

    def add(self, producer: Producer, partitions: frozenset[int]) -> Told:
        request = AddPartitions(
            self._id, *self._numbers.real(producer), frozenset((_TOPIC, each) for each in partitions)
        )
        try:
            self._core.ask(self._core.shard.add_partitions, request)
        except KafkaError as refused:
            return Told(refused.code)
        return Told(ErrorCode.NONE)

    def end(self, producer: Producer, *, commits: bool, version: int) -> Told:
        raises_epoch = version >= SECOND_GENERATION
        request = End(self._id, *self._numbers.real(producer), commits, raises_epoch)
        try:
            ended = self._core.ask(self._core.shard.end, request)
        except KafkaError as refused:
            return Told(refused.code)
        return Told(ErrorCode.NONE, self._numbers.of(*ended) if raises_epoch else None)

    def described(self) -> Described:
        self._core.mark_all()
        try:
            told = self._core.ask(self._core.shard.describe, self._id)
        except KafkaError as refused:
            return Described(refused.code)
        return _described(told, self._numbers)


def _described(told: DescribeTransactionsResponse.TransactionState, numbers: _Numbers) -> Described:
    if told.error_code:
        return Described(ErrorCode(told.error_code))
    return Described(
        ErrorCode.NONE,
        told.transaction_state,
        told.transaction_timeout_ms,
        told.transaction_start_time_ms != -1,
        numbers.of(told.producer_id, told.producer_epoch),
        frozenset((each.topic, number) for each in told.topics for number in each.partitions),
    )


class Life:
    """A transactional id that gets the same requests on all sides."""

    generations: Sequence[int] = (FIRST_GENERATION, SECOND_GENERATION)
    """The versions of EndTxn that it uses."""

    def __init__(self, choose: random.Random, *sides: OnBroker | OfCore) -> None:
        self._sides = sides
        self._choose = choose
        self._producers: list[Producer] = []
        """All producers ever returned, the newest last."""
        self._ended: Producer | None = None
        """The last producer to end a transaction by first-generation rules, which raise no epoch."""
        self.log: list[str] = []

    def play(self) -> ErrorCode:
        """Make one request on all sides and compare the results."""
        choose = self._choose
        what = choose.choices(("start", "add", "end"), (3, 5, 5))[0] if self._producers else "start"
        told: list[Told]
        if what == "start":
            had = None if choose.random() < 0.5 else self._some_producer()
            timeout_ms = choose.choice([60_000, 60_000, 90_000, 0, 900_001])
            self.log.append(f"start had={had} timeout={timeout_ms}")
            told = [side.start(had, timeout_ms) for side in self._sides]
        elif what == "add":
            producer = self._some_producer()
            partitions = frozenset(choose.sample(range(_PARTITIONS), choose.randint(1, _PARTITIONS)))
            self.log.append(f"add {producer} {sorted(partitions)}")
            told = [side.add(producer, partitions) for side in self._sides]
        else:
            producer, commits = self._some_producer(), choose.random() < 0.5
            version = choose.choice(self.generations)
            if (producer[0], producer[1] + 1) == self._ended:
                # By the rules of the second, Kafka takes it for a repeat, and gives it the other's epoch.
                version = FIRST_GENERATION
            self.log.append(f"end {producer} commits={commits} v{version}")
            told = [side.end(producer, commits=commits, version=version) for side in self._sides]
            if version == FIRST_GENERATION and told[0].code is ErrorCode.NONE:
                self._ended = producer
        self.log.append(f"  {told}")
        assert len(set(told)) == 1, "\n".join(self.log)
        described = [side.described() for side in self._sides]
        self.log.append(f"  {described}")
        assert len(set(described)) == 1, "\n".join(self.log)
        for producer in (told[0].producer, described[0].producer):
            if producer is not None and producer not in self._producers:
                self._producers.append(producer)
        return told[0].code

    def _some_producer(self) -> Producer:
        """Usually the newest; else an earlier one, or one that never existed."""
        choose = self._choose
        known = self._producers or [(0, 0)]
        if choose.random() < 0.65:
            return known[-1]
        number, epoch = choose.choice(known[-4:])
        if choose.random() < 0.3:
            return choose.choice([(number, epoch + 1), (number + 1, epoch), (number, max(epoch - 1, 0))])
        return number, epoch


@contextmanager
def connected(host: str, port: int, topic: str, partitions: int) -> Iterator[WireConnection]:
    """A connection to a broker that has the topic and a transaction coordinator."""
    with WireConnection(host, port, "player") as connection:
        ensure_topics(connection, {topic: partitions})
        await_logs(connection, {topic: partitions})

        def has_coordinator() -> bool:
            request = FindCoordinatorRequest(key_type=1, coordinator_keys=["first"])
            (found,) = connection.call(request, 4, FindCoordinatorResponse).coordinators
            return found.error_code == 0

        until(has_coordinator, "a coordinator of transactions")
        yield connection


def test_random_lives_of_transactional_ids(kafka_of_configs: KafkaOfConfigs, lives: Lives) -> None:
    running = kafka_of_configs(KAFKA_CONFIGS)
    codes: set[ErrorCode] = set()
    with (
        connected(running.host, running.port, _TOPIC, _PARTITIONS) as kafka,
        Broker(auto_create_topics_enable=False) as muster,
        connected("127.0.0.1", muster.port, _TOPIC, _PARTITIONS) as broker,
    ):
        for each in lives(_SEED, _SEQUENCES):
            name = f"player-{each}"
            life = Life(random.Random(each), OnBroker(kafka, name), OfCore(name), OnBroker(broker, name))
            for _ in range(_REQUESTS):
                codes.add(life.play())
    assert codes == {
        ErrorCode.NONE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
    }
