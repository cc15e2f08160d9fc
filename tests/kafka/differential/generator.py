"""Writes a sequence from a seed: several clients of one or two groups, which mostly behave as clients do.

Steps are text, so nothing in them depends on a broker's answers: what a client would take from an answer (its
member id, its generation) the player fills in. That is why any step can be dropped.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from muster.protocol.api import ApiKey, versions

REGEXES: Final = ("(orders|clicks)", "page.", "cl[a-i]cks|nothing", "no-such-topic.")
"""Each matches whole names of topics that exist, or nothing."""
TOPICS: Final[Mapping[str, int]] = {"orders": 3, "clicks": 2, "pages": 4}
"""The existing topics; requests also name others."""
_TOPICS: Final[Mapping[str, int]] = {name: TOPICS[name] for name in ("orders", "clicks")}
"""The topics of sequences against classic groups."""
GROUPS: Final = ("team", "crew")
"""Unlike topics, groups belong to one play, so they have unique names."""
CLIENTS: Final = ("alice", "bob", "carol", "dave")
SHORT_MS: Final = 4_000
"""Every timeout is this long, or longer than any sequence."""
_LONG: Final = "15m"
TOO_LONG: Final = "4097"
"""One character more than the default metadata limit."""
PAUSES_MS: Final = (10_000, 7_000)
"""Pauses without requests. Whatever a short timeout starts, now or when another ends, is due at a multiple of
SHORT_MS from the first pause's start or, later, its end: each pause ends MARGIN_MS away from those."""
MARGIN_MS: Final = 1_000
VERBS: Final[Mapping[str, ApiKey]] = {
    "beat": ApiKey.CONSUMER_GROUP_HEARTBEAT,
    "describe-consumer": ApiKey.CONSUMER_GROUP_DESCRIBE,
    "join": ApiKey.JOIN_GROUP,
    "sync": ApiKey.SYNC_GROUP,
    "heartbeat": ApiKey.HEARTBEAT,
    "leave": ApiKey.LEAVE_GROUP,
    "commit": ApiKey.OFFSET_COMMIT,
    "fetch": ApiKey.OFFSET_FETCH,
    "delete-offsets": ApiKey.OFFSET_DELETE,
    "describe": ApiKey.DESCRIBE_GROUPS,
    "list": ApiKey.LIST_GROUPS,
    "delete-group": ApiKey.DELETE_GROUPS,
}
_ASSIGNORS: Final = ("range", "roundrobin", "sticky", "cooperative-sticky")
"""No two of them share a bucket of Java's hash table, so that a tie between them has a single outcome."""
_STATES: Final = ("Stable", "empty", "PreparingRebalance", "CompletingRebalance", "Dead", "Nonsense")


def sequence(seed: int, *, timed: bool = False) -> list[str]:
    """The lines of a scenario. `timed`: with one or two pauses in which short timeouts expire."""
    return Writer(random.Random(f"{seed}/{timed}"), timed).lines()


