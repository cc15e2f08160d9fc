"""Detects changes made by other processes: polls the revision, and checks it at once where the server passes
notifications on (not every server that speaks PostgreSQL's protocol does)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from muster.coordinator.base.log import Logger
from muster.coordinator.storage.postgres import statements
from muster.coordinator.storage.postgres.connect import Link, Server
from muster.coordinator.storage.postgres.eras import Eras
from muster.coordinator.storage.store import StoreError

if TYPE_CHECKING:
    from asyncpg import Connection

POLL_MS_DEFAULT: Final = 100
_CHANNEL: Final = "muster_changed"
_PAUSE_S: Final = 0.01
"""Pause between two polls: when leases move, many changes come at once, and each poll makes brokers read a
lot."""


class Watch:
    """Polls the revision on a connection of its own and calls `changed` when it has moved.

    `listen` says whether to try notifications; where they are refused, it only polls.
    """

    def __init__(
        self,
        server: Server,
        changed: Callable[[], None],
        *,
        name: str,
        connect_timeout_ms: int,
        statement_timeout_ms: int,
        poll_ms: int,
        listen: bool,
        eras: Eras,
    ) -> None:
        self._changed = changed
        self._log = Logger(part="store", name=name)
        self._poll_ms = poll_ms
        self._listen = listen
        self._eras = eras
        self._link = Link(
            server,
            name=name,
            connect_timeout_ms=connect_timeout_ms,
            statement_timeout_ms=statement_timeout_ms,
            prepare=self._prepare,
            eras=eras,
        )
        self._seen = 0
        self._seen_era = 0
        self._look = asyncio.Event()
        self._untold = False
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Watch revision={self._seen} {'listening' if self._listen else 'polling'}>"

    async def start(self) -> None:
        """Raises StoreError."""
        self._seen = await self._link.run("reading the revision", statements.meta.revision)
        self._seen_era = self._link.era
        self._task = asyncio.get_running_loop().create_task(self._run(), name="watch the store")

    async def close(self) -> None:
        """Waits for a statement in flight, for at most the statement timeout."""
        self._closing = True
        self._look.set()
        if self._task is not None:
            await self._task
        await self._link.close()

    def made(self, revision: int) -> None:
        """A change from here has moved the revision to this; other processes are notified soon."""
        if revision > self._seen:
            self._seen, self._seen_era = revision, self._eras.current
        self._changed()
        self._untold = True
        self._look.set()

    async def _run(self) -> None:
        away = False
        while not self._closing:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_ms / 1000):
                    await self._look.wait()
            if self._closing:
                return
            self._look.clear()
            try:
                await self._link.run("watching the store", self._poll)
            except StoreError as error:
                if not away:
                    self._log.warning("failed to watch the store for changes, retrying", why=str(error))
                away = True
            except Exception as error:
                self._log.error("failed to watch the store for changes, retrying", exc_info=error)
            else:
                if away:
                    self._log.info("the store is watched again")
                away = False
            await asyncio.sleep(_PAUSE_S)

    async def _poll(self, connection: Connection) -> None:
        if self._untold and self._listen:
            self._untold = False
            await connection.execute(f"NOTIFY {_CHANNEL}")
        seen, era = self._seen, self._link.era  # before the read: during it, `made` may raise it further
        revision = await statements.meta.revision(connection)
        if revision < seen:
            self._log.error(
                "the database has lost acknowledged changes to topics, configs or leases: a replica or "
                "backup that lacks them has replaced it",
                revision=revision,
                revision_before=seen,
            )
            if era == self._seen_era:  # nothing else has shown it
                self._eras.end(era)
        if revision > self._seen or revision < seen:
            self._seen, self._seen_era = revision, era
            self._changed()

    async def _prepare(self, connection: Connection) -> None:
        if not self._listen:
            return
        try:
            await connection.add_listener(_CHANNEL, self._hear)
        except Exception as error:
            # Not supported, or no such syntax. Any other failure may be gone next time.
            if not str(getattr(error, "sqlstate", None)).startswith(("0A", "42")):
                raise
            self._log.info("LISTEN is not supported; polling for changes", why=str(error))
            self._listen = False

    def _hear(self, *_: Any) -> None:
        self._look.set()
