"""Topics as Metadata describes them, encoded once and sent to every client that asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from uuid import UUID

from muster.coordinator.cluster.topology import Topology
from muster.coordinator.topics.catalogue import Topic

_BYTES_MAX: Final = 16_777_216
"""Total size of what is kept."""


class EncodedTopics:
    """What is known is valid for one topology, and for a topic as long as it is the same object: each is
    replaced when anything about it changes."""

    def __init__(self) -> None:
        self._topology: Topology | None = None
        self._known: dict[tuple[UUID, int], tuple[Topic, bytes]] = {}
        self._bytes = 0

    def of(self, topic: Topic, topology: Topology, version: int, encode: Callable[[Topic], bytes]) -> bytes:
        """The topic in a version of MetadataResponse; `encode` is called for what is not known."""
        if topology is not self._topology:
            self._topology = topology
            self._forget()
        key = topic.topic_id, version
        known = self._known.get(key)
        if known is not None and known[0] is topic:
            return known[1]
        encoded = encode(topic)
        if self._bytes + len(encoded) > _BYTES_MAX:
            self._forget()
        self._known[key] = topic, encoded
        self._bytes += len(encoded)
        return encoded

    def _forget(self) -> None:
        self._known.clear()
        self._bytes = 0
