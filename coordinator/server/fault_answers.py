"""Where an error code that a fault answers stands in the response: at the group, topic or partition that the
rule names, in the shape of the API and version, and nowhere else.

What else the request asks is done and answered as always. Where Kafka has a code both for the whole response
and for parts of it, `_PARTS` says which codes belong to the parts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from functools import partial
from typing import Any, Final

from muster.coordinator.server import refusals, request_names
from muster.coordinator.server.connection import CloseConnection
from muster.coordinator.server.faults import About, Rule
from muster.coordinator.server.handlers.connection import unsupported_api_versions
from muster.coordinator.server.request_names import Listed
from muster.protocol.api import ApiKey, versions
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.message import Message
from muster.protocol.messages.classic_group import LeaveGroupResponse
from muster.protocol.messages.metadata import MetadataResponse
from muster.protocol.messages.offsets import OffsetDeleteResponse, OffsetFetchResponse

Handle = Callable[[Message], Awaitable["Message | None"]]
"""Does what a request asks."""

_FETCH_SESSION_CODES: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
_FETCH_OF_PARTITIONS: Final = 6
"""The last version of Fetch without a code for the whole response."""
_LEAVE_OF_MEMBERS_FROM: Final = 3
_PARTS: Final[dict[ApiKey, frozenset[ErrorCode]]] = {
    ApiKey.OFFSET_FETCH: frozenset(
        {
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            ErrorCode.UNSTABLE_OFFSET_COMMIT,
            ErrorCode.UNKNOWN_TOPIC_ID,
        }
    ),
    ApiKey.OFFSET_DELETE: frozenset(
        {
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        }
    ),
    ApiKey.LEAVE_GROUP: frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}),
}


def carries(about: About, rule: Rule) -> bool:
    """Whether the answer has a place for the code: a Metadata request that names no topic, as clients send
    them for the brokers alone, has none."""
    if about.api_key != ApiKey.METADATA or _code(rule) is ErrorCode.REBOOTSTRAP_REQUIRED:
        return True
    return request_names.topics(about.api_key, about.version, about.request) != []


async def refused(about: About, rule: Rule, why: str, handle: Handle) -> tuple[Message, int]:
    """The answer with the rule's error, and the version to write it in. Raises CloseConnection where the
    protocol has no answer (Produce with acks=0)."""
    api_key, version, request = about.api_key, about.version, about.request
    code = _code(rule)
    error = KafkaError(code, why)
    if api_key == ApiKey.API_VERSIONS and code is ErrorCode.UNSUPPORTED_VERSION:
        return unsupported_api_versions(versions(api_key).last + 1)
    if api_key == ApiKey.PRODUCE and request.acks == 0:
        raise CloseConnection(f"a Produce with acks=0 failed: {error}")
    if api_key == ApiKey.METADATA and code is not ErrorCode.REBOOTSTRAP_REQUIRED:
        return await _metadata(about, rule, code, handle), version
    if api_key == ApiKey.OFFSET_FETCH and code in _PARTS[api_key]:
        return await _offset_fetch(about, rule, code, handle), version
    chosen, rest = _divided(about, rule)
    answer = _refusal(api_key, version, chosen, error)
    if rest is not None:
        if api_key == ApiKey.FETCH:
            rest.max_wait_ms = 0  # as Kafka, which does not wait for records where it has an error to tell
        others = await handle(rest)
        if others is not None:
            _join(others, answer)
            return others, version
    return answer, version


def _code(rule: Rule) -> ErrorCode:
    return ErrorCode(rule.action.amount)  # type: ignore[call-arg]


# --- dividing a request -------------------------------------------------------------------------------------


def _divided(about: About, rule: Rule) -> tuple[Any, Any | None]:
    """The request as far as the rule names it, and the rest of it; None when nothing is left, or when the
    error is one of the whole answer."""
    where = request_names.names(about.api_key)
    if about.api_key == ApiKey.FETCH and _code(rule) in _FETCH_SESSION_CODES:
        return about.request, None
    lists: tuple[Listed, ...] = ()
    is_chosen: Callable[[Listed, Any], bool] = partial(_of_topic, about, rule)
    if where.groups is not None:
        lists, is_chosen = (where.groups,), partial(_of_group, about, rule)
    elif rule.topic is not None and (about.api_key not in _PARTS or _code(rule) in _PARTS[about.api_key]):
        lists = where.topics
    chosen, rest, left = copy(about.request), copy(about.request), 0
    for listed in lists:
        elements = getattr(about.request, listed.attribute)
        if elements is None:
            return about.request, None  # all there are
        setattr(chosen, listed.attribute, [each for each in elements if is_chosen(listed, each)])
        others = [each for each in elements if not is_chosen(listed, each)]
        setattr(rest, listed.attribute, others)
        left += len(others)
    return chosen, rest if left else None


def _of_topic(about: About, rule: Rule, listed: Listed, element: Any) -> bool:
    return rule.topic is not None and about.is_topic(listed.name_of(element), rule.topic)


def _of_group(about: About, rule: Rule, listed: Listed, element: Any) -> bool:
    if rule.group not in (None, listed.name_of(element)):
        return False
    if rule.topic is None or isinstance(element, str) or element.topics is None:
        return True
    (topics,) = request_names.names(about.api_key).topics
    return any(_of_topic(about, rule, topics, each) for each in element.topics)


def _join(answer: Message, refused_part: Message) -> None:
    """Add the refused elements to those of the answer to the rest."""
    for declared in type(answer).__fields__:
        ours = getattr(answer, declared.name)
        theirs = getattr(refused_part, declared.name)
        if isinstance(ours, list) and isinstance(theirs, list):
            setattr(answer, declared.name, ours + theirs)


# --- shapes -------------------------------------------------------------------------------------------------


def _refusal(api_key: ApiKey, version: int, request: Any, error: KafkaError) -> Message:
    if api_key == ApiKey.FETCH and error.code not in _FETCH_SESSION_CODES:
        version = min(version, _FETCH_OF_PARTITIONS)
    elif error.code in _PARTS.get(api_key, ()):
        if api_key == ApiKey.OFFSET_DELETE:
            return _offset_delete(request, error)
        if api_key == ApiKey.LEAVE_GROUP and version >= _LEAVE_OF_MEMBERS_FROM:
            return _leave_group(request, error)
    return refusals.REFUSALS[api_key](request, version, error)


def _offset_delete(request: Any, error: KafkaError) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponse.Topic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponse.Partition(
                        partition_index=each.partition_index, error_code=error.code
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _leave_group(request: Any, error: KafkaError) -> LeaveGroupResponse:
    return LeaveGroupResponse(
        members=[
            LeaveGroupResponse.MemberResponse(
                member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=error.code
            )
            for each in request.members
        ]
    )


async def _metadata(about: About, rule: Rule, code: ErrorCode, handle: Handle) -> Message:
    """The brokers as they are, since a client without them has nobody to ask again, and the error at the
    topics."""
    asking = copy(about.request)
    asking.allow_auto_topic_creation = False
    answer = await handle(asking)
    assert isinstance(answer, MetadataResponse)
    for i, topic in enumerate(answer.topics):
        if rule.topic in (None, topic.name):
            answer.topics[i] = MetadataResponse.Topic(
                error_code=code,
                name=topic.name,
                topic_id=topic.topic_id,
                is_internal=topic.is_internal,
                partitions=[],
            )
    return answer


async def _offset_fetch(about: About, rule: Rule, code: ErrorCode, handle: Handle) -> Message:
    """The error at the partitions of the topics, also of a group all of whose topics are asked for."""
    answer = await handle(about.request)
    assert isinstance(answer, OffsetFetchResponse)
    holders: Sequence[Any] = answer.groups or [answer]
    for holder in holders:
        if answer.groups and rule.group not in (None, holder.group_id):
            continue
        for topic in holder.topics:
            named = request_names.names(about.api_key).topics[0].name_of(topic)
            if rule.topic is None or about.is_topic(named, rule.topic):
                for each in topic.partitions:
                    each.error_code, each.metadata = code, ""
                    each.committed_offset = each.committed_leader_epoch = -1
    return answer
