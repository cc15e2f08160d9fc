"""A client's processes: their output arrives as data, their errors go to a file."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.interop.story.lines import (
    Assigned,
    Committed,
    Heard,
    Killed,
    Left,
    Record,
    Revoked,
    Transaction,
    parse_event,
)

_PIECE_BYTES: Final = 1 << 20  # more than a pipe holds: one read takes everything available
_ERROR_LINES_SHOWN: Final = 60


class StoryFailed(Exception):
    """A client or a broker did not do what the story requires; the text is for a person."""


class Program:
    """A process whose standard error goes to `<folder>/<name>.stderr`."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, *, stdin: int, stdout: int) -> None:
        self.name = name
        self.stderr_path = folder / f"{name}.stderr"
        self.asked_to_leave = False
        self.killed = False
        with self.stderr_path.open("wb") as stderr:
            # A session of its own: whatever a wrapper has started is killed with it.
            self.process = subprocess.Popen(
                command, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
            )

    def kill(self) -> None:
        """SIGKILL to the process and those it has started. Harmless if it is gone."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)

    def pause(self) -> None:
        """SIGSTOP, likewise."""
        os.killpg(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self.process.pid, signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def last_complaints(self) -> str:
        lines = self.stderr_path.read_text(errors="replace").splitlines()[-_ERROR_LINES_SHOWN:]
        return "\n".join(f"    {line[:500]}" for line in lines) or "    (nothing)"


@dataclass(frozen=True)
class Printed:
    lines: list[str]
    """Lines of its standard output."""
    complaints: str
    """The last lines of its standard error, for display."""


def run_to_the_end(name: str, command: Sequence[str], folder: Path, seconds_max: float) -> Printed:
    """A program's output. Raises StoryFailed if it does not exit 0 in time."""
    output = folder / f"{name}.stdout"
    with output.open("wb") as stdout:
        program = Program(name, command, folder, stdin=subprocess.DEVNULL, stdout=stdout.fileno())
    try:
        code = program.process.wait(seconds_max)
        said = f"exited {code}"
    except subprocess.TimeoutExpired:
        code, said = -1, f"was not done after {seconds_max:g} s"
    finally:
        program.close()
    printed = Printed(output.read_text(errors="replace").splitlines(), program.last_complaints())
    if code != 0:
        shown = "\n".join(f"    {line[:500]}" for line in printed.lines[-_ERROR_LINES_SHOWN:])
        raise StoryFailed(
            f"{name} {said}: {' '.join(command)}\n  its last lines:\n{shown}\n"
            f"  on standard error:\n{printed.complaints}"
        )
    return printed


