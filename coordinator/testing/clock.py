"""The clock of a `Broker` or `Cluster`, which a test moves instead of waiting."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from muster.coordinator.server.advancing import ClockFixed, NotAtRest
from muster.coordinator.testing.faces import Async, Blocking, Calls, both
from muster.durations import parse

__all__ = ["AsyncClock", "Clock", "ClockCalls", "ClockFixed", "NotAtRest"]


class ClockCalls(Calls):
    """Real time, plus what it has been moved by: what groups, offsets, records and leases go by.

    broker.clock.advance("45s")

    Clients' own clocks stand still meanwhile, so members whose connections are open and who were not late
    count as alive, unless they are marked with `stall`. Nor can clients do anything while time moves: to see
    a rebalance through, advance to where it begins, wait until the group is stable, and advance on.

    Records carry their producers' time, which stays behind; those of a topic with `message.timestamp.type`
    LogAppendTime carry this one.
    """

    __slots__ = ()

    def now_ms(self) -> int:
        """Epoch milliseconds."""

        async def look() -> int:
            return self._core.brokers.now_ms()

        return self._look(look)

    def now(self) -> datetime:
        """The time, in UTC."""
        return datetime.fromtimestamp(self.now_ms() / 1_000, UTC)

    @both
    async def advance(self, by: str | timedelta | float, *, expire_all: bool = False) -> None:
        """Let time pass: `"45s"`, `"1h30m"`, `"7 days"`, a timedelta or seconds. Returns when all that fell
        due has happened, in order, and is durable.

        With `expire_all` no member counts as alive: whoever has not been heard of for as long as its session
        lasts is out. Raises ValueError for what is no duration, ClockFixed with a database, whose clock is
        its own, and NotAtRest when something that was due did not come to its end.
        """
        await self._core.brokers.advance(parse(by), expire_all=expire_all)

    @both
    async def stall(self, group: str, member_id: str) -> None:
        """From now on this member does not count as alive while time moves: as if its process stood still.
        Raises LookupError for a member that the group does not have."""
        self._core.brokers.stall(group, member_id)

    @both
    async def unstall(self, group: str, member_id: str) -> None:
        """Take `stall` back; harmless without it."""
        self._core.brokers.unstall(group, member_id)


class Clock(ClockCalls, Blocking):
    """The clock of blocking calls."""

    __slots__ = ()


class AsyncClock(ClockCalls, Async):
    """The clock of awaited calls."""

    __slots__ = ()
