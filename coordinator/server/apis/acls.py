"""DescribeAcls, CreateAcls, DeleteAcls. Without an authorizer they are refused, as by Kafka."""

from __future__ import annotations

from typing import Final

from muster.coordinator.base.step import RequestContext
from muster.coordinator.security.acls import Acl, Filter, acl, acl_filter
from muster.coordinator.server.api import Api
from muster.coordinator.server.apis.several import Attempts
from muster.coordinator.server.kept_acls import KeptAcls
from muster.coordinator.server.needs import Needs, cluster
from muster.coordinator.server.refusal import entry, listing
from muster.coordinator.server.serving import Broker
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.acls import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    Operation,
)

_Described = DescribeAclsResponse.DescribeAclsResource
_Created = CreateAclsResponse.AclCreationResult
_Removed = DeleteAclsResponse.DeleteAclsFilterResult


def _acls(broker: Broker) -> KeptAcls:
    """The ACLs; SECURITY_DISABLED if there are none."""
    if broker.authorizer is None:
        raise KafkaError(
            ErrorCode.SECURITY_DISABLED, "No authorizer is configured: start the broker with --super-users"
        )
    return broker.authorizer.acls


async def describe_acls(
    broker: Broker, request: DescribeAclsRequest, context: RequestContext
) -> DescribeAclsResponse:
    """The ACLs that the filter selects, by resource pattern."""
    kept = _acls(broker)
    by = acl_filter(
        request.resource_type_filter,
        request.pattern_type_filter,
        request.resource_name_filter,
        request.principal_filter,
        request.host_filter,
        request.operation,
        request.permission_type,
    )
    selected = {} if kept.in_force is None else kept.in_force.selected(by)
    return DescribeAclsResponse(
        error_message=None,
        resources=[
            _Described(
                resource_type=pattern.type,
                resource_name=pattern.name,
                pattern_type=pattern.pattern,
                acls=[
                    _Described.AclDescription(
                        principal=each.principal,
                        host=each.host,
                        operation=each.operation,
                        permission_type=each.permission,
                    )
                    for each in accesses
                ],
            )
            for pattern, accesses in sorted(selected.items())
        ],
    )


async def create_acls(
    broker: Broker, request: CreateAclsRequest, context: RequestContext
) -> CreateAclsResponse:
    """Add each valid ACL; adding an existing one changes nothing. Answers when they are in force here."""
    kept = _acls(broker)
    outcomes: list[Acl | KafkaError] = []
    for each in request.creations:
        try:
            outcomes.append(
                acl(
                    each.resource_type,
                    each.resource_pattern_type,
                    each.resource_name,
                    each.principal,
                    each.host,
                    each.operation,
                    each.permission_type,
                )
            )
        except KafkaError as error:
            outcomes.append(error)
    failed: KafkaError | None = None
    added = [each for each in outcomes if isinstance(each, Acl)]
    if added:
        try:
            await Attempts(ApiKey.CREATE_ACLS, context).make(kept.create(added))
        except KafkaError as error:
            failed = error
    results = []
    for outcome in outcomes:
        refused = outcome if isinstance(outcome, KafkaError) else failed
        if refused is None:
            results.append(_Created(error_message=None))
        else:
            results.append(entry(_Created, context.api_version, refused))
    return CreateAclsResponse(results=results)


async def delete_acls(
    broker: Broker, request: DeleteAclsRequest, context: RequestContext
) -> DeleteAclsResponse:
    """Remove what each filter selects; an ACL that several select is named by each. Answers when they are out
    of force here."""
    kept = _acls(broker)
    outcomes: list[Filter | KafkaError] = []
    for each in request.filters:
        try:
            outcomes.append(
                acl_filter(
                    each.resource_type_filter,
                    each.pattern_type_filter,
                    each.resource_name_filter,
                    each.principal_filter,
                    each.host_filter,
                    each.operation,
                    each.permission_type,
                )
            )
        except KafkaError as error:
            outcomes.append(error)
    filters = [each for each in outcomes if isinstance(each, Filter)]
    removed = iter(await Attempts(ApiKey.DELETE_ACLS, context).make(kept.remove(filters)) if filters else ())
    return DeleteAclsResponse(
        filter_results=[
            entry(_Removed, context.api_version, each)
            if isinstance(each, KafkaError)
            else _Removed(error_message=None, matching_acls=list(map(_matching, next(removed))))
            for each in outcomes
        ]
    )


def _matching(removed: Acl) -> _Removed.DeleteAclsMatchingAcl:
    pattern, access = removed
    return _Removed.DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=pattern.type,
        resource_name=pattern.name,
        pattern_type=pattern.pattern,
        principal=access.principal,
        host=access.host,
        operation=access.operation,
        permission_type=access.permission,
    )


_TO_ALTER: Final = Needs((cluster(Operation.ALTER),))

APIS: Final = (
    Api(ApiKey.DESCRIBE_ACLS, describe_acls, needs=Needs((cluster(Operation.DESCRIBE),))),
    Api(ApiKey.CREATE_ACLS, create_acls, needs=_TO_ALTER, refuse=listing("results", "creations")),
    Api(ApiKey.DELETE_ACLS, delete_acls, needs=_TO_ALTER, refuse=listing("filter_results", "filters")),
)
