"""Restores where the log of this process goes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from muster.coordinator.base import log

_STANDARD = ("muster", "asyncio")


@contextmanager
def log_as_before() -> Iterator[None]:
    """Undo any log configuration made inside the block. `muster serve` configures its process, here ours, and
    its writer would go on writing to a file descriptor that belongs to another file by then."""
    before = {name: vars(log._Output)[name] for name in ("level", "format", "stream", "writer", "logger")}
    loggers = [logging.getLogger(name) for name in _STANDARD]
    standard = [(each, each.handlers, each.propagate, each.level) for each in loggers]
    yield
    if log._Output.writer is not None and log._Output.writer is not before["writer"]:
        log._Output.writer.close()
    for name, value in before.items():
        setattr(log._Output, name, value)
    for logger, handlers, propagate, level in standard:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)
