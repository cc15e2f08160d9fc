"""TxnOffsetCommit: offsets of a group in a producer's transaction (KIP-98, KIP-447, KIP-890).

Before the first of them is kept, the transaction's coordinator is asked whether the group's partition of
`__consumer_offsets` is in the transaction, or to add it. As for Produce, only the former can be switched off
(transaction.partition.verification.enable).
"""

from __future__ import annotations

from typing import Final, cast

from muster.coordinator.base.step import RequestContext
from muster.coordinator.cluster.placement import OFFSETS_TOPIC
from muster.coordinator.group.shard import Shard
from muster.coordinator.group.transactional_offsets import CommitInTransaction
from muster.coordinator.server.api import Api
from muster.coordinator.server.apis.committing import existing, whole
from muster.coordinator.server.names import TOPICS, Names
from muster.coordinator.server.needs import Needs, Twice
from muster.coordinator.server.needs import group as on_group
from muster.coordinator.server.needs import topics as on_topics
from muster.coordinator.server.needs import transactional_id as on_transactional_id
from muster.coordinator.server.refusal import partitions
from muster.coordinator.server.serving import Broker
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.acls import Operation
from muster.protocol.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse

_LOADING_FROM: Final = 2
_ABORTABLE_FROM: Final = 4
_ADDED_FROM: Final = 5
_BY_ID_FROM: Final = 6


async def txn_offset_commit(
    broker: Broker, request: TxnOffsetCommitRequest, context: RequestContext
) -> TxnOffsetCommitResponse:
    """Commit the partitions that exist; the others get error 3, or 100 for an unknown topic id."""
    version = context.api_version
    by_id = version >= _BY_ID_FROM
    committing = existing(broker, request, by_id=by_id)
    if committing is None:
        return whole(broker, request, TxnOffsetCommitResponse(topics=[]), by_id=by_id)
    try:
        committed = await _commit(broker, committing, context)
    except KafkaError as refusal:
        # Only for what the group was asked about: what does not exist is still reported as such.
        refused = _REFUSAL.of(TxnOffsetCommitResponse, committing, version, _told(refusal, version))
        committed = cast(TxnOffsetCommitResponse, refused)
    return whole(broker, request, committed, by_id=by_id)


async def _commit(
    broker: Broker, request: TxnOffsetCommitRequest, context: RequestContext
) -> TxnOffsetCommitResponse:
    runtime, group_id = broker.runtime, request.group_id
    guard = await runtime.call(group_id, Shard.begin_transaction, request, context)
    adds = context.api_version >= _ADDED_FROM
    if guard is not None and (adds or broker.configs.is_on("transaction.partition.verification.enable")):
        partition = OFFSETS_TOPIC, runtime.number_of(group_id)
        joined = await broker.transactions.join(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            frozenset({partition}),
            adds=adds,
        )
        if joined[partition] is not ErrorCode.NONE:
            raise KafkaError(
                joined[partition],
                f"{OFFSETS_TOPIC}-{partition[1]} is not in a transaction of {request.transactional_id}",
            )
    committed: TxnOffsetCommitResponse = await runtime.call(
        group_id, Shard.commit_in_transaction, CommitInTransaction(request, guard), context
    )
    return committed


def _told(refusal: KafkaError, version: int) -> KafkaError:
    """A refusal, with a code that a client of this version knows."""
    match refusal.code:
        case ErrorCode.PRODUCER_FENCED:
            code = ErrorCode.INVALID_PRODUCER_EPOCH  # as a partition's leader says it
        case ErrorCode.TRANSACTION_ABORTABLE if version < _ABORTABLE_FROM:
            code = ErrorCode.INVALID_TXN_STATE
        case ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if version < _LOADING_FROM:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        case ErrorCode.REQUEST_TIMED_OUT:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE  # it was not the client's own request that timed out
        case _:
            return refusal
    return KafkaError(code, refusal.why)


# --- declarations -------------------------------------------------------------------------------------------

_REFUSAL: Final = partitions()

APIS: Final = (
    Api(
        ApiKey.TXN_OFFSET_COMMIT,
        txn_offset_commit,
        needs=Needs(
            (on_transactional_id(Operation.WRITE), on_group(Operation.READ)),
            on_topics(Operation.READ, ids_from=_BY_ID_FROM, twice=Twice.TOGETHER, partitions="partitions"),
        ),
        names=Names(group="group_id", topics=TOPICS, members=True, transactional_id="transactional_id"),
        refuse=_REFUSAL,
    ),
)
