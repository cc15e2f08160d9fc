"""Starts, kills and listens to workers, and determines the outcome of a play."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Final

from muster.client import Admin
from tests.interop.story.processes import Members, StoryFailed
from tests.interop.story.story import Outcome
from tests.interop.story.targets import Target
from tests.interop.transactions import checker

WORKERS: Final = ("one", "two")
_LINES_SHOWN: Final = 30
_READ_S: Final = 120.0
_LOOK_AGAIN_S: Final = 0.2
_OPEN: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")


class Stage(ABC):
    """The stage of one play, with two workers."""

    def __init__(self, target: Target, folder: Path, steps: list[str]) -> None:
        self._target = target
        self._folder = folder
        self._steps = steps
        self._members = Members(folder)

    @abstractmethod
    def play(self) -> list[str]:
        """Play, and return what is wrong with the final state. Raises StoryFailed."""

    def close(self) -> None:
        self._members.close()

    def details(self) -> str:
        members = self._members
        last = "\n".join(f"    {each}" for each in members.heard[-_LINES_SHOWN:])
        errors = "\n".join(
            f"{name} on standard error:\n{program.last_complaints()}"
            for name, program in members.programs.items()
        )
        return f"heard last:\n{last}\n{errors}"

    def _let_both_leave(self) -> None:
        for name in WORKERS:
            self._members.ask_to_leave(name)
        for name in WORKERS:
            self._wait_until_left(name)
        self._note("both have left")

    def _wait_until_left(self, name: str) -> None:
        self._members.wait_until(lambda: self._members.has_left(name), f"the end of {name}")

    def _wait_until_read(self, topic: str, count: int) -> None:
        """Wait until `count` records are shown to readers of committed ones."""
        deadline = time.monotonic() + _READ_S
        while (shown := len(checker.read(self._target.bootstrap, topic, "read_committed")[0])) < count:
            if time.monotonic() > deadline:
                raise StoryFailed(f"not done after {_READ_S:g} s: {shown} records of {count}")
            self._members.raise_if_ended()
            time.sleep(_LOOK_AGAIN_S)

    def _is_any_open(self, prefix: str) -> bool:
        """Whether any transaction is open whose id begins with `prefix`."""

        async def ask() -> bool:
            async with Admin(self._target.bootstrap) as admin:
                found = await admin.list_transactions(states=_OPEN)
                return any(each.transactional_id.startswith(prefix) for each in found)

        return asyncio.run(ask())

    def _note(self, what: str) -> None:
        self._steps.append(f"  {self._members.elapsed_s():6.1f} s  {what}")


def perform(name: str, target: Target, seed: int, make: Callable[[Path, list[str]], Stage]) -> Outcome:
    """Play on the stage that `make` sets up in a folder, with the list of steps to append to. Clients and
    brokers cannot make it raise."""
    outcome = Outcome(name, target.name, steps=[f"    seed {seed}"])
    began_s = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="transactions-"))
    stage = make(folder, outcome.steps)
    try:
        try:
            outcome.problems += stage.play()
        except StoryFailed as failure:
            outcome.problems.append(str(failure))
        if outcome.problems:
            outcome.details = f"{stage.details()}\n{target.name}'s log:\n{target.last_log_lines()}"
    finally:
        stage.close()
        shutil.rmtree(folder)
        outcome.seconds = time.monotonic() - began_s
    return outcome
