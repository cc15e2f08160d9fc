"""Shared by the members of all Python clients: options, output lines, and commands."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Options:
    """The settings of a member. Times are in milliseconds."""

    bootstrap: str
    group: str
    topics: list[str]
    client_id: str
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 500
    max_poll_interval_ms: int = 300_000
    metadata_max_age_ms: int = 300_000
    instance: str | None = None
    assignors: list[str] = field(default_factory=list)
    protocol: str = "classic"
    """Or `consumer` (KIP-848), where the broker sets session timeouts and heartbeat intervals."""
    remote_assignor: str | None = None
    """The server-side assignor to request, in the consumer protocol."""

    @classmethod
    def given(cls) -> Options:
        """The options from the command line, as JSON."""
        (text,) = sys.argv[1:]
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Nap:
    seconds: float


@dataclass(frozen=True)
class Block:
    seconds: float


@dataclass(frozen=True)
class Subscribe:
    topics: list[str]


@dataclass(frozen=True)
class Close:
    pass


Command = Nap | Block | Subscribe | Close


class Commands:
    """Commands from standard input, as they arrive."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Command] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def next(self) -> Command | None:
        """The next command; None if there is none yet."""
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            return None

    def _read(self) -> None:
        rest = b""
        # Not through sys.stdin: a thread blocked in its read would break an early exit.
        while piece := os.read(sys.stdin.fileno(), 4096):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                self._queue.put(_command(line.decode()))
        self._queue.put(Close())


def _command(line: str) -> Command:
    match line.split():
        case ["nap", seconds]:
            return Nap(float(seconds))
        case ["block", seconds]:
            return Block(float(seconds))
        case ["subscribe", topics]:
            return Subscribe(topics.split(","))
        case ["close"]:
            return Close()
    raise SystemExit(f"no such command: {line!r}")


def say(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def say_assigned(partitions: list[tuple[str, int]]) -> None:
    say("assigned", partitions=sorted(partitions))


def say_gained(partitions: list[tuple[str, int]]) -> None:
    """In the consumer protocol: these partitions in addition to the current ones."""
    say("gained", partitions=sorted(partitions))


def say_lost(partitions: list[tuple[str, int]]) -> None:
    """In the consumer protocol: these partitions are gone."""
    say("lost", partitions=sorted(partitions))


def complain(error: object) -> None:
    print(error, file=sys.stderr, flush=True)
