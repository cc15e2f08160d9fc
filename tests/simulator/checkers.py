"""The checkers: what must hold whatever happens. They see the wire and the disk, and know nothing of the code
in between.

A checker is notified of every record as it becomes durable (`written`), of every request as it is sent
(`asked`) and of every reply when the broker puts it on the wire (`replied`), before its client sees it. It
raises a Violation for whatever it finds.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from muster.coordinator.group.config import GroupConfig
from muster.coordinator.group.shard import Shard
from muster.coordinator.journal.entries import Entry
from muster.coordinator.storage.store import Append, Lease
from muster.coordinator.transactions.config import TransactionConfig
from muster.coordinator.transactions.shard import TransactionShard
from muster.protocol.api import ApiKey
from muster.protocol.embedded import decode_assignment
from muster.protocol.messages.coordinator_records import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_record,
)
from tests.simulator.consumer_disk import ConsumerDisk, TopicNames, assigned, counted
from tests.simulator.member import Asked, Partition
from tests.simulator.network import Link
from tests.simulator.node import Node
from tests.simulator.store import Durable, Written, run
from tests.support.journal import check_value


class Violation(AssertionError):
    """A broken promise; the text says which one, and how it was broken."""


@dataclass(slots=True)
class Exchange:
    """One request and its outcome."""

    asked: Asked
    link: Link
    sent_s: float
    acknowledged: dict[tuple[str, Partition], int] = field(default_factory=dict)
    """The highest acknowledged commit per partition when the request was sent; for OffsetFetch only."""
    while_loading: bool = False
    """Whether the broker was loading the group as it replied; for Heartbeat only."""

    @property
    def api(self) -> ApiKey:
        return self.asked.api_key

    @property
    def request(self) -> Any:
        return self.asked.request

    def __repr__(self) -> str:
        return f"{self.api.name} v{self.asked.version} sent at {self.sent_s:.3f} s: {self.request!r}"


class Disk:
    """The history of groups and offsets, as the records show it."""

    def __init__(self, names: TopicNames | None = None) -> None:
        self.names = names or TopicNames(list)
        self.consumers = ConsumerDisk()
        self.offsets: dict[tuple[str, Partition], list[OffsetCommitValue | None]] = defaultdict(list)
        self.groups: dict[str, list[GroupMetadataValue | None]] = defaultdict(list)
        self.downgraded: dict[str, int] = {}
        """The classic groups that were consumer groups before, each with its first generation since."""
        self.deletions: Counter[str] = Counter()
        """How often each group's metadata was deleted: it was removed, or changed its kind."""
        self._removals: Counter[str] = Counter()
        self._deleted_in: dict[str, int] = {}
        """The generation or epoch of each group whose metadata was deleted last."""

    def written(self, written: Written) -> tuple[str, Partition] | None:
        """Like `take`, for a record as it was stored."""
        decoded: Any = decode_record(written.key, written.value)
        return self.take(*decoded)

    def take(self, key: Any, value: Any) -> tuple[str, Partition] | None:
        """Take in a record; returns group and partition if it is a committed offset."""
        match key:
            case OffsetCommitKey():
                committed = (key.group, (key.topic, key.partition))
                self.offsets[committed].append(value)
                return committed
            case GroupMetadataKey():
                (before,) = self.groups[key.group][-1:] or [None]
                if value is None:
                    # A group with members is not removed: it becomes a consumer group, whatever its epoch is.
                    self._deleted(key.group, before.generation if before and not before.members else 0)
                elif self._goes_on(key.group, value.generation + 1):
                    # "+ 1": the request that made it a classic group again may have bumped the epoch.
                    self.downgraded[key.group] = value.generation
                self.groups[key.group].append(value)
                self.consumers.touched.add(key.group)
            case ConsumerGroupMetadataKey():
                if value is None:
                    self._deleted(key.group_id, self.consumers.groups[key.group_id].epoch or 0)
                else:
                    self._goes_on(key.group_id, value.epoch)
                self.consumers.written(key, value)
            case _:
                self.consumers.written(key, value)
        return None

    def _deleted(self, group_id: str, number: int) -> None:
        """Count a removal; `_goes_on` takes it back if the group has only changed its kind."""
        self.deletions[group_id] += 1
        self._removals[group_id] += 1
        self._deleted_in[group_id] = number
        self.downgraded.pop(group_id, None)

    def _goes_on(self, group_id: str, number: int) -> bool:
        """Whether a group goes on, in this generation or epoch, whose metadata was deleted before."""
        goes_on = number >= self._deleted_in.pop(group_id, number + 1)
        self._removals[group_id] -= goes_on
        return goes_on

    def is_synced(self, request: Any, response: Any) -> bool:
        """Whether a SyncGroup response holds the assignment of a classic group."""
        return any(
            member.member_id == request.member_id and member.assignment == response.assignment
            for group in self.groups[request.group_id]
            if group is not None and group.generation == request.generation_id
            for member in group.members
        )

    def is_had(self, request: Any, response: Any) -> bool:
        """Whether a member of a consumer group was ever written to own what a SyncGroup response holds."""
        told = {
            (topic.topic, number)
            for topic in decode_assignment(response.assignment).assigned_partitions
            for number in topic.partitions
        }
        for has in self.consumers.history[request.group_id, request.member_id]:
            had = {(self.names.of.get(topic_id, ""), number) for topic_id, number in assigned(has)}
            if has.member_epoch == request.generation_id and told <= had:
                left_out = {name for name, _ in had - told}
                if left_out <= self.names.deleted:
                    return True
        return False

    def is_classic(self, request: Any, response: Any) -> bool:
        """Whether a SyncGroup is answered by a classic group."""
        return self.is_synced(request, response) or not self.is_had(request, response)

    def incarnation(self, group_id: str) -> int:
        """Number of times the group was removed: a recreated group counts its generations from the start. One
        that has become a consumer group, or a classic one again, goes on counting."""
        return self._removals[group_id]

    def committed(self, group_id: str) -> dict[Partition, tuple[int, str]]:
        """The current committed offsets: offset and metadata."""
        return {
            partition: (history[-1].offset, history[-1].metadata)
            for (group, partition), history in self.offsets.items()
            if group == group_id and history[-1] is not None
        }


