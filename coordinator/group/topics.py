"""What a shard knows about existing topics."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

from muster.coordinator.group.effects import TopicsImage


class Topics:
    """The topics as of the last image that listed them."""

    __slots__ = ("added", "ids", "names", "partitions", "version")

    def __init__(self) -> None:
        self.partitions: Mapping[str, int] | None = None
        """Partition count of each topic; None: not known yet."""
        self.ids: Mapping[str, uuid.UUID] = {}
        self.names: Mapping[uuid.UUID, str] = {}
        self.version = 0
        """How often the topics have changed."""
        self.added = 0
        """The latest version that added topics."""

    def take(self, image: TopicsImage) -> frozenset[str]:
        """Remember an image. Returns the names whose topic or partition count has changed."""
        before_ids, before = self.ids, self.partitions or {}
        if image.partitions is not None:
            self.partitions = image.partitions
        if image.live is not None:
            self.ids = image.live
            self.names = {topic_id: name for name, topic_id in image.live.items()}
        after = self.partitions or {}
        changed = frozenset(
            name
            for name in before_ids.keys() | self.ids.keys()
            if before_ids.get(name) != self.ids.get(name) or before.get(name) != after.get(name)
        )
        if changed:
            self.version += 1
            if any(before_ids.get(name) != self.ids[name] for name in changed if name in self.ids):
                self.added = self.version
        return changed

    def count(self, topic_id: uuid.UUID) -> int:
        """Partition count of a topic; 0: there is no such topic."""
        name = self.names.get(topic_id)
        return 0 if name is None else (self.partitions or {}).get(name, 0)

    def ids_of(self, names: Iterable[str]) -> set[uuid.UUID]:
        """The ids of the named topics that exist."""
        ids = self.ids
        return {ids[name] for name in names if name in ids}
