"""Access control lists: DescribeAcls, CreateAcls, DeleteAcls."""

from __future__ import annotations

from enum import IntEnum

from muster.protocol.message import Message, Struct, field, request, response, struct
from muster.protocol.types import Array, Int8, Int16, Int32, String


class ResourceType(IntEnum):
    """What an ACL applies to. ANY is valid only in filters."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How an ACL names resources. ANY and MATCH are valid only in filters."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """What an ACL allows or denies. ANY is valid only in filters."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """ANY is valid only in filters."""

    ANY = 1
    DENY = 2
    ALLOW = 3


CLUSTER_NAME = "kafka-cluster"
"""The name of the one resource of type CLUSTER."""
USER = "User:"
"""What the principals of clients begin with."""
WILDCARD = "*"
"""As the name of a literal pattern: every name. As a host: every host."""


@request(29, versions="1-3", flexible="2+")
class DescribeAclsRequest(Message):
    """DescribeAcls v1-3 (KIP-140): v1 patterns, literal 3 or prefixed 4 (KIP-290), v2 flexible, v3 users as
    resources (KIP-373).

    Null filters and the number 1 ("any") match everything.
    """

    resource_type_filter: int = field(Int8, "0+")
    resource_name_filter: str | None = field(String, "0+", nullable="0+")
    pattern_type_filter: int = field(Int8, "1+", default=3)
    principal_filter: str | None = field(String, "0+", nullable="0+")
    host_filter: str | None = field(String, "0+", nullable="0+")
    operation: int = field(Int8, "0+")
    permission_type: int = field(Int8, "0+")


@response(29, versions="1-3", flexible="2+")
class DescribeAclsResponse(Message):
    """DescribeAcls v1-3 (KIP-140): v1 pattern types (KIP-290), v2 flexible, v3 no change here."""

    @struct
    class DescribeAclsResource(Struct):
        @struct
        class AclDescription(Struct):
            principal: str = field(String, "0+")
            host: str = field(String, "0+")
            operation: int = field(Int8, "0+")
            permission_type: int = field(Int8, "0+")

        resource_type: int = field(Int8, "0+")
        resource_name: str = field(String, "0+")
        pattern_type: int = field(Int8, "1+", default=3)
        acls: list[AclDescription] = field(Array(AclDescription), "0+")

    throttle_time_ms: int = field(Int32, "0+", default=0)
    error_code: int = field(Int16, "0+", default=0)
    error_message: str | None = field(String, "0+", nullable="0+")
    resources: list[DescribeAclsResource] = field(Array(DescribeAclsResource), "0+")


@request(30, versions="1-3", flexible="2+")
class CreateAclsRequest(Message):
    """CreateAcls v1-3 (KIP-140): v1 patterns, literal 3 or prefixed 4 (KIP-290), v2 flexible, v3 users as
    resources (KIP-373)."""

    @struct
    class AclCreation(Struct):
        resource_type: int = field(Int8, "0+")
        resource_name: str = field(String, "0+")
        resource_pattern_type: int = field(Int8, "1+", default=3)
        principal: str = field(String, "0+")
        host: str = field(String, "0+")
        operation: int = field(Int8, "0+")
        permission_type: int = field(Int8, "0+")

    creations: list[AclCreation] = field(Array(AclCreation), "0+")


@response(30, versions="1-3", flexible="2+")
class CreateAclsResponse(Message):
    """CreateAcls v1-3 (KIP-140): v1 no change here, v2 flexible, v3 no change here. One result for each
    creation, in order."""

    @struct
    class AclCreationResult(Struct):
        error_code: int = field(Int16, "0+", default=0)
        error_message: str | None = field(String, "0+", nullable="0+")

    throttle_time_ms: int = field(Int32, "0+", default=0)
    results: list[AclCreationResult] = field(Array(AclCreationResult), "0+")


@request(31, versions="1-3", flexible="2+")
class DeleteAclsRequest(Message):
    """DeleteAcls v1-3 (KIP-140): v1 patterns, literal 3 or prefixed 4 (KIP-290), v2 flexible, v3 users as
    resources (KIP-373).

    Filters are like those of DescribeAcls.
    """

    @struct
    class DeleteAclsFilter(Struct):
        resource_type_filter: int = field(Int8, "0+")
        resource_name_filter: str | None = field(String, "0+", nullable="0+")
        pattern_type_filter: int = field(Int8, "1+", default=3)
        principal_filter: str | None = field(String, "0+", nullable="0+")
        host_filter: str | None = field(String, "0+", nullable="0+")
        operation: int = field(Int8, "0+")
        permission_type: int = field(Int8, "0+")

    filters: list[DeleteAclsFilter] = field(Array(DeleteAclsFilter), "0+")


@response(31, versions="1-3", flexible="2+")
class DeleteAclsResponse(Message):
    """DeleteAcls v1-3 (KIP-140): v1 pattern types (KIP-290), v2 flexible, v3 no change here. One result for
    each filter, in order."""

    @struct
    class DeleteAclsFilterResult(Struct):
        @struct
        class DeleteAclsMatchingAcl(Struct):
            error_code: int = field(Int16, "0+", default=0)
            error_message: str | None = field(String, "0+", nullable="0+")
            resource_type: int = field(Int8, "0+")
            resource_name: str = field(String, "0+")
            pattern_type: int = field(Int8, "1+", default=3)
            principal: str = field(String, "0+")
            host: str = field(String, "0+")
            operation: int = field(Int8, "0+")
            permission_type: int = field(Int8, "0+")

        error_code: int = field(Int16, "0+", default=0)
        error_message: str | None = field(String, "0+", nullable="0+")
        matching_acls: list[DeleteAclsMatchingAcl] = field(Array(DeleteAclsMatchingAcl), "0+")

    throttle_time_ms: int = field(Int32, "0+", default=0)
    filter_results: list[DeleteAclsFilterResult] = field(Array(DeleteAclsFilterResult), "0+")