def committed_partitions(request: Any) -> list[tuple[Partition, int, str]]:
    """Partition, offset and metadata of each entry in an OffsetCommit."""
    return [
        ((topic.name, each.partition_index), each.committed_offset, each.committed_metadata)
        for topic in request.topics
        for each in topic.partitions
    ]


def acknowledged_partitions(response: Any) -> set[Partition]:
    return {
        (topic.name, each.partition_index)
        for topic in response.topics
        for each in topic.partitions
        if each.error_code == 0
    }


def fetched_groups(request: Any, response: Any) -> list[tuple[str, Any]]:
    """Group id and its part of an OffsetFetch response, for any version."""
    if response.groups:
        return [(group.group_id, group) for group in response.groups]
    return [(request.group_id, response)]


# --- 1 -------------------------------------------------------------------------------------------


class OneOwner:
    """A partition has at most one owner in a classic group's generation, and an owner has one assignment."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._owners: dict[tuple[object, ...], str] = {}
        self._assignments: dict[tuple[object, ...], bytes] = {}
        self._assigned: dict[tuple[object, ...], set[Partition]] = {}

    def replied(self, exchange: Exchange, response: Any) -> None:
        if exchange.api is not ApiKey.SYNC_GROUP or response.error_code != 0:
            return
        request = exchange.request
        if not self._disk.is_classic(request, response):
            return
        generation = (request.group_id, self._disk.incarnation(request.group_id), request.generation_id)
        # A static member that is replaced within a generation passes its partitions on to its successor.
        owner = request.group_instance_id or request.member_id
        # A group that has changed its kind and back keeps the partitions, in an encoding of the broker's own.
        encoding = (*generation, self._disk.deletions[request.group_id], owner)
        encoded = self._assignments.setdefault(encoding, response.assignment)
        topics = decode_assignment(response.assignment).assigned_partitions
        assigned = {(topic.topic, partition) for topic in topics for partition in topic.partitions}
        moved = assigned ^ self._assigned.setdefault((*generation, owner), assigned)
        if encoded != response.assignment or not {topic for topic, _ in moved} <= self._disk.names.deleted:
            raise Violation(f"{owner} was given two assignments in {generation}")
        for topic in topics:
            for partition in topic.partitions:
                other = self._owners.setdefault((*generation, topic.topic, partition), owner)
                if other != owner:
                    raise Violation(
                        f"{topic.topic}-{partition} has two owners in {generation}: {other}, {owner}"
                    )


# --- 2 -------------------------------------------------------------------------------------------


class CommitsKept:
    """An acknowledged commit is never lost, neither on the disk nor in replies to consumers, and committed
    offsets never go back (the simulated consumers never commit less than they were told).
    """

    def __init__(self, disk: Disk) -> None:
        self.acknowledged: dict[tuple[str, Partition], int] = {}
        """The highest offset per partition."""
        self.count = 0
        self._disk = disk

    def written(self, key: tuple[str, Partition]) -> None:
        """Called after the disk has taken a committed offset."""
        now, *before = self._disk.offsets[key][::-1]
        if self._has_gone(key):
            return
        if now is None:
            raise Violation(f"{key} was deleted, though nobody asked for that: {before[:1]}")
        if before and before[0] is not None and now.offset < before[0].offset:
            raise Violation(f"{key} went back from {before[0]} to {now}")

    def _has_gone(self, key: tuple[str, Partition]) -> bool:
        """Whether a topic of that name was deleted, and its offsets with it. Commits for its successor of the
        same name may be lower, so they are not checked."""
        return key[1][0] in self._disk.names.deleted

    def asked(self, exchange: Exchange) -> None:
        if exchange.api is ApiKey.OFFSET_FETCH:
            exchange.acknowledged = dict(self.acknowledged)

    def replied(self, exchange: Exchange, response: Any) -> None:
        if exchange.api is ApiKey.OFFSET_COMMIT:
            acknowledged = acknowledged_partitions(response)
            for partition, offset, _ in committed_partitions(exchange.request):
                if partition in acknowledged:
                    self.count += 1
                    key = (exchange.request.group_id, partition)
                    self.acknowledged[key] = max(offset, self.acknowledged.get(key, -1))
        elif exchange.api is ApiKey.OFFSET_FETCH:
            for group_id, group in fetched_groups(exchange.request, response):
                if group.error_code == 0:
                    self._check_told(exchange, group_id, group)

    def _check_told(self, exchange: Exchange, group_id: str, group: Any) -> None:
        told = {
            (topic.name, each.partition_index): each.committed_offset
            for topic in group.topics
            for each in topic.partitions
        }
        everything = any(each.topics is None for each in exchange.request.groups)
        for (acknowledged_group, partition), least in exchange.acknowledged.items():
            if self._has_gone((group_id, partition)):
                continue
            if acknowledged_group == group_id and (everything or partition in told):
                offset = told.get(partition, -1)
                if offset < least:
                    raise Violation(
                        f"{partition} of {group_id!r}: told {offset}, {least} was acknowledged before"
                    )

    def finished(self) -> None:
        for key, least in self.acknowledged.items():
            if self._has_gone(key):
                continue
            history = self._disk.offsets[key]
            if not history or history[-1] is None or history[-1].offset < least:
                raise Violation(f"{key}: {least} was acknowledged, on the disk is {history[-1:]}")


# --- 3 -------------------------------------------------------------------------------------------


class ReplayEqualsLive:
    """A shard's durable state equals what its rows in the store would be loaded as."""

    def __init__(self, durable: Durable) -> None:
        self._durable = durable
        self.compared = 0

    def look(self, node: Node) -> None:
        """Compare the node's shards; none of their writes may be in flight to the store."""
        for lease, shard in node.live_shards().items():
            replayed = _blank(shard)
            for _, key, value in run(self._durable.memory.load(lease)):
                replayed.apply(key, value)
            self.compared += 1
            if replayed.durable() != shard.durable():
                raise Violation(
                    f"node {node.node_id} has in {lease}\n  {shard.durable()}\n"
                    f"but the store would be loaded as\n  {replayed.durable()}"
                )
            if isinstance(replayed, TransactionShard) or isinstance(shard, TransactionShard):
                continue
            if counted(replayed) != counted(shard):
                raise Violation(
                    f"node {node.node_id} has counted in {lease}\n  {counted(shard)}\n"
                    f"but the store would be loaded as\n  {counted(replayed)}"
                )


