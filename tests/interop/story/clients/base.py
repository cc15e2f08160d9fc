"""What the story needs to know of a stock client: how to call its programs, and its version.

A client's programs live in `tests/interop/programs/<client>/`. Their arguments and output:

**produce** sends records `first` to `first + count - 1` and exits 0 when all of them were acknowledged.
Record n has the key `k<n>` and the value `<codec>-<n>`; the partition is left to the client's own
partitioner.

**member** is one member of a group. It starts at the earliest offset where the group has no commit, does not
commit by itself, and prints on standard output one JSON object a line, flushed one by one:

    {"event": "assigned", "generation": 7, "owned": [0, 3]}   all partitions it owns from now on
    {"event": "revoked", "owned": [3]}                        what it still owns; mostly []
    {"event": "record", "partition": 0, "offset": 12, "key": "k12", "value": "gzip-12"}
    {"event": "committed", "partition": 0, "offset": 13}      once acknowledged; offset: the next to read
    {"event": "commit_failed", "partition": 0, "offset": 13}  asked for, with an unknown fate
    {"event": "left"}                                         after a polite close

A partition of the topic `name.3` is identified by its number plus 3,000, so that a member can have several
topics. `generation` is null if the client cannot report it; `revoked` may have one too, the member's
generation while it gives up the partitions. Partitions that are lost with the session are `revoked` like
others. It commits what it has printed at least about once per poll, and before it gives up partitions, and
prints `committed` before `revoked`. It reads its standard input; when that ends it commits what it has
printed, leaves the group (LeaveGroup), prints `left` and exits 0. It heartbeats at least every sixth of the
session timeout.

**admin** tries every call of the client's admin API, with names that begin with a prefix, and exits 0 if it
could try them all. One JSON object a line: {"call": "createTopics", "ok": true} or {"call": "createTopics",
"ok": false, "error": "TOPIC_ALREADY_EXISTS"}. A call may fail as it fails against Apache Kafka; what muster
does not serve at all is listed in `admin_calls.py`.

Anything else goes to standard error, whose last lines are shown when a story fails.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PROGRAMS: Final = Path(__file__).parents[2] / "programs"
DOORS: Final = ("mTLS", "SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER")
"""The ways to log in over TLS: with a client certificate, or with a SASL mechanism."""


@dataclass(frozen=True)
class StockClient(ABC):
    """A client as its users install it. Each of the lists below is the command line of a process."""

    name: str
    """As in the table of docs/compatibility.md."""
    codecs: tuple[str, ...]
    """What it can produce, of none, gzip, snappy, lz4, zstd."""

    doors: tuple[str, ...] = field(default=DOORS, kw_only=True)
    """The `DOORS` that `tests/interop/security` tests with it."""
    looks_only_when_joining: bool = field(default=False, kw_only=True)
    """It looks for a coordinator, or for a leader instead of a dead one, only when it joins the group, which
    from the group's leader requests a rebalance by Kafka's rules. No broker is killed under it."""
    may_rejoin: bool = field(default=False, kw_only=True)
    """It sometimes starts its session over when its coordinator refuses connections for seconds, which no
    broker can prevent; nothing may be lost by that."""

    @abstractmethod
    def version(self) -> str:
        """The installed version, queried and never written down; `prepare` has been called."""

    def prepare(self) -> None:  # noqa: B027 - most clients have nothing to prepare
        """Install or compile what the programs need, once per machine, into the user's cache.

        Raises RuntimeError that names what is missing and where to get it.
        """

    @abstractmethod
    def produce(self, bootstrap: str, topic: str, codec: str, first: int, count: int) -> list[str]: ...

    @abstractmethod
    def member(
        self, bootstrap: str, group: str, topic: str, session_timeout_ms: int, *configs: str
    ) -> list[str]:
        """`configs` are `NAME=VALUE` under the names of Kafka's Java client, for clients that know them:
        `group.protocol=consumer`, with which a topic that begins with ^ is a pattern, `group.instance.id`,
        `client.id`, and those for TLS and SASL, for which franz-go takes librdkafka's names."""

    def admin(self, bootstrap: str, prefix: str) -> list[str] | None:
        """None: the client has no admin API."""
        return None
