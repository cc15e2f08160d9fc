"""Users who log in with SCRAM: DescribeUserScramCredentials, AlterUserScramCredentials."""

from __future__ import annotations

from muster.protocol.message import Message, Struct, field, request, response, struct
from muster.protocol.types import Array, Bytes, Int8, Int16, Int32, String


@request(50, versions="0", flexible="0+")
class DescribeUserScramCredentialsRequest(Message):
    """DescribeUserScramCredentials v0 (KIP-554). Null or empty `users` ask for all."""

    @struct
    class UserName(Struct):
        name: str = field(String, "0+")

    users: list[UserName] | None = field(Array(UserName), "0+", nullable="0+")


@response(50, versions="0", flexible="0+")
class DescribeUserScramCredentialsResponse(Message):
    """DescribeUserScramCredentials v0 (KIP-554). Mechanism 1 is SCRAM-SHA-256, 2 is SCRAM-SHA-512."""

    @struct
    class DescribeUserScramCredentialsResult(Struct):
        @struct
        class CredentialInfo(Struct):
            mechanism: int = field(Int8, "0+")
            iterations: int = field(Int32, "0+")

        user: str = field(String, "0+")
        error_code: int = field(Int16, "0+", default=0)
        error_message: str | None = field(String, "0+", nullable="0+")
        credential_infos: list[CredentialInfo] = field(Array(CredentialInfo), "0+")

    throttle_time_ms: int = field(Int32, "0+", default=0)
    error_code: int = field(Int16, "0+", default=0)
    error_message: str | None = field(String, "0+", nullable="0+")
    results: list[DescribeUserScramCredentialsResult] = field(Array(DescribeUserScramCredentialsResult), "0+")


@request(51, versions="0", flexible="0+")
class AlterUserScramCredentialsRequest(Message):
    """AlterUserScramCredentials v0 (KIP-554). The password is never sent: the client salts and hashes it."""

    @struct
    class ScramCredentialDeletion(Struct):
        name: str = field(String, "0+")
        mechanism: int = field(Int8, "0+")

    @struct
    class ScramCredentialUpsertion(Struct):
        name: str = field(String, "0+")
        mechanism: int = field(Int8, "0+")
        iterations: int = field(Int32, "0+")
        salt: bytes = field(Bytes, "0+")
        salted_password: bytes = field(Bytes, "0+", secret=True)

    deletions: list[ScramCredentialDeletion] = field(Array(ScramCredentialDeletion), "0+")
    upsertions: list[ScramCredentialUpsertion] = field(Array(ScramCredentialUpsertion), "0+")


@response(51, versions="0", flexible="0+")
class AlterUserScramCredentialsResponse(Message):
    """AlterUserScramCredentials v0 (KIP-554). One result for each user."""

    @struct
    class AlterUserScramCredentialsResult(Struct):
        user: str = field(String, "0+")
        error_code: int = field(Int16, "0+", default=0)
        error_message: str | None = field(String, "0+", nullable="0+")

    throttle_time_ms: int = field(Int32, "0+", default=0)
    results: list[AlterUserScramCredentialsResult] = field(Array(AlterUserScramCredentialsResult), "0+")
