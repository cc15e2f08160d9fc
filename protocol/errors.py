"""Kafka's error codes, and the exceptions of this package."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Self

_RETRIABLE = True


class ErrorCode(IntEnum):
    """Every error code of the protocol. `text` says briefly what happened. `retriable`: whether Kafka's Java
    client treats the error as retriable; what a given client does with a code in a given response may differ.
    """

    text: str
    retriable: bool

    def __new__(cls, code: int, text: str = "", retriable: bool = False) -> Self:
        member = int.__new__(cls, code)
        member._value_ = code
        member.text = text
        member.retriable = retriable
        return member

    UNKNOWN_SERVER_ERROR = -1, "the server failed in a way it has no code for"
    NONE = 0, "no error"
    OFFSET_OUT_OF_RANGE = 1, "the offset lies outside the partition's log"
    CORRUPT_MESSAGE = 2, "a record failed its checksum or is malformed", _RETRIABLE
    UNKNOWN_TOPIC_OR_PARTITION = 3, "this server knows no such topic or partition", _RETRIABLE
    INVALID_FETCH_SIZE = 4, "the fetch size is not valid"
    LEADER_NOT_AVAILABLE = 5, "the partition has no leader at the moment", _RETRIABLE
    NOT_LEADER_OR_FOLLOWER = 6, "this broker does not hold the partition", _RETRIABLE
    REQUEST_TIMED_OUT = 7, "the request was not finished in the time it allowed", _RETRIABLE
    BROKER_NOT_AVAILABLE = 8, "the broker is not available"
    REPLICA_NOT_AVAILABLE = 9, "the replica is not available here", _RETRIABLE
    MESSAGE_TOO_LARGE = 10, "a record batch is larger than the topic allows"
    STALE_CONTROLLER_EPOCH = 11, "the controller's epoch is older than the one known here"
    OFFSET_METADATA_TOO_LARGE = 12, "the metadata string of a commit is longer than allowed"
    NETWORK_EXCEPTION = 13, "the connection was lost before the response came", _RETRIABLE
    COORDINATOR_LOAD_IN_PROGRESS = 14, "the coordinator is still loading its state", _RETRIABLE
    COORDINATOR_NOT_AVAILABLE = 15, "there is no coordinator at the moment", _RETRIABLE
    NOT_COORDINATOR = 16, "this broker is not the coordinator asked for", _RETRIABLE
    INVALID_TOPIC_EXCEPTION = 17, "the topic's name is not allowed, or the topic may not be used this way"
    RECORD_LIST_TOO_LARGE = 18, "the batch is larger than a segment may be"
    NOT_ENOUGH_REPLICAS = 19, "fewer replicas are in sync than the topic demands", _RETRIABLE
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, "written, but to fewer replicas than demanded", _RETRIABLE
    INVALID_REQUIRED_ACKS = 21, "acks must be -1, 0 or 1"
    ILLEGAL_GENERATION = 22, "the generation is not the group's current one"
    INCONSISTENT_GROUP_PROTOCOL = 23, "protocol type or protocols do not fit the group's"
    INVALID_GROUP_ID = 24, "the group id is not valid"
    UNKNOWN_MEMBER_ID = 25, "the group has no member of that id"
    INVALID_SESSION_TIMEOUT = 26, "the session timeout lies outside the range the broker allows"
    REBALANCE_IN_PROGRESS = 27, "the group is rebalancing; rejoin"
    INVALID_COMMIT_OFFSET_SIZE = 28, "the commit is too large to be stored"
    TOPIC_AUTHORIZATION_FAILED = 29, "not authorized for the topic"
    GROUP_AUTHORIZATION_FAILED = 30, "not authorized for the group"
    CLUSTER_AUTHORIZATION_FAILED = 31, "not authorized for the cluster"
    INVALID_TIMESTAMP = 32, "a record's timestamp lies outside what the topic accepts"
    UNSUPPORTED_SASL_MECHANISM = 33, "the server does not offer that SASL mechanism"
    ILLEGAL_SASL_STATE = 34, "the request does not fit the state of the authentication"
    UNSUPPORTED_VERSION = 35, "the server does not support this version"
    TOPIC_ALREADY_EXISTS = 36, "a topic of that name exists"
    INVALID_PARTITIONS = 37, "the number of partitions is not valid"
    INVALID_REPLICATION_FACTOR = 38, "the replication factor is not valid or larger than the cluster"
    INVALID_REPLICA_ASSIGNMENT = 39, "the assignment of replicas is not valid"
    INVALID_CONFIG = 40, "a configuration value is not valid"
    NOT_CONTROLLER = 41, "this node is not the controller", _RETRIABLE
    INVALID_REQUEST = 42, "the request contradicts itself or the protocol"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, "the stored message format does not allow this"
    POLICY_VIOLATION = 44, "the server's policy refuses the parameters"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, "the producer's sequence number leaves a gap"
    DUPLICATE_SEQUENCE_NUMBER = 46, "the producer's sequence number was used before"
    INVALID_PRODUCER_EPOCH = 47, "the producer's epoch is older than the one known here"
    INVALID_TXN_STATE = 48, "the transaction's state does not allow this"
    INVALID_PRODUCER_ID_MAPPING = 49, "the producer id does not belong to that transactional id"
    INVALID_TRANSACTION_TIMEOUT = 50, "the transaction timeout is longer than the broker allows"
    CONCURRENT_TRANSACTIONS = 51, "the producer's last transaction is still being completed", _RETRIABLE
    TRANSACTION_COORDINATOR_FENCED = 52, "the transaction coordinator has been replaced"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, "not authorized for the transactional id"
    SECURITY_DISABLED = 54, "security features are switched off"
    OPERATION_NOT_ATTEMPTED = 55, "not tried, because another operation of the request failed"
    KAFKA_STORAGE_ERROR = 56, "the broker's disk failed", _RETRIABLE
    LOG_DIR_NOT_FOUND = 57, "the log directory is not among the broker's"
    SASL_AUTHENTICATION_FAILED = 58, "the credentials were refused"
    UNKNOWN_PRODUCER_ID = 59, "nothing is known of that producer id any more"
    REASSIGNMENT_IN_PROGRESS = 60, "a reassignment of the partition is going on"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, "delegation tokens are switched off"
    DELEGATION_TOKEN_NOT_FOUND = 62, "the server has no such delegation token"
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, "the delegation token has another owner"
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, "delegation tokens need an authenticated connection"
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, "not authorized for delegation tokens"
    DELEGATION_TOKEN_EXPIRED = 66, "the delegation token has expired"
    INVALID_PRINCIPAL_TYPE = 67, "the principal's type is not supported"
    NON_EMPTY_GROUP = 68, "the group has members"
    GROUP_ID_NOT_FOUND = 69, "there is no group of that id"
    FETCH_SESSION_ID_NOT_FOUND = 70, "the fetch session is not known", _RETRIABLE
    INVALID_FETCH_SESSION_EPOCH = 71, "the fetch session's epoch is not the expected one", _RETRIABLE
    LISTENER_NOT_FOUND = 72, "the leader has no listener of the name this connection came by", _RETRIABLE
    TOPIC_DELETION_DISABLED = 73, "deletion of topics is switched off"
    FENCED_LEADER_EPOCH = 74, "the leader epoch in the request is older than the broker's", _RETRIABLE
    UNKNOWN_LEADER_EPOCH = 75, "the leader epoch in the request is newer than the broker's", _RETRIABLE
    UNSUPPORTED_COMPRESSION_TYPE = 76, "this version cannot carry that compression"
    STALE_BROKER_EPOCH = 77, "the broker's epoch is older than the one registered"
    OFFSET_NOT_AVAILABLE = 78, "the new leader does not know its high watermark yet", _RETRIABLE
    MEMBER_ID_REQUIRED = 79, "join again with the member id just given out"
    PREFERRED_LEADER_NOT_AVAILABLE = 80, "the preferred leader is not available", _RETRIABLE
    GROUP_MAX_SIZE_REACHED = 81, "the group has as many members as it may"
    FENCED_INSTANCE_ID = 82, "another member has taken over this group instance id"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, "no replica that may lead is available", _RETRIABLE
    ELECTION_NOT_NEEDED = 84, "the partition needs no election", _RETRIABLE
    NO_REASSIGNMENT_IN_PROGRESS = 85, "no reassignment is going on"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, "a member of the group is subscribed to the topic"
    INVALID_RECORD = 87, "a record was refused by validation"
    UNSTABLE_OFFSET_COMMIT = 88, "an open transaction still has offsets pending", _RETRIABLE
    THROTTLING_QUOTA_EXCEEDED = 89, "the quota is used up", _RETRIABLE
    PRODUCER_FENCED = 90, "a newer producer uses this transactional id"
    RESOURCE_NOT_FOUND = 91, "the request names a resource that does not exist"
    DUPLICATE_RESOURCE = 92, "the request names a resource twice"
    UNACCEPTABLE_CREDENTIAL = 93, "the credential does not meet the rules"
    INCONSISTENT_VOTER_SET = 94, "the sets of voters do not agree"
    INVALID_UPDATE_VERSION = 95, "the version of the update is not valid"
    FEATURE_UPDATE_FAILED = 96, "the features could not be updated"
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, "a forwarded principal could not be read"
    SNAPSHOT_NOT_FOUND = 98, "there is no such snapshot"
    POSITION_OUT_OF_RANGE = 99, "the position lies outside the snapshot"
    UNKNOWN_TOPIC_ID = 100, "this server knows no topic of that id", _RETRIABLE
    DUPLICATE_BROKER_REGISTRATION = 101, "that broker id is registered already"
    BROKER_ID_NOT_REGISTERED = 102, "no broker of that id is registered"
    INCONSISTENT_TOPIC_ID = 103, "the partition's log belongs to another topic id", _RETRIABLE
    INCONSISTENT_CLUSTER_ID = 104, "the cluster id is another one"
    TRANSACTIONAL_ID_NOT_FOUND = 105, "the transactional id is not known"
    FETCH_SESSION_TOPIC_ID_ERROR = 106, "a fetch session mixed topic names and topic ids", _RETRIABLE
    INELIGIBLE_REPLICA = 107, "the replica may not join the in-sync replicas"
    NEW_LEADER_ELECTED = 108, "the change has made another replica the leader"
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, "the offset is in tiered storage"
    FENCED_MEMBER_EPOCH = 110, "the coordinator has fenced the member's epoch; rejoin"
    UNRELEASED_INSTANCE_ID = 111, "another member still holds this group instance id"
    UNSUPPORTED_ASSIGNOR = 112, "the group coordinator has no such assignor"
    STALE_MEMBER_EPOCH = 113, "the member's epoch is not the current one; retry with the new one"
    MISMATCHED_ENDPOINT_TYPE = 114, "the request went to the wrong type of endpoint"
    UNSUPPORTED_ENDPOINT_TYPE = 115, "that type of endpoint is not supported"
    UNKNOWN_CONTROLLER_ID = 116, "the controller id is not known"
    UNKNOWN_SUBSCRIPTION_ID = 117, "the telemetry subscription is not the current one"
    TELEMETRY_TOO_LARGE = 118, "the telemetry is larger than the broker takes"
    INVALID_REGISTRATION = 119, "the registration contradicts the cluster's"
    TRANSACTION_ABORTABLE = 120, "the transaction failed; it can be aborted"
    INVALID_RECORD_STATE = 121, "the share group's record is not in a state that allows this"
    SHARE_SESSION_NOT_FOUND = 122, "the share session is not known", _RETRIABLE
    INVALID_SHARE_SESSION_EPOCH = 123, "the share session's epoch is not the expected one", _RETRIABLE
    FENCED_STATE_EPOCH = 124, "the share state's epoch is older than the one known here"
    INVALID_VOTER_KEY = 125, "the voter's key is not the expected one"
    DUPLICATE_VOTER = 126, "the voter is in the set already"
    VOTER_NOT_FOUND = 127, "the voter is not in the set"
    INVALID_REGULAR_EXPRESSION = 128, "the regular expression is not valid"
    REBOOTSTRAP_REQUIRED = 129, "the client's metadata is outdated; it has to bootstrap again"
    STREAMS_INVALID_TOPOLOGY = 130, "the streams topology is not valid"
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, "the streams topology's epoch is not valid"
    STREAMS_TOPOLOGY_FENCED = 132, "the streams topology's epoch is outdated"
    SHARE_SESSION_LIMIT_REACHED = 133, "the broker has as many share sessions as it may", _RETRIABLE
    GROUP_DELETION_FAILED = 134, "a plugin could not delete what belongs to the group"
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = 135, "the topology's description could not be stored"
    CONTROLLER_ID_NOT_REGISTERED = 136, "no controller of that id is registered"


WHY_LENGTH_MAX: Final = 1_000
"""In characters. Many texts repeat what a client sent, and a Kafka string holds at most 32767 bytes."""


class KafkaError(Exception):
    """A refusal with a Kafka error code. `why` is for people: it appears in the log and in error messages on
    the wire, truncated to `WHY_LENGTH_MAX`."""

    def __init__(self, code: ErrorCode, why: str = "") -> None:
        super().__init__(code, why)
        self.code = code
        self.why = why if len(why) <= WHY_LENGTH_MAX else why[:WHY_LENGTH_MAX] + "…"
        self.why = self.why or code.text

    def __str__(self) -> str:
        return f"{self.code.name}: {self.why}"


class DecodeError(ValueError):
    """The bytes are not a message of the expected kind and version."""


class ForeignProtocolError(DecodeError):
    """The bytes are not Kafka's protocol but `protocol` (see `muster.protocol.foreign`)."""

    def __init__(self, text: str, protocol: str) -> None:
        super().__init__(text)
        self.protocol = protocol


class UnknownApiError(DecodeError):
    """A request for an API whose messages are not declared."""

    def __init__(self, text: str, api_key: int) -> None:
        super().__init__(text)
        self.api_key = api_key


class TooLargeError(DecodeError):
    """A message larger, or with more elements, than its reader accepts; it may be valid."""


class FrameTooLargeError(TooLargeError):
    """A request above the limit that all requests of a connection have."""


class EncodeError(ValueError):
    """The version cannot carry the message; the text names the field."""


class NotInVersionError(EncodeError):
    """The message needs a field that the version does not have."""
