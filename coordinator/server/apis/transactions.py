"""InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, DescribeTransactions, ListTransactions:
requests to transaction coordinators (KIP-98, KIP-360, KIP-664, KIP-890)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from muster.coordinator.base.regexes import BadRegex, compiled
from muster.coordinator.base.step import RequestContext
from muster.coordinator.cluster.coordinators import GROUPS
from muster.coordinator.cluster.placement import OFFSETS_TOPIC
from muster.coordinator.server.api import Api
from muster.coordinator.server.apis.several import Turns, several
from muster.coordinator.server.names import Listed, Names, by, itself
from muster.coordinator.server.needs import (
    Asking,
    Elements,
    Needs,
    cluster,
    decided_by_handler,
    group,
    transactional_id_refusal,
)
from muster.coordinator.server.needs import transactional_id as on_transactional_id
from muster.coordinator.server.refusal import Each, Refusal, entry, listing
from muster.coordinator.server.rights import denied
from muster.coordinator.server.serving import Broker
from muster.coordinator.storage.store import StoreError
from muster.coordinator.topics.catalogue import INTERNAL_TOPICS
from muster.coordinator.transactions.adding import AddPartitions, VerifyPartitions
from muster.coordinator.transactions.ending import End, Ended
from muster.coordinator.transactions.shard import TransactionShard, unknown_states
from muster.coordinator.transactions.transaction import TopicPartition
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.message import Versions
from muster.protocol.messages.acls import Operation, ResourceType
from muster.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

_Added = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult
_AddedTopic = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
_AddedTransaction = AddPartitionsToTxnResponse.AddPartitionsToTxnResult
_AskedTopic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic

_OF_BROKERS_FROM: Final = 4
"""AddPartitionsToTxn: earlier versions are for clients, with one transaction."""
_SECOND_GENERATION_FROM: Final = 5
"""EndTxn: each transaction ends with a new producer epoch."""
_BROKERS_ADD: Final = 2
"""The transaction.version of clients for whom brokers add partitions."""

_FENCED_FROM: Final[Mapping[ApiKey, int]] = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}
"""The first versions that know PRODUCER_FENCED (KIP-588); earlier ones get INVALID_PRODUCER_EPOCH."""


async def _ask(
    broker: Broker,
    api: ApiKey,
    transactional_id: str,
    operation: Callable[..., None],
    request: Any,
    context: RequestContext,
) -> Any:
    """What the shard of an id answers. Raises KafkaError with a code that the version knows."""
    try:
        return await broker.transaction_runtime.call(transactional_id, operation, request, context)
    except KafkaError as error:
        if error.code is ErrorCode.PRODUCER_FENCED and context.api_version < _FENCED_FROM[api]:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, error.why) from error
        raise


async def init_producer_id(
    broker: Broker, request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse:
    """Give the producer of a transactional id its next epoch, see `TransactionShard.start`.

    Without a transactional id, an idempotent producer gets a new producer id with epoch 0, even if it comes
    back with the one it has (KIP-360), as in Kafka: only transactional ids keep theirs.
    """
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "producer id and epoch must be given together")
    transactional_id = request.transactional_id
    try:
        if transactional_id is None:
            return InitProducerIdResponse(producer_id=await broker.producer_ids.allocate(), producer_epoch=0)
        # The shard takes one from those at hand.
        await broker.producer_ids.fetch()
    except StoreError as error:
        # Clients retry after it; the store may have recovered by then.
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
    started: InitProducerIdResponse = await _ask(
        broker, ApiKey.INIT_PRODUCER_ID, transactional_id, TransactionShard.start, request, context
    )
    return started


# --- adding -------------------------------------------------------------------------------------------------


class _Adding(NamedTuple):
    """One transaction of AddPartitionsToTxn, in any version."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    verify_only: bool
    topics: list[_AskedTopic]
    client_version: int


async def add_partitions_to_txn(
    broker: Broker, request: AddPartitionsToTxnRequest, context: RequestContext
) -> AddPartitionsToTxnResponse:
    """Add the partitions that a client names, before it writes to them; from v4 on, those that brokers name,
    for several transactions, or only verify that they were added (KIP-890)."""
    if context.api_version < _OF_BROKERS_FROM:
        results = await _add(
            broker,
            _Adding(
                request.v3_and_below_transactional_id,
                request.v3_and_below_producer_id,
                request.v3_and_below_producer_epoch,
                False,
                request.v3_and_below_topics,
                0,
            ),
            context,
        )
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)

    async def add(asked: AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction) -> _AddedTransaction:
        results = await _add(
            broker,
            _Adding(
                asked.transactional_id,
                asked.producer_id,
                asked.producer_epoch,
                asked.verify_only,
                asked.topics,
                _BROKERS_ADD,
            ),
            context,
        )
        return _AddedTransaction(transactional_id=asked.transactional_id, topic_results=results)

    return AddPartitionsToTxnResponse(results_by_transaction=await several(add, request.transactions))


