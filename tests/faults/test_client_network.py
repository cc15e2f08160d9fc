"""Clients on a network that fails at every possible point (tests/client/faults has a few of them)."""

from __future__ import annotations

import pytest

from muster.protocol.api import ApiKey
from tests.client.faults import stories
from tests.support.fault_proxy import At

HEARTBEATS = ["loop", "thread"]


@pytest.mark.parametrize("skip", [0, 1, 5])
async def test_sending(skip: int) -> None:
    await stories.sending(skip)


@pytest.mark.parametrize("api_key", [ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.INIT_PRODUCER_ID])
async def test_beginning_to_send(api_key: ApiKey) -> None:
    await stories.beginning_to_send(api_key)


@pytest.mark.parametrize("at", At)
async def test_sending_into_silence(at: At) -> None:
    await stories.sending_into_silence(at)


@pytest.mark.parametrize("heartbeat", HEARTBEATS)
@pytest.mark.parametrize("api_key", [ApiKey.FETCH, ApiKey.HEARTBEAT, ApiKey.OFFSET_COMMIT])
async def test_reading(api_key: ApiKey, heartbeat: str) -> None:
    await stories.reading(api_key, heartbeat)


@pytest.mark.parametrize(
    "api_key",
    [
        ApiKey.API_VERSIONS,
        ApiKey.METADATA,
        ApiKey.FIND_COORDINATOR,
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.OFFSET_FETCH,
        ApiKey.LIST_OFFSETS,
    ],
)
async def test_joining(api_key: ApiKey) -> None:
    await stories.joining(api_key)


@pytest.mark.parametrize("at", At)
@pytest.mark.parametrize("heartbeat", HEARTBEATS)
@pytest.mark.parametrize("api_key", [ApiKey.FETCH, ApiKey.HEARTBEAT, ApiKey.OFFSET_COMMIT])
async def test_reading_from_silence(api_key: ApiKey, at: At, heartbeat: str) -> None:
    await stories.reading_from_silence(api_key, at, heartbeat)


@pytest.mark.parametrize("api_key", stories.ASKING)
async def test_asking(api_key: ApiKey) -> None:
    await stories.asking(api_key)
