"""Shared by the transforming programs of all Python clients (`tests/interop/transactions/clients.py` says
what such a program does)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from tests.interop.programs.python import lines

PARTITIONS: Final = 3
FETCH_MAX_WAIT_MS: Final = 50
"""A fetch that waits at the end delays the one from the position the consumer goes back to."""


class Result(NamedTuple):
    """A record for the target topic."""

    partition: int
    key: bytes
    value: bytes


@dataclass(frozen=True)
class Job:
    bootstrap: str
    group: str
    source: str
    target: str
    transactional_id: str
    session_timeout_ms: int
    abort_every: int
    """Every n-th transaction is aborted on purpose. 0: none."""
    records_max: int
    """Maximum per transaction."""

    @property
    def heartbeat_interval_ms(self) -> int:
        return self.session_timeout_ms // 10


def result_of(value: bytes | None) -> Result:
    """The result for a source record."""
    assert value is not None
    number = int(value)
    return Result(number // PARTITIONS % PARTITIONS, b"k%d" % number, b"%d %d" % (number, number**2))


class Turns:
    """Decides for each transaction whether to abort it on purpose."""

    def __init__(self, job: Job) -> None:
        self._every = job.abort_every
        self._begun = 0

    def aborts(self) -> bool:
        self._begun += 1
        return self._every > 0 and self._begun % self._every == 0


def say(step: str, records: int) -> None:
    lines.say("transaction", step=step, records=records)


def failed(error: object) -> None:
    """The transaction was aborted or could not be ended, unintentionally."""
    lines.complain(f"failed: {error!r}")
    say("failed", 0)


def run(transform: Callable[[Job], None]) -> None:
    match sys.argv[1:]:
        case [bootstrap, group, source, target, transactional_id, session_ms, abort_every, records_max]:
            texts = (bootstrap, group, source, target, transactional_id)
            transform(Job(*texts, int(session_ms), int(abort_every), int(records_max)))
        case _:
            raise SystemExit(
                "BOOTSTRAP GROUP SOURCE TARGET TRANSACTIONAL_ID SESSION_TIMEOUT_MS ABORT_EVERY RECORDS_MAX"
            )
