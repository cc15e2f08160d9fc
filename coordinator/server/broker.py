"""One broker: membership, group runtime, partitions and listeners, on a store and logs that others may share.

Handlers find what they work with here: `settings`, `configs`, `node_id`, `cluster_id`, `catalogue`,
`partitions`, `runtime`, `topology`, `producer_ids`. For several brokers in one process see
`muster.coordinator.server.brokers`.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final
from uuid import UUID, uuid4
from weakref import WeakSet

from muster.coordinator.base.clock import Clock, PausableClock
from muster.coordinator.base.endpoints import Endpoint, Listening
from muster.coordinator.base.log import Logger
from muster.coordinator.base.movable_clock import MovableClock
from muster.coordinator.base.step import RequestContext
from muster.coordinator.cluster.coordinators import GROUPS
from muster.coordinator.cluster.membership import LeaseHolder, Membership
from muster.coordinator.cluster.topology import Leader, Topology, partition_lease, shard_topics
from muster.coordinator.config import Settings
from muster.coordinator.group.config import GroupConfig, GroupConfigs, MigrationPolicy
from muster.coordinator.group.effects import TopicsImage
from muster.coordinator.journal.entries import Member
from muster.coordinator.observe.lag import Lag
from muster.coordinator.observe.rebalances import RebalanceLog
from muster.coordinator.observe.recovery import Recovery
from muster.coordinator.runtime.groups import GroupRuntime
from muster.coordinator.runtime.holds import LoadHolds
from muster.coordinator.runtime.recorder import Recorder
from muster.coordinator.runtime.ring import Journal
from muster.coordinator.runtime.runtime import RuntimeOptions
from muster.coordinator.runtime.shard_host import Limits
from muster.coordinator.security.scram import MadeUp
from muster.coordinator.server.admission import Admission, overrides_of
from muster.coordinator.server.apis import APIS, TRAFFIC
from muster.coordinator.server.authorizer import Authorizer
from muster.coordinator.server.broker_configs import BrokerConfigs
from muster.coordinator.server.config_rows import ConfigRows
from muster.coordinator.server.connections import Connections
from muster.coordinator.server.doors import Doors, Listen
from muster.coordinator.server.encoded_topics import EncodedTopics
from muster.coordinator.server.features import Features
from muster.coordinator.server.fetch_sessions import FetchSessions
from muster.coordinator.server.group_configs import KeptGroupConfigs
from muster.coordinator.server.kept_quotas import KeptQuotas
from muster.coordinator.server.listener import BindError, Listener
from muster.coordinator.server.metering import Meters
from muster.coordinator.server.pausing import PausableStore
from muster.coordinator.server.quota_gate import QuotaGate
from muster.coordinator.server.rights import UNRESTRICTED, Rights
from muster.coordinator.server.session import Sessions
from muster.coordinator.server.shards import CoordinatorShards, DataShards
from muster.coordinator.server.test_mode.fault_gate import FaultGate
from muster.coordinator.server.test_mode.faults import Faults
from muster.coordinator.server.transactions import TransactionService
from muster.coordinator.server.unserved import Unserved
from muster.coordinator.server.users import Users, mechanisms
from muster.coordinator.storage.store import Lease, LeaseKind, NodeRow, Store, StoreCounts, StoreError
from muster.coordinator.topics.catalogue import Catalogue, Change, Topic, events_topic, offsets_topic
from muster.coordinator.topics.config import defaults_from
from muster.coordinator.topics.consumer_offsets import ConsumerOffsets
from muster.coordinator.topics.group_events import GroupEvents
from muster.coordinator.topics.logs import Logs
from muster.coordinator.topics.partitions import Partitions
from muster.coordinator.topics.replicas import Hosts
from muster.protocol.api import ApiKey

_NEWCOMERS_RETURN_WITHIN_MS: Final = 20
"""For a broker without an initial rebalance delay. Otherwise some of the consumers that start together, as in
tests, rebalance twice. One that dies before it returns delays the others by no more than this."""
_READ_AGAIN_S: Final = 1.0
_READ_PAUSE_S: Final = 0.02
"""Pause between reads of a database, which reports the changes of others with a delay anyway: leases move in
bursts, every move changes the store, and each broker reads it."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What the brokers of one process have in common. Each broker can be paused on its own."""

    settings: Settings
    store: Store
    counts: StoreCounts
    logs: Logs
    clock: Clock
    """The clock of groups, fetches and topics; a test may move it."""
    lease_clock: Clock
    """Real time, like the store's clock: leases are measured by it."""
    file_threads: Executor
    upkeep_thread: Executor
    """Retention, compaction and the like: one thread, so that they hold up nothing but each other."""
    validation_thread: Executor
    """Validates batches that take long: one thread, so that they compete only with each other."""
    connections_max: int
    faults: Faults = field(default_factory=Faults)
    pins: dict[Lease, int] = field(default_factory=dict)
    """Leases pinned to a node, given by its id, as long as it is there; `Membership.place_again` announces
    changes."""
    holds: LoadHolds = field(default_factory=LoadHolds)
    partitions: WeakSet[Partitions] = field(default_factory=WeakSet)
    """Those of all brokers, which tell each other where logs end."""
    page: Endpoint | None = None
    """Where browsers find the page about these brokers, if there is one."""
    listen: Listen = Listener
    """Makes a broker's listener from a host, a port and a protocol factory. A simulated network plugs in
    here."""


