"""A broker's part in transactions: its coordinators, the topic that shows their records, the markers they
owe, and access to the coordinators of other brokers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any
from uuid import UUID

from muster.coordinator.base.clock import Clock
from muster.coordinator.cluster.coordinators import TRANSACTIONS
from muster.coordinator.cluster.topology import NO_NODE
from muster.coordinator.observe.transactions import Endings
from muster.coordinator.peers.coordinators import TransactionCoordinators
from muster.coordinator.peers.marker_holds import MarkerHolds
from muster.coordinator.peers.markers import Markers, Whereabouts
from muster.coordinator.peers.post import Post
from muster.coordinator.runtime.recorder import Recorder
from muster.coordinator.runtime.runtime import RuntimeOptions
from muster.coordinator.runtime.shard_host import Limits
from muster.coordinator.runtime.transactions import TransactionRuntime
from muster.coordinator.server.apis.peers import answer_peer
from muster.coordinator.server.features import TRANSACTION_VERSION
from muster.coordinator.server.producer_ids import ProducerIds
from muster.coordinator.server.serving import Broker
from muster.coordinator.server.shards import CoordinatorShards
from muster.coordinator.storage.store import LeaseKind, Store, StoreCounts
from muster.coordinator.topics.catalogue import transactions_topic
from muster.coordinator.topics.partitions import Partitions
from muster.coordinator.topics.transaction_state import TransactionStates
from muster.coordinator.transactions.config import TransactionConfig
from muster.protocol.api import ApiKey
from muster.protocol.message import Message


class TransactionService:
    """What one broker does for transactions. `start` once it is registered; then `close` or `kill`, once.

    It is created along with the broker, so it looks up the broker's other parts only when it needs them.
    """

    def __init__(
        self,
        broker: Broker,
        store: Store,
        counts: StoreCounts,
        clock: Clock,
        real_clock: Clock,
        incarnation: UUID,
        recorder: Recorder,
        marker_holds: MarkerHolds,
    ) -> None:
        self._broker = broker
        settings, serving = broker.settings, broker.membership.serving
        shards = counts.leases[LeaseKind.TRANSACTION]
        self.producer_ids = ProducerIds(store)
        self.endings = Endings(clock, recorder)
        self.states = TransactionStates(
            transactions_topic(counts.cluster_id, shards),
            store,
            clock,
            node_id=broker.node_id,
            serving=serving,
        )
        self.runtime = TransactionRuntime(
            store,
            clock,
            broker.membership,
            TransactionConfig(settings.transaction_max_timeout_ms, settings.transactional_id_expiration_ms),
            new_id=self.producer_ids.at_once,
            version=lambda: broker.features.level(TRANSACTION_VERSION),
            options=RuntimeOptions(
                shard_count=shards,
                limits=Limits(write_timeout_ms=settings.offsets_commit_timeout_ms),
                observer=self._observe,
                records_written=self.states.written,
            ),
        )
        self._post = Post(
            store, real_clock, node_id=broker.node_id, incarnation=incarnation, serve=self._answer
        )
        self._markers = Markers(
            self._post.ask,
            real_clock,
            serving=serving,
            leader=self._leader,
            read_topics=broker.read_topics,
            marked=self.runtime.marked,
            holds=marker_holds,
        )
        self.coordinators = TransactionCoordinators(
            self._post.ask, self._coordinator, self._markers, node_id=broker.node_id
        )
        """Coordinators of any transactional id, on any broker."""

    def shards(self, partitions: Partitions) -> CoordinatorShards:
        """Handles the leases of transaction shards."""
        return CoordinatorShards(
            TRANSACTIONS, self.runtime, partitions, (self.states,), disowned=self._markers.forget
        )

    def start(self) -> None:
        """Start to answer requests of other brokers."""
        self._post.start()

    async def close(self) -> None:
        """Once the leases are handed over: finish the writes in flight, and answer nothing more."""
        await self.runtime.close()
        self._markers.close()
        self.coordinators.close()
        await self._post.close()
        await self.producer_ids.close()
        await self.states.close()

    async def kill(self) -> None:
        """As if the process died."""
        self.runtime.kill()
        self._markers.close()
        self.coordinators.close()
        self._post.kill()
        await self.producer_ids.close()
        self.states.abandon()

    def under_way(self, live: Collection[int]) -> Iterator[str]:
        """Describes background work in words; yields nothing when all is at rest and durable, except for what
        waits for nodes that are not `live`."""
        yield from self.runtime.under_way()
        yield from self._markers.under_way(live)
        yield from self._post.under_way(live)

    def _observe(self, shard: int, events: Sequence[Any]) -> None:
        epoch = self.runtime.epoch(shard)
        if epoch is not None:
            self._markers.observe(shard, epoch, events)
        self.endings.observe(shard, events)

    def _leader(self, name: str, partition: int) -> int | Whereabouts:
        topic = self._broker.catalogue.by_name(name)
        if topic is None or not 0 <= partition < topic.partitions:
            return Whereabouts.UNKNOWN
        node_id = self._broker.leader(topic, partition).node_id
        return Whereabouts.NO_LEADER if node_id == NO_NODE else node_id

    def _coordinator(self, transactional_id: str) -> int | None:
        node = self._broker.topology.coordinator(transactional_id, TRANSACTIONS)
        return None if node is None else node.node_id

    async def _answer(self, api: ApiKey, version: int, request: Message) -> Message:
        return await answer_peer(self._broker, api, version, request)
