"""The interesting situations that a run has been through, recognised on the wire and the disk, independently
of the code that has to cope with them.

A simulator that never kills a broker between a member's JoinGroup and its SyncGroup proves nothing about that
case. So the situations that matter have names here and are counted, and a thousand seeds must have seen each.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol

from muster.coordinator.storage.store import Append, Outcome
from muster.protocol.api import ApiKey
from muster.protocol.embedded import decode_assignment
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.coordinator_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    decode_record,
)
from tests.simulator.checkers import Disk, Exchange
from tests.simulator.epoch_coverage import EPOCH_SITUATIONS, EpochCoverage
from tests.simulator.expected import codes
from tests.simulator.network import Address, Link
from tests.simulator.store import Fault, Written
from tests.simulator.stream import CLIENT_HOST
from tests.simulator.transaction_coverage import TRANSACTION_SITUATIONS, TransactionCoverage

SITUATIONS: dict[str, str] = {
    "leader dies between join and sync": "it was told to assign, and nobody hears from it again",
    "follower dies between join and sync": "the leader assigns to somebody who is gone",
    "muster's own client leads others": "and assigns to members that are not",
    "muster's own client is led by others": "",
    "leader leaves": "with LeaveGroup",
    "member id never used": "handed out with MEMBER_ID_REQUIRED, and whoever got it died",
    "member comes back after it was dropped": "its Heartbeat or SyncGroup is answered UNKNOWN_MEMBER_ID",
    "subscription changes": "a member rejoins under its id with other metadata",
    "static member is replaced": "its instance joins without an id, and gets another one",
    "two live members share an instance": "the older one is told so while its connection is open",
    "static members swap": "two processes come back, each as the other's instance",
    "parked join is asked again": "over another connection, and the first one is answered",
    "sync of an old generation": "answered ILLEGAL_GENERATION",
    "sync while the next rebalance runs": "answered REBALANCE_IN_PROGRESS",
    "late commit of an old generation": "answered ILLEGAL_GENERATION",
    "late commit of a member that is gone": "answered UNKNOWN_MEMBER_ID",
    "commit while joins are awaited": "taken, as clients commit before they give partitions away",
    "commit while the assignment is awaited": "answered REBALANCE_IN_PROGRESS",
    "group becomes empty and is joined again": "a generation without members, and then one with some",
    "broker dies with a parked join": "",
    "broker dies with a parked sync": "",
    "broker dies with a commit under way": "nobody knows whether it was kept",
    "failover between join and sync": "who joined at one broker has to join at another before it synced",
    "failover without a rebalance": "a member goes on in its generation at another broker",
    "generation is lost in a failover": "a second coordinator begins it too, as nothing of it was stored",
    "coordinator restarts": "the same broker coordinates again after its death",
    "coordinator leaves during a rebalance": "in good order",
    "shard is loaded again while joins are parked": "the broker lives, the shard had to stop",
    "paused broker wakes and another has its groups": "what it takes for its own is not any more",
    "takeover by a skewed clock": "the two brokers' wall clocks are more than a second apart",
    "coordinator is out of its clients' reach": "while it reaches the store, so nobody takes over",
    "request is lost on a half-open connection": "",
    "reply is lost on a half-open connection": "",
    "topic grows under its group": "a leader divides up more partitions than before",
    "append is fenced": "the store refuses an old epoch",
    "assignment is not stored": "the store fails, and nothing was written",
    "assignment is stored and the answer lost": "the broker cannot know it",
    "transaction is torn": "of several shards, some were stored",
    "store is full in a rebalance": "an assignment finds no room",
    "commit is stored and the answer lost": "",
    **EPOCH_SITUATIONS,
    **TRANSACTION_SITUATIONS,
}
"""Each situation by name, with what it means."""


class Ending(Enum):
    """How a broker or a member ends."""

    DIES = "dies"
    LEAVES = "leaves"


class Broker(Protocol):
    """The parts of a node that are looked at."""

    kills: int
    skew_ms: int


class _Coordinator(NamedTuple):
    address: Address
    kills: int
    skew_ms: int


@dataclass(slots=True)
class _Joined:
    """A member's place in a generation."""

    leads: bool
    told_by: _Coordinator
    asked_sync: bool = False


