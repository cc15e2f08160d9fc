"""What the brokers of this process hold in memory about groups. Reading it runs no step and waits for no
store, so figures are available even if the store hangs. They may be a few milliseconds ahead of what is
durable."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from aiohttp import web

from muster.coordinator.base.endpoints import page_of
from muster.coordinator.cluster.coordinators import GROUPS, CoordinatorKind
from muster.coordinator.group.committed_offset import CommittedOffset
from muster.coordinator.group.group import Group, GroupView, MemberView
from muster.coordinator.group.group_offsets import TopicPartition
from muster.coordinator.journal.entries import Entry, Member
from muster.coordinator.journal.explain.names import names_in
from muster.coordinator.journal.names import Names
from muster.coordinator.runtime.machine import M
from muster.coordinator.runtime.recorder import member_of
from muster.coordinator.runtime.ring import together
from muster.coordinator.runtime.runtime import Runtime
from muster.coordinator.runtime.shard_host import HostState
from muster.coordinator.server.broker import Broker
from muster.coordinator.server.brokers import Brokers
from muster.coordinator.storage.store import Lease, LeaseKind, NodeRow
from muster.coordinator.web.guard import refusal

NOT_SERVED: Final = "right now: its shard is moving, or the database does not respond"
"""The end of a sentence about something that no broker has."""

_TURN_S: Final = 0.002
_LAG_S: Final = 2.0
_CONSUMER: Final = "consumer"
_NO_OFFSETS: Final[Mapping[TopicPartition, CommittedOffset]] = {}


class Held(NamedTuple):
    """A group, and the broker of this process that coordinates it."""

    broker: Broker
    group: Group
    offsets: Mapping[TopicPartition, CommittedOffset]


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A broker of another process, which alone can report on its shards."""

    node: NodeRow
    kind: LeaseKind
    shards: int
    """Its shards of that kind."""

    def to_json(self) -> dict[str, Any]:
        return {**node_json(self.node), f"{self.kind}_shards": self.shards}


def any_broker(brokers: Brokers) -> Broker:
    """Any running broker, for what they all know. Raises HTTPServiceUnavailable if none is running."""
    if not brokers.running:
        raise refusal(web.HTTPServiceUnavailable, "no broker of this process is running")
    return brokers.running[0]


def held(brokers: Brokers) -> Iterator[Held]:
    """The groups that brokers of this process coordinate, unordered. Must be consumed in one turn of the
    loop: groups may come and go in the next."""
    for broker in brokers.running:
        for _, shard in served(broker.runtime):
            offsets = shard.hard.offsets
            for group in shard.groups.values():
                yield Held(broker, group, offsets.get(group.group_id, _NO_OFFSETS))


def served(runtime: Runtime[M]) -> Iterator[tuple[Lease, M]]:
    """The shards of one kind that are loaded here and whose leases this broker certainly still holds."""
    for host in runtime.hosts():
        if host.state is HostState.ACTIVE and host.machine is not None and runtime.serving(host.lease):
            yield host.lease, host.machine


def find(brokers: Brokers, group_id: str) -> Held:
    """A group coordinated here. Raises HTTPNotFound, and like `shard_of`."""
    broker, shard = shard_of(brokers, GROUPS, lambda broker: broker.runtime, group_id, "group")
    group = shard.groups.get(group_id)
    if group is None:
        raise refusal(web.HTTPNotFound, f"there is no group {group_id!r}")
    return Held(broker, group, shard.hard.offsets.get(group_id, _NO_OFFSETS))


def shard_of(
    brokers: Brokers, kind: CoordinatorKind, runtime_of: Callable[[Broker], Runtime[M]], key: str, what: str
) -> tuple[Broker, M]:
    """The shard of a key, and the broker of this process that coordinates it; `what` is what the key names.
    Raises HTTPMisdirectedRequest if a broker of another process does (the response names it),
    HTTPServiceUnavailable if none does at the moment."""
    topology = any_broker(brokers).topology
    lease = kind.lease_of(key, topology.counts)
    for broker in brokers.running:
        for each, shard in served(runtime_of(broker)):
            if each == lease:
                return broker, shard
    node = topology.coordinator(key, kind)
    if node is None or node.node_id in {each.node_id for each in brokers.running}:
        why = f"no broker coordinates {what} {key!r} {NOT_SERVED}"
        raise refusal(web.HTTPServiceUnavailable, why)
    why = f"{what} {key!r} is coordinated by broker {node.node_id}, {page_words(node)}"
    raise refusal(web.HTTPMisdirectedRequest, why, broker=node_json(node))


