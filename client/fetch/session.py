"""Incremental fetch sessions (KIP-227): which parts of a Fetch the broker already knows. Pure. A broker with
a session remembers the requested partitions; from then on only changes are sent, and only partitions with
news are returned. A broker may always decline, with session id 0: then everything is sent each time.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Final, NamedTuple

from muster.client.partitions import TopicPartition
from muster.protocol.errors import ErrorCode

NO_SESSION: Final = 0
CLOSE: Final = -1
"""The epoch that ends a session without a new one."""

_FULL: Final = 0
_EPOCH_MAX: Final = 2**31 - 1


class Asked(NamedTuple):
    """A partition's fields in a Fetch."""

    offset: int
    leader_epoch: int
    """The current leader's epoch, -1 if unknown."""
    last_fetched_epoch: int
    """The leader epoch of the record before the offset, -1 if unknown."""
    bytes_max: int
    topic_id: uuid.UUID | None = None


class Plan(NamedTuple):
    """The contents of one Fetch."""

    session_id: int
    session_epoch: int
    send: Mapping[TopicPartition, Asked]
    forget: Mapping[TopicPartition, uuid.UUID | None]
    """Partitions no longer wanted, with the topic ids they were requested by."""


class FetchSession:
    """The session with one broker. One Fetch at a time: `plan`, then `answered` or `failed`."""

    __slots__ = ("_by_id", "_epoch", "_known", "session_id")

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self._epoch = _FULL
        self._known: dict[TopicPartition, Asked] = {}
        self._by_id = False

    def __repr__(self) -> str:
        return f"<FetchSession {self.session_id} at epoch {self._epoch}, {len(self._known)} partitions>"

    def plan(self, wanted: Mapping[TopicPartition, Asked], *, by_id: bool) -> Plan:
        """The next Fetch, for all `wanted` partitions. `by_id`: it names topics by id; a session does so
        throughout or not at all."""
        known, self._known = self._known, dict(wanted)
        if by_id != self._by_id:
            self._by_id = by_id
            self._epoch = _FULL
        if self._epoch == _FULL:
            return Plan(self.session_id, _FULL, wanted, {})
        return Plan(
            self.session_id,
            self._epoch,
            {where: asked for where, asked in wanted.items() if known.get(where) != asked},
            {
                where: asked.topic_id
                for where, asked in known.items()
                if where not in wanted or (by_id and wanted[where].topic_id != asked.topic_id)
            },
        )

    def answered(self, error_code: int, session_id: int) -> None:
        """The broker responded, with an error for the whole Fetch, or with this session."""
        if error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self._begin_anew(NO_SESSION)  # The broker dropped it to make room for others.
        elif error_code:
            self._begin_anew(self.session_id)
        elif session_id == NO_SESSION:
            self._begin_anew(NO_SESSION)
        else:
            self.session_id = session_id
            self._epoch = 1 if self._epoch == _EPOCH_MAX else self._epoch + 1

    def failed(self) -> None:
        """There was no response, so the broker's state is unknown. The next Fetch ends its session, if any,
        and opens another."""
        self._begin_anew(self.session_id)

    def _begin_anew(self, session_id: int) -> None:
        self.session_id = session_id
        self._epoch = _FULL
        self._known = {}
