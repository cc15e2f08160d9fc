"""CreateTopics, DeleteTopics, CreatePartitions. Any broker takes them: the catalogue is the store's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final
from uuid import UUID

from muster.coordinator.base.step import RequestContext
from muster.coordinator.server.api import Api
from muster.coordinator.server.apis.reassignments import until_new_are_led
from muster.coordinator.server.apis.several import Attempts, Turns, heard_of_all, make_heard
from muster.coordinator.server.broker_configs import Source, source_of
from muster.coordinator.server.names import TOPICS, Listed, Names, itself
from muster.coordinator.server.needs import Needs, Twice, decided_by_handler
from muster.coordinator.server.needs import topics as on_topics
from muster.coordinator.server.refusal import Each, Refusal, entry, listing
from muster.coordinator.server.rights import Rights, denied
from muster.coordinator.server.serving import Broker
from muster.coordinator.topics.catalogue import Topic
from muster.coordinator.topics.config import TopicConfig, described, present
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.acls import Operation, ResourceType
from muster.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from muster.protocol.types import ZERO_UUID

_CREATION_STRICT_FROM: Final = 6
_DELETION_STRICT_FROM: Final = 5
_GROWTH_STRICT_FROM: Final = 3
"""First versions whose clients know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""
_DELETION_DISABLED_FROM: Final = 3
"""First version whose clients know TOPIC_DELETION_DISABLED (KIP-322)."""

_OF_PRESENT_PARTITIONS: Final = frozenset(
    {
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    }
)
"""Refusals of growth that depend on the partitions that a topic has."""

CREATED_MAX: Final = 10_000
"""Topics, partitions and configs by one request, as in Kafka."""

CreatedConfig = CreateTopicsResponse.CreatableTopicConfigs
_Created = CreateTopicsResponse.CreatableTopicResult
_Deleted = DeleteTopicsResponse.DeletableTopicResult
_Grown = CreatePartitionsResponse.CreatePartitionsTopicResult


async def create_topics(
    broker: Broker, request: CreateTopicsRequest, context: RequestContext
) -> CreateTopicsResponse:
    """Create each topic; a name that is listed twice is refused once, as in Kafka."""
    times = Counter(topic.name for topic in request.topics)
    _check_created_max(broker, request)
    results: dict[str, _Created] = {}
    created: list[Topic] = []
    mutations = broker.meters.mutations(context, strict_from=_CREATION_STRICT_FROM)
    inherited: dict[str, CreatedConfig] = {}
    rights = broker.rights(context)
    attempts = Attempts(ApiKey.CREATE_TOPICS, context, request.timeout_ms)
    await heard_of_all(broker, attempts, all(map(broker.catalogue.is_free, _once(times))))
    turns = Turns()
    for asked in request.topics:
        await turns.next()
        try:
            _refuse_repeated(asked.name, times)
            creation = _create(broker, asked, mutations.use, validate_only=request.validate_only)
            topic = await attempts.make(creation)
        except KafkaError as error:
            results[asked.name] = entry(_Created, context.api_version, error, name=asked.name)
        else:
            created.append(topic)
            if not rights.may(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, topic.name, logged=False):
                results[asked.name] = _Created(
                    name=topic.name,
                    topic_id=ZERO_UUID if request.validate_only else topic.topic_id,
                    topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                    configs=[],
                )
                continue
            inherited = inherited or _inherited_configs(broker)  # once: there may be ten thousand topics
            results[asked.name] = _Created(
                name=topic.name,
                topic_id=ZERO_UUID if request.validate_only else topic.topic_id,
                num_partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                configs=[
                    _config(name, topic.config, Source.TOPIC) if name in topic.configs else config
                    for name, config in inherited.items()
                ],
            )
    if not request.validate_only:
        await until_new_are_led(broker, [(topic, 0) for topic in created], request.timeout_ms)
    return CreateTopicsResponse(throttle_time_ms=mutations.throttle_ms, topics=list(results.values()))


def _check_created_max(broker: Broker, request: CreateTopicsRequest) -> None:
    """POLICY_VIOLATION for more than Kafka's controller creates at once. The answer lists every config of
    every topic, even if they are only validated.

    Kafka does not count what it refuses for another reason; here that applies only to topics without
    partitions, as the rest is checked later.
    """
    created = 0
    for asked in request.topics:
        partitions = broker.settings.num_partitions if asked.num_partitions == -1 else asked.num_partitions
        partitions = len(asked.assignments) or partitions
        if partitions > 0:
            created += 1 + partitions + len(asked.configs)
    if created > CREATED_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"one request creates at most {CREATED_MAX} topics, partitions and configs, not {created}",
        )


def _once(times: Counter[str]) -> list[str]:
    """The names that are not refused by `_refuse_repeated`."""
    return [name for name, count in times.items() if count == 1]


def _refuse_repeated(name: str, times: Counter[str]) -> None:
    """Nobody can tell which of the entries is meant, so all of them are refused, in one answer."""
    if times[name] > 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")


