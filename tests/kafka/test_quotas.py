"""Client quotas in Apache Kafka and muster: answers to describing and altering, field by field, and which
clients are throttled, from which request on and for how long."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, Final

import pytest

from muster.coordinator.testing import Broker
from muster.protocol.api import ApiKey, versions
from muster.protocol.codec import encode
from muster.protocol.errors import ErrorCode
from muster.protocol.header import encode_request
from muster.protocol.messages.data import FetchRequest, ProduceRequest
from muster.protocol.messages.quotas import AlterClientQuotasRequest, DescribeClientQuotasRequest
from muster.protocol.messages.topics import CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest
from muster.protocol.record_batch import Record, build
from tests.kafka.conftest import KafkaOfConfigs
from tests.kafka.stories import KAFKA_CONFIGS, Side, Story, assert_told_alike
from tests.support.facts import DEADLINE_S
from tests.support.wire_blocking import WireConnection

pytestmark = pytest.mark.kafka

Entity = Mapping[str, str | None]
_Entry = AlterClientQuotasRequest.EntryData
_EXACT, _DEFAULT, _ANY = range(3)
_RATE: Final = 1_000
"""Bytes per second."""
_AT_ONCE: Final = 10 * _RATE
"""Bytes that this rate allows in the ten windows that a first use finds empty."""
_LATE_MS: Final = 100
"""How far the clocks of both ends may differ."""


def entry(entity: Entity, *ops: tuple[str, float | None]) -> _Entry:
    return _Entry(
        entity=[_Entry.EntityData(entity_type=type, entity_name=name) for type, name in entity.items()],
        ops=[_Entry.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in ops],
    )


def altering(*entries: _Entry, validate_only: bool = False) -> AlterClientQuotasRequest:
    return AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only)


def describing(*components: tuple[str, int, str | None], strict: bool = False) -> DescribeClientQuotasRequest:
    return DescribeClientQuotasRequest(
        components=[
            DescribeClientQuotasRequest.ComponentData(entity_type=type, match_type=how, match=match)
            for type, how, match in components
        ],
        strict=strict,
    )


def in_order(answer: Any) -> None:
    for each in answer.entries or ():
        each.entity.sort(key=attrgetter("entity_type"))
        if hasattr(each, "values"):
            each.values.sort(key=attrgetter("key"))
    if answer.entries:
        answer.entries.sort(
            key=lambda each: [(part.entity_type, part.entity_name or "") for part in each.entity]
        )


def in_every_version(side: Side, title: str, request: Any) -> None:
    first, last = versions(request.__schema__.api_key or 0)
    for version in range(first, last + 1):
        side.ask(f"{title}, v{version}", request, version, arranged=in_order)


def set_quotas(side: Side, *entries: _Entry) -> None:
    """In force on return."""
    answer = side.quietly(altering(*entries), 1)
    assert not any(told.error_code for told in answer.entries), answer
    side.settle()


@contextmanager
def limited(side: Side, client_id: str, key: str, rate: float) -> Iterator[WireConnection]:
    """A client with this quota."""
    set_quotas(side, entry({"client-id": client_id}, (key, rate)))
    with WireConnection(*side._address, client_id) as connection:
        yield connection
    set_quotas(side, entry({"client-id": client_id}, (key, None)))


def call(connection: WireConnection, request: Any, version: int) -> Any:
    connection.send(request, version)
    return connection.receive()


# --- describe, alter ----------------------------------------------------------------------------------------


def filters(side: Side) -> None:
    kept: dict[str, Entity] = {
        "a": {"user": "u"},
        "b": {"user": None},
        "c": {"user": "u", "client-id": "c"},
        "d": {"client-id": None},
        "e": {"ip": "10.1.2.3"},
    }
    rates = {"ip": "connection_creation_rate"}
    entries = [
        entry(of, (rates.get(next(iter(of)), "producer_byte_rate"), 7.0 + number))
        for number, of in enumerate(kept.values())
    ]
    set_quotas(side, *entries)
    for title, components in {
        "everything": (),
        "any user": (("user", _ANY, None),),
        "a user": (("user", _EXACT, "u"),),
        "nobody": (("user", _EXACT, "nobody"),),
        "a user and any client": (("user", _EXACT, "u"), ("client-id", _ANY, None)),
        "the default user": (("user", _DEFAULT, None),),
        "the default client": (("client-id", _DEFAULT, None),),
        "an address": (("ip", _EXACT, "10.1.2.3"),),
        "an unknown type": (("zzz", _ANY, None),),
        "an empty type": (("", _ANY, None),),
        "twice": (("user", _ANY, None), ("user", _ANY, None)),
        "an unknown match": (("user", 7, None),),
        "an exact match of nothing": (("user", _EXACT, None),),
        "a default with a name": (("user", _DEFAULT, "u"),),
        "any with a name": (("user", _ANY, "u"),),
        "an ip and a user": (("ip", _EXACT, "1.2.3.4"), ("user", _DEFAULT, None)),
    }.items():
        in_every_version(side, title, describing(*components))
        in_every_version(side, f"{title}, strictly", describing(*components, strict=True))
    removed = [entry(of, (each.ops[0].key, None)) for of, each in zip(kept.values(), entries, strict=True)]
    in_every_version(side, "all removed", altering(*removed))
    side.settle()  # the next story describes all there are


def alterations(side: Side) -> None:
    user: Entity = {"user": "u"}
    rate = ("producer_byte_rate", 1_024.0)
    in_every_version(side, "nothing", altering())
    asked: dict[str, list[_Entry]] = {
        "no change": [entry(user)],
        "removed": [entry(user, ("producer_byte_rate", None))],
        "removed of everybody": [entry({"user": None}, ("producer_byte_rate", None))],
        "an unknown quota removed": [entry(user, ("no.such.quota", None))],
        "set": [entry(user, rate)],
        "set of a client of a user's": [entry({"user": "u", "client-id": "c"}, rate)],
        "an unknown quota set": [entry(user, ("no.such.quota", 1.0))],
        "of an unknown type": [entry({"zzz": "u"}, rate)],
        "of an unknown type and a user": [entry({"zzz": "u", "user": "u"}, rate)],
        "of a user without a name": [entry({"user": ""}, rate)],
        "of nobody": [entry({}, rate)],
        "of an ip": [entry({"ip": "10.0.0.1"}, ("connection_creation_rate", 1.0))],
        "of what is no ip": [entry({"ip": "no ip"}, ("connection_creation_rate", 1.0))],
        "of an ip and a user": [entry({"ip": "10.0.0.1", "user": "u"}, rate)],
        "bytes of an ip": [entry({"ip": None}, rate)],
        "connections of a user": [entry(user, ("connection_creation_rate", 1.0))],
        "two entities, one of them wrong": [entry(user, rate), entry({"user": "v"}, ("zzz", 1.0))],
        "an entity twice": [entry(user, rate), entry(user, ("consumer_byte_rate", 1.0))],
        "a quota twice": [entry(user, rate, rate)],
    }
    for key in ("producer_byte_rate", "request_percentage", "controller_mutation_rate"):
        for value in (0.0, -1.0, 0.5, 1.000_000_5, 1e19, float("nan"), float("inf")):
            asked[f"{key}={value}"] = [entry(user, (key, value))]
    for value in (0.5, 2.0**31):
        asked[f"connections={value}"] = [entry({"ip": None}, ("connection_creation_rate", value))]
    for title, entries in asked.items():
        in_every_version(side, title, altering(*entries, validate_only=True))
    in_every_version(side, "nothing was set", describing())


# --- throttled ----------------------------------------------------------------------------------------------


def _ms_since(began: float) -> float:
    return (time.monotonic() - began) * 1_000


def waits(side: Side, title: str, since: float, throttle_ms: int, next_one: Callable[[], Any]) -> None:
    """Note that the connection's next request is answered once the time is over, and not before. The one that
    was throttled was sent after `since`."""
    next_one()
    side.note(f"{title}: the next one waits", throttle_ms - _LATE_MS <= _ms_since(since) < DEADLINE_S * 1_000)


def _windows_allow(throttle_ms: int, used: float, began: float) -> bool:
    """Whether Kafka's windows give this throttle time for the bytes used since `began`."""
    elapsed_ms = _ms_since(began) + _LATE_MS
    longest_ms = (used - _AT_ONCE) / _RATE * 1_000
    return longest_ms - elapsed_ms <= throttle_ms <= longest_ms + _LATE_MS