async def _add(broker: Broker, adding: _Adding, context: RequestContext) -> list[_AddedTopic]:
    """Add all partitions, or none: then bad ones get their error, the others OPERATION_NOT_ATTEMPTED."""
    codes = await _refused_partitions(broker, adding.topics, context)
    if any(codes.values()):
        return _by_topic({each: code or ErrorCode.OPERATION_NOT_ATTEMPTED for each, code in codes.items()})
    who = adding.transactional_id, adding.producer_id, adding.producer_epoch
    operation: Callable[..., None]
    request: AddPartitions | VerifyPartitions
    if adding.verify_only:
        operation, request = TransactionShard.verify_partitions, VerifyPartitions(*who, frozenset(codes))
    else:
        operation = TransactionShard.add_partitions
        request = AddPartitions(*who, frozenset(codes), adding.client_version)
    try:
        verified = await _ask(broker, ApiKey.ADD_PARTITIONS_TO_TXN, who[0], operation, request, context)
    except KafkaError as error:
        return _by_topic(dict.fromkeys(codes, error.code))
    return _by_topic({**codes, **verified} if adding.verify_only else codes)


async def _refused_partitions(
    broker: Broker, topics: Iterable[_AskedTopic], context: RequestContext
) -> dict[TopicPartition, ErrorCode]:
    """Each named partition, in the request's order, with the code that refuses it, or NONE."""
    of_client = context.api_version < _OF_BROKERS_FROM
    rights = broker.rights(context)
    codes: dict[TopicPartition, ErrorCode] = {}
    turns = Turns()
    for asked in topics:
        await turns.next()
        topic = broker.catalogue.by_name(asked.name)
        denies = of_client and (
            asked.name in INTERNAL_TOPICS or not rights.may(Operation.WRITE, ResourceType.TOPIC, asked.name)
        )
        for number in asked.partitions:
            await turns.next()
            if denies:
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif topic is None or not 0 <= number < topic.partitions:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                code = ErrorCode.NONE
            codes[asked.name, number] = code
    return codes


def _by_topic(codes: Mapping[TopicPartition, ErrorCode]) -> list[_AddedTopic]:
    topics: dict[str, _AddedTopic] = {}
    for (name, number), code in codes.items():
        topic = topics.setdefault(name, _AddedTopic(name=name, results_by_partition=[]))
        topic.results_by_partition.append(_Added(partition_index=number, partition_error_code=code))
    return list(topics.values())


async def add_offsets_to_txn(
    broker: Broker, request: AddOffsetsToTxnRequest, context: RequestContext
) -> AddOffsetsToTxnResponse:
    """Add the partition of `__consumer_offsets` that holds a group's offsets. Only clients that add
    partitions themselves send this."""
    offsets = broker.catalogue.named(OFFSETS_TOPIC)
    partition = offsets.name, GROUPS.route(request.group_id, offsets.partitions)
    asked = AddPartitions(
        request.transactional_id, request.producer_id, request.producer_epoch, frozenset([partition])
    )
    await _ask(
        broker,
        ApiKey.ADD_OFFSETS_TO_TXN,
        request.transactional_id,
        TransactionShard.add_partitions,
        asked,
        context,
    )
    return AddOffsetsToTxnResponse()


# --- ending -------------------------------------------------------------------------------------------------


async def end_txn(broker: Broker, request: EndTxnRequest, context: RequestContext) -> EndTxnResponse:
    """Commit or abort: answered when the decision is final, before partitions have their markers. Only the
    version of the request decides which rules apply."""
    asked = End(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        request.committed,
        raises_epoch=context.api_version >= _SECOND_GENERATION_FROM,
    )
    ended: Ended = await _ask(
        broker, ApiKey.END_TXN, request.transactional_id, TransactionShard.end, asked, context
    )
    if not asked.raises_epoch:
        return EndTxnResponse()
    return EndTxnResponse(producer_id=ended.producer_id, producer_epoch=ended.producer_epoch)


# --- looking ------------------------------------------------------------------------------------------------


async def describe_transactions(
    broker: Broker, request: DescribeTransactionsRequest, context: RequestContext
) -> DescribeTransactionsResponse:
    """The state of transactional ids, each once, without the topics that the client may not see."""
    Described = DescribeTransactionsResponse.TransactionState
    rights = broker.rights(context)

    async def describe(transactional_id: str) -> DescribeTransactionsResponse.TransactionState:
        try:
            told: DescribeTransactionsResponse.TransactionState = await broker.transaction_runtime.call(
                transactional_id, TransactionShard.describe, transactional_id, context
            )
        except KafkaError as error:
            return entry(Described, context.api_version, error, transactional_id=transactional_id)
        return told

    described = await several(describe, list(dict.fromkeys(request.transactional_ids)))
    turns = Turns()
    for told in described:
        told.topics = await turns.those(
            told.topics,
            lambda each: rights.may(Operation.DESCRIBE, ResourceType.TOPIC, each.topic, logged=False),
        )
    return DescribeTransactionsResponse(transaction_states=described)


