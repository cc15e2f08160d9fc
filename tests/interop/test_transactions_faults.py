"""Transactions whose answers are lost, at every request: the broker has executed the request, and nothing is
done twice."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple

import pytest

from muster.client import Admin, Consumer, GroupMetadata, NewTopic, Producer, TopicPartition
from muster.client.network.connection import Address
from muster.protocol.api import ApiKey
from tests.client.listeners import losing_answers
from tests.support.apache_kafka import ApacheKafka
from tests.support.ports import free_ports

pytestmark = pytest.mark.interop

DEADLINE_S: Final = 60.0
_OF_BOTH: Final = (
    ApiKey.FIND_COORDINATOR,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.PRODUCE,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
)
_BEFORE_890: Final = (*_OF_BOTH, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN)


class Behind(NamedTuple):
    """A broker behind the port that it advertises to its clients."""

    kafka: ApacheKafka
    port: int


@pytest.fixture(scope="module")
def behind(request: pytest.FixtureRequest) -> Iterator[Behind]:
    port = free_ports(1)
    features = {"transaction.version": request.param}
    with ApacheKafka(advertised_port=port, features=features) as kafka:
        yield Behind(kafka, port)


def losing_none(behind: Behind) -> AbstractAsyncContextManager[Address]:
    """The proxy that the broker advertises to its clients."""
    return losing_answers(behind.kafka.port, ApiKey.END_TXN, 0, behind.port)


@pytest.mark.parametrize("behind", [2], indirect=True)
@pytest.mark.parametrize("api_key", _OF_BOTH)
async def test_an_answer_that_is_lost_changes_nothing(behind: Behind, api_key: ApiKey) -> None:
    await three_of_four(behind, api_key)


@pytest.mark.parametrize("behind", [1], indirect=True)
@pytest.mark.parametrize("api_key", _BEFORE_890)
async def test_an_answer_that_is_lost_changes_nothing_before_kip_890(behind: Behind, api_key: ApiKey) -> None:
    await three_of_four(behind, api_key)


async def three_of_four(behind: Behind, api_key: ApiKey) -> None:
    """Three transactions are committed, and one is aborted, while answers are lost."""
    topic = f"t{uuid.uuid4().hex[:12]}"
    where, group = TopicPartition(topic, 0), GroupMetadata(f"{topic}-group", -1, "", None)
    async with losing_none(behind), Admin(behind.kafka.bootstrap) as admin:
        (await admin.create_topics([NewTopic(name=topic, num_partitions=1)])).raise_for_failures()
    async with (
        losing_answers(behind.kafka.port, api_key, 2, behind.port) as way,
        asyncio.timeout(DEADLINE_S),
        Producer(str(way), transactional_id=topic, retry_backoff_ms=10) as producer,
    ):
        for number in range(4):
            transaction = await producer.transaction().begin()
            await transaction.send(topic, b"%d" % number)
            await transaction.commit_offsets(group, {where: number})
            if number == 1:
                await transaction.abort()
            else:
                await transaction.commit()
    async with (
        losing_none(behind),
        asyncio.timeout(DEADLINE_S),
        Consumer(
            behind.kafka.bootstrap, group_id=group.group_id, isolation_level="read_committed"
        ) as consumer,
    ):
        consumer.assign([where])
        consumer.seek_to_beginning(where)
        values: list[bytes | None] = []
        while len(values) < 3:
            values += [each.value for each in await consumer.get_many()]
        assert values == [b"0", b"2", b"3"]
        assert await consumer.get(timeout=0.05) is None
        committed = (await consumer.committed([where]))[where]
        assert committed is not None
        assert committed.offset == 3
