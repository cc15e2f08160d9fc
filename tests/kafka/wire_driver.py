"""Plays scenarios over the wire against whatever listens there: Apache Kafka, or muster's own server."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Mapping
from types import TracebackType
from typing import Final, NamedTuple, Self

from muster.protocol.api import ApiKey
from muster.protocol.message import Message
from muster.protocol.messages.connection import ApiVersionsRequest, ApiVersionsResponse
from muster.protocol.messages.group_admin import DescribeGroupsRequest, DescribeGroupsResponse
from muster.protocol.messages.offsets import OffsetFetchRequest, OffsetFetchResponse
from tests.group.scenario import Answer, Driver
from tests.support.wire_blocking import WireConnection, readable
from tests.support.wire_topics import (
    await_coordinators,
    await_in_coordinator,
    await_look_ups,
    create_topics,
    delete_topic,
    grow_topic,
)

_REPLY_SECONDS_MAX: Final = 5.0
_QUESTIONS_TO_BE_SURE: Final = 3
_PAUSE_SECONDS: Final = 0.02  # between two checks of a fact


class _InFlight(NamedTuple):
    number: int
    """Requests are numbered in the order they are sent."""
    actor: str
    api: ApiKey
    version: int


class WireDriver(Driver):
    """A connection per actor and request in flight; the actor's name is the client id.

    Nothing says that a request without a reply has been *parked* rather than not yet looked at. So after each
    step the driver describes its groups, on a separate connection and several times in a row: brokers take
    requests in the order in which they arrive, and a group's requests in that order too. So an answer to the
    second query means that everything before the first has taken effect, and an answer to the third that any
    reply this caused has been sent.
    """

    def __init__(self, host: str, port: int, partitions: Mapping[str, int], group_id: str) -> None:
        """Creates the topics of `partitions`, and waits for the coordinator of the group `group_id`."""
        self._address = (host, port)
        self._connections: dict[str, list[WireConnection]] = {}
        self._in_flight: dict[WireConnection, _InFlight] = {}
        self._numbers = itertools.count()
        self._group_id = group_id
        self._groups = {group_id}
        self._speaks_consumer = False
        self._looks_up = False
        """Whether anybody has subscribed by regular expression: then any heartbeat may trigger a look-up."""
        self._control = self._connect("control")
        try:
            self._partitions = dict(partitions)
            self._topic_ids = create_topics(self._control, partitions) if partitions else {}
            await_coordinators(self._control, [group_id])
        except BaseException:
            self._control.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disconnect_all()

    def topic_id(self, name: str) -> uuid.UUID:
        """The id of a topic by its real name; for a name without a topic, an id that no topic has."""
        return self._topic_ids.setdefault(name, uuid.uuid4())

    # --- Driver ---

    def send(self, actor: str, api: ApiKey, version: int, message: Message) -> None:
        group_id = getattr(message, "group_id", "")
        if group_id and group_id not in self._groups:
            await_coordinators(self._control, [group_id])
            self._groups.add(group_id)
        if api is ApiKey.CONSUMER_GROUP_HEARTBEAT and not self._speaks_consumer:
            self._speaks_consumer = True
            self._await_known(self._partitions)
        self._looks_up |= bool(getattr(message, "subscribed_topic_regex", None))
        connection = self._idle_connection(actor)
        connection.send(message, version)
        self._in_flight[connection] = _InFlight(next(self._numbers), actor, api, version)

    def replies(self, expected: int) -> list[Answer]:
        deadline = time.monotonic() + _REPLY_SECONDS_MAX
        arrived: dict[int, Answer] = {}
        while len(arrived) < expected and time.monotonic() < deadline:
            self._receive(arrived, deadline - time.monotonic())
        self.see_all_done()
        if self._looks_up:
            topic = next(name for name, partitions in self._partitions.items() if partitions)
            await_look_ups(self._control, self._group_id, topic)
        while self._receive(arrived, 0):
            pass
        return [arrived[number] for number in sorted(arrived)]

    def disconnect(self, actor: str) -> None:
        for connection in self._connections.pop(actor, ()):
            self._in_flight.pop(connection, None)
            connection.close()

    def create_topic(self, topic: str, partitions: int) -> uuid.UUID:
        self._topic_ids |= create_topics(self._control, {topic: partitions})
        self._partitions[topic] = partitions
        self._await_known({topic: partitions})
        return self._topic_ids[topic]

    def grow_topic(self, topic: str, partitions: int) -> None:
        grow_topic(self._control, topic, partitions)
        self._partitions[topic] = partitions
        self._await_known({topic: partitions})

    def delete_topic(self, topic: str) -> None:
        delete_topic(self._control, topic)
        self._partitions[topic] = 0
        if self._speaks_consumer:
            self._await_known({topic: 0})
        # Its coordinators learn of it later. One that keeps the offsets is left to the next step to report.
        deadline = time.monotonic() + _REPLY_SECONDS_MAX
        while self._has_offsets(topic) and time.monotonic() < deadline:
            time.sleep(_PAUSE_SECONDS)

    def _await_known(self, partitions: Mapping[str, int]) -> None:
        await_in_coordinator(self._control, self._group_id, partitions)

    # --- what drivers of a broker of ours need besides ---

    def see_all_done(self) -> None:
        """Return when all requests so far have taken effect, apart from parked ones."""
        for _ in range(_QUESTIONS_TO_BE_SURE):
            self._control.call(DescribeGroupsRequest(groups=sorted(self._groups)), 5, DescribeGroupsResponse)

    def disconnect_all(self) -> None:
        for actor in list(self._connections):
            self.disconnect(actor)
        self._control.close()

    def reconnect(self) -> None:
        """Resume after `disconnect_all`, once the coordinators answer again."""
        self._control = self._connect("control")
        await_coordinators(self._control, sorted(self._groups))
        if self._speaks_consumer:
            self._await_known(self._partitions)

    # --- ---

    def _connect(self, client_id: str) -> WireConnection:
        connection = WireConnection(*self._address, client_id)
        # A broker accepts connections in parallel: before this answer, others could overtake it.
        connection.call(ApiVersionsRequest(), 0, ApiVersionsResponse)
        return connection

    def _idle_connection(self, actor: str) -> WireConnection:
        connections = self._connections.setdefault(actor, [])
        for connection in connections:
            if not connection.in_flight:
                return connection
        connections.append(self._connect(actor))
        return connections[-1]

    def _receive(self, arrived: dict[int, Answer], seconds: float) -> bool:
        """Take in available replies after waiting for the first one; returns whether there was any."""
        ready = readable(self._in_flight, seconds)
        for connection in ready:
            asked = self._in_flight.pop(connection)
            response = connection.receive()
            arrived[asked.number] = Answer(asked.actor, asked.api, asked.version, response)
        return bool(ready)

    def _has_offsets(self, topic: str) -> bool:
        groups = [OffsetFetchRequest.Group(group_id=group_id, topics=None) for group_id in self._groups]
        fetched = self._control.call(OffsetFetchRequest(groups=groups), 8, OffsetFetchResponse)
        return any(found.name == topic for group in fetched.groups for found in group.topics)
