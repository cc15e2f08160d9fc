"""Which topics of a subscription by name do not exist. Nothing else would say so: they contribute no
partitions, and the member is as healthy as any."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from muster.client.consume.assigned import Assigned
from muster.client.consume.settings import ConsumerSettings
from muster.client.consume.subscription import Subscription
from muster.client.consume.tasks import Tasks
from muster.client.errors import ClientError
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.protocol.errors import ErrorCode, KafkaError

_LOG: Final = logging.getLogger("muster.client.consumer")


class MissingTopics:
    """Asks, in a task, for the topics that this member has no partitions of, and warns once of each that does
    not exist; again only after it existed. Asking creates no topic. A topic is missing when two answers in a
    row say so, about a second apart: a broker may not know a new one yet."""

    def __init__(
        self,
        cluster: Cluster,
        subscription: Subscription,
        assigned: Assigned,
        settings: ConsumerSettings,
        tasks: Tasks,
    ) -> None:
        self._cluster = cluster
        self._subscription = subscription
        self._assigned = assigned
        self._request_timeout_s = settings.request_timeout_ms / 1000
        self._max_age_s = settings.metadata_max_age_ms / 1000
        self._again_s = min(settings.retry_backoff_max_ms, settings.metadata_max_age_ms) / 1000
        self._tasks = tasks
        self._task: asyncio.Task[None] | None = None
        self._missing: frozenset[str] = frozenset()
        self._warned: set[str] = set()

    @property
    def topics(self) -> frozenset[str]:
        """Subscribed topics that do not exist."""
        return self._missing & self._unread()

    def look(self) -> None:
        """The group has assigned partitions, or the subscription has changed: look at once, and then again
        and again, at topics that this member reads nothing of."""
        self._end()
        unread = self._unread()
        self._exist(self._subscription.names - unread)
        if unread:
            self._task = self._tasks.spawn(self._look(), "topics that may not exist")

    def forget(self) -> None:
        """Another subscription begins: look at nothing until the group has assigned partitions."""
        self._end()
        self._missing = frozenset()

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _unread(self) -> frozenset[str]:
        return self._subscription.names - {where.topic for where in self._assigned.partitions}

    async def _look(self) -> None:
        """Ask for all of them once in `_max_age_s`, and in between for those that are unknown."""
        tries, unknown, all_at = self._cluster.tries(), self._missing, deadline(0)
        while names := self._unread():
            asks_for_all = deadline(0) >= all_at
            asked = names if asks_for_all else names & unknown
            try:
                with tries:
                    response = await self._cluster.metadata(
                        sorted(asked), deadline(self._request_timeout_s), create=False
                    )
            except (ClientError, KafkaError):  # those who join and read say so
                await asyncio.sleep(tries.again())
                continue
            before = unknown
            unknown = frozenset(
                each.name
                for each in response.topics
                if each.name in asked and each.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
            self._exist(asked - unknown)
            self._are_missing(unknown & before)
            if asks_for_all:
                all_at = deadline(self._max_age_s)
            if unknown:
                tries.again()
            else:
                tries = self._cluster.tries()
            left_s = all_at - deadline(0)
            await asyncio.sleep(min(left_s, self._again_s) if unknown else left_s)

    def _are_missing(self, topics: frozenset[str]) -> None:
        self._missing = topics
        for name in sorted(topics - self._warned):
            self._warned.add(name)
            _LOG.warning("topic %s is subscribed to and does not exist: waiting for it", name)

    def _exist(self, topics: frozenset[str]) -> None:
        for name in sorted(topics & self._warned):
            self._warned.remove(name)
            _LOG.info("topic %s exists now", name)
