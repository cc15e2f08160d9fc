"""Everything that brokers of this process hold and could leave behind."""

from __future__ import annotations

import asyncio
import os
import resource
import threading
from collections.abc import Sequence
from pathlib import Path

from muster.coordinator.server.broker import Broker

LEFT: tuple[str, ...] = (
    "tasks",
    "connections",
    "connection_tasks",
    "request_bytes",
    "response_bytes",
    "files",
)
"""Must be back at its old value once all clients are gone."""


def held(brokers: Sequence[Broker]) -> dict[str, int]:
    """Counts, and bytes where the name says so, of this process and its brokers together."""
    counts = [broker.connections.counts for broker in brokers]
    return {
        **held_by_process(),
        "connections": sum(len(broker.connections.open) for broker in brokers),
        "connection_tasks": sum(len(broker.connections.alive) for broker in brokers),
        "request_bytes": sum(broker.connections.requests.held_bytes for broker in brokers),
        "response_bytes": sum(broker.connections.responses.held_bytes for broker in brokers),
        "accepted": sum(each.accepted for each in counts),
        "undecodable": sum(each.undecodable for each in counts),
        "too_large": sum(each.too_large for each in counts),
        "requests": sum(each.requests for each in counts),
    }


def held_by_process() -> dict[str, int]:
    """Tasks of the running loop, open files, threads, and bytes of resident memory."""
    return {
        "tasks": len(asyncio.all_tasks()),
        "files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "resident_bytes": int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize(),
    }
