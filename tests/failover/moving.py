"""Plays scenarios against three brokers: at each `reload` the group's coordinator goes away, and may come
back."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pytest

from muster.protocol.errors import ErrorCode
from tests.failover.brokers import Fault, ThreeBrokers, homes
from tests.group.scenario import Scenario
from tests.kafka.our_server import (
    BESIDE_THE_STORY,
    FOREVER_MS,
    ClockMovedFromOutside,
    MovedClockDriver,
    broker_settings,
)
from tests.support.wire_blocking import ConnectionClosed

_OTHER_GROUPS: Final = ("archive",)
"""Groups that scenarios use beside the main one."""


class MovingDriver(MovedClockDriver):
    """`reload` makes the coordinator go away; `comes_back` says whether the story continues once it is
    back."""

    def __init__(
        self,
        cluster: ThreeBrokers,
        clock: ClockMovedFromOutside,
        partitions: Mapping[str, int],
        group_id: str,
        fault: Fault,
        *,
        comes_back: bool,
    ) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._fault = fault
        self._comes_back = comes_back
        super().__init__(cluster, clock, partitions, group_id)

    def reload(self) -> None:
        index = self._cluster.goes(self._fault, self._group_id)
        if self._comes_back:
            self._cluster.again(self._fault, index, self._group_id)
        self._end_what_was_parked()
        self.disconnect_all()
        holder = self._cluster.holder(self._group_id)
        assert holder is not None
        assert (holder == index) == self._comes_back
        self._address = ("127.0.0.1", self._cluster.ports[holder])
        self.reconnect()

    def _end_what_was_parked(self) -> None:
        """A broker that stops cleanly, or finds itself replaced, answers that it is no longer the
        coordinator."""
        for connection, asked in self._in_flight.items():
            if self._fault is Fault.KILL:
                with pytest.raises((ConnectionClosed, ConnectionError)):
                    connection.receive()
            elif self._fault is not Fault.PAUSE or self._comes_back:
                response: Any = connection.receive()
                assert response.error_code == ErrorCode.NOT_COORDINATOR, asked


def suffix_for(scenario: Scenario) -> str:
    """A suffix that puts all groups of the scenario on one broker, since the driver talks to only one."""
    suffixes = (f"-moved-{number}" for number in itertools.count(1))
    groups = (scenario.group, *_OTHER_GROUPS)
    return next(suffix for suffix in suffixes if len({homes(name + suffix) for name in groups}) == 1)


@contextmanager
def running_driver(
    scenario: Scenario, suffix: str, kept_in: Mapping[str, Any], fault: Fault, *, comes_back: bool
) -> Iterator[MovingDriver]:
    """Start brokers for one scenario, with its configs and otherwise Kafka's defaults."""
    settings = broker_settings(scenario)
    settings.setdefault("group_initial_rebalance_delay_ms", 3000)
    for beside_the_story in BESIDE_THE_STORY - {"lease_term_ms"}:
        settings[beside_the_story] = FOREVER_MS
    partitions = {name + suffix: count for name, count in scenario.topics.items()}
    clock = ClockMovedFromOutside()
    group_id = scenario.group + suffix
    with (
        ThreeBrokers(clock=clock, **kept_in, **settings) as cluster,
        MovingDriver(cluster, clock, partitions, group_id, fault, comes_back=comes_back) as driver,
    ):
        yield driver
