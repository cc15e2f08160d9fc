"""Names for the deadlines of groups and their shard."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class TimerKind(StrEnum):
    __hash__ = str.__hash__  # Enum's own is Python code, and every heartbeat looks a timer up

    SESSION = "session"
    """The session of a member, or of a client that was issued an id and has not come back with it."""
    JOIN = "join"
    """The group waits for JoinGroups; a consumer group, for one member's."""
    SYNC = "sync"
    """The group waits for SyncGroups; a consumer group, for one member's."""
    REVOCATION = "revocation"
    """A member of a consumer group has to revoke partitions."""
    SWEEP = "sweep"
    """The shard looks for offsets past their retention."""
    PRESUMPTION = "presumption"
    """Members are no longer presumed alive."""


class TimerKey(NamedTuple):
    """Identifies a deadline."""

    kind: TimerKind
    group_id: str = ""
    member_id: str = ""


SWEEP: Final = TimerKey(TimerKind.SWEEP)
PRESUMPTION: Final = TimerKey(TimerKind.PRESUMPTION)
