"""What a PostgreSQL server uses: CPU time of its processes, bytes of its log, connections, room."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

import asyncpg

from tests.support.postgres import Postgres

T = TypeVar("T")

_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")


def server() -> Postgres:
    """A server as it is installed: what tests set smaller is at its default here."""
    return Postgres(settings={"shared_buffers": "128MB", "max_connections": "100"})


def run(url: str, work: Callable[[asyncpg.Connection], Coroutine[Any, Any, T]]) -> T:
    """Do something over a connection of its own."""

    async def connected() -> T:
        connection = await asyncpg.connect(url)
        try:
            return await work(connection)
        finally:
            await connection.close()

    return asyncio.run(connected())


class Usage:
    """What a server has used since this object was made."""

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres
        self._cpu_s = family_cpu_seconds(postgres.pid)
        self._written = _log_bytes(postgres)

    def each(self, count: float) -> dict[str, float]:
        """CPU time in microseconds and bytes of log, for each of `count`."""
        return {
            "cpu_us": (family_cpu_seconds(self._postgres.pid) - self._cpu_s) / count * 1e6,
            "wal_bytes": (_log_bytes(self._postgres) - self._written) / count,
        }


def _log_bytes(postgres: Postgres) -> int:
    """Bytes of write-ahead log since the server was made."""
    return int(postgres.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"))


def family_cpu_seconds(pid: int) -> float:
    """User and system time of a process, of its children that have ended, and of those that run."""
    ticks = 0
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                fields = (directory / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended: its parent has its time
                continue
            if directory.name == str(pid):
                ticks += sum(map(int, fields[11:15]))
            elif fields[1] == str(pid):
                ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_A_SECOND
