"""Shared by the programs of all Python clients: their output lines, their arguments, and their records."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

EXPECT_S: Final = 30.0


def say(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def say_assigned(generation: int | None, owned: Iterable[int]) -> None:
    say("assigned", generation=generation, owned=sorted(owned))


def say_revoked(owned: Iterable[int] = (), generation: int | None = None) -> None:
    say("revoked", owned=sorted(owned), generation=generation)


def say_record(partition: int, offset: int, key: bytes | None, value: bytes | None) -> None:
    say(
        "record", partition=partition, offset=offset, key=(key or b"").decode(), value=(value or b"").decode()
    )


def say_committed(offsets: dict[int, int], *, certain: bool = True) -> None:
    for partition, offset in offsets.items():
        say("committed" if certain else "commit_failed", partition=partition, offset=offset)


def place(topic: str, partition: int) -> int:
    """The number that identifies a partition: see `story/clients/base.py`."""
    _, dot, number = topic.rpartition(".")
    return partition + 1_000 * int(number) if dot else partition


def configs(given: Iterable[str]) -> dict[str, str]:
    """A member's configs as given on its command line; a bare word is an assignor (`mixed/`)."""
    named = (each if "=" in each else f"partition.assignment.strategy={each}" for each in given)
    return dict(each.split("=", 1) for each in named)


def complain(error: object) -> None:
    print(error, file=sys.stderr, flush=True)


def standard_input_ends() -> threading.Event:
    """Set when our standard input is closed: it is time to leave."""
    ended = threading.Event()

    def read() -> None:
        while os.read(sys.stdin.fileno(), 1024):  # a thread in sys.stdin's own read would spoil an early exit
            pass
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    return ended


def records(codec: str, first: int, count: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values."""
    return ((f"k{number}".encode(), f"{codec}-{number}".encode()) for number in range(first, first + count))


def try_calls(
    calls: Iterable[tuple[str, Callable[[], object]]], error_of: Callable[[Exception], str]
) -> None:
    """Make admin calls one after the other, and print the outcome of each."""
    for name, call in calls:
        try:
            call()
        except Exception as error:
            complain(f"{name}: {error!r}")
            print(json.dumps({"call": name, "ok": False, "error": error_of(error)}), flush=True)
        else:
            print(json.dumps({"call": name, "ok": True}), flush=True)


def expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError(f"{found!r}, not {wanted!r}")


def expect_in_time(ask: Callable[[], object], wanted: object) -> None:
    """Wait: Apache Kafka's controller has acknowledged it, but its brokers may not know of it yet."""
    deadline = time.monotonic() + EXPECT_S
    while (found := ask()) != wanted and time.monotonic() < deadline:
        time.sleep(0.05)  # between two checks
    expect(found, wanted)  # not queried again: another broker may answer that does not know of it yet


def run(
    produce: Callable[[str, str, str, int, int], None],
    member: Callable[..., None],
    admin: Callable[[str, str], None],
) -> None:
    """Call the function named by the first argument with the others. A member may be given an assignor
    (`mixed/`) or configs."""
    match sys.argv[1:]:
        case ["produce", bootstrap, topic, codec, first, count]:
            produce(bootstrap, topic, codec, int(first), int(count))
        case ["member", bootstrap, group, topic, session_timeout_ms, *more]:
            member(bootstrap, group, topic, int(session_timeout_ms), *more)
        case ["admin", bootstrap, prefix]:
            admin(bootstrap, prefix)
        case _:
            raise SystemExit(
                "produce BOOTSTRAP TOPIC CODEC FIRST COUNT | admin BOOTSTRAP PREFIX | "
                "member BOOTSTRAP GROUP TOPIC MS [ASSIGNOR | NAME=VALUE...]"
            )
