"""The cluster: its brokers, and who is the controller."""

from __future__ import annotations

from typing import NamedTuple

from muster.client.errors import refusal
from muster.client.network.cluster import Cluster
from muster.client.network.connection import Address
from muster.protocol.messages.metadata import DescribeClusterRequest


class Node(NamedTuple):
    """A broker."""

    node_id: int
    host: str
    port: int
    rack: str | None

    @property
    def address(self) -> Address:
        return Address(self.host, self.port)


class ClusterDescription(NamedTuple):
    """The cluster as one broker describes it. `controller` is its node id, -1 when there is none."""

    cluster_id: str
    controller: int
    brokers: list[Node]


async def describe_cluster(cluster: Cluster, until: float) -> ClusterDescription:
    """Its id, controller and brokers."""

    async def attempt() -> ClusterDescription:
        response = await cluster.call(
            DescribeClusterRequest(include_cluster_authorized_operations=False), until
        )
        if response.error_code:
            raise refusal(response.error_code, response.error_message)
        brokers = [Node(each.broker_id, each.host, each.port, each.rack) for each in response.brokers]
        return ClusterDescription(response.cluster_id, response.controller_id, sorted(brokers))

    return await cluster.retrying(attempt, until)
