"""The data for one `/metrics` response, gathered on the loop in short turns."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from muster.coordinator.base.histogram import Histogram
from muster.coordinator.cluster.coordinators import GROUPS, TRANSACTIONS
from muster.coordinator.group.classic import states as classic
from muster.coordinator.group.consumer import group as consumer
from muster.coordinator.journal.entries import Entry
from muster.coordinator.journal.explain import explain_all
from muster.coordinator.observe.lag import PartitionLag
from muster.coordinator.runtime.shard_host import HostState
from muster.coordinator.server.broker import Broker
from muster.coordinator.server.brokers import Brokers
from muster.coordinator.server.connections import Counts
from muster.coordinator.storage.store import LeaseKind
from muster.coordinator.topics.logs import PartitionId
from muster.coordinator.topics.sources import Looked
from muster.coordinator.web import facts, transaction_metrics
from muster.coordinator.web.feed import Feed
from muster.coordinator.web.tallies import UNKNOWN, GroupTally, Tallies
from muster.coordinator.web.transaction_metrics import Transactions

GROUPS_MAX: Final = 2_000
"""Maximum groups with their own series: the first by name."""
PARTITIONS_MAX: Final = 20_000
"""Maximum topic partitions with their own series."""
GROUP_PARTITIONS_MAX: Final = 20_000
"""Maximum group offsets with their own series, in total."""
LABEL_MAX: Final = 500
"""Maximum characters of a label. Kafka allows 32,767 for a group id, and each series of the group repeats it:
groups with longer ids have no series, and other labels are truncated."""

UNKNOWN_ENDS: Final = "unknown_ends"
"""Label of partitions without series, because the ends of their topic could not be read in time."""
UNKNOWN_LAGS: Final = "unknown_lags"
"""Label of committed offsets without lag, because the ends of their group's partitions could not."""

_EXPLAINED_AT_ONCE: Final = 200
"""Maximum groups explained for one response."""

_NO_SHARDS: Final = {state.value: 0 for state in HostState if state is not HostState.CLOSED}
"""Each state has a series, so that an alert sees shards go away."""
_NO_GROUPS: Final = {
    **{("classic", state.value): 0 for state in classic.GroupState},
    **{("consumer", state.value): 0 for state in consumer.GroupState},
}
"""As in Kafka, each state has a series."""

_LOOK_S: Final = 5.0
"""How long to wait for the ends of all partitions."""
_LOOKED_AT_ONCE: Final = 1_000


# --- what is shown ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Owner:
    """The member that a partition is assigned to."""

    host: str
    member_id: str
    client_id: str


@dataclass(slots=True)
class Group:
    """A group, as it was at one moment."""

    group_id: str
    state: str
    members: int
    offsets: list[tuple[str, int, int]]
    """Topic, partition, committed offset."""
    lags: dict[tuple[str, int], PartitionLag]
    owners: dict[tuple[str, int], Owner]
    tally: GroupTally


@dataclass(slots=True)
class Coordinator:
    """A broker's shards of one kind."""

    kind: LeaseKind
    shards: Counter[str]
    """Number of shards, by state."""
    loads: Histogram
    unloads: int


@dataclass(slots=True)
class ScrapedBroker:
    """A broker of the process."""

    node_id: int
    connections: int
    counts: Counts
    dropped: int
    """Journal entries not stored."""
    fetch_sessions: int
    fetch_session_partitions: int
    fetch_sessions_evicted: int
    coordinators: list[Coordinator]