def _blank(shard: Shard | TransactionShard) -> Shard | TransactionShard:
    """An empty shard of the same kind."""
    if isinstance(shard, TransactionShard):
        return TransactionShard(shard.number, TransactionConfig(900_000, 604_800_000), new_id=lambda: 0)
    return Shard(shard.number, GroupConfig())


# --- 4 -------------------------------------------------------------------------------------------


class Journalled:
    """Journal entries match their schema, are in the right shard, and are stored with what they report. Where
    there was no room for them, groups go on without."""

    def __init__(self) -> None:
        self.entries = 0
        self._shapes: set[object] = set()

    def appended(self, append: Append, *, room: bool) -> None:
        """A transaction became durable; `room` says whether the store has had room for a while."""
        told: set[tuple[str | None, int | None]] = set()
        for row in append.journal:
            try:
                self._check_schema(row.value)
                entry = Entry.from_json(row.value)
            except (AssertionError, ValueError) as fault:
                raise Violation(f"an entry in {append.lease} is none: {fault}") from fault
            key = None if entry.group is None else entry.group.encode()
            if (entry.shard, entry.at_ms, key) != (append.lease.number, row.at_ms, row.key):
                raise Violation(f"{entry} is not where it belongs: {row}")
            told.add((entry.group, entry.generation))
            self.entries += 1
        for raw_key, value in append.records:
            if not room or value is None:
                continue
            match decode_record(raw_key, value):
                case GroupMetadataKey() as group, GroupMetadataValue() as stored:
                    self._require(group.group, stored.generation, told)
                case ConsumerGroupMetadataKey() as group, ConsumerGroupMetadataValue() as stored:
                    self._require(group.group_id, stored.epoch, told)

    def _require(self, group_id: str, generation: int, told: set[tuple[str | None, int | None]]) -> None:
        if (group_id, generation) not in told:
            raise Violation(f"{group_id} in generation {generation} has no entry: {told}")

    def _check_schema(self, value: bytes) -> None:
        """Check one entry of each shape per run: checking all of them would take a seventh of its time."""
        shape = _shape(json.loads(value))
        if shape not in self._shapes:
            check_value(value)
            self._shapes.add(shape)


