"""What a request is about: the groups, topics and members that it names, for every API served.

A topic is named by its name or, in newer versions, by its id; a request for all topics (a null list) names
every one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple
from uuid import UUID

from muster.protocol.api import ApiKey
from muster.protocol.message import Message
from muster.protocol.messages.configs import ResourceType
from muster.protocol.types import ZERO_UUID

_GROUP_KEYS: Final = 0
"""FindCoordinator's key type of groups."""

Name = str | UUID


class Listed(NamedTuple):
    """A list of a request, and what each of its elements is about (None: nothing of this kind)."""

    attribute: str
    name_of: Callable[[Any], Name | None]


class Names(NamedTuple):
    """Where the requests of an API name what they are about."""

    group: bool = False
    """In `group_id`, unless that is empty."""
    groups: Listed | None = None
    topics: tuple[Listed, ...] = ()
    topics_in_groups: bool = False
    """Each of the groups lists topics of its own."""
    members: bool = False
    """In `member_id` and `group_instance_id`."""


def _by(attribute: str) -> Callable[[Any], Name | None]:
    """By name, or by id where there is one."""

    def name_of(element: Any) -> Name | None:
        topic_id = getattr(element, "topic_id", ZERO_UUID)
        name: str | None = getattr(element, attribute)
        return name if topic_id == ZERO_UUID else topic_id

    return name_of


def _itself(element: str) -> Name:
    return element


def _topic_resource(resource: Any) -> Name | None:
    return str(resource.resource_name) if resource.resource_type == ResourceType.TOPIC else None


_TOPICS: Final = Listed("topics", _by("name"))
_TOPICS_BY_TOPIC: Final = Listed("topics", _by("topic"))
_RESOURCES: Final = Listed("resources", _topic_resource)

NAMES: Final[dict[ApiKey, Names]] = {
    ApiKey.PRODUCE: Names(topics=(Listed("topic_data", _by("name")),)),
    ApiKey.FETCH: Names(topics=(_TOPICS_BY_TOPIC,)),
    ApiKey.LIST_OFFSETS: Names(topics=(_TOPICS,)),
    ApiKey.METADATA: Names(topics=(_TOPICS,)),
    ApiKey.OFFSET_COMMIT: Names(group=True, topics=(_TOPICS,), members=True),
    ApiKey.OFFSET_FETCH: Names(
        group=True, groups=Listed("groups", _by("group_id")), topics=(_TOPICS,), topics_in_groups=True
    ),
    ApiKey.FIND_COORDINATOR: Names(groups=Listed("coordinator_keys", _itself)),
    ApiKey.JOIN_GROUP: Names(group=True, members=True),
    ApiKey.HEARTBEAT: Names(group=True, members=True),
    ApiKey.LEAVE_GROUP: Names(group=True, members=True),
    ApiKey.SYNC_GROUP: Names(group=True, members=True),
    ApiKey.DESCRIBE_GROUPS: Names(groups=Listed("groups", _itself)),
    ApiKey.CREATE_TOPICS: Names(topics=(_TOPICS,)),
    ApiKey.DELETE_TOPICS: Names(topics=(_TOPICS, Listed("topic_names", _itself))),
    ApiKey.DELETE_RECORDS: Names(topics=(_TOPICS,)),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Names(topics=(_TOPICS_BY_TOPIC,)),
    ApiKey.CREATE_PARTITIONS: Names(topics=(_TOPICS,)),
    ApiKey.DESCRIBE_CONFIGS: Names(topics=(_RESOURCES,)),
    ApiKey.ALTER_CONFIGS: Names(topics=(_RESOURCES,)),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Names(topics=(_RESOURCES,)),
    ApiKey.DELETE_GROUPS: Names(groups=Listed("groups_names", _itself)),
    ApiKey.OFFSET_DELETE: Names(group=True, topics=(_TOPICS,)),
    ApiKey.DESCRIBE_LOG_DIRS: Names(topics=(_TOPICS_BY_TOPIC,)),
    ApiKey.ELECT_LEADERS: Names(topics=(Listed("topic_partitions", _by("topic")),)),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Names(topics=(_TOPICS,)),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Names(topics=(_TOPICS,)),
    ApiKey.DESCRIBE_PRODUCERS: Names(topics=(_TOPICS,)),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Names(topics=(_TOPICS,)),
}
"""The others (ApiVersions, DescribeCluster, ListGroups, ...) name nothing."""

_NOTHING: Final = Names()


def names(api_key: int) -> Names:
    """Where the requests of the API name what they are about."""
    return NAMES.get(api_key, _NOTHING)  # type: ignore[call-overload,no-any-return]


def groups(api_key: int, request: Any) -> list[str]:
    """The groups named, in the request's order."""
    where = names(api_key)
    named = [request.group_id] if where.group and request.group_id else []
    if api_key == ApiKey.FIND_COORDINATOR:
        if request.key_type != _GROUP_KEYS:
            return []
        named += [request.key] if request.key else []
    if where.groups is not None:
        named += map(where.groups.name_of, getattr(request, where.groups.attribute))
    return named


def topics(api_key: int, version: int, request: Any) -> list[Name] | None:
    """The topics named, in the request's order; None: all that there are."""
    where = names(api_key)
    named: list[Name] = []
    for holder in (request, *(request.groups if where.topics_in_groups else ())):
        for listed in where.topics:
            elements = getattr(holder, listed.attribute, ())
            # Metadata v0 has no null: its empty list asks for all topics.
            if elements is None or (api_key == ApiKey.METADATA and version == 0 and not elements):
                return None
            named += _of(listed, elements)
    return named


def members(api_key: int, request: Any) -> list[str]:
    """The member ids and group instance ids named."""
    if not names(api_key).members:
        return []
    holders = (request, *getattr(request, "members", ()))
    found = (getattr(holder, each, None) for holder in holders for each in ("member_id", "group_instance_id"))
    return [each for each in found if each]


def _of(listed: Listed, elements: Iterable[Message]) -> list[Name]:
    return [name for name in map(listed.name_of, elements) if name is not None]
