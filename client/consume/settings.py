"""The settings of a Consumer, checked before anything else happens.

Names, units and defaults are those of Kafka's Java consumer where it has them, with underscores.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Final, Literal, Self

from muster.client.assignors import COOPERATIVE_STICKY, RANGE, Assignor, assignor
from muster.client.fetch.positions import EARLIEST, LATEST, ResetStrategy
from muster.client.network.connection import Address
from muster.client.network.servers import parse_servers
from muster.client.security.settings import SecurityOptions, SecuritySettings
from muster.client.settings import check_below, check_known, check_text, wrong
from muster.settings import setting

_RESETS: Final = {"earliest": EARLIEST, "latest": LATEST, "none": None}
_BY_DURATION: Final = "by_duration:"


class ConsumerOptions(SecurityOptions, total=False):
    """The keyword arguments of a Consumer besides topics, listener and deserializers; see
    `ConsumerSettings`."""

    group_id: str | None
    group_instance_id: str | None
    group_protocol: Literal["classic", "consumer", "auto"]
    group_remote_assignor: str | None
    assignors: Sequence[Assignor | str]
    auto_offset_reset: str | timedelta
    isolation_level: Literal["read_uncommitted", "read_committed"]
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    max_poll_records: int
    revocation_grace_ms: int
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    heartbeat: Literal["loop", "thread"]
    client_id: str
    client_rack: str
    request_timeout_ms: int
    default_api_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    metadata_max_age_ms: int
    check_crcs: bool
    allow_auto_create_topics: bool
    exclude_internal_topics: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings(SecuritySettings):
    """The settings of a consumer. Raises a ValueError that names the setting and says what it takes."""

    bootstrap_servers: tuple[Address, ...]
    """The bootstrap addresses: some of the cluster's brokers."""
    group_id: str | None = setting(
        None,
        "the group to join, or to commit for. Without one, partitions can only be assigned by hand",
        optional=True,
        pattern=r"(?s).*\S.*",
        shape="text that is not blank, or None",
    )
    group_instance_id: str | None = setting(
        None,
        "makes this a static member (KIP-345): if it comes back within the session timeout under the "
        "same id, it gets its partitions back without a rebalance. No two consumers may share an id",
        optional=True,
        pattern=r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}",
        shape="up to 249 letters, digits, dots, dashes and underscores",
    )
    group_protocol: str = setting(
        "classic",
        'how members and coordinator agree on who reads what: "classic", the members\' own assignors; '
        '"consumer", the coordinator assigns, and partitions move without a stop of all (KIP-848); "auto", '
        "that where the broker offers it, and classic elsewhere",
        choices=("classic", "consumer", "auto"),
    )
    group_remote_assignor: str | None = setting(
        None,
        "what the coordinator is to assign by in the consumer protocol; None leaves it to the coordinator",
        optional=True,
        pattern=r"(?s).*\S.*",
        shape='the name of one of its group.consumer.assignors ("uniform", "range"), or None',
    )
    assignors: tuple[Assignor, ...] = field(default_factory=lambda: _assignors((RANGE, COOPERATIVE_STICKY)))
    """The assignors for the group's leader, preferred first; all members must have one in common. The group
    rebalances cooperatively if all of these support it."""
    auto_offset_reset: ResetStrategy | None = LATEST
    """Where to start without a committed offset, or if the position is no longer in the log: "earliest",
    "latest", "none" (raise an error), a timedelta or "by_duration:PT1H" (the first record no older than
    that)."""
    isolation_level: str = setting(
        "read_uncommitted",
        '"read_committed" leaves out records of open and aborted transactions',
        choices=("read_uncommitted", "read_committed"),
    )
    enable_auto_commit: bool = setting(
        True, "commit handled records automatically: every interval, before a rebalance, and on a clean close"
    )
    auto_commit_interval_ms: int = setting(5_000, "how often handled records are committed", low=1)
    session_timeout_ms: int = setting(
        45_000, "how long the group waits for a heartbeat before it evicts this member", low=1
    )
    heartbeat_interval_ms: int = setting(
        3_000, "how often the member sends a heartbeat; less than the session timeout", low=1
    )
    max_poll_interval_ms: int = setting(
        300_000,
        "how long the member may go without a reading call before it leaves the group: its handler may "
        "be stuck",
        low=1,
    )
    max_poll_records: int = setting(500, "most records that one reading call returns", low=1, unit="records")
    revocation_grace_ms: int = setting(
        5_000,
        "how long the tasks of a partition's scope may take to finish when the partition is revoked",
        low=0,
    )
    fetch_min_bytes: int = setting(1, "least data a fetch waits for", low=0)
    fetch_max_wait_ms: int = setting(500, "how long a fetch waits for fetch_min_bytes", low=0)
    fetch_max_bytes: int = setting(
        50 * 1024 * 1024,
        "most that one fetch returns; about twice as much per broker may be held in memory",
        low=1,
    )
    max_partition_fetch_bytes: int = setting(
        1024 * 1024, "most that one fetch returns of one partition", low=1
    )
    heartbeat: str = setting(
        "loop",
        'where heartbeats run: "loop", the user\'s own, or "thread", a separate loop in a'
        " thread, so that handlers that block the loop do not lose the membership",
        choices=("loop", "thread"),
    )
    client_id: str = setting("muster", "what this client is called in the brokers' logs and quotas")
    client_rack: str = setting(
        "", "the rack of this client, so that nearby replicas and partitions are preferred"
    )
    request_timeout_ms: int = setting(30_000, "how long to wait for a broker's response", low=1)
    default_api_timeout_ms: int = setting(60_000, "timeout of calls that do not specify one", low=1)
    retry_backoff_ms: int = setting(100, "pause before the first retry; later ones are longer", low=1)
    retry_backoff_max_ms: int = setting(1_000, "longest pause between retries", low=1)
    metadata_max_age_ms: int = setting(
        300_000,
        "how often metadata is refreshed, and so how soon new topics and partitions are noticed",
        low=1,
    )
    check_crcs: bool = setting(True, "whether checksums of record batches are verified")
    allow_auto_create_topics: bool = setting(
        True, "whether brokers may create missing topics, if their settings allow it"
    )
    exclude_internal_topics: bool = setting(True, "whether patterns leave out internal topics")

    @classmethod
    def of(cls, bootstrap_servers: str | Sequence[str], options: ConsumerOptions) -> Self:
        """Settings from the user's arguments."""
        check_known("Consumer", options, (each.name for each in fields(cls) if each.init))
        given: dict[str, Any] = dict(options)
        if given.get("group_protocol") == "consumer":
            for name in _CLASSIC_ONLY.keys() & given.keys():
                raise ValueError(
                    f"{name} is given with group_protocol='consumer', where {_CLASSIC_ONLY[name]}; "
                    "leave it out"
                )
        if "auto_offset_reset" in given:
            given["auto_offset_reset"] = parse_reset(given["auto_offset_reset"])
        if "assignors" in given:
            given["assignors"] = _assignors(given["assignors"])
        return cls(bootstrap_servers=parse_servers(bootstrap_servers), **given)

    def __post_init__(self) -> None:
        SecuritySettings.__post_init__(self)
        for name in ("client_id", "client_rack", "group_id", "group_remote_assignor"):
            check_text(name, getattr(self, name))
        if self.group_instance_id is not None and self.group_id is None:
            raise ValueError("group_instance_id requires a group_id: it names a member of a group")
        if self.group_remote_assignor is not None and self.group_protocol == "classic":
            raise ValueError(
                "group_remote_assignor is given with group_protocol='classic', where members assign: set "
                "assignors, or group_protocol='consumer'"
            )
        for smaller, larger in _BELOW:
            check_below(self, smaller, larger)


