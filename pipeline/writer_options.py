"""The options of `df.write.format("muster")` and `df.writeStream.format("muster")`: those of Spark's kafka
sink, and producer settings under Kafka's names with the prefix `kafka.`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, Self, cast

from muster.client.produce.settings import ProducerOptions, ProducerSettings
from muster.pipeline import access
from muster.pipeline.access import NOTHING_TO_SHOW, Access
from muster.pipeline.errors import OptionError
from muster.protocol.errors import KafkaError

SERVERS: Final = "kafka.bootstrap.servers"
TOPIC: Final = "topic"
BATCH_HEADERS: Final = "batchHeaders"
TRANSACTIONAL: Final = "transactionalIdPrefix"

_MAX_BLOCK_MS: Final = 15_000
"""How long a task waits for a cluster that does not answer before it fails. Kafka's minute, times Spark's
four attempts, would keep the user waiting for the error."""
_TRANSACTION_MS: Final = 300_000
"""How long an exactly-once task may take from its first record on: Kafka's minute is short for a Spark task,
and the next attempt at its batch ends what a dead task has left open."""

_TEXT_OF_ACKS: Final = {"all": "all", "-1": -1, "1": 1}


def _acks(text: str) -> object:
    if text not in _TEXT_OF_ACKS:
        raise ValueError("it takes all or 1: with 0 nobody tells whether a record was stored")
    return _TEXT_OF_ACKS[text]


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("it takes a whole number") from None


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("it takes true or false")
    return text.lower() == "true"


_PRODUCER: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "acks": ("acks", _acks),
    "allow.auto.create.topics": ("allow_auto_create_topics", _flag),
    "batch.size": ("batch_size", _whole),
    "buffer.memory": ("buffer_memory", _whole),
    "client.id": ("client_id", str),
    "compression.type": ("compression_type", str),
    "delivery.timeout.ms": ("delivery_timeout_ms", _whole),
    "enable.idempotence": ("enable_idempotence", _flag),
    "linger.ms": ("linger_ms", _whole),
    "max.block.ms": ("max_block_ms", _whole),
    "max.in.flight.requests.per.connection": ("max_in_flight", _whole),
    "max.request.size": ("max_request_size", _whole),
    "metadata.max.age.ms": ("metadata_max_age_ms", _whole),
    "request.timeout.ms": ("request_timeout_ms", _whole),
    "retry.backoff.max.ms": ("retry_backoff_max_ms", _whole),
    "retry.backoff.ms": ("retry_backoff_ms", _whole),
    "transaction.timeout.ms": ("transaction_timeout_ms", _whole),
}
"""By Kafka's name: the producer's keyword argument, and how to parse the text."""

_OPTIONS: Final = {
    "bootstrap_servers": SERVERS,
    **{setting: f"kafka.{name}" for name, (setting, _) in _PRODUCER.items()},
}
"""By the producer's keyword argument."""
_SETTING: Final = re.compile(rf"\b(?:{'|'.join(each for each in _OPTIONS if '_' in each)}|^acks)\b")

_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})
"""Spark passes these along with the sink's own options."""


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """The checked options of a writer. They are sent to the executors."""

    bootstrap_servers: str
    topic: str | None
    """The topic of every record; None: the column `topic` names it."""
    batch_headers: bool
    """Whether records of a stream carry the ids of the query and of the batch."""
    producer: ProducerOptions
    access: Access = NOTHING_TO_SHOW
    """How the job authenticates to brokers."""
    transactional_id_prefix: str | None = None
    """The prefix of transactional ids; None: no transactions."""

    @property
    def client_id(self) -> str:
        return self.producer["client_id"]

    @property
    def max_block_s(self) -> float:
        return self.producer["max_block_ms"] / 1000

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Read the options of a query; names are case-insensitive, as in Spark. Raises OptionError, which
        names the option and what it takes."""
        given = {name.lower(): value for name, value in options.items()}
        servers = given.pop(SERVERS, None)
        if servers is None:
            raise OptionError(
                f"option {SERVERS} is missing: it takes host:port[,host:port], brokers to contact first"
            )
        topic = given.pop(TOPIC, None)
        if topic is not None and not topic.strip():
            raise OptionError(
                f"option {TOPIC} is empty: leave it out if the column topic says where records go"
            )
        batch_headers = _read(BATCH_HEADERS, _flag, given.pop(BATCH_HEADERS.lower(), "true"))
        prefix = given.pop(TRANSACTIONAL.lower(), None)
        settings: dict[str, Any] = {"max_block_ms": _MAX_BLOCK_MS, "client_id": "muster-spark"}
        if prefix is not None:
            settings["transaction_timeout_ms"] = _TRANSACTION_MS
        for name, value in given.items():
            if name in _OF_SPARK or access.is_about_access(name):
                continue
            access.check_family(name)
            known = _PRODUCER.get(name.removeprefix("kafka.")) if name.startswith("kafka.") else None
            if known is None:
                raise OptionError(_unknown(name))
            settings[known[0]] = _read(name, known[1], value)
        producer = cast(ProducerOptions, settings)
        try:
            ProducerSettings.of(servers, producer)
        except ValueError as error:
            raise OptionError(_in_options_names(str(error))) from None
        if prefix is not None:
            _check_transactional(prefix, topic, producer)
        return cls(servers, topic, batch_headers, producer, Access.of(given), prefix)

    def explained(self, error: Exception) -> str:
        """The broker's message and error code; or the client's message, and the servers it was given."""
        if isinstance(error, KafkaError):
            return f"{_in_options_names(error.why)} ({error.code.name})"
        return f"{self.access.in_options(str(error))} (kafka.bootstrap.servers: {self.bootstrap_servers})"


def _check_transactional(prefix: str, topic: str | None, producer: ProducerOptions) -> None:
    if not prefix.strip():
        raise OptionError(f"option {TRANSACTIONAL} is empty: it takes a name for this query, say etl-1")
    if topic is None:
        raise OptionError(
            f"option {TRANSACTIONAL} takes option {TOPIC} beside it: what was written is noted as offsets of"
            " that topic. Write several topics by a query each"
        )
    if producer.get("acks", "all") not in ("all", -1) or producer.get("enable_idempotence") is False:
        raise OptionError(
            f"option {TRANSACTIONAL}: transactions take kafka.acks=all and kafka.enable.idempotence=true, as"
            " they are when left out"
        )


def _read(name: str, read: Callable[[str], Any], text: str) -> Any:
    try:
        return read(text)
    except ValueError as error:
        raise OptionError(f"option {name}={text!r}: {error}") from None


def _unknown(name: str) -> str:
    if name == "kafka.transactional.id":
        return f"option {name}: option {TRANSACTIONAL} gives each task of a stream an id"
    if name == "path":
        return f"a topic is no path: option {TOPIC} names it, and save() or start() take no argument"
    known = {
        each.lower(): each
        for each in (SERVERS, TOPIC, BATCH_HEADERS, TRANSACTIONAL, *(f"kafka.{one}" for one in _PRODUCER))
    }
    close = get_close_matches(name, known, n=1)
    takes = ", ".join([*known.values(), access.SUMMARY])
    hint = f"did you mean {known[close[0]]}?" if close else f"it takes {takes}"
    return f"option {name} is not one of the writer's; {hint}"


def _in_options_names(text: str) -> str:
    """The producer's message, with the names that the user wrote."""
    text = _SETTING.sub(lambda found: _OPTIONS[found[0]], text)
    return f"option {text}" if text.startswith(tuple(_OPTIONS.values())) else text
