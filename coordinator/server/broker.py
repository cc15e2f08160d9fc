"""One broker: membership, group runtime, partitions and a listener, over a store and logs that others may
share.

Handlers find here what they work with: `settings`, `configs`, `node_id`, `cluster_id`, `catalogue`,
`partitions`, `runtime`, `topology`, `producer_ids`. Several brokers of one process are
`muster.coordinator.server.brokers`.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, fields
from functools import partial
from typing import Final
from uuid import uuid4

from muster.coordinator.cluster.membership import Membership
from muster.coordinator.cluster.topology import Topology, partition_lease
from muster.coordinator.config import Settings
from muster.coordinator.endpoints import Endpoint, Listening
from muster.coordinator.group.config import GroupConfig
from muster.coordinator.group.effects import TopicsImage
from muster.coordinator.observe.log import Logger
from muster.coordinator.observe.rebalances import RebalanceLog
from muster.coordinator.runtime.clock import Clock, PausableClock
from muster.coordinator.runtime.runtime import Runtime
from muster.coordinator.runtime.shard_host import Limits
from muster.coordinator.server.broker_configs import BrokerConfigs
from muster.coordinator.server.connection import Connections
from muster.coordinator.server.listener import BindError, Listener
from muster.coordinator.server.pausing import PausableStore
from muster.coordinator.server.producer_ids import ProducerIds
from muster.coordinator.server.router import APIS_AT_ONCE, HANDLERS, Router
from muster.coordinator.storage.store import Lease, LeaseKind, NodeRow, Store, StoreCounts, StoreError
from muster.coordinator.topics.catalogue import Catalogue, Change, offsets_topic
from muster.coordinator.topics.config import defaults_from
from muster.coordinator.topics.logs import Logs
from muster.coordinator.topics.partitions import Partitions
from muster.protocol.api import ApiKey

_READ_AGAIN_S: Final = 1.0
_READ_PAUSE_S: Final = 0.02
"""Between looks at a database, where what others change is heard of with a delay anyway: leases move in
bursts, every move is a change of the store, and each broker looks."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What the brokers of one process have in common. Each broker can be paused on its own."""

    settings: Settings
    store: Store
    counts: StoreCounts
    logs: Logs
    clock: Clock
    """What groups, fetches and topics take their time from; a test may move it."""
    lease_clock: Clock
    """Real time, as the store's clock is: what leases are counted in."""
    file_threads: Executor
    upkeep_thread: Executor
    """Retention, compaction and the like: one thread, so that they hold up nothing but each other."""
    validation_thread: Executor
    """Validates the batches that take long: one thread, so that they compete with nobody but each other."""
    connections_max: int
    listen: Callable[[str, int, Callable[[], asyncio.BaseProtocol]], Listener] = Listener
    """Makes a broker's listener from host, port and what makes a connection's protocol. A simulated network
    comes in here."""


