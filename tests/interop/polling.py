"""Shared by the tests of all stock clients: values to send, and members polled until a fact holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, Protocol

DEADLINE_S: Final = 30.0


class Polled(Protocol):
    """A group member that makes progress only while it is polled."""

    values: list[bytes]

    @property
    def partitions(self) -> Any: ...

    def poll(self) -> None: ...


def poll_until(fact: Callable[[], bool], *members: Polled) -> None:
    """Poll the members in turn until `fact` holds; fail at the deadline, showing what they have."""
    deadline = time.monotonic() + DEADLINE_S
    while not fact():
        assert time.monotonic() < deadline, [(member.partitions, len(member.values)) for member in members]
        for member in members:
            member.poll()


def values(count: int, prefix: str = "v") -> list[bytes]:
    return [f"{prefix}{number}".encode() for number in range(count)]
