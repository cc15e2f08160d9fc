"""Blocking and async versions of every call from one implementation.

A call is written once, as a coroutine that runs on the brokers' own loop:

    class GroupCalls(Calls):
        @waits
        async def stable(self, *, members: int | None = None) -> GroupFacts: ...

    class Group(GroupCalls, Blocking): ...      # Group.stable(members=2) -> GroupFacts
    class AsyncGroup(GroupCalls, Async): ...    # await AsyncGroup.stable(members=2) -> GroupFacts

Type checkers see both signatures with all parameters.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import wraps
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Final,
    Generic,
    NoReturn,
    ParamSpec,
    Self,
    TypeVar,
    overload,
)

from muster.coordinator.testing.thread import CALL_S
from muster.coordinator.testing.traces import told

if TYPE_CHECKING:
    from muster.coordinator.testing.core import Core

C = TypeVar("C", bound="Calls")
P = ParamSpec("P")
T = TypeVar("T")

FACT_S: Final = 10.0
"""Time limit for reading a fact, which blocks the caller in both APIs."""


class Calls:
    """The calls that the blocking and async versions of a class share."""

    __slots__ = ("_core",)

    def __init__(self, core: Core) -> None:
        self._core = core

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be copied, or sent to another process: give that broker.bootstrap instead"
        )

    def _look(self, looking: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Read a fact on the brokers' thread, blocking the caller."""
        __tracebackhide__ = True
        return self._core.thread.run(looking, FACT_S)


class Blocking(Calls):
    """Calls block until they are done."""

    __slots__ = ()


class Async(Calls):
    """Calls are awaited, on any asyncio loop or in trio."""

    __slots__ = ()


class both(Generic[C, P, T]):
    """Turn a coroutine on the brokers' loop into a call that blocks or is awaited, depending on the class."""

    limit_s: ClassVar[float | None] = CALL_S

    def __init__(self, call: Callable[Concatenate[C, P], Coroutine[Any, Any, T]]) -> None:
        self._call = call
        self.__doc__ = call.__doc__
        self.__wrapped__ = call  # for `inspect.signature` and documentation tools

    @overload
    def __get__(self, face: None, owner: Any = None) -> Self: ...
    @overload
    def __get__(self, face: Blocking, owner: Any = None) -> Callable[P, T]: ...
    @overload
    def __get__(self, face: Async, owner: Any = None) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, face: Any, owner: Any = None) -> Any:
        if face is None:
            return self
        call: Callable[..., Coroutine[Any, Any, T]] = self._call
        thread, limit_s = face._core.thread, self.limit_s

        if isinstance(face, Async):

            @wraps(call)
            async def awaited(*args: Any, **kwargs: Any) -> T:
                __tracebackhide__ = True
                future = thread.submit(lambda: call(face, *args, **kwargs), limit_s)
                try:
                    return await finished(future)
                except Exception as error:
                    raise told(error)  # noqa: B904 - the same error

            return awaited

        @wraps(call)
        def blocking(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            return thread.run(lambda: call(face, *args, **kwargs), limit_s)

        return blocking


class waits(both[C, P, T]):
    """Like `both`, for a call that takes its own timeout."""

    limit_s = None


async def finished(future: Future[T], *, take_back: bool = True) -> T:
    """Await, on the caller's loop, a result from the brokers' loop. With `take_back`, cancelling the caller
    also cancels the call."""
    if not _in_trio():
        waiting = asyncio.wrap_future(future)
        return await (waiting if take_back else asyncio.shield(waiting))
    import trio

    done, token = trio.Event(), trio.lowlevel.current_trio_token()

    def tell(_: Future[T]) -> None:
        with suppress(trio.RunFinishedError):  # nobody is waiting any more
            token.run_sync_soon(done.set)

    future.add_done_callback(tell)
    try:
        await done.wait()
    finally:
        if take_back:
            future.cancel()  # harmless if done
    return future.result()


def _in_trio() -> bool:
    """Whether the caller runs in trio, which need not be installed."""
    trio = sys.modules.get("trio")
    if trio is None:
        return False
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return False
    return True
