"""Puts a fault's error code where it belongs in the response: at the group, topic, partition or transactional
id that the rule names, in the shape of the API and version, and nowhere else.

The rest of the request is processed and answered as usual. Where Kafka has a code both for the whole response
and for parts of it, `Api.parts` says which codes belong to the parts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from functools import partial
from typing import Any, TypeVar

from muster.coordinator.server.apis.connection import unsupported_api_versions
from muster.coordinator.server.names import Listed
from muster.coordinator.server.refusal import joined
from muster.coordinator.server.test_mode.faults import About, Rule
from muster.coordinator.server.unserved import produce_failed
from muster.protocol.api import ApiKey, versions
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.message import Message
from muster.protocol.messages.metadata import DescribeTopicPartitionsResponse, MetadataResponse
from muster.protocol.messages.offsets import OffsetFetchResponse

Handle = Callable[[Message], Awaitable["Message | None"]]
"""Processes a request."""

T = TypeVar("T", MetadataResponse.Topic, DescribeTopicPartitionsResponse.Topic)


def carries(about: About, rule: Rule) -> bool:
    """Whether the answer has a place for the code: that to a Metadata request without topics, which clients
    send just for the brokers, has none."""
    if about.api.key != ApiKey.METADATA or _code(rule) is ErrorCode.REBOOTSTRAP_REQUIRED:
        return True
    return about.api.names.topics_of(about.version, about.request) != []


async def refused(about: About, rule: Rule, why: str, handle: Handle) -> tuple[Message, int]:
    """The answer with the rule's error, and the version to write it in. Raises CloseConnection where the
    protocol has no answer (Produce with acks=0)."""
    api_key, version, request = about.api.key, about.version, about.request
    code = _code(rule)
    error = KafkaError(code, why)
    if api_key == ApiKey.API_VERSIONS and code is ErrorCode.UNSUPPORTED_VERSION:
        return unsupported_api_versions(versions(api_key).last + 1)
    if api_key == ApiKey.PRODUCE and request.acks == 0:
        raise produce_failed(str(error))
    if api_key == ApiKey.METADATA and code is not ErrorCode.REBOOTSTRAP_REQUIRED:
        return await _metadata(about, rule, code, handle), version
    if api_key == ApiKey.DESCRIBE_TOPIC_PARTITIONS and not request.topics:
        return await _all_partitions(about, rule, code, handle), version
    if api_key == ApiKey.OFFSET_FETCH and _concerns_parts(about, code):
        return await _offset_fetch(about, rule, code, handle), version
    chosen, rest = _divided(about, rule)
    answer = _refusal(about, chosen, error)
    if rest is not None:
        if api_key == ApiKey.FETCH:
            rest.max_wait_ms = 0  # as Kafka, which does not wait for records if it has an error to report
        others = await handle(rest)
        if others is not None:
            return joined(others, answer), version
    return answer, version


def _code(rule: Rule) -> ErrorCode:
    return ErrorCode(rule.action.amount)


# --- dividing a request -------------------------------------------------------------------------------------


def _divided(about: About, rule: Rule) -> tuple[Any, Any | None]:
    """The part of the request that the rule names, and the rest; None if nothing is left, or if the error is
    one of the whole answer."""
    where = about.api.names
    code = _code(rule)
    if about.api.key == ApiKey.FETCH and not _concerns_parts(about, code):
        return about.request, None
    lists: tuple[Listed, ...] = ()
    is_chosen: Callable[[Listed, Any], bool] = partial(_of_topic, about, rule)
    if where.transactional_ids is not None and rule.transactional_id is not None:
        lists, is_chosen = (where.transactional_ids,), partial(_of_transaction, rule)
    elif where.groups is not None:
        lists, is_chosen = (where.groups,), partial(_of_group, about, rule)
    elif rule.topic is not None and (about.api.parts is None or _concerns_parts(about, code)):
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


def _of_transaction(rule: Rule, listed: Listed, element: Any) -> bool:
    return rule.transactional_id == listed.name_of(element)


def _of_group(about: About, rule: Rule, listed: Listed, element: Any) -> bool:
    if rule.group not in (None, listed.name_of(element)):
        return False
    if rule.topic is None or isinstance(element, str) or element.topics is None:
        return True
    (topics,) = about.api.names.topics
    return any(_of_topic(about, rule, topics, each) for each in element.topics)


# --- shapes -------------------------------------------------------------------------------------------------


def _concerns_parts(about: About, code: ErrorCode) -> bool:
    return about.api.parts is not None and about.api.concerns_parts(code, about.version)


def _refusal(about: About, request: Any, error: KafkaError) -> Message:
    if about.api.concerns_parts(error.code, about.version):
        return about.api.partial_refusal(request, about.version, error)
    return about.api.refusal(request, about.version, error)


async def _metadata(about: About, rule: Rule, code: ErrorCode, handle: Handle) -> Message:
    """The real brokers, since a client without them has nobody to ask again, and the error at the topics."""
    asking = copy(about.request)
    asking.allow_auto_topic_creation = False
    answer = await handle(asking)
    assert isinstance(answer, MetadataResponse)
    answer.topics = _with_code(answer.topics, rule, code)
    return answer


async def _all_partitions(about: About, rule: Rule, code: ErrorCode, handle: Handle) -> Message:
    """The error at the topics in the page of all topics."""
    answer = await handle(about.request)
    assert isinstance(answer, DescribeTopicPartitionsResponse)
    answer.topics = _with_code(answer.topics, rule, code)
    return answer


def _with_code(topics: Sequence[T], rule: Rule, code: ErrorCode) -> list[T]:
    """The topics of an answer, with the code in place of the partitions of those that the rule names."""
    return [
        type(topic)(
            error_code=code,
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.is_internal,
            partitions=[],
        )
        if rule.topic in (None, topic.name)
        else topic
        for topic in topics
    ]


async def _offset_fetch(about: About, rule: Rule, code: ErrorCode, handle: Handle) -> Message:
    """The error at the partitions of the topics, also if all topics of a group are requested."""
    answer = await handle(about.request)
    assert isinstance(answer, OffsetFetchResponse)
    holders: Sequence[Any] = answer.groups or [answer]
    for holder in holders:
        if answer.groups and rule.group not in (None, holder.group_id):
            continue
        for topic in holder.topics:
            named = about.api.names.topics[0].name_of(topic)
            if rule.topic is None or about.is_topic(named, rule.topic):
                for each in topic.partitions:
                    each.error_code, each.metadata = code, ""
                    each.committed_offset = each.committed_leader_epoch = -1
    return answer
