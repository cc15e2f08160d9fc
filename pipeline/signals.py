"""Defers SIGINT and SIGTERM where they must not interrupt a call."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """Within the block, SIGINT and SIGTERM are only recorded, in the list that it gets: an exception during a
    call to the JVM would make the connection unusable. For the main thread."""
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda received, _: came.append(received))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def held_signals() -> Iterator[None]:
    """SIGINT and SIGTERM within the block take effect after it, even if it failed: perhaps because the signal
    reached other processes too."""
    came: list[int] = []
    try:
        with noted_signals() as came:
            yield
    finally:
        for number in came[:1]:
            signal.raise_signal(number)


@contextmanager
def lost_jvm_is_no_news(since: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Within the block, once `since()` is true, py4j does not log that the JVM is gone: a signal that ends
    the job may also have reached the JVM, which exits sooner. py4j logs it to the root logger; other loggers
    are not affected."""
    root = logging.getLogger()

    def passes(record: logging.LogRecord) -> bool:
        return record.module != "java_gateway" or not since()

    root.addFilter(passes)
    try:
        yield
    finally:
        root.removeFilter(passes)
