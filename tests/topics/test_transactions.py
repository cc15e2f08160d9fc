"""Transactions as a partition sees them: what may be appended, where the last stable offset is, and what a
consumer of committed records gets."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from muster.coordinator.base.log import Logger
from muster.coordinator.storage.files import DiskFolder, MemoryFolder
from muster.coordinator.topics.compaction import compact
from muster.coordinator.topics.guards import UNVERIFIED, Guard
from muster.coordinator.topics.led import report_recovery
from muster.coordinator.topics.log import NOTHING_LISTED, Listed, ListTimestamp
from muster.coordinator.topics.producers import ActiveProducer, Producers
from muster.coordinator.topics.retention import expire
from muster.coordinator.transactions.marker import Marker
from muster.protocol import record_batch
from muster.protocol.control_batch import read_marker
from muster.protocol.errors import ErrorCode, KafkaError
from tests.support.each import each
from tests.topics.support import NOW_MS, OneLog, batch, killed_after, read_records

P, Q = 9, 10


class Transactions(OneLog):
    """A log in which anyone may open transactions, as if nothing were verified, and whose batches are
    numbered automatically."""

    def __init__(self, *given: Any, **configs: str) -> None:
        self.sequences: dict[tuple[int, int], int] = {}
        super().__init__(*given, **configs)

    def put(
        self,
        producer: int,
        *values: bytes | None,
        epoch: int = 0,
        sequence: int | None = None,
        transactional: bool = True,
        commit: bool = True,
        guard: Guard | None = UNVERIFIED,
        **kinds: Any,
    ) -> int:
        """Append a batch and return its base offset."""
        if sequence is None:
            sequence = self.sequences.get((producer, epoch), 0)
        data = batch(
            *(values or (b"v",)), producer=(producer, epoch, sequence), transactional=transactional, **kinds
        )
        offset = self.log.append(data, transactional=True, guard=guard).base_offset
        self.sequences[producer, epoch] = sequence + len(values or (b"v",))
        if commit:
            self.log.commit()
        return offset

    def end(
        self,
        producer: int,
        committed: bool,
        *,
        epoch: int = 0,
        coordinator_epoch: int = 0,
        version: int = 0,
        commit: bool = True,
    ) -> int:
        """Write a marker and return its offset."""
        marker = Marker(producer, epoch, coordinator_epoch, committed, version)
        offset = self.log.write_marker(marker).base_offset
        if commit:
            self.log.commit()
        return offset

    @property
    def stable(self) -> int:
        return self.log.last_stable_offset

    def committed(self, offset: int = 0, bytes_max: int = 1 << 20) -> list[bytes | None]:
        """What a consumer of committed records sees in one fetch."""
        found, aborted = self.log.read_committed(offset, bytes_max, first_may_exceed=True)
        return filtered(found, [(each.producer_id, each.first_offset) for each in aborted], offset)


def filtered(data: bytes | memoryview, aborted: list[tuple[int, int]], offset: int = 0) -> list[bytes | None]:
    """Filters a fetch as Kafka's consumer does, from its description (KIP-98)."""
    left = sorted(aborted, key=lambda each: each[1])
    out: set[int] = set()
    values: list[bytes | None] = []
    contents = bytes(data)
    for position, header in record_batch.batches(contents):
        while left and left[0][1] <= header.last_offset:
            out.add(left.pop(0)[0])
        if header.is_control:
            end = read_marker(header, contents[position : position + header.size])
            if end is not None and not end.committed:
                out.discard(header.producer_id)
        elif not header.is_transactional or header.producer_id not in out:
            found = record_batch.records(contents, position, header)
            values += [record.value for record in found if record.offset >= offset]
    return values


