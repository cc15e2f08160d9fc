"""Tracebacks of errors from a test's own calls: the test's line and little else."""

from __future__ import annotations

from typing import TypeVar

from muster.coordinator.testing.waiting import WaitFailed
from muster.protocol.errors import KafkaError

E = TypeVar("E", bound=BaseException)

_ANSWERS = (KafkaError, WaitFailed)
_MISUSE = (ValueError, TypeError, LookupError, RuntimeError)


def told(error: E) -> E:
    """The error to raise in the test, without its path through the brokers' thread. Kafka errors lose their
    traceback; errors for wrong arguments keep the last frame, which may point to a defect in muster; others
    keep everything."""
    if isinstance(error, _ANSWERS):
        error.__suppress_context__ = True
        error.__traceback__ = None
    elif isinstance(error, _MISUSE):
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        error.__traceback__ = trace
    return error
