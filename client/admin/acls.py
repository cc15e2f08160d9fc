"""ACLs: describe, create, delete (KIP-140)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Self

from muster.client.admin.answers import Outcomes, controller, of_controller, of_nodes, refused
from muster.client.errors import refusal
from muster.client.network.cluster import Cluster
from muster.protocol.errors import KafkaError
from muster.protocol.messages.acls import (
    CLUSTER_NAME,
    CreateAclsRequest,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    Operation,
    Permission,
    ResourceType,
)
from muster.protocol.messages.acls import PatternType as PatternType

AclOperation = Operation
AclPermission = Permission
AclResourceType = ResourceType


class Acl(NamedTuple):
    """Who may, or may not, do what with which resources.

    `principal` is `User:NAME`; `User:*` is everyone. `host` is an address as the broker sees it, a network in
    CIDR notation (brokers of Kafka 4.4 and muster), or `*`. A PREFIXED name matches all names that begin with
    it; a LITERAL `*` matches all.
    """

    resource_type: AclResourceType
    resource_name: str
    principal: str
    operation: AclOperation
    permission: AclPermission = AclPermission.ALLOW
    pattern_type: PatternType = PatternType.LITERAL
    host: str = "*"

    @classmethod
    def of_cluster(
        cls, principal: str, operation: AclOperation, permission: AclPermission = AclPermission.ALLOW
    ) -> Self:
        """An ACL on the cluster itself, for any host."""
        return cls(AclResourceType.CLUSTER, CLUSTER_NAME, principal, operation, permission)

    def __str__(self) -> str:
        kind = self.resource_type.name.lower().replace("_", " ")
        if self.resource_type is AclResourceType.CLUSTER:
            what = "the cluster"
        elif self.pattern_type is PatternType.PREFIXED:
            what = f"every {kind} that begins with {self.resource_name}"
        elif self.resource_name == "*":
            what = f"every {kind}"
        else:
            what = f"{kind} {self.resource_name}"
        verb = "may" if self.permission is AclPermission.ALLOW else "may not"
        operation = self.operation.name.lower().replace("_", " ")
        if self.operation is AclOperation.ALL:
            operation = "do anything with"
        elif self.operation is AclOperation.IDEMPOTENT_WRITE:
            operation, what = "write idempotently", "(cluster)"
        where = "" if self.host == "*" else f" from {self.host}"
        return f"{self.principal} {verb} {operation} {what}{where}"


class AclFilter(NamedTuple):
    """Selects ACLs; a field that is None or ANY matches everything. The pattern type MATCH selects the ACLs
    that apply to the named resource."""

    resource_type: AclResourceType = AclResourceType.ANY
    resource_name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY


async def describe_acls(cluster: Cluster, by: AclFilter, until: float) -> list[Acl]:
    """The ACLs that a filter selects, in order."""

    async def ask() -> list[Acl]:
        request = DescribeAclsRequest(
            resource_type_filter=by.resource_type,
            resource_name_filter=by.resource_name,
            pattern_type_filter=by.pattern_type,
            principal_filter=by.principal,
            host_filter=by.host,
            operation=by.operation,
            permission_type=by.permission,
        )
        response = await cluster.call(request, until)
        if response.error_code:
            raise refusal(response.error_code, response.error_message)
        return sorted(
            Acl(
                AclResourceType(told.resource_type),
                told.resource_name,
                each.principal,
                AclOperation(each.operation),
                AclPermission(each.permission_type),
                PatternType(told.pattern_type),
                each.host,
            )
            for told in response.resources
            for each in told.acls
        )

    return await cluster.retrying(ask, until)


async def create_acls(cluster: Cluster, acls: Iterable[Acl], until: float) -> Outcomes[Acl, None]:
    """Create ACLs; existing ones stay unchanged."""

    async def find(wanted: list[Acl]) -> dict[Acl, int | KafkaError]:
        return dict.fromkeys(wanted, await controller(cluster, until))

    async def ask(node: int, wanted: list[Acl]) -> dict[Acl, KafkaError | None]:
        request = CreateAclsRequest(
            creations=[
                CreateAclsRequest.AclCreation(
                    resource_type=each.resource_type,
                    resource_name=each.resource_name,
                    resource_pattern_type=each.pattern_type,
                    principal=each.principal,
                    host=each.host,
                    operation=each.operation,
                    permission_type=each.permission,
                )
                for each in wanted
            ]
        )
        response = await cluster.call(request, until, node=node)
        return {
            acl: refused(told.error_code, told.error_message)
            for acl, told in zip(wanted, response.results, strict=False)
        }

    return await of_nodes(cluster, acls, find, ask, until, api="CreateAcls")


async def delete_acls(
    cluster: Cluster, filters: Iterable[AclFilter], until: float
) -> Outcomes[AclFilter, list[Acl]]:
    """Delete the ACLs that each filter selects; its outcome is the list of deleted ACLs."""

    async def ask(node: int, wanted: list[AclFilter]) -> dict[AclFilter, list[Acl] | KafkaError]:
        request = DeleteAclsRequest(
            filters=[
                DeleteAclsRequest.DeleteAclsFilter(
                    resource_type_filter=each.resource_type,
                    resource_name_filter=each.resource_name,
                    pattern_type_filter=each.pattern_type,
                    principal_filter=each.principal,
                    host_filter=each.host,
                    operation=each.operation,
                    permission_type=each.permission,
                )
                for each in wanted
            ]
        )
        response = await cluster.call(request, until, node=node)
        return {by: _deleted(told) for by, told in zip(wanted, response.filter_results, strict=False)}

    return await of_controller(cluster, filters, ask, until, api="DeleteAcls")


def _deleted(told: DeleteAclsResponse.DeleteAclsFilterResult) -> list[Acl] | KafkaError:
    if told.error_code:
        return refusal(told.error_code, told.error_message)
    for each in told.matching_acls:
        if each.error_code:
            return refusal(each.error_code, each.error_message)
    return sorted(
        Acl(
            AclResourceType(each.resource_type),
            each.resource_name,
            each.principal,
            AclOperation(each.operation),
            AclPermission(each.permission_type),
            PatternType(each.pattern_type),
            each.host,
        )
        for each in told.matching_acls
    )
