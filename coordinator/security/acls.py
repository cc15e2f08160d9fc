"""ACLs: their contents and validation, and which ones a filter selects (KIP-11, KIP-290)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple, TypeVar

from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.acls import (
    CLUSTER_NAME,
    WILDCARD,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

EVERYONE: Final = "User:*"
"""The principal of an ACL for every client, whether it has authenticated or not."""

NAME_BYTES_MAX: Final = 2_048
"""Maximum UTF-8 bytes of a resource's name: PostgreSQL's index takes no more."""
_PRINCIPAL_BYTES_MAX: Final = 2_048
_HOST_MAX: Final = 255
_SHOWN_MAX: Final = 100  # characters of what a client sent, in an error

E = TypeVar("E", ResourceType, PatternType, Operation, Permission)

_TOPIC: Final = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
OPERATIONS: Final[Mapping[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: _TOPIC,
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.DESCRIBE, Operation.WRITE, Operation.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}
"""The operations on a resource of each type."""


class Pattern(NamedTuple):
    """The resources that an ACL covers."""

    type: ResourceType
    pattern: PatternType
    name: str


class Access(NamedTuple):
    """Who may, or may not, do what with the resources of a pattern.

    `principal` is a type and a name (`User:alice`), or EVERYONE. `host` is an address as Java prints it, a
    network in CIDR notation (KIP-1215), or `*`.
    """

    principal: str
    host: str
    operation: Operation
    permission: Permission

    def concerns(self, principal: str, host: str) -> bool:
        """Whether it applies to a client with this principal and address."""
        if self.principal not in (principal, EVERYONE):
            return False
        return self.host in (WILDCARD, host) or _covers(self.host, host)


class Acl(NamedTuple):
    """An access to the resources of a pattern."""

    pattern: Pattern
    access: Access


class Filter(NamedTuple):
    """Selects ACLs; None and ANY match everything. Principals and hosts are compared as text."""

    type: ResourceType
    pattern: PatternType
    name: str | None
    principal: str | None
    host: str | None
    operation: Operation
    permission: Permission

    def selects_pattern(self, pattern: Pattern) -> bool:
        """Whether ACLs of a pattern may be selected. With type MATCH, the filter's name is that of a
        resource, and every pattern that covers it may be."""
        if self.type not in (ResourceType.ANY, pattern.type):
            return False
        if self.pattern not in (PatternType.ANY, PatternType.MATCH, pattern.pattern):
            return False
        if self.name is None or self.name == pattern.name:
            return True
        if self.pattern is not PatternType.MATCH:
            return False
        if pattern.pattern is PatternType.LITERAL:
            return pattern.name == WILDCARD
        return self.name.startswith(pattern.name)

    def selects_access(self, access: Access) -> bool:
        """Whether an access of a selected pattern is selected."""
        return (
            self.principal in (None, access.principal)
            and self.host in (None, access.host)
            and self.operation in (Operation.ANY, access.operation)
            and self.permission in (Permission.ANY, access.permission)
        )


def acl(
    type: int, pattern: int, name: str, principal: str, host: str, operation: int, permission: int
) -> Acl:
    """An ACL from the numbers and texts of a request. Raises INVALID_REQUEST, which names what is invalid."""
    made = Acl(
        Pattern(
            _known(ResourceType, type, "resource type"), _known(PatternType, pattern, "pattern type"), name
        ),
        Access(
            principal,
            host,
            _known(Operation, operation, "operation"),
            _known(Permission, permission, "permission type"),
        ),
    )
    if made.pattern.pattern is PatternType.MATCH:
        raise _invalid("the pattern type MATCH is for filters")
    if not name:
        raise _invalid("the resource name is empty")
    if len(name.encode()) > NAME_BYTES_MAX or "\0" in name:
        raise _invalid(f"a resource name has at most {NAME_BYTES_MAX} bytes, without NUL")
    if made.pattern.type is ResourceType.CLUSTER and name != CLUSTER_NAME:
        raise _invalid(f"the only resource of type CLUSTER is {CLUSTER_NAME}, not {name}")
    if ":" not in principal or len(principal.encode()) > _PRINCIPAL_BYTES_MAX:
        raise _invalid(
            f"a principal has the form User:NAME and at most {_PRINCIPAL_BYTES_MAX} bytes, "
            f"not {principal[:_SHOWN_MAX]!r}"
        )
    if not host or len(host) > _HOST_MAX:
        raise _invalid(f"a host is an address, a network or *, not {host[:_SHOWN_MAX]!r}")
    if "/" in host:
        try:
            _network(host)
        except ValueError:
            raise _invalid(
                f"the host {host[:_SHOWN_MAX]!r} is no network in CIDR notation, such as 10.0.0.0/8"
            ) from None
    return made


def acl_filter(
    type: int,
    pattern: int,
    name: str | None,
    principal: str | None,
    host: str | None,
    operation: int,
    permission: int,
) -> Filter:
    """A filter from the numbers and texts of a request. Raises INVALID_REQUEST for an unknown number."""
    return Filter(
        _among(ResourceType, type, "resource type"),
        _among(PatternType, pattern, "pattern type"),
        name,
        principal,
        host,
        _among(Operation, operation, "operation"),
        _among(Permission, permission, "permission type"),
    )


def _among(kind: type[E], number: int, what: str) -> E:
    try:
        return kind(number)
    except ValueError:
        raise _invalid(f"unknown {what} {number}") from None


def _known(kind: type[E], number: int, what: str) -> E:
    found = _among(kind, number, what)
    if found.name == "ANY":
        raise _invalid(f"the {what} ANY is for filters")
    return found


def _invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, why)


@lru_cache(maxsize=4_096)
def _network(host: str) -> IPv4Network | IPv6Network:
    """The network, or that of a single address. Raises ValueError, which is not cached, if it is neither."""
    return ip_network(host, strict=False)


@lru_cache(maxsize=4_096)
def _covers(host: str, address: str) -> bool:
    """Whether a network contains an address, or an address is the same one in another spelling."""
    try:
        return ip_address(address.partition("%")[0]) in _network(host)
    except ValueError:
        return False
