"""A store that one broker sees and that can be stopped for it, as part of pausing that broker.

A paused process neither gets answers nor hears of changes, while the other brokers on the same store go on.
So a broker does not use the shared store directly, but through this: its own list of `changed` callbacks, and
calls whose outcome it learns only when it runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, cast

from muster.coordinator.storage.store import Store


class PausableStore:
    """Passes every call on to the shared store; `as_store` is for the type checker."""

    def __init__(self, store: Store) -> None:
        self.changed: list[Callable[[], None]] = []
        self._store = store
        self._running = asyncio.Event()
        self._running.set()
        self._missed_change = False
        store.changed.append(self._on_change)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._store, name)

        @wraps(method)
        async def call(*arguments: Any, **options: Any) -> Any:
            await self._running.wait()
            try:
                outcome = await method(*arguments, **options)
            except Exception:
                await self._running.wait()
                raise
            await self._running.wait()
            return outcome

        setattr(self, name, call)
        return call

    def pause(self) -> None:
        self._running.clear()

    def resume(self) -> None:
        self._running.set()
        if self._missed_change:
            self._missed_change = False
            self._on_change()

    def detach(self) -> None:
        """Hear of nothing any more; the shared store outlives the broker."""
        self._store.changed.remove(self._on_change)

    def as_store(self) -> Store:
        return cast(Store, self)

    def _on_change(self) -> None:
        if not self._running.is_set():
            self._missed_change = True
            return
        for callback in list(self.changed):
            callback()