class Broker:
    """One node. `bind`, `register`, `start`; then `stop` or `kill`, once. Belongs to the event loop it was
    made on."""

    def __init__(self, shared: Shared, node_id: int, listening: Sequence[Listening]) -> None:
        """`listening` are its listeners; the address of the first is the one others know it by."""
        settings, counts = shared.settings, shared.counts
        self.settings = settings
        self.node_id = node_id
        self.incarnation = uuid4()
        self.cluster_id = base64.urlsafe_b64encode(counts.cluster_id.bytes).rstrip(b"=").decode("ascii")
        self._group_shards = counts.leases[LeaseKind.GROUP]
        self.clock = PausableClock(shared.clock)
        self._lease_clock = PausableClock(shared.lease_clock)
        self._log = Logger(part="broker", node=node_id)
        self._store = PausableStore(shared.store)
        store = self._store.as_store()
        self.membership = Membership(
            store,
            self._lease_clock,
            term_ms=settings.lease_term_ms,
            log=Logger(part="cluster", node=node_id),
        )
        offsets = offsets_topic(counts.cluster_id, counts.leases[LeaseKind.GROUP])
        self.catalogue = Catalogue(
            store,
            self.clock,
            defaults=defaults_from(settings.kafka_text),
            num_partitions=settings.num_partitions,
            auto_create_topics=settings.auto_create_topics_enable,
            kept=[offsets],
        )
        self.configs = BrokerConfigs(store, node_id, settings, self._apply_configs)
        self.runtime = Runtime(
            store,
            self.clock,
            self.membership,
            group_config(settings),
            shard_count=counts.leases[LeaseKind.GROUP],
            limits=Limits(write_timeout_ms=settings.offsets_commit_timeout_ms),
            observer=RebalanceLog(node_id).observe,
            before_load=self._read_topics,
        )
        self.partitions = Partitions(
            node_id=node_id,
            catalogue=self.catalogue,
            logs=shared.logs,
            clock=self.clock,
            executor=shared.file_threads,
            upkeep_executor=shared.upkeep_thread,
            validation_executor=shared.validation_thread,
            shards=counts.leases[LeaseKind.DATA],
            shard_of=lambda *partition: _log_shard(
                partition_lease(offsets.topic_id, counts.leases, *partition)
            ),
            lease_of=_log_lease,
            serving=lambda shard: self.membership.serving(_log_lease(shard)),
            retention_check_interval_ms=settings.log_retention_check_interval_ms,
            cleaner_backoff_ms=settings.log_cleaner_backoff_ms,
            producer_expiration_ms=settings.producer_id_expiration_ms,
        )
        self.producer_ids = ProducerIds(store)
        router = Router(self)
        self.connections = Connections(
            router.answer,
            self.clock,
            connections_max=min(settings.max_connections, shared.connections_max),
            idle_ms=settings.connections_max_idle_ms,
            frame_bytes_max=settings.socket_request_max_bytes,
            request_bytes_max=settings.queued_max_request_bytes,
            response_bytes_max=settings.queued_max_response_bytes,
            receive_timeout_ms=settings.request_receive_timeout_ms,
            closed=self.runtime.connection_closed,
            answer_at_once=router.answer_at_once,
            apis_at_once=APIS_AT_ONCE,
        )
        self._listening = listening
        self._listeners = [
            shared.listen(bound.host, bound.port, partial(self.connections.connect, bound.listener))
            for bound, _ in listening
        ]
        self._catalogue_stale = asyncio.Event()
        self._catalogue_task: asyncio.Task[None] | None = None
        self._catalogue_reading: asyncio.Task[Change] | None = None  # created, but not begun yet

    def __repr__(self) -> str:
        return f"<Broker {self.node_id} on {self.address} {self.membership!r}>"

    # --- what handlers and tests ask ------------------------------------------------------------------------

    @property
    def topology(self) -> Topology:
        """Who coordinates and leads what, as last read."""
        return self.membership.topology

    @property
    def store(self) -> Store:
        """The store, for what is to be read there anew."""
        return self._store.as_store()

    @property
    def served_apis(self) -> Sequence[ApiKey]:
        """What ApiVersions advertises: exactly what has a handler."""
        return list(HANDLERS)

    @property
    def port(self) -> int:
        """The port that the first listener listens on, once bound."""
        return self._listeners[0].port

    @property
    def listening(self) -> list[Listening]:
        """Its listeners, at the ports they have bound."""
        return [
            each._replace(bound=each.bound._replace(port=listener.port))
            for each, listener in zip(self._listening, self._listeners, strict=True)
        ]

    @property
    def address(self) -> str:
        """`host:port` that clients of the first listener are told."""
        return self._reached_at()[0].address

    def _reached_at(self) -> list[Endpoint]:
        """What the clients of each listener are told."""
        return [each.reached_at() for each in self.listening]

    # --- life -----------------------------------------------------------------------------------------------

    async def bind(self) -> NodeRow:
        """Take the ports; how the node will be registered. Raises BindError."""
        try:
            for listener in self._listeners:
                await listener.bind()
        except BindError:
            self.unbind()
            raise
        first, *others = self._reached_at()
        return NodeRow(
            self.node_id,
            first.host,
            first.port,
            self.settings.rack,
            self.settings.lease_term_ms,
            self.incarnation,
            listeners=",".join(map(str, [first, *others])) if others else "",
        )

    def unbind(self) -> None:
        """Give the ports up; for a broker that will not be started."""
        for listener in self._listeners:
            listener.release()

    async def register(self, node: NodeRow) -> None:
        """Read topics and configs, and make this broker known to the others, who then give up its share of
        the leases: `start` should follow at once. Raises NodeIdTaken and other StoreErrors."""
        self._store.changed.append(self._catalogue_stale.set)  # before the first look, or one might be missed
        await self.configs.start(self._fixed_configs())
        await self.catalogue.refresh()
        # Before any shard is loaded: topics may have been deleted while nobody held its lease.
        self._tell_topics(Change())
        self.catalogue.subscribe(self._tell_topics)
        self._catalogue_task = asyncio.get_running_loop().create_task(
            self._keep_catalogue(), name=f"catalogue of node {self.node_id}"
        )
        self.partitions.start()
        await self.membership.register(node)

    async def start(self, node: NodeRow) -> None:
        """Once registered: take the leases that are due to this node, and accept connections. Returns when
        what was free is served, or after a moment. Raises StoreError."""
        groups = _GroupShards(self.runtime, self.partitions)
        await self.membership.start(node, {LeaseKind.GROUP: groups, LeaseKind.DATA: self.partitions})
        self._warn_of_a_shared_address(node)
        for listener in self._listeners:
            await listener.accept()
        await self.membership.announced()

    def _warn_of_a_shared_address(self, node: NodeRow) -> None:
        for other in self.topology.nodes.values():
            if other.node_id != node.node_id and (other.host, other.port) == (node.host, node.port):
                self._log.warning(
                    "clients cannot tell this broker from another: both are advertised at the same address",
                    address=self.address,
                    other=other.node_id,
                )

    async def stop(self) -> None:
        """Hand the shards over, accept nothing more, finish what is in flight, leave. Handing over may take
        shutdown.grace.ms, and so may what is in flight after that.

        What is not handed over yet is served meanwhile. Handing over answers the JoinGroups and Fetches that
        are parked.
        """
        grace_s = self.settings.shutdown_grace_ms / 1000
        try:
            async with asyncio.timeout(grace_s):
                await self.membership.stop()
        except (TimeoutError, StoreError) as error:
            self._log.warning("leaving without having handed over", why=str(error) or "it took too long")
            self.membership.kill()
        for listener in self._listeners:
            await listener.close()
        self.connections.finish()
        await self.connections.drained(grace_s)
        await self.connections.cut()
        await self.runtime.close()
        await self.partitions.close()
        await self._end()

    async def kill(self) -> None:
        """Die as a process does: connections are cut, nothing is released, nothing more is written."""
        self.clock.pause()
        self._lease_clock.pause()
        self.connections.freeze()  # the dead do not answer that they are no coordinator any more
        self.membership.kill()
        self.runtime.kill()
        self.partitions.abandon()
        for listener in self._listeners:
            await listener.close()
        await self.connections.cut()
        await self._end()

    async def _end(self) -> None:
        self._store.detach()
        if self._catalogue_task is not None:
            self._catalogue_task.cancel()
            await asyncio.wait([self._catalogue_task])

    def pause(self) -> None:
        """Stand still, as a process does on SIGSTOP: no timer fires, nothing is read, answered or learned."""
        self.clock.pause()
        self._lease_clock.pause()
        self._store.pause()
        self.connections.freeze()

    def resume(self) -> None:
        """Go on from where it stood. Timers first: the leases may have run out, and nobody may be served from
        them."""
        self._lease_clock.resume()
        self.clock.resume()
        self._store.resume()
        self.connections.thaw()

    def _fixed_configs(self) -> dict[str, str]:
        """Broker configs of Kafka's that follow from what this broker is."""
        settings, node_id = self.settings, str(self.node_id)
        fixed = {
            "advertised.listeners": _kafka_listeners(self._reached_at()),
            "broker.id": node_id,
            "listeners": _kafka_listeners(each.bound for each in self.listening),
            "node.id": node_id,
            "offsets.topic.num.partitions": str(self._group_shards),
            "offsets.topic.replication.factor": "1",
        }
        if settings.rack is not None:
            fixed["broker.rack"] = settings.rack
        if settings.store is None and not settings.ephemeral:
            fixed["log.dirs"] = settings.data
        return fixed

    def _apply_configs(self, topic_defaults: Mapping[str, str]) -> None:
        self.catalogue.set_defaults(topic_defaults)
        self.membership.set_drained(self.configs.drained)

    # --- topics ---------------------------------------------------------------------------------------------

    async def _keep_catalogue(self) -> None:
        """Read topics and configs again whenever the store has changed; changes that come meanwhile are read
        together."""
        pause_s = 0.0 if self.settings.store is None else _READ_PAUSE_S
        while True:
            await self._catalogue_stale.wait()
            self._catalogue_stale.clear()
            try:
                await self.configs.refresh()
                await self.catalogue.refresh()
                await asyncio.sleep(pause_s)
            except StoreError as error:
                self._log.warning("topics and configs could not be read", why=str(error))
                self._catalogue_stale.set()  # the store does not tell of the same change again
                await asyncio.sleep(_READ_AGAIN_S)

    async def _read_topics(self) -> None:
        """Return when the topics have been read, beginning after this call. Those who ask in the same turn
        share it."""
        if self._catalogue_reading is None:

            async def read() -> Change:
                self._catalogue_reading = None
                return await self.catalogue.refresh()

            self._catalogue_reading = asyncio.get_running_loop().create_task(read(), name="read topics")
        await asyncio.shield(self._catalogue_reading)

    def _tell_topics(self, change: Change) -> None:
        deleted = frozenset((topic.name, topic.topic_id) for topic in change.deleted)
        live = {topic.name: topic.topic_id for topic in self.catalogue.topics()}
        self.runtime.topics_changed(TopicsImage(deleted, live))


