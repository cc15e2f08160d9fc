"""`/metrics`: Prometheus text, generated on request. Metrics of groups and partitions have the names and
labels of kafka_exporter and kafka-lag-exporter, for existing dashboards. docs/http.md lists all metrics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from aiohttp import web
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
    UnknownMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from muster.coordinator.web import transaction_metrics
from muster.coordinator.web.guard import refusal
from muster.coordinator.web.keys import BROKERS, FEED, TALLIES
from muster.coordinator.web.scrape import PARTITIONS_MAX, Owner, Scrape, gather

_ONE_AT_A_TIME: Final = web.AppKey("one scrape at a time", asyncio.Lock)
_WAIT_S: Final = 8.0
"""How long to wait for another scrape."""
_CLOSED: Final = ("undecodable", "unserved", "too_large", "idle", "unfinished")
_PER_GROUP: Final = ("consumergroup", "topic", "partition")
_LAG_SECONDS_LABELS: Final = (
    "cluster_name",
    "group",
    "topic",
    "partition",
    "member_host",
    "consumer_id",
    "client_id",
)


def add_routes(app: web.Application) -> None:
    """Add `/metrics`."""
    app[_ONE_AT_A_TIME] = asyncio.Lock()
    app.router.add_get("/metrics", metrics)


async def metrics(request: web.Request) -> web.Response:
    """All metrics, in Prometheus' text format."""
    one_at_a_time = request.app[_ONE_AT_A_TIME]
    try:
        async with asyncio.timeout(_WAIT_S):
            await one_at_a_time.acquire()
    except TimeoutError:
        raise refusal(web.HTTPServiceUnavailable, "another scrape is under way; it takes long") from None
    try:
        scrape = await gather(request.app[BROKERS], request.app[FEED], request.app[TALLIES])
        # Writing tens of thousands of lines takes a while, and the brokers need the loop meanwhile.
        body = await asyncio.to_thread(_write_out, scrape)
    finally:
        one_at_a_time.release()
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


# --- writing out, in a thread -------------------------------------------------------------------------------


class _Shown(Collector):
    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    def collect(self) -> Iterator[Metric]:
        yield from _of_cluster(self._scrape)
        yield from _of_groups(self._scrape)
        yield from _as_kafka_counts(self._scrape)
        yield from _of_rebalances(self._scrape)
        yield from _of_brokers(self._scrape)
        yield from transaction_metrics.families(self._scrape.transactions, PARTITIONS_MAX)


def _write_out(scrape: Scrape) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Shown(scrape))
    return generate_latest(registry)


def _of_cluster(scrape: Scrape) -> Iterator[Metric]:
    yield GaugeMetricFamily("kafka_brokers", "Live brokers of the cluster.", value=scrape.nodes)
    partitions = GaugeMetricFamily("kafka_topic_partitions", "Partitions of a topic.", labels=["topic"])
    for topic, count in scrape.topics:
        partitions.add_metric([topic], count)
    yield partitions
    current = GaugeMetricFamily(
        "kafka_topic_partition_current_offset",
        "End offset of a partition: that of the next record.",
        labels=["topic", "partition"],
    )
    oldest = GaugeMetricFamily(
        "kafka_topic_partition_oldest_offset",
        "Offset of the first record of a partition.",
        labels=["topic", "partition"],
    )
    for topic, partition, start, end in scrape.partitions:
        oldest.add_metric([topic, str(partition)], start)
        current.add_metric([topic, str(partition)], end)
    yield current
    yield oldest
    left_out = GaugeMetricFamily(
        "muster_metrics_left_out",
        "Groups, partitions and offsets without their own series: too many, or their ends are not known.",
        labels=["what"],
    )
    for what, count in scrape.left_out.items():
        left_out.add_metric([what], count)
    yield left_out


