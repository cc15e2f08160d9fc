"""Segment files damaged by something other than a crash: this is reported, and what can be kept is kept."""

from __future__ import annotations

import random

import pytest

from muster.coordinator.storage.files import MemoryFolder
from muster.coordinator.storage.records import Limits
from muster.coordinator.storage.segment import SCAN_BYTES
from muster.coordinator.storage.segments import SegmentLog
from muster.protocol.errors import DecodeError
from tests.storage.test_segments import SMALL, Observed, Place, append, everything, offsets
from tests.support.each import each

FIRST = "00000000000000000000.log"
LENGTH = 8  # where a batch has its length
UNDECODABLE = (0, -1, -12, -13, -2_000, 48, 2**31 - 1)


def placed(*, batches: int, size: int = 100, limits: Limits = SMALL) -> tuple[Place, SegmentLog, list[bytes]]:
    place = Place(MemoryFolder())
    log, _ = place.open(limits)
    return place, log, [append(log, size=size) for _ in range(batches)]


def harm(place: Place, position: int, contents: bytes, name: str = FIRST) -> None:
    file = place.folder.open(name)
    assert isinstance(file.contents, bytearray)  # type: ignore[attr-defined]
    file.contents[position : position + len(contents)] = contents  # type: ignore[attr-defined]


@each("length", UNDECODABLE)
def test_a_length_that_makes_no_sense_is_an_error_at_its_batch_and_no_endless_walk(length: int) -> None:
    place, log, stored = placed(batches=4, limits=Limits())
    harm(place, len(stored[0]) + LENGTH, length.to_bytes(4, "big", signed=True))
    assert log.read(0, 10_000) == stored[0]
    for offset in (2, 4, 7):
        with pytest.raises(DecodeError, match=f"{FIRST} is damaged: no batch at byte {len(stored[0])}"):
            log.read(offset, 10_000)
    found = log.batches(0)
    assert next(found).contents == stored[0]
    with pytest.raises(DecodeError, match=f"{FIRST} is damaged"):
        next(found)
    log.segments[0].newest_timestamp = 9_999  # of a later batch
    with pytest.raises(DecodeError, match=f"{FIRST} is damaged"):
        log.first_batch_at(9_999)


def test_a_walk_beside_the_writer_is_no_damage() -> None:
    _, log, stored = placed(batches=2, limits=Limits())
    found = log.batches(0)
    assert next(found).contents == stored[0]
    append(log)
    assert len(list(found)) in (1, 2)


def test_sound_records_behind_harmed_ones_are_put_aside_and_not_thrown_away() -> None:
    place, _, stored = placed(batches=6, limits=Limits())
    harm(place, len(stored[0]) + 70, b"\xff")
    again, observed = place.open(Limits())
    rest = b"".join(stored[1:])
    name = f"{FIRST}.{len(stored[0])}.discarded"
    assert everything(again) == stored[0]
    assert observed.offsets == [0]
    assert again.recovery.damaged
    assert again.recovery.cut_bytes == len(rest)
    assert again.recovery.cut_at == f"{FIRST}, byte {len(stored[0])}"
    assert again.recovery.discarded == (name,)
    kept = place.folder.load(name) or b""
    assert len(kept) == len(rest)
    assert kept.endswith(b"".join(stored[2:]))
    append(again)
    assert offsets(place.open(Limits())[0]) == [0, 2]
    assert not place.open(Limits())[0].recovery.damaged, "once is enough"


def test_what_follows_a_harmed_segment_is_put_aside_with_the_rest_of_it() -> None:
    place, log, stored = placed(batches=4, size=300)
    assert len(log.segments) == 4
    second = log.segments[1]
    harm(place, second.size - 1, b"\xff", second.log_name)
    again, _ = place.open()
    assert everything(again) == stored[0]
    assert again.recovery.damaged
    assert len(again.recovery.discarded) == 3
    for name in again.recovery.discarded:
        assert place.folder.load(name)


