"""Verifies a Produce with a transactional id before its batches are stored (KIP-890): the transaction's
coordinator is asked whether the transaction has their partitions, or to add them.

Only the first batch of a transaction in a partition needs that; from then on the log shows that it is open.
The codes are those that clients of each version can handle (AddPartitionsToTxnManager and
ReplicaManager.handleProduceAppend in Apache Kafka).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from muster.coordinator.peers.coordinators import TransactionCoordinators
from muster.coordinator.server.serving import Broker
from muster.coordinator.topics.catalogue import Topic
from muster.coordinator.topics.guards import UNVERIFIED, Guard
from muster.protocol.errors import DecodeError, ErrorCode, KafkaError
from muster.protocol.messages.data import ProduceRequest
from muster.protocol.record_batch import Header, may_be_transactional, peek

_ABORTABLE_FROM: Final = 11
"""The first Produce version whose clients know TRANSACTION_ABORTABLE."""
_ADDS_FROM: Final = 12
"""The first Produce version whose clients leave it to the broker to add partitions."""
_ASKED_LATER: Final = (
    ErrorCode.REQUEST_TIMED_OUT,  # nothing was written yet: to producers it would mean that it may have been
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)
"""Refusals that say nothing about the transaction."""

_Partition = tuple[str, int]


class Part(NamedTuple):
    """The records of a request for one partition."""

    topic: Topic
    partition: int
    records: bytes

    @property
    def key(self) -> _Partition:
        return self.topic.name, self.partition


class Verified:
    """The outcome of verifying the partitions of a request."""

    def __init__(self, outcomes: Mapping[_Partition, Guard | KafkaError | None]) -> None:
        self._outcomes = outcomes

    def guard(self, topic: Topic, partition: int) -> Guard | None:
        """The guard for appending the partition's batch, see `Partitions.append`. Raises the coordinator's
        refusal, with a code that this version knows."""
        outcome = self._outcomes.get((topic.name, partition))
        if isinstance(outcome, KafkaError):
            raise outcome
        return outcome


def has_transactional(request: ProduceRequest) -> bool:
    """Whether the request contains a batch of a transaction. Quick: asked of every Produce."""
    for topic in request.topic_data:
        for data in topic.partition_data:
            records = data.records
            if records and may_be_transactional(records) and _transactional(records) is not None:
                return True
    return False


def _transactional(records: bytes) -> Header | None:
    """The header of a transactional batch; None for any other, and for bytes that are not a batch, which the
    log refuses."""
    try:
        header = peek(records)
    except DecodeError:
        return None
    return header if header.is_transactional else None


async def verify(
    broker: Broker,
    request: ProduceRequest,
    version: int,
    parts: Sequence[Part],
    next_turn: Callable[[], Awaitable[None]],
) -> Verified:
    """Return when the coordinator has answered for the `parts` that need it, if it can be reached.
    `next_turn` is awaited for each part.

    INVALID_PRODUCER_ID_MAPPING unless the transactional batches all have the same producer id and epoch.
    """
    assert request.transactional_id is not None
    batches = [(part, header) for part in parts if (header := _transactional(part.records)) is not None]
    producers = {(header.producer_id, header.producer_epoch) for _, header in batches}
    if not producers:
        return Verified({})
    if len(producers) > 1:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"transactional batches of one request are of one producer, and these are of {len(producers)}",
        )
    ((producer_id, epoch),) = producers
    joining = _Joining(broker.transactions, request.transactional_id, producer_id, epoch, version)
    adds = joining.adds
    if not adds and not broker.configs.is_on("transaction.partition.verification.enable"):
        return Verified({part.key: UNVERIFIED for part, _ in batches})
    outcomes: dict[_Partition, Guard | KafkaError | None] = {}
    pause_s = broker.settings.add_partitions_to_txn_retry_backoff_ms / 1000
    patience_ms = min(broker.settings.add_partitions_to_txn_retry_backoff_max_ms, max(request.timeout_ms, 0))
    clock = asyncio.get_running_loop().time
    until_s = clock() + patience_ms / 1000
    if adds and patience_ms and broker.transactions.is_ending(request.transactional_id):
        # The producer knows that its previous transaction ended, but the markers are still on their way.
        await broker.transactions.pause(request.transactional_id, patience_ms / 1000)
    while True:
        unknown = set()
        for part, _ in batches:
            await next_turn()
            outcomes[part.key] = guard = await _begin(broker, part, adds=adds)
            if isinstance(guard, Guard):
                unknown.add(part.key)
        refused = await joining.ask(frozenset(unknown))
        concurrent = any(each.code is ErrorCode.CONCURRENT_TRANSACTIONS for each in refused.values())
        if not (concurrent and clock() < until_s):
            return Verified({**outcomes, **refused})
        await broker.transactions.pause(request.transactional_id, pause_s)  # as above, on another broker


async def _begin(broker: Broker, part: Part, *, adds: bool) -> Guard | KafkaError | None:
    """The guard, if the coordinator must be asked; otherwise a refusal, or None."""
    try:
        return await broker.partitions.begin_verification(
            part.topic, part.partition, part.records, epoch_raised=adds
        )
    except KafkaError as refusal:
        return refusal


class _Joining(NamedTuple):
    """Asks a coordinator about the partitions of a producer, for a version of Produce."""

    transactions: TransactionCoordinators
    transactional_id: str
    producer_id: int
    epoch: int
    version: int

    @property
    def adds(self) -> bool:
        return self.version >= _ADDS_FROM

    async def ask(self, partitions: frozenset[_Partition]) -> dict[_Partition, KafkaError]:
        """The refusals, by the partitions that may not be written to."""
        if not partitions:
            return {}
        try:
            answers = await self.transactions.join(
                self.transactional_id, self.producer_id, self.epoch, partitions, adds=self.adds
            )
        except KafkaError as refusal:
            return dict.fromkeys(partitions, self._told(refusal))
        return {
            each: self._told(KafkaError(answers[each], "the transaction does not have the partition"))
            for each in partitions
            if answers[each] is not ErrorCode.NONE
        }

    def _told(self, refusal: KafkaError) -> KafkaError:
        """The refusal as the producer gets it."""
        code, why = refusal.code, refusal.why
        if code is ErrorCode.PRODUCER_FENCED:
            return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, why)
        if code is ErrorCode.TRANSACTION_ABORTABLE and self.version < _ABORTABLE_FROM:
            return KafkaError(ErrorCode.INVALID_TXN_STATE, why)
        if code is ErrorCode.CONCURRENT_TRANSACTIONS and self.adds:
            return refusal
        if code in _ASKED_LATER:
            # Of all retriable codes, this one does not make clients fetch metadata first.
            return KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS, f"the transaction's coordinator could not be asked: {why}"
            )
        return refusal
