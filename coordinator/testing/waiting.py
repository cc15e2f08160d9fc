"""Waiting for a condition, or failing with the current state."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, NamedTuple, TypeVar

from muster.protocol.errors import KafkaError

T = TypeVar("T")

Duration = str | float | timedelta
"""Text with a unit ("45s", "7 days"), seconds, or a timedelta."""

TIMEOUT_S: Final = 30.0
"""Real time, whatever the brokers' clock."""
_LOOK_AGAIN_S: Final = 0.01
_LOOK_S: Final = 5.0
"""Time limit of the last check; even a wait with timeout 0 checks once."""


class WaitFailed(AssertionError):
    """A wait timed out. The message gives what was awaited, the current state, and the group's journal."""


class Seen(NamedTuple):
    """The result of one check."""

    met: bool
    how: str
    """The current state in words."""


def seconds(timeout: Duration) -> float:
    """Raises ValueError for an invalid duration."""
    from muster.durations import parse

    return parse(timeout) / 1000


async def wait_until(
    news: Callable[[], asyncio.Future[None]],
    wanted: str,
    look: Callable[[], Awaitable[tuple[Seen, T]]],
    timeout: Duration,
    *,
    story: Callable[[], str] = str,
) -> T:
    """Call `look` until it reports `met`, and return what it found. Checks whenever there is `news`, and a
    hundred times a second. Raises WaitFailed, with `story` after the current state."""
    limit_s = seconds(timeout)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    while True:
        heard = news()
        try:
            async with asyncio.timeout(max(begun + limit_s - loop.time(), _LOOK_S)):
                seen, found = await look()
        except KafkaError as error:  # no coordinator or leader right now
            how = str(error)
        except TimeoutError:
            how = "the broker does not respond"
        else:
            if seen.met:
                return found
            how = seen.how
        left_s = begun + limit_s - loop.time()
        if left_s <= 0:
            failed = [f"timed out after {limit_s:g} s waiting for {wanted}", f"  now: {how}", story()]
            raise WaitFailed("\n".join(filter(None, failed)))
        await asyncio.wait([heard], timeout=min(left_s, _LOOK_AGAIN_S))
