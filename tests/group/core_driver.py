"""Plays scenarios against the core itself: it does what the server's handlers do, without sockets."""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

from muster.coordinator.base.step import RequestContext, Ticket
from muster.coordinator.group.config import GroupConfig, MigrationPolicy
from muster.coordinator.group.effects import Record, TopicsImage
from muster.coordinator.group.events import Event
from muster.coordinator.group.offsets import FetchOffsets
from muster.coordinator.group.shard import Shard
from muster.coordinator.server.apis import APIS
from muster.coordinator.server.apis.group_admin import deleted_group_error
from muster.protocol import codec
from muster.protocol.api import ApiKey, request_class, response_class
from muster.protocol.errors import KafkaError
from muster.protocol.message import Message
from muster.protocol.messages.consumer_group import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from muster.protocol.messages.group_admin import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from muster.protocol.messages.offsets import OffsetCommitRequest, OffsetFetchRequest, OffsetFetchResponse
from tests.group.harness import START_MS, Harness
from tests.group.scenario import Answer, Driver, Scenario

HOST = "/127.0.0.1"


class _Topic(NamedTuple):
    topic_id: uuid.UUID
    partitions: int


class _Asked(NamedTuple):
    actor: str
    connection_id: int
    api: ApiKey
    version: int
    request: Message


def topic_id(name: str) -> uuid.UUID:
    """The id of a topic until it is deleted and recreated."""
    return uuid.uuid5(uuid.NAMESPACE_OID, name)


def config_value(text: str) -> Any:
    """A setting's value as a scenario writes it."""
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    return MigrationPolicy(text) if text in set(MigrationPolicy) else tuple(text.split(","))


def group_config(settings: dict[str, str]) -> GroupConfig:
    """Translate Kafka's config names."""
    return GroupConfig(**{name.replace(".", "_"): config_value(value) for name, value in settings.items()})


class CoreDriver(Driver):
    """Requests and responses are encoded to bytes in their version, as on the wire."""

    def __init__(self, scenario: Scenario) -> None:
        self._settings = dict(scenario.config)
        self.harness = Harness(group_config(self._settings))
        self._topics: dict[str, _Topic] = {}
        self._deleted = 0
        for name, partitions in scenario.topics.items():
            self._topics[name] = _Topic(topic_id(name), partitions)
        if self._topics:
            self._tell_topics()
        self.since_ms = START_MS
        self._connection_ids = itertools.count(1)
        self._connections: dict[str, list[int]] = {}
        self._asked: dict[Ticket, _Asked] = {}
        self._immediate: list[Answer] = []

    def send(self, actor: str, api: ApiKey, version: int, message: Message) -> None:
        request = codec.decode(request_class(api), version, codec.encode(message, version))
        connection_id = self._free_connection(actor)
        context = RequestContext(version, actor, HOST, connection_id)
        handler = _HANDLERS.get(api)
        if handler is not None:
            response = handler(self, request, context)
            self._immediate.append(Answer(actor, api, version, _over_the_wire(response, api, version)))
            return
        if isinstance(request, OffsetCommitRequest):
            self._name_topics(request, message)
        ticket = self.harness.send(_OPERATIONS[api], request, context)
        self._asked[ticket] = _Asked(actor, connection_id, api, version, request)

    def _free_connection(self, actor: str) -> int:
        busy = {self._asked[ticket].connection_id for ticket in self.harness.open}
        connections = self._connections.setdefault(actor, [])
        for connection_id in connections:
            if connection_id not in busy:
                return connection_id
        connections.append(next(self._connection_ids))
        return connections[-1]

    def replies(self, expected: int) -> list[Answer]:
        answers, self._immediate = self._immediate, []
        for ticket in [ticket for ticket in self._asked if ticket in self.harness.answers]:
            asked = self._asked.pop(ticket)
            response = self.harness.answers[ticket]
            if isinstance(response, KafkaError):
                response = APIS[asked.api].refusal(asked.request, asked.version, response)
            if asked.api is ApiKey.JOIN_GROUP and response.protocol_name is None and asked.version < 7:
                response.protocol_name = ""
            # A client that hung up receives nothing.
            if asked.connection_id in self._connections[asked.actor]:
                wire = _over_the_wire(response, asked.api, asked.version)
                answers.append(Answer(asked.actor, asked.api, asked.version, wire))
        return answers

    def disconnect(self, actor: str) -> None:
        for connection_id in self._connections.pop(actor, ()):
            self.harness.disconnect(connection_id)
        self._connections[actor] = []

    def _name_topics(self, request: OffsetCommitRequest, sent: Message) -> None:
        """Do what the server does between the wire and the core: give each topic both its name and its id."""
        assert isinstance(sent, OffsetCommitRequest)
        for topic, named in zip(request.topics, sent.topics, strict=True):
            topic.name, topic.topic_id = named.name, self.topic_id(named.name)

    # --- topics ---------------------------------------------------------------------------------------------

    def topic_id(self, name: str) -> uuid.UUID:
        topic = self._topics.get(name)
        return topic_id(name) if topic is None else topic.topic_id

    def topic_name(self, topic_id: uuid.UUID) -> str:
        return next(name for name, topic in self._topics.items() if topic.topic_id == topic_id)

    def create_topic(self, topic: str, partitions: int) -> uuid.UUID:
        # A recreated topic has a different id.
        name = f"{topic} {self._deleted}" if self._deleted else topic
        self._topics[topic] = _Topic(topic_id(name), partitions)
        self._tell_topics()
        return self._topics[topic].topic_id

    def grow_topic(self, topic: str, partitions: int) -> None:
        self._topics[topic] = self._topics[topic]._replace(partitions=partitions)
        self._tell_topics()

    def delete_topic(self, topic: str) -> None:
        self._deleted += 1
        self._tell_topics((topic, self._topics.pop(topic).topic_id))

    def _tell_topics(self, *deleted: tuple[str, uuid.UUID]) -> None:
        self.harness.topics_changed(
            TopicsImage(
                frozenset(deleted),
                {name: topic.topic_id for name, topic in self._topics.items()},
                {name: topic.partitions for name, topic in self._topics.items()},
            )
        )

    # --- time -----------------------------------------------------------------------------------------------

    def advance(self, by_ms: int) -> None:
        self.harness.advance(by_ms)

    def reload(self) -> None:
        self._asked = {
            ticket: asked for ticket, asked in self._asked.items() if ticket not in self.harness.open
        }
        self.harness.reload(group_config(self._settings))
        if self._topics:
            self._tell_topics()

    def unload(self) -> None:
        self.harness.unload()

    def configure(self, name: str, value: str) -> None:
        self._settings[name] = value

    def take_events(self) -> list[Event]:
        return self.harness.take_events()

    def take_records(self) -> list[Record]:
        return self.harness.take_records()


