"""One partition's part of an answer: which batches are shown, and how damage is handled."""

from __future__ import annotations

from typing import Any

import pytest

from muster.client.fetch import fetched
from muster.client.fetch.fetched import AbortedTransaction, Part
from muster.client.fetch.records import CREATE_TIME, LOG_APPEND_TIME, Batch
from muster.client.partitions import TopicPartition
from muster.protocol.compression import Codec
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.record_batch import ControlType, Record, build
from tests.client.fetch_fakes import batch
from tests.support.control_batches import build_control
from tests.support.each import each

T0 = TopicPartition("t", 0)


def part(data: bytes, offset: int = 0, aborted: list[AbortedTransaction] | None = None, **how: bool) -> Part:
    return Part(T0, data, offset, -1, aborted, **how)


def taken(of: Part, records_max: int = 500) -> list[Batch[bytes | None, bytes | None]]:
    batches = []
    while (found := of.take(records_max)) is not None:
        batches.append(found)
    return batches


def values(of: Part, records_max: int = 500) -> list[bytes | None]:
    return [value for each in taken(of, records_max) for value in each.values]


def of_transaction(offset: int, producer_id: int, *contents: bytes) -> bytes:
    return batch(offset, *contents, producer_id=producer_id, producer_epoch=0, transactional=True)


def marker(offset: int, producer_id: int, kind: ControlType) -> bytes:
    return build_control(
        kind, offset=offset, timestamp=1, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0
    )


@each("codec", Codec)
def test_every_codec(codec: Codec) -> None:
    whole = part(batch(0, b"0", b"1", codec=codec) + batch(2, b"2", codec=codec))
    assert values(whole) == [b"0", b"1", b"2"]
    assert whole.is_exhausted


def test_a_view_of_an_answer_does_as_well() -> None:
    data = bytearray(b"the answer's header" + batch(0, b"0", b"1") + batch(2, b"2", codec=Codec.ZSTD))
    found = taken(Part(T0, memoryview(data)[19:], 0, -1))
    assert [record.value for each in found for record in each] == [b"0", b"1", b"2"]
    assert {type(record.value) for each in found for record in each} == {bytes}


def test_from_the_middle_of_a_batch() -> None:
    (found,) = taken(part(batch(10, b"0", b"1", b"2", b"3"), offset=12))
    assert (list(found.offsets), found.values, list(found.keys)) == ([12, 13], [b"2", b"3"], [b"k", b"k"])
    assert (found.first_offset, found.next_offset) == (12, 14)
    assert [record.timestamp for record in found] == [1012, 1013]