@dataclass(slots=True)
class _Group:
    open: set[int] = field(default_factory=set)  # ids of exchanges
    coordinator: _Coordinator | None = None
    joined: dict[str, _Joined] = field(default_factory=dict)
    """By client, until it receives its assignment."""
    began: dict[int, _Coordinator] = field(default_factory=dict)
    """Which coordinator began which generation."""
    synced: set[str] = field(default_factory=set)  # member ids
    homes: dict[tuple[str, int], Address] = field(default_factory=dict)
    """By member id and generation, the broker that gave it its assignment."""
    leader: str = ""
    metadata: dict[str, bytes] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    processes: dict[str, str] = field(default_factory=dict)  # instance id -> client
    exchanged: set[tuple[str, str]] = field(default_factory=set)
    """Pairs of clients of which the second took over the instance of the first."""
    divided: int = 0  # partitions that a leader assigned
    unused_ids: dict[str, str] = field(default_factory=dict)  # client -> member id
    empty: bool = False
    refused_joins: set[_Coordinator] = field(default_factory=set)


class Coverage:
    """Counts the situations of one run."""

    def __init__(self, brokers: Mapping[Address, Broker], disk: Disk | None = None) -> None:
        self.seen: Counter[str] = Counter()
        self.epochs = EpochCoverage(disk or Disk(), self._saw)
        self.transactions = TransactionCoverage(self._saw)
        self._brokers = brokers
        self._groups: dict[str, _Group] = defaultdict(_Group)
        self._open: dict[int, Exchange] = {}
        self._paused: dict[Address, set[str]] = {}

    def _saw(self, situation: str) -> None:
        assert situation in SITUATIONS, situation
        self.seen[situation] += 1

    def _coordinator(self, link: Link) -> _Coordinator:
        broker = self._brokers[link.address]
        return _Coordinator(link.address, broker.kills, broker.skew_ms)

    # --- the wire -----------------------------------------------------------------------------------

    def asked(self, exchange: Exchange) -> None:
        self.epochs.asked(exchange)
        self.transactions.asked(exchange)
        for group_id in _group_ids(exchange.request):
            group = self._groups[group_id]
            group.open.add(id(exchange))
            if exchange.api is ApiKey.SYNC_GROUP:
                if exchange.asked.client in group.joined:
                    group.joined[exchange.asked.client].asked_sync = True
            elif exchange.api is ApiKey.JOIN_GROUP:
                self._asked_join(group, exchange)
            elif exchange.api is ApiKey.LEAVE_GROUP:
                leaving = {exchange.request.member_id, *(each.member_id for each in exchange.request.members)}
                if group.leader in leaving - {""}:
                    self._saw("leader leaves")
        self._open[id(exchange)] = exchange
        if exchange.link.loses_requests:
            self._saw("request is lost on a half-open connection")

    def _asked_join(self, group: _Group, exchange: Exchange) -> None:
        request, client = exchange.request, exchange.asked.client
        joined = group.joined.pop(client, None)
        if joined is not None and joined.told_by.address != exchange.link.address:
            self._saw("failover between join and sync")
        if request.member_id and group.unused_ids.get(client) == request.member_id:
            del group.unused_ids[client]
        metadata = request.protocols[0].metadata
        if request.member_id and group.metadata.get(request.member_id, metadata) != metadata:
            self._saw("subscription changes")
        group.metadata[request.member_id] = metadata

    def replied(self, exchange: Exchange, response: Any) -> None:
        self._forget(exchange)
        self.epochs.replied(exchange, response)
        self.transactions.replied(exchange, response)
        if exchange.link.loses_replies:
            self._saw("reply is lost on a half-open connection")
        found = codes(response)
        told_by = self._coordinator(exchange.link)
        for group_id in _group_ids(exchange.request):
            group = self._groups[group_id]
            if exchange.api is ApiKey.JOIN_GROUP:
                self._replied_join(group, exchange, response, told_by)
            elif exchange.api is ApiKey.SYNC_GROUP:
                self._replied_sync(group, exchange, response)
            elif exchange.api is ApiKey.OFFSET_COMMIT:
                self._replied_commit(group, found)
            elif exchange.api is ApiKey.HEARTBEAT:
                self._replied_member(group, exchange, response)
                self._went_on(group, exchange, response)
            if exchange.api is not ApiKey.FIND_COORDINATOR and found <= {ErrorCode.NONE}:
                self._coordinates(group_id, group, told_by)

    def _coordinates(self, group_id: str, group: _Group, told_by: _Coordinator) -> None:
        before, group.coordinator = group.coordinator, told_by
        if before is None or before == told_by:
            if told_by in group.refused_joins:
                group.refused_joins.clear()
                self._saw("shard is loaded again while joins are parked")
            return
        group.refused_joins.clear()
        if before.address == told_by.address:
            self._saw("coordinator restarts")
        if abs(before.skew_ms - told_by.skew_ms) > 1_000:
            self._saw("takeover by a skewed clock")
        for address, groups in self._paused.items():
            if address != told_by.address and before.address == address:
                groups.add(group_id)

    def _replied_join(self, group: _Group, exchange: Exchange, response: Any, told_by: _Coordinator) -> None:
        request, client = exchange.request, exchange.asked.client
        match response.error_code:
            case ErrorCode.MEMBER_ID_REQUIRED:
                group.unused_ids[client] = response.member_id
            case ErrorCode.REBALANCE_IN_PROGRESS:
                self._saw("parked join is asked again")
            case ErrorCode.NOT_COORDINATOR if group.coordinator == told_by:
                group.refused_joins.add(told_by)
            case ErrorCode.NONE:
                leads = response.leader == response.member_id
                if exchange.link.client_host == CLIENT_HOST:
                    self._saw_own_client(leads, alone=leads and len(response.members) == 1)
                group.joined[client] = _Joined(leads, told_by)
                group.leader = response.leader
                if group.began.setdefault(response.generation_id, told_by) != told_by:
                    group.began[response.generation_id] = told_by
                    self._saw("generation is lost in a failover")
                if group.empty:
                    group.empty = False
                    self._saw("group becomes empty and is joined again")
                instance = request.group_instance_id
                if instance is not None:
                    before = group.instances.get(instance, response.member_id)
                    group.instances[instance] = response.member_id
                    if before != response.member_id:
                        self._saw("static member is replaced")
                    self._took_over(group, instance, client)
        self._fenced(exchange, response.error_code)

    def _saw_own_client(self, leads: bool, *, alone: bool) -> None:
        if not leads:
            self._saw("muster's own client is led by others")
        elif not alone:
            self._saw("muster's own client leads others")

    def _took_over(self, group: _Group, instance: str, client: str) -> None:
        former = group.processes.get(instance, client)
        group.processes[instance] = client
        if former != client:
            group.exchanged.add((former, client))
            if (client, former) in group.exchanged:
                group.exchanged -= {(client, former), (former, client)}
                self._saw("static members swap")

    def _replied_sync(self, group: _Group, exchange: Exchange, response: Any) -> None:
        match response.error_code:
            case ErrorCode.NONE:
                group.synced.add(exchange.request.member_id)
                place = exchange.request.member_id, exchange.request.generation_id
                group.homes.setdefault(place, exchange.link.address)
                if exchange.request.assignments:
                    self._divided(group, exchange.request.assignments)
                group.joined.pop(exchange.asked.client, None)
            case ErrorCode.ILLEGAL_GENERATION:
                self._saw("sync of an old generation")
            case ErrorCode.REBALANCE_IN_PROGRESS:
                self._saw("sync while the next rebalance runs")
        self._replied_member(group, exchange, response)

    def _divided(self, group: _Group, assignments: Iterable[Any]) -> None:
        highest = max(
            (
                partition
                for each in assignments
                for topic in decode_assignment(each.assignment).assigned_partitions
                if topic.topic == "orders"
                for partition in topic.partitions
            ),
            default=0,
        )
        if 0 < group.divided < highest:
            self._saw("topic grows under its group")
        group.divided = highest

    def _replied_member(self, group: _Group, exchange: Exchange, response: Any) -> None:
        if response.error_code == ErrorCode.UNKNOWN_MEMBER_ID and exchange.request.member_id in group.synced:
            self._saw("member comes back after it was dropped")
        self._fenced(exchange, response.error_code)

    def _went_on(self, group: _Group, exchange: Exchange, response: Any) -> None:
        place = exchange.request.member_id, exchange.request.generation_id
        if (
            response.error_code == 0
            and group.homes.get(place, exchange.link.address) != exchange.link.address
        ):
            group.homes[place] = exchange.link.address
            self._saw("failover without a rebalance")

    def _fenced(self, exchange: Exchange, code: int) -> None:
        if code == ErrorCode.FENCED_INSTANCE_ID and exchange.link.open:
            self._saw("two live members share an instance")

    def _replied_commit(self, group: _Group, found: set[int]) -> None:
        if ErrorCode.ILLEGAL_GENERATION in found:
            self._saw("late commit of an old generation")
        if ErrorCode.UNKNOWN_MEMBER_ID in found:
            self._saw("late commit of a member that is gone")
        if ErrorCode.REBALANCE_IN_PROGRESS in found:
            self._saw("commit while the assignment is awaited")
        if found <= {ErrorCode.NONE} and self._parked(group, ApiKey.JOIN_GROUP):
            self._saw("commit while joins are awaited")

    def closed(self, link: Link) -> None:
        self.transactions.closed(link)
        for exchange in [each for each in self._open.values() if each.link is link]:
            self._forget(exchange)

    def _forget(self, exchange: Exchange) -> None:
        self._open.pop(id(exchange), None)
        for group_id in _group_ids(exchange.request):
            self._groups[group_id].open.discard(id(exchange))

    def _parked(self, group: _Group, api: ApiKey, address: Address | None = None) -> bool:
        return any(
            exchange.api is api and address in (None, exchange.link.address)
            for exchange in map(self._open.__getitem__, group.open)
        )

    # --- members and brokers ------------------------------------------------------------------------

    def member_ends(self, group_id: str, client: str) -> None:
        """Called when a member's process is gone."""
        group = self._groups[group_id]
        joined = group.joined.pop(client, None)
        if joined is not None and not joined.asked_sync:
            self._saw(f"{'leader' if joined.leads else 'follower'} dies between join and sync")
        if group.unused_ids.pop(client, None) is not None:
            self._saw("member id never used")

    def broker_ends(self, address: Address, how: Ending) -> None:
        """Called before a broker ends."""
        if how is Ending.DIES:
            self.epochs.broker_dies(address)
            self.transactions.broker_dies(address)
        for group in self._groups.values():
            if how is Ending.LEAVES:
                if self._parked(group, ApiKey.JOIN_GROUP, address) or self._parked(
                    group, ApiKey.SYNC_GROUP, address
                ):
                    self._saw("coordinator leaves during a rebalance")
                continue
            for api, situation in (
                (ApiKey.JOIN_GROUP, "broker dies with a parked join"),
                (ApiKey.SYNC_GROUP, "broker dies with a parked sync"),
                (ApiKey.OFFSET_COMMIT, "broker dies with a commit under way"),
            ):
                if self._parked(group, api, address):
                    self._saw(situation)

    def broker_is_cut_off(self, address: Address) -> None:
        """Called when a broker is cut off from clients."""
        if any(group.coordinator and group.coordinator.address == address for group in self._groups.values()):
            self._saw("coordinator is out of its clients' reach")

    def broker_pauses(self, address: Address) -> None:
        self._paused[address] = set()

    def broker_wakes(self, address: Address) -> None:
        if self._paused.pop(address, None):
            self._saw("paused broker wakes and another has its groups")

    # --- the disk -----------------------------------------------------------------------------------

    def written(self, written: Written) -> None:
        match decode_record(written.key, written.value):
            case GroupMetadataKey() as key, value:
                self._groups[key.group].empty = value is None or not value.members  # type: ignore[attr-defined]

    def appended(self, append: Append, outcome: Outcome) -> None:
        if outcome is Outcome.FENCED and append.records:
            self._saw("append is fenced")

    def failed(self, appends: Iterable[Append], fault: Fault) -> None:
        """Called when the store did not do as asked."""
        appends = list(appends)
        self.epochs.failed(appends, fault)
        if fault is Fault.TORN:
            self._saw("transaction is torn")
            return
        kinds = {kind for append in appends for kind in _kinds(append)}
        if GroupMetadataKey in kinds:
            self._saw(
                {
                    Fault.NOTHING_WRITTEN: "assignment is not stored",
                    Fault.ANSWER_LOST: "assignment is stored and the answer lost",
                    Fault.FULL: "store is full in a rebalance",
                }[fault]
            )
        elif kinds and fault is Fault.ANSWER_LOST:
            self._saw("commit is stored and the answer lost")


def _kinds(append: Append) -> set[type]:
    kinds = set()
    for raw_key, raw_value in append.records:
        key, value = decode_record(raw_key, raw_value) or (None, None)
        if key is not None and not (isinstance(value, GroupMetadataValue) and not value.members):
            kinds.add(type(key))
    return kinds


def _group_ids(request: Any) -> list[str]:
    """The groups for whose members a request speaks; empty for requests that anybody may send."""
    if getattr(request, "member_id", None) is None:
        return []
    return [request.group_id]


def report(seen: Mapping[str, int], seeds: int) -> str:
    """A line per situation, the rarest first."""
    lines = [f"situations seen in {seeds} runs:"]
    for situation in sorted(SITUATIONS, key=lambda name: (seen.get(name, 0), name)):
        lines.append(f"{seen.get(situation, 0):8}  {situation}")
    return "\n".join(lines)


def unseen(seen: Mapping[str, int]) -> list[str]:
    return [situation for situation in SITUATIONS if not seen.get(situation)]
