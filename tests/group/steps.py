"""Turns a scenario's step into the request it sends."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from muster.protocol.api import ApiKey, versions
from muster.protocol.message import Message
from muster.protocol.messages.classic_group import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from muster.protocol.messages.consumer_group import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)
from muster.protocol.messages.group_admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from muster.protocol.messages.offsets import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from tests.group import blobs
from tests.group.cast import Actor, Cast
from tests.group.scenario import Scenario, ScenarioError, Step, milliseconds

_FLAGS = {"as-simple", "as-member", "all", "stable"}
_UNSAID = "unsaid"
_ASSIGNED = "assigned"
_MEMBERS_MAKE_IDS_FROM = 1

TopicIds = Callable[[str], uuid.UUID]


def request(scenario: Scenario, step: Step, cast: Cast, topic_id: TopicIds) -> tuple[ApiKey, int, Message]:
    """The request a step sends, with its version. `topic_id` returns a (real) topic's id."""
    assert step.actor is not None
    try:
        api, build = _VERBS[step.verb]
    except KeyError:
        raise ScenarioError(f"{step}: no such verb") from None
    low, high = versions(api)
    version = high if step.version is None else step.version
    if not low <= version <= high:
        raise ScenarioError(f"{step}: {api.name} has versions {low} to {high}")
    actor = cast.actors[step.actor]
    if "instance" in step.options:
        instance = step.options["instance"]
        actor.instance_id = None if instance == "none" else instance
    return api, version, build(_Words(scenario, step, actor, cast, version, topic_id))


class _Words:
    """A step's words, with what the actor remembers filling in for omitted ones."""

    def __init__(
        self, scenario: Scenario, step: Step, actor: Actor, cast: Cast, version: int, topic_id: TopicIds
    ) -> None:
        self.scenario = scenario
        self.step = step
        self.actor = actor
        self.cast = cast
        self.version = version
        self.topic_id = topic_id

    def option(self, name: str, default: str) -> str:
        return self.step.options.get(name, default)

    @property
    def group_id(self) -> str:
        name = self.option("group", self.scenario.group)
        return "" if name == "none" else self.cast.real(name)

    @property
    def group_ids(self) -> list[str]:
        return [self.cast.real(name) for name in self.step.arguments or [self.scenario.group]]

    @property
    def member_id(self) -> str:
        word = self.step.options.get("member")
        return self.actor.member_id if word is None else self.cast.member_id(word)

    def instance_id(self, since: int) -> str | None:
        return self.actor.instance_id if self.version >= since else None

    @property
    def generation_id(self) -> int:
        return int(self.option("generation", str(self.actor.generation_id)))

    def nullable(self, name: str, default: str | None) -> str | None:
        word = self.step.options.get(name)
        if word is None:
            return default
        return None if word == "none" else word

    def partitions(self) -> dict[str, list[tuple[int, str]]]:
        """`orders-0=42` -> {"orders": [(0, "42")]}, with real topic names."""
        found: dict[str, list[tuple[int, str]]] = {}
        for word in self.step.arguments:
            if word in _FLAGS:
                continue
            name, _, value = word.partition("=")
            topic, index = blobs.partition(name)
            found.setdefault(self.cast.real(topic), []).append((index, value))
        return found

    def id_of(self, topic: str) -> uuid.UUID:
        topic_id = self.topic_id(topic)
        self.cast.know_topic(topic, topic_id)
        return topic_id

    def listed(self, name: str, default: list[str] | None) -> list[str] | None:
        """`a,b`, `none` for an empty list, `unsaid` for null."""
        word = self.step.options.get(name)
        if word is None:
            return default
        if word == _UNSAID:
            return None
        return [] if word == "none" else word.split(",")

    def owned(self, default: list[str] | None) -> list[str] | None:
        """The partitions that the member reports as owned."""
        if self.step.options.get("owned") == _ASSIGNED:
            return self.actor.assigned
        return self.listed("owned", default)

    def flag(self, name: str) -> bool:
        return name in self.step.arguments


