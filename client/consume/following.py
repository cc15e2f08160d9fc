"""Follows a subscription by pattern: topics come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from muster.client.consume.settings import ConsumerSettings
from muster.client.consume.subscription import Subscription
from muster.client.errors import ClientError
from muster.client.group.group import Group
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.protocol.errors import ErrorCode, KafkaError

_CANNOT_TELL: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE)
"""What a broker says of a topic that another may know more about."""


async def follow(
    cluster: Cluster,
    group: Group,
    subscription: Subscription,
    settings: ConsumerSettings,
    *,
    wake: Callable[[], None],
    note: Callable[[Exception], None],
    fail: Callable[[Exception], None],
) -> None:
    """Keep the subscription to the topics that match, until cancelled. `wake` is called when they change,
    `note` with failures, which are all retried, and `fail` with those that do not pass by themselves."""
    pattern = subscription.pattern
    assert pattern is not None
    tries, first = cluster.tries(), True

    def accepts(name: str) -> bool:
        return pattern.fullmatch(name) is not None

    while True:
        try:
            with tries:
                response = await cluster.refresh(None, deadline(settings.request_timeout_ms / 1000))
        except (ClientError, KafkaError) as error:
            note(error)
            if cluster.is_final(error):
                fail(error)
            await asyncio.sleep(tries.again())
            continue
        there = [(topic.name, topic.is_internal) for topic in cluster.image.topics.values()]
        changed = subscription.follow(there, exclude_internal=settings.exclude_internal_topics)
        if changed or first:
            first = False
            group.subscribe(subscription.topics, accepts)
            wake()
        wait_s = settings.metadata_max_age_ms / 1000
        if any(each.error_code in _CANNOT_TELL and accepts(each.name or "") for each in response.topics):
            wait_s = min(wait_s, tries.again())
        else:
            tries = cluster.tries()
        await asyncio.sleep(wait_s)
