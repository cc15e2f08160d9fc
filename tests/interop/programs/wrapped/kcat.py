"""kcat: its records as JSON, and its rebalances from librdkafka's debug log.

kcat commits every five seconds, before it gives up partitions and when it leaves; a shorter interval cannot
be set (`-X auto.commit.interval.ms` sets a topic property of the same name, which does nothing).

On SIGTERM kcat drops the next record it receives, but still commits it. So it is asked to leave when no
record has arrived for a while.
"""

from __future__ import annotations

import json
import re
import time
from typing import Final

from tests.interop.programs.python.lines import (
    complain,
    records,
    run,
    say,
    say_assigned,
    say_committed,
    say_record,
    say_revoked,
)
from tests.interop.programs.wrapped.child import feed, follow

_SILENCE_S: Final = 2.0

_LOG: Final = re.compile(r"%\d\|[\d.]+\|(\w+)\|[^|]*\| (?:\[thrd:[^]]*\]: )?(.*)")
_GENERATION: Final = re.compile(r"JoinGroup response: GenerationId (\d+),")
_ASSIGNMENT: Final = re.compile(r"setting group assignment to (\d+) partition")
_ASSIGNED: Final = re.compile(r" \S+ \[(\d+)\] offset ")
_TO_COMMIT: Final = re.compile(r"Topic \S+ \[(\d+)\]: .* setting stored offset (\d+) for commit")
_TO_COMMIT_LAST: Final = re.compile(r"Removing \S+ \[(\d+)\] from assignment \(.*stored offset=(\d+)\)")
_COMMITTING: Final = re.compile(
    r"Committing offsets for \d+ partition\(s\) with .* in join-state [\w-]+: (.*)"
)
_COMMITTED: Final = re.compile(
    r"OffsetCommit for \d+ partition\(s\) in join-state [\w-]+: (.*): returned: (.*)"
)


class Member:
    """What kcat has printed so far."""

    def __init__(self) -> None:
        self._belongs = False
        """Whether it is in the group: it was assigned, and has not left or lost its session since."""
        self._generation: int | None = None
        self._owned: list[int] = []
        self._awaited = 0
        self._to_commit: dict[int, int] = {}
        self._committing: dict[str, dict[int, int]] = {}
        """By the reason for the commit."""
        self._last_record_s = -_SILENCE_S

    def hear(self, line: str) -> None:
        log = _LOG.search(line)
        if log is not None:
            self._hear_log(log[1], log[2])
        elif line.startswith("{"):
            self._last_record_s = time.monotonic()
            record = json.loads(line)
            key, value = record["key"].encode(), record["payload"].encode()
            say_record(record["partition"], record["offset"], key, value)
        else:
            complain(line)

    def may_leave(self) -> bool:
        return time.monotonic() - self._last_record_s >= _SILENCE_S

    def leave(self, code: int) -> None:
        if code != 0 or self._belongs:
            raise SystemExit(f"kcat exited {code} and has {'not ' if self._belongs else ''}left the group")
        say("left")

    def _hear_log(self, fact: str, text: str) -> None:
        match fact:
            case "JOINGROUP" if found := _GENERATION.match(text):
                self._generation = int(found[1])
            case "ASSIGNMENT" if found := _ASSIGNMENT.search(text):
                self._owned, self._awaited, self._belongs = [], int(found[1]), True
                self._to_commit = {}  # what could not be committed because the session had expired
                if not self._awaited:
                    say_assigned(self._generation, [])
            case "GRPASSIGNMENT" if self._awaited and (found := _ASSIGNED.match(text)):
                self._owned.append(int(found[1]))
                self._awaited -= 1
                if not self._awaited:
                    say_assigned(self._generation, self._owned)
            case "OFFSET" | "REMOVE" if found := _TO_COMMIT.match(text) or _TO_COMMIT_LAST.match(text):
                self._to_commit[int(found[1])] = int(found[2])
            case "COMMIT" if found := _COMMITTING.search(text):
                # Several times for the same offsets, if there was no coordinator at first.
                self._committing.setdefault(found[1], {}).update(self._to_commit)
                self._to_commit = {}
            case "COMMIT" if found := _COMMITTED.search(text):
                say_committed(self._committing.pop(found[1], {}), certain=found[2] == "Success")
            case "UNASSIGN" if "unassign done" in text and self._owned:
                self._owned = []
                say_revoked()
            case "LEAVEGROUP" if "response received" in text:
                self._belongs = False
            case "SESSTMOUT":
                self._belongs = False
                complain(text)
            case "FAIL" | "ERROR" | "MAXPOLL":
                complain(text)


def member(bootstrap: str, group: str, topic: str, session_timeout_ms: int) -> None:
    properties = {
        "auto.offset.reset": "earliest",
        "session.timeout.ms": session_timeout_ms,
        "heartbeat.interval.ms": session_timeout_ms // 20,
        "reconnect.backoff.max.ms": session_timeout_ms // 6,  # by default longer than this session
    }
    settings = [part for name, value in properties.items() for part in ("-X", f"{name}={value}")]
    # Whole lines at once, so that records and log do not mix. -E: it keeps running when all brokers are down.
    kcat = ["stdbuf", "-oL", "-eL", "kcat", "-q", "-J", "-E", "-b", bootstrap, "-d", "cgrp", *settings]
    follow([*kcat, "-G", group, topic], Member())


def produce(bootstrap: str, topic: str, codec: str, first: int, count: int) -> None:
    lines = "".join(f"{key.decode()}\t{value.decode()}\n" for key, value in records(codec, first, count))
    feed(["kcat", "-P", "-b", bootstrap, "-t", topic, "-K", r"\t", "-z", codec], lines)


def admin(bootstrap: str, prefix: str) -> None:
    raise SystemExit("kcat has no admin calls")


if __name__ == "__main__":
    run(produce, member, admin)
