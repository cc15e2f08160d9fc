"""Transaction metrics: gathered on the loop, written out in a thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from muster.coordinator.base.histogram import Histogram
from muster.coordinator.server.broker import Broker
from muster.coordinator.server.brokers import Brokers
from muster.coordinator.transactions.states import TransactionState, Trigger
from muster.coordinator.web import transaction_facts
from muster.coordinator.web.transaction_facts import Held, Verdict

_ENDS: Final = (
    (TransactionState.PREPARE_COMMIT, Trigger.COMMITTED),
    (TransactionState.PREPARE_ABORT, Trigger.ABORTED),
    (TransactionState.PREPARE_ABORT, Trigger.FENCED),
    (TransactionState.PREPARE_ABORT, Trigger.TIMED_OUT),
)
"""Every way a transaction is decided."""
_OUTCOMES: Final = {TransactionState.PREPARE_COMMIT: "committed", TransactionState.PREPARE_ABORT: "aborted"}


@dataclass(slots=True)
class OfBroker:
    """The transactions that a broker coordinates."""

    node_id: int
    ended: Counter[tuple[TransactionState, Trigger]]
    durations: Histogram
    ids_expired: int
    ended_by_clients: int
    fenced: int
    states: Counter[TransactionState] = field(default_factory=Counter)
    unmarked: int = 0
    """Partitions still waiting for their marker."""
    decided_ms: int | None = None
    """When the oldest transaction that still owes markers was decided."""
    now_ms: int = 0


@dataclass(slots=True)
class Transactions:
    """The transactions of all brokers of the process; no longer changes."""

    brokers: list[OfBroker]
    held: list[tuple[Held, int]]
    """Partitions that are held back, with their broker's time."""
    hanging: int


async def gather(brokers: Brokers) -> Transactions:
    """Gather the current data."""
    of_brokers = {broker.node_id: _of(broker) for broker in brokers.running}
    async for known in transaction_facts.known(brokers):
        mine, transaction = of_brokers.get(known.broker.node_id), known.transaction
        if mine is None:
            continue  # it was started meanwhile
        mine.states[transaction.state] += 1
        if transaction.state.is_prepared:
            mine.unmarked += len(known.owed)
            mine.decided_ms = min(transaction.last_update_ms, mine.decided_ms or transaction.last_update_ms)
    held = await transaction_facts.judged(brokers)
    return Transactions(
        list(of_brokers.values()),
        [(each, each.broker.clock.now_ms()) for each in held if each.end is not None],
        sum(each.verdict is Verdict.HANGING for each in held),
    )


def _of(broker: Broker) -> OfBroker:
    endings, runtime = broker.endings, broker.transaction_runtime
    return OfBroker(
        broker.node_id,
        endings.by_cause.copy(),
        endings.durations.copy(),
        endings.ids_expired,
        endings.by_clients,
        runtime.fenced,
        now_ms=broker.clock.now_ms(),
    )


# --- writing out --------------------------------------------------------------------------------------------


def families(found: Transactions, partitions_max: int) -> Iterator[Metric]:
    """The metrics, with series for no more than `partitions_max` partitions."""
    yield from _of_brokers(found.brokers)
    yield GaugeMetricFamily(
        "muster_transactions_hanging",
        "Partitions of this process with a transaction that no coordinator will end.",
        value=found.hanging,
    )
    labels = ["topic", "partition"]
    records = GaugeMetricFamily(
        "muster_topic_partition_undecided_records",
        "Offsets from the last stable offset of a partition to its end, where there is an open transaction.",
        labels=labels,
    )
    seconds = GaugeMetricFamily(
        "muster_topic_partition_undecided_seconds",
        "Age of the oldest open transaction of a partition: that of its first record.",
        labels=labels,
    )
    for each, now_ms in found.held[:partitions_max]:
        where = [each.topic, str(each.partition)]
        records.add_metric(where, (each.end or 0) - (each.last_stable_offset or 0))
        if each.since_ms is not None:
            seconds.add_metric(where, max(now_ms - each.since_ms, 0) / 1000)
    yield records
    yield seconds


def _of_brokers(brokers: Sequence[OfBroker]) -> Iterator[Metric]:
    ids = GaugeMetricFamily(
        "muster_transactional_ids",
        "Transactional ids that a broker coordinates, by state; Ongoing ones have an open transaction.",
        labels=["broker", "state"],
    )
    ended = CounterMetricFamily(
        "muster_transactions_ended",
        "Transactions decided, by outcome and what decided it.",
        labels=["broker", "outcome", "cause"],
    )
    durations = HistogramMetricFamily(
        "muster_transaction_seconds",
        "How long transactions took, from their first partition to their last marker.",
        labels=["broker"],
    )
    unmarked = GaugeMetricFamily(
        "muster_transaction_markers_due",
        "Partitions that have yet to get the marker of a decided transaction.",
        labels=["broker"],
    )
    oldest = GaugeMetricFamily(
        "muster_transaction_markers_oldest_seconds",
        "How long ago the oldest transaction was decided that is still due markers; 0 without any.",
        labels=["broker"],
    )
    expired = CounterMetricFamily(
        "muster_transactional_ids_expired",
        "Transactional ids forgotten because nobody used them.",
        labels=["broker"],
    )
    fenced = CounterMetricFamily(
        "muster_transaction_requests_fenced",
        "Requests refused because a newer producer has the transactional id.",
        labels=["broker"],
    )
    by_clients = CounterMetricFamily(
        "muster_transaction_markers_of_clients",
        "Partitions on which a client, such as an admin tool, ended a transaction.",
        labels=["broker"],
    )
    for each in brokers:
        node = str(each.node_id)
        for state in TransactionState:
            ids.add_metric([node, state.wire_name], each.states[state])
        for outcome, trigger in _ENDS:
            ended.add_metric([node, _OUTCOMES[outcome], trigger], each.ended[outcome, trigger])
        durations.add_metric([node], each.durations.buckets(), each.durations.sum)
        unmarked.add_metric([node], each.unmarked)
        waited_ms = 0 if each.decided_ms is None else max(each.now_ms - each.decided_ms, 0)
        oldest.add_metric([node], waited_ms / 1000)
        expired.add_metric([node], each.ids_expired)
        fenced.add_metric([node], each.fenced)
        by_clients.add_metric([node], each.ended_by_clients)
    yield from (ids, ended, durations, unmarked, oldest, expired, fenced, by_clients)
