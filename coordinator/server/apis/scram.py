"""SCRAM users (KIP-554): DescribeUserScramCredentials, AlterUserScramCredentials. Only the mechanism and the
iterations of a credential are reported."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Final

from muster.coordinator.base.step import RequestContext
from muster.coordinator.security.acls import NAME_BYTES_MAX
from muster.coordinator.security.scram import HASHES, ITERATIONS, ScramCredential
from muster.coordinator.server.api import Api
from muster.coordinator.server.apis.several import Attempts
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

_NAMES: Final = dict(enumerate(HASHES, start=1))
_NUMBERS: Final = {name: number for number, name in _NAMES.items()}
_SALT_BYTES_MAX: Final = 1_024
"""Strangers are told a user's salt, and as long a one for users that do not exist."""


async def describe_user_scram_credentials(
    broker: Broker, request: DescribeUserScramCredentialsRequest, context: RequestContext
) -> DescribeUserScramCredentialsResponse:
    """The requested users, or all: RESOURCE_NOT_FOUND for an unknown user, DUPLICATE_RESOURCE for one named
    twice."""
    times = Counter(each.name for each in request.users or ()) or Counter(broker.users)
    return DescribeUserScramCredentialsResponse(
        error_message=None,
        results=[_described(broker, context.api_version, name, count) for name, count in times.items()],
    )


def _described(broker: Broker, version: int, name: str, times: int) -> _Described:
    if times > 1:
        error = KafkaError(ErrorCode.DUPLICATE_RESOURCE, f"user {name} is named {times} times")
        return entry(_Described, version, error, user=name)
    found = broker.users.of(name)
    if not found:
        error = KafkaError(ErrorCode.RESOURCE_NOT_FOUND, f"there is no user {name} with a SCRAM credential")
        return entry(_Described, version, error, user=name)
    return _Described(
        user=name,
        error_code=ErrorCode.NONE,
        error_message=None,
        credential_infos=[
            _Described.CredentialInfo(mechanism=_NUMBERS[mechanism], iterations=each.iterations)
            for mechanism, each in sorted(found.items())
        ],
    )


async def alter_user_scram_credentials(
    broker: Broker, request: AlterUserScramCredentialsRequest, context: RequestContext
) -> AlterUserScramCredentialsResponse:
    """Each user's outcome, altered ones first: a refused user does not affect the others. A request may name
    each user only once, whatever the change."""
    attempts = Attempts(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, context)
    if not all(_is_known(broker, each) for each in request.deletions):
        # Another broker may have created it a moment ago. If the store fails, the attempts report it.
        with suppress(KafkaError):
            await attempts.make(broker.users.refresh())
    refused: dict[str, KafkaError] = {}
    altered: dict[str, tuple[str, ScramCredential | None]] = {}
    asked: list[_Deletion | _Upsertion] = [*request.deletions, *request.upsertions]
    for each in asked:
        if each.name in refused:
            continue
        if altered.pop(each.name, None) is not None:
            refused[each.name] = KafkaError(
                ErrorCode.DUPLICATE_RESOURCE, f"user {each.name} is named more than once in a request"
            )
            continue
        try:
            altered[each.name] = _checked(broker, each, attempts)
        except KafkaError as error:
            refused[each.name] = error
    for name, (mechanism, credential) in altered.items():
        try:
            await attempts.make(broker.users.alter(name, {mechanism: credential}))
        except KafkaError as error:
            refused[name] = error
    return AlterUserScramCredentialsResponse(
        results=[
            *(
                _Altered(user=name, error_code=ErrorCode.NONE, error_message=None)
                for name in altered
                if name not in refused
            ),
            *(entry(_Altered, context.api_version, error, user=name) for name, error in refused.items()),
        ]
    )


def _is_known(broker: Broker, asked: _Deletion) -> bool:
    return broker.users.credential(asked.name, _NAMES.get(asked.mechanism, "")) is not None


def _checked(
    broker: Broker, asked: _Deletion | _Upsertion, attempts: Attempts
) -> tuple[str, ScramCredential | None]:
    """The mechanism, and the credential for it; None if it is to be deleted. Raises KafkaError."""
    if not asked.name:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "the user's name is empty")
    if "\0" in asked.name or len(asked.name.encode()) > NAME_BYTES_MAX:
        raise KafkaError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"a user's name has at most {NAME_BYTES_MAX} bytes, without NUL",
        )
    mechanism = _NAMES.get(asked.mechanism)
    if mechanism is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"unknown SCRAM mechanism {asked.mechanism}")
    if isinstance(asked, _Deletion):
        if not _is_known(broker, asked):
            attempts.check()  # only the store knows
            raise KafkaError(
                ErrorCode.RESOURCE_NOT_FOUND, f"user {asked.name} has no {mechanism} credential to delete"
            )
        return mechanism, None
    if asked.iterations not in ITERATIONS:
        raise KafkaError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"iterations must be {ITERATIONS[0]} to {ITERATIONS[-1]}, not {asked.iterations}",
        )
    if len(asked.salt) > _SALT_BYTES_MAX:
        raise KafkaError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"a salt has at most {_SALT_BYTES_MAX} bytes, not {len(asked.salt)}",
        )
    if not asked.salted_password:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "the salted password is empty")
    return mechanism, ScramCredential.of_salted(
        mechanism, asked.salted_password, asked.salt, asked.iterations
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