class Broker:
    """One node. Call `bind`, `register`, `start`; then `stop` or `kill`, once. Belongs to the event loop it
    was created on."""

    def __init__(self, shared: Shared, node_id: int, listening: Sequence[Listening]) -> None:
        """`listening` are its listeners; others know it by the address of the first."""
        settings, counts = shared.settings, shared.counts
        self.settings = settings
        self.node_id = node_id
        self.incarnation = uuid4()
        self.cluster_id = base64.urlsafe_b64encode(counts.cluster_id.bytes).rstrip(b"=").decode("ascii")
        self._group_shards = counts.leases[LeaseKind.GROUP]
        self.clock = PausableClock(shared.clock)
        self._missed = MovableClock(shared.lease_clock) if settings.test_mode else None
        self.real_clock = PausableClock(self._missed or shared.lease_clock)
        """Measures what runs in real time, whatever clock the groups have: leases, idle connections."""
        self.paused = False
        self._log = Logger(part="broker", node=node_id)
        self.journal = Journal()
        self.recorder = Recorder(
            node_id,
            self.journal,
            stored=settings.group_events,
            lag=lambda group_id: self._recovery.of_rebalance(group_id),
            behind_ms=lambda: self.clock.date_ms() - self.clock.now_ms(),
        )
        self._store = PausableStore(shared.store)
        store = self._store.as_store()
        self.membership = Membership(
            store,
            self.real_clock,
            term_ms=settings.lease_term_ms,
            pins=shared.pins,
            log=Logger(part="cluster", node=node_id),
        )
        offsets = offsets_topic(counts.cluster_id, self._group_shards)
        events = events_topic(
            counts.cluster_id,
            self._group_shards,
            retention_ms=settings.group_events_retention_ms,
            retention_bytes=settings.group_events_retention_bytes,
        )
        self.consumer_offsets = ConsumerOffsets(
            offsets, store, self.clock, node_id=node_id, serving=self.membership.serving
        )
        # Always there: retention goes on even if no more events are kept.
        self.group_events = GroupEvents(
            events, store, self.clock, node_id=node_id, serving=self.membership.serving
        )
        self.transacting = TransactionService(
            self,
            store,
            counts,
            self.clock,
            self.real_clock,
            self.incarnation,
            self.recorder,
            shared.faults.marker_holds,
        )
        self.producer_ids = self.transacting.producer_ids
        self.transaction_runtime = self.transacting.runtime
        self.transactions = self.transacting.coordinators
        self.endings = self.transacting.endings
        states = self.transacting.states
        self.catalogue = Catalogue(
            store,
            self.clock,
            defaults=defaults_from(settings.kafka_text),
            num_partitions=settings.num_partitions,
            auto_create_topics=settings.auto_create_topics_enable,
            kept=[offsets, states.topic, *([events] if settings.group_events else [])],
        )
        self.encoded_topics = EncodedTopics()
        self.fetch_sessions = FetchSessions(
            self.clock, slots=settings.max_incremental_fetch_session_cache_slots
        )
        rows = ConfigRows(store)
        self.configs = BrokerConfigs(rows, node_id, settings, self._apply_configs)
        of_groups = group_config(settings, real_time=shared.clock is shared.lease_clock)
        in_force = GroupConfigs(of_groups)
        self.group_configs = KeptGroupConfigs(rows, self.configs, in_force)
        self.features = Features(rows, settings.group_coordinator_rebalance_protocols)
        self.users = Users(rows)
        self._made_up = MadeUp(shapes=self.users.shapes)
        self.quotas = KeptQuotas(rows)
        self.meters = Meters(self.quotas, self.clock)
        self.runtime: GroupRuntime = GroupRuntime(
            store,
            self.clock,
            self.membership,
            of_groups,
            in_force,
            options=RuntimeOptions(
                shard_count=counts.leases[LeaseKind.GROUP],
                limits=Limits(write_timeout_ms=settings.offsets_commit_timeout_ms),
                observer=RebalanceLog(node_id, lambda group_id: self.runtime.members(group_id)).observe,
                before_load=self.read_topics,
                holds=shared.holds,
                recorder=self.recorder,
                records_written=self.consumer_offsets.written,
                journal_written=self.group_events.written,
            ),
        )
        self._shard_topics = shard_topics(counts.cluster_id)
        self._counts = counts
        self.partitions = Partitions(
            node_id=node_id,
            catalogue=self.catalogue,
            logs=shared.logs,
            clock=self.clock,
            executor=shared.file_threads,
            upkeep_executor=shared.upkeep_thread,
            validation_executor=shared.validation_thread,
            shards=counts.leases[LeaseKind.DATA],
            lease_of=self._lease_of,
            elsewhere={
                each.topic.topic_id: each for each in (self.consumer_offsets, self.group_events, states)
            },
            serving=self.membership.serving,
            of_process=shared.partitions,
            retention_check_interval_ms=settings.log_retention_check_interval_ms,
            cleaner_backoff_ms=settings.log_cleaner_backoff_ms,
            producer_expiration_ms=settings.producer_id_expiration_ms,
        )
        shared.partitions.add(self.partitions)
        self._data_shards = [
            DataShards(kind, self.partitions, self.read_topics, self._make_way)
            for kind in (LeaseKind.DATA, LeaseKind.REPLICAS)
        ]
        self.holders: Mapping[LeaseKind, LeaseHolder] = {
            LeaseKind.GROUP: CoordinatorShards(
                GROUPS, self.runtime, self.partitions, (self.consumer_offsets, self.group_events)
            ),
            LeaseKind.TRANSACTION: self.transacting.shards(self.partitions),
            **dict(zip((LeaseKind.DATA, LeaseKind.REPLICAS), self._data_shards, strict=True)),
        }
        self.lag = Lag(
            self.clock,
            groups=self.runtime.committing_groups,
            committed=self.runtime.committed,
            topic_id=lambda name: topic.topic_id if (topic := self.catalogue.by_name(name)) else None,
            known=self.partitions.known,
            look=self.partitions.look,
        )
        self._recovery: Recovery = Recovery(
            self.lag, self.clock, groups_of_shard=self.runtime.committing_groups, note=self.runtime.note
        )
        self.journal.listeners.append(self._recovery.observe)
        self.unserved = Unserved(self.real_clock)
        self.admission = Admission(
            self.real_clock, self.unserved, lambda address: self.quotas.in_force.of_address(address)
        )
        self.authorizer = Authorizer(rows, settings, self.real_clock) if settings.super_users else None
        sessions = Sessions(self)
        self._connections_possible = shared.connections_max
        self.connections = Connections(
            sessions.open,
            TRAFFIC,
            self.real_clock,
            connections_max=min(settings.max_connections, shared.connections_max),
            idle_ms=settings.connections_max_idle_ms,
            frame_bytes_max=settings.socket_request_max_bytes,
            request_bytes_max=settings.queued_max_request_bytes,
            response_bytes_max=settings.queued_max_response_bytes,
            receive_timeout_ms=settings.request_receive_timeout_ms,
            unserved=self.unserved,
            closed=self.runtime.connection_closed,
        )
        self._quota_gate = QuotaGate(self.quotas, self.meters, self.clock, sessions, self.connections)
        if self.authorizer is not None:
            self.authorizer.acls.listeners.append(self.connections.forget)
            in_force.sees = self.authorizer.sees
        self.responses = self.connections.responses
        self.faults = shared.faults
        self._fault_gate = FaultGate(shared.faults, self, sessions)
        self._page = shared.page
        self._listening = listening
        self.doors = Doors(
            settings, self.real_clock, self.unserved, lambda on: mechanisms(on, self.users, self._made_up)
        )
        sessions.doors = self.doors.sasl
        self._listeners = [
            self.doors.listener(each, self.connections, self.admission, shared.listen) for each in listening
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
        """The store, for fresh reads."""
        return self._store.as_store()

    @property
    def served_apis(self) -> Sequence[ApiKey]:
        """What ApiVersions advertises: APIs that are answered, and those refused with a reason."""
        return [api.key for api in APIS.values()]

    def rights(self, context: RequestContext) -> Rights:
        """What the client of a request may do."""
        return UNRESTRICTED if self.authorizer is None else self.authorizer.rights(context)

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
        """`host:port` as advertised to the clients of the first listener."""
        return self._reached_at()[0].address

    def _reached_at(self) -> list[Endpoint]:
        """The endpoint advertised to the clients of each listener."""
        return [each.reached_at() for each in self.listening]

    def note(
        self,
        type: str,
        data: Mapping[str, Any],
        *,
        group_id: str | None = None,
        member: Member | None = None,
        at_ms: int | None = None,
    ) -> None:
        """Add a journal entry about something that happened outside the core: see `GroupRuntime.note`."""
        self.runtime.note(type, data, group_id=group_id, member=member, at_ms=at_ms)

    # --- life -----------------------------------------------------------------------------------------------

    async def bind(self) -> NodeRow:
        """Bind the ports; returns the row to register the node with. Raises BindError."""
        try:
            for listener in self._listeners:
                await listener.bind()
        except BindError:
            self.unbind()
            raise
        first, *others = self._reached_at()
        if self._page is not None:
            others.append(self._page)
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
        """Release the ports of a broker that will not be started."""
        for listener in self._listeners:
            listener.release()

    async def register(self, node: NodeRow) -> None:
        """Read topics and configs, and make this broker known to the others, which then give up its share of
        the leases: `start` should follow at once. Raises NodeIdTaken and other StoreErrors."""
        self._store.changed.append(self._catalogue_stale.set)  # before the first read, or one might be missed
        await self.configs.start(self._fixed_configs())
        if self.doors.sasl:
            self._made_up.secret = await self.users.secret()
        await self.catalogue.refresh()
        for topic in self.catalogue.hidden:
            self._log.warning(
                "topic hidden by the internal topic of the same name; delete it by its id",
                topic=topic.name,
                topic_id=str(topic.topic_id),
            )
        # Before any shard is loaded: topics may have been deleted while nobody held its lease.
        self._tell_topics(())
        self._make_way()
        self.catalogue.subscribe(self._topics_changed)
        self._catalogue_task = asyncio.get_running_loop().create_task(
            self._keep_catalogue(), name=f"catalogue of node {self.node_id}"
        )
        self.partitions.start()
        await self.membership.register(node)
        self.transacting.start()

    async def start(self, node: NodeRow) -> None:
        """Once registered: take this node's share of the leases, and accept connections. Returns when the
        leases that were free are served, or after a moment. Raises StoreError."""
        await self.membership.start(node, self.holders)
        self._warn_of_a_shared_address(node)
        for listener in self._listeners:
            await listener.accept()
        await self.membership.announced()

    def _warn_of_a_shared_address(self, node: NodeRow) -> None:
        for other in self.topology.nodes.values():
            if other.node_id != node.node_id and (other.host, other.port) == (node.host, node.port):
                self._log.warning(
                    "two brokers advertise the same address; clients cannot tell them apart",
                    address=self.address,
                    other=other.node_id,
                )

    async def stop(self) -> None:
        """Hand the shards over, stop accepting, finish what is in flight, and leave. Handing over may take
        shutdown.grace.ms, and finishing what is in flight may take as long again.

        Shards that are not handed over yet are still served. Handing over answers parked JoinGroups and
        Fetches.
        """
        grace_s = self.settings.shutdown_grace_ms / 1000
        try:
            async with asyncio.timeout(grace_s):
                await self.membership.stop()
        except (TimeoutError, StoreError) as error:
            self._log.warning(
                "shutting down without handing over all leases",
                why=str(error) or f"timed out after {grace_s:g} s",
            )
            self.membership.kill()
        for listener in self._listeners:
            await listener.close()
        self.doors.close()
        self.admission.close()
        self._fault_gate.close()
        self._quota_gate.close()
        self.connections.finish()
        await self.connections.drained(grace_s)
        await self.connections.close()
        await self.runtime.close()
        await self.transacting.close()
        await self.partitions.close()
        await self.consumer_offsets.close()
        await self.group_events.close()
        await self._end()

    async def kill(self) -> None:
        """Die as a process does: connections are cut, nothing is released, nothing more is written."""
        self.clock.pause()
        self.real_clock.pause()
        self.connections.freeze()  # a dead broker does not answer NOT_COORDINATOR
        self.membership.kill()
        self.runtime.kill()
        await self.transacting.kill()
        for each in self._data_shards:
            each.abandon()
        self.partitions.abandon()
        self.consumer_offsets.abandon()
        self.group_events.abandon()
        for listener in self._listeners:
            await listener.close()
        self.doors.close()
        self.admission.close()
        self._fault_gate.close()
        self._quota_gate.close()
        await self.connections.close()
        await self._end()

    async def _end(self) -> None:
        self._recovery.close()
        self.lag.close()
        self._store.detach()
        if self._catalogue_task is not None:
            self._catalogue_task.cancel()
            await asyncio.wait([self._catalogue_task])

    def pause(self) -> None:
        """Stand still, as a process does on SIGSTOP: no timer fires, nothing is read, answered or learned."""
        self.paused = True
        self.clock.pause()
        self.real_clock.pause()
        self._store.pause()
        self.connections.freeze()

    def resume(self) -> None:
        """Undo `pause`. Timers first: the leases may have expired, and nobody may be served under them."""
        self.paused = False
        self.real_clock.resume()
        self.clock.resume()
        self._store.resume()
        self.connections.thaw()

    def missed(self, ms: int) -> None:
        """Time was moved while the broker was paused: when it resumes, it sees the true age of its leases.
        In test mode only."""
        assert self._missed is not None
        self._missed.move_to(self._missed.now_ms() + ms)

    def under_way(self, live: Collection[int]) -> Iterator[str]:
        """Describes background work in words; yields nothing when all is at rest and durable, except for what
        waits for nodes that are not `live`."""
        yield from self.connections.under_way()
        yield from self.runtime.under_way()
        yield from self.transacting.under_way(live)
        yield from self.partitions.under_way()
        if not self.membership.at_rest:
            yield "leases are still moving"
        for kind, number in self.membership.unannounced():
            if kind is not LeaseKind.GROUP or not self.runtime.holds.holding(number):
                yield f"{kind} shard {number} is still being taken over"

    def _fixed_configs(self) -> dict[str, str]:
        """Kafka's broker configs that follow from what this broker is."""
        settings, node_id = self.settings, str(self.node_id)
        fixed = {
            "advertised.listeners": _kafka_listeners(self._reached_at()),
            "broker.id": node_id,
            "listeners": _kafka_listeners(each.bound for each in self.listening),
            "node.id": node_id,
            "offsets.topic.num.partitions": str(self._group_shards),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": str(self._counts.leases[LeaseKind.TRANSACTION]),
            "transaction.state.log.replication.factor": "1",
        }
        if settings.mechanisms:
            fixed["sasl.enabled.mechanisms"] = ",".join(settings.mechanisms)
        if settings.rack is not None:
            fixed["broker.rack"] = settings.rack
        if settings.store is None and not settings.ephemeral:
            fixed["log.dirs"] = settings.data
        return fixed

    def _apply_configs(self, topic_defaults: Mapping[str, str]) -> None:
        self.catalogue.set_defaults(topic_defaults)
        self.membership.set_drained(self.configs.drained)
        self.connections.connections_max = min(
            self.configs.number("max.connections"), self._connections_possible
        )
        per_address, overrides = self.configs.per_ip
        self.admission.limit(per_address, overrides_of(overrides))
        producer_expiration_ms = self.configs.number("producer.id.expiration.ms")
        self.group_configs.in_force.producer_id_expiration_ms = producer_expiration_ms
        self.partitions.set_upkeep(
            cleaner_backoff_ms=self.configs.number("log.cleaner.backoff.ms"),
            producer_expiration_ms=producer_expiration_ms,
        )

    # --- topics ---------------------------------------------------------------------------------------------

    async def _keep_catalogue(self) -> None:
        """Read topics and configs again whenever the store has changed; changes that come meanwhile are read
        together."""
        pause_s = 0.0 if self.settings.store is None else _READ_PAUSE_S
        failure: str | None = None
        while True:
            await self._catalogue_stale.wait()
            self._catalogue_stale.clear()
            try:
                try:
                    await self.configs.refresh()
                except Exception:
                    await self.catalogue.refresh()  # configs that cannot be applied withhold no topics
                    raise
                await self.catalogue.refresh()
                if failure is not None:
                    failure = None
                    self._log.info("topics and configs read again")
                await asyncio.sleep(pause_s)
            except Exception as error:
                if str(error) != failure:
                    failure = str(error)
                    known = isinstance(error, StoreError)
                    said: dict[str, object] = {"why": failure} if known else {"exc_info": error}
                    self._log.warning("failed to read topics and configs, retrying", **said)
                self._catalogue_stale.set()  # the store does not report a change twice
                await asyncio.sleep(_READ_AGAIN_S)

    async def read_topics(self) -> None:
        """Return when a read of the topics that began after this call is done. Callers in the same turn share
        it."""
        if self._catalogue_reading is None:

            async def read() -> Change:
                self._catalogue_reading = None
                return await self.catalogue.refresh()

            reading = asyncio.get_running_loop().create_task(read(), name="read topics")
            # Its callers may be gone, and then nobody else retrieves its failure.
            reading.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._catalogue_reading = reading
        await asyncio.shield(self._catalogue_reading)

    def _topics_changed(self, change: Change) -> None:
        resized = any(before.partitions != after.partitions for before, after in change.altered)
        if change.created or change.deleted or resized:  # groups know nothing of configs and replicas
            self._tell_topics(change.deleted)
        self._make_way()

    def _tell_topics(self, deleted: Iterable[Topic]) -> None:
        topics = self.catalogue.topics()
        gone = frozenset((topic.name, topic.topic_id) for topic in deleted)
        live = {topic.name: topic.topic_id for topic in topics}
        partitions = {topic.name: topic.partitions for topic in topics}
        self.runtime.topics_changed(TopicsImage(gone, live, partitions))

    def _make_way(self) -> None:
        """Let the new leaders of reassigned partitions lead: this broker claims anew the leases that it still
        holds under the old epoch, which shows them that it knows."""
        for lease, epoch in self.catalogue.moved.items():
            self.membership.begin_anew(lease, epoch)

    def _lease_of(self, topic_id: UUID, partition: int) -> Lease | None:
        topic = self.catalogue.by_id(topic_id)
        assignment = None if topic is None else topic.assignments.get(partition)
        if assignment is None:
            return partition_lease(self._shard_topics, self._counts.leases, topic_id, partition)
        if not self.membership.started:
            return None
        return self.topology.data_lease(topic_id, partition, assignment)

    def leader(self, topic: Topic, partition: int) -> Leader:
        """Who leads a partition, as last read."""
        return self.topology.leader(topic.topic_id, partition, topic.assignments.get(partition))

    @property
    def hosts(self) -> Hosts:
        """The live brokers that partitions can be assigned to."""
        nodes = self.topology.nodes.values()
        return Hosts(
            {node.node_id: node.rack for node in nodes},
            frozenset(node.node_id for node in nodes if node.drained),
            self.topology.keeps_replicas,
        )


def _kafka_listeners(endpoints: Iterable[Endpoint]) -> str:
    return ",".join(str(each if each.listener else each._replace(listener="PLAINTEXT")) for each in endpoints)


def group_config(settings: Settings, *, real_time: bool = False) -> GroupConfig:
    """The settings of the group core; the field names are the same."""
    names = {each.name for each in fields(GroupConfig)} - {"newcomers_return_within_ms"}
    values = {name: getattr(settings, name) for name in names}
    values["group_consumer_migration_policy"] = MigrationPolicy(settings.group_consumer_migration_policy)
    config = GroupConfig(**values)
    if not real_time or config.group_initial_rebalance_delay_ms:
        return config  # time may stand still
    # Even without a delay, members whose JoinGroup is on its way take part: in Kafka an expired timer passes
    # through threads, behind the requests that have arrived.
    return replace(
        config, group_initial_rebalance_delay_ms=1, newcomers_return_within_ms=_NEWCOMERS_RETURN_WITHIN_MS
    )
