"""How members on an event loop obey commands; their heartbeats are sent from the same loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from tests.causes.programs.commands import Block, Close, Commands, Nap, Subscribe, say


async def obey(
    commands: Commands, subscribe: Callable[[list[str]], None], poll: Callable[[], Awaitable[object]]
) -> None:
    """Poll, and carry out commands in between, until told to close."""
    while True:
        match commands.next():
            case Nap(seconds):
                await asyncio.sleep(seconds)
                say("awake")
            case Block(seconds):
                time.sleep(seconds)  # noqa: ASYNC251 (that is the point)
                say("awake")
            case Subscribe(topics):
                subscribe(topics)
            case Close():
                return
        await poll()
