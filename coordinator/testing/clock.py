"""The clock of a `Broker` or `Cluster`, which a test advances instead of waiting."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from muster.coordinator.server.test_mode.advancing import ClockFixed, NotAtRest
from muster.coordinator.testing.faces import Async, Blocking, Calls, both
from muster.durations import parse

__all__ = ["AsyncClock", "Clock", "ClockCalls", "ClockFixed", "NotAtRest"]


class ClockCalls(Calls):
    """Real time plus all advances; used for groups, offsets, records and leases.

    broker.clock.advance("45s")

    Clients' own clocks are not advanced, so connected members that were not late are kept alive, unless
    marked with `stall`. Clients cannot act while time moves: to follow a rebalance, advance to where it
    begins, wait until the group is stable, and advance again.

    Records carry their producers' timestamps, which are not advanced; in topics with
    `message.timestamp.type` LogAppendTime, they carry this clock's time.
    """

    __slots__ = ()

    def now_ms(self) -> int:
        """Epoch milliseconds."""

        async def look() -> int:
            return self._core.brokers.now_ms()

        return self._look(look)

    def now(self) -> datetime:
        """The time as a datetime in UTC."""
        return datetime.fromtimestamp(self.now_ms() / 1_000, UTC)

    @both
    async def advance(self, by: str | timedelta | float, *, expire_all: bool = False) -> None:
        """Advance the clock: `"45s"`, `"1h30m"`, `"7 days"`, a timedelta or seconds. Returns when everything
        that fell due has happened, in order, and is durable.

        With `expire_all` no member is kept alive: sessions expire unless renewed. Raises ValueError for an
        invalid duration, ClockFixed with a database, which has its own clock, and NotAtRest if something due
        did not finish.
        """
        await self._core.brokers.advance(parse(by), expire_all=expire_all)

    @both
    async def stall(self, group: str, member_id: str) -> None:
        """Do not keep this member alive when the clock is advanced, as if its process were frozen. Raises
        LookupError if the group has no such member."""
        self._core.brokers.stall(group, member_id)

    @both
    async def unstall(self, group: str, member_id: str) -> None:
        """Undo `stall`. Does nothing if the member is not stalled."""
        self._core.brokers.unstall(group, member_id)


class Clock(ClockCalls, Blocking):
    """The blocking API of the clock."""

    __slots__ = ()


class AsyncClock(ClockCalls, Async):
    """The async API of the clock."""

    __slots__ = ()