class Writer:
    def __init__(self, rng: random.Random, timed: bool) -> None:
        self._random = rng
        self._timed = timed
        self._clients = CLIENTS[: rng.choice([1, 2, 2, 3, 3, 4])]
        self._static = {client for client in self._clients if rng.random() < 0.3}
        self._crooked = rng.choice([0.02, 0.1, 0.1, 0.3])
        """How often a client sends a request that no client should."""
        self._newest = rng.random() < 0.3  # or any version
        self._groups = GROUPS[: rng.choice([1, 1, 1, 2])]
        self._type = rng.choice(["consumer"] * 5 + ["connect"])
        self._names = list(_TOPICS)
        """Topics to subscribe to."""
        self._known: set[str] = set()
        """Clients that probably have a member id."""
        self._joined: set[str] = set()
        """Those of them that probably wait for the others to join."""
        self._steps: list[str] = []

    def lines(self) -> list[str]:
        rng = self._random
        moves: list[tuple[int, Callable[[], None]]] = [
            (20, self._join),
            (30, self._settle),
            (12, self._sync),
            (12, self._heartbeat),
            (8, self._leave),
            (10, self._commit),
            (6, self._fetch),
            (4, self._delete_offsets),
            (5, self._describe),
            (1, self._list),
            (3, self._delete_group),
            (2, self._disconnect),
            (2, self._forget),
        ]
        pauses = list(PAUSES_MS[: rng.choice([1, 1, 2])]) if self._timed else []
        for pause in [*pauses, None]:
            for _ in range(rng.randint(2, 8) if self._timed else rng.randint(5, 22)):
                [move] = rng.choices([move for _, move in moves], [weight for weight, _ in moves])
                move()
            if pause is not None:
                self._steps.append(f"advance {pause}ms")
        # The state left behind is compared, too.
        last = self._clients[0]
        self._steps += [f"{last} describe {' '.join(self._groups)}", f"{last} fetch all as-simple"]
        return [
            *(f"topic {name} {count}" for name, count in _TOPICS.items()),
            f"group {GROUPS[0]}",
            "",
            *self._steps,
        ]

    # --- words ----------------------------------------------------------------------------------------------

    def _say(self, client: str, verb: str, *words: str, since: int = 0, until: int | None = None) -> int:
        """Add a step in some version; returns the version."""
        version = self._version(verb, since, until)
        self._steps.append(" ".join(word for word in (client, verb, f"v{version}", *words) if word))
        return version

    def _version(self, verb: str, since: int = 0, until: int | None = None) -> int:
        first, last = versions(VERBS[verb])
        first, last = max(first, since), last if until is None else until
        return last if self._newest and self._random.random() < 0.8 else self._random.randint(first, last)

    def _client(self) -> str:
        return self._random.choice(self._clients)

    def _known_client(self) -> str:
        return self._random.choice(sorted(self._known) or self._clients)

    def _is_crooked(self) -> bool:
        return self._random.random() < self._crooked

    def _group(self) -> str:
        if len(self._groups) == 1:
            return ""
        return self._random.choices(["", f"group={self._groups[1]}"], [4, 1])[0]

    def _timeout(self) -> str:
        return self._random.choice([f"{SHORT_MS}ms", _LONG]) if self._timed else _LONG

    def _symbol(self) -> str:
        client = self._client()
        return f"${client}" if self._random.random() < 0.8 else f"${client}2"

    def _somebody(self) -> str:
        """A wrong `member=`, `generation=` or `instance=`."""
        rng = self._random
        return rng.choice(
            [
                f"member={self._symbol()}",
                "member=none",
                "member=ghost",
                f"generation={rng.choice([-1, 0, 1, 2, 3, 99])}",
                f"instance={self._client()}-instance",
                "instance=nobody",
                "instance=none",
            ]
        )

    def _partitions(self, *, many: int = 3) -> list[str]:
        rng = self._random
        there = [f"{topic}-{index}" for topic, count in _TOPICS.items() for index in range(count)]
        found = rng.sample(there, rng.randint(1, many))
        if self._is_crooked():
            found.append(rng.choice(["orders-9", "nowhere-0", "clicks-2"]))
        return found

    # --- moves ----------------------------------------------------------------------------------------------

    def _join(self, client: str | None = None) -> None:
        rng = self._random
        client = client or self._client()
        protocols = rng.sample(_ASSIGNORS, rng.randint(1, 3))
        if "range" not in protocols and rng.random() < 0.9:
            protocols.insert(rng.randint(0, len(protocols)), "range")
        topics = rng.sample(self._names, rng.choice([1, 1, 2]))
        words = [
            f"topics={','.join(topics)}" if rng.random() < 0.95 else "raw=x",
            f"protocols={','.join(protocols)}" if rng.random() < 0.4 else "",
            f"session={self._timeout()}",
            f"rebalance={self._timeout()}",
            f"type={self._type}",
            self._group(),
        ]
        if client in self._static:
            words.append(f"instance={client}-instance")
        if rng.random() < 0.1:
            words.append("reason=because")
        if self._is_crooked():
            words.append(
                rng.choice(
                    [
                        self._somebody(),
                        "session=500ms",
                        "session=1801s",
                        "type=none",
                        "type=other",
                        "protocols=none",
                        "protocols=sticky",
                        "group=none",
                    ]
                )
            )
        static = client in self._static
        version = self._say(client, "join", *words, since=5 if static and rng.random() < 0.9 else 0)
        is_told_its_id = version >= 4 and not (static and version >= 5) and client not in self._known
        if is_told_its_id and rng.random() < 0.85:
            self._say(client, "join", *words, since=4)
        self._known.add(client)
        self._joined.add(client)
        if self._joined >= self._known:
            self._joined.clear()

    def _settle(self) -> None:
        """Everybody joins and syncs, so that the group usually becomes Stable."""
        rng = self._random
        members = sorted(self._known | set(rng.sample(self._clients, rng.randint(1, len(self._clients)))))
        rng.shuffle(members)
        for client in members:
            if client not in self._joined:
                self._join(client)
        for client in members:  # early joiners have to join again
            if self._joined and client not in self._joined:
                self._join(client)
        rng.shuffle(members)
        for client in members:
            if rng.random() < 0.95:
                self._sync(client)

    def _sync(self, client: str | None = None) -> None:
        rng = self._random
        assigned = []
        for each in self._clients:
            if rng.random() < 0.95:
                partitions = "none" if rng.random() < 0.3 else ",".join(self._partitions(many=2))
                assigned.append(f"${each}={partitions}")
        if self._is_crooked():
            assigned.append(rng.choice(["$ghost=orders-0", f"{self._symbol()}=raw:x", "$alice2=none"]))
        words = [*assigned, f"type={self._type}", self._group()]
        if self._is_crooked():
            words.append(
                rng.choice([self._somebody(), "type=none", "type=other", "protocol=none", "protocol=sticky"])
            )
        self._say(client or self._known_client(), "sync", *words)

    def _heartbeat(self) -> None:
        self._say(
            self._known_client(), "heartbeat", self._group(), self._somebody() if self._is_crooked() else ""
        )

    def _leave(self) -> None:
        rng = self._random
        client = self._known_client()
        leavers: list[str] = []
        if rng.random() < 0.5:
            for _ in range(rng.randint(1, 3)):
                each = self._client()
                member = rng.choice(
                    [f"${each}", f"${each}", "none", "ghost" if self._is_crooked() else "none"]
                )
                instance = f"{each}-instance" if each in self._static or self._is_crooked() else ""
                if member != "none" or instance:
                    leavers.append(f"{member}/{instance}" if instance else member)
        version = self._say(client, "leave", *leavers, self._group())
        if version < 3 or not leavers:
            self._known.discard(client)
            self._joined.discard(client)
            if rng.random() < 0.7:
                self._steps.append(f"{client} forget")

    def _commit(self) -> None:
        rng = self._random
        words = [
            f"{partition}={rng.randint(0, 99)}" + (f"@{rng.randint(0, 3)}" if rng.random() < 0.2 else "")
            for partition in self._partitions()
        ]
        if rng.random() < 0.2:
            words.append(rng.choice(["metadata=text", "metadata=none", "metadata-length=4096"]))
        if self._is_crooked():
            words.append(
                rng.choice(["as-simple", f"metadata-length={TOO_LONG}", self._somebody(), self._somebody()])
            )
        if rng.random() < 0.1:
            self._say(self._client(), "commit", *words, "retention=1h", self._group(), until=4)
        else:
            self._say(self._client(), "commit", *words, self._group())

    def _fetch(self) -> None:
        rng = self._random
        words = ["all"] if rng.random() < 0.4 else self._partitions()
        if rng.random() < 0.2:
            self._say(self._client(), "fetch", *words, "stable", self._group(), since=7)
        else:
            self._say(self._client(), "fetch", *words, self._group(), since=2 if words[0] == "all" else 0)

    def _delete_offsets(self) -> None:
        self._say(self._client(), "delete-offsets", *self._partitions(), self._group())

    def _describe(self) -> None:
        groups = list(self._groups) + (["nobody"] if self._is_crooked() else [])
        self._say(self._client(), "describe", *groups)

    def _list(self) -> None:
        rng = self._random
        words, since = [], 0
        if rng.random() < 0.5:
            words.append(f"states={','.join(rng.sample(_STATES, 2))}")
            since = 4
        if rng.random() < 0.3:
            words.append(f"types={rng.choice(['classic', 'Classic', 'consumer', 'none'])}")
            since = 5
        self._say(self._client(), "list", *words, since=since)

    def _delete_group(self) -> None:
        groups: Sequence[str] = [self._random.choice(self._groups)]
        if self._is_crooked():
            groups = [*self._groups, "nobody"]
        self._say(self._client(), "delete-group", *groups)

    def _disconnect(self) -> None:
        self._steps.append(f"disconnect {self._client()}")

    def _forget(self) -> None:
        client = self._known_client()
        self._known.discard(client)
        self._joined.discard(client)
        self._steps.append(f"{client} forget")
