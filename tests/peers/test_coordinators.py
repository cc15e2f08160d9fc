"""When a transaction's coordinator is asked, and when its answer is known before."""

from __future__ import annotations

from typing import Any

import pytest

from muster.coordinator.base.clock import ManualClock
from muster.coordinator.peers.coordinators import TransactionCoordinators
from muster.coordinator.peers.markers import Markers, Whereabouts
from muster.coordinator.transactions.events import MarkersDue
from muster.protocol.errors import ErrorCode, KafkaError

A0 = ("a", 0)


async def test_a_transaction_whose_markers_are_owed_here_takes_no_partitions_and_nobody_is_asked() -> None:
    asked: list[int] = []

    async def ask(node_id: int, *question: Any, **how: Any) -> Any:
        asked.append(node_id)
        raise KafkaError(ErrorCode.PRODUCER_FENCED)

    async def read_topics() -> None:
        raise AssertionError("the topic is known")

    markers = Markers(
        ask,
        ManualClock(),
        serving=lambda lease: True,
        leader=lambda topic, partition: Whereabouts.NO_LEADER,
        read_topics=read_topics,
        marked=lambda *told: None,
    )
    coordinators = TransactionCoordinators(ask, lambda transactional_id: 1, markers)

    async def refusal(transactional_id: str, *, adds: bool) -> ErrorCode:
        with pytest.raises(KafkaError) as refused:
            await coordinators.join(transactional_id, 40, 6, frozenset([A0]), adds=adds)
        return refused.value.code

    markers.observe(7, 3, [MarkersDue("etl", 40, 6, True, frozenset([A0]), 2)])
    assert await refusal("etl", adds=True) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert asked == []
    # Who only asks is told first of an epoch that is over.
    assert await refusal("etl", adds=False) is ErrorCode.PRODUCER_FENCED
    assert await refusal("x", adds=True) is ErrorCode.PRODUCER_FENCED
    markers.forget(7)
    assert await refusal("etl", adds=True) is ErrorCode.PRODUCER_FENCED
    assert asked == [1, 1, 1]
    markers.close()
