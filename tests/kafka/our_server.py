"""Plays scenarios against our own server, whose clock can be moved and whose broker can be made to fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from muster.coordinator.base.clock import ManualClock, Timer
from muster.coordinator.testing import Broker, Cluster
from tests.group.core_driver import config_value
from tests.group.scenario import Answer, Scenario
from tests.kafka.wire_driver import WireDriver

_MOVE_SECONDS_MAX: Final = 10.0
FOREVER_MS: Final = 2**31 - 1
"""Longer than any story."""
BESIDE_THE_STORY: Final = frozenset(
    {
        "lease_term_ms",
        "connections_max_idle_ms",
        "request_receive_timeout_ms",
        "log_cleaner_backoff_ms",
        "log_retention_check_interval_ms",
    }
)


class ClockMovedFromOutside(ManualClock):
    """Stands still on the broker's loop until another thread moves it."""

    def __init__(self) -> None:
        super().__init__()
        self._loop: asyncio.AbstractEventLoop | None = None

    def at(self, when_ms: int, callback: Callable[[], None]) -> Timer:
        self._loop = asyncio.get_running_loop()
        return super().at(when_ms, callback)

    def move_to_next(self, end_ms: int) -> bool:
        """Move to the next timer due by `end_ms` and fire it, or move to `end_ms`. Whether one fired."""
        assert self._loop is not None, "nothing has been timed yet"
        return asyncio.run_coroutine_threadsafe(self._move_to_next(end_ms), self._loop).result(
            _MOVE_SECONDS_MAX
        )

    async def _move_to_next(self, end_ms: int) -> bool:
        next_ms = self.next_ms()
        fires = next_ms is not None and next_ms <= end_ms
        self.advance(max((next_ms if fires and next_ms is not None else end_ms) - self.now_ms(), 0))
        return fires


class MovedClockDriver(WireDriver):
    """Moves the clock from timer to timer, and lets the broker settle after each, as the core does."""

    def __init__(
        self, broker: Cluster, clock: ClockMovedFromOutside, partitions: Mapping[str, int], group_id: str
    ) -> None:
        """Of several brokers, it talks to the group's coordinator."""
        self._broker = broker
        self._clock = clock
        index = broker.coordinator_of(group_id)
        assert index is not None
        super().__init__("127.0.0.1", broker.ports[index], partitions, group_id)

    def replies(self, expected: int) -> list[Answer]:
        self._move(0)
        return super().replies(expected)

    def advance(self, by_ms: int) -> None:
        self._move(by_ms)

    def reload(self) -> None:
        """The broker dies, and its next life loads what it had made durable."""
        self._broker.kill(0)
        self.disconnect_all()
        self._broker.restart(0)
        self.reconnect()

    def _move(self, by_ms: int) -> None:
        end_ms = self._clock.now_ms() + by_ms
        self.see_all_done()
        while self._clock.move_to_next(end_ms):
            self.see_all_done()


def broker_settings(scenario: Scenario) -> dict[str, Any]:
    """A scenario's configs as settings of a broker."""
    return {name.replace(".", "_"): config_value(value) for name, value in scenario.config.items()}


@contextmanager
def running_driver(scenario: Scenario) -> Iterator[MovedClockDriver]:
    """A separate broker for a scenario, with the scenario's configs and otherwise Kafka's defaults."""
    settings = broker_settings(scenario)
    settings.setdefault("group_initial_rebalance_delay_ms", 3000)
    for beside_the_story in BESIDE_THE_STORY:
        settings[beside_the_story] = FOREVER_MS
    clock = ClockMovedFromOutside()
    with (
        Broker(clock=clock, **settings) as broker,
        MovedClockDriver(broker, clock, scenario.topics, scenario.group) as driver,
    ):
        yield driver