class Members:
    """The member processes of one group, and everything heard from them. One thread reads their pipes."""

    def __init__(self, folder: Path) -> None:
        self.programs: dict[str, Program] = {}
        self.heard: list[Heard] = []
        self.owned: defaultdict[str, frozenset[int]] = defaultdict(frozenset)
        """By member: the partitions it last reported as owned."""
        self.delivered: set[str] = set()
        """Values of all printed records."""
        self.delivered_to: defaultdict[str, set[str]] = defaultdict(set)
        """The same, by member."""
        self.delivered_to_offset: dict[int, int] = {}
        """By partition: the offset after the last printed record."""
        self.committed: dict[int, int] = {}
        """By partition: the last printed commit."""
        self.steps: list[tuple[str, Transaction]] = []
        """Steps of transactions, with the member that reported them."""
        self.began_s = time.monotonic()
        self._folder = folder
        self._changed = threading.Condition()
        self._unread: dict[int, tuple[str, bytes]] = {}  # by file descriptor: member name, incomplete line
        self._trouble: list[str] = []
        self._left: set[str] = set()
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._reader = threading.Thread(target=self._read, name="members", daemon=True)
        self._reader.start()

    def elapsed_s(self) -> float:
        return time.monotonic() - self.began_s

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start a member; one that has left may return under its name."""
        program = Program(name, command, self._folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert program.process.stdout is not None
        with self._changed:
            if name in self.programs:
                self.programs[name].close()
                self._left.discard(name)
            self.programs[name] = program
            descriptor = program.process.stdout.fileno()
            self._unread[descriptor] = (name, b"")
            self._selector.register(descriptor, selectors.EVENT_READ)
        os.write(self._wake_write, b".")

    def ask_to_leave(self, name: str) -> None:
        """Close its standard input."""
        program = self.programs[name]
        program.asked_to_leave = True
        assert program.process.stdin is not None
        with suppress(BrokenPipeError):
            program.process.stdin.close()

    def kill(self, name: str) -> None:
        """SIGKILL. Everything it has printed is read before the kill is recorded."""
        program = self.programs[name]
        program.killed = True
        program.kill()
        program.process.wait()
        self.wait_until(lambda: self._is_read(name), f"the end of what {name} has printed")
        with self._changed:
            self._note(Heard(self.elapsed_s(), name, Killed()))

    def has_left(self, name: str) -> bool:
        """Whether it said so and exited 0."""
        return name in self._left and self._is_read(name) and self.programs[name].process.poll() == 0

    def wait_until(self, fact: Callable[[], object], what: str, seconds_max: float = 60.0) -> None:
        """Wait for a fact about what was heard. Raises StoryFailed at the deadline, or earlier if a program
        has ended wrongly or printed an invalid line."""
        deadline = time.monotonic() + seconds_max
        with self._changed:
            while not fact():
                if trouble := self._trouble or [*self._ended_badly()]:
                    raise StoryFailed(f"waiting for {what}: {'; '.join(trouble)}")
                if time.monotonic() > deadline:
                    raise StoryFailed(f"{what}: not within {seconds_max:g} s")
                self._changed.wait(0.2)  # exits do not notify

    def raise_if_ended(self) -> None:
        """Raises StoryFailed if a program has ended wrongly or printed an invalid line."""
        with self._changed:
            if trouble := self._trouble or [*self._ended_badly()]:
                raise StoryFailed("; ".join(trouble))

    def wait_until_shared(self, *names: str, partitions: int) -> None:
        """Wait until every one of these members owns something, and together they own each partition once."""

        def shared() -> bool:
            mine = [self.owned[name] for name in names]
            return all(mine) and sorted(part for each in mine for part in each) == list(range(partitions))

        try:
            self.wait_until(shared, f"partitions shared by {', '.join(names)}")
        except StoryFailed as failure:
            owns = {name: sorted(self.owned[name]) for name in names}
            raise StoryFailed(f"{failure}; they own {owns}") from None

    def wait_until_delivered(self, values: Set[str], what: str) -> None:
        """Wait until each of these records was delivered to some member. A failure says which are missing,
        and how far each partition was read."""
        try:
            self.wait_until(lambda: values <= self.delivered, what)
        except StoryFailed as failure:
            missing, read = sorted(values - self.delivered), self.delivered_to_offset
            raise StoryFailed(f"{failure}; missing {len(missing)}, such as {missing[:3]}; {read=}") from None

    def close(self) -> None:
        for program in self.programs.values():
            program.kill()
        os.write(self._wake_write, b"x")
        self._reader.join()
        for program in self.programs.values():
            program.close()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _ended_badly(self) -> Iterator[str]:
        for name, program in self.programs.items():
            code = program.process.poll()
            if code is None or program.killed or not self._is_read(name):
                continue
            if code != 0 or not program.asked_to_leave:
                yield f"{name} ended with exit code {code}"
            elif name not in self._left:
                yield f"{name} ended without a word that it has left"

    def _is_read(self, name: str) -> bool:
        return all(owner != name for owner, _ in self._unread.values())

    def _read(self) -> None:
        while True:
            ready = [key.fd for key, _ in self._selector.select()]
            with self._changed:
                at_s = self.elapsed_s()
                for descriptor in ready:
                    piece = os.read(descriptor, _PIECE_BYTES)
                    if descriptor != self._wake_read:
                        self._take(descriptor, piece, at_s)
                    elif b"x" in piece:
                        return
                self._changed.notify_all()

    def _note(self, heard: Heard) -> None:
        self.heard.append(heard)
        match heard.event:
            case Record(partition=partition, offset=offset, value=value):
                self.delivered.add(value)
                self.delivered_to[heard.member].add(value)
                reached = self.delivered_to_offset.get(partition, 0)
                self.delivered_to_offset[partition] = max(reached, offset + 1)
            case Committed(partition=partition, offset=offset):
                self.committed[partition] = offset
            case Transaction() as step:
                self.steps.append((heard.member, step))
            case Assigned(owned=owned) | Revoked(owned=owned):
                self.owned[heard.member] = owned
            case Left():
                self._left.add(heard.member)
                self.owned[heard.member] = frozenset()
            case Killed():
                self.owned[heard.member] = frozenset()

    def _take(self, descriptor: int, piece: bytes, at_s: float) -> None:
        name, begun = self._unread[descriptor]
        *lines, begun = (begun + piece).split(b"\n")
        for line in lines:
            try:
                self._note(Heard(at_s, name, parse_event(line.decode(errors="replace"))))
            except ValueError as error:
                self._trouble.append(f"{name}: {error}")
        if piece:
            self._unread[descriptor] = (name, begun)
            return
        del self._unread[descriptor]  # an incomplete last line of a killed process does not count
        self._selector.unregister(descriptor)
