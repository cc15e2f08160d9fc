"""Processes that are forked while a test runs, as multiprocessing does with "fork"."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import BaseContext
from typing import Any

import pytest

DEADLINE_S = 30

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


def _start(run: Callable[[], object]) -> Any:
    context: BaseContext = multiprocessing.get_context("fork")
    child: Any = context.Process(target=run, daemon=True)  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a process with threads is forked: on purpose
        child.start()
    return child


@contextmanager
def a_fork() -> Iterator[None]:
    """In the block there is a process that was forked at its beginning and does nothing."""
    here, there = multiprocessing.Pipe()
    child = _start(there.recv)
    try:
        yield
        assert child.is_alive()
    finally:
        here.send(None)
        child.join(DEADLINE_S)


def told_in_a_fork(call: Callable[[], object]) -> str:
    """What a call returns, or the error that it raises, in a process forked for it."""
    here, there = multiprocessing.Pipe()

    def run() -> None:
        try:
            there.send(str(call()))
        except Exception as error:
            there.send(f"{type(error).__name__}: {error}")

    child = _start(run)
    try:
        assert here.poll(DEADLINE_S), "the call hangs"
        return str(here.recv())
    finally:
        child.kill()
        child.join(DEADLINE_S)