def producer(side: Side) -> None:
    side.create(t=1)
    records = build([Record(0, 1_000, b"k", b"v" * 3_000)])
    part = ProduceRequest.PartitionProduceData(index=0, records=records)
    topic = ProduceRequest.TopicProduceData(name=side.name("t"), partition_data=[part])
    request = ProduceRequest(acks=1, timeout_ms=10_000, topic_data=[topic])
    with limited(side, "producer", "producer_byte_rate", _RATE) as connection:
        began, throttle_ms, count = time.monotonic(), 0, 0
        while not throttle_ms:
            since = time.monotonic()
            answer = call(connection, request, 9)
            throttle_ms, count = answer.throttle_time_ms, count + 1
            stored = answer.responses[0].partition_responses[0].error_code
        side.note("the first to be throttled", count)
        side.note("it is stored", stored == 0)
        size = len(encode_request(ApiKey.PRODUCE, 9, 1, "producer", request)) - 4
        side.note("as long as windows allow", _windows_allow(throttle_ms, count * size, began))
        waits(side, "produce", since, throttle_ms, lambda: call(connection, request, 9))


def _to_read(side: Side) -> FetchRequest.FetchTopic:
    """A topic with one record of 3 KB, from its beginning."""
    side.create(t=1)
    records = build([Record(0, 1_000, b"k", b"v" * 3_000)])
    produced = ProduceRequest.PartitionProduceData(index=0, records=records)
    topic = ProduceRequest.TopicProduceData(name=side.name("t"), partition_data=[produced])
    side.quietly(ProduceRequest(acks=1, timeout_ms=10_000, topic_data=[topic]), 9)
    part = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000_000)
    return FetchRequest.FetchTopic(topic=side.name("t"), partitions=[part])


