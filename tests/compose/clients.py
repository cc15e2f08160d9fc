"""Clients outside the containers that keep running while brokers come and go: a producer and a group.

They record what happens to them; the tests judge.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from muster.client import Consumer, RebalanceListener, TopicPartition

REQUEST_TIMEOUT_MS: Final = 6_000
"""How soon a client gives up on a broker that does not answer, such as a paused one."""
_POLL_S: Final = 0.2
_COMMIT_S: Final = 10.0
_END_S: Final = 60.0
_RECORDS_A_TURN: Final = 10
_TURN_S: Final = 0.1


def placed(message: Message) -> tuple[tuple[int, int], bytes]:
    """Partition and offset of a record, and its value."""
    partition, offset, value = message.partition(), message.offset(), message.value()
    assert partition is not None
    assert offset is not None
    assert isinstance(value, bytes)
    return (partition, offset), value


class _Client(ABC):
    """Works in a thread until the block is left; its exceptions are raised there."""

    def __init__(self, name: str) -> None:
        self.stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def work(self) -> None:
        """Work until `stopping` is set."""

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as failure:
            self._failure = failure

    def check(self) -> None:
        """Raise the error that ended it early, if any."""
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopping.set()
        self._thread.join(_END_S)
        assert not self._thread.is_alive(), f"{self._thread.name} does not end"
        if error is None:
            self.check()


class Writer(_Client):
    """Writes numbered records to every partition in turn, with librdkafka's idempotent producer.

    `acknowledged` maps partition and offset to each record's value.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__("writer")
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.refused: list[str] = []
        self._topic = topic
        self._partitions = partitions
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "socket.timeout.ms": REQUEST_TIMEOUT_MS,
                "request.timeout.ms": REQUEST_TIMEOUT_MS,
                "reconnect.backoff.max.ms": 1_000,
                "log_level": 2,
            }
        )

    def work(self) -> None:
        number = 0
        while not self.stopping.is_set():
            for _ in range(_RECORDS_A_TURN):
                partition = number % self._partitions
                self._producer.produce(
                    self._topic, b"%d" % number, partition=partition, on_delivery=self._delivered
                )
                number += 1
            self._producer.poll(0)
            self.stopping.wait(_TURN_S)
        assert self._producer.flush(_END_S) == 0, "the producer does not get rid of its records"

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.refused.append(f"{message.value()!r} in partition {message.partition()}: {error}")
        else:
            where, value = placed(message)
            self.acknowledged[where] = value


class Member(_Client, ABC):
    """Reads and commits. `rebalances` counts assigned and revoked callbacks; `committed` maps each partition
    to its last acknowledged commit."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.rebalances = 0
        self.partitions: set[int] = set()
        self.commits = 0
        self.committed: dict[int, int] = {}
        self.read: dict[tuple[int, int], bytes] = {}

    def has_committed(self, offsets: Iterable[tuple[int, int]]) -> None:
        """Note that these partitions and offsets were acknowledged in one commit."""
        self.committed.update(offsets)
        self.commits += 1


class ConfluentMember(Member):
    """librdkafka."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        super().__init__("confluent member")
        self._topic = topic
        self._consumer = ConfluentConsumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "socket.timeout.ms": REQUEST_TIMEOUT_MS,
                "reconnect.backoff.max.ms": 1_000,
                "log_level": 2,
            }
        )

    def work(self) -> None:
        consumer = self._consumer
        consumer.subscribe(
            [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )
        uncommitted: dict[int, int] = {}
        while not self.stopping.is_set():
            for message in consumer.consume(100, _POLL_S):
                if message.error() is None:
                    (partition, offset), value = placed(message)
                    self.read[partition, offset] = value
                    uncommitted[partition] = offset + 1
            if uncommitted:
                try:
                    answers = consumer.commit(asynchronous=False)
                except KafkaException:
                    continue  # the next commit covers it
                if any(each.error for each in answers):
                    continue
                self.has_committed(uncommitted.items())
                uncommitted.clear()
        consumer.close()

    def _assigned(self, _: ConfluentConsumer, partitions: list[Any]) -> None:
        self.rebalances += 1
        self.partitions = {each.partition for each in partitions}

    def _revoked(self, _: ConfluentConsumer, partitions: list[Any]) -> None:
        if not self.stopping.is_set():
            self.rebalances += 1
            self.partitions -= {each.partition for each in partitions}


class OwnMember(Member, RebalanceListener):
    """`muster.client`; reports the group's generation."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        super().__init__("own member")
        self.generation = -1
        self._consumer_of = (bootstrap, topic, group)

    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        bootstrap, topic, group = self._consumer_of
        consumer = Consumer(
            bootstrap,
            group_id=group,
            topics=topic,
            listener=self,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
        )
        async with consumer:
            while not self.stopping.is_set():
                records = await consumer.get_many(100, timeout=_POLL_S)
                self.generation = consumer.group_metadata().generation_id
                for record in records:
                    self.read[record.partition, record.offset] = record.value or b""
                if records:
                    result = await consumer.commit(timeout=_COMMIT_S)
                    if result.ok:
                        self.has_committed(
                            (where.partition, each.offset) for where, each in result.committed.items()
                        )

    def on_partitions_assigned(
        self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]
    ) -> None:
        self.rebalances += 1
        self.partitions |= {each.partition for each in partitions}

    def on_partitions_revoked(
        self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]
    ) -> None:
        if not self.stopping.is_set():
            self.rebalances += 1
            self.partitions -= {each.partition for each in partitions}
