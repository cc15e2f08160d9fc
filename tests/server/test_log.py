"""Log lines: JSON where there is no terminal, one line per rebalance, standard-library records among them."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
from typing import Any

import pytest

from muster.coordinator.base import log
from muster.coordinator.group.events import MemberIdentity, MemberRemoved, RebalanceCompleted, Trigger
from muster.coordinator.journal.names import Names
from muster.coordinator.observe.rebalances import RebalanceLog, cause
from muster.coordinator.runtime.recorder import member_of
from tests.server.conftest import StartBrokers
from tests.server.test_classic_group import stable_member
from tests.support.wire import Wire

CONSUMER = MemberIdentity("c-1", "c", "/10.0.0.7")


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_lines_are_json_where_there_is_no_terminal(stream: io.StringIO) -> None:
    log.configure("info", stream=stream)
    log.Logger(part="test").bind(node=1).info("something happened", count=3)
    log.Logger().debug("not this")
    (line,) = lines(stream)
    assert line.pop("timestamp")
    assert line == {"event": "something happened", "level": "info", "part": "test", "node": 1, "count": 3}


def test_lines_written_in_the_background_arrive_whole_and_in_order(stream: io.StringIO) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as reader:
        with os.fdopen(writing, "w") as file:
            log.configure("info", stream=file, background=True)
            for number in range(100):
                log.Logger().info("a line", number=number)
            log.drain(10)
        assert [json.loads(line)["number"] for line in reader] == list(range(100))


def test_nobody_waits_for_a_reader_that_has_stalled_and_what_is_lost_is_counted(stream: io.StringIO) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as reader, os.fdopen(writing, "w") as file:
        log.configure("info", stream=file, background=True)
        # A pipe and two queues hold less than half of that.
        for number in range(5_000):
            log.Logger().info("x" * 1_000, number=number)
        assert log._Output.writer is not None
        kept: list[int] = []
        lost: list[int] = []
        for line in reader:
            read = json.loads(line)
            if "number" in read:
                kept.append(read["number"])
            else:
                assert read["event"] == "log lines lost, they could not be written"
                lost.append(read["lines"])
            if len(kept) + sum(lost) >= 5_000:
                break
        assert len(kept) + sum(lost) == 5_000
        assert min(lost) > 0
        assert kept == sorted(set(kept))
        assert kept[0] == 0
        log.drain(10)


def test_a_closed_pipe_ends_nothing(stream: io.StringIO) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as file:
        log.configure("info", stream=file, background=True)
        for _ in range(3):
            log.Logger().info("to nobody")
            log.drain(10)


def test_behind_the_end_nothing_is_written_to_a_descriptor_that_may_be_another_files(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    monkeypatch.setattr("sys.stderr", stream)
    with os.fdopen(reading) as reader:
        with os.fdopen(writing, "w") as file:
            monkeypatch.setattr(stream, "fileno", file.fileno, raising=False)
            log.configure("info", background=True)
            log.Logger().info("before")
            log.end_background(10)
            log.Logger().info("behind")
        assert [json.loads(line)["event"] for line in reader] == ["before"]
    assert [line["event"] for line in lines(stream)] == ["behind"]


def test_where_there_is_no_file_the_background_is_not_needed(stream: io.StringIO) -> None:
    log.configure("info", stream=stream, background=True)
    log.Logger().info("at once")
    assert [line["event"] for line in lines(stream)] == ["at once"]


@pytest.mark.parametrize("gone", ["closed", "none"])
def test_a_library_writes_each_line_to_what_is_standard_error_then(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    """pytest's capsys replaces it for one test, and closes it afterwards."""
    log.configure("warning")
    before = io.StringIO()
    monkeypatch.setattr("sys.stderr", before)
    log.Logger().warning("first")
    assert [line["event"] for line in lines(before)] == ["first"]
    before.close()
    if gone == "none":  # as under pythonw
        monkeypatch.setattr("sys.stderr", None)
    log.Logger().warning("to nobody")
    monkeypatch.setattr("sys.stderr", stream)
    log.Logger().warning("second")
    assert [line["event"] for line in lines(stream)] == ["second"]