@dataclass(slots=True)
class Scrape:
    """The complete data; no longer changes, so another thread may write it out."""

    cluster: str
    nodes: int
    transactions: Transactions
    topics: list[tuple[str, int]] = field(default_factory=list)
    partitions: list[tuple[str, int, int, int]] = field(default_factory=list)
    """Topic, partition, oldest and current offset."""
    groups: list[Group] = field(default_factory=list)
    counts: dict[tuple[str, str], int] = field(default_factory=_NO_GROUPS.copy)
    """Number of groups, by type and state."""
    epochs: int = 0
    """New epochs of consumer groups since the process started."""
    completed: int = 0
    """Completed rebalances of classic groups since then."""
    brokers: list[ScrapedBroker] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=lambda: {UNKNOWN_ENDS: 0, UNKNOWN_LAGS: 0})
    phases: dict[str, Histogram] = field(default_factory=dict)
    lateness: Histogram | None = None
    watching: int = 0
    """Readers of the event stream."""
    cut: int = 0
    """Readers cut off for falling behind."""


# --- gathering ----------------------------------------------------------------------------------------------


async def gather(brokers: Brokers, feed: Feed, tallies: Tallies) -> Scrape:
    """Gather the current data. Raises HTTPServiceUnavailable without a running broker."""
    topology = facts.any_broker(brokers).topology
    transactions = await transaction_metrics.gather(brokers)
    scrape = Scrape(facts.any_broker(brokers).cluster_id, len(topology.nodes), transactions)
    scrape.watching, scrape.cut = feed.subscribers, feed.cut
    await _partitions(brokers, scrape)
    await facts.refresh_lag(brokers.running)
    await _explain(brokers, tallies)
    await _groups(brokers, tallies, scrape)
    for broker in brokers.running:
        scrape.brokers.append(_broker(broker))
    scrape.phases = {phase: histogram.copy() for phase, histogram in tallies.phases.items()}
    scrape.lateness = tallies.lateness.copy()
    scrape.epochs, scrape.completed = tallies.epochs, tallies.completed
    return scrape


async def _partitions(brokers: Brokers, scrape: Scrape) -> None:
    """A topic is left out as a whole while an end has yet to be read: it would look as if it had shrunk."""
    topics = facts.any_broker(brokers).catalogue.topics()
    scrape.topics = [(topic.name, topic.partitions) for topic in topics[:PARTITIONS_MAX]]
    room, turns = PARTITIONS_MAX, facts.Turns()
    until = asyncio.get_running_loop().time() + _LOOK_S
    of_topics: dict[str, list[tuple[int, Looked]]] = defaultdict(list)
    for broker in brokers.running:
        led: list[tuple[str, PartitionId]] = []
        for topic in broker.catalogue.topics():
            if topic.internal:
                continue
            for partition in range(topic.partitions):
                await turns.next()
                if broker.partitions.leader_epoch(topic, partition) is not None:
                    led.append((topic.name, PartitionId(topic.topic_id, partition)))
        _note_left_out(scrape, "partitions", len(led) - room)
        led = led[:room]
        room -= len(led)
        found: dict[PartitionId, Looked] = {}
        with suppress(OSError, TimeoutError):  # requests and the log report it
            async with asyncio.timeout_at(until):
                for start in range(0, len(led), _LOOKED_AT_ONCE):
                    some = [where for _, where in led[start : start + _LOOKED_AT_ONCE]]
                    found.update(zip(some, await broker.partitions.look(some), strict=True))
        for name, where in led:
            await turns.next()
            of_topics[name].append((where.partition, found.get(where) or broker.partitions.known(where)))
    for name, of_topic in of_topics.items():
        await turns.next()
        unread = any(looked is None for _, looked in of_topic)
        known = [(name, each, *looked) for each, looked in of_topic if isinstance(looked, tuple)]
        shown = [] if unread else known
        scrape.partitions += shown
        _note_left_out(scrape, UNKNOWN_ENDS, len(of_topic) - len(shown))


