"""The group shards of one broker, and the rest of the broker's interface to them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from muster.coordinator.base.clock import Clock
from muster.coordinator.base.step import NOBODY
from muster.coordinator.cluster.coordinators import GROUPS
from muster.coordinator.cluster.lease import LeaseKeeper
from muster.coordinator.group.committed_offset import CommittedOffset
from muster.coordinator.group.config import GroupConfig, GroupConfigs
from muster.coordinator.group.effects import TopicsImage
from muster.coordinator.group.events import MemberIdentity
from muster.coordinator.group.group_offsets import TopicPartition
from muster.coordinator.group.pending_offsets import TransactionalProducer
from muster.coordinator.group.shard import Shard
from muster.coordinator.group.topics import compared
from muster.coordinator.journal.entries import WHOLE_BROKER, Member
from muster.coordinator.runtime.machine import MachineKind, Operation, Traits
from muster.coordinator.runtime.runtime import Runtime, RuntimeOptions
from muster.coordinator.runtime.shard_host import HostState, ShardHost
from muster.coordinator.storage.store import Store
from muster.coordinator.transactions.marker import Marker
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.classic_group import HeartbeatResponse

OPERATIONS: Final[Mapping[Operation, Traits]] = MappingProxyType(
    {
        # As Kafka does while loading: the member will soon be known again, with a full session timeout.
        Shard.heartbeat: Traits(reads=True, returns=True, while_loading=HeartbeatResponse()),
        # Kafka's current coordinator answers 14, which no client's SyncGroup handler knows; its predecessor
        # answered 27, which makes the member rejoin.
        Shard.sync: Traits(while_loading=ErrorCode.REBALANCE_IN_PROGRESS),
        Shard.fetch_offsets: Traits(reads=True),
        Shard.begin_transaction: Traits(reads=True),
        Shard.consumer_heartbeat: Traits(returns=True, also_writes=True, allows_for_full=True),
        Shard.describe: Traits(reads=True),
        Shard.describe_consumer: Traits(reads=True),
        Shard.list_groups: Traits(reads=True),
    }
)


_NOT_NOW: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Codes that senders of markers do not expect from a partition's leader."""


def group_kind(config: GroupConfig, configs: GroupConfigs | None = None) -> MachineKind:
    """Group shards with this configuration; `configs` are those of single groups."""
    return MachineKind(GROUPS, partial(_make_shard, config, configs or GroupConfigs(config)), OPERATIONS)


def _make_shard(config: GroupConfig, configs: GroupConfigs, number: int) -> Shard:
    return Shard(number, config, configs=configs)


class GroupRuntime(Runtime[Shard]):
    """`Runtime` of group shards. `before_load` reads the topics, so that `topics_changed` passes on topics at
    least as new as the offsets checked against them: an older view would mistake the offsets of a recreated
    topic for those of the deleted one."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        leases: LeaseKeeper,
        config: GroupConfig | None = None,
        configs: GroupConfigs | None = None,
        *,
        kind: MachineKind | None = None,
        options: RuntimeOptions | None = None,
    ) -> None:
        super().__init__(kind or group_kind(config or GroupConfig(), configs), store, clock, leases, options)
        self._image: TopicsImage | None = None

    # --- what groups have committed -------------------------------------------------------------------------

    def committed(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """The offsets of a group, perhaps a moment before they are durable; empty if it is not here."""
        host = self._host_of(group_id)
        if host is None or host.machine is None or host.state is not HostState.ACTIVE:
            return {}
        return host.machine.hard.offsets.get(group_id, {})

    def members(self, group_id: str) -> list[MemberIdentity]:
        """The members of a group, perhaps a moment before they are durable; empty if it is not here."""
        host = self._host_of(group_id)
        group = None if host is None or host.machine is None else host.machine.groups.get(group_id)
        return [] if group is None else group.identities()

    def committing_groups(self, number: int | None = None) -> list[str]:
        """The groups with committed offsets, in one shard or in all that are here."""
        return [
            group_id
            for host in self._hosts.values()
            if host.machine is not None and (number is None or host.lease.number == number)
            for group_id in host.machine.hard.offsets
        ]

    # --- transactions ---------------------------------------------------------------------------------------

    async def end_transaction(self, number: int, marker: Marker) -> None:
        """Write a transaction's marker to a shard, which is a partition of `__consumer_offsets`; return when
        it is durable. Raises what a partition's leader does: INVALID_PRODUCER_EPOCH,
        TRANSACTION_COORDINATOR_FENCED; NOT_LEADER_OR_FOLLOWER if it may be sent again, here or elsewhere."""
        try:
            await self.call_shard(number, Shard.end_transaction, marker, NOBODY)
        except KafkaError as refusal:
            if refusal.code not in _NOT_NOW:
                raise
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, refusal.why) from refusal

    def transactional_producers(self, number: int) -> Mapping[int, TransactionalProducer]:
        """The producers whose transactions commit offsets in a shard, perhaps a moment before they are
        durable. Raises NOT_LEADER_OR_FOLLOWER if it is not here, or loading."""
        host = self._hosts.get(number)
        if host is None or host.machine is None or host.state is not HostState.ACTIVE:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"shard {number} is not on this broker")
        return host.machine.hard.pending.producers

    # --- the journal ----------------------------------------------------------------------------------------

    def note(
        self,
        type: str,
        data: Mapping[str, Any],
        *,
        group_id: str | None = None,
        member: Member | None = None,
        at_ms: int | None = None,
    ) -> None:
        """Record something that happened outside the core, just now or at `at_ms`. An entry of a group is
        stored if the group is here; one of the whole broker is kept in memory."""
        if self._recorder is None:
            return
        now_ms = self._clock.now_ms() if at_ms is None else at_ms
        if group_id is None:
            self._recorder.show([self._recorder.of(type, now_ms, WHOLE_BROKER, data, member=member)])
            return
        number = self._route(group_id, self._shard_count)
        host = self._hosts.get(number)
        group = None if host is None or host.machine is None else host.machine.groups.get(group_id)
        generation = None if group is None else group.generation_id
        entry = self._recorder.of(
            type, now_ms, number, data, group=group_id, generation=generation, member=member
        )
        if host is None:
            self._recorder.show([entry])
        else:
            host.note(entry)

    # --- notifying shards -----------------------------------------------------------------------------------

    def connection_closed(self, connection_id: int) -> None:
        """Notify the shards, after the requests that arrived on the connection."""
        for host in self._hosts.values():
            # Most shards have never heard of the connection.
            if host.has_waiting or (
                host.machine is not None and host.machine.knows_connection(connection_id)
            ):
                host.tell(lambda shard, step: shard.connection_closed(connection_id, step))

    def topics_changed(self, image: TopicsImage) -> None:
        """Notify every shard of the existing and the deleted topics. One loaded later is notified then."""
        self._image = image = compared(image, self._image)
        for host in self._hosts.values():
            host.tell(lambda shard, step: shard.topics_changed(image, step))

    def _activated(self, host: ShardHost[Shard]) -> None:
        if self._image is not None:
            image = self._image
            host.tell(lambda shard, step: shard.topics_changed(image, step))
