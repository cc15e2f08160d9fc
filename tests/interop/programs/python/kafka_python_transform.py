"""kafka-python, exactly once."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError, ProducerFencedError, RetriableError
from kafka.structs import OffsetAndMetadata

from tests.interop.programs.python import lines, transforming
from tests.interop.programs.python.transforming import Job

_SECONDS_MAX: Final = 60.0
_POLL_MS: Final = 100


class Transformer(ConsumerRebalanceListener):
    def __init__(self, job: Job) -> None:
        self._job = job
        self._turns = transforming.Turns(job)
        self._owned: set[int] = set()
        brokers = job.bootstrap.split(",")
        self._producer = KafkaProducer(bootstrap_servers=brokers, transactional_id=job.transactional_id)
        self._producer.init_transactions()
        self._consumer = KafkaConsumer(
            bootstrap_servers=brokers,
            group_id=job.group,
            session_timeout_ms=job.session_timeout_ms,
            heartbeat_interval_ms=job.heartbeat_interval_ms,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=transforming.FETCH_MAX_WAIT_MS,
            # Without it, kafka-python does not wait for pending offsets (KIP-447).
            isolation_level="read_committed",
        )
        self._consumer.subscribe([job.source], listener=self)

    def run(self) -> None:
        to_leave = lines.standard_input_ends()
        while not to_leave.is_set():
            try:
                polled = self._consumer.poll(_POLL_MS, max_records=self._job.records_max)
            except RetriableError as error:  # its connection broke while it looked for its coordinator
                lines.complain(error)
                continue
            records = [record for each in polled.values() for record in each]
            if records:
                self._transaction(records, kept=not self._turns.aborts())
        self._consumer.close(autocommit=False)
        self._producer.close()
        lines.say("left")

    def _transaction(self, records: list[Any], *, kept: bool) -> None:
        try:
            transforming.say("began", len(records))
            self._producer.begin_transaction()
            sent = []
            for record in records:
                partition, key, value = transforming.result_of(record.value)
                sent.append(self._producer.send(self._job.target, value, key, partition=partition))
            self._producer.flush(_SECONDS_MAX)
            for future in sent:
                future.get(_SECONDS_MAX)
            transforming.say("sent", len(records))
            offsets = {
                TopicPartition(record.topic, record.partition): OffsetAndMetadata(record.offset + 1, "", -1)
                for record in records
            }
            self._producer.send_offsets_to_transaction(offsets, self._consumer.group_metadata())
            transforming.say("offsets", len(records))
            if kept:
                self._producer.commit_transaction()
                transforming.say("committed", len(records))
            else:
                self._producer.abort_transaction()
                transforming.say("aborted", len(records))
                self._go_back()
        except ProducerFencedError:
            raise
        except KafkaError as error:
            transforming.failed(error)
            self._producer.abort_transaction()
            self._go_back()

    def _go_back(self) -> None:
        """Go back to the committed offsets."""
        for partition in self._consumer.assignment():
            committed = self._consumer.committed(partition)
            if committed is None:
                self._consumer.seek_to_beginning(partition)
            else:
                self._consumer.seek(partition, committed)

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self._owned |= {each.partition for each in assigned}
        lines.say_assigned(None, self._owned)

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self._owned -= {each.partition for each in revoked}
        lines.say_revoked(self._owned)

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        self.on_partitions_revoked(lost)


def transform(job: Job) -> None:
    Transformer(job).run()


if __name__ == "__main__":
    transforming.run(transform)