def _shape(value: object) -> object:
    """A JSON value without what no schema distinguishes: the values of numbers, and names with digits."""
    match value:
        case dict():
            return tuple((name, _shape(each)) for name, each in sorted(value.items()))
        case list():
            return frozenset(map(_shape, value))
        case str():
            return value if value.isalpha() or "_" in value else str
        case bool() | None:
            return value
        case int() | float():
            return type(value), value < 0
    raise AssertionError(f"not of JSON: {value!r}")


# --- 5 -------------------------------------------------------------------------------------------


class DurableFirst:
    """No reply leaves before the records of its step, and none reveals state that is not on the disk."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def replied(self, exchange: Exchange, response: Any) -> None:
        request = exchange.request
        if exchange.api is ApiKey.OFFSET_COMMIT:
            acknowledged = acknowledged_partitions(response)
            for partition, offset, metadata in committed_partitions(request):
                if partition in acknowledged:
                    self._find(request.group_id, partition, offset, metadata, "a commit was acknowledged")
        elif exchange.api is ApiKey.OFFSET_FETCH:
            for group_id, group in fetched_groups(request, response):
                for topic in group.topics:
                    for each in topic.partitions:
                        if each.committed_offset >= 0:
                            partition = (topic.name, each.partition_index)
                            self._find(
                                group_id,
                                partition,
                                each.committed_offset,
                                each.metadata,
                                "an offset was told",
                            )
        elif exchange.api is ApiKey.SYNC_GROUP and response.error_code == 0:
            self._find_assignment(request, response)

    def _find_assignment(self, request: Any, response: Any) -> None:
        if not (self._disk.is_synced(request, response) or self._disk.is_had(request, response)):
            raise Violation(
                f"an assignment was handed out before it was durable: {request.member_id} of "
                f"{request.group_id!r}, generation {request.generation_id}"
            )

    def _find(self, group_id: str, partition: Partition, offset: int, metadata: str, what: str) -> None:
        history = self._disk.offsets[group_id, partition]
        if not any(
            value is not None and (value.offset, value.metadata) == (offset, metadata) for value in history
        ):
            raise Violation(
                f"{what} before it was durable: {offset} ({metadata}) of {partition} in {group_id!r}"
            )


# --- 6 -------------------------------------------------------------------------------------------


class OnlyGrows:
    """The epochs that write to a lease only grow, and so do the generations a group has synced. Once a
    generation is synced, or stored for a consumer group that becomes a classic one, members of the previous
    one are told so by any broker: otherwise a partition would have two owners, one in each. Only a broker
    that is loading the group knows no generation yet: as in Kafka, it answers a Heartbeat without an error,
    and the next one reports it. A commit counts from when it became durable: a broker that was paused may
    acknowledge it late, and it is valid all the same.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._epochs: dict[Lease, int] = {}
        self._synced: dict[tuple[str, int], int] = {}
        self._synced_at_commit: dict[tuple[str, Partition, int, str], int] = {}
        """The newest generation when an offset was last written: by group, partition, offset, metadata."""

    def written(self, written: Written) -> None:
        newest = self._epochs.setdefault(written.lease, written.epoch)
        if written.epoch < newest:
            raise Violation(f"{written.lease} was written under epoch {written.epoch} after {newest}")
        self._epochs[written.lease] = written.epoch

    def committed(self, committed: tuple[str, Partition]) -> None:
        """The disk's newest offset of a partition has just been written."""
        group_id, partition = committed
        value = self._disk.offsets[committed][-1]
        if value is not None and not self._disk.consumers.is_consumer(group_id):
            written = group_id, partition, value.offset, value.metadata
            self._synced_at_commit[written] = self._newest(group_id)

    def replied(self, exchange: Exchange, response: Any) -> None:
        request = exchange.request
        if exchange.api is ApiKey.HEARTBEAT or exchange.api is ApiKey.SYNC_GROUP:
            if response.error_code or self._disk.consumers.is_consumer(request.group_id):
                return  # members of a consumer group have epochs of their own
            if not exchange.while_loading:
                self._check(exchange, request.generation_id, self._newest(request.group_id))
            if exchange.api is ApiKey.SYNC_GROUP and self._disk.is_classic(request, response):
                self._synced[self._group(request.group_id)] = request.generation_id
        elif exchange.api is ApiKey.OFFSET_COMMIT:
            acknowledged = acknowledged_partitions(response)
            for partition, offset, metadata in committed_partitions(request):
                if partition in acknowledged:
                    written = request.group_id, partition, offset, metadata
                    newest = self._synced_at_commit.get(written, -1)
                    self._check(exchange, request.generation_id_or_member_epoch, newest)

    def _newest(self, group_id: str) -> int:
        return max(self._synced.get(self._group(group_id), -1), self._disk.downgraded.get(group_id, -1))

    def _check(self, exchange: Exchange, generation_id: int, newest: int) -> None:
        if generation_id < newest:
            raise Violation(
                f"generation {newest} was synced, and a member of {generation_id} is not told: {exchange!r}"
            )

    def _group(self, group_id: str) -> tuple[str, int]:
        return group_id, self._disk.incarnation(group_id)


