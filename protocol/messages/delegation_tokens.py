"""Delegation tokens: CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken,
DescribeDelegationToken."""

from __future__ import annotations

from muster.protocol.message import Message, Struct, field, request, response, struct
from muster.protocol.types import Array, Bytes, Int16, Int32, Int64, String


@request(38, versions="1-3", flexible="2+")
class CreateDelegationTokenRequest(Message):
    """CreateDelegationToken v1-3 (KIP-48): v1 no change here, v2 flexible, v3 a token for another owner
    (KIP-373).

    `max_lifetime_ms` -1 means the longest lifetime that the server allows.
    """

    @struct
    class CreatableRenewers(Struct):
        principal_type: str = field(String, "0+")
        principal_name: str = field(String, "0+")

    owner_principal_type: str | None = field(String, "3+", nullable="3+", default="")
    owner_principal_name: str | None = field(String, "3+", nullable="3+", default="")
    renewers: list[CreatableRenewers] = field(Array(CreatableRenewers), "0+")
    max_lifetime_ms: int = field(Int64, "0+")


@response(38, versions="1-3", flexible="2+")
class CreateDelegationTokenResponse(Message):
    """CreateDelegationToken v1-3 (KIP-48): v1 throttling after the reply, v2 flexible, v3 who requested the
    token (KIP-373)."""

    error_code: int = field(Int16, "0+", default=0)
    principal_type: str = field(String, "0+")
    principal_name: str = field(String, "0+")
    token_requester_principal_type: str = field(String, "3+", default="")
    token_requester_principal_name: str = field(String, "3+", default="")
    issue_timestamp_ms: int = field(Int64, "0+")
    expiry_timestamp_ms: int = field(Int64, "0+")
    max_timestamp_ms: int = field(Int64, "0+")
    token_id: str = field(String, "0+")
    hmac: bytes = field(Bytes, "0+", secret=True)
    throttle_time_ms: int = field(Int32, "0+", default=0)


@request(39, versions="1-2", flexible="2+")
class RenewDelegationTokenRequest(Message):
    """RenewDelegationToken v1-2 (KIP-48): v1 no change here, v2 flexible."""

    hmac: bytes = field(Bytes, "0+", secret=True)
    renew_period_ms: int = field(Int64, "0+")


@response(39, versions="1-2", flexible="2+")
class RenewDelegationTokenResponse(Message):
    """RenewDelegationToken v1-2 (KIP-48): v1 throttling after the reply, v2 flexible."""

    error_code: int = field(Int16, "0+", default=0)
    expiry_timestamp_ms: int = field(Int64, "0+")
    throttle_time_ms: int = field(Int32, "0+", default=0)


@request(40, versions="1-2", flexible="2+")
class ExpireDelegationTokenRequest(Message):
    """ExpireDelegationToken v1-2 (KIP-48): v1 no change here, v2 flexible."""

    hmac: bytes = field(Bytes, "0+", secret=True)
    expiry_time_period_ms: int = field(Int64, "0+")


@response(40, versions="1-2", flexible="2+")
class ExpireDelegationTokenResponse(Message):
    """ExpireDelegationToken v1-2 (KIP-48): v1 throttling after the reply, v2 flexible."""

    error_code: int = field(Int16, "0+", default=0)
    expiry_timestamp_ms: int = field(Int64, "0+")
    throttle_time_ms: int = field(Int32, "0+", default=0)


@request(41, versions="1-3", flexible="2+")
class DescribeDelegationTokenRequest(Message):
    """DescribeDelegationToken v1-3 (KIP-48): v1 no change here, v2 flexible, v3 no change here.

    Null `owners` ask for all tokens that the client may see.
    """

    @struct
    class DescribeDelegationTokenOwner(Struct):
        principal_type: str = field(String, "0+")
        principal_name: str = field(String, "0+")

    owners: list[DescribeDelegationTokenOwner] | None = field(
        Array(DescribeDelegationTokenOwner), "0+", nullable="0+"
    )


@response(41, versions="1-3", flexible="2+")
class DescribeDelegationTokenResponse(Message):
    """DescribeDelegationToken v1-3 (KIP-48): v1 throttling after the reply, v2 flexible, v3 who requested the
    token (KIP-373)."""

    @struct
    class DescribedDelegationToken(Struct):
        @struct
        class DescribedDelegationTokenRenewer(Struct):
            principal_type: str = field(String, "0+")
            principal_name: str = field(String, "0+")

        principal_type: str = field(String, "0+")
        principal_name: str = field(String, "0+")
        token_requester_principal_type: str = field(String, "3+", default="")
        token_requester_principal_name: str = field(String, "3+", default="")
        issue_timestamp: int = field(Int64, "0+")
        expiry_timestamp: int = field(Int64, "0+")
        max_timestamp: int = field(Int64, "0+")
        token_id: str = field(String, "0+")
        hmac: bytes = field(Bytes, "0+", secret=True)
        renewers: list[DescribedDelegationTokenRenewer] = field(Array(DescribedDelegationTokenRenewer), "0+")

    error_code: int = field(Int16, "0+", default=0)
    tokens: list[DescribedDelegationToken] = field(Array(DescribedDelegationToken), "0+")
    throttle_time_ms: int = field(Int32, "0+", default=0)
