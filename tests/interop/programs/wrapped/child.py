"""A tool as a child process: a wrapper reads its output, and asks it to leave with SIGTERM."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NoReturn, Protocol

from tests.interop.programs.python.lines import complain, standard_input_ends

_LEAVE: Final = "\0leave "
_EXITED: Final = "\0exited "
_PIECE_BYTES: Final = 1 << 16
_LOOK_S: Final = 0.1


class Tool(Protocol):
    """Interprets a tool's output."""

    def hear(self, line: str) -> None:
        """A line of its standard output or standard error."""

    def may_leave(self) -> bool:
        """Whether this is a good moment for SIGTERM, once the tool has to leave."""

    def leave(self, code: int) -> None:
        """The tool has exited. Raises SystemExit if it did not leave politely."""


def follow(command: Sequence[str], tool: Tool) -> NoReturn:
    """Run a tool until it exits, and end this process. When our standard input ends, the tool gets SIGTERM.

    The listener is a process in a session of its own: when we and the tool are killed together, it still
    reports what the tool had printed. The tool may have committed it.
    """
    read_end, write_end = os.pipe()
    listener = os.fork()
    if listener == 0:
        os.setsid()
        os.close(write_end)
        os._exit(_listen(read_end, tool))
    os.close(read_end)
    ended = standard_input_ends()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=write_end, stderr=write_end) as child:

        def ask_to_leave() -> None:
            ended.wait()
            os.write(write_end, f"\n{_LEAVE}{child.pid}\n".encode())

        threading.Thread(target=ask_to_leave, daemon=True).start()
        code = child.wait()
    os.write(write_end, f"\n{_EXITED}{code}\n".encode())
    _, status = os.waitpid(listener, 0)
    raise SystemExit(os.waitstatus_to_exitcode(status))


def _listen(descriptor: int, tool: Tool) -> int:
    """Returns the exit code of the listener, and so of the wrapper."""
    begun = b""
    leaving = 0  # the process to signal
    while True:
        if leaving and tool.may_leave():
            with suppress(ProcessLookupError):
                os.kill(leaving, signal.SIGTERM)
            leaving = 0
        if not select.select([descriptor], [], [], _LOOK_S)[0]:
            continue
        piece = os.read(descriptor, _PIECE_BYTES)
        if not piece:
            return 1  # all were killed; an incomplete last line does not count
        *lines, begun = (begun + piece).split(b"\n")
        for line in (each.decode(errors="replace") for each in lines):
            if line.startswith(_LEAVE):
                leaving = int(line.removeprefix(_LEAVE))
            elif line.startswith(_EXITED):
                return _left(tool, int(line.removeprefix(_EXITED)))
            else:
                tool.hear(line)


def _left(tool: Tool, code: int) -> int:
    try:
        tool.leave(code)
    except SystemExit as refusal:
        complain(refusal)
        return 1
    return 0


def feed(command: Sequence[str], lines: str, failure: str | None = None) -> None:
    """Run a tool with these lines on its standard input; ends this process if it fails.

    `failure`: what it prints when it fails but still exits 0.
    """
    ran = subprocess.run(command, input=lines, text=True, stderr=subprocess.PIPE)
    sys.stderr.write(ran.stderr)
    if ran.returncode != 0:
        raise SystemExit(f"{command[0]} exited {ran.returncode}")
    if failure is not None and failure in ran.stderr:
        raise SystemExit(f"{command[0]} exited 0, but said {failure!r}")