# --- 7 -------------------------------------------------------------------------------------------

REBALANCE_TIMEOUT_MAX_S = 20.0
_SLACK_S = 3.0  # the network both ways, and timers that fire a little late
_STORE_S = 5.0  # offsets.commit.timeout.ms

_LIMITS_S = {
    # Waits for the whole join phase, which may have begun with an initial delay of up to the rebalance
    # timeout.
    ApiKey.JOIN_GROUP: 2 * REBALANCE_TIMEOUT_MAX_S + _STORE_S + _SLACK_S,
    # Waits for the leader, which has the rebalance timeout.
    ApiKey.SYNC_GROUP: REBALANCE_TIMEOUT_MAX_S + _STORE_S + _SLACK_S,
    # Names its own limit: the time muster's client has in a simulated process, 15 s at most.
    ApiKey.LIST_OFFSETS: 15.0 + _STORE_S + _SLACK_S,
    # Waits for the store however long it takes: stalls of 9 s, and 12 s without reaching it.
    ApiKey.CREATE_PARTITIONS: 40.0 + _SLACK_S,
    ApiKey.CREATE_TOPICS: 40.0 + _SLACK_S,
    ApiKey.DELETE_TOPICS: 40.0 + _SLACK_S,
    # Waits for a producer id first, 5 s at most.
    ApiKey.INIT_PRODUCER_ID: 5.0 + _STORE_S + _SLACK_S,
    # Query a coordinator first, which gets 5 s.
    ApiKey.PRODUCE: 5.0 + _STORE_S + _SLACK_S,
    ApiKey.TXN_OFFSET_COMMIT: 5.0 + _STORE_S + _SLACK_S,
}
_LIMIT_S = _STORE_S + _SLACK_S


