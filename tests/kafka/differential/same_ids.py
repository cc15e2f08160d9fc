"""Ids that a broker generates at random, which muster takes from Apache Kafka in a duel.

Assignors process members and topics in orders that depend on their ids, so with other ids, partitions would
go to other members.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final
from unittest.mock import patch

from muster.coordinator.base.clock import Clock
from muster.coordinator.cluster.lease import LeaseKeeper
from muster.coordinator.group.config import GroupConfig, GroupConfigs
from muster.coordinator.group.shard import Shard
from muster.coordinator.runtime.groups import GroupRuntime, group_kind
from muster.coordinator.server import broker
from muster.coordinator.storage.store import Store
from muster.coordinator.topics.catalogue import Catalogue
from muster.protocol.java import spread, uuid_hash

_BUCKETS: Final = 16
_LENGTH: Final = 36
"""The length of a UUID; a member id ends with one."""


def share_a_bucket(topic_id: uuid.UUID, others: Iterable[uuid.UUID]) -> bool:
    """Whether Java's hash tables have two topics in one bucket. Which of the two an assignor deals out first
    is unknown for a running Kafka, so sequences avoid such topics."""
    buckets = {spread(uuid_hash(each)) % _BUCKETS for each in others}
    return spread(uuid_hash(topic_id)) % _BUCKETS in buckets


class SameIds:
    """The ids that a muster generates next; random ones if it was given none."""

    def __init__(self) -> None:
        self.decides = False
        """Whether a broker gets its ids from here."""
        self._topics: deque[uuid.UUID] = deque()
        self._member: str | None = None
        self._one_at_a_time = asyncio.Lock()

    @contextmanager
    def of_brokers(self) -> Iterator[None]:
        """Brokers started inside the block get their ids from here."""
        self.decides = True

        def runtime(
            store: Store,
            clock: Clock,
            leases: LeaseKeeper,
            config: GroupConfig,
            configs: GroupConfigs,
            **rest: Any,
        ) -> GroupRuntime:
            made = partial(Shard, config=config, configs=configs, ids=self._next_member)
            kind = group_kind(config, configs)._replace(make=made)
            return GroupRuntime(store, clock, leases, config, configs, kind=kind, **rest)

        # Patched where brokers create them: class defaults cannot be changed in the compiled build.
        with (
            patch.object(broker, "GroupRuntime", runtime),
            patch.object(broker, "Catalogue", partial(Catalogue, new_id=self._next_topic)),
        ):
            yield

    def topics(self, ids: Iterable[uuid.UUID]) -> None:
        """The topics created next get these ids."""
        self._topics.extend(ids)

    @asynccontextmanager
    async def topic(self, topic_id: uuid.UUID) -> AsyncIterator[None]:
        """The topic created inside the block gets this id."""
        async with self._one_at_a_time:
            self._topics.append(topic_id)
            yield

    @asynccontextmanager
    async def member(self, member_id: str | None) -> AsyncIterator[None]:
        """A member that joins inside the block gets this id's random part; None: Kafka has generated none."""
        async with self._one_at_a_time:
            self._member = None if member_id is None else member_id[-_LENGTH:]
            try:
                yield
            finally:
                self._member = None

    def _next_member(self) -> str:
        return self._member or str(uuid.uuid4())

    def _next_topic(self) -> uuid.UUID:
        return self._topics.popleft() if self._topics else uuid.uuid4()
