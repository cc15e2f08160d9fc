"""SCRAM users: DescribeUserScramCredentials, AlterUserScramCredentials.

muster has no SASL mechanism and so no users. It says so as Kafka says it of users that it does not have;
nothing is accepted that would not be kept.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from muster.coordinator.base.step import RequestContext
from muster.coordinator.server.api import Api
from muster.coordinator.server.needs import Needs, cluster
from muster.coordinator.server.refusal import Each, Refusal, entry
from muster.coordinator.server.serving import Broker
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.acls import Operation
from muster.protocol.messages.scram import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

_Described = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
_Altered = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
_Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
_Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion

_MECHANISMS: Final = frozenset({1, 2})
"""SCRAM-SHA-256 and SCRAM-SHA-512."""
_ITERATIONS: Final = range(4_096, 16_385)
"""What Kafka takes (KIP-554)."""


async def describe_user_scram_credentials(
    broker: Broker, request: DescribeUserScramCredentialsRequest, context: RequestContext
) -> DescribeUserScramCredentialsResponse:
    """There are no users: RESOURCE_NOT_FOUND for each one named, DUPLICATE_RESOURCE for one named twice."""
    times = Counter(each.name for each in request.users or ())
    return DescribeUserScramCredentialsResponse(
        error_message=None,
        results=[
            entry(_Described, context.api_version, _undescribed(name, count), user=name)
            for name, count in times.items()
        ],
    )


def _undescribed(name: str, times: int) -> KafkaError:
    if times > 1:
        return KafkaError(ErrorCode.DUPLICATE_RESOURCE, f"user {name} is named {times} times")
    return KafkaError(
        ErrorCode.RESOURCE_NOT_FOUND, f"there is no user {name}: muster has no SCRAM credentials"
    )


async def alter_user_scram_credentials(
    broker: Broker, request: AlterUserScramCredentialsRequest, context: RequestContext
) -> AlterUserScramCredentialsResponse:
    """Each user's refusal: there is none to delete (RESOURCE_NOT_FOUND), and none can be made
    (UNSUPPORTED_SASL_MECHANISM)."""
    asked: list[_Deletion | _Upsertion] = [*request.deletions, *request.upsertions]
    times = Counter((each.name, each.mechanism) for each in asked)
    refused = {
        each.name: KafkaError(ErrorCode.DUPLICATE_RESOURCE, f"user {each.name} is named more than once")
        if times[each.name, each.mechanism] > 1
        else _unaltered(each)
        for each in asked
    }
    return AlterUserScramCredentialsResponse(
        results=[entry(_Altered, context.api_version, error, user=name) for name, error in refused.items()]
    )


def _unaltered(asked: _Deletion | _Upsertion) -> KafkaError:
    if not asked.name:
        return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "the user's name is empty")
    if asked.mechanism not in _MECHANISMS:
        return KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"unknown SCRAM mechanism {asked.mechanism}")
    if isinstance(asked, _Deletion):
        return KafkaError(ErrorCode.RESOURCE_NOT_FOUND, f"there is no user {asked.name} to delete")
    if asked.iterations not in _ITERATIONS:
        return KafkaError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"iterations must be {_ITERATIONS[0]} to {_ITERATIONS[-1]}, not {asked.iterations}",
        )
    return KafkaError(
        ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        "muster has no SASL mechanism, so it stores no credentials",
    )


def _users(request: AlterUserScramCredentialsRequest) -> list[str]:
    named: list[_Deletion | _Upsertion] = [*request.deletions, *request.upsertions]
    return list(dict.fromkeys(each.name for each in named))


APIS: Final = (
    Api(
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        describe_user_scram_credentials,
        needs=Needs((cluster(Operation.DESCRIBE),)),
    ),
    Api(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        alter_user_scram_credentials,
        needs=Needs((cluster(Operation.ALTER),)),
        refuse=Refusal((Each("results", _users, itself="user"),)),
    ),
)
