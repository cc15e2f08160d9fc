"""The checker of transactions itself: sound histories pass, and each planted violation is found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import pytest

from muster.protocol.record_batch import ControlType, Record, build
from tests.faults import batches
from tests.faults.batches import Violation
from tests.faults.checker import Committed
from tests.faults.transactions import checker
from tests.faults.transactions.checker import UNSTABLE, Aborted, Log
from tests.faults.transactions.history import Batch, Place, Producer, Slot, Transaction, Transactional
from tests.support.control_batches import build_control
from tests.support.each import each

HERE: Final[Place] = ("orders", 0)
THERE: Final[Place] = ("orders", 1)
SLOT: Final = Slot("g", "source", 0)
NO_OFFSET: Final = Committed(-1, "")


def transactional(name: str, producer_id: int, *how: str) -> Transactional:
    """A transaction for each word; two records here, one there, and an offset."""
    history = Transactional(name)
    for word in how:
        transaction = history.begin(Producer(producer_id, len(history.transactions)))
        values = [history.value(transaction, index) for index in range(3)]
        transaction.batches += [
            Batch(HERE, 0, (values[0],), acknowledged=True),
            Batch(HERE, 1, (values[1],), acknowledged=True),
            Batch(THERE, 0, (values[2],), acknowledged=True),
        ]
        transaction.slots.append(SLOT)
        transaction.commits = {"open": None, "fenced": True, "committing": True, "committed": True}.get(
            word, False
        )
        transaction.ended = word in ("committed", "aborted")
        transaction.fenced = word == "fenced"
    return history


def known() -> dict[str, Transactional]:
    return {
        "one": transactional("one", 1, "committed", "aborted", "committing"),
        "two": transactional("two", 2, "committed", "fenced"),
        "three": transactional("three", 3, "aborting"),
        "four": transactional("four", 4, "open"),
    }


def shown_of(*transactions: Transaction) -> dict[Place, list[bytes]]:
    """What readers see if these are committed, one after the other."""
    return {
        place: [value for each in transactions for value in each.values(place)] for place in (HERE, THERE)
    }


def due(histories: dict[str, Transactional]) -> list[Transaction]:
    return [histories["one"].transactions[0], histories["two"].transactions[0]]


# --- what is shown at any moment ----------------------------------------------------------------------------


@each("name, number", [("one", 1), ("one", 3), ("two", 1)])
def test_what_is_to_be_committed_may_be_shown_and_stays(name: str, number: int) -> None:
    histories = known()
    transaction = histories[name].transactions[number - 1]
    checker.check_shown(HERE, transaction.values(HERE), histories)
    checker.check_whole(histories, shown_of(*due(histories), *([] if number == 1 else [transaction])))
    with pytest.raises(Violation, match="is lost"):
        checker.check_whole(histories, {HERE: [], THERE: []})


@each(
    "name, number, says",
    [
        ("one", 2, "was to be aborted"),
        ("two", 2, "is of a producer that was fenced"),
        ("three", 1, "was to be aborted"),
        ("four", 1, "is open"),
    ],
)
def test_what_is_aborted_or_open_is_not_shown(name: str, number: int, says: str) -> None:
    histories = known()
    history = histories[name]
    transaction = history.transactions[number - 1]
    with pytest.raises(Violation, match=f"is shown, and its transaction {says}"):
        checker.check_shown(HERE, transaction.values(HERE), histories)
    found = Committed(number, transaction.metadata)
    with pytest.raises(Violation, match=f"offset {number} is shown, and {says}"):
        checker.check_offset_shown(SLOT, found, history)
    with pytest.raises(Violation, match=f"offset {number} is shown, and {says}"):
        checker.check_stable_offset_shown(SLOT, 0, found, history)
    with pytest.raises(Violation, match=f"transaction {number} of {name} {says}, and is shown"):
        checker.check_whole(histories, shown_of(*due(histories), transaction))


@each(
    "place, value, says",
    [
        (HERE, b"noise", "which nobody sent"),
        (HERE, b"five 1 0", "which nobody sent"),
        (HERE, b"one 4 0", "which nobody sent"),
        (THERE, b"one 1 0", "which was not sent there"),
        (HERE, b"one 1 7", "which was not sent there"),
        (HERE, b"two 2 9", "whose producer was fenced before it was sent"),
    ],
)
def test_a_value_that_is_nobodys_or_of_a_fenced_producer_is_found(
    place: Place, value: bytes, says: str
) -> None:
    histories = known()
    histories["two"].transactions[1].late.add(b"two 2 9")
    with pytest.raises(Violation, match=says):
        checker.check_shown(place, [value], histories)


def test_what_was_settled_stays() -> None:
    histories = known()
    for number, settled in ((1, True), (2, False), (3, False)):
        histories["one"].transactions[number - 1].settled = settled
    checker.check_whole(histories, shown_of(*due(histories)))
    with pytest.raises(Violation, match="transaction 3 of one was aborted by an earlier life, and is shown"):
        checker.check_whole(histories, shown_of(*due(histories), histories["one"].transactions[2]))
    with pytest.raises(Violation, match="transaction 1 of one was there in an earlier life, and is lost"):
        checker.check_whole(histories, shown_of(histories["two"].transactions[0]))


# --- wholly or not at all -----------------------------------------------------------------------------------


def test_a_transaction_without_an_answer_may_be_there_or_not() -> None:
    histories = known()
    without = checker.check_whole(histories, shown_of(*due(histories)))
    assert [each.name for each in without] == ["transaction 1 of one", "transaction 1 of two"]
    unanswered = histories["one"].transactions[2]
    assert unanswered in checker.check_whole(histories, shown_of(*due(histories), unanswered))


@each(
    "harm, says",
    [
        (lambda shown: shown[HERE].remove(b"one 1 1"), "transaction 1 of one is shown in part: orders-0"),
        (lambda shown: shown[THERE].remove(b"one 1 2"), "transaction 1 of one is shown in part: orders-1"),
        (lambda shown: shown[HERE].append(b"one 3 0"), "transaction 3 of one is shown in part"),
        (lambda shown: shown[HERE].append(b"two 1 1"), "transaction 1 of two is shown in part"),
        (lambda shown: shown[HERE].reverse(), "is shown in part"),
        (lambda shown: shown[HERE].insert(0, b"one 3 0"), "'one 1 0' is shown behind transaction 3"),
        (
            lambda shown: [each.clear() for each in shown.values()],
            "was acknowledged as committed, and is lost",
        ),
    ],
)
def test_half_a_transaction_is_found(harm: Callable[[dict[Place, list[bytes]]], object], says: str) -> None:
    histories = known()
    shown = shown_of(*due(histories))
    harm(shown)
    with pytest.raises(Violation, match=says):
        checker.check_whole(histories, shown)


# --- offsets ------------------------------------------------------------------------------------------------


@each("there, number", [({1}, 1), ({1, 3}, 3), (set(), -1)])
def test_the_offset_is_that_of_the_last_transaction_that_is_there(there: set[int], number: int) -> None:
    history = known()["one"]
    found = Committed(number, f"one {number}") if number > 0 else NO_OFFSET
    checker.check_offset(SLOT, 0, found, history, there)


@each(
    "code, found, there, says",
    [
        (UNSTABLE, NO_OFFSET, {1}, "at rest its stable offset is answered 88"),
        (0, NO_OFFSET, {1}, "that of transaction 1 of one is due"),
        (0, Committed(1, "one 1"), {1, 3}, "that of transaction 3 of one is due"),
        (0, Committed(3, "one 3"), {1}, "that of transaction 1 of one is due"),
        (0, Committed(1, "one 1"), set(), "and none is due"),
        (0, Committed(1, "one 3"), {1}, "which nobody sent"),
        (0, Committed(9, "one 9"), {1}, "which nobody sent"),
    ],
)
def test_an_offset_that_does_not_go_with_the_records_is_found(
    code: int, found: Committed, there: set[int], says: str
) -> None:
    with pytest.raises(Violation, match=says):
        checker.check_offset(SLOT, code, found, known()["one"], there)


def test_a_pending_offset_is_told_of_and_not_shown() -> None:
    history = known()["four"]
    checker.check_stable_offset_shown(SLOT, UNSTABLE, NO_OFFSET, history)
    checker.check_offset_shown(SLOT, NO_OFFSET, history)
    with pytest.raises(Violation, match="answered 88"):
        checker.check_stable_offset_shown(SLOT, UNSTABLE, Committed(1, "four 1"), history)
    with pytest.raises(Violation, match="answered 16"):
        checker.check_stable_offset_shown(SLOT, 16, NO_OFFSET, history)


def test_a_slot_that_the_transaction_did_not_commit_to_is_found() -> None:
    with pytest.raises(Violation, match="which nobody sent"):
        checker.check_offset_shown(Slot("h", "source", 0), Committed(1, "one 1"), known()["one"])


# --- logs ---------------------------------------------------------------------------------------------------


def numbered(found: Iterable[batches.Batch]) -> list[batches.Batch]:
    """The batches, renumbered with consecutive offsets."""
    base, again = 0, []
    for batch in found:
        again.append(batch._replace(base_offset=base, next_offset=base + max(1, len(batch.values))))
        base = again[-1].next_offset
    return again


def records(transaction: Transaction) -> list[batches.Batch]:
    """Its records here."""
    return [
        batches.Batch(0, 0, 0, *transaction.producer, each.sequence, each.values, transactional=True)
        for each in transaction.batches
        if each.place == HERE
    ]


def marker(transaction: Transaction, *, commits: bool, raised: int = 1) -> batches.Batch:
    producer = transaction.producer
    return batches.Batch(
        0, 0, 0, producer.id, producer.epoch + raised, -1, (b"",), transactional=True, commits=commits
    )


def written(histories: dict[str, Transactional]) -> list[batches.Batch]:
    """The first transactions of one and two, interleaved, with an aborted one of three between them."""
    one, two, three = (histories[name].transactions[0] for name in ("one", "two", "three"))
    return numbered(
        [
            *records(one),
            *records(three),
            marker(three, commits=False),
            *records(two),
            marker(one, commits=True),
            marker(two, commits=True),
        ]
    )


def log_of(found: Sequence[batches.Batch], shown: Sequence[bytes]) -> Log:
    end = found[-1].next_offset if found else 0
    return Log(found, shown, end, end)


def test_a_sound_log_passes() -> None:
    histories = known()
    shown = [b"one 1 0", b"one 1 1", b"two 1 0", b"two 1 1"]
    found = written(histories)
    checker.check_log(HERE, log_of(found, shown), histories)
    assert checker.committed(found, [Aborted(3, 2)]) == shown


@each(
    "harm, says",
    [
        (lambda log: [log[0], *log[2:]], "offset 2: a hole, offset 1 is due"),
        (lambda log: numbered([log[0], *log]), "are duplicates"),
        (lambda log: numbered([*log, log[0]._replace(producer_epoch=9)]), "are duplicates"),
        (lambda log: numbered(log[:-1]), r"transactions of producers \[2\] are open"),
        (lambda log: numbered([log[7], *log[:7], log[8]]), "epoch 0 of producer 1 behind 1"),
        (lambda log: numbered([log[0], log[1]._replace(producer_epoch=1), *log[2:]]), "is stored as"),
        (lambda log: numbered([log[0]._replace(transactional=False), *log[1:]]), "outside a transaction"),
        (lambda log: numbered([log[0]._replace(values=(b"noise",)), *log[1:]]), "which nobody sent"),
        (lambda log: numbered([log[0]._replace(values=(b"one 1 9",)), *log[1:]]), "fenced before it was"),
        (lambda log: numbered([*log[:7], log[7]._replace(commits=False), log[8]]), "not what markers say"),
        (lambda log: numbered([*log[:4], log[4]._replace(commits=True), *log[5:]]), "not what markers say"),
    ],
)
def test_a_log_that_is_not_sound_is_found(
    harm: Callable[[list[batches.Batch]], list[batches.Batch]], says: str
) -> None:
    histories = known()
    histories["one"].transactions[0].late.add(b"one 1 9")
    shown = [b"one 1 0", b"one 1 1", b"two 1 0", b"two 1 1"]
    with pytest.raises(Violation, match=says):
        checker.check_log(HERE, log_of(harm(written(histories)), shown), histories)


def test_a_log_whose_stable_offset_does_not_reach_its_end_is_found() -> None:
    histories = known()
    found = written(histories)
    sound = log_of(found, checker.committed(found, [Aborted(3, 2)]))
    for harmed in (sound._replace(stable_offset=4), sound._replace(end_offset=12, stable_offset=12)):
        with pytest.raises(Violation, match="is said to end at"):
            checker.check_log(HERE, harmed, histories)


def test_aborted_transactions_that_a_fetch_does_not_tell_of_are_found() -> None:
    histories = known()
    found = written(histories)
    for told in ([], [Aborted(3, 2), Aborted(2, 5)]):
        with pytest.raises(Violation, match="what is shown is not what markers say"):
            checker.check_log(HERE, log_of(found, checker.committed(found, told)), histories)


# --- producers ----------------------------------------------------------------------------------------------


def test_a_producer_that_was_there_before_is_found() -> None:
    before = [Producer(7, 0), Producer(7, 2)]
    checker.check_producer([], Producer(7, 0))
    checker.check_producer(before, Producer(7, 3))
    checker.check_producer(before, Producer(8, 0))
    for producer in (Producer(7, 2), Producer(7, 1), Producer(-1, -1)):
        with pytest.raises(Violation, match="was named after"):
            checker.check_producer(before, producer)


def test_a_fenced_producer_that_is_let_go_on_is_found() -> None:
    fenced = known()["two"].transactions[1]
    for code in (47, 90):
        checker.check_fenced(fenced, code)
    for code in (0, 51):
        with pytest.raises(Violation, match=f"was fenced, and is answered {code}"):
            checker.check_fenced(fenced, code)


def test_a_transaction_that_does_not_come_to_an_end_is_found() -> None:
    checker.check_at_rest("one", "CompleteAbort")
    for state in ("Ongoing", "PrepareCommit", "PrepareAbort"):
        with pytest.raises(Violation, match=f"is {state}"):
            checker.check_at_rest("one", state)


# --- batches ------------------------------------------------------------------------------------------------


@each("kind, commits", [(ControlType.COMMIT, True), (ControlType.ABORT, False)])
def test_markers_are_read_without_muster(kind: ControlType, commits: bool) -> None:
    stored = build_control(kind, offset=7, timestamp=1, producer_id=5, producer_epoch=2, coordinator_epoch=1)
    (found,) = batches.read(stored, "orders-0")
    assert (found.commits, found.transactional) == (commits, True)
    assert (found.base_offset, found.producer_id, found.producer_epoch) == (7, 5, 2)


def test_records_of_transactions_are_told_from_others() -> None:
    for transactional in (True, False):
        stored = build(
            [Record(0, 1, None, b"a")],
            producer_id=1,
            producer_epoch=0,
            base_sequence=0,
            transactional=transactional,
        )
        (found,) = batches.read(stored, "orders-0")
        assert (found.transactional, found.commits) == (transactional, None)