def consumer(side: Side) -> None:
    asked = _to_read(side)
    request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[asked])
    with limited(side, "consumer", "consumer_byte_rate", _RATE) as connection:
        began, throttle_ms, count, size = time.monotonic(), 0, 0, 0
        while not throttle_ms:
            since = time.monotonic()
            answer = call(connection, request, 12)
            throttle_ms, count = answer.throttle_time_ms, count + 1
            if not throttle_ms:
                size = 4 + len(encode(answer, 12))
        side.note("the first to be throttled", count)
        side.note("it gets nothing", answer.responses == [])
        side.note("as long as windows allow", _windows_allow(throttle_ms, count * size, began))
        waits(side, "fetch", since, throttle_ms, lambda: call(connection, request, 12))

    with limited(side, "slow consumer", "consumer_byte_rate", 100) as connection:
        answer = call(connection, request, 12)
        side.note("a batch above the quota: throttled", answer.throttle_time_ms > 0)
        side.note("a batch above the quota", "comes" if answer.responses else "does not come")


def sessions(side: Side) -> None:
    """What a response that is held back does to the session of its request."""
    asked = _to_read(side)

    def in_session(session_id: int, epoch: int) -> FetchRequest:
        return FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            session_id=session_id,
            session_epoch=epoch,
            topics=[] if epoch else [asked],
        )

    with limited(side, "in a session", "consumer_byte_rate", _RATE) as connection:
        answer = call(connection, in_session(0, 0), 12)
        session_id, epoch = answer.session_id, 0
        while not answer.throttle_time_ms:
            epoch += 1
            assert epoch < 100, "never throttled"
            answer = call(connection, in_session(session_id, epoch), 12)
        side.note("the first to be throttled", epoch)
        side.note(
            "it gets nothing, and keeps its session", (answer.responses, answer.session_id == session_id)
        )
        with WireConnection(*side._address, "in a session") as another:
            opening = call(another, in_session(0, 0), 12)
            side.note("one that opens a session", (opening.throttle_time_ms > 0, opening.session_id))
        with WireConnection(*side._address, "another") as another:
            goes_on = call(another, in_session(session_id, epoch + 1), 12)
            side.note("the session goes on", (goes_on.error_code, len(goes_on.responses)))


