"""What a shard knows about existing topics."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

from muster.coordinator.group.effects import TopicsDifference, TopicsImage
from muster.protocol.types import ZERO_UUID


def compared(image: TopicsImage, before: TopicsImage | None) -> TopicsImage:
    """The image with how it differs from the one before, if both list the topics: many shards take it."""
    if before is None or before.live is None or before.partitions is None:
        return image
    if image.live is None or image.partitions is None:
        return image
    changed = _changed(before.live, before.partitions, image.live, image.partitions)
    return image._replace(since=TopicsDifference(before.live, before.partitions, changed, _names(image.live)))


def _changed(
    before_ids: Mapping[str, uuid.UUID],
    before: Mapping[str, int],
    ids: Mapping[str, uuid.UUID],
    partitions: Mapping[str, int],
) -> frozenset[str]:
    """The names whose topic or partition count differs."""
    return frozenset(
        name
        for name in before_ids.keys() | ids.keys()
        if before_ids.get(name) != ids.get(name) or before.get(name) != partitions.get(name)
    )


def _names(ids: Mapping[str, uuid.UUID]) -> dict[uuid.UUID, str]:
    return {topic_id: name for name, topic_id in ids.items()}


class Topics:
    """The topics as of the last image that listed them."""

    __slots__ = ("added", "ids", "is_listed", "names", "partitions", "version")

    def __init__(self) -> None:
        self.partitions: Mapping[str, int] | None = None
        """Partition count of each topic; None: not known yet."""
        self.is_listed = False
        """Whether an image has listed the topics."""
        self.ids: Mapping[str, uuid.UUID] = {}
        self.names: Mapping[uuid.UUID, str] = {}
        self.version = 0
        """How often the topics have changed."""
        self.added = 0
        """The latest version that added topics."""

    def take(self, image: TopicsImage) -> frozenset[str]:
        """Remember an image. Returns the names whose topic or partition count has changed."""
        before_ids, before, since = self.ids, self.partitions, image.since
        if image.partitions is not None:
            self.partitions = image.partitions
        if image.live is not None:
            self.is_listed = True
            self.ids = image.live
            self.names = _names(image.live) if since is None else since.names
        if since is not None and since.live is before_ids and since.partitions is before:
            changed = since.changed
        else:
            changed = _changed(before_ids, before or {}, self.ids, self.partitions or {})
        if changed:
            self.version += 1
            if any(before_ids.get(name) != self.ids[name] for name in changed if name in self.ids):
                self.added = self.version
        return changed

    def has(self, name: str, topic_id: uuid.UUID) -> bool:
        """Whether the topic exists; without an id (zero), whether one of that name does."""
        known = self.ids.get(name)
        return known is not None and (known is topic_id or topic_id in (known, ZERO_UUID))

    def count(self, topic_id: uuid.UUID) -> int:
        """Partition count of a topic; 0: there is no such topic."""
        name = self.names.get(topic_id)
        return 0 if name is None else (self.partitions or {}).get(name, 0)

    def ids_of(self, names: Iterable[str]) -> set[uuid.UUID]:
        """The ids of the named topics that exist."""
        ids = self.ids
        return {ids[name] for name in names if name in ids}
