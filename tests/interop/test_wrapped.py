"""The wrappers of tools with other output than the story's: how they handle torn, mixed or late lines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.interop.programs.wrapped.console_consumer import ConsoleConsumer
from tests.interop.programs.wrapped.kcat import Member as Kcat
from tests.interop.story.lines import Assigned, Committed, Event, Left, Record, Revoked, parse_event

pytestmark = pytest.mark.interop

DEADLINE_S = 60.0
LINES = 4_000
"""Of 28 bytes each: more than one pipe holds, less than two."""

_COORDINATOR = (
    "INFO org.apache.kafka.clients.consumer.internals.ConsumerCoordinator - [Consumer clientId=c, groupId=g]"
)


def told(capsys: pytest.CaptureFixture[str]) -> list[Event]:
    return [parse_event(line) for line in capsys.readouterr().out.splitlines()]


def test_what_a_killed_tool_has_said_is_heard_to_the_end(tmp_path: Path) -> None:
    """Including what was still on its way to the wrapper, which is killed with it; but no incomplete line."""
    said = tmp_path / "said"
    tool = f"""
import sys, time
sys.stdout.write("".join(f"{{number:027d}}\\n" for number in range({LINES})) + "torn")
sys.stdout.flush()
open({str(said)!r}, "w").close()
time.sleep(600)
"""
    wrapper = f"""
import sys
from tests.interop.programs.wrapped.child import follow

class Heard:
    def hear(self, line):
        print(line, flush=True)

follow([sys.executable, "-c", {tool!r}], Heard())
"""
    with subprocess.Popen(
        [sys.executable, "-c", wrapper],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        deadline = time.monotonic() + DEADLINE_S
        while not said.exists() and time.monotonic() < deadline:
            time.sleep(0.02)  # between two checks
        assert said.exists(), "the tool could not say everything"
        os.killpg(process.pid, signal.SIGKILL)
        heard, _ = process.communicate(timeout=DEADLINE_S)
    assert heard.splitlines() == [f"{number:027d}" for number in range(LINES)]


def test_the_console_consumer_logs_in_the_middle_of_a_record(capsys: pytest.CaptureFixture[str]) -> None:
    consumer = ConsoleConsumer()
    for line in (
        f"[main] {_COORDINATOR} Successfully synced group in generation Generation{{generationId=7, m}}",
        f"[main] {_COORDINATOR} Adding newly assigned partitions: [a-topic-0, a-topic-3]",
        f"Partition:3\tOff[kafka-coordinator-heartbeat-thread | g] {_COORDINATOR} Sending Heartbeat",
        "set:12\tk12\tgzip-12",
        f"Partition:3\tOffset:13\tk13\tgzip-13[heartbeat | g] {_COORDINATOR} Sending Heartbeat",
        "",
        "Partition:3\tOffset:14\tk14\tgzip-14[main] WARN org.apache.kafka.clients.NetworkClient - [c] Gone",
        "",
        f"Partition:3\tOffset:15\tk15\t[heartbeat | g] {_COORDINATOR} Asynchronous auto-commit failed",
        "org.apache.kafka.common.errors.DisconnectException",
        "Caused by: org.apache.kafka.common.errors.TimeoutException: too late",
        "gzip-15",
        f"[main] {_COORDINATOR} Committed offset 14 for partition a-topic-3",
        f"[main] {_COORDINATOR} Committed offset 14 for partition a-topic-3",
        f"[main] {_COORDINATOR} Revoke previously assigned partitions [a-topic-0, a-topic-3]",
        f"[main] {_COORDINATOR} LeaveGroup response with Generation{{generationId=7}} returned successfully",
    ):
        consumer.hear(line)
    consumer.leave(143)
    assert told(capsys) == [
        Assigned(7, frozenset({0, 3})),
        Record(3, 12, "k12", "gzip-12"),
        Record(3, 13, "k13", "gzip-13"),
        Record(3, 14, "k14", "gzip-14"),
        Record(3, 15, "k15", "gzip-15"),
        Committed(3, 14),
        Revoked(frozenset()),
        Left(),
    ]


def test_a_console_consumer_that_does_not_leave_the_group() -> None:
    consumer = ConsoleConsumer()
    with pytest.raises(SystemExit, match="has not left"):
        consumer.leave(143)


def log(fact: str, text: str) -> str:
    return f"%7|1700000000.000|{fact}|rdkafka#consumer-1| [thrd:main]: {text}"


def assignment(generation: int, *partitions: int) -> list[str]:
    return [
        log("JOINGROUP", f"JoinGroup response: GenerationId {generation}, Protocol range, LeaderId l"),
        log("ASSIGNMENT", f'Group "g": setting group assignment to {len(partitions)} partition(s)'),
        log("GRPASSIGNMENT", f"List with {len(partitions)} partition(s):"),
        *[log("GRPASSIGNMENT", f" t [{partition}] offset INVALID") for partition in partitions],
    ]


def test_kcat_commits_what_it_had_sent_and_not_what_it_meant_to(capsys: pytest.CaptureFixture[str]) -> None:
    """The session expired before the offsets of partition 0 could be committed."""
    kcat = Kcat()
    for line in (
        *assignment(3, 0),
        log(
            "REMOVE",
            "Removing t [0] from assignment (started=true, pending=false, queried=false, stored offset=5)",
        ),
        log("UNASSIGN", 'Group "g": unassign done in state up (join-state init)'),
        *assignment(4, 1),
        '{"topic":"t","partition":1,"offset":8,"key":"k1","payload":"none-1"}',
        log("OFFSET", "Topic t [1]: stored offset 9, committed offset 8: setting stored offset 9 for commit"),
        log(
            "COMMIT",
            "C/1: Committing offsets for 1 partition(s) with generation-id 4 in join-state steady: timer",
        ),
        log("COMMIT", "C/1: OffsetCommit for 1 partition(s) in join-state steady: timer: returned: Success"),
        log("UNASSIGN", 'Group "g": unassign done in state up (join-state wait-unassign-to-complete)'),
        log("LEAVEGROUP", "LeaveGroup response received in state up"),
    ):
        kcat.hear(line)
    kcat.leave(0)
    assert told(capsys) == [
        Assigned(3, frozenset({0})),
        Revoked(frozenset()),
        Assigned(4, frozenset({1})),
        Record(1, 8, "k1", "none-1"),
        Committed(1, 9),
        Revoked(frozenset()),
        Left(),
    ]


def test_kcat_commits_as_often_as_it_had_no_coordinator(capsys: pytest.CaptureFixture[str]) -> None:
    kcat = Kcat()
    committing = "C/1: Committing offsets for 1 partition(s) with generation-id 4 in join-state steady: timer"
    committed = "C/1: OffsetCommit for 1 partition(s) in join-state steady: timer: returned: Success"
    for line in (
        *assignment(4, 1),
        log("OFFSET", "Topic t [1]: stored offset 9, committed offset 8: setting stored offset 9 for commit"),
        *[log("COMMIT", committing)] * 3,
        *[log("COMMIT", committed)] * 3,
    ):
        kcat.hear(line)
    assert told(capsys) == [Assigned(4, frozenset({1})), Committed(1, 9)]


def test_a_kcat_that_does_not_leave_the_group() -> None:
    kcat = Kcat()
    for line in assignment(3, 0):
        kcat.hear(line)
    with pytest.raises(SystemExit, match="has not left"):
        kcat.leave(0)
