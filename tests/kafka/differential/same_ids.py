"""Ids that a broker makes at random, and that muster has from Apache Kafka in a duel.

Assignors look at members and topics in orders that depend on their ids, so with others partitions would go to
other members.
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
"""Of a UUID; a member id ends with one."""


def share_a_bucket(topic_id: uuid.UUID, others: Iterable[uuid.UUID]) -> bool:
    """Whether Java's hash tables have two topics in one bucket. Which of them an assignor deals out first is
    not known of a running Kafka, so sequences do without such topics."""
    buckets = {spread(uuid_hash(each)) % _BUCKETS for each in others}
    return spread(uuid_hash(topic_id)) % _BUCKETS in buckets


class SameIds:
    """Those that a muster is to make next; random ones when it was told of none."""

    def __init__(self) -> None:
        self.decides = False
        """Whether a broker has its ids from here."""
        self._topics: deque[uuid.UUID] = deque()
        self._member: str | None = None
        self._one_at_a_time = asyncio.Lock()

    @contextmanager
    def of_brokers(self) -> Iterator[None]:
        """Brokers that are started within have theirs from here."""
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

        # Where brokers make them: defaults of the classes cannot be changed in the compiled build.
        with (
            patch.object(broker, "GroupRuntime", runtime),
            patch.object(broker, "Catalogue", partial(Catalogue, new_id=self._next_topic)),
        ):
            yield

    def topics(self, ids: Iterable[uuid.UUID]) -> None:
        """The topics that are created next get these."""
        self._topics.extend(ids)

    @asynccontextmanager
    async def topic(self, topic_id: uuid.UUID) -> AsyncIterator[None]:
        """The topic that is created within gets this id."""
        async with self._one_at_a_time:
            self._topics.append(topic_id)
            yield

    @asynccontextmanager
    async def member(self, member_id: str | None) -> AsyncIterator[None]:
        """Who joins within gets the random part of this id; None: Kafka has not made any."""
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
