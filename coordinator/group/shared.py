"""What the groups of a shard share."""

from __future__ import annotations

from typing import NamedTuple

from muster.coordinator.base.deadlines import Deadlines
from muster.coordinator.group.config import GroupConfig, GroupConfigs
from muster.coordinator.group.connections import Connections
from muster.coordinator.group.hard_state import HardState
from muster.coordinator.group.rate_limiters import RateLimiters
from muster.coordinator.group.timers import TimerKey
from muster.coordinator.group.topics import Topics


class Shared(NamedTuple):
    """What a group shares with the other groups of its shard."""

    config: GroupConfig
    configs: GroupConfigs
    hard: HardState
    deadlines: Deadlines[TimerKey]
    connections: Connections
    topics: Topics
    rate_limiters: RateLimiters
