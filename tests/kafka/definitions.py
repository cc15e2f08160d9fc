"""Apache Kafka's own message definitions, read from its jars, in a form comparable with our declarations.

A jar holds one commented JSON document per message under `common/message/`. `kafka_facts` and
`declared_facts` flatten a definition and a declaration into the same `MessageFacts`, so that `==` says
whether they agree, and what pytest prints for a failure is the list of differing fields. None of the
definitions is kept in this repository.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from muster.protocol.message import REQUIRED, Field, Message, StructType, Versions, parse_versions
from muster.protocol.types import ZERO_UUID, Array, WireType
from tests.protocol.names import snake_case
from tests.support.kafka_artifacts import KAFKA_VERSION, artifact

Definition = Mapping[str, Any]

REQUIRED_DEFAULT = "(required)"
"""The default of a field for which Kafka's definition has none and our constructor requires a value."""

_TYPES = {
    "bool": False,
    "int8": 0,
    "int16": 0,
    "uint16": 0,
    "int32": 0,
    "uint32": 0,
    "int64": 0,
    "float64": 0.0,
    "string": "",
    "bytes": b"",
    "records": None,
    "uuid": ZERO_UUID,
}
"""Kafka's primitive types, and the implicit default of each."""


class FieldFacts(NamedTuple):
    """Everything that decides how a field is read and written. Version ranges are cut to the message's."""

    type: str
    versions: str
    nullable: str
    tag: int | None
    tagged: str
    default: object
    ignorable: bool


class MessageFacts(NamedTuple):
    key: int | None
    versions: str
    flexible: str
    fields: dict[str, FieldFacts]
    """In wire order, by path: "topics", "topics.partitions", "topics.partitions.partition_index"."""


@cache
def definitions() -> dict[str, Definition]:
    """Every definition of the newest Apache Kafka that the tests use, by name."""
    found: dict[str, Definition] = {}
    for name in ("kafka-clients", "kafka-group-coordinator", "kafka-transaction-coordinator"):
        with zipfile.ZipFile(artifact("org.apache.kafka", name, KAFKA_VERSION)) as jar:
            for path in jar.namelist():
                if path.startswith("common/message/") and path.endswith(".json"):
                    definition = _json(jar.read(path).decode())
                    found[definition["name"]] = definition
    if "JoinGroupRequest" not in found or "OffsetCommitValue" not in found:
        raise LookupError(f"the jars of Kafka {KAFKA_VERSION} do not hold message definitions where expected")
    return found


def _json(text: str) -> dict[str, Any]:
    """JSON with comments to the end of the line. No string in a definition has "//" after a space."""
    document: dict[str, Any] = json.loads(re.sub(r"(^|\s)//.*$", "", text, flags=re.MULTILINE))
    return document


def stable_versions(name: str) -> Versions:
    """The versions of a request or response that a broker offers without `unstable.api.versions.enable`.

    Only the request says whether its latest version is unstable; the response follows it.
    """
    first, last = parse_versions(definitions()[name]["validVersions"])
    request = definitions().get(re.sub("Response$", "Request", name), {})
    return Versions(first, last - 1) if request.get("latestVersionUnstable") else Versions(first, last)


# --- Kafka's side ---


def kafka_facts(name: str) -> MessageFacts:
    definition = definitions()[name]
    versions = stable_versions(name)
    structs = {common["name"]: common["fields"] for common in definition.get("commonStructs", [])}
    return MessageFacts(
        key=definition.get("apiKey"),
        versions=str(versions),
        flexible=_cut(definition["flexibleVersions"], versions),
        fields=dict(_kafka_fields(definition["name"], definition["fields"], structs, versions, "")),
    )


def _kafka_fields(
    message: str,
    fields: list[Definition],
    structs: Mapping[str, list[Definition]],
    within: Versions,
    path: str,
) -> Iterator[tuple[str, FieldFacts]]:
    for field in fields:
        versions = _meet(parse_versions(field.get("versions") or field["taggedVersions"]), within)
        if versions.last < versions.first:
            continue
        name = path + snake_case(field["name"])
        array, element = ("[]" if field["type"].startswith("[]") else ""), field["type"].removeprefix("[]")
        if element not in _TYPES:
            element = element.removeprefix(message) or element
        yield (
            name,
            FieldFacts(
                type=array + element,
                versions=str(versions),
                nullable=_cut(field.get("nullableVersions", "none"), versions),
                tag=field.get("tag"),
                tagged=_cut(field.get("taggedVersions", "none"), versions),
                default=_kafka_default(field),
                ignorable=field.get("ignorable", False),
            ),
        )
        inner = field.get("fields") or structs.get(field["type"].removeprefix("[]"), [])
        yield from _kafka_fields(message, inner, structs, versions, f"{name}.")


def _kafka_default(field: Definition) -> object:
    """The explicit default as a Python value, or the implicit one of the type."""
    kafka_type = field["type"]
    if "default" not in field:
        return _implicit_default(kafka_type)
    default = field["default"]
    if default in ("null", None):
        return None
    if kafka_type == "bool":
        return str(default).lower() == "true"
    if kafka_type.startswith(("int", "uint")):
        return int(str(default), 0)
    if kafka_type == "float64":
        return float(default)
    if kafka_type == "string":
        return default
    raise NotImplementedError(f"the default {default!r} of a field of type {kafka_type}")


def _implicit_default(kafka_type: str) -> object:
    if kafka_type.startswith("[]"):
        return "[]"
    return _TYPES.get(kafka_type, "{}")


# --- our side ---


def declared_facts(cls: type[Message]) -> MessageFacts:
    """The facts of a declaration, without muster's own fields."""
    schema = cls.__schema__
    return MessageFacts(
        key=schema.api_key,
        versions=str(schema.versions),
        flexible=str(_meet(schema.flexible, schema.versions)),
        fields=dict(_declared_fields(cls, schema.versions, "")),
    )


def _declared_fields(cls: StructType, within: Versions, path: str) -> Iterator[tuple[str, FieldFacts]]:
    for field in cls.__fields__:
        if field.own:
            continue
        versions = _meet(field.versions, within)
        name = path + field.name
        element = field.type.element if isinstance(field.type, Array) else field.type
        yield (
            name,
            FieldFacts(
                type=("[]" if isinstance(field.type, Array) else "") + _type_name(element),
                versions=str(versions),
                nullable=str(_meet(field.nullable, versions)),
                tag=field.tag,
                tagged=str(_meet(field.tagged, versions)),
                default=_declared_default(field),
                ignorable=field.ignorable,
            ),
        )
        if isinstance(element, StructType):
            yield from _declared_fields(element, versions, f"{name}.")


def _type_name(declared: WireType | StructType) -> str:
    if isinstance(declared, StructType):
        return declared.__name__
    return "bool" if declared.name == "Boolean" else declared.name.lower()


def _declared_default(field: Field) -> object:
    if field.default is REQUIRED and field.default_factory is None:
        return REQUIRED_DEFAULT
    default = field.make_default()
    if default == []:
        return "[]"
    if isinstance(field.type, StructType) and default is not None:
        return "{}" if default == field.type() else default
    return default


# --- version ranges ---


def _meet(one: Versions, other: Versions) -> Versions:
    first, last = max(one.first, other.first), min(one.last, other.last)
    return Versions(first, last) if first <= last else Versions(0, -1)


def _cut(text: str, within: Versions) -> str:
    return str(_meet(parse_versions(text), within))
