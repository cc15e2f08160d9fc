"""Waiting for a fact: until it is so, or with a failure that says how it was instead."""

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
"""Real time, whatever clock the brokers are given."""
_LOOK_AGAIN_S: Final = 0.01
_LOOK_S: Final = 5.0
"""How long the last look may take: also a wait of no time at all takes one."""


class WaitFailed(AssertionError):
    """What a test waited for did not come about in time. The text says what it was, how it is instead, and
    what the group has been through."""


class Seen(NamedTuple):
    """What one look has found."""

    met: bool
    how: str
    """The present state in a person's words."""


def seconds(timeout: Duration) -> float:
    """Raises ValueError for what is no duration."""
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
    """Look until what is seen is `met`; what `look` found with it. Looks again whenever there is `news`, and
    a hundred times a second. Raises WaitFailed, with `story` behind how it is."""
    limit_s = seconds(timeout)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    while True:
        heard = news()
        try:
            async with asyncio.timeout(max(begun + limit_s - loop.time(), _LOOK_S)):
                seen, found = await look()
        except KafkaError as error:  # nobody coordinates or leads it right now
            how = str(error)
        except TimeoutError:
            how = "the broker does not answer"
        else:
            if seen.met:
                return found
            how = seen.how
        left_s = begun + limit_s - loop.time()
        if left_s <= 0:
            failed = [f"did not come about within {limit_s:g} s: {wanted}", f"  it is: {how}", story()]
            raise WaitFailed("\n".join(filter(None, failed)))
        await asyncio.wait([heard], timeout=min(left_s, _LOOK_AGAIN_S))