def mutations(side: Side) -> None:
    """One partition per second allows eleven at once."""

    def creating(name: str, partitions: int, *, validate_only: bool = False) -> CreateTopicsRequest:
        topic = CreateTopicsRequest.CreatableTopic(
            name=side.name(name), num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
        )
        return CreateTopicsRequest(topics=[topic], timeout_ms=10_000, validate_only=validate_only)

    def facts(title: str, answer: Any, least_ms: float, most_ms: float) -> dict[str, object]:
        results = getattr(answer, "topics", None) or getattr(answer, "results", None) or answer.responses
        waiting: int = answer.throttle_time_ms
        return {
            f"{title}: code": ErrorCode(results[0].error_code).name,
            f"{title}: throttled as it may be": least_ms <= waiting <= most_ms or waiting,
        }

    def told(title: str, answer: Any, least_ms: float, most_ms: float) -> None:
        for fact, value in facts(title, answer, least_ms, most_ms).items():
            side.note(fact, value)

    def strictly(attempt: int) -> dict[str, object] | None:
        """None: it took so long that what was used up was there again."""
        ten, three, more = (f"{name}-{attempt}" for name in ("ten", "three", "more"))
        with limited(side, f"strict-{attempt}", "controller_mutation_rate", 1.0) as connection:
            began = time.monotonic()
            found = facts("ten", call(connection, creating(ten, 10), 7), 0, 0)
            found |= facts("three more", call(connection, creating(three, 3), 7), 0, 0)
            found |= facts("used up", call(connection, creating(more, 1), 7), 1, 2_100)
            if _ms_since(began) > 2_000 - _LATE_MS:
                return None
            grown = CreatePartitionsRequest.CreatePartitionsTopic(
                name=side.name(three), count=8, assignments=None
            )
            growing = CreatePartitionsRequest(topics=[grown], timeout_ms=10_000, validate_only=False)
            found |= facts("growing when it is over", call(connection, growing, 3), 0, 0)
            found |= facts("there already, used up", call(connection, creating(ten, 1), 7), 0, 0)
            deleting = DeleteTopicsRequest(topic_names=[side.name(ten)], timeout_ms=10_000)
            found |= facts("deleting, used up", call(connection, deleting, 5), 1, 5_100)
            return found if _ms_since(began) < 7_000 - _LATE_MS else None

    deadline = time.monotonic() + DEADLINE_S
    attempts = itertools.count(1)
    while (strict := strictly(next(attempts))) is None:
        assert time.monotonic() < deadline, "never fast enough"
    for fact, value in strict.items():
        side.note(fact, value)
    with limited(side, "permissive", "controller_mutation_rate", 1.0) as connection:
        began = time.monotonic()
        told("twelve", call(connection, creating("twelve", 12), 5), 900, 1_100)
        answer = call(connection, creating("two", 2), 5)  # the twelve hold it back for a second
        told("two more", answer, 3_000 - _ms_since(began) - _LATE_MS, 2_100)
    with limited(side, "only validating", "controller_mutation_rate", 1.0) as connection:
        told("validated", call(connection, creating("v", 12, validate_only=True), 7), 0, 0)
        told("validated again", call(connection, creating("v", 1, validate_only=True), 7), 0, 1_100)


@pytest.mark.parametrize("story", [filters, alterations, producer, consumer, sessions, mutations])
def test_apache_kafka_answers_as_muster_does(story: Story, kafka_of_configs: KafkaOfConfigs) -> None:
    with Broker(auto_create_topics_enable=False) as broker:
        assert_told_alike(story, kafka_of_configs(KAFKA_CONFIGS), broker)
