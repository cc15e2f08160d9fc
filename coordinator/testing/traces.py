"""What the report of a test shows of an error that its own call met: the test's line, and hardly more."""

from __future__ import annotations

from typing import TypeVar

from muster.coordinator.testing.waiting import WaitFailed
from muster.protocol.errors import KafkaError

E = TypeVar("E", bound=BaseException)

_ANSWERS = (KafkaError, WaitFailed)
_MISUSE = (ValueError, TypeError, LookupError, RuntimeError)


def told(error: E) -> E:
    """The error, to be raised to the test, without its way through the brokers' thread. An answer keeps
    nothing of its trace; what a wrong argument brings about keeps the line that found it, since that may be a
    defect of muster; any other error keeps everything."""
    if isinstance(error, _ANSWERS):
        error.__suppress_context__ = True
        error.__traceback__ = None
    elif isinstance(error, _MISUSE):
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        error.__traceback__ = trace
    return error
