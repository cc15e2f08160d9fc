"""Records that transactions of confluent-kafka's producer have not committed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from confluent_kafka import Producer as ConfluentProducer

from muster.client import TopicPartition
from tests.interop.behaviour.place import DEADLINE_S, Place, values_of

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
async def test_records_without_transactions_are_committed(place: Place, isolation_level: str) -> None:
    topic = await place.topic()
    await place.send(topic, b"0", b"1")
    async with place.consumer(isolation_level=isolation_level) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert await values_of(consumer, 2) == [b"0", b"1"]


class Transactions:
    """confluent-kafka's producer, whose calls block."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = ConfluentProducer(
            {"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-writer", "log_level": 0}
        )

    async def start(self) -> None:
        await asyncio.to_thread(self._producer.init_transactions, DEADLINE_S)

    async def write(self, *values: bytes) -> None:
        """Write the records to the log, in an open transaction."""
        self._producer.begin_transaction()
        for value in values:
            self._producer.produce(self._topic, value, partition=0)
        assert await asyncio.to_thread(self._producer.flush, DEADLINE_S) == 0

    async def commit(self) -> None:
        await asyncio.to_thread(self._producer.commit_transaction, DEADLINE_S)

    async def abort(self) -> None:
        await asyncio.to_thread(self._producer.abort_transaction, DEADLINE_S)


async def test_only_what_is_committed(place: Place) -> None:
    topic = await place.topic()
    where = TopicPartition(topic, 0)
    transactions = Transactions(place.bootstrap, topic)
    await transactions.start()
    await place.send(topic, b"outside 1")
    await transactions.write(b"committed 1", b"committed 2")
    await transactions.commit()
    await transactions.write(b"aborted 1", b"aborted 2")
    await transactions.abort()
    await place.send(topic, b"outside 2")
    await transactions.write(b"open")
    await place.send(topic, b"behind")

    def reader(isolation_level: str) -> Any:
        return place.consumer(isolation_level=isolation_level)

    committed = [b"outside 1", b"committed 1", b"committed 2", b"outside 2"]
    async with reader("read_uncommitted") as everything:
        everything.assign([where])
        assert await values_of(everything, 8) == [
            *committed[:3],
            b"aborted 1",
            b"aborted 2",
            b"outside 2",
            b"open",
            b"behind",
        ]
        assert await everything.get(timeout=0.2) is None  # the markers are not records
    async with reader("read_committed") as careful:
        careful.assign([where])
        assert await values_of(careful, 4) == committed
        assert await careful.get(timeout=0.5) is None  # the open transaction holds back the rest
        # The end is at the beginning of the open transaction.
        assert await careful.end_offsets([where]) == {where: 8}
        assert careful.lag(where) == {where: 0}
        await transactions.commit()
        assert await values_of(careful, 2) == [b"open", b"behind"]
