"""One request about many things, asked of many shards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

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
