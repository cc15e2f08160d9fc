"""confluent-kafka (librdkafka), exactly once."""

from __future__ import annotations

from typing import Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from tests.interop.programs.python import lines, transforming
from tests.interop.programs.python.transforming import Job

_SECONDS_MAX: Final = 60.0
_POLL_S: Final = 0.1
_MORE_S: Final = 0.005  # for records already there, which arrive at once


class Transformer:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._turns = transforming.Turns(job)
        self._owned: set[int] = set()
        self._batch: list[Message] = []
        self._producer = Producer(
            {
                "bootstrap.servers": job.bootstrap,
                "transactional.id": job.transactional_id,
                "linger.ms": 0,
            }
        )
        self._producer.init_transactions(_SECONDS_MAX)
        self._consumer = Consumer(
            {
                "bootstrap.servers": job.bootstrap,
                "group.id": job.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                # Without it, librdkafka does not wait for pending offsets (KIP-447).
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": transforming.FETCH_MAX_WAIT_MS,
                "session.timeout.ms": job.session_timeout_ms,
                "heartbeat.interval.ms": job.heartbeat_interval_ms,
            }
        )
        self._consumer.subscribe([job.source], on_assign=self._on_assign, on_revoke=self._on_revoke)

    def run(self) -> None:
        to_leave = lines.standard_input_ends()
        while not to_leave.is_set():
            self._gather()
            if self._batch:
                self._transaction(kept=not self._turns.aborts())
        self._consumer.close()
        lines.say("left")

    def _gather(self) -> None:
        """The next batch. A rebalance, noticed while polling, discards what was gathered."""
        self._batch = []
        while len(self._batch) < self._job.records_max:
            message = self._consumer.poll(_MORE_S if self._batch else _POLL_S)
            if message is None:
                return
            if message.error():
                lines.complain(message.error())
            else:
                self._batch.append(message)

    def _transaction(self, *, kept: bool) -> None:
        records = len(self._batch)
        try:
            transforming.say("began", records)
            self._producer.begin_transaction()
            self._send()
            transforming.say("sent", records)
            self._producer.send_offsets_to_transaction(
                self._next_offsets(), self._consumer.consumer_group_metadata(), _SECONDS_MAX
            )
            transforming.say("offsets", records)
            if kept:
                self._commit()
                transforming.say("committed", records)
            else:
                self._abort()
                transforming.say("aborted", records)
                self._go_back()
        except KafkaException as error:
            if error.args[0].fatal():
                raise
            transforming.failed(error)
            self._abort()
            self._go_back()

    def _send(self) -> None:
        failures: list[KafkaError] = []

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.append(error)

        for message in self._batch:
            result = transforming.result_of(message.value())
            self._producer.produce(
                self._job.target, result.value, result.key, result.partition, on_delivery=on_delivery
            )
        self._producer.flush(_SECONDS_MAX)
        if failures:
            raise KafkaException(failures[0])

    def _commit(self) -> None:
        while True:
            try:
                return self._producer.commit_transaction(_SECONDS_MAX)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise

    def _abort(self) -> None:
        while True:
            try:
                return self._producer.abort_transaction(_SECONDS_MAX)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise

    def _next_offsets(self) -> list[TopicPartition]:
        offsets = {message.partition(): message.offset() + 1 for message in self._batch}
        return [TopicPartition(self._job.source, *place) for place in offsets.items()]

    def _go_back(self) -> None:
        """Go back to the committed offsets."""
        self._batch = []
        for place in self._consumer.committed(self._consumer.assignment(), _SECONDS_MAX):
            if place.offset < 0:
                place.offset = OFFSET_BEGINNING
            self._consumer.seek(place)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._owned |= {each.partition for each in partitions}
        lines.say_assigned(None, self._owned)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._batch = []
        self._owned -= {each.partition for each in partitions}
        lines.say_revoked(self._owned)


def transform(job: Job) -> None:
    Transformer(job).run()


if __name__ == "__main__":
    transforming.run(transform)
