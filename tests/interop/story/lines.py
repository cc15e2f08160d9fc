"""The output lines of a client's program, as data (`clients/base.py` says what each line means)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias


@dataclass(frozen=True)
class Assigned:
    generation: int | None
    owned: frozenset[int]


@dataclass(frozen=True)
class Revoked:
    owned: frozenset[int]
    generation: int | None = None
    """The member's generation."""


@dataclass(frozen=True)
class Record:
    partition: int
    offset: int
    key: str
    value: str


@dataclass(frozen=True)
class Committed:
    partition: int
    offset: int


@dataclass(frozen=True)
class CommitFailed:
    partition: int
    offset: int


@dataclass(frozen=True)
class Transaction:
    """A step of a transaction: see `tests/interop/transactions/clients.py`."""

    step: str
    records: int


@dataclass(frozen=True)
class Left:
    pass


@dataclass(frozen=True)
class Killed:
    """SIGKILL was sent. Recorded by the story, not printed by a program."""


Event: TypeAlias = Assigned | Revoked | Record | Committed | CommitFailed | Transaction | Left | Killed


@dataclass(frozen=True)
class Heard:
    """An event, the member it is from, and when it arrived.

    The lines of one member are in order. Between two members the order of arrival says little: both may have
    been in their pipes for a moment.
    """

    at_s: float
    member: str
    event: Event


@dataclass(frozen=True)
class AdminCall:
    call: str
    ok: bool
    error: str = ""


def _partitions(numbers: Any) -> frozenset[int]:
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        raise TypeError("owned is not a list of numbers")
    return frozenset(numbers)


def _generation(number: Any) -> int | None:
    return None if number is None else int(number)


_EVENTS: Final[dict[str, Callable[[dict[str, Any]], Event]]] = {
    "assigned": lambda line: Assigned(_generation(line["generation"]), _partitions(line["owned"])),
    "revoked": lambda line: Revoked(_partitions(line["owned"]), _generation(line.get("generation"))),
    "record": lambda line: Record(
        int(line["partition"]), int(line["offset"]), str(line["key"]), str(line["value"])
    ),
    "committed": lambda line: Committed(int(line["partition"]), int(line["offset"])),
    "commit_failed": lambda line: CommitFailed(int(line["partition"]), int(line["offset"])),
    "transaction": lambda line: Transaction(str(line["step"]), int(line["records"])),
    "left": lambda line: Left(),
}


def parse_event(text: str) -> Event:
    """Parse a member program's line. Raises ValueError if it is not one."""
    try:
        line = json.loads(text)
        return _EVENTS[line["event"]](line)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"no line of a member: {text!r} ({error!r})") from None


def parse_call(text: str) -> AdminCall:
    """Parse an admin program's line. Raises ValueError if it is not one."""
    try:
        line = json.loads(text)
        call, ok = line["call"], line["ok"]
        if not isinstance(call, str) or not isinstance(ok, bool):
            raise TypeError("call is not text, or ok neither true nor false")
        return AdminCall(call, ok, "" if ok else str(line["error"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"no line of an admin program: {text!r} ({error!r})") from None