async def _groups(brokers: Brokers, tallies: Tallies, scrape: Scrape) -> None:
    found = sorted(facts.held(brokers), key=lambda each: each.group.group_id)
    shards = {host.lease.number for broker in brokers.running for host in broker.runtime.hosts()}
    tallies.keep({each.group.group_id for each in found}, shards)
    turns = facts.Turns()
    for each in found:
        await turns.next()
        listed = each.group.listed()
        kind = listed.group_type, listed.group_state
        scrape.counts[kind] += 1
    held = [each for each in found if len(each.group.group_id) <= LABEL_MAX][:GROUPS_MAX]
    _note_left_out(scrape, "groups", len(found) - len(held))
    room = GROUP_PARTITIONS_MAX
    for broker, group, offsets in held:
        committed = [(*each, offset.offset) for each, offset in list(offsets.items())[: max(room, 0)]]
        _note_left_out(scrape, "group_partitions", len(offsets) - len(committed))
        room -= len(committed)
        owners: dict[tuple[str, int], Owner] = {}
        await turns.next()
        view = group.view()
        for member in group.member_views():
            await turns.next()
            labels = member.client_host.lstrip("/"), member.member_id, member.client_id
            owner = Owner(*(label[:LABEL_MAX] for label in labels))
            owners.update((each, owner) for each in facts.assignment_of(view, member) or ())
        scrape.groups.append(
            Group(
                group_id=group.group_id,
                state=view.state,
                members=view.members,
                offsets=committed,
                lags=await _lags(scrape, broker, group.group_id),
                owners=owners,
                tally=tallies.copy_of(group.group_id),
            )
        )


async def _lags(scrape: Scrape, broker: Broker, group_id: str) -> dict[tuple[str, int], PartitionLag]:
    """A group's lags; none as long as an end has yet to be read, since the sum would look as if it had caught
    up."""
    lags = await broker.lag.in_turns(group_id)
    there = [each for each in lags if broker.catalogue.by_name(each.topic) is not None]
    unread = any(each.unread for each in there)
    known = [] if unread else [each for each in there if each.lag is not None]
    _note_left_out(scrape, UNKNOWN_LAGS, len(there) - len(known))
    return {(each.topic, each.partition): each for each in known}


def _note_left_out(scrape: Scrape, what: str, count: int) -> None:
    scrape.left_out[what] = scrape.left_out.get(what, 0) + max(count, 0)


async def _explain(brokers: Brokers, tallies: Tallies) -> None:
    """Explain the rebalances since the last time."""
    waiting = [(group_id, tally) for group_id, tally in tallies.groups.items() if tally.unexplained]
    del waiting[_EXPLAINED_AT_ONCE:]
    for group_id, tally in waiting:  # the rest on the next request
        entries = facts.journalled(brokers, group_id)
        some = list(tally.unexplained)
        found = await asyncio.to_thread(_explained, entries, {each.generation for each in some})
        for each in some:
            if tally.unexplained and tally.unexplained[0] is each:  # no other request came meanwhile
                tally.unexplained.popleft()
                tally.count_rebalance(*found.get(each.generation, (each.trigger, UNKNOWN)))


def _explained(entries: Sequence[Entry], wanted: set[int | None]) -> dict[int | None, tuple[str, str]]:
    """Cause and diagnosis by generation."""
    return {
        each.generation: (each.cause, each.diagnosis.value)
        for each in explain_all(entries)
        if each.generation in wanted
    }


def _broker(broker: Broker) -> ScrapedBroker:
    kinds = (GROUPS, broker.runtime), (TRANSACTIONS, broker.transaction_runtime)
    return ScrapedBroker(
        node_id=broker.node_id,
        connections=len(broker.connections.open),
        counts=replace(broker.connections.counts),
        dropped=broker.recorder.dropped,
        fetch_sessions=len(broker.fetch_sessions),
        fetch_session_partitions=broker.fetch_sessions.partitions,
        fetch_sessions_evicted=broker.fetch_sessions.evicted,
        coordinators=[
            Coordinator(
                kind.lease,
                Counter({**_NO_SHARDS, **Counter(status.state for status in runtime.shards())}),
                runtime.loads.copy(),
                runtime.unloads,
            )
            for kind, runtime in kinds
        ],
    )
