"""The time that a request takes in the loop's thread, including its coroutines."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from contextvars import ContextVar
from time import thread_time_ns
from types import TracebackType
from typing import Any, Final, Self, TypeVar

T = TypeVar("T")


class Spent:
    """A stopwatch that runs while it is entered."""

    __slots__ = ("_since_ns", "_total_ns")

    def __init__(self) -> None:
        self._total_ns = 0
        self._since_ns: int | None = None

    def __enter__(self) -> Self:
        self._since_ns = thread_time_ns()
        return self

    def __exit__(self, *_: object) -> None:
        self._total_ns, self._since_ns = self.ns, None

    @property
    def ns(self) -> int:
        """Nanoseconds up to now."""
        running = 0 if self._since_ns is None else thread_time_ns() - self._since_ns
        return self._total_ns + running


counting: Final[ContextVar[Spent | None]] = ContextVar("counting", default=None)
"""The stopwatch of the request that is being begun; None if its time is not measured."""


class Timed(Coroutine[Any, Any, T]):
    """A coroutine whose steps are timed."""

    __slots__ = ("_inner", "_spent")

    def __init__(self, inner: Coroutine[Any, Any, T], spent: Spent) -> None:
        self._inner = inner
        self._spent = spent

    def send(self, value: Any) -> Any:
        with self._spent:
            return self._inner.send(value)

    def throw(self, kind: Any, error: Any = None, trace: TracebackType | None = None) -> Any:
        with self._spent:
            return self._inner.throw(kind if error is None else error)

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._inner.__await__()
