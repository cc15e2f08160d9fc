"""How blocking code reaches the database that holds topic records: a thread with an event loop and a few
connections of its own, so that large rows hold up neither heartbeats nor the store's statements."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as NotDone
from contextlib import suppress
from errno import ENOSPC
from typing import TYPE_CHECKING, Any, Final, TypeVar

from muster.coordinator.storage.postgres.connect import Accept
from muster.coordinator.storage.postgres.eras import Eras
from muster.coordinator.storage.records import Fenced
from muster.realtime import keep_real

if TYPE_CHECKING:
    import asyncpg

_CONNECTIONS_MAX: Final = 6
_CALL_TIMEOUT_S: Final = 10.0
"""For one call with all its retries: longer than a statement and a connect may take."""
_CLOSE_TIMEOUT_S: Final = 10.0
_ATTEMPTS_MAX: Final = 5
_AWAY_S: Final = 0.5
"""How long calls are refused at once after one had no answer or could not connect, so that queued calls do
not each wait as long."""
_FULL_S: Final = 0.5
"""How long no further connection is tried after the server has refused one, while there are others."""
_DISK_FULL: Final = "53100"
_TRANSIENT: Final = ("40001", "40P01")
"""Serialization failure and deadlock: nothing was changed."""
_LOST: Final = ("08", "57P")
"""Prefixes of the error codes that mean the end of a connection."""

_T = TypeVar("_T")
Call = Callable[["asyncpg.Connection[Any]"], Awaitable[_T]]


class RecordDatabase:
    """Runs calls on connections. Starts its thread with the first call; usable from any thread."""

    def __init__(
        self, path: str, connect: Callable[[Accept], Awaitable[asyncpg.Connection[Any]]], eras: Eras
    ) -> None:
        """`path` says where the database is, without the password; `connect` is called in the thread, ends in
        bounded time, and calls what it is given on the connection that it returns."""
        self.path = path
        self.eras = eras
        self._connect = connect
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        # Used only in the loop's thread:
        self._idle: list[tuple[asyncpg.Connection[Any], int]] = []  # with their eras
        self._taken = 0  # in use, or being made
        self._changed = asyncio.Event()  # one of those is idle, or gone
        self._free = asyncio.Semaphore(_CONNECTIONS_MAX)
        self._full_until = 0.0
        self._away_until = 0.0
        self._away_why = ""

    def run(self, call: Call[_T], *, repeatable: bool, era: int | None = None) -> _T:
        """Run `call` and return what it returns. Blocks for at most 15 s. Raises OSErrors.

        `call` is retried after a serialization failure or a deadlock; if `repeatable`, also after its
        connection was lost. One that writes must be a single statement, so that its locks are never held by a
        stalled process. What was derived in an `era` is written in that one alone: Fenced if it is over.
        """
        turn = self._submit(self._run(call, repeatable, era))
        try:
            return turn.result(_CALL_TIMEOUT_S + 5)
        except NotDone:
            turn.cancel()
            raise OSError(f"{self.path}: no answer within {_CALL_TIMEOUT_S + 5:g} s") from None
        except CancelledError:
            raise OSError(f"{self.path}: closed during the call") from None

    def close(self) -> None:
        """Refuse further calls and close the connections. Harmless when repeated."""
        with self._lock:
            self._closed = True
            loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            with suppress(NotDone):
                asyncio.run_coroutine_threadsafe(self._disconnect(), loop).result(_CLOSE_TIMEOUT_S)
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join(_CLOSE_TIMEOUT_S)

    def _submit(self, call: Coroutine[Any, Any, _T]) -> Future[_T]:
        with self._lock:
            if self._closed:
                call.close()
                raise OSError(f"{self.path}: closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                keep_real(self._loop)
                self._thread = threading.Thread(
                    target=_run_loop, args=[self._loop], name="muster-records", daemon=True
                )
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(call, self._loop)

    # --- in the thread ----------------------------------------------------------------------------

    async def _run(self, call: Call[_T], repeatable: bool, era: int | None) -> _T:
        in_line = True  # for a connection in use, so that the time tells nothing about the database
        try:
            async with asyncio.timeout(_CALL_TIMEOUT_S), self._free:
                attempt = 1
                while True:
                    in_line = False
                    found = await self._connection()
                    if found is None:
                        in_line = True
                        await self._chance()
                        continue
                    connection, era_there = found
                    if era is not None and era != era_there:
                        self._give_back(connection, era_there)
                        raise Fenced(f"{self.path}: the database has failed over since the log was opened")
                    try:
                        return await self._on(connection, era_there, call)
                    except Exception as error:
                        if attempt == _ATTEMPTS_MAX or not _may_repeat(error, repeatable):
                            raise
                    await asyncio.sleep(random.uniform(0, 0.02 * attempt))
                    attempt += 1
        except TimeoutError:
            why = f"{self.path}: no answer within {_CALL_TIMEOUT_S:g} s"
            if not in_line:
                self._note_away(why)
            raise OSError(why) from None
        except Exception as error:
            if getattr(error, "sqlstate", None) == _DISK_FULL:
                raise OSError(ENOSPC, f"{self.path}: {error}") from error
            if isinstance(error, OSError) and not isinstance(error, ConnectionError):
                raise
            text = str(error)
            raise OSError(text if self.path in text else f"{self.path}: {text}") from error

    async def _on(self, connection: asyncpg.Connection[Any], era: int, call: Call[_T]) -> _T:
        try:
            found = await call(connection)
        except BaseException as error:
            if _is_lost(error):
                connection.terminate()  # perhaps in the middle of something
                # The others may have ended with it, and the next statements must not find that out one by
                # one: writes must not be sent again.
                self._drop_idle()
                self._let_go()
            else:
                self._give_back(connection, era)
            raise
        self._give_back(connection, era)
        return found

    def _give_back(self, connection: asyncpg.Connection[Any], era: int) -> None:
        self._idle.append((connection, era))
        self._let_go()

    def _let_go(self) -> None:
        self._taken -= 1
        self._changed.set()

    async def _connection(self) -> tuple[asyncpg.Connection[Any], int] | None:
        """An idle connection or a new one. None if the server refuses it while there are others: wait for a
        `_chance`."""
        loop = asyncio.get_running_loop()
        while self._idle:
            connection, era = self._idle.pop()
            if era != self.eras.current:
                connection.terminate()
            elif not connection.is_closed():
                self._taken += 1
                return connection, era
        if loop.time() < self._away_until:
            raise ConnectionError(self._away_why)
        if self._taken and loop.time() < self._full_until:
            return None
        self._taken += 1
        try:
            return await self._new()
        except BaseException as error:
            self._let_go()
            if not isinstance(error, Exception):
                raise
            if not (_is_refusal(error) and (self._taken or self._idle)):
                self._note_away(str(error))
                raise
            self._full_until = loop.time() + _FULL_S
            return None

    async def _chance(self) -> None:
        """Wait until one of those in use is idle or gone, or the server may be asked for a further one."""
        if self._idle or not self._taken:
            return
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._full_until):
                await self._changed.wait()

    async def _new(self) -> tuple[asyncpg.Connection[Any], int]:
        era = self.eras.current

        async def accept(connection: asyncpg.Connection[Any]) -> None:
            nonlocal era
            era = await self.eras.check(connection)

        return await self._connect(accept), era

    def _note_away(self, why: str) -> None:
        """Spare the other calls from finding out one after the other that nobody answers."""
        self._away_until, self._away_why = asyncio.get_running_loop().time() + _AWAY_S, why
        self._drop_idle()

    def _drop_idle(self) -> None:
        idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.terminate()

    async def _disconnect(self) -> None:
        under_way = asyncio.all_tasks() - {asyncio.current_task()}
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        idle, self._idle = self._idle, []
        for connection, _ in idle:
            try:
                await connection.close(timeout=1)
            except Exception:
                connection.terminate()


def _may_repeat(error: Exception, repeatable: bool) -> bool:
    return getattr(error, "sqlstate", None) in _TRANSIENT or (repeatable and _is_lost(error))


def _is_refusal(error: Exception) -> bool:
    """Whether the server runs and does not let this connection in, as when it has too many."""
    sqlstate: str | None = getattr(error.__cause__, "sqlstate", None)
    return sqlstate is not None and not sqlstate.startswith("57P")


def _is_lost(error: BaseException) -> bool:
    """Whether the connection is no longer usable, according to the server, the operating system or asyncpg,
    or because a call on it was cancelled."""
    sqlstate: str | None = getattr(error, "sqlstate", None)
    return sqlstate is None or sqlstate.startswith(_LOST)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()
