"""Running the command as a user does: in its own process, or in this one where it makes no difference."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from muster.coordinator import cli

DEADLINE_S = 120.0
SHARE_OF_WHAT_IS_NOT_TOLD = 1 / 240
"""Of `--timeout 240`, for `group_reads._SHARE`: tests wait no longer than that. Whoever takes all of the time
does not end within `DEADLINE_S`."""


class Ended(NamedTuple):
    """Result of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Standard output, parsed as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


def environment(bootstrap: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
    return clean | {"MUSTER_BOOTSTRAP_SERVERS": bootstrap, "PYTHONUNBUFFERED": ""}


def started(bootstrap: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start the command in its own process, with pipes to talk to it."""
    return subprocess.Popen(
        [sys.executable, "-m", "muster", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(bootstrap),
        **options,
    )


def run(bootstrap: str, *arguments: str, stdin: bytes = b"") -> Ended:
    """Run the command in its own process."""
    process = started(bootstrap, *arguments)
    try:
        out, err = process.communicate(stdin, timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"{arguments} did not end: {process.communicate()}") from None
    return Ended(process.returncode, out.decode(errors="backslashreplace"), err.decode())


@contextlib.contextmanager
def _bounded(arguments: Sequence[str]) -> Iterator[None]:
    """Fail, instead of waiting forever, if a command does not end."""

    def give_up(*_: object) -> None:
        raise AssertionError(f"{arguments} did not end within {DEADLINE_S} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, DEADLINE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


_OF_BROKERS = '{"part": "'
"""Start of the log lines of brokers in this process."""


class Muster:
    """The command in this process, against one broker."""

    def __init__(self, bootstrap: str, capture: pytest.CaptureFixture[str]) -> None:
        self.bootstrap = bootstrap
        self._capture = capture

    def __call__(self, *arguments: str, bootstrap: str | None = None) -> Ended:
        variables = {"MUSTER_BOOTSTRAP_SERVERS": self.bootstrap if bootstrap is None else bootstrap}
        self._capture.readouterr()
        with _bounded(arguments):
            try:
                code = cli.main(arguments, variables)
            except SystemExit as ended:
                code = int(ended.code or 0)
        captured = self._capture.readouterr()
        said = [line for line in captured.err.splitlines(keepends=True) if not line.startswith(_OF_BROKERS)]
        return Ended(code, captured.out, "".join(said))

    def done(self, *arguments: str) -> str:
        """Output of a command that succeeded."""
        ended = self(*arguments)
        assert (ended.code, ended.err) == (0, ""), ended
        return ended.out

    def refused(self, *arguments: str) -> str:
        """The one-line error of a command that failed."""
        ended = self(*arguments)
        assert (ended.code, ended.out) == (1, ""), ended
        assert ended.err.count("\n") == 1, ended
        return ended.err

    def misused(self, *arguments: str) -> str:
        """The one-line error of a wrong command line."""
        ended = self(*arguments)
        assert (ended.code, ended.out) == (2, ""), ended
        assert ended.err.count("\n") == 1, ended
        return ended.err
