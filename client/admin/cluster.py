"""The cluster: its brokers, its controller, and, for muster, which broker serves what."""

from __future__ import annotations

from typing import NamedTuple

from muster.client.admin.configs import ConfigResource, alter_configs
from muster.client.errors import refusal
from muster.client.network.cluster import Cluster
from muster.client.network.connection import Address
from muster.protocol.messages.metadata import DescribeClusterRequest, DescribeClusterResponse

DRAINED_CONFIG = "muster.drained"
"""The broker config that keeps a broker free of leases."""


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
    """One broker's right to serve a shard: of groups ("group"), of topic partitions ("data"), or of those
    that share a replica list ("replicas"). If nobody holds it, `holder` and the fields after it are None.
    `announced`: the holder has loaded the shard, and clients are sent to it. The lease expires in
    `remaining_ms` unless renewed.
    """

    kind: str
    number: int
    holder: int | None
    epoch: int | None
    remaining_ms: int | None
    announced: bool | None


class Registration(NamedTuple):
    """A broker's registration. It expires `term_ms` after the last renewal. A drained broker holds no leases,
    or is handing them over."""

    drained: bool
    registered_ago_ms: int
    term_ms: int


class Leases(NamedTuple):
    """What only muster's brokers report: every lease, and every broker's registration by node id. `answering`
    is the broker that responded, `version` its release and build, `why_short` why it lacks leases that it
    should have ("" if it does not)."""

    answering: int
    version: str
    registrations: dict[int, Registration]
    leases: list[Lease]
    why_short: str = ""

    def of(self, node_id: int, kind: str | None = None) -> list[Lease]:
        """The leases that a broker holds, optionally of one kind."""
        return [each for each in self.leases if each.holder == node_id and kind in (None, each.kind)]


class ClusterDescription(NamedTuple):
    """The cluster as one broker describes it. `controller` is a node id, -1 if there is none. `leases` is
    None if not requested, or if the broker is not muster's."""

    cluster_id: str
    controller: int
    brokers: list[Node]
    leases: Leases | None = None


async def describe_cluster(cluster: Cluster, until: float, *, leases: bool = False) -> ClusterDescription:
    """The cluster's id, controller and brokers, and on request its leases."""

    async def attempt() -> ClusterDescription:
        return await describe_cluster_once(cluster, until, leases=leases)

    return await cluster.retrying(attempt, until)


async def describe_cluster_once(
    cluster: Cluster, until: float, *, leases: bool = False
) -> ClusterDescription:
    """Like `describe_cluster`, but asks one broker only, and raises its failure."""
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
        response.version,
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
        response.why_short,
    )


async def set_drained(cluster: Cluster, node_id: int, drained: bool, until: float) -> None:
    """Make a muster broker hand over its leases and take none, or let it take leases again. This survives
    restarts. Returns before anything is handed over. Raises KafkaError and ClientError."""
    broker = ConfigResource.of_broker(node_id)
    change = {broker: {DRAINED_CONFIG: "true" if drained else None}}
    (await alter_configs(cluster, change, until)).raise_for_failures()
