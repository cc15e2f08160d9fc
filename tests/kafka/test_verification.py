"""Random sequences of what transactional producers send, including Produce: the partition leaders of Apache
Kafka and muster accept and refuse the same batches, whatever the coordinator says about their transactions.

All markers of a transaction are in the logs before the next request.

No producer does what muster handles differently from Apache Kafka. Kafka remembers a verification without
result when its epoch is from the future, and when Produce was of the second generation and EndTxn of the
first; its lowest sequence then refuses batches that have nothing to do with it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final, NamedTuple

import pytest

from muster.coordinator.testing import Broker
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.data import ProduceRequest, ProduceResponse
from tests.kafka.conftest import KafkaOfConfigs, Lives
from tests.kafka.stories import KAFKA_CONFIGS
from tests.kafka.test_data_plane import batch
from tests.kafka.test_transactions import (
    FIRST_GENERATION,
    SECOND_GENERATION,
    Life,
    OnBroker,
    Producer,
    connected,
)
from tests.support.wire_blocking import WireConnection

pytestmark = pytest.mark.kafka

_SEED: Final = 8901
_SEQUENCES: Final = 150
_REQUESTS: Final = 25
_TOPIC: Final = "written"
_PARTITIONS: Final = 3


class Sent(NamedTuple):
    """A batch with one record, in a transaction; with `producer` None, outside of any."""

    producer: Producer | None
    sequence: int


Stored = Mapping[int, ErrorCode]
"""The outcome for each partition's batch."""


def _produce(
    connection: WireConnection, transactional_id: str, sent: Mapping[int, tuple[Sent, Producer]], version: int
) -> Stored:
    parts = []
    for index, (each, (producer_id, epoch)) in sent.items():
        fields = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": each.sequence}
        data = batch(b"v", transactional=True, **fields) if each.producer else batch(b"v")
        parts.append(ProduceRequest.PartitionProduceData(index=index, records=data))
    topic = ProduceRequest.TopicProduceData(name=_TOPIC, partition_data=parts)
    request = ProduceRequest(
        acks=-1, timeout_ms=10_000, transactional_id=transactional_id, topic_data=[topic]
    )
    answer = connection.call(request, version, ProduceResponse)
    return {
        part.index: ErrorCode(part.error_code)
        for topic in answer.responses
        for part in topic.partition_responses
    }


class Writer(OnBroker):
    """An `OnBroker` whose producer also stores records."""

    def produce(self, sent: Mapping[int, Sent], version: int) -> Stored:
        real = {index: (each, self._numbers.real(each.producer)) for index, each in sent.items()}
        return _produce(self._connection, self._id, real, version)


class WritingLife(Life):
    """A `Life` whose producer stores records."""

    def __init__(self, choose: random.Random, *writers: Writer) -> None:
        super().__init__(choose, *writers)
        self._writers = writers
        self.generations = choose.choice(((FIRST_GENERATION,), (SECOND_GENERATION,)))
        self._due: dict[tuple[Producer, int], int] = {}
        """The next sequence of each producer in each partition, counting stored batches."""
        self.stored: set[ErrorCode] = set()

    def play(self) -> ErrorCode:
        """Make one request on both sides and compare the results."""
        if self._producers and self._choose.random() < 0.5:
            self._play_produce()
            return ErrorCode.NONE
        return super().play()

    def _known_producer(self) -> Producer:
        """Usually the newest."""
        return self._producers[-1] if self._choose.random() < 0.7 else self._choose.choice(self._producers)

    def _play_produce(self) -> None:
        choose = self._choose
        version = 12 if SECOND_GENERATION in self.generations else choose.choice((9, 10, 11))
        producer = self._known_producer()
        sent = {}
        for index in choose.sample(range(_PARTITIONS), choose.choice((1, 1, 2, 3))):
            whose: Producer | None = producer
            if choose.random() < 0.05:
                whose = choose.choice([self._known_producer(), None])
            due = self._due.get((producer, index), 0)
            sequence = due if choose.random() < 0.8 else choose.choice((0, due + 1, max(due - 1, 0)))
            sent[index] = Sent(whose, sequence)
        self.log.append(f"produce v{version} {sent}")
        told = [side.produce(sent, version) for side in self._writers]
        self.log.append(f"  {told[0]}")
        assert told[0] == told[1], "\n".join(self.log)
        for index, code in told[0].items():
            self.stored.add(code)
            whose, sequence = sent[index]
            if code is ErrorCode.NONE and whose is not None:
                self._due[whose, index] = max(self._due.get((whose, index), 0), sequence + 1)
        described = [side.described() for side in self._writers]
        assert described[0] == described[1], "\n".join(self.log)


def test_random_batches_of_transactional_producers(kafka_of_configs: KafkaOfConfigs, lives: Lives) -> None:
    running = kafka_of_configs(KAFKA_CONFIGS)
    codes: set[ErrorCode] = set()
    with (
        connected(running.host, running.port, _TOPIC, _PARTITIONS) as kafka,
        Broker(auto_create_topics_enable=False, lease_term_ms=600_000) as muster,
        connected("127.0.0.1", muster.port, _TOPIC, _PARTITIONS) as broker,
    ):
        for each in lives(_SEED, _SEQUENCES):
            name = f"writer-{each}"
            life = WritingLife(random.Random(each), Writer(kafka, name), Writer(broker, name))
            for _ in range(_REQUESTS):
                life.play()
            codes |= life.stored
    assert codes == {
        ErrorCode.NONE,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
