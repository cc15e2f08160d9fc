"""OffsetCommit, OffsetFetch, OffsetDelete.

The core knows groups and offsets, but not which topics exist: that is checked here, and topic ids become
names on the way in. A partition that is refused here does not keep the others from the core.
"""

from __future__ import annotations

import struct as structs
from collections.abc import Sequence
from typing import Final, cast
from uuid import UUID

from muster.coordinator.base.answers import LATER, Answered
from muster.coordinator.base.step import RequestContext
from muster.coordinator.group.offsets import FetchOffsets
from muster.coordinator.group.shard import Shard
from muster.coordinator.server.api import Api, Parts, Repeated, awaited
from muster.coordinator.server.apis.committing import existing, whole
from muster.coordinator.server.apis.several import IN_A_TURN, Turns, several
from muster.coordinator.server.names import TOPICS, Listed, Names, by
from muster.coordinator.server.needs import Asking, Needs, Twice, decided_by_handler, group_refusal
from muster.coordinator.server.needs import group as on_group
from muster.coordinator.server.needs import groups as on_groups
from muster.coordinator.server.needs import topics as on_topics
from muster.coordinator.server.refusal import Each, Refusal, entry, partitions
from muster.coordinator.server.serving import Broker
from muster.coordinator.topics.catalogue import Topic
from muster.protocol.api import ApiKey
from muster.protocol.codec import encode
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.message import VERSION_MAX, Versions
from muster.protocol.messages.acls import Operation, ResourceType
from muster.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from muster.protocol.types import ZERO_UUID

_COMMITTED_BY_ID_FROM: Final = 10
_FETCHED_BY_ID_FROM: Final = 10
_GROUPS_FROM: Final = 8

_POSITION: Final = structs.Struct(">qi")
_BEHIND_POSITION_BYTES: Final = 4
_SHORT_BYTES_MAX: Final = 126
_TAGS_TO_COMMIT_FROM: Final = 8


# --- OffsetCommit -------------------------------------------------------------------------------------------


def offset_commit(
    broker: Broker, request: OffsetCommitRequest, context: RequestContext, answered: Answered
) -> object:
    """Commit the partitions that exist; the others get error 3, or 100 for an unknown topic id.

    If all partitions exist and each is named once, the group's answer is the whole answer.
    """
    by_id = context.api_version >= _COMMITTED_BY_ID_FROM
    catalogue = broker.catalogue
    named: list[tuple[str, int]] = []
    for asked in request.topics:
        topic = catalogue.by_id(asked.topic_id) if by_id else catalogue.by_name(asked.name)
        if topic is None or not asked.partitions:
            return _commit_some(broker, request, context, answered)
        asked.name, asked.topic_id = topic.name, topic.topic_id
        for each in asked.partitions:
            if not 0 <= each.partition_index < topic.partitions:
                return _commit_some(broker, request, context, answered)
            named.append((topic.name, each.partition_index))
    if len(named) != 1 and (not named or len(set(named)) != len(named)):
        return _commit_some(broker, request, context, answered)
    return broker.runtime.call_at_once(request.group_id, Shard.commit_offsets, request, context, answered)


def _position(request: OffsetCommitRequest, version: int, message: bytes) -> Repeated | None:
    """Offset and leader epoch of a commit of one partition, if its bytes show where they are: followed only
    by the length of the metadata, the metadata, and three empty blocks of tags."""
    if version < _TAGS_TO_COMMIT_FROM or [len(topic.partitions) for topic in request.topics] != [1]:
        return None
    ((partition,),) = (topic.partitions for topic in request.topics)
    metadata_bytes = len((partition.committed_metadata or "").encode())
    if metadata_bytes > _SHORT_BYTES_MAX:
        return None  # its length takes more than a byte
    if encode(request, version) != message:
        return None

    def update(frame: bytes, at: int) -> None:
        partition.committed_offset, partition.committed_leader_epoch = _POSITION.unpack_from(frame, at)

    return Repeated(_POSITION.size, metadata_bytes + _BEHIND_POSITION_BYTES, update)


