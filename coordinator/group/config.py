"""What an operator can set about groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
"""How long a member that is new in a rebalance may wait in JoinGroup without a sign of life. It cannot
heartbeat before it has its id, and a client that hangs up and retries would otherwise leave one defunct
member behind per attempt. Not configurable in Kafka either."""


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Kafka's names with `_` for `.`, and Kafka's defaults. A unit is part of the name; sizes count what they
    say."""

    group_initial_rebalance_delay_ms: int = 3_000
    """How long the first rebalance of an empty group waits for more members (KIP-134)."""
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = 2_147_483_647
    """The most members of a group (KIP-389)."""
    offset_metadata_max_bytes: int = 4_096
    """The longest metadata string of a commit. Kafka counts UTF-16 code units, whatever the name says."""
    offsets_retention_minutes: int = 10_080
    """How long offsets outlive the group's last member (or, for a group without members, the commit)
    (KIP-211)."""
    offsets_retention_check_interval_ms: int = 600_000

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000
