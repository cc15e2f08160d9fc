"""Errors raised by the client itself; a broker's error codes are raised as
`muster.protocol.errors.KafkaError`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Final, TypeVar

from muster.client.partitions import TopicPartition
from muster.protocol.errors import ErrorCode, KafkaError


class ClientError(Exception):
    """Base class. The message says what happened, to what, and what may help."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class Unreachable(ClientError):
    """No connection could be made: nothing was sent."""


class WrongBroker(Unreachable):
    """A broker other than the expected one answered at the address (KIP-1242): the metadata is out of
    date."""


class ConnectionLost(ClientError):
    """The connection was lost before the response arrived: the broker may or may not have applied the
    request."""


class RequestTimedOut(ClientError):
    """No response within the deadline: the broker may or may not have applied the request."""


class NotKafka(ClientError):
    """The other side is not a Kafka broker, or shares no protocol version with this client: retrying does not
    help."""


class AuthenticationFailed(ClientError):
    """The broker rejected this client, or could not prove its own identity: credentials, certificates or
    settings are wrong. Retrying does not help."""


class TimedOut(ClientError):
    """A call timed out; the message says what it was waiting for."""


class Closed(ClientError):
    """The object is closed, or was never started."""


class ConcurrentUse(ClientError):
    """A second reading call was made while one is in progress (a consumer has one reader), a second
    transaction was begun while one is open (a producer has one at a time), or a client was started while it
    was being started."""


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
    KIP-320), and auto_offset_reset is "none". `diverging` maps each partition to the first offset that
    differs from what was read; -1 if the leader does not know it."""

    def __init__(self, text: str, diverging: Mapping[TopicPartition, int]) -> None:
        super().__init__(text, diverging)
        self.diverging = dict(diverging)


class DeserializationFailed(ClientError):
    """A user's deserializer raised an exception (the cause). The position stays at the record; to skip it,
    seek to `offset + 1`."""

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
    """A record or an offset commit outside a transaction: the producer has a transactional_id, but no
    transaction is open, or the one it was meant for has ended."""


class TransactionAborted(ClientError):
    """The transaction was aborted, or must be: none of it is visible with read_committed, and its offsets are
    not committed. The message and the cause say why. The producer can begin the next one."""


class ProducerFenced(ClientError):
    """Another producer has started with the same transactional_id, or the broker has ended a transaction that
    took longer than transaction_timeout_ms: this producer can no longer be used."""


E = TypeVar("E", bound=Exception)


def again(error: E) -> E:
    """Copy an error that several waiters raise, once for each: a raised exception collects the traceback of
    every frame it passes through."""
    return copy.copy(error)


NEVER_PASSES: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
"""Kafka's clients retry these, since they wait for topics to appear; a caller that asks for a topic by name
wants to know at once that it does not exist."""


def may_pass(code: ErrorCode) -> bool:
    """Whether retrying with fresh metadata may help."""
    return code.retriable and code not in NEVER_PASSES


def refusal(code: int, why: str | None = None, *, about: str = "") -> KafkaError:
    """The error for a broker's code, with the broker's message, or ours if it has none, prefixed with
    `about`. Newer brokers may send unknown codes."""
    try:
        known = ErrorCode(code)
    except ValueError:
        known, text = ErrorCode.UNKNOWN_SERVER_ERROR, f"error {code}, which this client does not know"
    else:
        text = known.text
    return KafkaError(known, why or (f"{about}: {text}" if about else text))
