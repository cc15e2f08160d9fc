"""Refusals, as those of `refusals`, of what is asked about security, quotas and features."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.message import Message
from muster.protocol.messages.acls import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from muster.protocol.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from muster.protocol.messages.features import UpdateFeaturesRequest, UpdateFeaturesResponse
from muster.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from muster.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from muster.protocol.messages.scram import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

_ANYBODY: Final = ("User", "ANONYMOUS")
"""The principal of a connection without authentication."""
_REQUESTER_FROM: Final = 3

# --- SASL and users -----------------------------------------------------------------------------------------


def sasl_handshake(request: SaslHandshakeRequest, version: int, error: KafkaError) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=error.code, mechanisms=[])


def sasl_authenticate(
    request: SaslAuthenticateRequest, version: int, error: KafkaError
) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(error_code=error.code, error_message=error.why, auth_bytes=b"")


def described_user_error(
    name: str, error: KafkaError
) -> DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult:
    return DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult(
        user=name, error_code=error.code, error_message=error.why, credential_infos=[]
    )


def describe_user_scram_credentials(
    request: DescribeUserScramCredentialsRequest, version: int, error: KafkaError
) -> DescribeUserScramCredentialsResponse:
    return DescribeUserScramCredentialsResponse(error_code=error.code, error_message=error.why, results=[])


def altered_user(
    name: str, error: KafkaError
) -> AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult:
    return AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult(
        user=name, error_code=error.code, error_message=error.why
    )


def alter_user_scram_credentials(
    request: AlterUserScramCredentialsRequest, version: int, error: KafkaError
) -> AlterUserScramCredentialsResponse:
    named = [each.name for each in request.deletions] + [each.name for each in request.upsertions]
    return AlterUserScramCredentialsResponse(
        results=[altered_user(name, error) for name in dict.fromkeys(named)]
    )


# --- ACLs ---------------------------------------------------------------------------------------------------


def describe_acls(request: DescribeAclsRequest, version: int, error: KafkaError) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=error.code, error_message=error.why, resources=[])


def create_acls(request: CreateAclsRequest, version: int, error: KafkaError) -> CreateAclsResponse:
    return CreateAclsResponse(
        results=[
            CreateAclsResponse.AclCreationResult(error_code=error.code, error_message=error.why)
            for _ in request.creations
        ]
    )


def delete_acls(request: DeleteAclsRequest, version: int, error: KafkaError) -> DeleteAclsResponse:
    return DeleteAclsResponse(
        filter_results=[
            DeleteAclsResponse.DeleteAclsFilterResult(
                error_code=error.code, error_message=error.why, matching_acls=[]
            )
            for _ in request.filters
        ]
    )


# --- delegation tokens --------------------------------------------------------------------------------------


def create_delegation_token(
    request: CreateDelegationTokenRequest, version: int, error: KafkaError
) -> CreateDelegationTokenResponse:
    type, name = _ANYBODY
    by_type, by_name = _ANYBODY if version >= _REQUESTER_FROM else ("", "")
    return CreateDelegationTokenResponse(
        error_code=error.code,
        principal_type=type,
        principal_name=name,
        issue_timestamp_ms=-1,
        expiry_timestamp_ms=-1,
        max_timestamp_ms=-1,
        token_id="",
        hmac=b"",
        token_requester_principal_type=by_type,
        token_requester_principal_name=by_name,
    )


def renew_delegation_token(
    request: RenewDelegationTokenRequest, version: int, error: KafkaError
) -> RenewDelegationTokenResponse:
    return RenewDelegationTokenResponse(error_code=error.code, expiry_timestamp_ms=-1)


def expire_delegation_token(
    request: ExpireDelegationTokenRequest, version: int, error: KafkaError
) -> ExpireDelegationTokenResponse:
    return ExpireDelegationTokenResponse(error_code=error.code, expiry_timestamp_ms=-1)


def describe_delegation_token(
    request: DescribeDelegationTokenRequest, version: int, error: KafkaError
) -> DescribeDelegationTokenResponse:
    return DescribeDelegationTokenResponse(error_code=error.code, tokens=[])


# --- quotas and features ------------------------------------------------------------------------------------


def describe_client_quotas(
    request: DescribeClientQuotasRequest, version: int, error: KafkaError
) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_code=error.code, error_message=error.why, entries=None)


def altered_quota(
    entry: AlterClientQuotasRequest.EntryData, error: KafkaError | None
) -> AlterClientQuotasResponse.EntryData:
    Told = AlterClientQuotasResponse.EntryData
    return Told(
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.why,
        entity=[
            Told.EntityData(entity_type=each.entity_type, entity_name=each.entity_name)
            for each in entry.entity
        ],
    )


def alter_client_quotas(
    request: AlterClientQuotasRequest, version: int, error: KafkaError
) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(entries=[altered_quota(each, error) for each in request.entries])


def update_features(
    request: UpdateFeaturesRequest, version: int, error: KafkaError
) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(error_code=error.code, error_message=error.why)


SECURITY_REFUSALS: Final[Mapping[ApiKey, Callable[[Any, int, KafkaError], Message]]] = {
    ApiKey.SASL_HANDSHAKE: sasl_handshake,
    ApiKey.SASL_AUTHENTICATE: sasl_authenticate,
    ApiKey.DESCRIBE_ACLS: describe_acls,
    ApiKey.CREATE_ACLS: create_acls,
    ApiKey.DELETE_ACLS: delete_acls,
    ApiKey.CREATE_DELEGATION_TOKEN: create_delegation_token,
    ApiKey.RENEW_DELEGATION_TOKEN: renew_delegation_token,
    ApiKey.EXPIRE_DELEGATION_TOKEN: expire_delegation_token,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: describe_delegation_token,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: describe_client_quotas,
    ApiKey.ALTER_CLIENT_QUOTAS: alter_client_quotas,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: describe_user_scram_credentials,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: alter_user_scram_credentials,
    ApiKey.UPDATE_FEATURES: update_features,
}
"""By API; REFUSALS holds them too."""
