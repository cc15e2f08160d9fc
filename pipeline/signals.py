"""SIGINT and SIGTERM, where they must not break into a call."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """Within the block SIGINT and SIGTERM are only noted, in the list that it is given: an exception in the
    midst of a call of the JVM would leave the connection to it unusable. For the main thread."""
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
    """SIGINT and SIGTERM that come within the block take effect behind it, also when it failed: of what they
    reached beside this process, perhaps."""
    came: list[int] = []
    try:
        with noted_signals() as came:
            yield
    finally:
        for number in came[:1]:
            signal.raise_signal(number)


@contextmanager
def lost_jvm_is_no_news(since: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Within the block py4j does not log that the JVM is gone, once `since()`: a signal that ends the job may
    have gone to the JVM too, which is quicker. It logs as nobody, so nothing else is silenced."""
    root = logging.getLogger()

    def passes(record: logging.LogRecord) -> bool:
        return record.module != "java_gateway" or not since()

    root.addFilter(passes)
    try:
        yield
    finally:
        root.removeFilter(passes)
