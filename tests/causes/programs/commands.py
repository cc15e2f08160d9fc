"""What the members of all Python clients share: options, lines, and how they are told what to do."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Options:
    """How to be a member. Times are milliseconds."""

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
    """Or consumer (KIP-848), where sessions and heartbeats are the broker's to set."""
    remote_assignor: str | None = None
    """The server-side assignor that it asks for, in the consumer protocol."""

    @classmethod
    def given(cls) -> Options:
        """What the command line says, as JSON."""
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
    """The commands, as they come."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Command] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def next(self) -> Command | None:
        """The next one; None if there is none yet."""
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            return None

    def _read(self) -> None:
        rest = b""
        # Not by sys.stdin: a thread in its read would spoil an early exit.
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
    """In the consumer protocol: these as well as those that it has."""
    say("gained", partitions=sorted(partitions))


def say_lost(partitions: list[tuple[str, int]]) -> None:
    """In the consumer protocol: these no longer."""
    say("lost", partitions=sorted(partitions))


def complain(error: object) -> None:
    print(error, file=sys.stderr, flush=True)
