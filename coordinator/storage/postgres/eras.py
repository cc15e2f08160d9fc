"""Which server answers. A promoted standby or a restored backup that takes the database's place may lack the
last claims and writes, although they were acknowledged."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

from muster.coordinator.base.log import Logger
from muster.coordinator.storage.postgres.connect import Unreachable

if TYPE_CHECKING:
    from asyncpg import Connection

_TIMELINE_DIGITS: Final = 8
"""The name of a WAL segment begins with these."""
_TIMELINE: Final = "pg_walfile_name(pg_current_wal_lsn())"
_NOT_IN_THIS_STATE: Final = "55000"


class ServerId(NamedTuple):
    """Standbys have their primary's `system`. The timeline grows when one of them is promoted."""

    system: int | None
    """None where the role may not read it."""
    timeline: int


async def identify(connection: Connection) -> ServerId | None:
    """None where there is no such thing."""
    import asyncpg

    for system in ("(SELECT system_identifier FROM pg_control_system())", "NULL::bigint"):
        try:
            number, segment = await connection.fetchrow(f"SELECT {system}, {_TIMELINE}")
        except asyncpg.PostgresError as error:
            # Not supported, no such function, or not allowed. Any other failure may be gone next time.
            state = error.sqlstate
            if not state.startswith(("0A", "42")) and state != _NOT_IN_THIS_STATE:
                raise
        else:
            return None if segment is None else ServerId(number, int(segment[:_TIMELINE_DIGITS], 16))
    return None


class Eras:
    """Numbers the servers that the database has had, as far as this process has seen. Usable from any thread.

    A connection belongs to the era in which it was checked, and is not used in a later one. What was claimed
    in one era, or derived from what was read in it, is not written in another.
    """

    def __init__(self, name: str) -> None:
        """`name` is for the log."""
        self.current = 0
        self._log = Logger(part="store", name=name)
        self._lock = Lock()
        self._server: ServerId | None = None

    def __repr__(self) -> str:
        return f"<Eras {self.current} {self._server}>"

    async def check(self, connection: Connection) -> int:
        """The era that a new connection belongs to. Raises Unreachable if an old primary answers."""
        found = await identify(connection)
        with self._lock:
            known = self._server
            if found is None or found == known:
                return self.current
            if known is not None and found.system == known.system and found.timeline < known.timeline:
                raise Unreachable(
                    f"an old primary answers: its timeline is {found.timeline}, and the database has gone on "
                    f"in timeline {known.timeline}; shut that server down, or restart the brokers if it is a "
                    "backup that was restored on purpose"
                )
            self._server = found
            if known is not None:
                self.current += 1
                self._log.warning(
                    "the database has failed over; reloading everything from the new server. Acknowledged "
                    "writes that it never received are lost; with synchronous replication there are none",
                    timeline=found.timeline,
                    timeline_before=known.timeline,
                )
            return self.current

    def end(self, era: int) -> None:
        """The database was found to be replaced otherwise. Harmless if the era is over."""
        with self._lock:
            if era == self.current:
                self.current += 1
