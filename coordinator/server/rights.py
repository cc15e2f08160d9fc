"""What the client of a request may do, as its handler asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from muster.coordinator.security.acls import OPERATIONS
from muster.coordinator.security.decisions import operation_bits
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.acls import CLUSTER_NAME, Operation, ResourceType

_ALL_BITS: Final = {type: operation_bits(operations) for type, operations in OPERATIONS.items()}

_CODES: Final[Mapping[ResourceType, ErrorCode]] = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def denied(operation: Operation, type: ResourceType) -> KafkaError:
    """The refusal. It names no resource: the client may have asked by id, without a right to the name."""
    what = "the cluster" if type is ResourceType.CLUSTER else f"this {type.name.lower().replace('_', ' ')}"
    return KafkaError(_CODES[type], f"not authorized: this needs {operation.name} on {what}")


class Rights(Protocol):
    """The rights of one client. `logged`: whether to log a denial; not if it only shapes a response."""

    def may(self, operation: Operation, type: ResourceType, name: str, *, logged: bool = True) -> bool:
        """Whether the client may do this with a resource."""

    def may_with_cluster(self, operation: Operation, *, logged: bool = True) -> bool:
        """Whether the client may do this with the cluster."""

    def may_with_any(self, operation: Operation, type: ResourceType) -> bool:
        """Whether the client may do this with some resource of the type."""

    def operations(self, type: ResourceType, name: str = CLUSTER_NAME) -> int:
        """What the client may do with a resource, as bits (KIP-430)."""


class Unrestricted:
    """The rights of every client without an authorizer."""

    def may(self, operation: Operation, type: ResourceType, name: str, *, logged: bool = True) -> bool:
        return True

    def may_with_cluster(self, operation: Operation, *, logged: bool = True) -> bool:
        return True

    def may_with_any(self, operation: Operation, type: ResourceType) -> bool:
        return True

    def operations(self, type: ResourceType, name: str = CLUSTER_NAME) -> int:
        return _ALL_BITS[type]


UNRESTRICTED: Final = Unrestricted()
