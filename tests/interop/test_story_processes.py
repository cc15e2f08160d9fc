"""How the story treats programs that misbehave."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.story.lines import Killed, Left, Revoked
from tests.interop.story.processes import Members, StoryFailed, run_to_the_end

pytestmark = pytest.mark.interop

NEVER_S = 60.0
AT_ONCE_S = 0.1


def program(text: str) -> list[str]:
    return [sys.executable, "-c", f"import sys, signal\n{text}"]


LEAVES = 'sys.stdin.read(); print(\'{"event": "left"}\')'


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Members]:
    members = Members(tmp_path)
    yield members
    members.close()


def test_a_polite_member(members: Members) -> None:
    members.start("one", program(LEAVES))
    members.ask_to_leave("one")
    members.wait_until(lambda: members.has_left("one"), "one to leave")
    assert [heard.event for heard in members.heard] == [Left()]


def test_a_member_that_leaves_with_an_error_has_not_left(members: Members) -> None:
    members.start("one", program(f"{LEAVES}; sys.exit(1)"))
    members.ask_to_leave("one")
    with pytest.raises(StoryFailed, match="one ended with exit code 1"):
        members.wait_until(lambda: members.has_left("one"), "one to leave", NEVER_S)


def test_a_member_that_ends_by_itself(members: Members) -> None:
    members.start("one", program("print('now what', file=sys.stderr); sys.exit(3)"))
    with pytest.raises(StoryFailed, match="waiting for rain: one ended with exit code 3"):
        members.wait_until(lambda: False, "rain", NEVER_S)
    assert members.programs["one"].last_complaints().strip() == "now what"


def test_a_line_that_is_none(members: Members) -> None:
    members.start("one", program("print('hello', flush=True); sys.stdin.read()"))
    with pytest.raises(StoryFailed, match="rain: one: no line of a member: 'hello'"):
        members.wait_until(lambda: False, "rain", NEVER_S)


def test_a_member_that_says_nothing(members: Members) -> None:
    members.start("one", program("sys.stdin.read()"))
    with pytest.raises(StoryFailed, match=f"rain: not within {AT_ONCE_S} s"):
        members.wait_until(lambda: False, "rain", AT_ONCE_S)


def test_a_killed_member_is_heard_up_to_its_last_whole_line(members: Members) -> None:
    whole, begun = '{"event": "revoked", "owned": [1]}', '{"event":'
    members.start("one", program(f"print({whole!r}); print({begun!r}, end='', flush=True); signal.pause()"))
    members.wait_until(lambda: members.owned["one"], "its first line")
    members.kill("one")
    assert [heard.event for heard in members.heard] == [Revoked(frozenset({1})), Killed()]
    assert not members.owned["one"]


def test_a_killed_member_takes_along_what_it_has_started(members: Members) -> None:
    child = f"import subprocess; child = subprocess.Popen({program('signal.pause()')!r}); "
    say = """print('{"event": "revoked", "owned": [' + str(child.pid) + ']}', flush=True); signal.pause()"""
    members.start("one", program(child + say))
    members.wait_until(lambda: members.owned["one"], "the child's pid")
    (pid,) = members.owned["one"]
    ended = os.pidfd_open(pid)
    try:
        members.kill("one")  # waits until nobody holds the pipe: the child closes it when it exits
        assert select.select([ended], [], [], NEVER_S)[0], "the child lives on"
    finally:
        os.close(ended)


def test_a_program_that_fails_shows_its_last_words(tmp_path: Path) -> None:
    told = program("print('on it'); print('oh no', file=sys.stderr); sys.exit(4)")
    with pytest.raises(StoryFailed, match=r"(?s)producer exited 4: .*    on it.*    oh no"):
        run_to_the_end("producer", told, tmp_path, NEVER_S)


def test_a_program_that_hangs_is_ended(tmp_path: Path) -> None:
    with pytest.raises(StoryFailed, match=f"producer was not done after {AT_ONCE_S} s"):
        run_to_the_end("producer", program("signal.pause()"), tmp_path, AT_ONCE_S)


def test_a_member_that_leaves_without_a_word(members: Members) -> None:
    members.start("one", program("sys.stdin.read()"))
    members.ask_to_leave("one")
    with pytest.raises(StoryFailed, match="one ended without a word"):
        members.wait_until(lambda: members.has_left("one"), "one to leave", NEVER_S)
