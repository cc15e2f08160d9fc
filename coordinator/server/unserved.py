"""What a broker says about clients it cannot serve: what each asked for, and what its user should change.

All that muster is known not to serve is here: other protocols on its port, APIs, and features of APIs that it
serves. The client gets an error where Kafka's protocol has one; the log gets a line in any case, one per
address, cause and minute.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from muster.coordinator.base.clock import Clock
from muster.coordinator.base.log import Logger
from muster.coordinator.base.rate_limiter import RateLimiter
from muster.coordinator.base.step import RequestContext
from muster.protocol import foreign
from muster.protocol.api import ApiKey, versions
from muster.protocol.errors import (
    DecodeError,
    ErrorCode,
    ForeignProtocolError,
    FrameTooLargeError,
    KafkaError,
    TooLargeError,
    UnknownApiError,
)

_log: Final = Logger(part="connection")

_EVERY_MS: Final = 60_000
TEXT_MAX: Final = 100  # characters of what a client calls itself, or asks for
_TOLD_MAX: Final = 1_000
"""Pairs of address and cause tracked per minute; further ones are not logged."""


class Cause(NamedTuple):
    """Why a client cannot be served, and what its user should do about it. `detail` may differ each time
    without making it another cause."""

    why: str
    remedy: str
    detail: str = ""


class NotServed(KafkaError):
    """A refusal of what muster does not have, with its cause for the log."""

    def __init__(self, code: ErrorCode, cause: Cause) -> None:
        super().__init__(code, f"{cause.why}: {cause.remedy}")
        self.cause = cause


class CloseConnection(Exception):
    """The request cannot be answered in Kafka's protocol; the connection is closed. The text is the reason;
    `cause` is set if the client's user should hear of it."""

    def __init__(self, reason: str | Cause) -> None:
        self.cause = reason if isinstance(reason, Cause) else None
        super().__init__(reason if isinstance(reason, str) else f"{reason.why} {reason.detail}".rstrip())


# --- the causes ---------------------------------------------------------------------------------------------

_NO_TLS: Final = Cause(
    "TLS handshake on a plaintext listener",
    "connect to an SSL or SASL_SSL listener, or with security.protocol=PLAINTEXT",
)
_NO_SASL: Final = Cause(
    "SASL authentication on a listener without SASL",
    "connect to a SASL_SSL or SASL_PLAINTEXT listener, or without sasl.* settings",
)
_NO_CONSUMER_PROTOCOL: Final = Cause(
    "the consumer protocol (KIP-848) is switched off",
    "set group.protocol=classic on the consumer; or start the brokers with consumer in "
    "group.coordinator.rebalance.protocols, and raise the feature group.version to 1",
)
_NO_SHARE_GROUPS: Final = Cause(
    "muster has no share groups yet", "use a KafkaConsumer with group.protocol=classic"
)
_NO_STREAMS_GROUPS: Final = Cause(
    "muster has no streams groups yet", "set group.protocol=classic for Kafka Streams"
)
_USE_NEWER: Final = (
    "use a client of Kafka 2.1 or later; if the client is told the broker's version (version, api_version, "
    "broker.version.fallback), set 2.1 or later"
)
_NEGOTIATE: Final = "use a client that negotiates versions (ApiVersions, KIP-35)"
_OF_BROKERS: Final = Cause(
    "request meant for Kafka brokers and controllers", "do not join Apache Kafka brokers to a muster cluster"
)

FOREIGN: Final = {
    foreign.HTTP: Cause(
        "HTTP request on a Kafka listener", "use the port of --http for the page and the HTTP API"
    ),
    foreign.TLS: _NO_TLS,
    foreign.SSH: Cause("SSH on a Kafka listener", "connect to the port of an SSH server"),
    foreign.PROXY: Cause(
        "PROXY protocol header on a Kafka listener",
        "turn the PROXY protocol off in the load balancer; muster does not read it",
    ),
    foreign.REDIS: Cause("Redis command on a Kafka listener", "connect to the port of a Redis server"),
    foreign.AMQP: Cause(
        "AMQP on a Kafka listener", "connect to the port of an AMQP broker, or use a Kafka client"
    ),
    foreign.POSTGRESQL: Cause(
        "PostgreSQL client on a Kafka listener", "connect to the port of a PostgreSQL server"
    ),
}

