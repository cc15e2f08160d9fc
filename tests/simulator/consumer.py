"""A consumer that is muster's own: `muster.client.Consumer`, unmodified, in a process of the simulation.

What it may do is up to the simulated member (`tests.simulator.member`): its positions begin where the group
has committed and only grow.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import copy_context
from itertools import count
from typing import Any

from muster.client import (
    ClientError,
    Consumer,
    OffsetAndMetadata,
    RebalanceListener,
    SubscriptionPattern,
    TopicPartition,
)
from muster.client.group.membership_types import State
from muster.client.group.outcomes import Committed
from muster.protocol.errors import ErrorCode, KafkaError
from tests.simulator.member import Asked, Partition
from tests.simulator.network import Address, Link, Network
from tests.simulator.stream import PROCESS, Process, StreamLink

_NEXT_HEARTBEAT = {ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID}
"""Goes away once the next heartbeat is answered."""


class OwnConsumer(RebalanceListener):
    """One consumer in a process of its own. To the run it behaves like `Member`."""

    def __init__(
        self,
        name: str,
        group_id: str,
        rng: random.Random,
        brokers: list[Address],
        network: Network,
        asking: Callable[[Link, Asked], None],
        *,
        instance_id: str | None,
        topics: frozenset[str],
        regex: str | None = None,
        protocol: str = "classic",
        assignor: str = "range",
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        failed: Callable[[BaseException], None],
    ) -> None:
        """`protocol` is the client's `group_protocol`. `regex` is for the consumer protocol, instead of
        `topics`."""
        self.name = name
        self.group_id = group_id
        self.instance_id = instance_id
        self.topics = topics
        self.regex = regex
        self.speaks = "classic" if protocol == "classic" else "consumer"
        self.commits = 0
        """Acknowledged commits of everything it owned; whoever counts resets it to 0."""
        self.over = False
        self._rng = rng
        self._failed = failed
        self._process = Process(network, asking, random.Random(rng.getrandbits(64)))
        self._context = copy_context()
        self._context.run(PROCESS.set, self._process)
        self._positions: dict[TopicPartition, int] = {}
        self._assignments = 0
        self._stalled_until_s = 0.0
        self._commit_numbers = count(1)
        self._task: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        settings: dict[str, Any] = {"group_protocol": protocol}
        if protocol != "consumer":
            settings |= {
                "assignors": [assignor],
                "session_timeout_ms": session_timeout_ms,
                "heartbeat_interval_ms": rng.choice([500, 1_500]),
            }
        self._consumer: Consumer[bytes | None, bytes | None] = Consumer(
            [f"{host}:{port}" for host, port in brokers],
            topics=_wanted(topics, regex),
            listener=self,
            group_id=group_id,
            group_instance_id=instance_id,
            client_id=name,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            **settings,
            max_poll_interval_ms=rebalance_timeout_ms,
            revocation_grace_ms=0,
            fetch_max_wait_ms=500,
            request_timeout_ms=rng.choice([4_000, 15_000]),
            metadata_max_age_ms=2_000,
            allow_auto_create_topics=False,
        )

    def __repr__(self) -> str:
        owned = "joining" if self.owned is None else sorted(self.owned)
        return f"<OwnConsumer {self.name} of {self.group_id} generation={self.generation_id} {owned}>"

    def wants(self, topic: str) -> bool:
        if self.regex is not None:
            return re.fullmatch(self.regex, topic) is not None
        return topic in self.topics

    @property
    def watches(self) -> bool:
        """Whether it leads its group, or has a coordinator that watches the topics."""
        group = self._consumer._core.group
        return self.speaks == "consumer" or (group is not None and group.is_leader)

    @property
    def owned(self) -> frozenset[Partition] | None:
        """The partitions it owns; None while it has no assignment."""
        group = self._consumer._core.group
        if not self._started or group is None or group.state is not State.STABLE or group.rejoin_needed:
            return None
        return frozenset((where.topic, where.partition) for where in self._consumer.assignment)

    @property
    def generation_id(self) -> int:
        return self._consumer.group_metadata().generation_id if self._started else -1

    @property
    def member_id(self) -> str:
        return self._consumer.group_metadata().member_id if self._started else ""

    @property
    def _started(self) -> bool:
        return self._consumer._core.state == "running"

    @property
    def link(self) -> StreamLink | None:
        """One of its connections."""
        links = self._process.links
        return self._rng.choice(links) if links else None

    # --- what happens to it -----------------------------------------------------------------------

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=self.name, context=self._context)
        self._task.add_done_callback(self._ended)

    def stall(self, seconds: float) -> None:
        """Poll no records for a while: its handler is busy, its heartbeats go on."""
        self._stalled_until_s = asyncio.get_running_loop().time() + seconds

    def subscribe(self, topics: frozenset[str], regex: str | None = None) -> None:
        """Change the subscription, but not between names and a pattern, which the client does not allow."""
        if (regex is None) is not (self.regex is None):
            return
        self.topics, self.regex = topics, regex
        if self._started:
            self._context.run(self._subscribe)

    def _subscribe(self) -> None:
        self._consumer.subscribe(_wanted(self.topics, self.regex), self)

    def cut(self, *, silently: bool = False) -> None:
        """Break all its connections; `silently`: brokers do not notice."""
        for link in self._process.links:
            link.cut(silently=silently)

    def crash(self, *, silently: bool) -> None:
        self._process.die(silently=silently)
        self._end(0.0)

    def leave(self) -> None:
        """Close. Static members stay in the group until their session expires."""
        self._end(5.0)

    def _end(self, timeout_s: float) -> None:
        if self.over:
            return
        self.over = True
        if self._task is not None:
            self._task.cancel()
        self._ending = asyncio.create_task(
            self._close(timeout_s), name=f"end of {self.name}", context=self._context
        )

    async def _close(self, timeout_s: float) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])
        with suppress(ClientError, KafkaError):
            await self._consumer.close(timeout_s)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    # --- its life ---------------------------------------------------------------------------------

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        await self._consumer.start()
        if self.regex is not None or self.topics != self._consumer.subscription:
            self._subscribe()
        while not self.over:
            try:
                await self._consumer.get(self._rng.uniform(0.3, 1.5))
                if self._rng.random() < 0.5:
                    await self._commit()
            except KafkaError as error:
                if error.code in (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNRELEASED_INSTANCE_ID):
                    # Another process has this instance id, now or still.
                    self._end(0.0)
                    return
                raise
            stalled_s = self._stalled_until_s - loop.time()
            if stalled_s > 0:
                await asyncio.sleep(stalled_s)

    async def _commit(self) -> None:
        assignment = self._assignments
        if not self.owned:
            return
        try:
            await self._find_positions()
        except ClientError:  # not in time
            return
        except KafkaError as error:
            if not (error.code.retriable or error.code in _NEXT_HEARTBEAT):
                raise
            return  # a passing error has not passed in time
        if assignment != self._assignments:
            return
        for where in sorted(self._positions):
            self._positions[where] += self._rng.randint(1, 5)
        metadata = f"{self.name}#{next(self._commit_numbers)}"
        places = {
            where: OffsetAndMetadata(self._positions[where], metadata) for where in sorted(self._positions)
        }
        outcomes = await self._consumer.commit(places, 5.0)
        if all(isinstance(outcome, Committed) for outcome in outcomes.values()):
            self.commits += 1

    async def _find_positions(self) -> None:
        assignment = self._assignments
        missing = {TopicPartition(*each) for each in self.owned or ()} - self._positions.keys()
        if not missing:
            return
        committed = await self._consumer.committed(sorted(missing), 5.0)
        if assignment == self._assignments:
            for where, place in committed.items():
                self._positions[where] = 0 if place is None else place.offset

    # --- RebalanceListener ------------------------------------------------------------------------

    def on_partitions_assigned(
        self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]
    ) -> None:
        self._assignments += 1
        self._positions = {}

    def on_partitions_revoked(
        self, consumer: Consumer[Any, Any], partitions: Iterable[TopicPartition]
    ) -> None:
        self._assignments += 1
        self._positions = {}


def _wanted(topics: frozenset[str], regex: str | None) -> list[str] | SubscriptionPattern:
    return sorted(topics) if regex is None else SubscriptionPattern(regex)
