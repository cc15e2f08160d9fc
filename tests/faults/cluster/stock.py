"""Members and a producer of confluent-kafka (librdkafka), as threads; and the committed offsets and records
that it finds."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.faults.batches import Violation
from tests.faults.cluster.history import Commit, GroupHistory, Produced, Seen, Stint
from tests.faults.cluster.setting import (
    COMMIT_EVERY_S,
    GIVEN_UP_S,
    HEARTBEAT_INTERVAL_MS,
    PARTITIONS,
    PRODUCE_EVERY_S,
    REQUEST_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    TOPIC,
    Kind,
)

_FETCH_WAIT_MS: Final = 500
_COMMIT_S: Final = 120.0
_STANDS_STILL_S: Final = 5 * GIVEN_UP_S
"""A running member logs something with every heartbeat, every second."""
_END_S: Final = 90.0
_PASSING: Final = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._WAIT_COORD,
)
"""Passing errors: the client finds a moving lease again."""
_COMMON: Final[Mapping[str, Any]] = {
    "socket.timeout.ms": REQUEST_TIMEOUT_MS,
    "socket.connection.setup.timeout.ms": REQUEST_TIMEOUT_MS,
    "reconnect.backoff.max.ms": 1_000,
    "topic.metadata.refresh.interval.ms": 5_000,
}


def _consumer_settings(group: str, bootstrap: str) -> dict[str, Any]:
    return {
        **_COMMON,
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "check.crcs": True,
        "fetch.wait.max.ms": _FETCH_WAIT_MS,
    }


class _Working:
    """A thread that works until it is stopped; `look` raises what has ended it. librdkafka's log goes to a
    file."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self._stopped = threading.Event()
        self._failure: BaseException | None = None
        self._log = log
        self._handler = logging.FileHandler(log, delay=True)
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def look(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def stop(self) -> None:
        self._stopped.set()
        ends = time.monotonic() + _END_S
        while self._thread.is_alive():
            if time.monotonic() > ends:
                raise AssertionError(f"{self.name} does not end")
            await asyncio.sleep(0.05)
        self.look()

    def says(self) -> str:
        return (
            "\n".join(self._log.read_text(errors="replace").splitlines()[-5:]) if self._log.exists() else ""
        )

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as failure:
            self._failure = failure
        finally:
            self._handler.close()

    def _work(self) -> None:
        raise NotImplementedError

    def _logger(self) -> logging.Logger:
        logger = logging.Logger(self.name, logging.DEBUG)
        logger.addHandler(self._handler)
        return logger


class StockMember(_Working):
    """A member that reads and commits by hand until it is stopped."""

    def __init__(self, name: str, kind: Kind, history: GroupHistory, bootstrap: str, log: Path) -> None:
        super().__init__(name, log)
        self.committed_at = 0.0
        """Send time of the last acknowledged commit."""
        self._history = history
        self._stints: dict[int, Stint] = {}
        self._on_its_way: dict[int, Commit] = {}
        self._cooperative = kind.cooperative
        self._forgotten = False
        """Whether partitions wait for offsets that nobody fetches any more."""
        self._settings = {
            **_consumer_settings(history.group, bootstrap),
            "client.id": name,
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
            "partition.assignment.strategy": "cooperative-sticky" if kind.cooperative else "range",
            "fetch.min.bytes": 10_000,
            "debug": "cgrp",
            "on_commit": self._committed,
        }
        if kind.static:
            self._settings["group.instance.id"] = name

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions it owns."""
        return frozenset(self._stints)

    def _work(self) -> None:
        consumer = confluent_kafka.Consumer(self._settings, logger=self._logger())
        consumer.subscribe([TOPIC], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)
        commit_at = 0.0
        try:
            while not self._stopped.is_set():
                message = consumer.poll(0.1)
                while message is not None:
                    self._take(consumer, message)
                    message = consumer.poll(0)
                if self._forgotten and not self._on_its_way:
                    self._begin_again(consumer)
                elif time.monotonic() >= commit_at:
                    self._commit(consumer)
                    commit_at = time.monotonic() + COMMIT_EVERY_S
        finally:
            consumer.close()

    def _take(self, consumer: confluent_kafka.Consumer, message: confluent_kafka.Message) -> None:
        error = message.error()
        if error is not None:
            if error.fatal() or error.code() == KafkaError._MAX_POLL_EXCEEDED:
                raise AssertionError(f"{self.name}: {error}")
            if error.str().startswith("Failed to fetch committed offsets"):
                self._forgotten = True
            return  # all brokers down and the like: it goes on by itself
        stint = self._stints[message.partition()]
        if message.offset() < stint.next_offset:
            # While it repeatedly asks new leaders about its position, librdkafka falls back to an older one.
            self._history.read_again(stint, message.offset(), message.value())
        else:
            self._history.read(stint, message.offset(), message.value(), time.monotonic())

    def _begin_again(self, consumer: confluent_kafka.Consumer) -> None:
        """If librdkafka fetches offsets of new partitions and learns that the coordinator has moved, it does
        not retry, with any Kafka: its user has to assign them again. No commit may be in flight meanwhile, or
        the offsets found would be older than what it commits."""
        self._forgotten = False
        partitions = consumer.assignment()
        if self._cooperative:
            consumer.incremental_unassign(partitions)
            consumer.incremental_assign([TopicPartition(each.topic, each.partition) for each in partitions])
        else:
            consumer.assign([TopicPartition(each.topic, each.partition) for each in partitions])
        now = time.monotonic()
        for each in partitions:
            self._stints[each.partition] = self._history.begin(self.name, each.partition, now)

    def _assigned(self, consumer: Any, partitions: Sequence[TopicPartition]) -> None:
        self._history.rebalances += 1
        now = time.monotonic()
        for each in partitions:
            self._stints[each.partition] = self._history.begin(self.name, each.partition, now)

    def _revoked(self, consumer: Any, partitions: Sequence[TopicPartition]) -> None:
        for each in partitions:
            self._stints.pop(each.partition, None)

    def stands_still(self) -> bool:
        """Whether librdkafka itself has stopped: with a commit in flight it has logged nothing for a long
        time, not even that it gave up the request, as it does after its own timeout. Seen, but rarely."""
        sent_at = min((each.sent_at for each in self._on_its_way.values()), default=time.monotonic())
        silent_s = time.time() - self._log.stat().st_mtime if self._log.exists() else 0.0
        return min(time.monotonic() - sent_at, silent_s) > _STANDS_STILL_S

    def _commit(self, consumer: confluent_kafka.Consumer) -> None:
        """Commit one at a time; librdkafka reports the outcome in `poll`."""
        now = time.monotonic()
        if self._on_its_way:
            if any(now - each.sent_at > _COMMIT_S for each in self._on_its_way.values()):
                raise AssertionError(f"{self.name} has not heard of a commit for {_COMMIT_S:.0f} s")
            return
        self._on_its_way = {
            each.partition: self._history.sent(each.partition, each.next_offset, now)
            for each in self._stints.values()
            if each.first_offset is not None
        }
        if self._on_its_way:
            offsets = [TopicPartition(TOPIC, where, each.offset) for where, each in self._on_its_way.items()]
            try:
                consumer.commit(offsets=offsets, asynchronous=True)
            except KafkaException:
                self._on_its_way = {}

    def _committed(self, error: KafkaError | None, partitions: Sequence[TopicPartition]) -> None:
        now = time.monotonic()
        sent, self._on_its_way = self._on_its_way, {}
        for each in partitions:
            commit = sent.get(each.partition)
            if error is None and each.error is None and commit is not None and commit.offset == each.offset:
                commit.acknowledged_at = now
                self.committed_at = max(self.committed_at, commit.sent_at)


class StockProducer(_Working):
    """Sends numbered records to all partitions until it is stopped."""

    def __init__(self, name: str, bootstrap: str, log: Path) -> None:
        super().__init__(name, log)
        self.produced: Sequence[Produced] = [Produced(name, each) for each in range(PARTITIONS)]
        self.served_at = [0.0] * PARTITIONS
        """Send time of the last acknowledged record, by partition."""
        self._failed: list[str] = []
        self._settings = {
            **_COMMON,
            "bootstrap.servers": bootstrap,
            "client.id": name,
            "enable.idempotence": True,
            "debug": "eos",
            "linger.ms": 20,
            "request.timeout.ms": REQUEST_TIMEOUT_MS,
        }

    def look(self) -> None:
        if self._failed:
            raise AssertionError(f"records were given up: {self._failed[:3]}")
        super().look()

    def _work(self) -> None:
        producer = confluent_kafka.Producer(self._settings, logger=self._logger())
        while not self._stopped.is_set():
            for each in self.produced:
                self._send(producer, each)
            ends = time.monotonic() + PRODUCE_EVERY_S
            while (left := ends - time.monotonic()) > 0:
                producer.poll(left)
        left_over = producer.flush(_END_S)
        if left_over:
            self._failed.append(f"{left_over} records are still on their way after {_END_S} s")

    def _send(self, producer: confluent_kafka.Producer, produced: Produced) -> None:
        number, value = produced.next()
        sent_at = time.monotonic()

        def delivered(error: KafkaError | None, message: confluent_kafka.Message) -> None:
            if error is not None:
                self._failed.append(f"{value!r}: {error}")
                return
            produced.acknowledged[number] = message.offset()
            self.served_at[produced.partition] = max(self.served_at[produced.partition], sent_at)

        producer.produce(TOPIC, value, partition=produced.partition, on_delivery=delivered)


def committed(group: str, bootstrap: str) -> dict[int, Seen]:
    """A group's committed offsets by partition, as an outsider finds them."""

    def ask(consumer: confluent_kafka.Consumer) -> dict[int, Seen]:
        wanted = [TopicPartition(TOPIC, each) for each in range(PARTITIONS)]
        ends = time.monotonic() + _END_S
        while True:
            asked_at = time.monotonic()
            try:
                answer = consumer.committed(wanted, timeout=10)
                error = next((each.error for each in answer if each.error is not None), None)
            except KafkaException as failure:
                error = failure.args[0]
            if error is None:
                now = time.monotonic()
                return {each.partition: Seen(max(each.offset, -1), asked_at, now) for each in answer}
            if time.monotonic() > ends or not (error.retriable() or error.code() in _PASSING):
                raise Violation(f"group {group}: its offsets cannot be fetched: {error}")

    return _with_consumer(group, bootstrap, ask)


def logs(bootstrap: str, since: Sequence[int]) -> list[list[bytes]]:
    """Each partition's values from these offsets up to its current end, offset by offset."""

    def read(consumer: confluent_kafka.Consumer) -> list[list[bytes]]:
        found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        ends = [_end(consumer, partition) for partition in range(PARTITIONS)]
        wanted = [TopicPartition(TOPIC, each, since[each]) for each in range(PARTITIONS)]
        consumer.assign([each for each in wanted if each.offset < ends[each.partition]])
        missing = sum(max(end - begin, 0) for begin, end in zip(since, ends, strict=True))
        deadline = time.monotonic() + _END_S
        while missing > 0:
            if time.monotonic() > deadline:
                got = [begin + len(values) for begin, values in zip(since, found, strict=True)]
                raise Violation(
                    f"{missing} records cannot be read: from {list(since)} up to {ends}, got {got}"
                )
            message = consumer.poll(1)
            if message is None or message.error() is not None:
                continue
            partition, offset, values = message.partition(), message.offset(), found[message.partition()]
            if offset >= ends[partition]:
                continue
            if offset != since[partition] + len(values):
                due = since[partition] + len(values)
                raise Violation(f"partition {partition}: a hole, offset {due} is followed by {offset}")
            values.append(message.value())
            missing -= 1
        return found

    return _with_consumer("drill-reader", bootstrap, read)


def _end(consumer: confluent_kafka.Consumer, partition: int) -> int:
    until = time.monotonic() + _END_S
    while True:
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=10)[1])
        except KafkaException as failure:
            if time.monotonic() > until:
                raise Violation(f"partition {partition}: its end cannot be asked for: {failure}") from failure


def _with_consumer(group: str, bootstrap: str, use: Callable[[confluent_kafka.Consumer], Any]) -> Any:
    consumer = confluent_kafka.Consumer({**_consumer_settings(group, bootstrap), "log_level": 0})
    try:
        return use(consumer)
    finally:
        consumer.close()
