"""Assignors decide which member of a group reads which partition. Pure: no I/O, no clock.

`assignor(RANGE)` creates one of Kafka's four by name; `interface` explains how to write your own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from muster.client.assignors.checked import assign_checked
from muster.client.assignors.cooperative_sticky import CooperativeStickyAssignor
from muster.client.assignors.interface import (
    NO_GENERATION,
    Assignor,
    MemberSubscription,
    RebalanceProtocol,
    TopicPartitions,
    common_protocol,
    everything,
)
from muster.client.assignors.range import RangeAssignor
from muster.client.assignors.round_robin import RoundRobinAssignor
from muster.client.assignors.sticky import StickyAssignor
from muster.client.assignors.subscription_bytes import (
    assignment_bytes,
    read_assignment,
    read_subscription,
    subscription_bytes,
)

__all__ = [
    "COOPERATIVE_STICKY",
    "NO_GENERATION",
    "RANGE",
    "ROUNDROBIN",
    "STICKY",
    "Assignor",
    "MemberSubscription",
    "RebalanceProtocol",
    "TopicPartitions",
    "assign_checked",
    "assignment_bytes",
    "assignor",
    "common_protocol",
    "everything",
    "read_assignment",
    "read_subscription",
    "subscription_bytes",
]

RANGE: Final = "range"
ROUNDROBIN: Final = "roundrobin"
STICKY: Final = "sticky"
COOPERATIVE_STICKY: Final = "cooperative-sticky"

_CLASSES: Final[Mapping[str, Callable[[], Assignor]]] = {
    each.name: each for each in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)
}


def assignor(which: str | Assignor) -> Assignor:
    """A new assignor of this name, one of Kafka's four; an assignor is returned unchanged. Raises ValueError
    for any other name."""
    if isinstance(which, Assignor):
        return which
    if which not in _CLASSES:
        raise ValueError(f"assignors: {which!r} is none of {', '.join(_CLASSES)}")
    return _CLASSES[which]()