def test_small_batches_come_together_and_large_ones_in_pieces() -> None:
    data = b"".join(batch(index, b"%d" % index) for index in range(10))
    assert [list(each.offsets) for each in taken(part(data), 4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    large = part(batch(0, *(b"%d" % index for index in range(10))))
    assert [(list(each.offsets), each.next_offset) for each in taken(large, 4)] == [
        ([0, 1, 2, 3], 4),
        ([4, 5, 6, 7], 8),
        ([8, 9], 10),
    ]


def test_what_differs_does_not_come_together() -> None:
    """A Batch has one leader epoch, and one clock."""
    data = batch(0, b"0", epoch=1) + batch(1, b"1", epoch=2) + batch(2, b"2", epoch=2, log_append_time_ms=7)
    found = taken(part(data))
    assert [(each.leader_epoch, each.timestamp_type) for each in found] == [
        (1, CREATE_TIME),
        (2, CREATE_TIME),
        (2, LOG_APPEND_TIME),
    ]
    assert found[2][0].timestamp == 7


def test_header_names_that_are_not_utf8_are_read_with_replacements() -> None:
    (found,) = taken(part(build([Record(0, 1, None, b"1", (("a\udcff", b"x"),))], leader_epoch=0)))
    assert [record.headers for record in found] == [(("a\ufffd", b"x"),)]


def test_headers_of_some() -> None:
    with_headers = build([Record(1, 1, None, b"1", (("h", b"x"),))], leader_epoch=0)
    (found,) = taken(part(batch(0, b"0") + with_headers + batch(2, b"2")))
    assert [record.headers for record in found] == [(), (("h", b"x"),), ()]
    assert list(found.headers) == [(), (("h", b"x"),), ()]


def test_a_batch_that_is_cut_short_is_left_for_the_next_fetch() -> None:
    first, second = batch(0, b"0"), batch(1, b"1")
    whole = first + second
    for length in range(len(whole) + 1):
        cut = part(whole[:length])
        complete = (length >= len(first)) + (length == len(whole))
        assert cut.next_offset == complete
        assert values(cut) == [b"0", b"1"][:complete]
        assert cut.is_exhausted


def test_gaps_that_compaction_leaves() -> None:
    gappy = build(
        [Record(3, 1, None, b"3"), Record(7, 1, None, b"7")], base_offset=0, last_offset=9, leader_epoch=0
    )
    empty = build([], base_offset=10, last_offset=19, leader_epoch=0)
    whole = part(gappy + empty + batch(20, b"20"), offset=5)
    (found,) = taken(whole)
    assert list(found.offsets) == [7, 20]
    assert (found.next_offset, whole.next_offset) == (21, 21)
    # Nothing is left of the batch after the position.
    nothing = part(gappy + empty, offset=8)
    assert taken(nothing) == []
    assert nothing.next_offset == 20
    assert nothing.is_exhausted


def test_the_position_moves_over_what_is_not_shown() -> None:
    """At once: the last record takes the position to the end of the log, although a marker follows it."""
    data = (
        of_transaction(0, 1, b"0")
        + marker(1, 1, ControlType.COMMIT)
        + build([], base_offset=2, last_offset=4)
    )
    (found,) = taken(part(data))
    assert (list(found.offsets), found.next_offset) == ([0], 5)
    alone = part(marker(0, 1, ControlType.COMMIT))
    assert (alone.is_exhausted, alone.next_offset) == (True, 1)


def test_uncommitted_shows_all_but_markers() -> None:
    data = of_transaction(0, 1, b"0") + marker(1, 1, ControlType.ABORT) + of_transaction(2, 1, b"2")
    assert values(part(data)) == [b"0", b"2"]


def test_committed_leaves_out_what_was_aborted() -> None:
    data = b"".join(
        (
            of_transaction(0, 1, b"aborted"),
            of_transaction(1, 2, b"committed"),
            batch(2, b"plain", producer_id=1, producer_epoch=0),
            of_transaction(3, 1, b"aborted too"),
            marker(4, 1, ControlType.ABORT),
            of_transaction(5, 1, b"the next transaction"),
            marker(6, 2, ControlType.COMMIT),
            marker(7, 1, ControlType.COMMIT),
            of_transaction(8, 2, b"aborted as well"),
            marker(9, 2, ControlType.ABORT),
        )
    )
    aborted = [AbortedTransaction(2, 8), AbortedTransaction(1, 0)]
    whole = part(data, aborted=aborted)
    assert values(whole) == [b"committed", b"plain", b"the next transaction"]
    assert whole.next_offset == 10


def test_committed_of_a_transaction_that_began_before_the_position() -> None:
    data = of_transaction(5, 1, b"aborted", b"aborted") + marker(7, 1, ControlType.ABORT)
    assert values(part(data, offset=6, aborted=[AbortedTransaction(1, 2)])) == []


@each("position", [17, 20, 30, -1])
def test_damage_is_met_after_what_comes_before_it(position: int) -> None:
    good, bad = batch(0, b"0", b"1"), bytearray(batch(2, b"2"))
    bad[position] ^= 1
    damaged = part(good + bytes(bad))
    assert damaged.take(500).values == [b"0", b"1"]  # type: ignore[union-attr]
    for _ in range(2):
        with pytest.raises(
            KafkaError, match="t-0: the batch at offset 2 cannot be read: its checksum"
        ) as raised:
            damaged.take(500)
        assert raised.value.code is ErrorCode.CORRUPT_MESSAGE
    assert not damaged.is_exhausted


def test_damage_in_a_header_ends_what_can_be_found() -> None:
    bad = bytearray(batch(1, b"1"))
    bad[16] = 1  # an old message format
    damaged = part(batch(0, b"0") + bytes(bad) + batch(2, b"2"))
    assert damaged.take(500).values == [b"0"]  # type: ignore[union-attr]
    with pytest.raises(KafkaError, match="offset 1 cannot be read: message format 1"):
        damaged.take(500)


def test_checksums_are_not_looked_at_when_that_is_wished() -> None:
    bad = bytearray(batch(0, b"value"))
    bad[-2] ^= 1
    assert values(part(bytes(bad), check_crcs=False)) == [b"valud"]
    bad[-7] = 0x7F  # the length of the value
    with pytest.raises(KafkaError, match="t-0: the batch at offset 0 cannot be read"):
        taken(part(bytes(bad), check_crcs=False))


def test_damage_in_a_marker() -> None:
    bad = bytearray(marker(1, 1, ControlType.ABORT))
    bad[-1] ^= 1
    data = of_transaction(0, 2, b"0") + bytes(bad)
    damaged = part(data, aborted=[])
    assert damaged.take(500).values == [b"0"]  # type: ignore[union-attr]
    with pytest.raises(KafkaError, match="the batch at offset 1 cannot be read"):
        damaged.take(500)


@pytest.mark.interpreted
@each("place", ["read_records", "_joined", "Batch"])
def test_nothing_is_skipped_if_memory_runs_out(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the second batch is unpacked, or while what was unpacked is put together."""
    real, calls = getattr(fetched, place), []

    def fails(*args: Any, **how: Any) -> Any:
        calls.append(args)
        if len(calls) == (2 if place == "read_records" else 1):
            raise MemoryError
        return real(*args, **how)

    monkeypatch.setattr(fetched, place, fails)
    whole = part(batch(0, b"0", b"1") + batch(2, b"2") + batch(3, b"3", b"4"))
    seen: list[bytes | None] = []
    while not whole.is_exhausted:
        try:
            seen += values(whole)
        except MemoryError:
            assert place != "read_records" or not seen
    assert seen == [b"0", b"1", b"2", b"3", b"4"]
    assert len(calls) > 1


@pytest.mark.interpreted
def test_a_piece_that_there_was_no_memory_for_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    piece = Batch.__getitem__

    def fails(*_: Any) -> Any:
        raise MemoryError

    large = part(batch(0, b"0", b"1", b"2"))
    for _ in range(2):
        monkeypatch.setattr(Batch, "__getitem__", fails)
        with pytest.raises(MemoryError):
            large.take(2)
        monkeypatch.setattr(Batch, "__getitem__", piece)
    assert values(large, 2) == [b"0", b"1", b"2"]