def _commit_some(
    broker: Broker, request: OffsetCommitRequest, context: RequestContext, answered: Answered
) -> object:
    """Ask the group about the partitions that exist, if any do."""
    by_id = context.api_version >= _COMMITTED_BY_ID_FROM
    committing = existing(broker, request, by_id=by_id)
    if committing is None:
        return whole(broker, request, OffsetCommitResponse(topics=[]), by_id=by_id)

    def of_all(answer: object) -> object:
        if isinstance(answer, KafkaError):
            # Only for what the group was asked about: what does not exist is still reported as such.
            answer = _COMMIT.refusal(committing, context.api_version, answer)
        return whole(broker, request, cast(OffsetCommitResponse, answer), by_id=by_id)

    answer = broker.runtime.call_at_once(
        request.group_id, Shard.commit_offsets, committing, context, lambda answer: answered(of_all(answer))
    )
    return answer if answer is LATER else of_all(answer)


# --- OffsetFetch --------------------------------------------------------------------------------------------


def offset_fetch(
    broker: Broker, request: OffsetFetchRequest, context: RequestContext, answered: Answered
) -> object:
    """Committed offsets of one group (v1-7) or several (v8+); an unknown group has none, which is not an
    error. What is named twice is answered once: one offset's metadata may have 12 kB."""
    if context.api_version < _GROUPS_FROM:
        request.groups = [_the_group(request)]
    asked = request.groups[0] if len(request.groups) == 1 else None
    if asked is None or asked.topics is None or len(asked.topics) > IN_A_TURN:
        return _fetch_in_turns(broker, request, context, answered)
    fetch = _Fetch(broker, asked, request.require_stable, context)
    for each in asked.topics:
        fetch.add(each)
    answer = broker.runtime.call_at_once(
        fetch.group_id,
        Shard.fetch_offsets,
        fetch.request(),
        context,
        lambda answer: answered(fetch.response(answer)),
    )
    return answer if answer is LATER else fetch.response(answer)


def _the_group(request: OffsetFetchRequest) -> OffsetFetchRequest.Group:
    """The only group that there is before v8."""
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequest.Group.Topics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    return OffsetFetchRequest.Group(group_id=request.group_id, topics=topics)


async def _fetch_each(
    broker: Broker, request: OffsetFetchRequest, context: RequestContext
) -> OffsetFetchResponse:
    of_groups: dict[str, _Fetch] = {}
    turns = Turns()
    for asked in request.groups:
        await turns.next()
        fetch = of_groups.get(asked.group_id)
        if fetch is None:
            fetch = of_groups[asked.group_id] = _Fetch(broker, asked, request.require_stable, context)
        elif asked.topics is None:
            fetch.add_all()
        for each in asked.topics or ():
            await turns.next()
            fetch.add(each)
    fetches = list(of_groups.values())

    async def answer_to(fetch: _Fetch) -> object:
        try:
            answer: object = await broker.runtime.call(
                fetch.group_id, Shard.fetch_offsets, fetch.request(), context
            )
        except KafkaError as error:
            return error
        return answer

    answers = await several(answer_to, fetches)
    for fetch, answer in zip(fetches, answers, strict=True):
        await fetch.leave_out(answer, turns)
    if context.api_version < _GROUPS_FROM:
        response = fetches[0].response(answers[0])
        if isinstance(response, KafkaError):
            raise response
        return response
    return OffsetFetchResponse(
        groups=[fetch.whole(answer) for fetch, answer in zip(fetches, answers, strict=True)]
    )


_fetch_in_turns: Final = awaited(_fetch_each, "OffsetFetch")


