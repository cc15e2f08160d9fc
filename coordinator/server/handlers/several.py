"""One request about many things."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

from muster.coordinator.group.effects import RequestContext
from muster.coordinator.server.unexpected import unexpected
from muster.coordinator.storage.store import StoreError
from muster.protocol.api import ApiKey
from muster.protocol.errors import KafkaError

_AT_ONCE: Final = 100

_IN_A_TURN: Final = 256

A = TypeVar("A")
B = TypeVar("B")


async def several(ask: Callable[[A], Awaitable[B]], things: Sequence[A]) -> list[B]:
    """`ask` about each thing, some at once, so that one request cannot fill a shard's backlog; answers in
    order."""
    answers: list[B] = []
    for start in range(0, len(things), _AT_ONCE):
        answers += await asyncio.gather(*map(ask, things[start : start + _AT_ONCE]))
    return answers


class Turns:
    """Lets the event loop serve other connections now and then, in a handler's loop over what its request
    lists: that may be a hundred thousand things, each refused without a wait."""

    def __init__(self) -> None:
        self._left = _IN_A_TURN

    async def next(self) -> None:
        """To be called for each thing."""
        self._left -= 1
        if self._left < 0:
            self._left = _IN_A_TURN
            await asyncio.sleep(0)


class Attempts:
    """What one request changes in the store, one thing after the other. When the store fails at one, those
    before it are done, and their answers say so; that one and the rest are refused, the rest untried: each
    could wait for the store as long as this one did, and fill the log."""

    def __init__(self, api_key: ApiKey, context: RequestContext) -> None:
        self._api_key = api_key
        self._context = context
        self._failure: KafkaError | None = None

    @contextmanager
    def next(self) -> Iterator[None]:
        """Around each attempt; a StoreError in it becomes the KafkaError that the client is told."""
        if self._failure is not None:
            raise KafkaError(self._failure.code, self._failure.why)
        try:
            yield
        except StoreError as error:
            context = self._context
            self._failure = unexpected(error, self._api_key, context.api_version, context.client_id)
            raise self._failure from error
