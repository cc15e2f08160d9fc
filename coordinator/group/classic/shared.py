"""What the classic groups of a shard have in common."""

from __future__ import annotations

from typing import NamedTuple

from muster.coordinator.base.deadlines import Deadlines
from muster.coordinator.group.classic.connections import Connections
from muster.coordinator.group.classic.subscriptions import PartitionCounts
from muster.coordinator.group.config import GroupConfig
from muster.coordinator.group.hard_state import HardState
from muster.coordinator.group.rate_limiters import RateLimiters
from muster.coordinator.group.timers import TimerKey


class Topics:
    """What a shard knows of the topics there are."""

    __slots__ = ("partitions",)

    def __init__(self) -> None:
        self.partitions: PartitionCounts | None = None
        """How many each has; None: not told yet."""


class Shared(NamedTuple):
    """What a group shares with the others of its shard."""

    config: GroupConfig
    hard: HardState
    deadlines: Deadlines[TimerKey]
    connections: Connections
    topics: Topics
    rate_limiters: RateLimiters
