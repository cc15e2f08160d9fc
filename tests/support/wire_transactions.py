"""Requests to transaction coordinators, in any version."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from muster.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
)

Producer = tuple[int, int]
"""Producer id and epoch."""
NOBODY: Producer = (-1, -1)

OF_BROKERS_FROM = 4
"""The first version of AddPartitionsToTxn that holds several transactions."""


def starting(
    transactional_id: str | None, *, had: Producer = NOBODY, timeout_ms: int = 60_000
) -> InitProducerIdRequest:
    return InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=had[0],
        producer_epoch=had[1],
    )


def adding(
    transactional_id: str, producer: Producer, topics: Mapping[str, Collection[int]]
) -> AddPartitionsToTxnRequest:
    """AddPartitionsToTxn as clients send it, below v4."""
    Topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer[0],
        v3_and_below_producer_epoch=producer[1],
        v3_and_below_topics=[Topic(name=name, partitions=list(each)) for name, each in topics.items()],
    )


def joining(
    transactional_id: str,
    producer: Producer,
    topics: Mapping[str, Collection[int]],
    *,
    verify_only: bool = False,
) -> AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction:
    """A transaction of `adding_as_broker`."""
    Topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    return AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
        transactional_id=transactional_id,
        producer_id=producer[0],
        producer_epoch=producer[1],
        verify_only=verify_only,
        topics=[Topic(name=name, partitions=list(each)) for name, each in topics.items()],
    )


def adding_as_broker(
    *transactions: AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction,
) -> AddPartitionsToTxnRequest:
    """AddPartitionsToTxn as brokers send it, from v4 on."""
    return AddPartitionsToTxnRequest(transactions=list(transactions))


def adding_offsets(transactional_id: str, producer: Producer, group_id: str) -> AddOffsetsToTxnRequest:
    return AddOffsetsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer[0],
        producer_epoch=producer[1],
        group_id=group_id,
    )


def ending(transactional_id: str, producer: Producer, *, commits: bool) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer[0],
        producer_epoch=producer[1],
        committed=commits,
    )


def describing(*transactional_ids: str) -> DescribeTransactionsRequest:
    return DescribeTransactionsRequest(transactional_ids=list(transactional_ids))


def listing(
    states: Collection[str] = (), producer_ids: Collection[int] = (), **newer: Any
) -> ListTransactionsRequest:
    return ListTransactionsRequest(
        state_filters=list(states), producer_id_filters=list(producer_ids), **newer
    )


def added(answer: Any) -> dict[tuple[str, int], int]:
    """The error codes of AddPartitionsToTxn below v4, by partition."""
    return _codes(answer.results_by_topic_v3_and_below)


def joined(answer: Any) -> list[tuple[str, dict[tuple[str, int], int]]]:
    """The error codes of AddPartitionsToTxn from v4 on, by transactional id."""
    return [(each.transactional_id, _codes(each.topic_results)) for each in answer.results_by_transaction]


def _codes(topics: Any) -> dict[tuple[str, int], int]:
    return {
        (topic.name, each.partition_index): each.partition_error_code
        for topic in topics
        for each in topic.results_by_partition
    }
