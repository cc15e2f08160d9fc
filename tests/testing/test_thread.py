"""The thread of a test broker, when several threads start and end it."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from unittest.mock import Mock

import pytest

from muster.coordinator.testing.thread import LoopThread

LIMIT_S = 30.0


class Watched:
    """A lock that tells when somebody wants it."""

    def __init__(self, wanted: threading.Event) -> None:
        self._lock = threading.Lock()
        self._wanted = wanted

    def __enter__(self) -> None:
        self._wanted.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


async def answer() -> int:
    return 5


def test_who_starts_it_while_it_ends_gets_one_that_runs() -> None:
    thread, wanted = LoopThread("tested"), threading.Event()
    thread.start()
    thread._changing = Watched(wanted)  # type: ignore[assignment]
    at_its_last, may_end = threading.Event(), threading.Event()

    async def last() -> None:
        at_its_last.set()
        await asyncio.to_thread(may_end.wait, LIMIT_S)

    with ThreadPoolExecutor() as threads:
        try:
            ending = threads.submit(thread.end, last)
            assert at_its_last.wait(LIMIT_S)
            wanted.clear()
            starting = threads.submit(thread.start)
            waiting = threads.submit(wanted.wait, LIMIT_S)
            wait([starting, waiting], LIMIT_S, FIRST_COMPLETED)
        finally:
            may_end.set()
        ending.result(LIMIT_S)
        starting.result(LIMIT_S)
        assert thread.run(answer, LIMIT_S) == 5
    thread.end()
    assert not thread.running
    assert "tested" not in [each.name for each in threading.enumerate()]


def test_one_that_cannot_start_again_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = LoopThread("tested")
    thread.start()
    thread.end()
    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "Runner", Mock(side_effect=OSError("no file descriptors")))
        with pytest.raises(OSError, match="no file descriptors"):
            thread.start()
    assert not thread.running
    thread.end()
    thread.start()
    assert thread.run(answer, LIMIT_S) == 5
    thread.end()
