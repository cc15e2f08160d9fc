"""Damage that reads meet is logged once for each place. tests/faults tests this with a whole broker."""

from __future__ import annotations

from typing import Any

import pytest

from muster.coordinator.topics import damage
from muster.coordinator.topics.damage import Damage
from muster.coordinator.topics.log import PartitionLog
from muster.protocol.errors import ErrorCode, KafkaError
from tests.topics.support import Brokers, OneLog
from tests.topics.test_partitions import brokers, topic_at  # noqa: F401 - a fixture


class Lines:
    """What was logged."""

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []

    def error(self, event: str, **fields: Any) -> None:
        assert event == "log is damaged"
        self.said.append(fields)


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    lines = Lines()
    monkeypatch.setattr(damage, "_log", lines)
    return lines


def harmed(found: bytes | memoryview, at: int) -> bytes:
    changed = bytearray(found)
    changed[at] ^= 1
    return bytes(changed)


def test_the_first_batch_of_a_fetch_is_looked_at(lines: Lines) -> None:
    one = OneLog()
    for number in range(3):
        one.append(b"%d" % number, b"again")
    named = Damage("orders-0")
    found = one.log.read(2, 1 << 20, first_may_exceed=True)
    first_bytes = len(one.log.read(2, 1, first_may_exceed=True))
    named.look(one.log, found)
    named.look(one.log, b"")
    named.look(one.log, harmed(found, first_bytes + 70))
    assert lines.said == [], "sound, nothing, and a batch that is not the first"
    for _ in range(3):
        named.look(one.log, harmed(found, 70))
        named.look(one.log, memoryview(harmed(found, 70)))
    (said,) = lines.said
    assert (said["partition"], said["offset"], said["last_offset"]) == ("orders-0", 2, 3)
    place = one.log.segments.place_of(2)
    assert said["why"] == f"{one.log.path}: the checksum does not match at {place}"
    assert ("base_offset 2" if one.rows else f"0.log, byte {first_bytes}") in place
    named.look(one.log, harmed(one.log.read(4, 1 << 20, first_may_exceed=True), 70))
    assert [each["offset"] for each in lines.said] == [2, 4]


def test_what_cannot_be_read_is_named_once(lines: Lines) -> None:
    named = Damage("orders-0")
    for _ in range(3):
        for place in (7, 8):
            named.refused(KafkaError(ErrorCode.CORRUPT_MESSAGE, f"no batch at byte {place}"), offset=place)
    named.refused(KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "beyond"), offset=9)
    assert lines.said == [
        {"partition": "orders-0", "offset": place, "why": f"no batch at byte {place}"} for place in (7, 8)
    ]


def test_there_is_a_bound_of_places(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "_PLACES_MAX", 5)
    named = Damage("orders-0")
    for place in range(9):
        named.refused(KafkaError(ErrorCode.CORRUPT_MESSAGE, f"no batch at byte {place}"))
    assert [each["why"] for each in lines.said] == [f"no batch at byte {place}" for place in range(5)]


async def test_a_look_up_that_meets_it_names_it_too(
    brokers: Brokers,  # noqa: F811
    lines: Lines,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def damaged(log: PartitionLog, timestamp: int, *, read_committed: bool) -> Any:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "no batch at byte 7")

    node = await brokers.add()
    topic = await topic_at(brokers)
    monkeypatch.setattr(PartitionLog, "list_offset", damaged)
    for _ in range(2):
        with pytest.raises(KafkaError):
            await node.list_offsets(topic, 0, 5)
    assert lines.said == [{"partition": "orders-0", "why": "no batch at byte 7"}]
