"""What a Consumer can be told, checked before anything else happens.

Names, units and defaults are those of Kafka's Java consumer where it has them, with underscores.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Final, Literal, Self, TypedDict

from muster.client.assignors import COOPERATIVE_STICKY, RANGE, Assignor, assignor
from muster.client.fetch.positions import EARLIEST, LATEST, ResetStrategy
from muster.client.network.connection import Address
from muster.client.network.servers import parse_servers
from muster.client.settings import check_known

_GROUP_INSTANCE_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_DURATION: Final = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{1,9})?)S)?)?"
)
_RESETS: Final = {"earliest": EARLIEST, "latest": LATEST, "none": None}
_BY_DURATION: Final = "by_duration:"
_INT32_MAX: Final = 2**31 - 1


class ConsumerOptions(TypedDict, total=False):
    """The keyword arguments of a Consumer beside topics, listener and deserializers; `ConsumerSettings` says
    what each means."""

    group_id: str | None
    group_instance_id: str | None
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
class ConsumerSettings:
    """The settings of a consumer. Raises ValueError that names the setting and says what it takes."""

    bootstrap_servers: tuple[Address, ...]
    """Where to find the cluster: some of its brokers."""
    group_id: str | None = None
    """The group to be a member of, or to commit for. Without one, partitions can be assigned only."""
    group_instance_id: str | None = None
    """Makes this a static member (KIP-345): one that comes back within the session timeout under the same id
    gets its partitions back without a rebalance. No two consumers may have the same."""
    assignors: tuple[Assignor, ...] = field(default_factory=lambda: _assignors((RANGE, COOPERATIVE_STICKY)))
    """How the leader shares out the partitions, best first; every member of the group must offer one in
    common. The group rebalances cooperatively when all of these can."""
    auto_offset_reset: ResetStrategy | None = LATEST
    """Where to begin without a committed offset, and go on when the log does not have the position any more:
    "earliest", "latest", "none" (an error is raised), a timedelta or "by_duration:PT1H" (the first record
    that is no older)."""
    isolation_level: str = "read_uncommitted"
    """"read_committed" leaves out what transactions have not committed."""
    enable_auto_commit: bool = True
    """Commit by itself what was handled: every interval, before a rebalance, at a clean end."""
    auto_commit_interval_ms: int = 5_000
    session_timeout_ms: int = 45_000
    """After so long without a heartbeat the group goes on without this member."""
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    """After so long without a reading call the member leaves the group: its handler may have died."""
    max_poll_records: int = 500
    """How many records are taken from the fetched ones at a time."""
    revocation_grace_ms: int = 5_000
    """How long the tasks of a partition's scope may go on when it goes to another member."""
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 50 * 1024 * 1024
    """Of one fetch from one broker; also what is held in memory per broker, at most about twice."""
    max_partition_fetch_bytes: int = 1024 * 1024
    heartbeat: str = "loop"
    """Where the member's heartbeats run: "loop", the user's own, or "thread", a loop of their own in a
    thread, so that handlers which block the loop do not lose the membership."""
    client_id: str = "muster"
    client_rack: str = ""
    """Where this client stands, so that replicas and partitions nearby are preferred."""
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    """How long calls take that have no timeout given."""
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    metadata_max_age_ms: int = 300_000
    """How soon new topics and partitions are noticed."""
    check_crcs: bool = True
    allow_auto_create_topics: bool = True
    """Whether brokers may create the topics subscribed to, if their own settings let them."""
    exclude_internal_topics: bool = True
    """Whether patterns leave out the cluster's own topics."""

    @classmethod
    def of(cls, bootstrap_servers: str | Sequence[str], options: ConsumerOptions) -> Self:
        """Settings from what a user gives."""
        check_known("Consumer", options, (each.name for each in fields(cls)))
        given: dict[str, Any] = dict(options)
        if "auto_offset_reset" in given:
            given["auto_offset_reset"] = parse_reset(given["auto_offset_reset"])
        if "assignors" in given:
            given["assignors"] = _assignors(given["assignors"])
        return cls(bootstrap_servers=parse_servers(bootstrap_servers), **given)

    def __post_init__(self) -> None:
        for name in ("group_id", "group_instance_id"):
            given = getattr(self, name)
            if given is not None and not (isinstance(given, str) and given.strip()):
                raise _wrong(name, given, "a text that is not blank, or None")
        if self.group_instance_id is not None:
            if self.group_id is None:
                raise ValueError(
                    "group_instance_id is given without a group_id: it names a member of a group"
                )
            if not _GROUP_INSTANCE_ID.fullmatch(self.group_instance_id) or self.group_instance_id in (
                ".",
                "..",
            ):
                raise _wrong(
                    "group_instance_id",
                    self.group_instance_id,
                    "up to 249 letters, digits, dots, dashes and underscores",
                )
        for name in ("client_id", "client_rack"):
            if not isinstance(getattr(self, name), str):
                raise _wrong(name, getattr(self, name), "a text")
        for name, first in _NUMBERS.items():
            given = getattr(self, name)
            if isinstance(given, bool) or not isinstance(given, int) or not first <= given <= _INT32_MAX:
                what = (
                    "milliseconds"
                    if name.endswith("_ms")
                    else "bytes"
                    if name.endswith("_bytes")
                    else "records"
                )
                raise _wrong(name, given, f"{what}, a whole number from {first} to {_INT32_MAX}")
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise _wrong(name, getattr(self, name), "True or False")
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise _wrong(name, getattr(self, name), " or ".join(map(repr, allowed)))
        self._check_together()

    def _check_together(self) -> None:
        for smaller, larger in _BELOW:
            if getattr(self, smaller) >= getattr(self, larger):
                raise ValueError(
                    f"{smaller} ({getattr(self, smaller)}) takes less than {larger} ({getattr(self, larger)})"
                )