def refusal(call: Any, *given: Any, **named: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        call(*given, **named)
    return caught.value.code


@pytest.fixture
def one() -> Transactions:
    return Transactions()


# --- what may be appended -----------------------------------------------------------------------------------


def test_without_a_guard_no_transaction_is_opened(one: Transactions) -> None:
    assert refusal(one.put, P, guard=None) is ErrorCode.INVALID_TXN_STATE
    unkept = Guard(one.log.producers.guards, 0, 0, epoch_raised=False, made_ms=NOW_MS)
    assert refusal(one.put, P, guard=unkept) is ErrorCode.INVALID_TXN_STATE
    assert one.log.high_watermark == 0
    assert refusal(OneLog().log.append, batch(b"v", producer=(P, 0, 0), transactional=True)) is (
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    )


def test_only_the_first_batch_of_a_transaction_needs_a_guard(one: Transactions) -> None:
    one.put(P)
    one.put(P, guard=None)
    assert one.put(P, sequence=1, guard=None) == 1, "nor does a repeat"
    one.end(P, True)
    assert refusal(one.put, P, guard=None) is ErrorCode.INVALID_TXN_STATE
    assert one.put(P, sequence=1, guard=None) == 1, "nor does one of a transaction that has ended"


def test_a_new_epoch_needs_a_guard_of_its_own(one: Transactions) -> None:
    one.put(P)
    assert refusal(one.put, P, epoch=1, guard=None) is ErrorCode.INVALID_TXN_STATE
    assert refusal(one.put, P, epoch=-1, guard=None) is ErrorCode.INVALID_RECORD


def test_a_plain_batch_is_refused_while_its_producer_has_a_transaction_open(one: Transactions) -> None:
    one.put(P)
    assert refusal(one.put, P, transactional=False) is ErrorCode.INVALID_TXN_STATE
    assert one.put(Q, transactional=False) == 1
    assert refusal(one.put, P, sequence=5, transactional=False) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    one.end(P, True)
    assert one.put(P, transactional=False) == 3


def test_clients_write_no_control_batches(one: Transactions) -> None:
    data = batch(b"v", producer=(P, 0, 0), transactional=True, control=True)
    assert refusal(one.log.append, data, transactional=True) is ErrorCode.INVALID_RECORD
    anonymous = batch(b"v", transactional=True)
    assert refusal(one.log.append, anonymous, transactional=True) is ErrorCode.INVALID_RECORD


# --- markers ------------------------------------------------------------------------------------------------

EMPTY, OPEN, ENDED = "empty", "open", "ended"


@each(
    "state, version, epoch, code",
    [
        (OPEN, 0, 4, ErrorCode.INVALID_PRODUCER_EPOCH),
        (OPEN, 0, 5, None),
        (OPEN, 1, 6, None),
        (OPEN, 2, 4, ErrorCode.INVALID_PRODUCER_EPOCH),
        (OPEN, 2, 5, ErrorCode.INVALID_PRODUCER_EPOCH),
        (OPEN, 2, 6, None),
        (ENDED, 0, 5, None),
        (ENDED, 2, 5, None),
        (ENDED, 2, 4, ErrorCode.INVALID_PRODUCER_EPOCH),
        (EMPTY, 0, 3, None),
        (EMPTY, 2, 3, None),
    ],
)
def test_markers_are_taken_by_their_epoch(
    state: str, version: int, epoch: int, code: ErrorCode | None
) -> None:
    one = Transactions()
    if state != EMPTY:
        one.put(P, epoch=5)
    if state == ENDED:
        one.end(P, True, epoch=5)
    size = one.log.segments.size
    if code is None:
        one.end(P, True, epoch=epoch, version=version)
        assert one.log.segments.size > size, "a repeat is written again"
        (producer,) = one.log.active_producers()
        assert (producer.epoch, producer.transaction_start) == (epoch, -1)
        assert one.stable == one.log.high_watermark
    else:
        assert refusal(one.end, P, True, epoch=epoch, version=version) is code
        assert one.log.segments.size == size


def test_the_last_epoch_ends_its_own_transaction(one: Transactions) -> None:
    one.put(P, epoch=2**15 - 1)
    one.end(P, False, epoch=2**15 - 1, version=2)
    assert one.stable == 2


def test_a_replaced_coordinator_is_refused(one: Transactions) -> None:
    one.end(P, True, coordinator_epoch=4)
    assert refusal(one.end, P, True, coordinator_epoch=3) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    one.reopen()
    assert refusal(one.end, P, True, coordinator_epoch=3) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert one.end(P, True, coordinator_epoch=4) == 1


def test_a_higher_epoch_in_a_marker_starts_sequences_anew(one: Transactions) -> None:
    one.put(P, b"1", b"2")
    one.end(P, True, epoch=1, version=2)
    assert refusal(one.put, P, sequence=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(one.put, P, sequence=2, epoch=1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert one.put(P, epoch=1) == 3


def test_the_same_epoch_in_a_marker_leaves_sequences_as_they_are(one: Transactions) -> None:
    one.put(P, b"1", b"2")
    one.end(P, True)
    assert refusal(one.put, P, sequence=0) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert one.put(P, sequence=2) == 3


def test_a_marker_makes_its_producer_known(one: Transactions) -> None:
    one.now_ms += 5
    one.end(P, False, epoch=3, coordinator_epoch=8)
    assert one.log.active_producers() == [ActiveProducer(P, 3, -1, NOW_MS + 5, 8, -1)]
    assert refusal(one.put, P, epoch=3, sequence=4) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert len(one.log.aborted) == 0


# --- the last stable offset ---------------------------------------------------------------------------------


def test_a_transaction_holds_the_last_stable_offset_back_until_its_marker_is_visible(
    one: Transactions,
) -> None:
    assert one.stable == 0
    one.put(Q, transactional=False)
    one.put(P, b"1", b"2")
    one.put(Q, transactional=False)
    assert (one.stable, one.log.high_watermark) == (1, 4)
    one.end(P, True, commit=False)
    assert (one.stable, one.log.high_watermark) == (1, 4)
    one.log.commit()
    assert (one.stable, one.log.high_watermark) == (5, 5)


def test_it_jumps_to_the_next_that_is_open(one: Transactions) -> None:
    one.put(P)
    one.put(Q)
    one.put(P)
    one.end(Q, True)
    assert one.stable == 0
    one.put(Q)
    one.end(P, False)
    assert one.stable == 4
    one.end(Q, False)
    assert one.stable == one.log.high_watermark == 7


def test_readers_of_committed_records_see_what_is_below_it(one: Transactions) -> None:
    one.put(Q, b"plain", transactional=False)
    one.put(P, b"first")
    one.put(Q, b"behind", transactional=False)
    assert one.committed() == [b"plain"]
    for offset in (1, 2, 3):
        assert one.committed(offset) == []
    assert refusal(one.committed, 4) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert len(read_records(one.log.read(0, 1 << 20, first_may_exceed=True))) == 3
    one.end(P, True)
    assert one.committed() == [b"plain", b"first", b"behind"]


def test_offsets_are_listed_up_to_it(one: Transactions) -> None:
    one.put(Q, transactional=False, timestamps=[1_000])
    one.put(P, timestamps=[3_000])

    def listed(timestamp: int) -> Listed:
        return one.log.list_offset(timestamp, read_committed=True)

    assert listed(ListTimestamp.LATEST) == Listed(1, -1, 1)
    assert listed(ListTimestamp.EARLIEST) == Listed(0, -1, 1)
    assert listed(500) == Listed(0, 1_000, 1)
    assert listed(2_000) == listed(ListTimestamp.MAX_TIMESTAMP) == NOTHING_LISTED
    assert one.log.list_offset(2_000) == Listed(1, 3_000, 1)
    one.now_ms = 2_000
    one.end(P, True)
    assert listed(2_000) == listed(ListTimestamp.MAX_TIMESTAMP) == Listed(1, 3_000, 1)


# --- aborted transactions -----------------------------------------------------------------------------------


def test_aborted_transactions_are_told_of_wherever_a_fetch_begins(one: Transactions) -> None:
    one.put(P, b"a")
    one.put(Q, b"b")
    one.put(P, b"c")
    one.put(Q, b"d")
    one.end(P, False)
    one.end(Q, True)
    one.put(P, b"e")
    one.end(P, True)
    assert one.committed() == [b"b", b"d", b"e"]
    assert one.committed(2) == [b"d", b"e"]
    assert [tuple(each) for each in one.log.read_committed(2, 1 << 20, first_may_exceed=True)[1]] == [
        (P, 0, 4)
    ]
    assert one.log.read_committed(5, 1 << 20, first_may_exceed=True)[1] == []


def test_only_those_among_what_is_returned_are_told(one: Transactions) -> None:
    for producer in range(20, 30):
        one.put(producer)
        one.end(producer, False)
    found, aborted = one.log.read_committed(4, 1, first_may_exceed=True)
    assert [header.base_offset for _, header in record_batch.batches(bytes(found))] == [4]
    assert [tuple(each) for each in aborted] == [(22, 4, 5)]


def test_an_abort_without_records_has_no_entry(one: Transactions) -> None:
    one.end(P, False)
    one.put(P)
    one.end(P, True)
    assert len(one.log.aborted) == 0


@each("seed", range(8))
def test_any_course_of_transactions_is_read_as_it_went(seed: int) -> None:
    """Against a model that knows the outcome of each transaction; the log is reopened and cut now and
    then."""
    draw = random.Random(seed)
    one = Transactions(internal_segment_bytes="700")
    written: list[tuple[int, bytes, list[bool | None]]] = []  # offset, value, the fate of its transaction
    fates: dict[int, list[bool | None]] = {}
    begun: dict[int, int] = {}
    epochs = dict.fromkeys(range(P, P + 4), 0)
    for number in range(120):
        producer = draw.randrange(P, P + 4)
        value = b"%d" % number
        match draw.randrange(12):
            case 0 | 1 if producer not in fates:
                written.append((one.put(1, value, transactional=False), value, [True]))
            case 2 | 3 | 4 if producer in fates:
                (fate,) = [fates.pop(producer)]
                del begun[producer]
                fate[0] = draw.random() < 0.5
                raised = draw.random() < 0.5
                epochs[producer] += raised
                one.end(producer, fate[0], epoch=epochs[producer], version=2 if raised else 0)
            case 5:
                one.reopen()
            case 6 if draw.random() < 0.3:
                before = draw.randint(one.log.start_offset, one.stable)
                one.log.delete_records(before)
            case _:
                fate = fates.setdefault(producer, [None])
                offset = one.put(producer, value, epoch=epochs[producer])
                begun.setdefault(producer, offset)
                written.append((offset, value, fate))
        start = one.log.start_offset
        stable = max(min(begun.values(), default=one.log.high_watermark), start)
        assert one.stable == stable
        expected = [(at, value) for at, value, fate in written if fate[0] and start <= at < stable]
        offset, seen = draw.randint(start, stable), list[bytes | None]()
        expected = [value for at, value in expected if at >= offset]  # type: ignore[misc]
        bytes_max = draw.choice([1, 300, 1 << 20])
        while offset < stable:
            found, _ = one.log.read_committed(offset, bytes_max, first_may_exceed=True)
            seen += one.committed(offset, bytes_max)
            offset = record_batch.end_of(found)
        assert seen == expected


# --- restarts -----------------------------------------------------------------------------------------------


def described(one: Transactions) -> Any:
    return one.log.active_producers(), one.stable, list(one.log.aborted)


def test_a_restart_finds_it_all(one: Transactions) -> None:
    one.put(Q, transactional=False)
    one.put(P)
    one.end(P, False, epoch=1, coordinator_epoch=7, version=2)
    one.put(P, epoch=1)
    one.put(Q)
    before = described(one)
    assert before[1] == 3
    one.reopen()  # from the log alone: it was not closed
    assert described(one) == before
    one.log.close()
    one.reopen()
    assert described(one) == before
    for _ in range(2):
        one.log.segments.roll()
        one.log.commit()
        one.log.seal()
        one.reopen()
        assert described(one) == before
    one.end(P, False, epoch=1, coordinator_epoch=7)
    one.end(Q, True)
    assert one.stable == one.log.high_watermark


def test_how_long_one_is_open_is_told_by_the_clock_of_the_broker(one: Transactions) -> None:
    def began() -> tuple[int | None, int]:
        held = one.log.held_back()
        assert held is not None
        return held.oldest.began_ms, held.oldest.open_since_ms

    one.put(1, timestamps=[NOW_MS - 5_000])
    one.now_ms += 1_000
    one.put(1, timestamps=[NOW_MS - 4_000])
    assert began() == (NOW_MS - 5_000, NOW_MS)
    one.now_ms += 1_000
    one.reopen()
    assert began() == (NOW_MS - 5_000, NOW_MS + 2_000)


@pytest.mark.files
def test_a_snapshot_from_before_transactions_is_read() -> None:
    one = Transactions()
    one.put(P, b"1", b"2", transactional=False)
    one.log.close()
    name = f"{2:020d}.snapshot"
    assert one.folder.load(name) is not None
    producer = b"\x00" * 7 + b"\x09" + b"\x00\x00" + NOW_MS.to_bytes(8, "big") + b"\x01"
    written = b"\x00" * 4 + b"\x00\x00\x00\x01" + b"\x00" * 8 + b"\x00\x00\x00\x01"
    epochs = b"\x00\x00\x00\x01" + b"\x00\x00\x00\x01" + b"\x00" * 8
    body = b"\x00\x00\x00\x01" + producer + written + epochs
    one.folder.store(name, google_crc32c.value(body).to_bytes(4, "big") + body)
    one.reopen()
    assert one.log.active_producers() == [ActiveProducer(P, 0, 1, NOW_MS, -1, -1)]
    assert one.put(P, transactional=False, sequence=2) == 2


def test_an_open_transaction_keeps_its_producer_known(one: Transactions) -> None:
    one.put(P)
    assert one.log.producers.expire(NOW_MS + 1) == 0
    one.end(P, True)
    assert one.log.producers.expire(NOW_MS + 1) == 1


def test_snapshots_of_open_transactions_keep_their_order() -> None:
    one = Transactions()
    one.put(Q)
    one.put(P)
    again = Producers()
    again.restore(one.log.producers.snapshot())
    assert again.first_undecided == 0
    assert again.active() == one.log.active_producers()


# --- the log start ------------------------------------------------------------------------------------------


def test_the_log_start_may_pass_an_open_transaction(one: Transactions) -> None:
    one.put(P)
    one.put(P)
    one.put(Q, transactional=False)
    one.log.delete_records(2)
    for _ in range(2):
        assert (one.log.start_offset, one.stable, one.log.high_watermark) == (2, 2, 3)
        assert one.committed(2) == []
        assert one.log.list_offset(ListTimestamp.LATEST, read_committed=True).offset == 2
        assert one.log.active_producers()[0].transaction_start == 0
        one.reopen()
    one.end(P, False)
    assert one.stable == 4
    assert [tuple(each) for each in one.log.aborted] == [(P, 0, 3)]


def test_retention_takes_aborted_transactions_along() -> None:
    one = Transactions(retention_ms="1000")
    one.put(P)
    one.end(P, False)
    one.put(Q)
    one.log.segments.roll()
    one.log.commit()
    one.put(P)
    one.now_ms += 10_000
    one.end(P, False)
    assert expire(one.log, one.now_ms) == 1
    assert [tuple(each) for each in one.log.aborted] == [(P, 3, 4)]
    assert (one.log.start_offset, one.stable) == (3, 3)
    assert [each.transaction_start for each in one.log.active_producers()] == [-1, 2]


@pytest.mark.files
def test_what_a_crash_leaves_of_expired_records_stays_known_as_aborted() -> None:
    left: list[MemoryFolder] = []

    class Folder(MemoryFolder):
        def remove(self, name: str) -> None:
            if name.endswith(".log"):
                one.log.segments.note_derived()  # as upkeep may at any time
                left.append(self.copy())
            super().remove(name)

    one = Transactions(Folder(), retention_ms="1000")
    one.put(P)
    one.end(P, False)
    one.log.segments.roll()
    one.put(Q)
    one.now_ms += 10_000
    one.end(Q, True)
    assert expire(one.log, one.now_ms) == 1
    (crashed,) = left
    again = Transactions(crashed)
    assert again.log.start_offset == 0
    assert [tuple(each) for each in again.log.aborted] == [(P, 0, 1)]


@pytest.mark.files
def test_a_delete_that_deletes_nothing_forgets_no_aborted_transaction_whose_file_is_still_there() -> None:
    class StuckFolder(MemoryFolder):
        def remove(self, name: str) -> None:
            if name.endswith(".log"):
                raise PermissionError(name)
            super().remove(name)

    one = Transactions(StuckFolder(), retention_ms="1000")
    one.put(P)
    one.end(P, False)
    one.log.segments.roll()
    one.put(Q)
    one.now_ms += 10_000
    one.end(Q, True)
    with pytest.raises(PermissionError):
        expire(one.log, one.now_ms)
    assert one.log.delete_records(one.log.start_offset) == 2
    one.put(Q)
    one.log.close()
    one.reopen()
    assert one.log.start_offset == 0
    assert [tuple(each) for each in one.log.aborted] == [(P, 0, 1)]


# --- compaction ---------------------------------------------------------------------------------------------


def compacted_log(**configs: str) -> Transactions:
    return Transactions(cleanup_policy="compact", min_cleanable_dirty_ratio="0", **configs)


@pytest.mark.files
def test_transactions_whose_markers_may_be_lost_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(Logger, "error", lambda _, event, **fields: said.append(fields))
    one = Transactions(MemoryFolder())
    for producer in (P, Q, P + 2):
        one.put(producer)
    end_bytes = one.log.segments.size
    for producer in (P, Q):
        one.end(producer, committed=False)
    one.log.close()
    one.folder.remove("00000000000000000000.index")
    one.folder.open("00000000000000000000.log").truncate(end_bytes)  # as a power cut may leave it
    log = one.reopen()
    report_recovery(log)
    (missing,) = said
    assert (missing["end_offset"], missing["known_end"], missing["open_transactions"]) == (3, 5, 3)
    assert missing["oldest"][:2] == [f"producer id {P} from offset 0", f"producer id {Q} from offset 1"]


def close_segment(one: Transactions) -> None:
    one.log.segments.roll()
    one.log.commit()
    one.log.seal()


def test_compaction_stops_at_the_last_stable_offset() -> None:
    one = compacted_log()
    one.put(Q, b"1", keys=[b"k"], transactional=False)
    close_segment(one)
    one.put(P, b"2", keys=[b"k"])
    one.put(Q, b"3", keys=[b"k"], transactional=False)
    close_segment(one)
    assert compact(one.log, NOW_MS)
    assert [record.offset for record in one.records()] == [0, 1, 2]
    one.end(P, True)
    assert compact(one.log, NOW_MS)
    assert one.live() == {b"k": b"3", b"\x00\x00\x00\x01": b"\x00\x00\x00\x00\x00\x00"}
    assert [record.offset for record in one.records()] == [2, 3]


def test_after_compaction_readers_of_committed_records_get_to_the_last_stable_offset() -> None:
    one = compacted_log()
    one.put(Q, b"1", keys=[b"k"], transactional=False)
    one.put(P, b"2", keys=[b"l"])
    close_segment(one)
    one.put(Q, b"3", keys=[b"m"])
    one.end(P, False)
    one.put(P, b"4", keys=[b"n"], transactional=False)
    assert compact(one.log, NOW_MS)
    # The records of P were aborted, and later ones have taken over its sequence.
    assert kinds(one)[:3] == [(0, "records"), (1, "empty, of records"), (2, "records")]
    found, _ = one.log.read_committed(0, 1 << 20, first_may_exceed=True)
    assert record_batch.end_of(bytes(found)) == one.stable == 2
    one.end(Q, True)
    close_segment(one)
    assert compact(one.log, NOW_MS)
    assert [offset for offset, _ in kinds(one)] == [0, 2, 3, 4, 5]


def test_aborted_records_take_no_others_along() -> None:
    one = compacted_log()
    one.put(Q, b"1", keys=[b"k"], transactional=False)
    one.put(P, b"2", keys=[b"k"])
    one.put(P, b"2", keys=[b"l"])
    one.end(P, False)
    close_segment(one)
    one.put(Q, b"1", keys=[b"z"], transactional=False)
    assert compact(one.log, NOW_MS)
    found = one.log.read(0, 1 << 20, first_may_exceed=True)
    headers = [header for _, header in record_batch.batches(bytes(found))]
    # The producer's last batch is left, without records, to keep its sequence; the marker is left too.
    assert [(each.base_offset, each.record_count, each.is_control) for each in headers] == [
        (0, 1, False),
        (2, 0, False),
        (3, 1, True),
    ]
    assert one.committed() == [
        b"1",
    ]
    one.reopen()
    assert one.put(P, keys=[b"k"]) == 5


def test_markers_of_transactions_that_have_records_stay() -> None:
    one = compacted_log()
    one.put(P, b"1", keys=[b"k"])
    one.end(P, True)
    one.put(P, b"2", keys=[b"l"])
    one.end(P, False)
    one.put(P, b"3", keys=[b"m"])
    one.end(P, True)
    close_segment(one)
    one.put(Q, b"4", keys=[b"z"], transactional=False)
    assert compact(one.log, NOW_MS)
    for _ in range(2):
        assert one.committed() == [b"1", b"3"]
        one.reopen()


def kinds(one: Transactions) -> list[tuple[int, str]]:
    """Offset and kind of each batch."""
    found = list[tuple[int, str]]()
    for header in (stored.header for stored in one.log.segments.batches(0)):
        kind = "marker" if header.is_control else "records"
        if not header.record_count:
            kind = f"empty, of {kind}"
        elif header.delete_horizon_ms is not None:
            kind += f" until {header.delete_horizon_ms - NOW_MS}"
        found.append((header.base_offset, kind))
    return found


def clean(one: Transactions, at_ms: int) -> None:
    """Clean the whole log. The record that makes this due is gone after the next pass."""
    one.append(b"", keys=[b"due"])
    close_segment(one)
    assert compact(one.log, NOW_MS + at_ms)


def test_a_marker_goes_once_its_transaction_has_been_gone_for_some_time() -> None:
    one = compacted_log(delete_retention_ms="1000")
    one.put(P, b"1", keys=[b"k"])
    one.put(Q, b"2", keys=[b"k"])
    one.end(P, True)
    one.end(Q, False)
    one.put(P, b"3", keys=[b"l"], transactional=False)
    one.put(Q, b"4", keys=[b"k"], transactional=False)
    clean(one, 0)
    assert kinds(one) == [(2, "marker"), (3, "marker"), (4, "records"), (5, "records"), (6, "records")]
    assert len(one.log.aborted) == 1
    clean(one, 10)
    until = "marker until 1010"
    assert kinds(one)[:3] == [(2, until), (3, until), (4, "records")]
    assert len(one.log.aborted) == 0
    clean(one, 1_009)
    assert [kind for _, kind in kinds(one)[:2]] == [until, until]
    one.reopen()
    clean(one, 1_010)
    assert kinds(one)[0] == (4, "records")
    assert one.committed(0) == [b"3", b"4", b""]


def test_a_marker_stays_without_its_record_while_it_alone_tells_of_its_producer() -> None:
    one = compacted_log(delete_retention_ms="0")
    one.put(P, b"1", keys=[b"k"])
    one.end(P, False, epoch=4, version=2)
    for number in range(3):
        clean(one, number)
    assert kinds(one)[0] == (1, "empty, of marker")
    if one.rows is None:
        for name in one.folder.names():
            if not name.endswith(".log"):
                one.folder.remove(name)  # only the batches are left to learn from
    one.reopen()
    assert [(each.producer_id, each.epoch) for each in one.log.active_producers()] == [(P, 4)]
    assert refusal(one.put, P, epoch=3, keys=[b"k"]) == ErrorCode.INVALID_PRODUCER_EPOCH
    one.put(P, b"2", epoch=4, keys=[b"k"])
    one.end(P, True, epoch=5, version=2)
    clean(one, 3)
    assert kinds(one)[0][1] == "records"


def test_a_batch_without_records_goes_with_what_it_told() -> None:
    one = compacted_log()
    one.put(P, b"1", keys=[b"k"], transactional=False)
    one.append(b"2", keys=[b"k"])
    clean(one, 0)
    assert kinds(one)[0] == (0, "empty, of records")
    one.put(P, b"3", keys=[b"l"], transactional=False)
    clean(one, 1)
    assert kinds(one)[0] == (1, "records")


def test_a_marker_that_never_goes_has_the_last_time_there_is() -> None:
    one = compacted_log(delete_retention_ms=str(2**63 - 1))
    one.end(P, True)
    clean(one, 0)
    assert kinds(one)[0] == (0, f"marker until {2**63 - 1 - NOW_MS}")
    clean(one, 1)


@pytest.mark.interpreted
def test_who_reads_while_markers_go_is_not_told_of_their_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = compacted_log(delete_retention_ms="0")
    one.put(P, b"1", keys=[b"k"])
    one.end(P, False)
    one.put(P, b"2", keys=[b"l"])
    one.end(P, True)
    clean(one, 0)
    read = one.log._read

    def clean_and_read(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(one.log, "_read", read)
        clean(one, 1)
        clean(one, 2)
        return read(*args, **kwargs)

    monkeypatch.setattr(one.log, "_read", clean_and_read)
    found = one.committed()
    assert kinds(one)[0] == (2, "records")
    assert found[0] == b"2"


# --- kill -9 ------------------------------------------------------------------------------------------------

_PROGRAM = """
import sys
from muster.coordinator.storage.files import DiskFolder
from tests.topics.test_transactions import Transactions, P

one = Transactions(DiskFolder(sys.argv[1]), internal_segment_bytes="4000")
number = 0
while True:
    one.put(P, b"%d" % number, b"x" * 100)
    end = one.end(P, number % 3 == 0)
    one.put(P, b"open")
    print(number, end, flush=True)
    one.end(P, True)
    number += 1
"""


@pytest.mark.files
def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    rounds = killed_after(200, _PROGRAM, tmp_path / "log")
    one = Transactions(DiskFolder(tmp_path / "log"), internal_segment_bytes="4000")
    per_round = 5
    aborted = [tuple(each) for each in one.log.aborted]
    expected = [(P, per_round * n, per_round * n + 2) for n in range(rounds) if n % 3]
    assert aborted[: len(expected)] == expected
    assert len(aborted) <= len(expected) + 1
    open_from = one.log.active_producers()[0].transaction_start
    assert one.stable == (one.log.high_watermark if open_from < 0 else open_from)
    values, offset = list[bytes | None](), 0
    while offset < one.stable:
        values += one.committed(offset)
        offset = record_batch.end_of(one.log.read_committed(offset, 1 << 20, first_may_exceed=True)[0])
    kept = [value for value in values if value not in (b"open", b"x" * 100)]
    assert kept[: (rounds + 2) // 3] == [b"%d" % n for n in range(0, rounds, 3)]