def _over_the_wire(response: Message, api: ApiKey, version: int) -> Message:
    return codec.decode(response_class(api), version, codec.encode(response, version))


_OPERATIONS: dict[ApiKey, Any] = {
    ApiKey.JOIN_GROUP: Shard.join,
    ApiKey.SYNC_GROUP: Shard.sync,
    ApiKey.HEARTBEAT: Shard.heartbeat,
    ApiKey.LEAVE_GROUP: Shard.leave,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Shard.consumer_heartbeat,
    ApiKey.OFFSET_COMMIT: Shard.commit_offsets,
    ApiKey.OFFSET_DELETE: Shard.delete_offsets,
}


# --- requests about several groups --------------------------------------------------------------------------


def _fetch(driver: CoreDriver, request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse:
    if context.api_version < 8:
        topics = (
            None
            if request.topics is None
            else [
                OffsetFetchRequest.Group.Topics(
                    name=topic.name,
                    topic_id=driver.topic_id(topic.name),
                    partition_indexes=topic.partition_indexes,
                )
                for topic in request.topics
            ]
        )
        fetched: OffsetFetchResponse.Group = driver.harness.ask(
            Shard.fetch_offsets, FetchOffsets(request.group_id, topics, request.require_stable), context
        )
        return OffsetFetchResponse(
            topics=[
                OffsetFetchResponse.Topic(
                    name=topic.name,
                    partitions=[
                        OffsetFetchResponse.Topic.Partition(
                            partition_index=partition.partition_index,
                            committed_offset=partition.committed_offset,
                            committed_leader_epoch=partition.committed_leader_epoch,
                            metadata=partition.metadata,
                            error_code=partition.error_code,
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in fetched.topics
            ],
            error_code=fetched.error_code,
        )
    for group in request.groups:
        for topic in group.topics or ():
            topic.name = topic.name or driver.topic_name(topic.topic_id)
            topic.topic_id = driver.topic_id(topic.name)
    groups = [
        driver.harness.ask(
            Shard.fetch_offsets,
            FetchOffsets(
                group.group_id, group.topics, request.require_stable, group.member_id, group.member_epoch
            ),
            context,
        )
        for group in request.groups
    ]
    for group in groups:
        for topic in group.topics:
            topic.topic_id = driver.topic_id(topic.name)
    return OffsetFetchResponse(groups=groups)


def _describe(
    driver: CoreDriver, request: DescribeGroupsRequest, context: RequestContext
) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(
        groups=[driver.harness.ask(Shard.describe, group_id, context) for group_id in request.groups]
    )


def _describe_consumer(
    driver: CoreDriver, request: ConsumerGroupDescribeRequest, context: RequestContext
) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(
        groups=[
            driver.harness.ask(Shard.describe_consumer, group_id, context) for group_id in request.group_ids
        ]
    )


def _list(driver: CoreDriver, request: ListGroupsRequest, context: RequestContext) -> ListGroupsResponse:
    states = {state.lower() for state in request.states_filter}
    types = {group_type.lower() for group_type in request.types_filter}
    return ListGroupsResponse(
        groups=[
            group
            for group in driver.harness.ask(Shard.list_groups, None, context)
            if (not states or group.group_state.lower() in states)
            and (not types or group.group_type in types)
        ]
    )


def _delete(
    driver: CoreDriver, request: DeleteGroupsRequest, context: RequestContext
) -> DeleteGroupsResponse:
    results = []
    for group_id in request.groups_names:
        result = driver.harness.ask(Shard.delete_group, group_id, context)
        results.append(
            deleted_group_error(group_id, context.api_version, result)
            if isinstance(result, KafkaError)
            else result
        )
    return DeleteGroupsResponse(results=results)


_HANDLERS: dict[ApiKey, Callable[[CoreDriver, Any, RequestContext], Message]] = {
    ApiKey.OFFSET_FETCH: _fetch,
    ApiKey.DESCRIBE_GROUPS: _describe,
    ApiKey.CONSUMER_GROUP_DESCRIBE: _describe_consumer,
    ApiKey.LIST_GROUPS: _list,
    ApiKey.DELETE_GROUPS: _delete,
}
