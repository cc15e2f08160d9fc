"""Settings for groups that an operator can change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from muster.coordinator.base.step import RequestContext

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
"""How long a new member may wait in JoinGroup without a sign of life. It cannot heartbeat before it has its
id, and a client that hangs up and retries would otherwise leave one defunct member behind per attempt. Not
configurable in Kafka either."""


UNIFORM: Final = "uniform"
RANGE: Final = "range"
ASSIGNORS: Final = (UNIFORM, RANGE)
"""Names of the server-side assignors for consumer groups (KIP-848)."""


class MigrationPolicy(StrEnum):
    """Which groups may change their protocol while they have members (KIP-848)."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    """From classic to consumer."""
    DOWNGRADE = "downgrade"
    """From consumer to classic."""
    BIDIRECTIONAL = "bidirectional"

    @property
    def upgrades(self) -> bool:
        """Whether a classic group may become a consumer group."""
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def downgrades(self) -> bool:
        """Whether a consumer group may become a classic group."""
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Kafka's names with `_` for `.`, and Kafka's defaults. Names include their units; sizes count what their
    names say."""

    group_initial_rebalance_delay_ms: int = 3_000
    """How long the first rebalance of an empty group waits for more members (KIP-134)."""
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = 2_147_483_647
    """Maximum number of members in a group (KIP-389)."""
    offset_metadata_max_bytes: int = 4_096
    """Maximum length of a commit's metadata string. Kafka counts UTF-16 code units, whatever the name
    says."""
    offsets_retention_minutes: int = 10_080
    """How long offsets outlive the group's last member (or, for a group without members, the commit)
    (KIP-211)."""
    offsets_retention_check_interval_ms: int = 600_000
    producer_id_expiration_ms: int = 86_400_000
    """How long an idle transactional producer is remembered; `GroupConfigs` holds the value in force."""

    # ---- consumer groups (KIP-848); `GroupConfigs` holds what is set for one group
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_min_session_timeout_ms: int = 45_000
    group_consumer_max_session_timeout_ms: int = 60_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_min_heartbeat_interval_ms: int = 5_000
    group_consumer_max_heartbeat_interval_ms: int = 15_000
    group_consumer_max_size: int = 2_147_483_647
    """Maximum number of members in a group."""
    group_consumer_assignors: tuple[str, ...] = ASSIGNORS
    """The assignors that members may ask for; the first serves groups whose members ask for none."""
    group_consumer_migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    group_consumer_assignment_interval_ms: int = 1_000
    """Minimum time between two target assignments of a group."""
    group_consumer_min_assignment_interval_ms: int = 0
    group_consumer_max_assignment_interval_ms: int = 15_000
    group_consumer_regex_refresh_interval_ms: int = 600_000
    """Maximum time until the topics that match regular expressions are looked up again."""

    # ---- not settings
    newcomers_return_within_ms: int = 0
    """A client that was issued a member id (KIP-394) less than this long ago holds up the first generation of
    an empty group, even after the initial delay. In Kafka, none does."""

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000


class GroupOverrides(NamedTuple):
    """The values in force for one consumer group, within the broker's bounds. Milliseconds."""

    consumer_session_timeout_ms: int
    consumer_heartbeat_interval_ms: int
    consumer_assignment_interval_ms: int


Sees = Callable[[RequestContext], Callable[[str], bool]]
"""Whether a client may see a topic, by name. The predicate may be called in a thread."""


class GroupConfigs:
    """Settings that may change while a broker runs. For each consumer group: the broker's values, overridden
    by what is set for the group (KIP-848).

    The server announces changes with `become`; shards look values up with `of`, at any time.
    """

    def __init__(self, config: GroupConfig) -> None:
        self._default = GroupOverrides(
            config.group_consumer_session_timeout_ms,
            config.group_consumer_heartbeat_interval_ms,
            config.group_consumer_assignment_interval_ms,
        )
        self._of: Mapping[str, GroupOverrides] = {}
        self.producer_id_expiration_ms = config.producer_id_expiration_ms
        """The broker's value, which may be altered while it runs."""
        self.sees: Sees | None = None
        """Which topics a regular expression may match; None: all."""

    def __repr__(self) -> str:
        return f"<GroupConfigs {self._default} groups={len(self._of)}>"

    def of(self, group_id: str) -> GroupOverrides:
        """The values in force for the group, whether it exists or not."""
        return self._of.get(group_id, self._default)

    def become(self, default: GroupOverrides, of: Mapping[str, GroupOverrides]) -> None:
        """From now on, use `of` for its groups, and `default` for all others."""
        self._default, self._of = default, of
