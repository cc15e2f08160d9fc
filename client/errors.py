"""What can go wrong between a client and a cluster, beside the refusals that brokers have codes for
(`muster.protocol.errors.KafkaError`)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Final, TypeVar

from muster.client.partitions import TopicPartition
from muster.protocol.errors import ErrorCode, KafkaError


class ClientError(Exception):
    """The base of these; the text says what happened, to whom, and what may help."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class Unreachable(ClientError):
    """No connection came about: nothing was sent."""


class WrongBroker(Unreachable):
    """Another broker answers at an address than the one that was looked for (KIP-1242): what is known of the
    cluster is out of date."""


class ConnectionLost(ClientError):
    """The connection ended before the answer came: the broker may or may not have done what was asked."""


class RequestTimedOut(ClientError):
    """No answer within the deadline: the broker may or may not have done what was asked."""


class NotKafka(ClientError):
    """What answers is no Kafka broker, or one that speaks no version in common with us: asking again is no
    use."""


class TimedOut(ClientError):
    """The timeout of a call came before what it waits for; the text says what that was."""


class Closed(ClientError):
    """The object was closed, or never started: it takes no more calls."""


class ConcurrentUse(ClientError):
    """A second reading call while one is under way: a consumer has one reader."""


class OffsetOutOfRange(ClientError):
    """The logs of some partitions do not have the positions asked for, and there is no policy
    (auto_offset_reset) to go on by. Seek these, or say where to go on."""

    def __init__(self, text: str, positions: Mapping[TopicPartition, int]) -> None:
        super().__init__(text, positions)
        self.positions = dict(positions)


class NoOffset(ClientError):
    """Some partitions have neither a position nor a committed offset, and there is no policy
    (auto_offset_reset) to begin by."""

    def __init__(self, text: str, partitions: frozenset[TopicPartition]) -> None:
        super().__init__(text, partitions)
        self.partitions = partitions


class TruncationDetected(ClientError):
    """The logs of some partitions were cut below the positions reached (an unclean leader election, KIP-320),
    and there is no policy to go on by. `diverging` has, per partition, the first offset that is not as it was
    when it was read; -1 where the leader cannot tell."""

    def __init__(self, text: str, diverging: Mapping[TopicPartition, int]) -> None:
        super().__init__(text, diverging)
        self.diverging = dict(diverging)


class DeserializationFailed(ClientError):
    """A deserializer of the user's raised (the cause). The position stays at the record; to leave it out,
    seek to `offset + 1`."""

    def __init__(self, text: str, partition: TopicPartition, offset: int) -> None:
        super().__init__(text, partition, offset)
        self.partition = partition
        self.offset = offset


class BufferFull(ClientError):
    """No room for a record in the producer's memory within max_block_ms: records come in faster than brokers
    acknowledge them."""


class DeliveryTimedOut(ClientError):
    """A record was not acknowledged within delivery_timeout_ms. It may have been written all the same when it
    was sent at least once."""


E = TypeVar("E", bound=Exception)


def again(error: E) -> E:
    """The same error as an object of its own, for each of several who wait: a raised exception collects the
    trace of whoever it passes through."""
    return copy.copy(error)


NEVER_PASSES: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
"""Retriable to Kafka's clients, which wait for topics to appear; who asks for one topic by name wants to hear
at once that it is not there."""


def may_pass(code: ErrorCode) -> bool:
    """Whether asking again, with fresh metadata, may help."""
    return code.retriable and code not in NEVER_PASSES


def refusal(code: int, why: str | None = None, *, about: str = "") -> KafkaError:
    """The error a broker's code stands for, in the broker's words; where it has none, in ours, `about` in
    front. Newer brokers may have codes we do not know."""
    try:
        known = ErrorCode(code)  # type: ignore[call-arg]  # mypy looks at __new__
    except ValueError:
        known, text = ErrorCode.UNKNOWN_SERVER_ERROR, f"error {code}, which this client does not know"
    else:
        text = known.text
    return KafkaError(known, why or (f"{about}: {text}" if about else text))
