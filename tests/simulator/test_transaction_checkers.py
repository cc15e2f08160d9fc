"""Each checker of transactions on its own: what it accepts and what it rejects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest

from muster.protocol.api import ApiKey
from muster.protocol.control_batch import EndMarker, build_marker
from muster.protocol.messages.coordinator_records import OffsetCommitValue
from muster.protocol.messages.offsets import OffsetFetchRequest, OffsetFetchResponse
from muster.protocol.record_batch import Record, assign, build
from tests.simulator.checkers import Exchange, Violation
from tests.simulator.ledger import INPUT, Aborted, Book, Entry, Grant, Source, Told, committed, entries
from tests.simulator.member import Asked
from tests.simulator.reader import Reader, Whole
from tests.simulator.test_checkers import FakeLink
from tests.simulator.transaction_checkers import Audit, OffsetsWithTransactions, OneProducer, ReadCommitted

SOURCE = Source("g", (INPUT, 0))
A = (7, 0)


class FakeReader:
    """The part of a reader that the checkers look at: how far it has read."""

    def __init__(self, position: int = 0) -> None:
        self.positions = {0: position, 1: position}


class Ledger:
    """Two partitions at the end of a run, and what producers know."""

    def __init__(self) -> None:
        self.book = Book()
        self.seen = ReadCommitted(self.book)
        self.audit = Audit(self.book, self.seen)
        self.entries: dict[int, list[Entry]] = {0: [], 1: []}
        self.shown: dict[int, list[tuple[int, str]]] = {0: [], 1: []}

    def transact(
        self,
        name: str,
        *partitions: int,
        commits: bool | None = True,
        done: bool = True,
        source: Source | None = None,
        offset: int | None = None,
    ) -> Told:
        """A transaction with one acknowledged record in each partition."""
        told = Told(name, "id", A, source, offset=offset, commits=commits, done=done)
        self.book.begun(told)
        for number in partitions:
            self.book.acknowledged(told, number, [f"{name}|in{number}"])
        return told

    def write(self, partition: int, value: str, producing: tuple[int, int] = A) -> None:
        self.entries[partition].append(Entry(len(self.entries[partition]), producing, value))

    def mark(self, partition: int, *, commits: bool = True, producing: tuple[int, int] = A) -> None:
        self.entries[partition].append(Entry(len(self.entries[partition]), producing, None, commits))

    def show(self, partition: int, *offsets: int) -> None:
        """Show records to a reader of committed records."""
        for offset in offsets:
            self.shown[partition].append((offset, self.entries[partition][offset].value or ""))

    def look(self, offsets: dict[Source, int] | None = None, *, read: int = 0) -> None:
        wholes = {
            number: Whole(found, self.shown[number], len(found), len(found))
            for number, found in self.entries.items()
        }
        self.audit.look(wholes, cast("list[Reader]", [FakeReader(read)]), offsets or {})


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


# --- what readers see -------------------------------------------------------------------------------------


def batch(offset: int, producer_id: int, *values: str) -> bytes:
    contents = [Record(number, 0, None, value.encode()) for number, value in enumerate(values)]
    return _at(offset, build(contents, producer_id=producer_id, producer_epoch=0, transactional=True))


def marker(offset: int, producer_id: int, *, commits: bool) -> bytes:
    return _at(offset, build_marker(producer_id, 1, EndMarker(commits, 3), 0))


def _at(offset: int, built: bytes) -> bytes:
    moved = bytearray(built)
    assign(moved, 0, offset, 5)
    return bytes(moved)


def test_a_log_is_read_as_its_bytes_say() -> None:
    found, next_offset = entries(batch(4, 7, "a", "b") + marker(6, 7, commits=True), 4)
    assert found == [
        Entry(4, (7, 0), "a", None, 5),
        Entry(5, (7, 0), "b", None, 5),
        Entry(6, (7, 1), None, True, 5),
    ]
    assert next_offset == 7


def test_a_reader_leaves_out_what_it_is_told_of_as_aborted() -> None:
    data = batch(0, 7, "a") + batch(1, 8, "b") + marker(2, 7, commits=False) + batch(3, 7, "c")
    found, _ = entries(data, 0)
    assert committed(found, [Aborted(7, 0)], 0) == [(1, "b"), (3, "c")]
    assert committed(found, [Aborted(7, 0), Aborted(8, 1)], 0) == [(3, "c")]
    assert committed(found, [], 1) == [(1, "b"), (3, "c")]


# --- read committed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("commits", [False, None])
def test_a_record_is_not_shown_before_its_commit_was_asked_for(ledger: Ledger, commits: bool | None) -> None:
    told = ledger.transact("t", 0, commits=commits)
    with pytest.raises(Violation, match=r"sees t.in0"):
        ledger.seen.seen(0, 3, "t|in0")
    told.commits = True
    ledger.seen.seen(0, 3, "t|in0")


def test_a_record_of_nobody_is_not_shown(ledger: Ledger) -> None:
    with pytest.raises(Violation, match="no producer knows of"):
        ledger.seen.seen(0, 3, "t|in0")


def test_an_offset_has_one_record(ledger: Ledger) -> None:
    ledger.transact("t", 0, 1)
    ledger.seen.seen(0, 3, "t|in0")
    ledger.seen.seen(0, 3, "t|in0")
    with pytest.raises(Violation, match=r"and had t.in0"):
        ledger.seen.seen(0, 3, "t|in1")


# --- committed offsets ------------------------------------------------------------------------------------


def fetch(*, stable: bool = True) -> Exchange:
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequest.Group(group_id="g", topics=None)], require_stable=stable
    )
    return Exchange(Asked(ApiKey.OFFSET_FETCH, 8, 1, request), cast(Any, FakeLink()), 0.0)


def fetched(offset: int, metadata: str = "", *, error_code: int = 0) -> OffsetFetchResponse:
    Group = OffsetFetchResponse.Group
    partition = Group.Topics.Partitions(
        partition_index=0, committed_offset=offset, metadata=metadata, error_code=error_code
    )
    return OffsetFetchResponse(
        groups=[Group(group_id="g", topics=[Group.Topics(name=INPUT, partitions=[partition])])]
    )


def stored(offset: int, metadata: str) -> OffsetCommitValue:
    return OffsetCommitValue(offset=offset, metadata=metadata, commit_timestamp=0)


def test_an_offset_is_a_groups_once_its_commit_was_asked_for(ledger: Ledger) -> None:
    checker = OffsetsWithTransactions(ledger.book)
    told = ledger.transact("t", 0, commits=None, done=False, source=SOURCE, offset=5)
    for look in (
        lambda: checker.written("g", (INPUT, 0), stored(5, "t")),
        lambda: checker.replied(fetch(), fetched(5, "t")),
    ):
        told.commits = None
        with pytest.raises(Violation, match="of t, which has not been ended"):
            look()
        told.commits = True
        look()
    with pytest.raises(Violation, match="t has committed 5"):
        checker.written("g", (INPUT, 0), stored(6, "t"))
    with pytest.raises(Violation, match="stored"):
        checker.written("h", (INPUT, 0), stored(5, "t"))
    checker.written("g", ("orders", 0), stored(6, "anything"))


def test_a_stable_offset_is_none_of_before(ledger: Ledger) -> None:
    checker = OffsetsWithTransactions(ledger.book)
    ledger.transact("s", 0, source=SOURCE, offset=3)
    before = fetch()
    checker.asked(before)
    ledger.transact("t", 0, source=SOURCE, offset=5)
    checker.replied(before, fetched(3, "s"))
    for exchange, response in (
        (fetch(stable=False), fetched(3, "s")),
        (fetch(), fetched(-1, error_code=88)),
        (fetch(), fetched(5, "t")),
    ):
        checker.asked(exchange)
        checker.replied(exchange, response)
    after = fetch()
    checker.asked(after)
    with pytest.raises(Violation, match="after a transaction with 5 was committed"):
        checker.replied(after, fetched(3, "s"))


# --- one producer -----------------------------------------------------------------------------------------


def grants(book: Book, *given: tuple[str, int, float]) -> None:
    for client, epoch, at_s in given:
        book.granted("id", Grant(client, (7, epoch), at_s))


def test_an_epoch_is_given_once(ledger: Ledger) -> None:
    checker = OneProducer(ledger.book)
    grants(ledger.book, ("a", 0, 1.0), ("b", 1, 2.0))
    checker.look()
    grants(ledger.book, ("a", 1, 3.0))
    with pytest.raises(Violation, match="given twice"):
        checker.look()


def test_who_lost_the_id_commits_nothing_that_it_asks_for_afterwards(ledger: Ledger) -> None:
    checker = OneProducer(ledger.book)
    grants(ledger.book, ("a", 0, 1.0), ("b", 1, 2.0))
    told = ledger.transact("t", 0)
    told.ends_s = 1.5
    checker.look()
    told.ends_s = 2.5
    with pytest.raises(Violation, match="after b had the id"):
        checker.look()
    told.done = False
    checker.look()


# --- in the end -------------------------------------------------------------------------------------------


def test_all_of_a_transaction_is_committed(ledger: Ledger) -> None:
    ledger.transact("t", 0, 1, source=SOURCE, offset=2)
    for number in (0, 1):
        ledger.write(number, f"t|in{number}")
        ledger.mark(number)
        ledger.show(number, 0)
    ledger.look({SOURCE: 2})
    ledger.shown[1].clear()
    with pytest.raises(Violation, match=r"and not .*t.in1"):
        ledger.look({SOURCE: 2})


@pytest.mark.parametrize("done", [True, False])
def test_a_part_of_a_transaction_is_not_committed_alone(ledger: Ledger, done: bool) -> None:
    ledger.transact("t", 0, 1, done=done)
    ledger.write(0, "t|in0")
    ledger.mark(0)
    ledger.show(0, 0)
    ledger.write(1, "t|in1")
    ledger.mark(1, commits=False)
    with pytest.raises(Violation, match=r"in which .*t.in1.* was acknowledged"):
        ledger.look()


def test_what_was_committed_is_not_lost_and_what_nobody_knows_of_may_be(ledger: Ledger) -> None:
    told = ledger.transact("t", 0, done=False)
    ledger.look()
    told.done = True
    with pytest.raises(Violation, match=r"in which .*t.in0.* was acknowledged"):
        ledger.look()


def test_nothing_of_an_aborted_transaction_is_committed(ledger: Ledger) -> None:
    ledger.transact("t", 0, commits=False)
    ledger.write(0, "t|in0")
    ledger.mark(0)
    ledger.show(0, 0)
    with pytest.raises(Violation, match="of t, which was aborted"):
        ledger.look()


def test_nothing_is_committed_twice(ledger: Ledger) -> None:
    ledger.transact("t", 0)
    ledger.write(0, "t|in0")
    ledger.write(0, "t|in0")
    ledger.mark(0)
    ledger.show(0, 0, 1)
    with pytest.raises(Violation, match="in which"):
        ledger.look()


def test_a_reader_is_shown_no_aborted_record(ledger: Ledger) -> None:
    ledger.transact("t", 0, commits=False)
    ledger.write(0, "t|in0")
    ledger.mark(0, commits=False)
    ledger.look()
    ledger.show(0, 0)
    with pytest.raises(Violation, match=r"shown .*t.in0.*, which is not committed"):
        ledger.look()


@pytest.mark.parametrize("producing", [(7, 0), (7, 1)])
def test_an_old_epoch_writes_nothing_behind_a_newer_one(ledger: Ledger, producing: tuple[int, int]) -> None:
    ledger.write(0, "t|in0", (7, 1))
    ledger.mark(0, commits=False, producing=(7, 2))
    ledger.mark(0, commits=False, producing=producing)
    with pytest.raises(Violation, match="behind epoch 2"):
        ledger.look()


def test_whoever_read_meanwhile_was_shown_what_is_there(ledger: Ledger) -> None:
    ledger.transact("t", 0)
    ledger.write(0, "t|in0")
    ledger.mark(0)
    ledger.show(0, 0)
    ledger.look(read=0)
    with pytest.raises(Violation, match="was passed over"):
        ledger.look(read=2)
    ledger.seen.seen(0, 0, "t|in0")
    ledger.look(read=2)
    ledger.seen.seen(0, 1, "t|in0")
    with pytest.raises(Violation, match="shown at 1"):
        ledger.look(read=2)


@pytest.mark.parametrize(("offset", "moved"), [(1, [0, 1]), (2, [0]), (0, [1])])
def test_offsets_agree_with_records(ledger: Ledger, offset: int, moved: Iterable[int]) -> None:
    ledger.transact("t", *moved, source=SOURCE, offset=offset)
    for number in moved:
        ledger.write(number, f"t|in{number}")
        ledger.mark(number)
        ledger.show(number, 0)
    with pytest.raises(Violation, match=f"committed up to {offset}"):
        ledger.look({SOURCE: offset})


def test_only_an_epoch_that_a_partition_has_left_behind_is_passed() -> None:
    book = Book()
    book.acknowledged(Told("s", "id", (7, 0)), 0, ["s|0"])
    assert book.passed() == []
    book.acknowledged(Told("t", "id", (7, 2)), 1, ["t|0"])
    assert book.passed() == [((7, 1), 1)]