def _join(words: _Words) -> JoinGroupRequest:
    if "raw" in words.step.options:
        metadata = words.option("raw", "").encode()
    else:
        topics = words.option("topics", "")
        user_data = words.step.options.get("userdata")
        owned = words.owned([]) or []
        metadata = blobs.subscription(topics.split(",") if topics else [], user_data, words.cast, owned)
    protocols: list[JoinGroupRequest.Protocol] = []
    offered = words.option("protocols", "range")
    for protocol in offered.split(",") if offered != "none" else []:
        name, _, own_topics = protocol.partition(":")
        own = blobs.subscription(own_topics.split("+"), None, words.cast) if own_topics else metadata
        protocols.append(JoinGroupRequest.Protocol(name=name, metadata=own))
    protocol_type = words.option("type", "consumer")
    words.actor.protocol_type = protocol_type
    return JoinGroupRequest(
        group_id=words.group_id,
        session_timeout_ms=milliseconds(words.option("session", "45s")),
        rebalance_timeout_ms=milliseconds(words.option("rebalance", "5m")),
        member_id=words.member_id,
        group_instance_id=words.instance_id(since=5),
        protocol_type="" if protocol_type == "none" else protocol_type,
        protocols=protocols,
        reason=words.step.options.get("reason"),
    )


def _sync(words: _Words) -> SyncGroupRequest:
    assignments: list[SyncGroupRequest.Assignment] = []
    for word in words.step.arguments:
        member, _, assigned = word.partition("=")
        assignments.append(
            SyncGroupRequest.Assignment(
                member_id=words.cast.member_id(member), assignment=blobs.assignment(assigned, words.cast)
            )
        )
    return SyncGroupRequest(
        group_id=words.group_id,
        generation_id=words.generation_id,
        member_id=words.member_id,
        group_instance_id=words.instance_id(since=3),
        protocol_type=words.nullable("type", words.actor.protocol_type or "consumer"),
        protocol_name=words.nullable("protocol", words.actor.protocol_name or "range"),
        assignments=assignments,
    )


def _heartbeat(words: _Words) -> HeartbeatRequest:
    return HeartbeatRequest(
        group_id=words.group_id,
        generation_id=words.generation_id,
        member_id=words.member_id,
        group_instance_id=words.instance_id(since=3),
    )


def _beat(words: _Words) -> ConsumerGroupHeartbeatRequest:
    epoch = int(words.option("epoch", str(max(words.actor.generation_id, 0))))
    joins = epoch == 0
    member_id = words.member_id
    if "member" not in words.step.options and words.version >= _MEMBERS_MAKE_IDS_FROM:
        member_id = words.cast.own_id(words.actor)
    topics = words.listed("topics", None)
    regex = words.step.options.get("regex")
    if regex:
        regex = words.cast.real(regex)
    owned = words.owned([] if joins else None)
    rebalance = words.option("rebalance", "5m" if joins else _UNSAID)
    by_topic: dict[str, list[int]] = {}
    for word in owned or ():
        topic, index = blobs.partition(word)
        by_topic.setdefault(topic, []).append(index)
    return ConsumerGroupHeartbeatRequest(
        group_id=words.group_id,
        member_id=member_id,
        member_epoch=epoch,
        instance_id=words.actor.instance_id,
        rack_id=words.step.options.get("rack"),
        rebalance_timeout_ms=-1 if rebalance == _UNSAID else milliseconds(rebalance),
        subscribed_topic_names=None if topics is None else [words.cast.real(topic) for topic in topics],
        subscribed_topic_regex=regex,
        server_assignor=words.step.options.get("assignor"),
        topic_partitions=None
        if owned is None
        else [
            ConsumerGroupHeartbeatRequest.TopicPartitions(
                topic_id=words.id_of(words.cast.real(topic)), partitions=partitions
            )
            for topic, partitions in by_topic.items()
        ],
    )


def _leave(words: _Words) -> LeaveGroupRequest:
    if words.version < 3:
        return LeaveGroupRequest(group_id=words.group_id, member_id=words.member_id)
    leavers: list[tuple[str, str | None]] = []
    for word in words.step.arguments:
        member, _, instance = word.partition("/")
        leavers.append((words.cast.member_id(member), instance or None))
    return LeaveGroupRequest(
        group_id=words.group_id,
        members=[
            LeaveGroupRequest.MemberIdentity(
                member_id=member_id, group_instance_id=instance_id, reason=words.step.options.get("reason")
            )
            for member_id, instance_id in leavers or [(words.member_id, words.actor.instance_id)]
        ],
    )