def _of_groups(scrape: Scrape) -> Iterator[Metric]:
    members = GaugeMetricFamily(
        "kafka_consumergroup_members", "Members of a group.", labels=["consumergroup"]
    )
    offsets = GaugeMetricFamily(
        "kafka_consumergroup_current_offset", "Committed offset of a group.", labels=_PER_GROUP
    )
    lags = GaugeMetricFamily(
        "kafka_consumergroup_lag", "Records between a group's offset and the end.", labels=_PER_GROUP
    )
    seconds = GaugeMetricFamily(
        "kafka_consumergroup_group_lag_seconds",
        "Time lag of a group: seconds since the partition's end was at its committed offset.",
        labels=_LAG_SECONDS_LABELS,
    )
    states = GaugeMetricFamily(
        "muster_group_state", "1 for the current state of a group.", labels=["group", "state"]
    )
    nobody = Owner("", "", "")
    for group in scrape.groups:
        members.add_metric([group.group_id], group.members)
        states.add_metric([group.group_id, group.state], 1)
        for topic, partition, offset in group.offsets:
            labels = [group.group_id, topic, str(partition)]
            offsets.add_metric(labels, offset)
            lag = group.lags.get((topic, partition))
            if lag is not None and lag.lag is not None:
                lags.add_metric(labels, lag.lag)
            if lag is not None and lag.seconds is not None:
                owner = group.owners.get((topic, partition), nobody)
                who = [owner.host, owner.member_id, owner.client_id]
                seconds.add_metric([scrape.cluster, *labels, *who], lag.seconds)
    yield from (members, offsets, lags, seconds, states)


_KAFKA: Final = "kafka_server_group_coordinator_metrics"
"""What Prometheus' JMX exporter calls Kafka's bean group-coordinator-metrics."""


def _as_kafka_counts(scrape: Scrape) -> Iterator[Metric]:
    """Kafka's own figures about groups, under their names."""
    by_protocol = GaugeMetricFamily(f"{_KAFKA}_group_count", "Groups, by protocol.", labels=["protocol"])
    for protocol in ("classic", "consumer"):
        counts = {state: count for (kind, state), count in scrape.counts.items() if kind == protocol}
        by_protocol.add_metric([protocol], sum(counts.values()))
        by_state = GaugeMetricFamily(
            f"{_KAFKA}_{protocol}_group_count", f"{protocol.title()} groups, by state.", labels=["state"]
        )
        for state, count in counts.items():
            by_state.add_metric([state], count)
        yield by_state
    yield by_protocol
    yield UnknownMetricFamily(
        f"{_KAFKA}_group_completed_rebalance_count",
        "Completed rebalances of classic groups.",
        value=scrape.completed,
    )
    yield UnknownMetricFamily(
        f"{_KAFKA}_consumer_group_rebalance_count", "New epochs of consumer groups.", value=scrape.epochs
    )


def _of_rebalances(scrape: Scrape) -> Iterator[Metric]:
    rebalances = CounterMetricFamily(
        "muster_group_rebalances",
        "Rebalances completed, by trigger and diagnosis.",
        labels=["group", "cause", "diagnosis"],
    )
    phases = SummaryMetricFamily(
        "muster_group_rebalance_phase_seconds",
        "How long a classic group waited for JoinGroups (join) and for the assignment, a consumer group for "
        "its target and for all members to reach it (reconcile).",
        labels=["group", "phase"],
    )
    evictions = CounterMetricFamily(
        "muster_group_evictions",
        "Members evicted from a group, by trigger.",
        labels=["group", "trigger"],
    )
    refused = CounterMetricFamily(
        "muster_group_commits_rejected",
        "Commits of a group's members that were refused.",
        labels=["group", "error"],
    )
    plain = {
        name: CounterMetricFamily(f"muster_group_{name}", text, labels=["group"])
        for name, text in (
            ("members_joined", "Members added to a group."),
            ("members_left", "Members that left a group voluntarily."),
            ("heartbeats_late", "Heartbeats so late that the member was close to eviction."),
            ("partitions_moved", "Partitions moved from one member of a group to another."),
        )
    }
    for group in scrape.groups:
        tally = group.tally
        for (cause, diagnosis), count in tally.rebalances.items():
            rebalances.add_metric([group.group_id, cause, diagnosis], count)
        for phase, (count, total) in tally.phases.items():
            phases.add_metric([group.group_id, phase], count_value=count, sum_value=total)
        for trigger, count in tally.evicted.items():
            evictions.add_metric([group.group_id, trigger], count)
        for error, count in tally.commits_refused.items():
            refused.add_metric([group.group_id, error], count)
        plain["members_joined"].add_metric([group.group_id], tally.joined)
        plain["members_left"].add_metric([group.group_id], tally.left)
        plain["heartbeats_late"].add_metric([group.group_id], tally.late)
        plain["partitions_moved"].add_metric([group.group_id], tally.moved)
    yield from (rebalances, phases, evictions, refused, *plain.values())
    of_all = HistogramMetricFamily(
        "muster_rebalance_phase_seconds",
        "How long all groups together waited for JoinGroups (join) and for assignments, targets, and members "
        "to reach them (reconcile).",
        labels=["phase"],
    )
    for phase, histogram in scrape.phases.items():
        of_all.add_metric([phase], histogram.buckets(), histogram.sum)
    yield of_all
    if scrape.lateness is not None:
        lateness = HistogramMetricFamily(
            "muster_heartbeat_lateness_seconds",
            "Time since the previous heartbeat, for heartbeats that came close to eviction.",
        )
        lateness.add_metric([], scrape.lateness.buckets(), scrape.lateness.sum)
        yield lateness


