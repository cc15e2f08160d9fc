"""What a consumer reads: topics by name, topics by a pattern that we or the brokers match, or partitions.
Pure. These are mutually exclusive, as in Kafka: unsubscribe to change from one to another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from muster.client.errors import ClientError
from muster.client.partitions import TopicPartition


@dataclass(frozen=True, slots=True)
class SubscriptionPattern:
    """All topics whose whole name matches this regular expression in RE2 syntax. The brokers find them, and
    notice new ones, so it requires the consumer protocol (KIP-848): `group_protocol="consumer"`, or "auto".
    Raises ValueError if it is not text, or empty."""

    pattern: str

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str) or not self.pattern:
            raise ValueError(f"SubscriptionPattern({self.pattern!r}): it takes text that is not empty")


Topics: TypeAlias = str | Iterable[str] | re.Pattern[str] | SubscriptionPattern

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class Subscription:
    """The subscription, and for a pattern the topics that currently match."""

    def __init__(self) -> None:
        self.pattern: re.Pattern[str] | None = None
        self.remote: SubscriptionPattern | None = None
        self.topics: frozenset[str] = frozenset()
        self.assigned: frozenset[TopicPartition] = frozenset()
        self._by_group = False

    def __repr__(self) -> str:
        return f"<Subscription {self}>"

    def __str__(self) -> str:
        pattern = self.pattern or self.remote
        if pattern is not None:
            return f"topics like {pattern.pattern!r}: {_listed(self.topics)}"
        if self._by_group:
            return f"topics {_listed(self.topics)}"
        return f"partitions {_listed(map(str, self.assigned))}" if self.assigned else "nothing"

    @property
    def by_group(self) -> bool:
        """Whether the group assigns partitions, not the user."""
        return self._by_group

    @property
    def names(self) -> frozenset[str]:
        """The topics subscribed to by name."""
        by_pattern = self.pattern is not None or self.remote is not None
        return frozenset() if by_pattern else self.topics

    @property
    def is_empty(self) -> bool:
        """Whether there is no subscription."""
        return not (self._by_group or self.assigned)

    def subscribe(self, wanted: Topics) -> None:
        """Subscribe to these topics instead of the previous ones. Raises ValueError, and ClientError if
        partitions are assigned."""
        if self.assigned:
            raise ClientError("partitions are assigned: unsubscribe before subscribing to topics")
        if isinstance(wanted, SubscriptionPattern):
            if self._by_group and self.remote is None:
                raise ClientError("subscribed otherwise: unsubscribe before subscribing by pattern")
            if wanted != self.remote:
                self.remote, self.topics = wanted, frozenset()
        elif self.remote is not None:
            raise ClientError("subscribed by pattern: unsubscribe before subscribing otherwise")
        elif isinstance(wanted, re.Pattern):
            if not isinstance(wanted.pattern, str):
                raise ValueError("topics: the pattern takes text, not bytes")
            if self._by_group and self.pattern is None:
                raise ClientError("subscribed to topics by name: unsubscribe before subscribing by pattern")
            self.pattern, self.topics = wanted, frozenset(filter(wanted.fullmatch, self.topics))
        else:
            topics = _checked(wanted)
            if self.pattern is not None:
                raise ClientError("subscribed by pattern: unsubscribe before subscribing to topics by name")
            self.topics = topics
        self._by_group = True

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign these partitions instead of the previous ones. Raises ValueError, and ClientError if topics
        are subscribed."""
        if self._by_group:
            raise ClientError("subscribed to topics: unsubscribe before assigning partitions")
        wanted = []
        for each in partitions:
            if not (isinstance(each, tuple) and len(each) == 2 and isinstance(each[1], int) and each[1] >= 0):
                raise ValueError(
                    f"partitions: {each!r} is not allowed; it takes TopicPartition(topic, partition)"
                )
            wanted.append(TopicPartition(_checked_topic(each[0]), each[1]))
        self.assigned = frozenset(wanted)

    def clear(self) -> None:
        """Unsubscribe."""
        self.pattern = self.remote = None
        self.topics, self.assigned, self._by_group = frozenset(), frozenset(), False

    def follow(self, there: Iterable[tuple[str, bool]], *, exclude_internal: bool) -> bool:
        """Update the matching topics from the cluster's topics (name, internal); the pattern must match whole
        names. Returns whether they changed."""
        if self.pattern is None:
            return False
        topics = frozenset(
            name
            for name, internal in there
            if self.pattern.fullmatch(name) and not (internal and exclude_internal)
        )
        changed, self.topics = topics != self.topics, topics
        return changed

    def covers(self, where: TopicPartition) -> bool:
        """Whether the partition is part of the subscription: a leader may still assign by an older one."""
        if self.remote is not None:
            return True
        if self.pattern is not None:
            return self.pattern.fullmatch(where.topic) is not None
        return where.topic in self.topics if self._by_group else where in self.assigned

    def adopt(self, partitions: Iterable[TopicPartition]) -> None:
        """Learn topics from an assignment: a leader with newer metadata may assign matching topics that we
        have not seen yet. Topics that match the broker's pattern are known only from assignments."""
        if self.remote is not None:
            self.topics = frozenset(where.topic for where in partitions)
        if self.pattern is not None:
            self.topics |= {where.topic for where in partitions}


def _checked(wanted: str | Iterable[str]) -> frozenset[str]:
    if not isinstance(wanted, Iterable):
        raise ValueError(f"topics={wanted!r}: it takes a name, several, or a pattern")
    topics = [wanted] if isinstance(wanted, str) else list(wanted)
    if not topics:
        raise ValueError("topics: it takes at least one; `await consumer.unsubscribe()` ends a subscription")
    return frozenset(_checked_topic(each) for each in topics)


def _checked_topic(topic: object) -> str:
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise ValueError(
            f"topics: {topic!r} is no topic's name; it takes up to 249 letters, digits, dots, dashes and "
            "underscores (a pattern is given as re.compile(...))"
        )
    return topic


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