_CLASSIC_ONLY: Final = {
    "assignors": "the coordinator assigns (group_remote_assignor)",
    "session_timeout_ms": "the broker sets it (consumer.session.timeout.ms of the group)",
    "heartbeat_interval_ms": "the broker sets it (consumer.heartbeat.interval.ms of the group)",
}

_BELOW: Final = (
    ("heartbeat_interval_ms", "session_timeout_ms"),
    ("fetch_max_wait_ms", "request_timeout_ms"),
    # Otherwise a revocation that uses its whole grace period would cost the membership.
    ("revocation_grace_ms", "max_poll_interval_ms"),
)


def parse_reset(given: str | timedelta) -> ResetStrategy | None:
    """`auto_offset_reset` as users write it; None is "none". Raises ValueError."""
    duration = given if isinstance(given, timedelta) else None
    if isinstance(given, str):
        if given in _RESETS:
            return _RESETS[given]
        if given.startswith(_BY_DURATION):
            duration = _read_duration(given.removeprefix(_BY_DURATION))
    if duration is not None and duration >= timedelta():
        return ResetStrategy.by_duration(duration)
    raise wrong(
        "auto_offset_reset",
        given,
        "'earliest', 'latest', 'none', 'by_duration:' and an ISO 8601 duration of days and less (PT1H, P7D), "
        "or a timedelta that is not negative",
    )


def _read_duration(text: str) -> timedelta | None:
    from muster import durations  # exact, with fractions and decimals: rarely needed

    try:
        return timedelta(milliseconds=durations.parse(text))
    except ValueError:
        return None


def _assignors(given: Any) -> tuple[Assignor, ...]:
    """The assignors, created from their names if need be: one may keep state, so each consumer has its
    own."""
    listed = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else ()
    if not listed or not all(isinstance(each, str | Assignor) for each in listed):
        raise wrong("assignors", given, "a list of assignors or their names, at least one")
    made = tuple(assignor(each) for each in listed)
    if len({each.name for each in made}) < len(made):
        raise wrong("assignors", given, "each name once")
    return made