async def _create(
    broker: Broker,
    asked: CreateTopicsRequest.CreatableTopic,
    permit: Callable[[int], None],
    *,
    validate_only: bool,
) -> Topic:
    indexes = Counter(each.partition_index for each in asked.assignments)
    if any(times > 1 for times in indexes.values()):
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "a partition is assigned twice")
    return await broker.catalogue.create(
        asked.name,
        partitions=asked.num_partitions,
        replication_factor=asked.replication_factor,
        assignments={each.partition_index: each.broker_ids for each in asked.assignments} or None,
        configs={each.name: each.value for each in asked.configs},
        brokers=broker.hosts,
        permit=permit,
        validate_only=validate_only,
    )


def _inherited_configs(broker: Broker) -> dict[str, CreatedConfig]:
    """By name: the configs of a topic that sets none itself."""
    return {
        name: _config(name, broker.catalogue.default_config, source_of(broker.configs.inherited(name)))
        for name, _ in described()
    }


def _config(name: str, values: TopicConfig, source: Source) -> CreatedConfig:
    return CreatedConfig(
        name=name, value=present(name, values), read_only=False, config_source=source, is_sensitive=False
    )


async def delete_topics(
    broker: Broker, request: DeleteTopicsRequest, context: RequestContext
) -> DeleteTopicsResponse:
    """Delete each topic, by name up to v5, by name or id from v6 on, and its committed offsets."""
    if not broker.settings.delete_topic_enable:
        known = context.api_version >= _DELETION_DISABLED_FROM
        code = ErrorCode.TOPIC_DELETION_DISABLED if known else ErrorCode.INVALID_REQUEST
        raise KafkaError(code, "delete.topic.enable is false")
    asked = [*request.topics]
    asked += [
        DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=ZERO_UUID) for name in request.topic_names
    ]
    attempts = Attempts(ApiKey.DELETE_TOPICS, context, request.timeout_ms)
    rights = broker.rights(context)
    await heard_of_all(broker, attempts, await _knows_all(broker, rights, asked))
    names = []
    turns = Turns()
    for each in asked:
        await turns.next()
        names.append(_named_as(broker, rights, each))
    times = Counter(names)
    results = []
    mutations = broker.meters.mutations(context, strict_from=_DELETION_STRICT_FROM)
    for each, name in zip(asked, names, strict=True):
        await turns.next()
        if not times[name]:
            continue  # A repetition of one that was refused.
        try:
            if times[name] > 1:
                times[name] = 0
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            topic = _to_delete(broker, rights, each)
            mutations.use(topic.partitions)
            topic = await _delete(broker, attempts, rights, each, topic)
        except _NotAllowed as refused:
            results.append(
                entry(_Deleted, context.api_version, refused, name=refused.topic_name, topic_id=each.topic_id)
            )
        except KafkaError as error:
            results.append(
                entry(_Deleted, context.api_version, error, name=each.name, topic_id=each.topic_id)
            )
        else:
            results.append(_Deleted(name=topic.name, topic_id=topic.topic_id))
    return DeleteTopicsResponse(throttle_time_ms=mutations.throttle_ms, responses=results)


async def _knows_all(
    broker: Broker, rights: Rights, asked: list[DeleteTopicsRequest.DeleteTopicState]
) -> bool:
    """Whether this broker has heard of all topics that the client may know of. The others are refused whether
    they exist or not, and must not take longer if they do not."""
    all_of_them = rights.may_with_cluster(Operation.DELETE, logged=False)
    by_id = False
    turns = Turns()
    for each in asked:
        await turns.next()
        if each.name is not None:
            may_know = all_of_them or rights.may(
                Operation.DESCRIBE, ResourceType.TOPIC, each.name, logged=False
            )
            if may_know and _found(broker, each) is None:
                return False
        elif not by_id and _found(broker, each) is None:
            by_id = True  # whoever may delete no topic may be told that none has this id
            if all_of_them or rights.may_with_any(Operation.DELETE, ResourceType.TOPIC):
                return False
    return True


def _found(broker: Broker, asked: DeleteTopicsRequest.DeleteTopicState) -> Topic | None:
    if asked.name is None:
        return broker.catalogue.by_id(asked.topic_id)
    return broker.catalogue.by_name(asked.name)


def _named_as(
    broker: Broker, rights: Rights, asked: DeleteTopicsRequest.DeleteTopicState
) -> tuple[str | None, UUID]:
    """A key that is equal if a topic is named twice, even if once by name and once by id, but the latter only
    if the client may delete it: others are not told which name an id stands for."""
    topic = _found(broker, asked) if asked.name is None else None
    if topic is None or not (
        rights.may_with_cluster(Operation.DELETE, logged=False)
        or rights.may(Operation.DELETE, ResourceType.TOPIC, topic.name, logged=False)
    ):
        return asked.name, asked.topic_id
    return topic.name, ZERO_UUID