def _of_brokers(scrape: Scrape) -> Iterator[Metric]:
    connections = GaugeMetricFamily("muster_connections", "Open connections.", labels=["broker"])
    accepted = CounterMetricFamily("muster_connections_accepted", "Connections accepted.", labels=["broker"])
    closed = CounterMetricFamily(
        "muster_connections_closed", "Connections closed by the broker, by reason.", labels=["broker", "why"]
    )
    requests = CounterMetricFamily("muster_requests", "Requests received.", labels=["broker"])
    of_kind = ["broker", "kind"]
    shards = GaugeMetricFamily(
        "muster_coordinator_shards",
        "Shards of groups (group) and of transactional ids (transaction) of a broker, by state.",
        labels=[*of_kind, "state"],
    )
    loads = HistogramMetricFamily(
        "muster_coordinator_load_seconds",
        "How long loading a shard took that was not empty.",
        labels=of_kind,
    )
    unloads = CounterMetricFamily(
        "muster_coordinator_unloads", "Shards given up that were not empty.", labels=of_kind
    )
    dropped = CounterMetricFamily(
        "muster_journal_entries_dropped", "Entries not stored for lack of space.", labels=["broker"]
    )
    sessions = GaugeMetricFamily("muster_fetch_sessions", "Fetch sessions (KIP-227).", labels=["broker"])
    of_sessions = GaugeMetricFamily(
        "muster_fetch_session_partitions", "Partitions of all fetch sessions.", labels=["broker"]
    )
    evicted = CounterMetricFamily(
        "muster_fetch_sessions_evicted", "Fetch sessions that made room for others.", labels=["broker"]
    )
    for broker in scrape.brokers:
        node = str(broker.node_id)
        connections.add_metric([node], broker.connections)
        accepted.add_metric([node], broker.counts.accepted)
        closed.add_metric([node, "refused"], broker.counts.refused)
        for why in _CLOSED:
            closed.add_metric([node, why], getattr(broker.counts, why))
        requests.add_metric([node], broker.counts.requests)
        for each in broker.coordinators:
            for state, count in each.shards.items():
                shards.add_metric([node, each.kind, state], count)
            loads.add_metric([node, each.kind], each.loads.buckets(), each.loads.sum)
            unloads.add_metric([node, each.kind], each.unloads)
        dropped.add_metric([node], broker.dropped)
        sessions.add_metric([node], broker.fetch_sessions)
        of_sessions.add_metric([node], broker.fetch_session_partitions)
        evicted.add_metric([node], broker.fetch_sessions_evicted)
    yield from (connections, accepted, closed, requests, shards, loads, unloads, dropped)
    yield from (sessions, of_sessions, evicted)
    yield GaugeMetricFamily("muster_event_streams", "Open event streams.", value=scrape.watching)
    yield CounterMetricFamily(
        "muster_event_streams_cut",
        "Event streams closed because their reader fell behind or took nothing.",
        value=scrape.cut,
    )
