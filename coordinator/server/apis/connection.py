"""ApiVersions: what this broker speaks."""

from __future__ import annotations

import re
from typing import Final

from muster.coordinator.base.step import RequestContext
from muster.coordinator.server.api import Api
from muster.coordinator.server.needs import nothing
from muster.coordinator.server.serving import Broker
from muster.protocol.api import ApiKey, answer_api_versions
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.connection import ApiVersionsRequest, ApiVersionsResponse

_SOFTWARE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")


async def api_versions(
    broker: Broker, request: ApiVersionsRequest, context: RequestContext
) -> ApiVersionsResponse:
    """The advertised range of every API that has a handler, and the features."""
    version = context.api_version
    if version >= 3:
        # KIP-511: the names go into metrics and logs, so they must be plain.
        for name in (request.client_software_name, request.client_software_version):
            if not _SOFTWARE.fullmatch(name):
                raise KafkaError(ErrorCode.INVALID_REQUEST, "client software name or version is malformed")
    if version >= 5:
        _check_endpoint(broker, request)
    response, _ = answer_api_versions(version, broker.served_apis)
    broker.features.tell(response, version)
    return response


def _check_endpoint(broker: Broker, request: ApiVersionsRequest) -> None:
    """KIP-1242: a client that reached another cluster or node than it meant to is sent back to its bootstrap
    servers."""
    if (request.cluster_id is None) != (request.node_id == -1):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "cluster id and node id must be given together")
    if request.cluster_id is None:
        return
    if request.cluster_id != broker.cluster_id or request.node_id != broker.node_id:
        raise KafkaError(
            ErrorCode.REBOOTSTRAP_REQUIRED,
            f"this is node {broker.node_id} of cluster {broker.cluster_id}, "
            f"not node {request.node_id} of {request.cluster_id}",
        )


def unsupported_api_versions(version: int) -> tuple[ApiVersionsResponse, int]:
    """The answer to a version above ours, and the version to write it in (KIP-511)."""
    return answer_api_versions(version, ())


APIS: Final = (Api(ApiKey.API_VERSIONS, api_versions, needs=nothing("clients ask before they authenticate")),)
