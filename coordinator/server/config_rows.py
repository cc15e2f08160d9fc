"""What is set in the store apart from topics, for all brokers of the cluster: on brokers, on groups, and the
levels of features. It is all read at once, and each kind is notified of what was read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from muster.coordinator.base.listeners import call_all
from muster.coordinator.storage.store import BrokerConfigsRow, Store, StoreConflict
from muster.protocol.errors import ErrorCode, KafkaError

_ATTEMPTS: Final = 8

Rows = Mapping[str, Mapping[str, str]]
"""What is set, by row name (`BrokerConfigsRow.broker`)."""


class ConfigRows:
    """The rows as last read.

    `listeners` are called with the first rows and after every change, in order.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._refreshing = asyncio.Lock()
        self._rows: Rows = {}
        self._told = False
        self.listeners: list[Callable[[Rows], None]] = []

    def __repr__(self) -> str:
        return f"<ConfigRows {len(self._rows)}>"

    async def refresh(self) -> None:
        """Read the store, and notify the listeners of changes. Raises StoreError."""
        async with self._refreshing:  # one after the other, or an older snapshot could come last
            rows = {row.broker: row.configs for row in await self._store.broker_configs()}
            if self._told and rows == self._rows:
                return
            self._rows, self._told = rows, False
            call_all(self.listeners, rows)
            self._told = True

    async def change(
        self,
        name: str,
        after: Callable[[Mapping[str, str]], Mapping[str, str]],
        *,
        validate_only: bool = False,
    ) -> None:
        """Replace the row `name` with what `after` makes of it. `after` raises KafkaError to refuse; it is
        called again if the row was changed from elsewhere meanwhile.

        Raises REQUEST_TIMED_OUT if that keeps happening, and StoreError.
        """
        await self._know(name, after)
        if await self._replace(name, after, validate_only=validate_only):
            await self.refresh()

    async def change_all(
        self, changes: Mapping[str, Callable[[Mapping[str, str]], Mapping[str, str]]]
    ) -> None:
        """Replace rows as `change` does, one after the other up to the first that fails. The result is read
        once."""
        changed = known = False
        try:
            for name, after in changes.items():
                known = known or await self._know(name, after)
                changed |= await self._replace(name, after, validate_only=False)
        finally:
            if changed:
                await self.refresh()

    async def _know(self, name: str, after: Callable[[Mapping[str, str]], Mapping[str, str]]) -> bool:
        """Read the store if `after` would change nothing, or refuse to: another broker may have changed the
        row since the last read. Returns whether it was read."""
        row = self._rows.get(name, {})
        with suppress(KafkaError):
            if after(row) != row:
                return False
        await self.refresh()
        return True

    async def _replace(
        self, name: str, after: Callable[[Mapping[str, str]], Mapping[str, str]], *, validate_only: bool
    ) -> bool:
        """Whether the row was replaced."""
        for _ in range(_ATTEMPTS):
            before = self._rows.get(name, {})
            now = after(before)
            if validate_only or now == before:
                return False
            try:
                await self._store.update_broker_configs(BrokerConfigsRow(name, now), expected=before)
            except StoreConflict:
                await self.refresh()
                continue
            return True
        raise KafkaError(
            ErrorCode.REQUEST_TIMED_OUT, "these configs are being changed from elsewhere all the time"
        )
