"""The consumers of a run, and the topics they share."""

from __future__ import annotations

import random
from collections.abc import Callable
from enum import Enum
from itertools import count

from muster.coordinator.storage.memory import MemoryStore
from tests.simulator.checkers import REBALANCE_TIMEOUT_MAX_S
from tests.simulator.consumer import OwnConsumer
from tests.simulator.epoch_member import EpochMember
from tests.simulator.member import PASSING_TOPICS, TOPICS, Asked, Client, Member
from tests.simulator.network import Address, Link, Network
from tests.simulator.store import run

_TIMEOUTS_S = (3.0, 6.0, 45.0)
"""The request timeouts of members. The patient ones wait longer than a broker may take."""

_PROTOCOLS = ("classic", "consumer")
_OWN_SHARE = 0.3
"""Share of members that are muster's own client."""

GROUPS = ("orders-group", "audit-group")

COOPERATIVE = "cooperative-sticky"

_REGEXES = ("audit.*", "orders|audit-a", "[a-z]+-[ab]", "orders|trail.*")
_BY_REGEX = 0.4
"""Share of consumer protocol members that subscribe with a regular expression."""


class Kind(Enum):
    """Which protocols the members of a group speak."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    MIGRATING = "migrating"
    """Both: the group migrates from one to the other, and back."""


_KINDS = (Kind.CLASSIC, Kind.CLASSIC, Kind.CONSUMER, Kind.MIGRATING, Kind.MIGRATING)


class Crowd:
    """Tracks who consumes in which group."""

    def __init__(
        self,
        rng: random.Random,
        network: Network,
        addresses: list[Address],
        memory: MemoryStore,
        asking: Callable[[Link, Asked], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """`failed` is called with exceptions that no consumer may raise."""
        self._rng = rng
        self._network = network
        self._addresses = addresses
        self._memory = memory
        self._asking = asking
        self._failed = failed
        self._members: list[Member | OwnConsumer] = []
        self._names = count(1)
        self.kinds = {group_id: rng.choice(_KINDS) for group_id in GROUPS}
        self._assignors = {
            group_id: COOPERATIVE if kind is Kind.MIGRATING and rng.random() < 0.3 else "range"
            for group_id, kind in self.kinds.items()
        }
        """The assignors of classic members. Simulated members are eager, so cooperative groups have none."""
        self.goals = {group_id: rng.choice(["classic", "consumer"]) for group_id in GROUPS}
        """The protocol to which the members of a migrating group are currently moving."""

    def partitions(self) -> dict[str, int]:
        """The current partition count of each topic."""
        return {
            row.name: row.partitions
            for row in run(self._memory.topics())
            if row.name in TOPICS or row.name in PASSING_TOPICS
        }

    def next_to_migrate(self, group_id: str) -> Member | OwnConsumer | None:
        """A member that does not yet speak its group's target protocol. When there is none, the group turns
        back."""
        left = [each for each in self.living(group_id) if each.speaks != self.goals[group_id]]
        if left:
            return self._rng.choice(left)
        self.goals[group_id] = "classic" if self.goals[group_id] == "consumer" else "consumer"
        return None

    def _protocol(self, group_id: str) -> str:
        kind = self.kinds[group_id]
        if kind is Kind.MIGRATING:
            return self.goals[group_id] if self._rng.random() < 0.7 else self._rng.choice(_PROTOCOLS)
        return kind.value

    def subscription(self, member: Member | OwnConsumer) -> tuple[frozenset[str], str | None]:
        """A different subscription for a member: topics, and a regular expression."""
        if member.regex is not None and (isinstance(member, OwnConsumer) or self._rng.random() < 0.7):
            return frozenset(), self._rng.choice([each for each in _REGEXES if each != member.regex])
        topics = frozenset({"orders"}) if "audit" in member.topics else frozenset(TOPICS)
        if isinstance(member, EpochMember) and self._rng.random() < 0.3:
            return topics, self._rng.choice(_REGEXES)
        return topics, None

    def living(self, group_id: str | None = None) -> list[Member | OwnConsumer]:
        self._members = [member for member in self._members if not member.over]
        return [member for member in self._members if group_id in (None, member.group_id)]

    def some(self) -> Member | OwnConsumer | None:
        members = self.living()
        return self._rng.choice(members) if members else None

    def static(self, group_id: str | None = None) -> list[Member | OwnConsumer]:
        return [member for member in self.living(group_id) if member.instance_id is not None]

    def new_instance(self, group_id: str) -> str:
        return f"{group_id}-static-{next(self._names)}"

    def add(
        self,
        group_id: str,
        instance_id: str | None = None,
        topics: frozenset[str] | None = None,
        name: str | None = None,
        *,
        protocol: str | None = None,
        regex: str | None = None,
    ) -> Member | OwnConsumer:
        """Start a member. `name` is that of an earlier member whose process restarts; `protocol` is the one
        it speaks."""
        protocol = protocol or self._protocol(group_id)
        rng = random.Random(self._rng.getrandbits(64))
        if protocol == "classic":
            regex = None
        elif topics is None and regex is None and rng.random() < _BY_REGEX:
            regex = rng.choice(_REGEXES)
            topics = frozenset({"orders"}) if rng.random() < 0.2 else None
        if regex is None:
            topics = topics or rng.choice([frozenset(TOPICS), frozenset({"orders"})])
        session_timeout_ms = rng.choice([6_000, 10_000])
        rebalance_timeout_ms = rng.choice([6_000, int(REBALANCE_TIMEOUT_MAX_S * 1000)])
        name = name or f"{group_id}-{next(self._names)}"
        member: Member | OwnConsumer
        assignor = self._assignors[group_id]
        if rng.random() < _OWN_SHARE or (protocol == "classic" and assignor == COOPERATIVE):
            if regex is not None:
                topics = None  # the client takes either
            member = OwnConsumer(
                name,
                group_id,
                rng,
                self._addresses,
                self._network,
                self._asking,
                instance_id=instance_id,
                topics=topics or frozenset(),
                regex=regex,
                assignor=assignor,
                protocol="classic" if protocol == "classic" else rng.choice(["consumer", "consumer", "auto"]),
                session_timeout_ms=session_timeout_ms,
                rebalance_timeout_ms=rebalance_timeout_ms,
                failed=self._failed,
            )
        elif protocol == "consumer":
            member = EpochMember(
                self.client(name, rng.choice(_TIMEOUTS_S)),
                group_id,
                rng,
                self._addresses,
                instance_id=instance_id,
                topics=topics or frozenset(),
                regex=regex,
                rebalance_timeout_ms=rebalance_timeout_ms,
            )
        else:
            member = Member(
                self.client(name, rng.choice(_TIMEOUTS_S)),
                group_id,
                rng,
                self._addresses,
                instance_id=instance_id,
                topics=topics or frozenset(),
                session_timeout_ms=session_timeout_ms,
                rebalance_timeout_ms=rebalance_timeout_ms,
            )
        self._members.append(member)
        member.start()
        return member

    def client(self, name: str, timeout_s: float = 10.0) -> Client:
        """A client that sends requests without being a member."""
        return Client(name, self._network, self._asking, timeout_s)
