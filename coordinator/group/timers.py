"""The deadlines that groups and their shard have, by name."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class TimerKind(StrEnum):
    __hash__ = str.__hash__  # Enum's own is Python code, and every heartbeat looks a timer up

    SESSION = "session"
    """A member's, or that of one who was told its id and has not come back with it."""
    JOIN = "join"
    """The group waits for JoinGroups; a consumer group for that of one member."""
    SYNC = "sync"
    """The group waits for SyncGroups; a consumer group for that of one member."""
    REVOCATION = "revocation"
    """A member of a consumer group has to give up partitions."""
    SWEEP = "sweep"
    """The shard looks for offsets past their retention."""
    PRESUMPTION = "presumption"
    """Members are no longer presumed alive."""


class TimerKey(NamedTuple):
    """Whose deadline it is."""

    kind: TimerKind
    group_id: str = ""
    member_id: str = ""


SWEEP: Final = TimerKey(TimerKind.SWEEP)
PRESUMPTION: Final = TimerKey(TimerKind.PRESUMPTION)