async def _delete(
    broker: Broker,
    attempts: Attempts,
    rights: Rights,
    asked: DeleteTopicsRequest.DeleteTopicState,
    topic: Topic,
) -> Topic:
    """Delete the topic. If another broker has deleted it meanwhile, a name may stand for a new one by now,
    which is deleted instead; but an attempt that goes on after the request's time spares it."""
    while True:
        try:
            await attempts.make(broker.catalogue.delete(topic))
        except KafkaError as error:
            if asked.name is None or error.code is not ErrorCode.UNKNOWN_TOPIC_ID:
                raise
            topic = _to_delete(broker, rights, asked)  # the catalogue has read the topics again
        else:
            return topic


class _NotAllowed(KafkaError):
    """The refusal of a topic, with its name if the client may know it."""

    def __init__(self, operation: Operation, topic_name: str | None) -> None:
        refusal = denied(operation, ResourceType.TOPIC)
        super().__init__(refusal.code, refusal.why)
        self.topic_name = topic_name


def _to_delete(broker: Broker, rights: Rights, asked: DeleteTopicsRequest.DeleteTopicState) -> Topic:
    if (asked.name is None) == (asked.topic_id == ZERO_UUID):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "name the topic to delete either by name or by id")
    all_of_them = rights.may_with_cluster(Operation.DELETE, logged=False)
    if asked.name is not None:
        if not all_of_them and not rights.may(Operation.DESCRIBE, ResourceType.TOPIC, asked.name):
            raise _NotAllowed(Operation.DESCRIBE, asked.name)
        topic = broker.catalogue.named(asked.name)
    else:
        topic = broker.catalogue.identified(asked.topic_id)
    if not all_of_them and not rights.may(Operation.DELETE, ResourceType.TOPIC, topic.name):
        may_know = rights.may(Operation.DESCRIBE, ResourceType.TOPIC, topic.name, logged=False)
        raise _NotAllowed(Operation.DELETE, topic.name if may_know else None)
    return topic


async def create_partitions(
    broker: Broker, request: CreatePartitionsRequest, context: RequestContext
) -> CreatePartitionsResponse:
    """Give topics more partitions."""
    times = Counter(topic.name for topic in request.topics)
    results: dict[str, _Grown] = {}
    grown: list[tuple[Topic, int]] = []
    mutations = broker.meters.mutations(context, strict_from=_GROWTH_STRICT_FROM)
    attempts = Attempts(ApiKey.CREATE_PARTITIONS, context, request.timeout_ms)
    await heard_of_all(broker, attempts, None not in map(broker.catalogue.by_name, _once(times)))
    turns = Turns()
    for asked in request.topics:
        await turns.next()
        try:
            _refuse_repeated(asked.name, times)
            before = broker.catalogue.by_name(asked.name)
            grow = partial(_add_partitions, broker, asked, mutations.use, validate_only=request.validate_only)
            topic = await make_heard(broker, attempts, grow, _OF_PRESENT_PARTITIONS)
        except KafkaError as error:
            results[asked.name] = entry(_Grown, context.api_version, error, name=asked.name)
        else:
            results[asked.name] = _Grown(name=asked.name)
            grown.append((topic, 0 if before is None else before.partitions))
    if not request.validate_only:
        await until_new_are_led(broker, grown, request.timeout_ms)
    return CreatePartitionsResponse(throttle_time_ms=mutations.throttle_ms, results=list(results.values()))


async def _add_partitions(
    broker: Broker,
    asked: CreatePartitionsRequest.CreatePartitionsTopic,
    permit: Callable[[int], None],
    *,
    validate_only: bool,
) -> Topic:
    assignments = None
    if asked.assignments is not None:
        assignments = [each.broker_ids for each in asked.assignments]
    return await broker.catalogue.add_partitions(
        asked.name,
        asked.count,
        assignments=assignments,
        brokers=broker.hosts,
        permit=permit,
        validate_only=validate_only,
    )


APIS: Final = (
    Api(
        ApiKey.CREATE_TOPICS,
        create_topics,
        needs=Needs(elements=on_topics(Operation.CREATE, or_cluster=Operation.CREATE, twice=Twice.UNDECIDED)),
        names=Names(topics=TOPICS),
        refuse=listing("topics", "topics"),
    ),
    Api(
        ApiKey.DELETE_TOPICS,
        delete_topics,
        needs=decided_by_handler("by name a topic needs DESCRIBE first, by id its name is told only then"),
        names=Names(topics=(*TOPICS, Listed("topic_names", itself))),
        refuse=Refusal((Each("responses", "topic_names", itself="name"), Each("responses", "topics"))),
    ),
    Api(
        ApiKey.CREATE_PARTITIONS,
        create_partitions,
        needs=Needs(elements=on_topics(Operation.ALTER, twice=Twice.UNDECIDED)),
        names=Names(topics=TOPICS),
        refuse=listing("results", "topics"),
    ),
)