class Answered:
    """Every request is answered, or its connection closed, within its deadline, counted in time the broker
    was running.
    """

    def __init__(
        self, call_later: Callable[[float, Callable[[], None]], object], nodes: dict[tuple[str, int], Node]
    ) -> None:
        self._call_later = call_later
        self._nodes = nodes
        self._open: dict[Link, dict[int, Exchange]] = {}

    def asked(self, exchange: Exchange, arrives_in_s: float = 0.0) -> None:
        if exchange.link.closed_by_broker:
            return
        self._open.setdefault(exchange.link, {})[exchange.asked.correlation_id] = exchange
        node = self._nodes[exchange.link.address]
        limit_s = _LIMITS_S.get(exchange.api, _LIMIT_S) + arrives_in_s
        self._watch(exchange, node, node.running_s() + limit_s)

    def replied(self, exchange: Exchange, _: Any) -> None:
        del self._open[exchange.link][exchange.asked.correlation_id]

    def closed(self, link: Link) -> None:
        self._open.pop(link, None)

    def exchange(self, link: Link, correlation_id: int) -> Exchange | None:
        return self._open.get(link, {}).get(correlation_id)

    def _watch(self, exchange: Exchange, node: Node, deadline_s: float) -> None:
        left_s = deadline_s - node.running_s()
        if left_s > 0:
            # At least a little: time during which the node is paused does not count, but must pass.
            self._call_later(max(left_s, 0.1), lambda: self._check(exchange, node, deadline_s))
        elif not exchange.link.loses_requests:
            raise Violation(f"neither answered nor closed in time: {exchange!r}")

    def _check(self, exchange: Exchange, node: Node, deadline_s: float) -> None:
        if self.exchange(exchange.link, exchange.asked.correlation_id) is exchange:
            self._watch(exchange, node, deadline_s)
