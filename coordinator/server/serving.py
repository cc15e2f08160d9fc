"""What those who answer requests need of a broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from muster.coordinator.base.step import RequestContext
from muster.coordinator.cluster.membership import Membership
from muster.coordinator.cluster.topology import Leader, Topology
from muster.coordinator.config import Settings
from muster.coordinator.runtime.groups import GroupRuntime
from muster.coordinator.server.authorizer import Authorizer
from muster.coordinator.server.broker_configs import BrokerConfigs
from muster.coordinator.server.features import Features
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
from muster.protocol.errors import ErrorCode


class Transactions(Protocol):
    """The transaction coordinators, as those see them who keep what transactions write."""

    async def join(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[tuple[str, int]],
        *,
        adds: bool,
    ) -> Mapping[tuple[str, int], ErrorCode]:
        """Have the id's coordinator say (or with `adds` see to it) that its transaction has these partitions:
        NONE, or TRANSACTION_ABORTABLE for one that it does not have. Raises KafkaError as the coordinator
        refuses (INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, ...), or if none can
        be asked: COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS."""


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
    partitions: Partitions
    runtime: GroupRuntime
    transactions: Transactions | None
    """None as long as there are no transaction coordinators."""
    membership: Membership
    producer_ids: ProducerIds
    unserved: Unserved
    responses: ResponseMemory
    """Bounds what fetches read."""
    authorizer: Authorizer | None
    """None where no ACLs are in force, and everyone may do everything."""

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
        """For what is to be read there anew."""

    @property
    def hosts(self) -> Hosts:
        """The live brokers that partitions can be assigned to."""

    def leader(self, topic: Topic, partition: int) -> Leader:
        """Who leads a partition, as last read."""

    async def read_topics(self) -> None:
        """Return when the topics have been read, beginning after this call."""
