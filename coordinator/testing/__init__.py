"""muster for tests: a `Broker` or a `Cluster` in its own thread, started in milliseconds, over real TCP.

    with Broker() as broker:
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "orders"})

    async with Broker() as broker:
        await broker.group("orders").stable(members=2)

The pytest plugin provides both as fixtures. See docs/testing.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from muster.coordinator.testing.broker import AsyncBroker, AsyncCluster, Broker, Cluster
    from muster.coordinator.testing.clock import AsyncClock, Clock, ClockFixed, NotAtRest
    from muster.coordinator.testing.faults import (
        AsyncFaultRule,
        AsyncFaults,
        AsyncMarkerHold,
        FaultError,
        FaultRule,
        Faults,
        Firing,
        MarkerHold,
        RuleStatus,
    )
    from muster.coordinator.testing.groups import (
        AsyncGroup,
        AsyncMember,
        Group,
        GroupFacts,
        Member,
        MemberFacts,
    )
    from muster.coordinator.testing.snapshot import Snapshot
    from muster.coordinator.testing.timeline import Timeline
    from muster.coordinator.testing.topics import AsyncTopic, Record, Topic
    from muster.coordinator.testing.transactions import AsyncTransaction, Transaction, TransactionFacts
    from muster.coordinator.testing.waiting import WaitFailed

__all__ = [
    "AsyncBroker",
    "AsyncClock",
    "AsyncCluster",
    "AsyncFaultRule",
    "AsyncFaults",
    "AsyncGroup",
    "AsyncMarkerHold",
    "AsyncMember",
    "AsyncTopic",
    "AsyncTransaction",
    "Broker",
    "Clock",
    "ClockFixed",
    "Cluster",
    "FaultError",
    "FaultRule",
    "Faults",
    "Firing",
    "Group",
    "GroupFacts",
    "MarkerHold",
    "Member",
    "MemberFacts",
    "NotAtRest",
    "Record",
    "RuleStatus",
    "Snapshot",
    "Timeline",
    "Topic",
    "Transaction",
    "TransactionFacts",
    "WaitFailed",
]

_MODULES: Final = {
    "broker": ("AsyncBroker", "AsyncCluster", "Broker", "Cluster"),
    "clock": ("AsyncClock", "Clock", "ClockFixed", "NotAtRest"),
    "faults": (
        "AsyncFaultRule",
        "AsyncFaults",
        "AsyncMarkerHold",
        "FaultError",
        "FaultRule",
        "Faults",
        "Firing",
        "MarkerHold",
        "RuleStatus",
    ),
    "groups": ("AsyncGroup", "AsyncMember", "Group", "GroupFacts", "Member", "MemberFacts"),
    "snapshot": ("Snapshot",),
    "timeline": ("Timeline",),
    "topics": ("AsyncTopic", "Record", "Topic"),
    "transactions": ("AsyncTransaction", "Transaction", "TransactionFacts"),
    "waiting": ("WaitFailed",),
}


def __getattr__(name: str) -> Any:
    """Import lazily: pytest imports this package for its plugin in every run where muster is installed."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
