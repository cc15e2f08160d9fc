"""What a Producer can be told, checked before anything else happens.

Names, units and defaults are those of Kafka's Java producer where it has them, with underscores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final, Literal, Self, TypedDict

from muster.client.network import connection
from muster.client.network.cluster import METADATA_MAX_AGE_MS
from muster.client.network.connection import Address
from muster.client.network.servers import parse_servers
from muster.client.produce.partitioner import Partitioner
from muster.client.settings import check_known
from muster.protocol.compression import Codec

NUMBERED_IN_FLIGHT_MAX: Final = 5
"""How many batches of an idempotent producer a broker remembers."""

_INT32_MAX: Final = 2**31 - 1
_ACKS: Final = {"all": -1, -1: -1, 1: 1, 0: 0}


class ProducerOptions(TypedDict, total=False):
    """The keyword arguments of a Producer beside its serializers; `ProducerSettings` says what each means."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """The settings of a producer. Raises ValueError that names the setting and says what it takes."""

    bootstrap_servers: tuple[Address, ...]
    """Where to find the cluster: some of its brokers."""
    acks: Literal["all", -1, 0, 1] = "all"
    """Who must have a record before it counts as sent: "all" in-sync replicas, 1 the leader alone, 0 nobody
    (then no errors are heard of, and offsets are -1)."""
    enable_idempotence: bool | None = None
    """Brokers drop what is sent twice after a failure, so each record is written once (KIP-98). None: with
    acks="all", which it takes."""
    linger_ms: float = 5
    """How long a batch may wait for more records. One with a record that somebody awaits (`send`) goes out as
    soon as nothing is on its way to its broker."""
    batch_size: int = 131_072
    """Bytes of records after which a batch goes out, measured before packing. More than Java's 16,384: a
    batch takes no more memory than its records do, so that costs nothing while few come, and saves requests
    when many do."""
    buffer_memory: int = 33_554_432
    """Bytes of records that are not settled; when they are reached, `post` waits."""
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] | None = "none"
    max_in_flight: int = NUMBERED_IN_FLIGHT_MAX
    """Requests on their way to one broker; at most 5 with idempotence. Without it a partition has one batch
    on its way at a time, so that retries keep the order."""
    delivery_timeout_ms: int = 120_000
    """The life of a record until it is acknowledged, retries included: from the call of `send`, or from the
    begin of its batch for `post`."""
    request_timeout_ms: int = 30_000
    """How long a broker may take for an answer, before the request is sent again."""
    max_block_ms: int = 60_000
    """How long `send` and `post` wait for the topic and for room in the buffer; `send` never longer than
    delivery_timeout_ms."""
    max_request_size: int = 1_048_576
    """Bytes of one request, and so of one record."""
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    metadata_max_age_ms: int = METADATA_MAX_AGE_MS
    """How soon new partitions are noticed."""
    allow_auto_create_topics: bool = True
    """Whether brokers may create the topics sent to, if their own settings let them."""
    client_id: str = "muster"
    partitioner: Partitioner | None = None
    """A function (topic, key, value, number of partitions) -> partition. Without one records with a key go
    where Java's producer sends them; those without stay with one partition until it has its share of bytes,
    then move on to another (KIP-794)."""

    @classmethod
    def of(cls, bootstrap_servers: str | Sequence[str], options: ProducerOptions) -> Self:
        """Settings from what a user gives."""
        check_known("Producer", options, (each.name for each in fields(cls)))
        return cls(bootstrap_servers=parse_servers(bootstrap_servers), **options)

    def __post_init__(self) -> None:
        if isinstance(self.acks, bool) or self.acks not in _ACKS:
            raise _wrong("acks", self.acks, "'all', 1 or 0")
        if self.enable_idempotence not in (None, True, False):
            raise _wrong("enable_idempotence", self.enable_idempotence, "True, False or None")
        if self.enable_idempotence and self.required_acks != -1:
            raise ValueError("enable_idempotence=True takes acks='all': what nobody tells cannot be repeated")
        if self.compression_type not in (None, *(each.name.lower() for each in Codec)):
            known = ", ".join(each.name.lower() for each in Codec)
            raise _wrong("compression_type", self.compression_type, f"one of {known}")
        for name, first in _NUMBERS.items():
            self._check_number(name, first, _INT32_MAX)
        in_flight_max = NUMBERED_IN_FLIGHT_MAX if self.idempotent else connection.IN_FLIGHT_MAX
        self._check_number("max_in_flight", 1, in_flight_max)
        if not isinstance(self.allow_auto_create_topics, bool):
            raise _wrong("allow_auto_create_topics", self.allow_auto_create_topics, "True or False")
        if not isinstance(self.client_id, str):
            raise _wrong("client_id", self.client_id, "a text")
        if self.partitioner is not None and not callable(self.partitioner):
            raise _wrong("partitioner", self.partitioner, "a function, or None")
        if self.linger_ms >= self.delivery_timeout_ms:
            raise ValueError(
                f"linger_ms ({self.linger_ms}) takes less than delivery_timeout_ms"
                f" ({self.delivery_timeout_ms})"
            )

    def _check_number(self, name: str, low: int, high: int) -> None:
        given = getattr(self, name)
        kinds = (int, float) if name == "linger_ms" else int
        if isinstance(given, bool) or not isinstance(given, kinds) or not low <= given <= high:
            what = "a number" if name == "linger_ms" else "a whole number"
            raise _wrong(name, given, f"{what} from {low} to {high}")

    @property
    def required_acks(self) -> int:
        """As requests say it: -1 is all."""
        return _ACKS[self.acks]

    @property
    def idempotent(self) -> bool:
        """Whether batches are numbered."""
        return self.required_acks == -1 if self.enable_idempotence is None else self.enable_idempotence

    @property
    def codec(self) -> Codec:
        return Codec[(self.compression_type or "none").upper()]


_NUMBERS: Final = {
    "linger_ms": 0,
    "batch_size": 1,
    "buffer_memory": 1,
    "delivery_timeout_ms": 1,
    "request_timeout_ms": 1,
    "max_block_ms": 0,
    "max_request_size": 1,
    "retry_backoff_ms": 1,
    "retry_backoff_max_ms": 1,
    "metadata_max_age_ms": 1,
}
"""The least that each takes."""


def _wrong(name: str, given: object, takes: str) -> ValueError:
    return ValueError(f"{name}={given!r}: it takes {takes}")
