"""The store as one broker sees it, which is paused along with that broker.

A paused process neither gets answers nor hears of changes, while the other brokers on the same store go on.
So a broker does not use the shared store directly, but through this: it has its own list of `changed`
callbacks, and withholds the outcomes of calls and the letters while the broker is paused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial, wraps
from typing import Any, cast
from uuid import UUID

from muster.coordinator.storage.mailboxes import Pile
from muster.coordinator.storage.store import Deliver, Store


class PausableStore:
    """Passes every call on to the shared store; `as_store` is for the type checker."""

    def __init__(self, store: Store) -> None:
        self.changed: list[Callable[[], None]] = []
        self._store = store
        self._running = asyncio.Event()
        self._running.set()
        self._missed_change = False
        self._mailboxes: dict[tuple[int, UUID], tuple[Deliver, Pile]] = {}
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

    @property
    def era(self) -> int:
        return self._store.era

    def pause(self) -> None:
        self._running.clear()

    def resume(self) -> None:
        self._running.set()
        if self._missed_change:
            self._missed_change = False
            self._on_change()
        for deliver, pile in list(self._mailboxes.values()):
            if payloads := pile.take():
                deliver(payloads)

    def open_mailbox(self, node_id: int, incarnation: UUID, deliver: Deliver) -> None:
        """As on the shared store; letters that come during a pause are delivered after it."""
        self._store.open_mailbox(node_id, incarnation, partial(self._on_letters, (node_id, incarnation)))
        self._mailboxes[node_id, incarnation] = deliver, Pile()

    def close_mailbox(self, node_id: int, incarnation: UUID) -> None:
        """As on the shared store, also during a pause."""
        self._store.close_mailbox(node_id, incarnation)
        self._mailboxes.pop((node_id, incarnation), None)

    def detach(self) -> None:
        """Stop listening to the shared store, which outlives the broker."""
        self._store.changed.remove(self._on_change)
        for mailbox in list(self._mailboxes):
            self.close_mailbox(*mailbox)

    def as_store(self) -> Store:
        return cast(Store, self)

    def _on_change(self) -> None:
        if not self._running.is_set():
            self._missed_change = True
            return
        for callback in list(self.changed):
            callback()

    def _on_letters(self, mailbox: tuple[int, UUID], payloads: Sequence[bytes]) -> None:
        if mailbox not in self._mailboxes:
            return
        deliver, pile = self._mailboxes[mailbox]
        if self._running.is_set():
            deliver(payloads)
            return
        for payload in payloads:
            pile.add(payload)