class _GroupShards:
    """Who holds a group shard also leads the partition of `__consumer_offsets` that stands for it."""

    def __init__(self, runtime: Runtime, partitions: Partitions) -> None:
        self._runtime = runtime
        self._partitions = partitions

    def own(self, number: int, epoch: int) -> Awaitable[object]:
        self._partitions.own(_log_shard(Lease(LeaseKind.GROUP, number)), epoch)
        return self._runtime.own(number, epoch)

    def disown(self, number: int) -> Awaitable[object]:
        logs = self._partitions.disown(_log_shard(Lease(LeaseKind.GROUP, number)))
        return self._at_rest(self._runtime.disown(number), logs)

    async def _at_rest(self, shard: Awaitable[object], logs: Awaitable[object]) -> None:
        try:
            await shard
        finally:
            await logs


def _kafka_listeners(endpoints: Iterable[Endpoint]) -> str:
    return ",".join(str(each if each.listener else each._replace(listener="PLAINTEXT")) for each in endpoints)


def _log_shard(lease: Lease) -> int:
    """The number by which `Partitions` knows the partitions of a lease: those of groups are negative."""
    return lease.number if lease.kind is LeaseKind.DATA else -1 - lease.number


def _log_lease(shard: int) -> Lease:
    """The other way round."""
    return Lease(LeaseKind.DATA, shard) if shard >= 0 else Lease(LeaseKind.GROUP, -1 - shard)


def group_config(settings: Settings) -> GroupConfig:
    """The settings of the group core; the field names are the same."""
    return GroupConfig(**{each.name: getattr(settings, each.name) for each in fields(GroupConfig)})
