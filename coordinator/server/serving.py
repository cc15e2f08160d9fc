"""What request handlers need of a broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from muster.coordinator.base.step import RequestContext
from muster.coordinator.cluster.membership import Membership
from muster.coordinator.cluster.topology import Leader, Topology
from muster.coordinator.config import Settings
from muster.coordinator.observe.transactions import Endings
from muster.coordinator.peers.coordinators import TransactionCoordinators
from muster.coordinator.runtime.groups import GroupRuntime
from muster.coordinator.runtime.transactions import TransactionRuntime
from muster.coordinator.server.authorizer import Authorizer
from muster.coordinator.server.broker_configs import BrokerConfigs
from muster.coordinator.server.encoded_topics import EncodedTopics
from muster.coordinator.server.features import Features
from muster.coordinator.server.fetch_sessions import FetchSessions
from muster.coordinator.server.group_configs import KeptGroupConfigs
from muster.coordinator.server.kept_quotas import KeptQuotas
from muster.coordinator.server.memory import ResponseMemory
from muster.coordinator.server.metering import Meters
from muster.coordinator.server.producer_ids import ProducerIds
from muster.coordinator.server.rights import Rights
from muster.coordinator.server.unserved import Unserved
from muster.coordinator.server.users import Users
from muster.coordinator.storage.store import Store
from muster.coordinator.topics.catalogue import Catalogue, Topic
from muster.coordinator.topics.partitions import Partitions
from muster.coordinator.topics.replicas import Hosts
from muster.protocol.api import ApiKey


class Broker(Protocol):
    """One broker, as its APIs see it."""

    node_id: int
    cluster_id: str
    settings: Settings
    configs: BrokerConfigs
    group_configs: KeptGroupConfigs
    features: Features
    users: Users
    quotas: KeptQuotas
    meters: Meters
    """What clients have used of their quotas."""
    catalogue: Catalogue
    encoded_topics: EncodedTopics
    partitions: Partitions
    runtime: GroupRuntime
    transaction_runtime: TransactionRuntime
    transactions: TransactionCoordinators
    """The coordinators of transactional ids, whichever brokers they are on."""
    endings: Endings
    """How transactions ended."""
    membership: Membership
    producer_ids: ProducerIds
    unserved: Unserved
    fetch_sessions: FetchSessions
    responses: ResponseMemory
    """Bounds what fetches read."""
    authorizer: Authorizer | None
    """None if no ACLs are in force and everyone may do everything."""

    def rights(self, context: RequestContext) -> Rights:
        """What the client of a request may do."""

    @property
    def served_apis(self) -> Sequence[ApiKey]:
        """What ApiVersions advertises."""

    @property
    def topology(self) -> Topology:
        """Who coordinates and leads what, as last read."""

    @property
    def store(self) -> Store:
        """The store, for fresh reads."""

    @property
    def hosts(self) -> Hosts:
        """The live brokers that partitions can be assigned to."""

    def leader(self, topic: Topic, partition: int) -> Leader:
        """Who leads a partition, as last read."""

    async def read_topics(self) -> None:
        """Return when a read of the topics that began after this call is done."""
