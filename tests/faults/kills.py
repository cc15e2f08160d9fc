"""kill -9 of `muster serve` under load, again and again: one round is load, kill, restart, and a check of
what is left.

Everything a round decides comes from its seed: what clients do, what triggers the kill and when. The machine
decides the rest (which thread runs when), so a seed replays the plan but not every interleaving.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.faults import strace
from tests.faults.batches import Violation
from tests.faults.clients import Clients
from tests.faults.transactions.company import TOPICS, Company
from tests.support.served import Served

ROUNDS_A_DIRECTORY: Final = 50
"""The number of kills one directory lives through; then a new one replaces it."""
FRESH_EVERY: Final = 5
"""Every n-th kill hits a broker on a new directory."""
IN_FLIGHT_SHARE_MIN: Final = 0.8
"""The share of rounds in which commits must be in flight when the kill comes; likewise for transactions."""
_ANSWERS_MAX: Final = 2_000  # then it is killed, whether the trigger came or not
_LIGHTLY: Final = 5  # times as many when hardly any client but transactions is at work
_END_S: Final = 60.0
_SYSCALLS: Final = {"pwrite64": 300, "fdatasync": 100, "writev": 300, "write": 300, "openat": 20}
"""The system calls that a kill may strike under load, each with the highest call number of a thread."""
_STARTING_SYSCALLS: Final = {"pwrite64": 40, "fdatasync": 6, "openat": 600, "ftruncate": 2, "listen": 1}
"""The same while it starts."""


@dataclass
class Figures:
    """The totals over a number of rounds. Open means in flight and unacknowledged when the kill came."""

    kills: int = 0
    kills_with_commits_open: int = 0
    starts_killed: int = 0
    answers: int = 0
    commits_open: int = 0
    commits_written: int = 0
    """Open commits that were found written afterwards."""
    batches_open: int = 0
    kills_with_transactions_open: int = 0
    transactions: int = 0
    transactions_open: int = 0
    transactions_committed: int = 0
    """Open transactions that were found committed afterwards."""
    begun: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        return (
            f"{self.kills} kills in {time.monotonic() - self.begun:.0f} s, {self.kills_with_commits_open} of "
            f"them with commits open; {self.starts_killed} more while it started; {self.answers} answers; "
            f"{self.commits_open} commits ({self.commits_written} of them written) and {self.batches_open} "
            f"batches open; {self.transactions} transactions, {self.kills_with_transactions_open} kills with "
            f"{self.transactions_open} of them open ({self.transactions_committed} of those committed)"
        )


class TooFewInFlight(Exception):
    """The kills did not hit commits or transactions in flight: the run proves nothing."""


class House:
    """One data directory with its broker and clients."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True)
        self.path = path
        self.dice = random.Random(0)  # each round seeds it
        self.served = Served(path / "data", log=path / "log")
        self.clients = Clients(self.dice, TOPICS)
        self.company = Company(self.dice, self.clients.producer_ids)
        self.rounds = 0

    def begin(self) -> None:
        self.served.start()
        asyncio.run(self._begin())

    async def _begin(self) -> None:
        await self.clients.begin(self.served.port)
        await self.company.begin(self.served.port)

    def round(self, seed: str, figures: Figures) -> str:
        """Load, kill, restart, check; returns a description of what happened."""
        self.rounds += 1
        self.dice.seed(seed)
        if self.rounds == 1:
            self.begin()
        begun = self.company.begun
        how, answers = asyncio.run(self._load_and_kill())
        code = self.served.process.wait(_END_S)
        if code != -signal.SIGKILL:
            raise Violation(f"muster serve ended by itself with {code}")
        self.served.kill()
        commits, batches = self.clients.unacknowledged_commits, self.clients.unacknowledged_batches
        transactions = self.company.open
        struck = self._restart()
        written, committed = asyncio.run(self._settle())
        figures.kills += 1
        figures.kills_with_commits_open += commits > 0
        figures.starts_killed += len(struck)
        figures.answers += answers
        figures.commits_open += commits
        figures.commits_written += written
        figures.batches_open += batches
        figures.kills_with_transactions_open += transactions > 0
        figures.transactions += self.company.begun - begun
        figures.transactions_open += transactions
        figures.transactions_committed += committed
        during = f", killed again on starting: {', '.join(struck)}" if struck else ""
        opened = (
            f"{commits} commits ({written} written), {batches} batches and "
            f"{transactions} transactions ({committed} committed) open"
        )
        return f"{how}, {answers} answers; {opened}{during}"

    async def _load_and_kill(self) -> tuple[str, int]:
        """What triggered the kill, and how many answers came before it."""
        served, dice = self.served, self.dice
        answers = of_transactions = 0
        last = answers_max = _ANSWERS_MAX
        last_of_transactions = 0
        pid = served.process.pid

        def kill() -> None:
            os.kill(pid, signal.SIGKILL)

        def answered() -> None:
            nonlocal answers
            answers += 1
            if answers == last:
                kill()

        def answered_of_transaction() -> None:
            nonlocal of_transactions
            of_transactions += 1
            if of_transactions == last_of_transactions:
                kill()
            answered()

        with ExitStack() as instruments:
            match dice.choice(("answers", "answers of transactions", "time", "syscall")):
                case "answers":
                    last = dice.randrange(1, 600)
                    how = f"at answer {last}"
                case "answers of transactions":
                    last_of_transactions = dice.randrange(1, 600)
                    last = answers_max = _ANSWERS_MAX * _LIGHTLY
                    how = f"at answer {last_of_transactions} of transactions"
                case "time":
                    seconds = dice.uniform(0, 0.5)
                    asyncio.get_running_loop().call_later(seconds, kill)
                    how = f"after {seconds:.3f} s"
                case _:
                    syscall, calls = dice.choice(list(_SYSCALLS.items()))
                    call = dice.randrange(1, calls)
                    instruments.enter_context(
                        strace.attached(pid, strace.kill_at(syscall, call), to_death=True)
                    )
                    how = f"in {syscall} {call}"
            await asyncio.gather(
                self.clients.load(served.port, answered, lightly=last_of_transactions > 0),
                self.company.load(served.port, answered_of_transaction),
            )
        return how if answers < answers_max else f"{how}, which did not come", answers

    async def _settle(self) -> tuple[int, int]:
        """How many unacknowledged commits were written, and how many open transactions were committed."""
        written = await self.clients.settle(self.served.port)
        return written, await self.company.settle(self.served.port)

    def _restart(self) -> list[str]:
        """Start again; sometimes that is killed too, perhaps several times. Returns where it was killed."""
        struck: list[str] = []
        while self.dice.random() < 0.3:
            syscall, calls = self.dice.choice(list(_STARTING_SYSCALLS.items()))
            call = self.dice.randrange(1, calls + 1)
            try:
                self.served.start(under=strace.under(*strace.kill_at(syscall, call)))
            except RuntimeError as error:
                if f"ended with {-signal.SIGKILL}" not in str(error):
                    raise Violation(f"muster serve does not start: {error}") from error
                struck.append(f"{syscall} {call}")
            else:
                self.served.kill()
        self.served.start()
        return struck

    def end(self) -> None:
        self.served.__exit__(None, None, None)


def campaign(seed: int, kills: int, directory: Path, say: Callable[[str], None]) -> Figures:
    """`kills` rounds below `directory`, where a failure's data and logs are kept. Raises Violation when one
    is found, and TooFewInFlight at the end."""
    figures = Figures()
    with ExitStack() as ending:
        growing: House | None = None
        for number in range(1, kills + 1):
            fresh = number % FRESH_EVERY == 0
            house = growing
            if house is None or fresh:
                house = House(directory / f"from-kill-{number}")
                ending.callback(house.end)
                growing = growing if fresh else house
            said = house.round(f"{seed}/{number}", figures)
            say(f"seed {seed}, kill {number}{', fresh' if fresh else ''}: {said}")
            if fresh or house.rounds == ROUNDS_A_DIRECTORY:
                house.end()
                shutil.rmtree(house.path)
                growing = None if house is growing else growing
    in_flight = min(figures.kills_with_commits_open, figures.kills_with_transactions_open)
    if in_flight < IN_FLIGHT_SHARE_MIN * kills:
        raise TooFewInFlight(str(figures))
    return figures
