"""The errors that a well-behaved member may receive, per request."""

from __future__ import annotations

from functools import cache
from typing import Any

from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode
from tests.simulator.checkers import Exchange, Violation, committed_partitions
from tests.simulator.member import PASSING_TOPICS, TOPICS

_LOOKING = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}
_MEMBER = {ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}
_PRODUCER = {
    ErrorCode.NONE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
}
_NO_TRANSACTION = {ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE}
_EXPECTED = {
    ApiKey.FIND_COORDINATOR: {ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE},
    # REBALANCE_IN_PROGRESS answers a parked JoinGroup whose member has sent another over another connection.
    ApiKey.JOIN_GROUP: _MEMBER | _LOOKING | {ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.REBALANCE_IN_PROGRESS},
    # No client's SyncGroup handler knows COORDINATOR_LOAD_IN_PROGRESS.
    ApiKey.SYNC_GROUP: _MEMBER
    | _LOOKING - {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    | {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION},
    ApiKey.HEARTBEAT: _MEMBER
    | _LOOKING - {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    | {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION},
    ApiKey.LEAVE_GROUP: _MEMBER | _LOOKING,
    # GROUP_ID_NOT_FOUND: it is a classic group by now, and the member was fenced before.
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _MEMBER
    | _LOOKING
    | {
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.UNRELEASED_INSTANCE_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
    },
    ApiKey.OFFSET_COMMIT: _MEMBER
    | _LOOKING
    | {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
    },
    ApiKey.OFFSET_FETCH: {ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.STALE_MEMBER_EPOCH}
    | _LOOKING,
    ApiKey.INIT_PRODUCER_ID: _PRODUCER | _LOOKING,
    ApiKey.ADD_PARTITIONS_TO_TXN: _PRODUCER | _LOOKING,
    ApiKey.ADD_OFFSETS_TO_TXN: _PRODUCER | _LOOKING,
    # INVALID_TXN_STATE: its timeout has aborted it in the meantime, or it was ended the other way.
    ApiKey.END_TXN: _PRODUCER | _LOOKING | {ErrorCode.INVALID_TXN_STATE},
    ApiKey.PRODUCE: _PRODUCER
    | _NO_TRANSACTION
    | {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    },
    # REQUEST_TIMED_OUT: the transaction's coordinator did not answer the group's.
    ApiKey.TXN_OFFSET_COMMIT: _MEMBER
    | _PRODUCER
    | _LOOKING
    | _NO_TRANSACTION
    | {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.REQUEST_TIMED_OUT,
    },
    ApiKey.DESCRIBE_GROUPS: {ErrorCode.NONE} | _LOOKING,
    ApiKey.CONSUMER_GROUP_DESCRIBE: {ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND} | _LOOKING,
    # INVALID_PARTITIONS: it has as many already.
    ApiKey.CREATE_PARTITIONS: {
        ErrorCode.NONE,
        ErrorCode.INVALID_PARTITIONS,
    },
}


class ExpectedCodes:
    """A well-behaved member gets no error it does not expect; above all no UNKNOWN_SERVER_ERROR."""

    def replied(self, exchange: Exchange, response: Any) -> None:
        expected = _EXPECTED.get(exchange.api)
        if expected is None:
            if ErrorCode.UNKNOWN_SERVER_ERROR in codes(response):
                raise Violation(f"UNKNOWN_SERVER_ERROR answers {exchange!r}")
            return
        if exchange.api is ApiKey.OFFSET_FETCH and exchange.request.require_stable:
            expected = expected | {ErrorCode.UNSTABLE_OFFSET_COMMIT}
        if _may_be_unknown(exchange):
            # Its coordinator may not know them yet.
            expected = expected | {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}
        for code in codes(response):
            if code not in expected:
                raise Violation(f"{ErrorCode(code).name} answers {exchange!r}")


def _may_be_unknown(exchange: Exchange) -> bool:
    """Whether it is about partitions that did not exist at the start."""
    match exchange.api:
        case ApiKey.OFFSET_COMMIT:
            return any(
                topic in PASSING_TOPICS or index >= TOPICS[topic]
                for (topic, index), _, _ in committed_partitions(exchange.request)
            )
        case ApiKey.OFFSET_FETCH:
            topics = [each for group in exchange.request.groups for each in group.topics or ()]
            return any(each.name in PASSING_TOPICS for each in topics)
    return False


_WITH_CODES = (
    "error_code",
    "partition_error_code",
    "coordinators",
    "groups",
    "topics",
    "partitions",
    "members",
    "results_by_topic_v3_and_below",
    "results_by_partition",
    "responses",
    "partition_responses",
    "markers",
)
"""Fields of responses that are error codes or contain nested ones."""


@cache
def _with_codes(kind: type) -> tuple[str, ...]:
    return tuple(name for name in _WITH_CODES if hasattr(kind, name))


def codes(response: Any) -> set[int]:
    """Every error code in a response, however deep."""
    found: set[int] = set()
    for name in _with_codes(type(response)):
        value = getattr(response, name, None)
        if isinstance(value, int):
            found.add(value)
        elif isinstance(value, list):
            found.update(code for each in value for code in codes(each))
    return found
