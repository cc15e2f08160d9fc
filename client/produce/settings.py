"""The settings of a Producer, checked before anything else happens.

Names, units and defaults are those of Kafka's Java producer where it has them, with underscores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final, Literal, Self

from muster.client.network import connection
from muster.client.network.cluster import METADATA_MAX_AGE_MS
from muster.client.network.connection import Address
from muster.client.network.servers import parse_servers
from muster.client.produce.partitioner import Partitioner
from muster.client.security.settings import SecurityOptions, SecuritySettings
from muster.client.settings import check_below, check_known, check_text, wrong
from muster.protocol.compression import Codec
from muster.settings import INT32_MAX, Type, setting

NUMBERED_IN_FLIGHT_MAX: Final = 5
"""How many batches of an idempotent producer a broker remembers."""

_ACKS: Final = {"all": -1, -1: -1, 1: 1, 0: 0}
_CODECS: Final = tuple(each.name.lower() for each in Codec)


class ProducerOptions(SecurityOptions, total=False):
    """The keyword arguments of a Producer besides its serializers; see `ProducerSettings`."""

    acks: Literal["all", -1, 0, 1]
    enable_idempotence: bool | None
    linger_ms: float
    batch_size: int
    buffer_memory: int
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] | None
    max_in_flight: int
    delivery_timeout_ms: int
    request_timeout_ms: int
    max_block_ms: int
    max_request_size: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    metadata_max_age_ms: int
    allow_auto_create_topics: bool
    client_id: str
    partitioner: Partitioner | None
    transactional_id: str | None
    transaction_timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings(SecuritySettings):
    """The settings of a producer. Raises ValueError that names the setting and says what it takes."""

    bootstrap_servers: tuple[Address, ...]
    """The bootstrap addresses: some of the cluster's brokers."""
    acks: Literal["all", -1, 0, 1] = setting(
        "all",
        'who must have a record before it counts as sent: "all" in-sync replicas, 1 only the leader, 0 '
        "nobody (then errors go unnoticed, and offsets are -1)",
        choices=tuple(_ACKS),
        shape="'all', 1 or 0",
    )
    enable_idempotence: bool | None = setting(
        None,
        "brokers drop duplicates that retries send, so each record is written once (KIP-98). None: if "
        'acks="all", which it requires',
        type=Type.BOOLEAN,
        optional=True,
        shape="True, False or None",
    )
    transactional_id: str | None = setting(
        None,
        "makes all records part of transactions (KIP-98). It names this producer across restarts: one that "
        "starts with the same id ends what an earlier one has left open, and shuts it out. Requires "
        "idempotence",
        optional=True,
        pattern=r"(?s).*\S.*",
        shape="text that is not blank, or None",
    )
    transaction_timeout_ms: int = setting(
        60_000,
        "how long a transaction may take, from its first record or offset on, before the broker aborts it; "
        "brokers allow no more than their transaction.max.timeout.ms",
        low=1,
    )
    linger_ms: float = setting(
        5,
        "how long a batch may wait for more records. One with a record that a `send` waits for goes"
        " out as soon as no request to its broker is in flight",
        type=Type.DOUBLE,
        low=0,
        high=INT32_MAX,
    )
    batch_size: int = setting(
        131_072,
        "size at which a batch goes out, before compression. Larger than Java's 16,384:"
        " a batch takes no more memory than its records do, so this costs nothing at low rates, and "
        "saves requests at high ones",
        low=1,
        unit="bytes",
    )
    buffer_memory: int = setting(
        33_554_432,
        "memory for records not yet acknowledged; when it is full, `send` and `post` wait",
        low=1,
        unit="bytes",
    )
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] | None = setting(
        "none",
        "how batches are compressed",
        optional=True,
        choices=_CODECS,
        shape=f"one of {', '.join(_CODECS)}",
    )
    max_in_flight: int = setting(
        NUMBERED_IN_FLIGHT_MAX,
        "requests in flight to one broker; at most 5 with idempotence. Without idempotence, each partition "
        "has one batch in flight at a time, so that retries keep the order",
        low=1,
        high=connection.IN_FLIGHT_MAX,
    )
    delivery_timeout_ms: int = setting(
        120_000,
        "how long a record may take to be acknowledged, retries included: from the call of `send`, or "
        "for `post` from the start of its batch",
        low=1,
    )
    request_timeout_ms: int = setting(
        30_000, "how long to wait for a broker's response before the request is sent again", low=1
    )
    max_block_ms: int = setting(
        60_000,
        "how long `send` and `post` wait for the topic and for room in the buffer; `send` no longer "
        "than delivery_timeout_ms",
        low=0,
    )
    max_request_size: int = setting(
        1_048_576, "largest request, and so the largest record", low=1, unit="bytes"
    )
    retry_backoff_ms: int = setting(100, "pause before the first retry; later ones are longer", low=1)
    retry_backoff_max_ms: int = setting(1_000, "longest pause between retries", low=1)
    metadata_max_age_ms: int = setting(
        METADATA_MAX_AGE_MS,
        "how often metadata is refreshed, and so how soon new partitions are noticed",
        low=1,
    )
    allow_auto_create_topics: bool = setting(
        True, "whether brokers may create missing topics, if their settings allow it"
    )
    client_id: str = setting("muster", "what this client is called in the brokers' logs and quotas")
    partitioner: Partitioner | None = None
    """A function (topic, key, value, number of partitions) -> partition. Without one, keyed records go where
    Java's producer sends them; records without a key fill one partition up to its share of bytes, then move
    on to another (KIP-794)."""

    @classmethod
    def of(cls, bootstrap_servers: str | Sequence[str], options: ProducerOptions) -> Self:
        """Settings from the user's arguments."""
        check_known("Producer", options, (each.name for each in fields(cls) if each.init))
        return cls(bootstrap_servers=parse_servers(bootstrap_servers), **options)

    def __post_init__(self) -> None:
        SecuritySettings.__post_init__(self)
        check_text("client_id", self.client_id)
        check_text("transactional_id", self.transactional_id)
        if self.enable_idempotence and self.required_acks != -1:
            raise ValueError("enable_idempotence=True requires acks='all'")
        if self.transactional_id is not None and not self.idempotent:
            off = "enable_idempotence=False" if self.enable_idempotence is False else f"acks={self.acks!r}"
            raise ValueError(
                f"transactional_id is given with {off}: transactions require enable_idempotence and"
                " acks='all'; leave both out"
            )
        if self.idempotent and self.max_in_flight > NUMBERED_IN_FLIGHT_MAX:
            raise wrong(
                "max_in_flight", self.max_in_flight, f"a whole number from 1 to {NUMBERED_IN_FLIGHT_MAX}"
            )
        if self.partitioner is not None and not callable(self.partitioner):
            raise wrong("partitioner", self.partitioner, "a function, or None")
        check_below(self, "linger_ms", "delivery_timeout_ms")

    @property
    def required_acks(self) -> int:
        """The value in requests: -1 means all."""
        return _ACKS[self.acks]

    @property
    def idempotent(self) -> bool:
        """Whether batches are numbered."""
        return self.required_acks == -1 if self.enable_idempotence is None else self.enable_idempotence

    @property
    def codec(self) -> Codec:
        return Codec[(self.compression_type or "none").upper()]