class _Fetch:
    """An OffsetFetch of one group: what the group is asked, and the response made from its answer. Add each
    of the topics that the client asks about, if it names any; all of them include those that it names."""

    __slots__ = (
        "_all",
        "_allowed",
        "_asked",
        "_broker",
        "_by_id",
        "_context",
        "_refused",
        "_require_stable",
        "_rights",
        "group_id",
    )

    def __init__(
        self, broker: Broker, asked: OffsetFetchRequest.Group, require_stable: bool, context: RequestContext
    ) -> None:
        self.group_id = asked.group_id
        self._asked = asked
        self._require_stable = require_stable
        self._broker = broker
        self._context = context
        self._by_id = context.api_version >= _FETCHED_BY_ID_FROM
        self._rights = broker.rights(context)
        self._all = asked.topics is None
        self._allowed: dict[tuple[str, UUID], dict[int, None]] = {}
        self._refused: list[OffsetFetchResponse.Group.Topics] = []

    def add_all(self) -> None:
        """Ask the group about all its topics."""
        self._all = True

    def add(self, asked: OffsetFetchRequest.Group.Topics) -> None:
        """Ask the group about a topic, or refuse it."""
        topic = self._broker.catalogue.by_id(asked.topic_id) if self._by_id else None
        if self._by_id and topic is None:
            self._refused.append(_refused_topic(asked, ErrorCode.UNKNOWN_TOPIC_ID))
            return
        name = asked.name if topic is None else topic.name
        if not self._rights.may(Operation.DESCRIBE, ResourceType.TOPIC, name):
            self._refused.append(_refused_topic(asked, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            return
        named = name, ZERO_UUID if topic is None else topic.topic_id
        self._allowed.setdefault(named, {}).update(dict.fromkeys(asked.partition_indexes))

    def request(self) -> FetchOffsets:
        """What the group is asked."""
        topics = None
        if not self._all:
            topics = [
                OffsetFetchRequest.Group.Topics(
                    name=name, topic_id=topic_id, partition_indexes=list(partitions)
                )
                for (name, topic_id), partitions in self._allowed.items()
            ]
        return FetchOffsets(
            group_id=self.group_id,
            topics=topics,
            require_stable=self._require_stable,
            member_id=self._asked.member_id,
            member_epoch=self._asked.member_epoch,
        )

    async def leave_out(self, answer: object, turns: Turns) -> None:
        """Leave out of the group's answer the topics that the client has not named and may not see."""
        if not self._all or isinstance(answer, KafkaError):
            return
        group = cast(OffsetFetchResponse.Group, answer)
        group.topics = await turns.those(
            group.topics,
            lambda each: self._rights.may(Operation.DESCRIBE, ResourceType.TOPIC, each.name, logged=False),
        )

    def response(self, answer: object) -> OffsetFetchResponse | KafkaError:
        """The response, if this is the only group that is asked about."""
        if self._context.api_version < _GROUPS_FROM:
            return self._without_groups(answer)
        return OffsetFetchResponse(groups=[self.whole(answer)])

    def _without_groups(self, answer: object) -> OffsetFetchResponse | KafkaError:
        """The response of v1-7. An error of the group applies to the whole request: v1 repeats it at every
        partition."""
        if isinstance(answer, KafkaError):
            return answer
        group = self.whole(answer)
        if group.error_code:
            return KafkaError(ErrorCode(group.error_code))
        return OffsetFetchResponse(
            topics=[
                OffsetFetchResponse.Topic(
                    name=topic.name,
                    # They have the same fields.
                    partitions=cast("Sequence[OffsetFetchResponse.Partition]", topic.partitions),
                )
                for topic in group.topics
            ]
        )

    def whole(self, answer: object) -> OffsetFetchResponse.Group:
        """The group's part, from its answer."""
        if isinstance(answer, KafkaError):
            return entry(OffsetFetchResponse.Group, self._context.api_version, answer, group_id=self.group_id)
        group = cast(OffsetFetchResponse.Group, answer)
        if group.error_code:
            return group
        if self._by_id:
            group.topics = _identified(self._broker, group.topics)
        group.topics += self._refused
        return group


def _identified(
    broker: Broker, topics: list[OffsetFetchResponse.Group.Topics]
) -> list[OffsetFetchResponse.Group.Topics]:
    """Adds topic ids; a deleted topic has none, and its offsets will be gone soon: it is left out, as in
    Kafka."""
    found: list[OffsetFetchResponse.Group.Topics] = []
    for each in topics:
        topic: Topic | None = broker.catalogue.by_name(each.name)
        if topic is not None:
            each.topic_id = topic.topic_id
            found.append(each)
    return found


def _refused_topic(
    asked: OffsetFetchRequest.Group.Topics, code: ErrorCode
) -> OffsetFetchResponse.Group.Topics:
    return OffsetFetchResponse.Group.Topics(
        name=asked.name,
        topic_id=asked.topic_id,
        partitions=[
            OffsetFetchResponse.Group.Topics.Partitions(
                partition_index=index, committed_offset=-1, metadata="", error_code=code
            )
            for index in asked.partition_indexes
        ],
    )


# --- OffsetDelete -------------------------------------------------------------------------------------------


async def offset_delete(
    broker: Broker, request: OffsetDeleteRequest, context: RequestContext
) -> OffsetDeleteResponse:
    """Delete offsets of partitions that exist; the others get error 3."""
    existing: list[OffsetDeleteRequest.Topic] = []
    for asked in request.topics:
        topic = broker.catalogue.by_name(asked.name)
        partitions = [
            each
            for each in asked.partitions
            if topic is not None and 0 <= each.partition_index < topic.partitions
        ]
        if partitions:
            existing.append(OffsetDeleteRequest.Topic(name=asked.name, partitions=partitions))
    deleted: OffsetDeleteResponse = await broker.runtime.call(
        request.group_id,
        Shard.delete_offsets,
        OffsetDeleteRequest(group_id=request.group_id, topics=existing),
        context,
    )
    if deleted.error_code:
        return deleted
    outcomes = {
        (done.name, each.partition_index): each.error_code
        for done in deleted.topics
        for each in done.partitions
    }
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponse.Topic(
                name=asked.name,
                partitions=[
                    OffsetDeleteResponse.Partition(
                        partition_index=each.partition_index,
                        error_code=outcomes.get(
                            (asked.name, each.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                        ),
                    )
                    for each in asked.partitions
                ],
            )
            for asked in request.topics
        ]
    )


# --- declarations -------------------------------------------------------------------------------------------

_COMMIT: Final = Api(
    ApiKey.OFFSET_COMMIT,
    offset_commit,
    needs=Needs(
        (on_group(Operation.READ),),
        on_topics(
            Operation.READ, ids_from=_COMMITTED_BY_ID_FROM, twice=Twice.TOGETHER, partitions="partitions"
        ),
    ),
    names=Names(group="group_id", topics=TOPICS, members=True),
    refuse=partitions(),
    repeats=_position,
)


def _needs_the_group(asking: Asking, request: OffsetFetchRequest) -> KafkaError | None:
    """Needs DESCRIBE on the only group that there is before v8."""
    if asking.context.api_version >= _GROUPS_FROM:
        return None
    return group_refusal(asking, Operation.DESCRIBE, request.group_id)


_CODES_OF_FETCHED_PARTITIONS: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
_CODES_OF_DELETED_PARTITIONS: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
    }
)
_FETCH_REFUSAL: Final = Refusal(
    (
        Each("groups", "groups", versions=Versions(_GROUPS_FROM, VERSION_MAX)),
        # v1 has no code of its own for the group.
        Each(
            "topics",
            "topics",
            Each("partitions", "partition_indexes", itself="partition_index", fields={"metadata": ""}),
            versions=Versions(1, 1),
        ),
    )
)

APIS: Final = (
    _COMMIT,
    Api(
        ApiKey.OFFSET_FETCH,
        offset_fetch,
        needs=decided_by_handler(
            "of all topics it leaves out those that may not be seen; a group answers though none is left",
            _needs_the_group,
            elements=on_groups(Operation.DESCRIBE, "groups", lambda group: group.group_id),
        ),
        names=Names(
            group="group_id", groups=Listed("groups", by("group_id")), topics=TOPICS, topics_in_groups=True
        ),
        refuse=_FETCH_REFUSAL,
        parts=Parts(_CODES_OF_FETCHED_PARTITIONS.__contains__, _FETCH_REFUSAL),
    ),
    Api(
        ApiKey.OFFSET_DELETE,
        offset_delete,
        needs=Needs(
            (on_group(Operation.DELETE),),
            on_topics(Operation.READ, twice=Twice.TOGETHER, partitions="partitions"),
        ),
        names=Names(group="group_id", topics=TOPICS),
        parts=Parts(_CODES_OF_DELETED_PARTITIONS.__contains__, partitions()),
    ),
)
