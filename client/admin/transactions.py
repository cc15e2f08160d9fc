"""Transactions: list, describe, fence their producers, abort one on a partition (KIP-664)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from muster.client.admin.answers import (
    Outcomes,
    left_ms,
    of_coordinators,
    of_leaders,
    refused,
    together,
)
from muster.client.errors import refusal
from muster.client.network.cluster import TRANSACTION, Cluster
from muster.client.partitions import TopicPartition
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

OPEN: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")
"""States in which a transaction is open, or its markers are not all written yet."""
STATES: Final = ("Empty", *OPEN, "CompleteCommit", "CompleteAbort", "PrepareEpochFence", "Dead")
"""Kafka's state names."""

_TIMEOUT_MAX_MS: Final = 60_000
"""Kafka's default transaction.timeout.ms; brokers may refuse a much longer one."""


class TransactionListing(NamedTuple):
    """A transactional id as its coordinator, a node id, lists it."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


class TransactionDescription(NamedTuple):
    """A transactional id. `start_timestamp` is when its transaction began, in epoch ms; None if it has had
    none. The `partitions` are those that have no marker yet."""

    transactional_id: str
    coordinator: int
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_timestamp: int | None
    partitions: list[TopicPartition]

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open, or has not ended on all of its partitions yet."""
        return self.state in OPEN


class FencedProducer(NamedTuple):
    """The producer id of a fenced transactional id, and the epoch that now fences its previous holder."""

    producer_id: int
    producer_epoch: int


async def list_transactions(
    cluster: Cluster,
    until: float,
    *,
    states: Iterable[str] = (),
    producer_ids: Iterable[int] = (),
    longer_than_ms: int | None = None,
    pattern: str | None = None,
) -> list[TransactionListing]:
    """The transactional ids of all brokers, by id, with or without a transaction; optionally only those in
    one of these states, with one of these producer ids, and whose whole id matches a regular expression
    (Java's on Apache Kafka). `longer_than_ms`: only those whose transaction has been open for longer, unless
    `states` says otherwise.

    Ids that you may not describe are left out. Raises ValueError for a state that no broker knows;
    KafkaError if a broker is too old for `longer_than_ms` (KIP-994) or `pattern` (KIP-1152).
    """
    wanted = list(states) or list(OPEN if longer_than_ms is not None else ())
    request = ListTransactionsRequest(
        state_filters=wanted,
        producer_id_filters=list(producer_ids),
        duration_filter=-1 if longer_than_ms is None else longer_than_ms,
        transactional_id_pattern=pattern,
    )

    async def attempt() -> list[TransactionListing]:
        listed: dict[str, TransactionListing] = {}
        unknown = set(wanted)
        for node, response in (await cluster.call_all(request, until)).items():
            if response.error_code:
                about = f"broker {node}"
                if response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION:
                    about = f"pattern {pattern!r}"
                raise refusal(response.error_code, about=about)
            unknown &= set(response.unknown_state_filters)
            for each in response.transaction_states:
                listed[each.transactional_id] = TransactionListing(
                    each.transactional_id, node, each.producer_id, each.transaction_state
                )
        if unknown:
            raise ValueError(f"states: no broker knows {', '.join(sorted(unknown))}")
        return sorted(listed.values())

    return await cluster.retrying(attempt, until)


async def describe_transactions(
    cluster: Cluster, transactional_ids: Iterable[str], until: float
) -> Outcomes[str, TransactionDescription]:
    """Describe transactional ids. One that does not exist gets KafkaError(TRANSACTIONAL_ID_NOT_FOUND).
    Partitions of topics that you may not describe are left out."""

    async def ask(node: int, wanted: list[str]) -> dict[str, TransactionDescription | KafkaError]:
        request = DescribeTransactionsRequest(transactional_ids=wanted)
        response = await cluster.call(request, until, node=node)
        return {each.transactional_id: _described(node, each) for each in response.transaction_states}

    return await of_coordinators(
        cluster, transactional_ids, ask, until, api="DescribeTransactions", key_type=TRANSACTION
    )


def _described(
    node: int, told: DescribeTransactionsResponse.TransactionState
) -> TransactionDescription | KafkaError:
    if told.error_code:
        return refusal(told.error_code)
    return TransactionDescription(
        told.transactional_id,
        node,
        told.transaction_state,
        told.producer_id,
        told.producer_epoch,
        told.transaction_timeout_ms,
        None if told.transaction_start_time_ms < 0 else told.transaction_start_time_ms,
        sorted(TopicPartition(topic.topic, each) for topic in told.topics for each in topic.partitions),
    )


async def fence_producers(
    cluster: Cluster, transactional_ids: Iterable[str], until: float
) -> Outcomes[str, FencedProducer]:
    """Fence the producers of transactional ids: their transactions are aborted, and whatever they send from
    now on is refused. An id that does not exist is created."""

    async def ask_one(node: int, transactional_id: str) -> dict[str, FencedProducer | KafkaError]:
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=min(left_ms(until), _TIMEOUT_MAX_MS)
        )
        response: InitProducerIdResponse = await cluster.call(request, until, node=node)
        return {
            transactional_id: refusal(response.error_code)
            if response.error_code
            else FencedProducer(response.producer_id, response.producer_epoch)
        }

    async def ask(node: int, wanted: list[str]) -> Outcomes[str, FencedProducer]:
        return await together(([each], ask_one(node, each)) for each in wanted)

    return await of_coordinators(
        cluster, transactional_ids, ask, until, api="InitProducerId", key_type=TRANSACTION
    )


async def abort_transaction(
    cluster: Cluster,
    partition: TopicPartition,
    producer_id: int,
    producer_epoch: int,
    until: float,
    *,
    coordinator_epoch: int | None = None,
) -> None:
    """Abort a producer's transaction on one partition, at its leader; its coordinator is neither asked nor
    notified. `describe_producers` returns the epochs; `coordinator_epoch` is None if no coordinator has
    written yet.

    Only for a hanging transaction (`find_hanging_transactions`): one that its coordinator still knows would
    be aborted here and perhaps committed elsewhere. Needs ALTER or CLUSTER_ACTION on the cluster.
    """
    marker = WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transaction_result=False,
        topics=[
            WriteTxnMarkersRequest.WritableTxnMarkerTopic(
                name=partition.topic, partition_indexes=[partition.partition]
            )
        ],
        coordinator_epoch=max(coordinator_epoch or 0, 0),
    )
    request = WriteTxnMarkersRequest(markers=[marker])

    async def ask(node: int, _: list[TopicPartition]) -> dict[TopicPartition, KafkaError | None]:
        response: WriteTxnMarkersResponse = await cluster.call(request, until, node=node)
        return {
            (where := TopicPartition(topic.name, each.partition_index)): refused(
                each.error_code, about=f"{where}, producer id {producer_id}, epoch {producer_epoch}"
            )
            for told in response.markers
            for topic in told.topics
            for each in topic.partitions
        }

    # Not twice: a producer that continues under the same epoch may have begun the next transaction.
    outcomes = await of_leaders(cluster, [partition], ask, until, api="WriteTxnMarkers", repeatable=False)
    outcomes.raise_for_failures()