def test_human_lines_are_readable(stream: io.StringIO) -> None:
    log.configure("warning", "human", stream)
    log.Logger().info("not this")
    log.Logger().warning("watch out", group="orders")
    assert "watch out" in stream.getvalue()
    assert "orders" in stream.getvalue()


@pytest.mark.parametrize("text", ["g\x1b]0;owned\x07\x1b[2J", "a b\x9b31m", "one\rtwo", "\u202egroup"])
def test_a_terminal_gets_no_control_characters_of_clients(stream: io.StringIO, text: str) -> None:
    log.configure("info", "human", stream)
    try:
        raise RuntimeError(text)
    except RuntimeError as error:
        log.Logger(part="test").info(f"about\n{text}", group=text, groups=[text], exc_info=error)
    written = stream.getvalue()
    assert all(each.isprintable() for each in written.replace("\n", ""))
    assert f"group={text!r}" in written
    assert f"groups={[text]!r}" in written
    assert f"RuntimeError: {repr(text)[1:-1]}" in written
    assert f"about\n{repr(text)[1:-1]}" in written


def test_printable_names_stay_as_they_are_on_a_terminal(stream: io.StringIO) -> None:
    log.configure("info", "human", stream)
    log.Logger().info("joined", group="größe-グループ")
    assert "group=größe-グループ" in stream.getvalue()


def test_an_exception_comes_with_its_traceback(stream: io.StringIO) -> None:
    log.configure("info", stream=stream)
    try:
        raise RuntimeError("broken")
    except RuntimeError as error:
        log.Logger().error("failed", exc_info=error)
    (line,) = lines(stream)
    assert "broken" in json.dumps(line["exception"])


def test_what_local_variables_hold_stays_out_of_the_log(stream: io.StringIO) -> None:
    """Passwords and records."""
    log.configure("info", stream=stream)
    hidden = "ses" + "ame"
    try:
        raise ValueError("broken")
    except ValueError as error:
        log.Logger().error("failed", exc_info=error)
    assert hidden
    assert "sesame" not in stream.getvalue()


def test_what_the_standard_library_logs_goes_the_same_way(stream: io.StringIO) -> None:
    log.configure("info", stream=stream)
    logging.getLogger("muster.coordinator.runtime").warning("shard %d lost its lease", 7)
    logging.getLogger("muster.coordinator.runtime").debug("not this")
    (line,) = lines(stream)
    assert (line["event"], line["level"]) == ("shard 7 lost its lease", "warning")


async def test_a_rebalance_is_one_line_that_says_its_cause(
    start_brokers: StartBrokers, stream: io.StringIO
) -> None:
    log.configure("info", stream=stream)
    brokers = await start_brokers()
    async with await Wire.connect(brokers.brokers[0].port, client_id="billing") as wire:
        await stable_member(wire)
    (line,) = [each for each in lines(stream) if each["event"] == "group rebalanced"]
    assert (line["group"], line["generation"], line["members"]) == ("orders", 1, 1)
    assert line["cause"] == "member joined: billing at 127.0.0.1"


def completed(trigger: Trigger, member: MemberIdentity | None = CONSUMER, reason: str | None = None) -> Any:
    return RebalanceCompleted(
        at_ms=1,
        group_id="orders",
        generation_id=2,
        trigger=trigger,
        member=member,
        reason=reason,
        started_ms=0,
        join_ms=5,
        assignment_ms=6,
        restarts=0,
        members=3,
        dropped=(),
        last_joined=None,
        joins=(),
    )


