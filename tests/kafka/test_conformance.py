"""Our declarations compared with the message definitions in Apache Kafka's jars: every message, every field,
in both directions.

A field that our constructor requires has no default to compare; Kafka's definition must then have none
either, and every version of the struct must contain the field.
"""

from __future__ import annotations

import re

import pytest

from muster.protocol import api, embedded
from muster.protocol.message import RECORDS, REQUESTS, RESPONSES, Message
from tests.kafka.definitions import (
    REQUIRED_DEFAULT,
    FieldFacts,
    declared_facts,
    definitions,
    kafka_facts,
)
from tests.protocol.names import snake_case

api.load_messages()

# `embedded` is not among the modules that `api` loads; importing it has added its schemas to RECORDS.
assert embedded.ConsumerProtocolSubscription in RECORDS.values()

OWN = {"PendingOffsetKey", "TransactionalProducerKey", "TransactionalProducerValue"}
"""Records that Kafka does not have: tests/protocol/test_coordinator_records.py ensures that none can be
mistaken for one of Kafka's types."""

DECLARED: dict[str, type[Message]] = {
    cls.__name__: cls
    for cls in (*REQUESTS.values(), *RESPONSES.values(), *RECORDS.values())
    # What assignors of muster.client put into subscriptions has no definition there; tests/interop/assignors
    # compares its bytes with Java's.
    if cls.__module__.startswith("muster.protocol.") and cls.__name__ not in OWN
}

# Fields whose default is None although Kafka's is "" because the definition has none: a response without an
# error has no message, which newer definitions state with an explicit null.
DEFAULT_NULL_ON_PURPOSE = {
    ("FindCoordinatorResponse", "error_message"),
    ("FindCoordinatorResponse", "coordinators.error_message"),
    ("CreateTopicsResponse", "topics.error_message"),
}


@pytest.mark.parametrize("name", sorted(DECLARED))
def test_declaration_agrees_with_kafka(name: str) -> None:
    declared = declared_facts(DECLARED[name])
    kafka = kafka_facts(name)

    assert declared.versions == kafka.versions
    assert declared.flexible == kafka.flexible
    # Kafka's definitions of records give the record type here; ours is tested with the records.
    if declared.key is not None or name.endswith(("Request", "Response")):
        assert declared.key == kafka.key
    assert list(declared.fields) == list(kafka.fields), "fields, or their order on the wire"
    for path, facts in kafka.fields.items():
        assert declared.fields[path] == _expected(name, path, declared.fields[path], facts), path


def _expected(name: str, path: str, declared: FieldFacts, kafka: FieldFacts) -> FieldFacts:
    """Kafka's facts, except for defaults where our constructor requires the value or differs on purpose."""
    if declared.default == REQUIRED_DEFAULT:
        return kafka._replace(default=REQUIRED_DEFAULT)
    if (name, path) in DEFAULT_NULL_ON_PURPOSE:
        assert kafka.default == "", f"the definition of {name}.{path} has changed; judge the difference again"
        return kafka._replace(default=None)
    return kafka


@pytest.mark.parametrize("name", sorted(DECLARED))
def test_required_fields_are_in_every_version_and_have_no_default_in_kafka(name: str) -> None:
    declared = declared_facts(DECLARED[name])
    explicit = dict(_explicit_defaults(name))
    for path, facts in declared.fields.items():
        if facts.default != REQUIRED_DEFAULT:
            continue
        struct, _, _ = path.rpartition(".")
        carried_by = declared.fields[struct].versions if struct else declared.versions
        assert facts.versions == carried_by, f"{path} is required, but only {facts.versions} have it"
        assert path not in explicit, f"{path} is required, but Kafka gives it the default {explicit[path]!r}"


def _explicit_defaults(name: str) -> list[tuple[str, object]]:
    found = []
    open_ = [("", definitions()[name]["fields"])]
    while open_:
        path, fields = open_.pop()
        for field in fields:
            here = path + snake_case(field["name"])
            if "default" in field:
                found.append((here, field["default"]))
            open_.append((f"{here}.", field.get("fields", [])))
    return found


def test_requests_and_responses_come_in_pairs() -> None:
    names = {re.sub("(Request|Response)$", "", name) for name in DECLARED if not RECORDS.get(name)}
    for name in names:
        request, answer = DECLARED[f"{name}Request"].__schema__, DECLARED[f"{name}Response"].__schema__
        assert (request.api_key, request.versions) == (answer.api_key, answer.versions)


def test_api_keys_bear_kafkas_names() -> None:
    names = {
        definition["apiKey"]: re.sub("Request$", "", definition["name"])
        for definition in definitions().values()
        if definition["type"] == "request"
    }
    assert {key: snake_case(name).upper() for key, name in names.items()} == {
        key: api.ApiKey(key).name for key in names
    }


def test_every_message_has_version_notes_for_its_range() -> None:
    for name, cls in DECLARED.items():
        first, last = cls.__schema__.versions
        versions = f"v{first}-{last}" if first != last else f"v{first}"
        notes = cls.__doc__ or ""
        if name.endswith(("Request", "Response")):
            assert notes.startswith(f"{re.sub('(Request|Response)$', '', name)} {versions}"), name
        elif first != last:
            assert versions in notes, name
