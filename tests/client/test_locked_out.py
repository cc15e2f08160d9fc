"""Clients whose user is deleted while they run: their calls say so at once."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import pytest

from muster.client import Admin, AuthenticationFailed, Consumer, Producer, TopicPartition
from muster.coordinator.testing import Broker
from tests.client.reading import LONG_S
from tests.support.proxy import Proxy

T0 = TopicPartition("t", 0)


class Guarded(NamedTuple):
    """A broker with topic t, reached through a proxy, and the settings of one of its users."""

    broker: Broker
    admin: Admin
    settings: dict[str, Any]
    proxy: Proxy

    async def lock_out(self) -> None:
        await self.admin.delete_user_scram_credentials("zoë")
        self.proxy.cut()
        self.proxy.mend()


@asynccontextmanager
async def guarded() -> AsyncIterator[Guarded]:
    with (
        Proxy() as proxy,
        Broker(
            security="SASL_PLAINTEXT", advertised_listeners=f"SASL_PLAINTEXT://127.0.0.1:{proxy.port}"
        ) as broker,
    ):
        proxy.upstream_port = broker.port
        broker.create_topic("t")
        settings = broker.client_settings("muster")
        user = {
            "bootstrap_servers": f"127.0.0.1:{proxy.port}",
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_plain_username": "zoë",
            "sasl_plain_password": "secret",
        }
        async with asyncio.timeout(LONG_S), Admin(**settings) as admin:
            await admin.upsert_user_scram_credentials("zoë", "secret")
            yield Guarded(broker, admin, settings | user, proxy)


@pytest.mark.parametrize("given", [{}, {"enable_idempotence": False}])
async def test_a_producer_says_so(given: dict[str, Any]) -> None:
    async with guarded() as broker, Producer[bytes, bytes](**broker.settings, **given) as producer:
        await producer.send("t", b"v")
        await broker.lock_out()
        with pytest.raises(AuthenticationFailed, match="SCRAM-SHA-256"):
            await producer.send("t", b"v")


async def test_a_producer_that_looks_for_a_leader_says_so() -> None:
    async with guarded() as broker, Producer[bytes, bytes](**broker.settings) as producer:
        await producer.send("t", b"v")
        await broker.lock_out()
        producer._topics["t"].queues[0].leader = None
        with pytest.raises(AuthenticationFailed, match="SCRAM-SHA-256"):
            await producer.send("t", b"v")


async def test_a_producer_that_has_no_id_yet_says_so() -> None:
    async with guarded() as broker, Producer[bytes, bytes](**broker.settings) as producer:
        await producer.partitions_for("t")
        await broker.lock_out()
        with pytest.raises(AuthenticationFailed, match="SCRAM-SHA-256"):
            await producer.send("t", b"v")


@pytest.mark.parametrize("given", [{}, {"enable_idempotence": False}])
async def test_a_producer_says_so_of_a_record_that_may_have_been_written(given: dict[str, Any]) -> None:
    async with guarded() as guard, Producer[bytes, bytes](**guard.settings, **given) as producer:
        await producer.partitions_for("t")
        with guard.broker.faults.add(api="Produce", drop_response=True) as rule:
            sending = asyncio.create_task(producer.send("t", b"v"))
            await asyncio.to_thread(rule.hit)
            await guard.lock_out()
            with pytest.raises(AuthenticationFailed, match=r"SCRAM-SHA-256.* may have been written"):
                await sending
        assert len(guard.broker.records("t")) == 1


async def test_a_commit_says_so() -> None:
    async with (
        guarded() as broker,
        Consumer(**broker.settings, group_id="g", enable_auto_commit=False) as consumer,
    ):
        consumer.assign([T0])
        assert (await consumer.commit({T0: 1})).ok
        await broker.lock_out()
        with pytest.raises(AuthenticationFailed, match="SCRAM-SHA-256"):
            await consumer.commit({T0: 2})


async def test_closing_says_so_if_it_cannot_commit() -> None:
    async with guarded() as broker:
        consumer = Consumer(**broker.settings, group_id="g", auto_offset_reset="earliest")
        consumer.assign([T0])
        async with Producer[bytes, bytes](**broker.settings) as producer:
            await producer.send("t", b"v")
        await consumer.start()
        assert await consumer.get() is not None
        await broker.lock_out()
        with pytest.raises(AuthenticationFailed, match="SCRAM-SHA-256"):
            await consumer.close()


async def test_a_reader_of_a_pattern_says_so_and_goes_on_once_it_is_let_in_again() -> None:
    async with (
        guarded() as guard,
        Consumer(**guard.settings, group_id="g", topics=re.compile("t"), auto_offset_reset="earliest") as one,
    ):
        await guard.lock_out()
        for _ in range(2):
            with pytest.raises(AuthenticationFailed, match="SCRAM-SHA-256"):
                await one.get()
        guard.broker.produce("t", [b"v"])
        await guard.admin.upsert_user_scram_credentials("zoë", "secret")
        record = None
        while record is None:
            with suppress(AuthenticationFailed):  # of an attempt before
                record = await one.get()
        assert record.value == b"v"


@pytest.mark.parametrize("group_id", ["g", None])
async def test_a_position_that_must_be_looked_up_says_so(group_id: str | None) -> None:
    async with (
        guarded() as guard,
        Consumer(**guard.settings, group_id=group_id, auto_offset_reset="earliest") as consumer,
    ):
        await guard.lock_out()
        consumer.assign([T0])
        with pytest.raises(AuthenticationFailed, match="SCRAM-SHA-256"):
            await consumer.position(T0, LONG_S)
