"""Errors between a client and a cluster, other than the error codes of brokers
(`muster.protocol.errors.KafkaError`)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Final, TypeVar

from muster.client.partitions import TopicPartition
from muster.protocol.errors import ErrorCode, KafkaError


class ClientError(Exception):
    """Base class. The text says what happened, to what, and what may help."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class Unreachable(ClientError):
    """No connection could be made: nothing was sent."""


class WrongBroker(Unreachable):
    """A different broker answered at the address than expected (KIP-1242): the metadata is out of date."""


class ConnectionLost(ClientError):
    """The connection ended before the response arrived: the broker may or may not have applied the
    request."""


class RequestTimedOut(ClientError):
    """No response within the deadline: the broker may or may not have applied the request."""


class NotKafka(ClientError):
    """The other side is not a Kafka broker, or shares no protocol version with this client: retrying does not
    help."""


class AuthenticationFailed(ClientError):
    """The broker did not let this client in, or could not prove who it is: credentials, certificates or
    settings are wrong. Retrying does not help."""


class TimedOut(ClientError):
    """A call timed out; the text says what it was waiting for."""


class Closed(ClientError):
    """The object is closed, or was never started."""


class ConcurrentUse(ClientError):
    """A second reading call while one is in progress: a consumer has one reader. Or a second transaction
    while one is open: a producer has one at a time."""


class OffsetOutOfRange(ClientError):
    """Some positions are outside their partitions' logs, and auto_offset_reset is "none". Seek these
    partitions, or set auto_offset_reset."""

    def __init__(self, text: str, positions: Mapping[TopicPartition, int]) -> None:
        super().__init__(text, positions)
        self.positions = dict(positions)


class NoOffset(ClientError):
    """Some partitions have neither a position nor a committed offset, and auto_offset_reset is "none"."""

    def __init__(self, text: str, partitions: frozenset[TopicPartition]) -> None:
        super().__init__(text, partitions)
        self.partitions = partitions


class TruncationDetected(ClientError):
    """The logs of some partitions were truncated below the positions read (an unclean leader election,
    KIP-320), and auto_offset_reset is "none". `diverging` has, per partition, the first offset that differs
    from what was read; -1 if the leader cannot tell."""

    def __init__(self, text: str, diverging: Mapping[TopicPartition, int]) -> None:
        super().__init__(text, diverging)
        self.diverging = dict(diverging)


class DeserializationFailed(ClientError):
    """A user's deserializer raised (the cause). The position stays at the record; to skip it, seek to `offset
    + 1`."""

    def __init__(self, text: str, partition: TopicPartition, offset: int) -> None:
        super().__init__(text, partition, offset)
        self.partition = partition
        self.offset = offset


class BufferFull(ClientError):
    """The producer's buffer had no room for a record within max_block_ms: records are sent faster than
    brokers acknowledge them."""


class DeliveryTimedOut(ClientError):
    """A record was not acknowledged within delivery_timeout_ms. If it was sent at least once, it may have
    been written anyway."""


class NoTransaction(ClientError):
    """A record or a commit of offsets outside of a transaction: the producer has a transactional_id, and no
    transaction is open, or the one it is for has ended."""


class TransactionAborted(ClientError):
    """The transaction was aborted, or has to be: nothing of it is visible with read_committed, and its
    offsets are not committed. The text and the cause say why. The producer goes on with the next."""


class ProducerFenced(ClientError):
    """Another producer has started with the same transactional_id, or the broker has ended a transaction that
    took longer than transaction_timeout_ms: this producer is of no use any more."""


E = TypeVar("E", bound=Exception)


def again(error: E) -> E:
    """A copy of the error for each of several waiters: a raised exception collects the traceback of every
    frame it passes through."""
    return copy.copy(error)


NEVER_PASSES: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
"""Kafka's clients retry this, since they wait for topics to appear; a caller that asks for one topic by name
wants to know at once that it does not exist."""


def may_pass(code: ErrorCode) -> bool:
    """Whether retrying with fresh metadata may help."""
    return code.retriable and code not in NEVER_PASSES


def refusal(code: int, why: str | None = None, *, about: str = "") -> KafkaError:
    """The error for a broker's code, with the broker's message, or ours if it has none, prefixed with
    `about`. Newer brokers may send unknown codes."""
    try:
        known = ErrorCode(code)  # type: ignore[call-arg]  # mypy looks at __new__
    except ValueError:
        known, text = ErrorCode.UNKNOWN_SERVER_ERROR, f"error {code}, which this client does not know"
    else:
        text = known.text
    return KafkaError(known, why or (f"{about}: {text}" if about else text))
