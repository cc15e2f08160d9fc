"""The partitions of a producer's topics, and their leaders."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from muster.client.errors import AuthenticationFailed, ClientError, RequestTimedOut, refusal
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.client.network.metadata import no_partition
from muster.client.partitions import TopicPartition
from muster.client.produce.accumulator import TopicQueues
from muster.protocol.errors import ErrorCode, KafkaError

_NOT_YET = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
"""Permanent for callers that ask for a topic, but not for a producer: the topic may be about to be
created."""

_GROWTH_S = 5.0
"""How long to wait for a partition that its topic lacks: the brokers of a cluster do not learn of new
partitions at the same moment."""

_IDLE_S = 300.0
"""How long a topic that is not used is asked for: asking might create a deleted topic again. As
metadata.max.idle.ms of Java's producer (KIP-526)."""


class Patience(NamedTuple):
    """How long a call waits: `until` a time of the loop's clock, because of `setting`, which errors name."""

    until: float
    setting: str


class Leaders:
    """Keeps `topics` up to date with the cluster. Idle ones stay there, since their numbers must go on, but
    are no longer `current`. `on_news` is called after every response, `on_refused` with a topic that the
    cluster refuses permanently, `on_end` with a task that has ended."""

    def __init__(
        self,
        cluster: Cluster,
        topics: dict[str, TopicQueues],
        *,
        request_timeout_s: float,
        metadata_max_age_s: float,
        on_news: Callable[[], None],
        on_refused: Callable[[str, Exception], None],
        on_end: Callable[[asyncio.Task[None]], None],
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self.current: dict[str, TopicQueues] = {}
        """The topics that records can be put into; others must be asked for first."""
        self._request_timeout_s = request_timeout_s
        self._metadata_max_age_s = metadata_max_age_s
        self._on_news = on_news
        self._on_refused = on_refused
        self._on_end = on_end
        self._sought: dict[str, None] = {}
        self._more = asyncio.Event()  # set when there are new topics to look up
        self._seeking: asyncio.Task[None] | None = None
        self._renew_at = deadline(metadata_max_age_s)

    async def topic(self, name: str, patience: Patience) -> TopicQueues:
        """The topic, once it has partitions. Raises permanent refusals at once; on timeout, the last failure,
        naming the setting that ended the wait."""
        tries = self._cluster.tries()
        failed: ClientError | KafkaError | None = None
        while True:
            try:
                with tries:
                    await self._ask([name], patience.until)
                topic = self.current.get(name)
                if topic is not None:
                    topic.used_at = deadline(0)
                    return topic
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {name} has no partitions yet")
            except (ClientError, KafkaError) as error:
                if self._is_final(error):
                    raise
                # That the last attempt had no time left is not the reason.
                failed = failed if failed is not None and isinstance(error, RequestTimedOut) else error
            wait_s = tries.again()
            if deadline(wait_s) >= patience.until:
                raise _in_the_end(failed, name, patience.setting) from failed
            await asyncio.sleep(wait_s)

    async def partition(self, name: str, number: int, patience: Patience) -> TopicQueues:
        """The topic, once it has that partition. Raises KafkaError(UNKNOWN_TOPIC_OR_PARTITION) if it lacks
        the partition after five seconds, or when patience ends before that; otherwise as `topic`."""
        until = min(patience.until, deadline(_GROWTH_S))
        tries = self._cluster.tries()
        while True:
            with tries:
                topic = await self.topic(name, patience)
            if number < topic.count:
                return topic
            wait_s = tries.again()
            if deadline(wait_s) >= until:
                raise no_partition(TopicPartition(name, number), topic.count)
            await asyncio.sleep(wait_s)

    def seek(self, names: Iterable[str]) -> None:
        """Look up these topics, until every partition with records to send has a leader."""
        more = dict.fromkeys(names)
        if more.keys() - self._sought.keys():
            self._more.set()
        self._sought.update(more)
        if self._sought and (self._seeking is None or self._seeking.done()):
            self._seeking = asyncio.create_task(self._seek(), name="leaders of a producer's partitions")
            self._seeking.add_done_callback(self._on_end)

    def renew(self, now: float) -> float:
        """Refresh everything older than metadata_max_age_ms, except idle topics. Returns when to call
        again."""
        if now >= self._renew_at:
            self._renew_at = now + self._metadata_max_age_s
            for name in [name for name, topic in self.current.items() if now - topic.used_at > _IDLE_S]:
                del self.current[name]
            self.seek(self.current)
        return self._renew_at

    @property
    def task(self) -> asyncio.Task[None] | None:
        """The look-up task, to be ended by the owner."""
        return self._seeking

    async def _seek(self) -> None:
        tries = self._cluster.tries()
        while self._sought:
            names = list(self._sought)
            self._more.clear()
            try:
                with tries:
                    await self._ask(names, deadline(self._request_timeout_s))
            except (ClientError, KafkaError) as error:
                # Otherwise waiting records have their own timeout.
                if isinstance(error, (KafkaError, AuthenticationFailed)) and self._is_final(error):
                    for name in names:
                        self._refused(name, error)
            for name in names:
                if self._is_led(name):
                    self._sought.pop(name, None)
            self._on_news()
            if self._sought:
                with suppress(TimeoutError):
                    async with asyncio.timeout(tries.again()):
                        await self._more.wait()

    async def _ask(self, names: list[str], until: float) -> None:
        """Ask once. Raises the error of a single requested topic; errors of several go to `on_refused`."""
        response = await self._cluster.refresh(names, until)
        asked = set(names)
        for told in response.topics:
            if told.name not in asked:
                continue
            if not told.error_code:
                self._take(told.name)
                continue
            error = refusal(told.error_code, about=f"topic {told.name}")
            if len(names) == 1:
                raise error
            if self._is_final(error):
                self._refused(told.name, error)

    def _take(self, name: str) -> None:
        image = self._cluster.image
        told = image.topic(name)
        if told is None or not told.partitions:
            return
        topic = self._topics.get(name)
        if topic is None:
            # So that producers that start together do not all begin with the same partition.
            topic = TopicQueues(name, len(told.partitions), random.randrange(len(told.partitions)))
            self._topics[name] = topic
        self.current[name] = topic
        topic.resize(len(told.partitions))
        for number, queue in enumerate(topic.queues):
            partition = told.partitions.get(number)
            queue.leader = None
            if partition is not None and partition.leader in image.nodes:
                queue.leader = partition.leader

    def _is_led(self, name: str) -> bool:
        topic = self._topics.get(name)
        return topic is None or all(queue.leader is not None or not queue.batches for queue in topic.queues)

    def _refused(self, name: str, error: Exception) -> None:
        self._sought.pop(name, None)
        self._on_refused(name, error)

    def _is_final(self, error: Exception) -> bool:
        if isinstance(error, KafkaError) and error.code in _NOT_YET:
            return False
        return self._cluster.is_final(error)


def _in_the_end(failed: ClientError | KafkaError, name: str, setting: str) -> ClientError | KafkaError:
    """The error for a topic that was not found in time, of the same kind."""
    if isinstance(failed, ClientError):
        return type(failed)(f"{failed}; topic {name} was not found within {setting}")
    if failed.code in _NOT_YET:
        return KafkaError(
            failed.code,
            f"topic {name} does not exist and did not appear within {setting}; create it, or let brokers"
            " create topics (auto.create.topics.enable)",
        )
    return KafkaError(failed.code, f"{failed.why}; the producer waited for all of {setting}")