def expired(
    member: MemberIdentity, silent_ms: int = 45_000, *, connected: bool = False, away: bool = False
) -> MemberRemoved:
    return MemberRemoved(
        at_ms=1,
        group_id="orders",
        generation_id=1,
        trigger=Trigger.SESSION_EXPIRED,
        member=member,
        reason=None,
        silent_ms=silent_ms,
        connected=connected,
        disconnected_ms=None,
        late=0,
        heartbeat_interval_ms=3_000,
        session_timeout_ms=45_000,
        requested_by=None,
        away=away,
    )


@pytest.mark.parametrize(
    ("connected", "expected"),
    [
        (True, "silent for 45000 ms; its connection is open, the process stalled"),
        (False, "silent for 45000 ms; it crashed or was cut off"),
    ],
)
def test_an_expired_session_says_whether_the_connection_was_still_there(
    stream: io.StringIO, connected: bool, expected: str
) -> None:
    log.configure("info", stream=stream)
    rebalances = RebalanceLog(node_id=1)
    rebalances.observe(3, [expired(CONSUMER, connected=connected)])
    rebalances.observe(3, [completed(Trigger.SESSION_EXPIRED), completed(Trigger.MEMBER_LEFT)])
    assert [line["cause"] for line in lines(stream)] == [
        f"session expired: c at 10.0.0.7 ({expected})",
        "member left: c at 10.0.0.7",
    ]
    assert lines(stream)[0]["took_ms"] == 11


@pytest.mark.parametrize("connected", [True, False])
def test_a_member_that_had_left_temporarily_did_not_crash(stream: io.StringIO, connected: bool) -> None:
    log.configure("info", stream=stream)
    rebalances = RebalanceLog(node_id=1)
    rebalances.observe(3, [expired(CONSUMER, connected=connected, away=True)])
    rebalances.observe(3, [completed(Trigger.SESSION_EXPIRED)])
    assert [line["cause"] for line in lines(stream)] == [
        "session expired: c at 10.0.0.7 (silent for 45000 ms; it had left temporarily and did not come back)"
    ]


@pytest.mark.parametrize("first", [True, False])
def test_the_silence_told_is_that_of_the_member_whose_session_expired(
    stream: io.StringIO, first: bool
) -> None:
    """Another may have expired while the group waited for JoinGroups, or before the group was loaded
    elsewhere and came back."""
    log.configure("info", stream=stream)
    others = [expired(MemberIdentity("d-1", "d", "/10.0.0.8"), 9_000)]
    ours = [expired(CONSUMER)]
    rebalances = RebalanceLog(node_id=1)
    rebalances.observe(3, ours + others if first else others + ours)
    rebalances.observe(3, [completed(Trigger.SESSION_EXPIRED)])
    assert [line["cause"] for line in lines(stream)] == [
        "session expired: c at 10.0.0.7 (silent for 45000 ms; it crashed or was cut off)"
    ]


def test_members_of_one_client_id_are_told_apart(stream: io.StringIO) -> None:
    twin = MemberIdentity("c-222222", "c", "/10.0.0.8")
    log.configure("info", stream=stream)
    rebalances = RebalanceLog(1, lambda group_id: [MemberIdentity("c-111111", "c", "/10.0.0.7"), twin])
    rebalances.observe(3, [completed(Trigger.MEMBER_JOINED, member=twin)])
    assert [line["cause"] for line in lines(stream)] == ["member joined: c/222222 at 10.0.0.8"]


def test_a_reason_the_client_gave_is_told() -> None:
    names = Names([member_of(CONSUMER)])
    assert cause(completed(Trigger.MEMBER_LEFT, reason="shutting down"), names) == (
        "member left: c at 10.0.0.7 (shutting down)"
    )
    assert cause(completed(Trigger.REBALANCE_TIMED_OUT, member=None), names) == "rebalance timed out"


def test_a_line_is_logged_though_there_was_no_open_file_left_to_import_with(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_many_open_files() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    log.configure("info", stream=stream)
    with monkeypatch.context() as clients:
        clients.setattr(log, "_structlog", too_many_open_files)
        log.warm_up()
    log.Logger().info("stopping")
    assert [line["event"] for line in lines(stream)] == ["stopping"]
