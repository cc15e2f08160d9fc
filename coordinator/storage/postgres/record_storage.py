"""The records of all partitions as PostgreSQL rows; see `storage.records.RecordStorage`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID

from muster.coordinator.storage.postgres import record_statements as statements
from muster.coordinator.storage.postgres.connect import connect, parse
from muster.coordinator.storage.postgres.eras import Eras
from muster.coordinator.storage.postgres.record_database import RecordDatabase
from muster.coordinator.storage.postgres.record_log import (
    RowLog,
    RowPlace,
    delete_segment,
    delete_slice,
    write,
)
from muster.coordinator.storage.postgres.record_statements import Change
from muster.coordinator.storage.records import RecordLog
from muster.coordinator.storage.store import Lease

_SLICES_AT_ONCE: Final = 16
"""How much of a deleted topic is removed at once, in slices of up to 16 MiB."""


class Rows:
    """One object per process, shared by its brokers. All methods block."""

    def __init__(self, database: RecordDatabase) -> None:
        self.database = database

    @classmethod
    def at(cls, url: str, name: str, eras: Eras | None = None) -> Rows:
        """The rows in the store's database; `name` is what that calls its connections, `eras` is the store's.
        Raises StoreError if `url` is invalid."""
        server = parse(url)
        return cls(
            RecordDatabase(
                server.name, lambda accept: connect(server, name=name, accept=accept), eras or Eras(name)
            )
        )

    @property
    def path(self) -> str:
        return self.database.path

    def place(self, topic_id: UUID, partition: int, lease: Lease, epoch: int) -> RowPlace:
        return RowPlace(self.database, topic_id, partition, lease, epoch)

    def commit(self, logs: Sequence[RecordLog]) -> list[OSError | None]:
        """One statement for all logs; those that are fenced or were changed meanwhile are skipped."""
        outcomes: dict[RecordLog, OSError | None] = dict.fromkeys(logs)
        asked: list[tuple[RowLog, Change]] = []
        for log in logs:
            assert isinstance(log, RowLog)
            try:
                if log.pending:
                    asked.append((log, log.change()))
            except OSError as error:
                outcomes[log] = error
        for (log, _), outcome in zip(asked, write(self.database, asked), strict=True):
            outcomes[log] = outcome
        return list(outcomes.values())

    def stored(self) -> list[tuple[UUID, int]]:
        return self.database.run(statements.partitions, repeatable=True)

    def size(self, topic_id: UUID, partition: int) -> int:
        return self.database.run(
            lambda connection: statements.size(connection, topic_id, partition), repeatable=True
        )

    def bounds(self, partitions: Sequence[tuple[UUID, int]]) -> dict[tuple[UUID, int], tuple[int, int]]:
        """The bounds of all of them, whoever has their logs: nothing is visible before it is in the row."""
        found = self.database.run(
            lambda connection: statements.bounds(connection, partitions), repeatable=True
        )
        return {each: found.get(each, (0, 0)) for each in partitions}

    def room(self) -> tuple[int, int]:
        return -1, -1

    def make_room(self) -> bool:
        return False

    def delete(self, topic_id: UUID) -> None:
        """Harmless if other processes do so too. Most rows of a large topic are left to `remove_left_over`,
        since requests wait for the thread that calls this."""
        left = _SLICES_AT_ONCE
        for segment_id in self._kill(topic_id):
            while left and delete_slice(self.database, segment_id):
                left -= 1

    def remove_deleted(self, topic_id: UUID) -> None:
        """`remove_left_over` does it: any process may."""

    def settle(self, topic_ids: set[UUID]) -> dict[UUID, str | None]:
        """`remove_left_over` does it: the database itself knows which topics exist, including those created
        since."""
        return {}

    def remove_left_over(self, given_up: Callable[[], bool]) -> list[UUID]:
        gone: list[UUID] = []
        for topic_id in self.database.run(statements.left_over, repeatable=True):
            if given_up():
                break
            dead = self._kill(topic_id)
            if not all(delete_segment(self.database, segment_id, given_up) for segment_id in dead):
                break
            gone.append(topic_id)
        return gone

    def _kill(self, topic_id: UUID) -> list[UUID]:
        return self.database.run(
            lambda connection: statements.kill_topic(connection, topic_id), repeatable=True
        )

    def close(self) -> None:
        self.database.close()
