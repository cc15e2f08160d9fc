"""Byte equality with kio, an independent implementation of Kafka's protocol generated from Kafka's
definitions.

Random messages go both ways: kio decodes what we encode to the same values and encodes these to the same
bytes, which we decode to the original message.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
from collections.abc import Iterator
from typing import Any

import pytest
from kio.index import KioIndexError, load_entity_module, load_payload_module
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from muster.protocol import api, codec, embedded
from muster.protocol.message import REQUESTS, RESPONSES, Message, Struct
from muster.protocol.types import ZERO_UUID
from tests.protocol.names import snake_case
from tests.protocol.sampling import SEED, sample, sampler, versions_of
from tests.support.each import each

MESSAGES_PER_VERSION = 12

# What the wire carries where kio has None.
_KIO_NONE = {"uuid": ZERO_UUID, "datetime_i64": -1}
_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)

# Versions newer than kio 0.6.5.
UNKNOWN_TO_KIO = {
    ("ApiVersionsRequest", 5),
    ("ApiVersionsResponse", 5),
    ("DeleteGroupsRequest", 3),
    ("DeleteGroupsResponse", 3),
    ("TxnOffsetCommitRequest", 6),
    ("TxnOffsetCommitResponse", 6),
}

# Fields that Kafka has renamed since.
RENAMED_SINCE_KIO = {("TxnOffsetCommitRequest", "generation_id"): "generation_id_or_member_epoch"}

api.load_messages()


def declared() -> Iterator[tuple[type[Message], int]]:
    """Every message and version that crosses the wire, the ConsumerProtocol blobs included."""
    classes = [cls for registry in (REQUESTS, RESPONSES) for cls in registry.values()]
    classes = [cls for cls in classes if cls.__module__.startswith("muster.")]
    classes += [embedded.ConsumerProtocolSubscription, embedded.ConsumerProtocolAssignment]
    for cls in classes:
        for version in versions_of(cls.__schema__.versions):
            yield cls, version


def kio_class(cls: type[Message], version: int) -> Any:
    """kio's class for one version of a message; None if kio does not know the version."""
    api_key, kind = cls.__schema__.api_key, cls.__schema__.kind
    try:
        if api_key is None:
            module = load_entity_module(snake_case(cls.__name__), version, EntityType.data)
        elif kind == "request":
            module = load_payload_module(api_key, version, EntityType.request)
        else:
            module = load_payload_module(api_key, version, EntityType.response)
    except KioIndexError:
        return None
    return getattr(module, cls.__name__)


CASES = [
    pytest.param(cls, version, id=f"{cls.__name__}-v{version}")
    for cls, version in declared()
    if (cls.__name__, version) not in UNKNOWN_TO_KIO
]


@each("cls, version", CASES)
def test_same_bytes_and_values_as_kio(cls: type[Message], version: int) -> None:
    theirs = kio_class(cls, version)
    assert theirs is not None, "kio knows no such version"
    read, write = entity_reader(theirs), entity_writer(theirs)
    rng = sampler(cls.__name__, version)
    for _ in range(MESSAGES_PER_VERSION):
        message = sample(cls, version, rng, own=False)
        seed = f"MUSTER_TEST_SEED={SEED} {message!r}"

        ours = codec.encode(message, version)
        entity, size = read(ours, 0)
        assert size == len(ours), seed
        assert values_of_kio(entity) == values_of_ours(message, version), seed

        written = io.BytesIO()
        write(written, entity)
        assert written.getvalue() == ours, seed
        assert codec.decode(cls, version, written.getvalue()) == message, seed


def test_versions_kio_does_not_know() -> None:
    unknown = {(cls.__name__, version) for cls, version in declared() if kio_class(cls, version) is None}
    assert unknown == UNKNOWN_TO_KIO


def values_of_ours(message: Struct, version: int) -> Any:
    """The fields that `version` carries, except muster's own, as nested plain values."""
    values = {}
    for field in type(message).__fields__:
        if version not in field.versions or field.own:
            continue
        value = getattr(message, field.name)
        if isinstance(value, list):
            value = [values_of_ours(item, version) if isinstance(item, Struct) else item for item in value]
        elif isinstance(value, Struct):
            value = values_of_ours(value, version)
        values[field.name.removesuffix("_ms")] = value
    return values


def values_of_kio(entity: Any) -> Any:
    """The same plain values of kio's dataclasses, which use types of their own for durations, timestamps and
    error codes."""
    values = {}
    for field in dataclasses.fields(entity):
        value = getattr(entity, field.name)
        if isinstance(value, tuple):
            value = [values_of_kio(item) if dataclasses.is_dataclass(item) else item for item in value]
        elif dataclasses.is_dataclass(value):
            value = values_of_kio(value)
        elif isinstance(value, datetime.timedelta):
            value = value // _MILLISECOND
        elif isinstance(value, datetime.datetime):
            value = (value - _EPOCH) // _MILLISECOND
        elif field.metadata.get("kafka_type") == "error_code":
            value = int(value)
        elif value is None and field.metadata.get("kafka_type") in _KIO_NONE:
            value = _KIO_NONE[field.metadata["kafka_type"]]
        values[RENAMED_SINCE_KIO.get((type(entity).__name__, field.name), field.name)] = value
    return values
