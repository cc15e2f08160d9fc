"""Calls that fail, where what they report depends on how far they got."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from muster.client.errors import ClientError
from muster.protocol.errors import KafkaError
from tests.client.logs import LONG_S


async def failure(call: Callable[[], Coroutine[Any, Any, Any]], said: str) -> ClientError | KafkaError:
    """The error that the call raises, within LONG_S. On a busy machine its time can be over before anything
    was heard; then it is repeated until it raises the expected error."""
    async with asyncio.timeout(LONG_S):
        while True:
            with pytest.raises((ClientError, KafkaError)) as raised:
                await call()
            if re.search(said, str(raised.value)):
                return raised.value