@each("operations", range(6))
def test_putting_aside_can_be_cut_short_anywhere(operations: int) -> None:
    class Died(BaseException):
        pass

    class Mortal(MemoryFolder):
        left = 1_000

        def operate(self) -> None:
            self.left -= 1
            if self.left < 0:
                raise Died

        def rename(self, name: str, to: str) -> None:
            self.operate()
            super().rename(name, to)

        def sync(self) -> None:
            self.operate()

    place = Place(Mortal())
    assert isinstance(place.folder, Mortal)
    log, _ = place.open()
    stored = [append(log, size=300) for _ in range(6)]
    second = log.segments[1]
    harm(place, second.size - 1, b"\xff", second.log_name)
    place.folder.left = operations
    try:
        again, _ = place.open()
    except Died:
        place.folder.left = 1_000
        again, _ = place.open()
    assert (again.next_offset, again.recovery.missing) == (2, ())
    assert everything(again) == stored[0]
    assert sum(name.endswith(".discarded") for name in place.folder.names()) == 5


@each("tail", [b"\x00" * 5_000, b"\x02" * 5_000, b"garbage" * 100, None])
def test_a_tail_that_holds_nothing_sound_is_a_torn_one(tail: bytes | None) -> None:
    place, _, stored = placed(batches=3, limits=Limits())
    if tail is None:
        tail = random.Random(1).randbytes(2 * SCAN_BYTES)
    place.folder.open(FIRST).append([tail])
    again, _ = place.open(Limits())
    assert everything(again) == b"".join(stored)
    assert (again.recovery.cut_bytes, again.recovery.damaged) == (len(tail), False)
    assert again.recovery.discarded == ()


@each("noise", [1, 70, SCAN_BYTES - 61, SCAN_BYTES - 1, SCAN_BYTES, 3 * SCAN_BYTES + 5])
def test_a_sound_batch_is_found_behind_any_amount_of_noise(noise: int) -> None:
    place, log, stored = placed(batches=2, limits=Limits())
    last = log.segments[-1]
    place.folder.open(FIRST).truncate(len(stored[0]))
    # Every 2 could be a batch's magic byte, so they are dense around the places where a scan resumes.
    edge = b"\x02" * min(noise, 200)
    filled = edge + bytes(max(noise - 400, 0)) + b"\x02" * min(max(noise - 200, 0), 200)
    assert len(filled) == noise
    place.folder.open(FIRST).append([filled, stored[1]])
    again, _ = place.open(Limits())
    assert again.recovery.damaged
    assert last.next_offset == 4
    assert everything(again) == stored[0]


def test_an_older_batch_behind_the_tail_is_none_of_this_log() -> None:
    """Such as a batch within the records of a torn one: offsets below the end already have their batches."""
    place, _, stored = placed(batches=2, limits=Limits())
    place.folder.open(FIRST).append([b"torn" * 30, stored[0]])
    again, _ = place.open(Limits())
    assert everything(again) == b"".join(stored)
    assert not again.recovery.damaged


@each("sealed", [True, False])
def test_a_missing_segment_is_named_and_those_behind_it_stay(sealed: bool) -> None:
    place, log, stored = placed(batches=4, size=300)
    gone = log.segments[1]
    if sealed:
        log.close()
    place.folder.remove(gone.log_name)
    again, _ = place.open()
    assert again.recovery.missing == ((2, 4),)
    assert not again.recovery.cut_bytes
    assert everything(again) == b"".join([stored[0], *stored[2:]])
    assert again.next_offset == 8


def test_an_end_that_was_known_and_is_gone_is_named() -> None:
    place, log, _ = placed(batches=4, size=300)
    log.close()
    place.folder.remove(log.segments[-1].log_name)
    again, observed = place.open()
    assert again.next_offset == 6
    assert again.recovery.known_end == 8
    assert observed.offsets == [0, 2, 4]


def test_a_start_beyond_the_end_is_named() -> None:
    place, log, _ = placed(batches=3, limits=Limits())
    log.set_start_offset(6)
    place.folder.open(FIRST).truncate(10)
    again, _ = place.open(Limits())
    assert again.recovery.known_end == 6


def test_nothing_is_said_of_a_sound_log() -> None:
    place, log, _ = placed(batches=4, size=300)
    log.close()
    log, _ = place.open()
    log.set_start_offset(3)
    found = place.open()[0].recovery
    assert found == type(found)()
    assert isinstance(place.open()[1], Observed)
