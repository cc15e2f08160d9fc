"""What partitions keep and serve of transactions, compared with Apache Kafka: transactional batches and
markers on the wire, without a coordinator, and what readers see after each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from muster.coordinator.testing import Broker
from muster.protocol.messages.data import DeleteRecordsRequest
from muster.protocol.messages.transactions import DescribeProducersRequest, WriteTxnMarkersRequest
from tests.kafka.conftest import KafkaOfConfigs
from tests.kafka.stories import CHOSEN_BY_STORIES, KAFKA_CONFIGS, Side, assert_told_alike
from tests.kafka.test_data_plane import NOW_MS, batch, fetching, listing, producing
from tests.support.coordinators import Coordinators

pytestmark = pytest.mark.kafka

UNVERIFIED = {**KAFKA_CONFIGS, "transaction.partition.verification.enable": "false"}
P, Q, R, S, T, U = CHOSEN_BY_STORIES[100:106]


@contextmanager
def unverified(**settings: Any) -> Iterator[Broker]:
    """A muster that does not verify transactions."""
    with Broker(
        auto_create_topics_enable=False,
        lease_term_ms=600_000,
        transaction_partition_verification_enable=False,
        **settings,
    ) as broker:
        for each in broker._core.brokers.brokers:
            each.transactions = Coordinators()
        yield broker


def partition_log(side: Side) -> None:
    side.create(t=1, late=1)

    def put(
        title: str, who: int, sequence: int, *, epoch: int = 0, topic: str = "t", transactional: bool = True
    ) -> None:
        data = batch(
            b"v%d" % sequence,
            at_ms=NOW_MS,
            producer_id=who,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        asked = producing(side, (topic, 0, data), transactional_id="tx" if transactional else None)
        side.ask(title, asked, 11, but="log_append_time_ms")

    def marker(
        who: int, committed: bool, *, epoch: int = 0, coordinator: int = 0, version: int = 0, topic: str = "t"
    ) -> Any:
        ended = WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=side.name(topic), partition_indexes=[0])
        return WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=who,
            producer_epoch=epoch,
            transaction_result=committed,
            topics=[ended],
            coordinator_epoch=coordinator,
            transaction_version=version,
        )

    def end(title: str, who: int, committed: bool, **given: Any) -> None:
        side.ask(title, WriteTxnMarkersRequest(markers=[marker(who, committed, **given)]), 2)

    def look(title: str, *offsets: int, topic: str = "t", newest: bool = False) -> None:
        """`newest`: also ask for the newest record; with markers that is a matter of milliseconds."""
        for offset in offsets or (0,):
            for level in (0, 1):
                asked = fetching(side, topic, offset, isolation_level=level)
                side.ask(f"{title}: read {offset}, level {level}", asked, 12)
        for level in (0, 1):
            for timestamp in (-1, -2, NOW_MS, *([-3] if newest else [])):
                asked = listing(side, topic, (0, timestamp), isolation_level=level)
                side.ask(
                    f"{title}: {timestamp - NOW_MS if timestamp > 0 else timestamp}, level {level}",
                    asked,
                    11,
                    but="timestamp",
                )
        described = DescribeProducersRequest.TopicRequest(name=side.name(topic), partition_indexes=[0])
        side.ask(
            f"{title}: producers",
            DescribeProducersRequest(topics=[described]),
            0,
            but="last_timestamp",
            arranged=lambda answer: (
                answer.topics[0].partitions[0].active_producers.sort(key=lambda each: each.producer_id)
            ),
        )

    put("a transaction", P, 0)
    look("open from the start", newest=True)
    put("plain, within a transaction", P, 1, transactional=False)
    put("another producer, plain", Q, 0, transactional=False)
    put("another transaction", R, 0)
    put("more of the first", P, 1)
    put("a repeat", P, 1)
    put("a gap", P, 5)
    look("two open", 0, 1, 4, newest=True)
    end("the second is committed", R, True, coordinator=7)
    look("one open", newest=True)
    end("the first is aborted, of a higher epoch", P, False, epoch=1, coordinator=7, version=2)
    look("none open", 0, 2, 5, 6)
    put("the old epoch", P, 2)
    put("the new epoch, not from 0", P, 2, epoch=1)
    put("the new epoch", P, 0, epoch=1)
    end("of an old epoch", P, True)
    end("of the same epoch, which should be higher", P, True, epoch=1, coordinator=7, version=2)
    end("of an old coordinator", P, True, epoch=1, coordinator=6)
    end("of the same epoch", P, True, epoch=1, coordinator=8)
    end("again", P, True, epoch=1, coordinator=8)
    end("again, where it should be higher", P, True, epoch=1, coordinator=8, version=2)
    look("after repeats", 0, 7)
    end("of nobody", S, False, epoch=3, coordinator=2)
    put("whom a marker made known, not from 0", S, 4, epoch=3)
    put("whom a marker made known", S, 0, epoch=3)
    put("a new epoch within a transaction", S, 0, epoch=4)
    end("of the last epoch", T, True, epoch=2**15 - 1)
    end("of the last epoch again", T, True, epoch=2**15 - 1, version=2)
    end("of no producer", -1, True)
    end("of no epoch", S, True, epoch=-1)
    for version in (1, 2):
        both = [marker(S, False, epoch=4, coordinator=2), marker(R, True, coordinator=9)]
        side.ask(f"two in one, v{version}", WriteTxnMarkersRequest(markers=both), version)
        side.ask(f"none, v{version}", WriteTxnMarkersRequest(markers=[]), version)
    look("at the end", 0, 10)

    for sequence in range(3):
        put(f"late {sequence}", U, sequence, topic="late")
    put("late, plain", Q, 0, topic="late", transactional=False)
    cut = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=2)
    of_topic = DeleteRecordsRequest.DeleteRecordsTopic(name=side.name("late"), partitions=[cut])
    side.ask("cut within a transaction", DeleteRecordsRequest(topics=[of_topic], timeout_ms=10_000), 2)
    look("cut", 0, 2, topic="late")
    end("aborted, cut", U, False, topic="late")
    look("aborted, cut", 2, topic="late")


def requests(side: Side) -> None:
    side.create(t=2)

    def put(
        title: str, *batches: bytes | None, transactional_id: str | None = "tx", version: int = 11
    ) -> None:
        parts = [("t", index, data) for index, data in enumerate(batches)]
        side.ask(title, producing(side, *parts, transactional_id=transactional_id), version)

    def of(who: int, epoch: int = 0, sequence: int = 0, **kinds: bool) -> bytes:
        fields = {"producer_id": who, "producer_epoch": epoch, "base_sequence": sequence}
        return batch(b"v", at_ms=NOW_MS, **fields, **{"transactional": True, **kinds})

    plain = batch(b"plain", at_ms=NOW_MS)
    put("plain ones, with an id", plain, plain)
    put("an idempotent one beside", of(P), of(Q, transactional=False))
    put("two producers", of(P, sequence=1), of(R))
    put("two epochs", of(P, sequence=1), of(P, epoch=1))
    put("without an id", of(P, sequence=1), transactional_id=None)
    put("an empty id", of(P, sequence=1), transactional_id="")
    put("no batch beside", of(P, sequence=2), b"")
    put("half a batch beside", of(P, sequence=3), of(R)[:40])
    put("a control batch", of(R, control=True))
    put("no sequence", of(R, sequence=-1))


def test_apache_kafka_takes_requests_of_transactions_as_muster_does(kafka_of_configs: KafkaOfConfigs) -> None:
    with unverified() as broker:
        assert_told_alike(requests, kafka_of_configs(UNVERIFIED), broker)


def test_apache_kafka_keeps_transactions_as_muster_does(kafka_of_configs: KafkaOfConfigs) -> None:
    with unverified() as broker:
        assert_told_alike(partition_log, kafka_of_configs(UNVERIFIED), broker)
