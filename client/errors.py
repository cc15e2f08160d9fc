"""What can go wrong between a client and a cluster, beside the refusals that brokers have codes for
(`muster.protocol.errors.KafkaError`)."""

from __future__ import annotations

from typing import Final

from muster.protocol.errors import ErrorCode, KafkaError


class ClientError(Exception):
    """The base of these; the text says what happened, to whom, and what may help."""


class Unreachable(ClientError):
    """No connection came about: nothing was sent."""


class ConnectionLost(ClientError):
    """The connection ended before the answer came: the broker may or may not have done what was asked."""


class RequestTimedOut(ClientError):
    """No answer within the deadline: the broker may or may not have done what was asked."""


class NotKafka(ClientError):
    """What answers is no Kafka broker, or one that speaks no version in common with us: asking again is no
    use."""


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