def _commit(words: _Words) -> OffsetCommitRequest:
    simple = words.flag("as-simple")
    metadata: str | None = words.option("metadata", "")
    if "metadata-length" in words.step.options:
        metadata = words.option("metadata-character", "x") * int(words.option("metadata-length", ""))
    if metadata == "none":
        metadata = None
    topics: list[OffsetCommitRequest.Topic] = []
    for topic, partitions in words.partitions().items():
        offsets: list[OffsetCommitRequest.Topic.Partition] = []
        for index, value in partitions:
            offset, _, epoch = value.partition("@")
            offsets.append(
                OffsetCommitRequest.Topic.Partition(
                    partition_index=index,
                    committed_offset=int(offset),
                    committed_leader_epoch=int(epoch) if epoch else -1,
                    committed_metadata=metadata,
                )
            )
        topics.append(OffsetCommitRequest.Topic(name=topic, topic_id=words.id_of(topic), partitions=offsets))
    retention = words.step.options.get("retention")
    return OffsetCommitRequest(
        group_id=words.group_id,
        generation_id_or_member_epoch=-1 if simple else words.generation_id,
        member_id="" if simple else words.member_id,
        group_instance_id=None if simple else words.instance_id(since=7),
        retention_time_ms=-1 if retention is None else milliseconds(retention),
        topics=topics,
    )


def _fetch(words: _Words) -> OffsetFetchRequest:
    stable = words.flag("stable")
    everything = words.flag("all")
    speaks = words.flag("as-member")
    wanted = {topic: [index for index, _ in found] for topic, found in words.partitions().items()}
    if words.version < 8:
        return OffsetFetchRequest(
            group_id=words.group_id,
            topics=None
            if everything
            else [
                OffsetFetchRequest.Topic(name=topic, partition_indexes=indexes)
                for topic, indexes in wanted.items()
            ],
            require_stable=stable,
        )
    return OffsetFetchRequest(
        groups=[
            OffsetFetchRequest.Group(
                group_id=words.group_id,
                member_id=words.member_id if speaks else None,
                member_epoch=words.generation_id if speaks else -1,
                topics=None
                if everything
                else [
                    OffsetFetchRequest.Group.Topics(
                        name=topic, topic_id=words.id_of(topic), partition_indexes=indexes
                    )
                    for topic, indexes in wanted.items()
                ],
            )
        ],
        require_stable=stable,
    )


def _delete_offsets(words: _Words) -> OffsetDeleteRequest:
    return OffsetDeleteRequest(
        group_id=words.group_id,
        topics=[
            OffsetDeleteRequest.Topic(
                name=topic,
                partitions=[
                    OffsetDeleteRequest.Topic.Partition(partition_index=index) for index, _ in partitions
                ],
            )
            for topic, partitions in words.partitions().items()
        ],
    )


def _describe(words: _Words) -> DescribeGroupsRequest:
    return DescribeGroupsRequest(groups=words.group_ids)


def _describe_consumer(words: _Words) -> ConsumerGroupDescribeRequest:
    return ConsumerGroupDescribeRequest(group_ids=words.group_ids, include_authorized_operations=False)


def _list(words: _Words) -> ListGroupsRequest:
    states, types = words.option("states", ""), words.option("types", "")
    return ListGroupsRequest(
        states_filter=states.split(",") if states else [], types_filter=types.split(",") if types else []
    )


def _delete_group(words: _Words) -> DeleteGroupsRequest:
    return DeleteGroupsRequest(groups_names=words.group_ids)


_VERBS: dict[str, tuple[ApiKey, Callable[[_Words], Message]]] = {
    "join": (ApiKey.JOIN_GROUP, _join),
    "sync": (ApiKey.SYNC_GROUP, _sync),
    "heartbeat": (ApiKey.HEARTBEAT, _heartbeat),
    "beat": (ApiKey.CONSUMER_GROUP_HEARTBEAT, _beat),
    "leave": (ApiKey.LEAVE_GROUP, _leave),
    "commit": (ApiKey.OFFSET_COMMIT, _commit),
    "fetch": (ApiKey.OFFSET_FETCH, _fetch),
    "delete-offsets": (ApiKey.OFFSET_DELETE, _delete_offsets),
    "describe": (ApiKey.DESCRIBE_GROUPS, _describe),
    "describe-consumer": (ApiKey.CONSUMER_GROUP_DESCRIBE, _describe_consumer),
    "list": (ApiKey.LIST_GROUPS, _list),
    "delete-group": (ApiKey.DELETE_GROUPS, _delete_group),
}