_APIS: Final[dict[int, Cause]] = {
    **dict.fromkeys(
        (
            *range(ApiKey.SHARE_GROUP_HEARTBEAT, ApiKey.SHARE_ACKNOWLEDGE + 1),
            *range(ApiKey.INITIALIZE_SHARE_GROUP_STATE, ApiKey.READ_SHARE_GROUP_STATE_SUMMARY + 1),
            *range(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, ApiKey.DELETE_SHARE_GROUP_OFFSETS + 1),
        ),
        _NO_SHARE_GROUPS,
    ),
    **dict.fromkeys((ApiKey.STREAMS_GROUP_HEARTBEAT, ApiKey.STREAMS_GROUP_DESCRIBE), _NO_STREAMS_GROUPS),
    **dict.fromkeys(
        (
            *range(ApiKey.LEADER_AND_ISR, ApiKey.CONTROLLED_SHUTDOWN + 1),
            *range(ApiKey.VOTE, ApiKey.ALTER_PARTITION + 1),
            ApiKey.ENVELOPE,
            ApiKey.FETCH_SNAPSHOT,
            ApiKey.BROKER_REGISTRATION,
            ApiKey.BROKER_HEARTBEAT,
            ApiKey.ALLOCATE_PRODUCER_IDS,
            ApiKey.CONTROLLER_REGISTRATION,
        ),
        _OF_BROKERS,
    ),
}
"""Why an API is not served, where more can be said than its name."""


def no_share_groups() -> NotServed:
    """The refusal to find a share group's coordinator."""
    return NotServed(ErrorCode.INVALID_REQUEST, _NO_SHARE_GROUPS)


def no_sasl(mechanism: str | None) -> NotServed:
    """The refusal of authentication, with the mechanism if one was named."""
    cause = _NO_SASL
    if mechanism is not None:
        cause = cause._replace(detail=f"mechanism {mechanism[:TEXT_MAX]}")
    return NotServed(ErrorCode.ILLEGAL_SASL_STATE, cause)


def no_consumer_protocol() -> NotServed:
    """The refusal of the consumer protocol when it is switched off."""
    return NotServed(ErrorCode.UNSUPPORTED_VERSION, _NO_CONSUMER_PROTOCOL)


def api_not_served(api_key: int) -> Cause:
    """Why a request of this API closes the connection."""
    return _APIS.get(api_key) or Cause(
        f"{_name(api_key)} is not served", "use a client or setting that does not need it"
    )


def version_not_served(api_key: int, version: int) -> Cause:
    """Why a request in this version closes the connection."""
    served = versions(api_key)
    # Negotiation does not help an old client with Produce, whose oldest versions are advertised all the same.
    return Cause(
        f"{_name(api_key)} is served only in versions {served}",
        _USE_NEWER if version < served.first else _NEGOTIATE,
        f"the client sent v{version}",
    )


def produce_failed(detail: str) -> CloseConnection:
    """What ends a connection whose Produce with acks=0 failed, since it gets no response."""
    return CloseConnection(
        Cause(
            "a Produce with acks=0 failed",
            "set acks=all or acks=1 to have failed batches reported to the producer, which sends them again",
            detail,
        )
    )


def undecodable(error: DecodeError) -> Cause:
    """Why bytes that are not a request close the connection."""
    if isinstance(error, ForeignProtocolError):
        return FOREIGN[error.protocol]
    if isinstance(error, UnknownApiError):
        return api_not_served(error.api_key)
    if isinstance(error, FrameTooLargeError):
        remedy = "send less per request (max.request.size), or raise socket.request.max.bytes"
        return Cause("request too large", remedy, str(error))
    if isinstance(error, TooLargeError):
        return Cause("request too large", "send less per request", str(error))
    return Cause("not a Kafka request", "connect with a Kafka client", str(error))


def unfinished(beginning: bytes, timeout_ms: int) -> Cause:
    """Why a request that did not arrive completely closes the connection; `beginning`: its first bytes."""
    protocol = foreign.protocol_of(beginning)
    if protocol is not None:
        return FOREIGN[protocol]
    return Cause(
        f"request incomplete after request.receive.timeout.ms ({timeout_ms})",
        "check the client and the network, or raise that timeout",
    )


def _name(api_key: int) -> str:
    try:
        return ApiKey(api_key).name
    except ValueError:
        return f"API key {api_key}"


# --- telling ------------------------------------------------------------------------------------------------


class Unserved:
    """Logs the clients of one broker that cannot be served."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._limiter = RateLimiter(1, _EVERY_MS, keys_max=_TOLD_MAX)

    def tell(self, host: str, cause: Cause, client_id: str = "") -> None:
        """Log that a client at `host` met this cause; `client_id` if it gave one."""
        withheld = self._limiter.take((host, cause.why), self._clock.now_ms())
        if withheld is None:
            return
        why = f"{cause.why}: {cause.detail}" if cause.detail else cause.why
        fields: dict[str, object] = {"host": host, "why": why, "remedy": cause.remedy}
        if client_id:
            fields["client"] = client_id[:TEXT_MAX]
        if withheld:
            fields["more"] = f"and {withheld} more from this address since the last line"
        _log.warning("client cannot be served", **fields)

    def refused(self, error: KafkaError, context: RequestContext) -> None:
        """A request was refused: log it if that was because muster does not have what it asks for."""
        if isinstance(error, NotServed):
            self.tell(context.client_host, error.cause, context.client_id)
