"""The consumers of a run, and the topics they share."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count

from muster.coordinator.storage.memory import MemoryStore
from tests.simulator.checkers import REBALANCE_TIMEOUT_MAX_S
from tests.simulator.consumer import OwnConsumer
from tests.simulator.member import TOPICS, Asked, Client, Member
from tests.simulator.network import Address, Link, Network
from tests.simulator.store import run

_TIMEOUTS_S = (3.0, 6.0, 45.0)
"""What members give a request. The patient ones wait longer than a broker may take."""

_OWN_SHARE = 0.3
"""Of the members, those that are muster's own client."""

GROUPS = ("orders-group", "audit-group")


class Crowd:
    """Who consumes in which group."""

    def __init__(
        self,
        rng: random.Random,
        network: Network,
        addresses: list[Address],
        memory: MemoryStore,
        asking: Callable[[Link, Asked], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """`failed` is told of what no consumer may come to."""
        self._rng = rng
        self._network = network
        self._addresses = addresses
        self._memory = memory
        self._asking = asking
        self._failed = failed
        self._members: list[Member | OwnConsumer] = []
        self._names = count(1)

    def partitions(self) -> dict[str, int]:
        """How many each topic has by now."""
        return {row.name: row.partitions for row in run(self._memory.topics()) if row.name in TOPICS}

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
    ) -> Member | OwnConsumer:
        """A member that starts now; `name`: one that somebody else had, whose process begins anew."""
        rng = random.Random(self._rng.getrandbits(64))
        topics = topics or rng.choice([frozenset(TOPICS), frozenset({"orders"})])
        session_timeout_ms = rng.choice([6_000, 10_000])
        rebalance_timeout_ms = rng.choice([6_000, int(REBALANCE_TIMEOUT_MAX_S * 1000)])
        name = name or f"{group_id}-{next(self._names)}"
        member: Member | OwnConsumer
        if rng.random() < _OWN_SHARE:
            member = OwnConsumer(
                name,
                group_id,
                rng,
                self._addresses,
                self._network,
                self._asking,
                instance_id=instance_id,
                topics=topics,
                session_timeout_ms=session_timeout_ms,
                rebalance_timeout_ms=rebalance_timeout_ms,
                failed=self._failed,
            )
        else:
            member = Member(
                self.client(name, rng.choice(_TIMEOUTS_S)),
                group_id,
                rng,
                self._addresses,
                instance_id=instance_id,
                topics=topics,
                session_timeout_ms=session_timeout_ms,
                rebalance_timeout_ms=rebalance_timeout_ms,
            )
        self._members.append(member)
        member.start()
        return member

    def client(self, name: str, timeout_s: float = 10.0) -> Client:
        """Somebody who asks, and is no member."""
        return Client(name, self._network, self._asking, timeout_s)
