"""Muster for tests: a `Broker` or a `Cluster` in a thread of its own, started in milliseconds, real over TCP.

with Broker() as broker:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "orders"})
"""

from __future__ import annotations

from muster.coordinator.testing.broker import Broker, Cluster

__all__ = ["Broker", "Cluster"]
