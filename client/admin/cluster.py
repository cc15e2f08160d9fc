"""The cluster: its brokers, who is the controller, and of muster's brokers who serves what."""

from __future__ import annotations

from typing import NamedTuple

from muster.client.admin.configs import ConfigResource, alter_configs
from muster.client.errors import refusal
from muster.client.network.cluster import Cluster
from muster.client.network.connection import Address
from muster.protocol.messages.metadata import DescribeClusterRequest, DescribeClusterResponse

DRAINED_CONFIG = "muster.drained"
"""The config of one broker that keeps it without leases."""


class Node(NamedTuple):
    """A broker."""

    node_id: int
    host: str
    port: int
    rack: str | None

    @property
    def address(self) -> Address:
        return Address(self.host, self.port)


class Lease(NamedTuple):
    """The right of one broker to serve a shard: of groups ("group"), of topic partitions ("data"), or of
    those with one replica list ("replicas").

    Nobody has it: `holder` is None, and so is what follows. `announced`: the holder has loaded the shard, and
    clients are sent to it. It runs out in `remaining_ms` unless it is renewed.
    """

    kind: str
    number: int
    holder: int | None
    epoch: int | None
    remaining_ms: int | None
    announced: bool | None


class Registration(NamedTuple):
    """How a broker stands in the cluster. It counts as gone `term_ms` after it registered last. One that is
    drained holds no leases, or is handing them over."""

    drained: bool
    registered_ago_ms: int
    term_ms: int


class Leases(NamedTuple):
    """What brokers of muster tell beside the rest: every lease, and every broker's registration by its node
    id. `answering` is the broker that says so."""

    answering: int
    registrations: dict[int, Registration]
    leases: list[Lease]

    def of(self, node_id: int, kind: str | None = None) -> list[Lease]:
        """The leases that a broker holds, all or those of one kind."""
        return [each for each in self.leases if each.holder == node_id and kind in (None, each.kind)]


class ClusterDescription(NamedTuple):
    """The cluster as one broker describes it. `controller` is its node id, -1 when there is none. `leases`
    are None when they were not asked for, and when the broker is none of muster's."""

    cluster_id: str
    controller: int
    brokers: list[Node]
    leases: Leases | None = None


async def describe_cluster(cluster: Cluster, until: float, *, leases: bool = False) -> ClusterDescription:
    """Its id, controller and brokers, and on request its leases."""

    async def attempt() -> ClusterDescription:
        return await describe_cluster_once(cluster, until, leases=leases)

    return await cluster.retrying(attempt, until)


async def describe_cluster_once(
    cluster: Cluster, until: float, *, leases: bool = False
) -> ClusterDescription:
    """As `describe_cluster`, from the broker that is asked first. Raises what that one meets."""
    request = DescribeClusterRequest(include_cluster_authorized_operations=False, include_leases=leases)
    response: DescribeClusterResponse = await cluster.call(request, until)
    if response.error_code:
        raise refusal(response.error_code, response.error_message)
    brokers = [Node(each.broker_id, each.host, each.port, each.rack) for each in response.brokers]
    return ClusterDescription(
        response.cluster_id,
        response.controller_id,
        sorted(brokers),
        _leases(response) if leases and response.answering_id >= 0 else None,
    )


def _leases(response: DescribeClusterResponse) -> Leases:
    return Leases(
        response.answering_id,
        {
            each.broker_id: Registration(each.is_drained, each.registered_ago_ms, each.term_ms)
            for each in response.brokers
        },
        [
            Lease(each.kind, each.number, each.holder_id, each.epoch, each.remaining_ms, each.announced)
            if each.holder_id >= 0
            else Lease(each.kind, each.number, None, None, None, None)
            for each in response.leases
        ],
    )


async def set_drained(cluster: Cluster, node_id: int, drained: bool, until: float) -> None:
    """Have a broker of muster hand its leases over and take none, or let it take leases again. It stays so
    when it is started anew. Returns before anything was handed over. Raises KafkaError and ClientError."""
    broker = ConfigResource.of_broker(node_id)
    change = {broker: {DRAINED_CONFIG: "true" if drained else None}}
    (await alter_configs(cluster, change, until)).raise_for_failures()
