"""What the story needs to know of a stock client: how its programs are called, and which version there is.

A client's programs live in `tests/interop/programs/<client>/`. What they are given and what they print:

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

A partition of the topic `name.3` goes by its number plus 3,000, so that a member can have several topics.
`generation` is null if the client cannot tell; `revoked` may have one too, that in which the member is while
it gives them up. Partitions that are lost with the session are `revoked` like
others. It commits what it has printed at least about once a poll, and before it gives partitions away, and
prints `committed` before `revoked`. It reads its standard input; when that ends it commits what it has
printed, leaves the group (LeaveGroup), prints `left` and exits 0. It heartbeats every sixth of the session
timeout or oftener.

**admin** tries every call that the client's admin API has, with names that begin with a prefix, and exits 0
if it could try them all. One JSON object a line: {"call": "createTopics", "ok": true} or {"call":
"createTopics", "ok": false, "error": "TOPIC_ALREADY_EXISTS"}. A call may fail as it fails against Apache
Kafka; what muster does not serve at all is listed in `admin_calls.py`.

Anything else goes to standard error, of which the last lines are shown when a story fails.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PROGRAMS: Final = Path(__file__).parents[2] / "programs"
DOORS: Final = ("mTLS", "SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER")
"""How a client is let in over TLS: by its own certificate, or by a mechanism of SASL."""


@dataclass(frozen=True)
class StockClient(ABC):
    """A client as its users install it. Each of the lists below is the command line of a process."""

    name: str
    """As in the table of docs/compatibility.md."""
    codecs: tuple[str, ...]
    """What it can produce, of none, gzip, snappy, lz4, zstd."""

    doors: tuple[str, ...] = field(default=DOORS, kw_only=True)
    """Those of `DOORS` that `tests/interop/security` puts it through."""
    looks_only_when_joining: bool = field(default=False, kw_only=True)
    """It looks for a coordinator, or for another leader than one that is dead, only when it joins the group,
    which from its leader is a request for a rebalance, by Kafka's rules. No broker is killed under it."""
    may_rejoin: bool = field(default=False, kw_only=True)
    """It sometimes begins its session anew when its coordinator refuses connections for seconds, which no
    broker can spare it; nothing may be lost by that."""

    @abstractmethod
    def version(self) -> str:
        """Asked of what is installed, never written down; `prepare` has been called."""

    def prepare(self) -> None:  # noqa: B027 - most clients have nothing to prepare
        """Install or compile what the programs need, once per machine, into the user's cache.

        Raises RuntimeError that names what is missing and where it comes from.
        """

    @abstractmethod
    def produce(self, bootstrap: str, topic: str, codec: str, first: int, count: int) -> list[str]: ...

    @abstractmethod
    def member(
        self, bootstrap: str, group: str, topic: str, session_timeout_ms: int, *configs: str
    ) -> list[str]:
        """`configs` are `NAME=VALUE` by their names in Kafka's Java client, of clients that know them:
        `group.protocol=consumer`, with which a topic that begins with ^ is a pattern,
        `group.instance.id`, `client.id`, and what TLS and SASL need, of which franz-go takes librdkafka's."""

    def admin(self, bootstrap: str, prefix: str) -> list[str] | None:
        """None: the client has no admin API."""
        return None
