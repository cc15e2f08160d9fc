"""One request about many things."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from muster.coordinator.base.step import RequestContext
from muster.coordinator.server.serving import Broker
from muster.coordinator.server.unexpected import unexpected
from muster.coordinator.storage.store import StoreError
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError

_AT_ONCE: Final = 100

IN_A_TURN: Final = 256
"""Things that are processed before other requests get the loop."""

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")


async def several(ask: Callable[[A], Awaitable[B]], things: Sequence[A]) -> list[B]:
    """Call `ask` for each thing, a limited number at once, so that one request cannot fill a shard's backlog;
    answers in order."""
    if len(things) == 1:
        return [await ask(things[0])]
    answers: list[B] = []
    for start in range(0, len(things), _AT_ONCE):
        answers += await asyncio.gather(*map(ask, things[start : start + _AT_ONCE]))
    return answers


class Turns:
    """Lets the event loop serve other connections now and then while a handler loops over what its request
    lists: that may be a hundred thousand things, each refused without a wait."""

    def __init__(self) -> None:
        self._left = IN_A_TURN

    async def next(self, things: int = 1) -> None:
        """To be called for each thing, or for several that are processed together."""
        self._left -= things
        if self._left < 0:
            self._left = IN_A_TURN
            await asyncio.sleep(0)

    async def those(self, things: Iterable[A], wanted: Callable[[A], bool]) -> list[A]:
        """The things that are wanted."""
        found: list[A] = []
        for each in things:
            await self.next()
            if wanted(each):
                found.append(each)
        return found


class Attempts:
    """What one request changes in the store, one thing after the other. If the store fails at one, those
    before it are done, and their answers say so; that one and the rest are refused, the rest untried: each
    could wait for the store as long as that one did, and fill the log.

    `timeout_ms` is that of the request, for all of them; a change that still waits for the store then is
    refused with REQUEST_TIMED_OUT, but may be applied anyway. Without any time nothing is tried, as in
    Kafka."""

    def __init__(self, api_key: ApiKey, context: RequestContext, timeout_ms: int | None = None) -> None:
        self._api_key = api_key
        self._context = context
        self._failure: KafkaError | None = None
        self.heard = False
        """Whether the topics were read for the request."""
        self._until: float | None = None
        if timeout_ms is not None:
            self._until = asyncio.get_running_loop().time() + timeout_ms / 1_000
            if timeout_ms <= 0:
                self._failure = KafkaError(ErrorCode.REQUEST_TIMED_OUT)

    def check(self) -> None:
        """Raise what the next attempt is refused with, if it is."""
        if self._failure is not None:
            raise KafkaError(self._failure.code, self._failure.why)

    async def make(self, attempt: Coroutine[Any, Any, T]) -> T:
        """What `attempt` returns; a StoreError in it becomes the KafkaError that the client gets."""
        try:
            self.check()
        except KafkaError:
            attempt.close()
            raise
        try:
            return await self._in_time(attempt)
        except StoreError as error:
            context = self._context
            self._failure = unexpected(error, self._api_key, context.api_version, context.client_id)
            raise self._failure from error

    async def _in_time(self, attempt: Coroutine[Any, Any, T]) -> T:
        if self._until is None:
            return await attempt
        loop = asyncio.get_running_loop()
        # A task of its own: a change cancelled halfway might be in the store but not in the catalogue.
        task = loop.create_task(attempt, name=self._api_key.name)
        _MADE.add(task)
        task.add_done_callback(_forget)
        done, _ = await asyncio.wait([task], timeout=max(self._until - loop.time(), 0))
        if done:
            return task.result()
        self._failure = KafkaError(
            ErrorCode.REQUEST_TIMED_OUT,
            "the store did not answer within the request's timeout; the change may be applied anyway",
        )
        raise self._failure


async def heard_of_all(broker: Broker, attempts: Attempts, known: bool) -> None:
    """Read the topics again unless what a request is about is already `known`. Another broker may have
    created or deleted a topic a moment ago, and its client knows: like Kafka's controller, this broker must
    not refuse a change because of what it has not heard of yet. At most one read for a request; if the store
    fails, the attempts report it."""
    if not known:
        attempts.heard = True
        with suppress(KafkaError):
            await attempts.make(broker.read_topics())


async def make_heard(
    broker: Broker,
    attempts: Attempts,
    attempt: Callable[[], Coroutine[Any, Any, T]],
    doubtful: Collection[ErrorCode],
) -> T:
    """Make an attempt to change a topic. If it is refused with one of the `doubtful` codes, another broker
    may have changed the topic a moment ago: read the topics, unless that was done for this request, and try
    again."""
    try:
        return await attempts.make(attempt())
    except KafkaError as refusal:
        if attempts.heard or refusal.code not in doubtful:
            raise
    await heard_of_all(broker, attempts, known=False)
    return await attempts.make(attempt())


_MADE: Final[set[asyncio.Task[Any]]] = set()
"""Attempts under way, which go on even if nobody waits for them any more."""


def _forget(task: asyncio.Task[Any]) -> None:
    _MADE.discard(task)
    if not task.cancelled():
        task.exception()  # Retrieved, so that asyncio does not complain.
