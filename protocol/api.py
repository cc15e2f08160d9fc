"""The APIs: their keys, messages and versions, and version negotiation."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Final

from muster.protocol import codec, messages
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.message import REQUESTS, RESPONSES, VERSION_MAX, Message, Versions

if TYPE_CHECKING:
    from muster.protocol.messages.connection import ApiVersionsResponse


class ApiKey(IntEnum):
    """Every API of Kafka by name, whether muster declares its messages or not."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92
    STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE = 93
    UNREGISTER_CONTROLLER = 94


_ADVERTISED_FROM: Final[Mapping[int, int]] = {ApiKey.PRODUCE: 0}
"""Lowest versions advertised although they are no longer served: librdkafka does not compress for a broker
that does not offer Produce v0 (KAFKA-18659)."""


@cache
def load_messages() -> None:
    """Import all declarations, once. The lookups below do so only for an API whose messages are not imported
    yet: a client that imported its own does not need the others."""
    for family in pkgutil.iter_modules(messages.__path__, f"{messages.__name__}."):
        importlib.import_module(family.name)


def declared_apis() -> list[ApiKey]:
    """The APIs whose request and response are both declared, in key order."""
    load_messages()
    return [ApiKey(key) for key in sorted(REQUESTS.keys() & RESPONSES.keys())]


def request_class(api_key: int) -> type[Message]:
    """Raises KeyError for an API without a declared request."""
    if api_key not in REQUESTS:
        load_messages()
    return REQUESTS[api_key]


def response_class(api_key: int) -> type[Message]:
    """Raises KeyError for an API without a declared response."""
    if api_key not in RESPONSES:
        load_messages()
    return RESPONSES[api_key]


def versions(api_key: int) -> Versions:
    """The versions of the API that can be encoded and decoded. Raises KeyError for an API without a declared
    request."""
    return request_class(api_key).__schema__.versions


def advertised_versions(api_key: int) -> Versions:
    """The versions in an ApiVersions response: those of `versions`, except that Produce begins at 0."""
    served = versions(api_key)
    return Versions(_ADVERTISED_FROM.get(api_key, served.first), served.last)


def request_header_version(api_key: int, version: int) -> int:
    """2 for flexible versions, else 1. Also defined beyond the declared versions: flexible versions stay
    flexible, and an ApiVersions request that is too new must still be answered."""
    flexible = request_class(api_key).__schema__.flexible
    return 2 if flexible.last >= flexible.first and version >= flexible.first else 1


def response_header_version(api_key: int, version: int) -> int:
    """1 for flexible versions, else 0. ApiVersions stays at 0 forever: its reader does not know the version
    yet."""
    if api_key == ApiKey.API_VERSIONS:
        return 0
    flexible = response_class(api_key).__schema__.flexible
    return 1 if flexible.last >= flexible.first and version >= flexible.first else 0


# --- Negotiation (KIP-35, KIP-511) ---


def answer_api_versions(version: int, api_keys: Iterable[int]) -> tuple[ApiVersionsResponse, int]:
    """The broker's side: the response to an ApiVersions request of `version`, and the version to encode it
    in.

    `api_keys` are the APIs that have a handler. A request that is too new gets error 35 in version 0, which
    every client can read, with the supported ApiVersions range.
    """
    from muster.protocol.messages.connection import ApiVersionsResponse

    def entry(api_key: int) -> ApiVersionsResponse.ApiVersion:
        first, last = advertised_versions(api_key)
        return ApiVersionsResponse.ApiVersion(api_key=int(api_key), min_version=first, max_version=last)

    if version not in versions(ApiKey.API_VERSIONS):
        refusal = ApiVersionsResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[entry(ApiKey.API_VERSIONS)]
        )
        return refusal, 0
    return ApiVersionsResponse(api_keys=[entry(api_key) for api_key in sorted(api_keys)]), version


def decode_api_versions(version: int, body: bytes | memoryview) -> ApiVersionsResponse:
    """The client's side: read the response to an ApiVersions request sent in `version`. Raises DecodeError.
    The error code comes first in every version; with error 35 the rest is version 0, whatever was requested.
    """
    from muster.protocol.messages.connection import ApiVersionsResponse

    refused = bytes(body[:2]) == ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")
    return codec.decode(ApiVersionsResponse, 0 if refused else version, body)


def retry_version(refusal: ApiVersionsResponse) -> int:
    """The client's side: the version for the next ApiVersions request after error 35; 0 if the broker named
    none. Raises KafkaError(UNSUPPORTED_VERSION) if there is no common version.
    """
    for entry in refusal.api_keys:
        if entry.api_key == ApiKey.API_VERSIONS:
            return agree(
                ApiKey.API_VERSIONS,
                {ApiKey.API_VERSIONS: Versions(entry.min_version, entry.max_version)},
            )
    return 0


def agree(api_key: int, offered: Mapping[int, Versions], *, last: int = VERSION_MAX) -> int:
    """The client's side: the highest common version, up to `last`. Raises KafkaError(UNSUPPORTED_VERSION) if
    there is none.
    """
    ours = versions(api_key)
    theirs = offered.get(api_key)
    if theirs is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"the broker has no {ApiKey(api_key).name}")
    version = min(ours.last, theirs.last, last)
    if version < max(ours.first, theirs.first):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{ApiKey(api_key).name}: we speak versions {ours}, the broker {theirs}",
        )
    return version