_NUMBERS: Final = {
    "auto_commit_interval_ms": 1,
    "session_timeout_ms": 1,
    "heartbeat_interval_ms": 1,
    "max_poll_interval_ms": 1,
    "max_poll_records": 1,
    "revocation_grace_ms": 0,
    "fetch_min_bytes": 0,
    "fetch_max_wait_ms": 0,
    "fetch_max_bytes": 1,
    "max_partition_fetch_bytes": 1,
    "request_timeout_ms": 1,
    "default_api_timeout_ms": 1,
    "retry_backoff_ms": 1,
    "retry_backoff_max_ms": 1,
    "metadata_max_age_ms": 1,
}
"""The least that each takes."""

_SWITCHES: Final = ("enable_auto_commit", "check_crcs", "allow_auto_create_topics", "exclude_internal_topics")

_CHOICES: Final = {
    "isolation_level": ("read_uncommitted", "read_committed"),
    "heartbeat": ("loop", "thread"),
}

_BELOW: Final = (
    ("heartbeat_interval_ms", "session_timeout_ms"),
    ("fetch_max_wait_ms", "request_timeout_ms"),
    # Otherwise a revocation that is granted its grace ends in the loss of the membership.
    ("revocation_grace_ms", "max_poll_interval_ms"),
)


def parse_reset(given: str | timedelta) -> ResetStrategy | None:
    """`auto_offset_reset` as users write it; None is "none". Raises ValueError."""
    duration = given if isinstance(given, timedelta) else None
    if isinstance(given, str):
        if given in _RESETS:
            return _RESETS[given]
        if given.startswith(_BY_DURATION):
            duration = _parse_duration(given.removeprefix(_BY_DURATION))
    if duration is not None and duration >= timedelta():
        return ResetStrategy.by_duration(duration)
    raise _wrong(
        "auto_offset_reset",
        given,
        "'earliest', 'latest', 'none', 'by_duration:' and an ISO 8601 duration of days and less (PT1H, P7D), "
        "or a timedelta that is not negative",
    )


def _parse_duration(text: str) -> timedelta | None:
    found = _DURATION.fullmatch(text)
    if found is None or text.endswith(("P", "T")):
        return None
    try:
        return timedelta(**{unit: float(number) for unit, number in found.groupdict().items() if number})
    except OverflowError:
        return None


def _assignors(given: Any) -> tuple[Assignor, ...]:
    """Assignors, or made from their names: one may keep state, so each consumer has its own."""
    listed = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else ()
    if not listed or not all(isinstance(each, str | Assignor) for each in listed):
        raise _wrong("assignors", given, "a list of assignors or their names, at least one")
    made = tuple(assignor(each) for each in listed)
    if len({each.name for each in made}) < len(made):
        raise _wrong("assignors", given, "each name once")
    return made


def _wrong(name: str, given: object, takes: str) -> ValueError:
    return ValueError(f"{name}={given!r}: it takes {takes}")
