"""Topics that belong to one play, which changes them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from tests.kafka.differential.connections import Connections
from tests.kafka.differential.generator import TOPICS
from tests.kafka.differential.same_ids import share_a_bucket
from tests.support import wire_topics
from tests.support.wire_blocking import WireConnection

T = TypeVar("T")


class OwnTopics:
    """Changes return once the coordinators of all the play's groups know of them."""

    def __init__(self, connections: Connections, groups: Sequence[str]) -> None:
        self._connections = connections
        self._groups = groups
        self._connection: WireConnection | None = None
        self._there: set[str] = set()

    async def create(self, name: str, partitions: int) -> uuid.UUID:
        others = [self._connections.topic_id(each) for each in (*TOPICS, *self._there)]
        while True:
            ids = await self._blocking(
                lambda connection: wire_topics.create_topics(connection, {name: partitions})
            )
            if self._connections.ids.decides or not share_a_bucket(ids[name], others):
                break
            await self._blocking(lambda connection: wire_topics.delete_topic(connection, name))
        self._connections.know_topic(name, ids[name])
        self._there.add(name)
        await self._await_known({name: partitions})
        return ids[name]

    async def grow(self, name: str, partitions: int) -> None:
        await self._blocking(lambda connection: wire_topics.grow_topic(connection, name, partitions))
        await self._await_known({name: partitions})

    async def delete(self, name: str) -> None:
        await self._blocking(lambda connection: wire_topics.delete_topic(connection, name))
        self._there.discard(name)
        await self._await_known({name: 0})
        for group in self._groups:
            await self._blocking(
                lambda connection, group=group: wire_topics.await_no_offsets(connection, group, name)
            )

    async def await_look_ups(self, group: str, topic: str) -> None:
        """Wait until all regular expressions sent so far for `group` have been resolved."""
        await self._blocking(lambda connection: wire_topics.await_look_ups(connection, group, topic))

    async def close(self) -> None:
        """Delete the remaining topics."""
        for name in self._there:
            await self._blocking(lambda connection, name=name: wire_topics.delete_topic(connection, name))
        if self._connection is not None:
            self._connection.close()

    async def _await_known(self, partitions: Mapping[str, int]) -> None:
        for group in self._groups:
            await self._blocking(
                lambda connection, group=group: wire_topics.await_in_coordinator(
                    connection, group, partitions
                )
            )

    async def _blocking(self, ask: Callable[[WireConnection], T]) -> T:
        def asked() -> T:
            if self._connection is None:
                self._connection = WireConnection(*self._connections.address, "topics")
            return ask(self._connection)

        return await asyncio.to_thread(asked)
