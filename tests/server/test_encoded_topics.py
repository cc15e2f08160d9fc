"""Topics as Metadata describes them: encoded once, and again whenever anything about them changes."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from muster.coordinator.cluster.topology import Topology
from muster.coordinator.server import encoded_topics
from muster.coordinator.server.encoded_topics import EncodedTopics
from muster.protocol.messages.metadata import AUTHORIZED_OPERATIONS_OMITTED, MetadataRequest
from tests.server.conftest import StartBrokers
from tests.support.wire import Wire


class Named:
    """As much of a topic as matters here."""

    def __init__(self, number: int) -> None:
        self.topic_id = UUID(int=number)


def topology() -> Topology:
    return Topology(UUID(int=9), {}, {}, {})


class Encoding:
    """Encodes, and counts how often."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, topic: Any) -> bytes:
        self.count += 1
        return b"%d;" % self.count


def test_a_topic_is_encoded_once_for_each_version() -> None:
    known, topic, here, encode = EncodedTopics(), Named(1), topology(), Encoding()
    assert [known.of(topic, here, version, encode) for version in (12, 12, 13, 12)] == [
        b"1;",
        b"1;",
        b"2;",
        b"1;",
    ]


def test_another_topology_or_a_changed_topic_is_told_anew() -> None:
    known, topic, here, encode = EncodedTopics(), Named(1), topology(), Encoding()
    assert known.of(topic, here, 12, encode) == b"1;"
    assert known.of(Named(1), here, 12, encode) == b"2;"
    assert known.of(topic, here, 12, encode) == b"3;"
    assert known.of(topic, topology(), 12, encode) == b"4;"


def test_what_is_kept_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoded_topics, "_BYTES_MAX", 5)
    known, here, encode = EncodedTopics(), topology(), Encoding()
    topics = [Named(number) for number in range(3)]
    assert [known.of(topic, here, 12, encode) for topic in topics] == [b"1;", b"2;", b"3;"]
    assert known.of(topics[2], here, 12, encode) == b"3;"
    assert known.of(topics[0], here, 12, encode) == b"4;"


async def test_a_second_answer_is_the_first_and_a_grown_topic_is_told(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers()
    catalogue = brokers.brokers[0].catalogue
    for name in ("a", "b"):
        await catalogue.create(name, partitions=2)
    named = [MetadataRequest.Topic(name=each) for each in ("b", "no such", "a")]
    async with await Wire.connect(brokers.brokers[0].port) as wire:

        async def told(version: int, **asked: Any) -> Any:
            topics = named if version >= 4 else [named[0], named[2]]  # before v4 it would be created
            request = MetadataRequest(topics=topics, allow_auto_topic_creation=version < 4, **asked)
            return (await wire.call(request, version)).topics

        for version in range(14):
            first = await told(version)
            assert await told(version) == first
            assert partitions(first) == {"b": 2, "a": 2}
            if version >= 8:
                alone = await told(version, include_topic_authorized_operations=True)
                assert all(each.topic_authorized_operations > 0 for each in alone)
                for each in alone:
                    each.topic_authorized_operations = AUTHORIZED_OPERATIONS_OMITTED
                assert alone[0] == first[0]
                assert alone[-1] == first[-1]
        await catalogue.add_partitions("a", 5)
        for version in range(14):
            assert partitions(await told(version)) == {"b": 2, "a": 5}


def partitions(topics: Any) -> dict[str, int]:
    return {each.name: len(each.partitions) for each in topics if not each.error_code}
