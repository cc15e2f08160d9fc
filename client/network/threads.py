"""Runs calls that may block indefinitely, and abandons them when nobody wants the result."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Run a blocking call in its own daemon thread and return its result. A cancelled caller leaves the call
    behind, and so does an exiting process. (The loop's own threads would be joined.)"""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def work() -> None:
        result, failed = None, None
        try:
            result = function(*arguments)
        except BaseException as error:
            failed = error
        with suppress(RuntimeError):  # the loop is closed: nobody is waiting
            loop.call_soon_threadsafe(deliver, result, failed)

    threading.Thread(target=work, daemon=True).start()
    return await future
