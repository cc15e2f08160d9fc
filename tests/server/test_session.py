"""Sessions: whatever an API raises becomes an answer, or closes the connection, and nothing else leaks."""

from __future__ import annotations

import asyncio
import gc
import io
import json
from typing import Any

import pytest

from muster.coordinator.base import log
from muster.coordinator.base.step import NOBODY
from muster.coordinator.server.api import Handle, awaited
from muster.coordinator.server.apis import APIS
from muster.coordinator.storage.store import StoreError
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.classic_group import HeartbeatRequest, HeartbeatResponse
from muster.protocol.messages.data import ProduceRequest
from muster.protocol.messages.metadata import FindCoordinatorRequest
from tests.server.conftest import StartBrokers
from tests.server.test_metadata import asking, creating
from tests.support.wire import Wire

BEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


def answered_by(monkeypatch: pytest.MonkeyPatch, api_key: ApiKey, handle: Handle) -> None:
    monkeypatch.setattr(APIS[api_key], "begin", awaited(handle, "made up"))


def answering(monkeypatch: pytest.MonkeyPatch, api_key: ApiKey, error: Exception) -> None:
    async def raising(*_: Any) -> Any:
        raise error

    answered_by(monkeypatch, api_key, raising)


async def test_a_kafka_error_is_the_refusal(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, ApiKey.HEARTBEAT, KafkaError(ErrorCode.NOT_COORDINATOR, "moved"))
    async with await Wire.connect(port) as wire:
        for version in range(5):
            assert (await wire.call(BEAT, version)).error_code == ErrorCode.NOT_COORDINATOR


async def test_an_unexpected_error_is_logged_under_a_reference_and_hides_its_text(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    for name, value in {"level": 20, "format": "json", "stream": stream, "logger": None}.items():
        monkeypatch.setattr(log._Output, name, value)
    answering(monkeypatch, ApiKey.FIND_COORDINATOR, RuntimeError("secret of the inside"))
    async with await Wire.connect(port) as wire:
        response = await wire.call(FindCoordinatorRequest(key="g"), 2)
        assert response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert (await wire.call(BEAT, 4)).error_code == ErrorCode.UNKNOWN_MEMBER_ID  # the connection goes on
    (line,) = map(json.loads, stream.getvalue().splitlines())
    assert (line["event"], line["api"]) == ("request failed", "FIND_COORDINATOR")
    assert line["reference"] in response.error_message
    assert "secret" not in response.error_message
    assert "secret of the inside" in json.dumps(line["exception"])


async def test_a_store_that_fails_is_a_storage_error_and_leaves_the_rest_of_metadata(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = (await start_brokers()).brokers[0]

    async def full(*_: Any) -> None:
        raise StoreError("/var/lib/muster/store.sqlite: database or disk is full")

    monkeypatch.setattr(broker._store, "create_topic", full)
    monkeypatch.setattr(log._Output, "level", 99)
    async with await Wire.connect(broker.port) as wire:
        (created,) = (await wire.call(creating("t"), 7)).topics
        assert created.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "/var" not in created.error_message
        response = await wire.call(asking("t", create=True), 12)
        assert [each.error_code for each in response.topics] == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert len(response.brokers) == 1


async def test_a_response_that_cannot_be_encoded_is_our_failure_not_silence(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answering_nonsense(*_: Any) -> Any:
        return HeartbeatResponse(error_code=1 << 20)

    answered_by(monkeypatch, ApiKey.HEARTBEAT, answering_nonsense)
    monkeypatch.setattr(log._Output, "level", 99)
    async with await Wire.connect(port) as wire:
        assert (await wire.call(BEAT, 4)).error_code == ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("error", [KafkaError(ErrorCode.NOT_COORDINATOR), RuntimeError("broken")])
async def test_a_failed_produce_with_acks_0_closes_and_never_answers(
    port: int, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    answering(monkeypatch, ApiKey.PRODUCE, error)
    monkeypatch.setattr(log._Output, "level", 99)
    async with await Wire.connect(port) as wire:
        await wire.send(ProduceRequest(acks=0, timeout_ms=1, topic_data=[]), 9)
        assert await wire.closed()


async def test_one_broken_connection_harms_no_other(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = (await start_brokers()).brokers[0]
    async with await Wire.connect(broker.port) as good, await Wire.connect(broker.port) as bad:
        await bad.send_bytes(b"\x00\x00\x00\x05abcde")
        assert await bad.closed()
        assert (await good.call(BEAT, 4)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_request_dropped_before_it_began_leaves_nothing_behind() -> None:
    answers: list[object] = []

    async def handle(broker: Any, request: Any, context: Any) -> None:
        raise AssertionError("it was dropped")

    begin: Any = awaited(handle, "made up")
    task = begin(None, None, NOBODY, answers.append)
    task.cancel()
    await asyncio.wait([task])
    assert not answers
    del task
    gc.collect()  # a coroutine that was never awaited fails the test