def page_words(node: NodeRow) -> str:
    """The address of a broker's page, as the end of a sentence."""
    page = page_of(node)
    return f"at {page}" if page is not None else "which has no page or does not advertise it"


def elsewhere(brokers: Brokers, kind: LeaseKind = LeaseKind.GROUP) -> list[Elsewhere]:
    """The brokers of other processes."""
    topology = any_broker(brokers).topology
    here = {each.node_id for each in brokers.running}
    holders = [grant.node_id for lease, grant in topology.holders.items() if lease.kind is kind]
    return [
        Elsewhere(node, kind, holders.count(node_id))
        for node_id, node in topology.nodes.items()
        if node_id not in here
    ]


def loading(brokers: Brokers) -> int:
    """Group shards being loaded here."""
    states = [host.state for broker in brokers.running for host in broker.runtime.hosts()]
    return states.count(HostState.LOADING)


def node_json(node: NodeRow) -> dict[str, Any]:
    """A broker, with its page's address."""
    return {
        "node_id": node.node_id,
        "address": f"{node.host}:{node.port}",
        "page": page_of(node),
    }


def broker_json(broker: Broker) -> dict[str, Any]:
    """A broker of this process."""
    hosts = broker.runtime.hosts()
    return {
        "node_id": broker.node_id,
        "address": broker.address,
        "connections": len(broker.connections.open),
        "group_shards": len(hosts),
        "loading": sum(host.state is HostState.LOADING for host in hosts),
    }


class Turns:
    """Yields the loop to the brokers while a long response is built."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    async def next(self) -> None:
        """Call this for each item."""
        if time.perf_counter() - self._since > _TURN_S:
            await asyncio.sleep(0)
            self._since = time.perf_counter()


async def refresh_lag(brokers: Iterable[Broker], groups: Sequence[str] | None = None) -> None:
    """Refresh log end offsets for the lag of groups (None: all). Offsets that do not arrive in time keep
    their previous value, so a hanging store does not hold up the rest."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_LAG_S):
            for broker in brokers:
                await broker.lag.refresh(groups)


# --- members ------------------------------------------------------------------------------------------------


def assignment_of(group: GroupView, member: MemberView) -> Sequence[TopicPartition] | None:
    """A consumer's assignment; None if unknown: its group has another protocol type or is between two
    assignments, or its assignor uses another format. Members of a consumer group (KIP-848) always have
    one."""
    is_told = group.is_stable or group.type == _CONSUMER
    return member.assignment() if group.protocol_type == _CONSUMER and is_told else None


def topics_of(group: GroupView, member: MemberView) -> Sequence[str] | None:
    """The topics a consumer subscribes to; None if unknown."""
    return member.topics() if group.protocol_type == _CONSUMER else None


def names_of(group: Group | None, entries: Iterable[Entry] = ()) -> Names:
    """The names of a group's members, including those in its `entries`. If the group is None, it is not here
    and only the entries name its members."""
    if group is None:
        return names_in(entries)
    there = [member_of(each) for each in group.identities()]
    return names_in(entries, there)


def named(member: Member, names: Names) -> dict[str, Any]:
    """A member as JSON, with its name."""
    return {**member.to_json(), "name": names.short(member)}


def group_of(brokers: Brokers, group_id: str) -> Group | None:
    """A group, if it is coordinated here."""
    try:
        return find(brokers, group_id).group
    except web.HTTPException:
        return None


# --- the journal --------------------------------------------------------------------------------------------


def newest(brokers: Brokers, count: int) -> list[Entry]:
    """The newest entries of all brokers of the process, by time."""
    return together([broker.journal.latest(count) for broker in brokers.brokers])[-count:]


def journalled(brokers: Brokers, group_id: str) -> list[Entry]:
    """All known entries of a group, by time."""
    return together([broker.journal.of(group_id) for broker in brokers.brokers])