async def list_transactions(
    broker: Broker, request: ListTransactionsRequest, context: RequestContext
) -> ListTransactionsResponse:
    """The ids that this broker coordinates, that pass the filters and that the client may see; clients ask
    every broker. The pattern is an RE2 expression, and must match a whole id."""
    runtime, rights = broker.transaction_runtime, broker.rights(context)
    found: list[ListTransactionsResponse.TransactionState] = []
    turns = Turns()
    for of_shard in await runtime.call_shards(TransactionShard.list_transactions, request, context):
        for each in of_shard:
            await turns.next()
            transactional_id = each.transactional_id
            if rights.may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id, logged=False):
                found.append(each)
    if request.transactional_id_pattern:
        ids = [each.transactional_id for each in found]
        # Not on the loop, since it may take long.
        matching = await asyncio.to_thread(_matching, request.transactional_id_pattern, ids)
        found = [each for each in found if each.transactional_id in matching]
    return ListTransactionsResponse(
        unknown_state_filters=unknown_states(request.state_filters), transaction_states=found
    )


def _matching(pattern: str, transactional_ids: Iterable[str]) -> frozenset[str]:
    try:
        matches = compiled(pattern).fullmatch
    except BadRegex as error:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"Transaction ID pattern `{pattern}` is not a valid regular expression: {error}.",
        ) from None
    return frozenset(each for each in transactional_ids if matches(each))


# --- needs --------------------------------------------------------------------------------------------------


def _needs_to_write(asking: Asking, request: InitProducerIdRequest) -> KafkaError | None:
    """WRITE on the transactional id; without one, IDEMPOTENT_WRITE or WRITE on some topic."""
    rights, transactional_id = asking.rights, request.transactional_id
    if transactional_id is not None:
        return transactional_id_refusal(asking, Operation.WRITE, transactional_id)
    if rights.may_with_cluster(Operation.IDEMPOTENT_WRITE, logged=False) or rights.may_with_any(
        Operation.WRITE, ResourceType.TOPIC
    ):
        return None
    rights.may_with_cluster(Operation.IDEMPOTENT_WRITE)  # logs the denial
    return denied(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)


def _needs_to_add(asking: Asking, request: AddPartitionsToTxnRequest) -> KafkaError | None:
    """A client needs WRITE on its transactional id, a broker CLUSTER_ACTION."""
    if asking.context.api_version >= _OF_BROKERS_FROM:
        return cluster(Operation.CLUSTER_ACTION)(asking, request)
    return transactional_id_refusal(asking, Operation.WRITE, request.v3_and_below_transactional_id)


def _needs_to_describe(asking: Asking, request: Any, transactional_id: str) -> KafkaError | None:
    return transactional_id_refusal(asking, Operation.DESCRIBE, transactional_id)


def _refused_partition(number: int, version: int, error: KafkaError) -> _Added:
    return _Added(partition_index=number, partition_error_code=error.code)


APIS: Final = (
    Api(
        ApiKey.INIT_PRODUCER_ID,
        init_producer_id,
        needs=Needs((_needs_to_write,)),
        names=Names(transactional_id="transactional_id"),
    ),
    Api(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        add_partitions_to_txn,
        needs=decided_by_handler("a topic that is refused has the others left alone", _needs_to_add),
        names=Names(
            topics=(Listed("v3_and_below_topics", by("name")),),
            transactional_id="v3_and_below_transactional_id",
        ),
        refuse=Refusal(
            (
                Each(
                    "results_by_topic_v3_and_below",
                    "v3_and_below_topics",
                    Each("results_by_partition", "partitions", entry=_refused_partition),
                    versions=Versions(0, _OF_BROKERS_FROM - 1),
                ),
            )
        ),
    ),
    Api(
        ApiKey.ADD_OFFSETS_TO_TXN,
        add_offsets_to_txn,
        needs=Needs((on_transactional_id(Operation.WRITE), group(Operation.READ))),
        names=Names(group="group_id", transactional_id="transactional_id"),
    ),
    Api(
        ApiKey.END_TXN,
        end_txn,
        needs=Needs((on_transactional_id(Operation.WRITE),)),
        names=Names(transactional_id="transactional_id"),
    ),
    Api(
        ApiKey.DESCRIBE_TRANSACTIONS,
        describe_transactions,
        needs=decided_by_handler(
            "topics that may not be seen are left out",
            elements=Elements("transactional_ids", _needs_to_describe, str),
        ),
        names=Names(transactional_ids=Listed("transactional_ids", itself)),
        refuse=listing("transaction_states", "transactional_ids", "transactional_id"),
    ),
    Api(
        ApiKey.LIST_TRANSACTIONS,
        list_transactions,
        needs=decided_by_handler("ids that may not be seen are left out"),
    ),
)
