"""The rules of an exactly-once writer: marks, the ledger, and what follows from them. Nothing runs here."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from typing import Final

import pytest

from muster.pipeline.errors import PipelineError
from muster.pipeline.marks import (
    Digest,
    Ledger,
    Mark,
    Names,
    Part,
    check_repeated,
    check_surplus,
    is_written,
)
from muster.pipeline.rows import Record

NAMES: Final = Names("etl.1")
QUERY: Final = "5306b803-e052-4b37-9b49-3facbe581865"
ROUNDS: Final = 2_000


def record(
    value: bytes | None,
    key: bytes | None = None,
    partition: int | None = None,
    headers: Sequence[tuple[str, bytes | None]] = (),
) -> Record:
    return Record("out", key, value, partition, headers)


def digest(*records: Record) -> Digest:
    made = Digest()
    assert list(made.through(iter(records))) == list(records)
    return made


def test_names() -> None:
    assert (NAMES.ledger, NAMES.task(12)) == ("etl.1-query", "etl.1-task-12")
    ids = ["etl.1-task-0", "etl.1-task-12", "etl.1-query", "etl.1-task-", "etl.1-task-01", "etlx1-task-3"]
    ids += ["my-etl.1-task-3", "etl.1-task-3-task-4"]
    assert [NAMES.number_of(each) for each in ids] == [0, 12] + [None] * 6
    assert Names("etl.1-task-3").number_of("etl.1-task-3-task-4") == 4


def test_rows_in_another_order_are_the_same() -> None:
    rows = [record(b"%d" % n, b"k", n % 3, (("h", b"1"),)) for n in range(20)]
    again = rows[10:] + rows[:10]
    assert (digest(*rows).text, digest(*rows).rows) == (digest(*again).text, 20)


@pytest.mark.parametrize(
    "other",
    [
        [record(b"bc", b"a")],
        [record(b"c", b"ab", 0)],
        [record(b"c", b"ab", None, (("", None),))],
        [record(b"c", b"ab", None, (("a", b"1"),))],
        [record(b"", b"abc")],
        [record(None, b"abc")],
        [record(b"abc")],
        [record(b"abc", b"")],
        [record(b"c", b"ab")] * 2,
        [record(b"c", b"ab")] * 3,
        [],
    ],
)
def test_rows_that_differ_in_anything_are_others(other: list[Record]) -> None:
    assert digest(record(b"c", b"ab")).text != digest(*other).text


def test_headers_are_told_apart() -> None:
    """By where one header ends and the next begins."""
    shapes: list[list[tuple[str, bytes | None]]] = [
        [("a", b"bc")],
        [("ab", b"c")],
        [("a", b""), ("b", b"c")],
        [("a", None), ("b", b"c")],
        [("b", b"c"), ("a", None)],
    ]
    assert len({digest(record(b"", None, None, each)).text for each in shapes}) == len(shapes)


def test_notes_come_back_as_they_were_left() -> None:
    mark = Mark.of(Part(QUERY, 7, 1), digest(record(b"a")))
    assert Mark.read(mark.text, "etl.1-task-1") == mark
    ledger = Ledger(QUERY, 6, "attempt", 3, True)
    assert Ledger.read(ledger.text, "etl.1-query") == ledger
    assert len(mark.text) < 250, "brokers take 4,096 bytes"


@pytest.mark.parametrize("text", ["", "spark", "{}", "[]", '{"query":"q","batch":"7","rows":1,"digest":"x"}'])
def test_what_others_have_committed_is_no_mark(text: str) -> None:
    for read, group in ((Mark.read, NAMES.task(1)), (Ledger.read, NAMES.ledger)):
        with pytest.raises(PipelineError, match=f"group {group}: .* someone else commits to it"):
            read(text, group)


@pytest.mark.parametrize(
    ("ledger", "batch", "told"),
    [
        (Ledger(attempt="a"), 0, None),
        (Ledger(QUERY, 6, "a"), 7, None),
        (Ledger(QUERY, 7, "a"), 7, None),
        (Ledger(QUERY, 6, "b"), 7, "another attempt at a batch of etl.1 has begun"),
        (Ledger("other", 6, "a"), 7, f"etl.1 belongs to query other, this is {QUERY}"),
        (Ledger(QUERY, 8, "a"), 7, "has written batch 8 already"),
        (Ledger(QUERY, 5, "a"), 7, "known to have finished is batch 5 "),
        (Ledger(attempt="a"), 1, "known to have finished is none "),
    ],
)
def test_who_may_write(ledger: Ledger, batch: int, told: str | None) -> None:
    part = Part(QUERY, batch, 0)
    if told is None:
        ledger.check(NAMES, part, "a")
    else:
        with pytest.raises(PipelineError, match=told):
            ledger.check(NAMES, part, "a")


def test_the_last_mark_tells_whether_a_part_is_written() -> None:
    part, nothing = Part(QUERY, 7, 1), digest()
    assert not is_written(NAMES, part, None)
    assert not is_written(NAMES, part, Mark.of(Part(QUERY, 3, 1), nothing))
    assert is_written(NAMES, part, Mark.of(part, nothing))
    with pytest.raises(PipelineError, match="has written batch 8 already"):
        is_written(NAMES, part, Mark.of(Part(QUERY, 8, 1), nothing))
    with pytest.raises(PipelineError, match="belongs to query other"):
        is_written(NAMES, part, Mark.of(Part("other", 3, 1), nothing))


def test_a_part_that_comes_out_otherwise_is_told() -> None:
    part = Part(QUERY, 7, 1)
    mark = Mark.of(part, digest(record(b"a"), record(b"b")))
    check_repeated(part, mark, digest(record(b"b"), record(b"a")))
    with pytest.raises(PipelineError, match=r"batch 7, task 1: .*\(2 then, 1 now\)\. The batch is not"):
        check_repeated(part, mark, digest(record(b"a")))
    with pytest.raises(PipelineError, match=r"\(2, but others\)"):
        check_repeated(part, mark, digest(record(b"a"), record(b"c")))


def test_tasks_that_there_are_no_more() -> None:
    rows = digest(record(b"a"))
    fine = {2: None, 3: Mark.of(Part(QUERY, 6, 3), rows), 4: Mark.of(Part(QUERY, 7, 4), digest())}
    check_surplus(fine, QUERY, 7)
    with pytest.raises(
        PipelineError, match="batch 7: an earlier attempt had a task 5, which committed 1 rows"
    ):
        check_surplus({**fine, 5: Mark.of(Part(QUERY, 7, 5), rows)}, QUERY, 7)


class Topic:
    """What a query has committed, and its notes."""

    def __init__(self) -> None:
        self.records: Counter[bytes] = Counter()
        self.marks: dict[int, Mark] = {}
        self.ledger = Ledger()

    def attempt(self, batch: int, parts: Sequence[Sequence[bytes]], cut_off: Sequence[int] | None) -> None:
        """An attempt at a batch, in tasks; with `cut_off`, it dies when these tasks have committed."""
        name = f"attempt {random.random()}"
        self.ledger = self.ledger.begun(name)
        if self.ledger.cut_off:
            self.ledger = self.ledger.with_tasks(max(self.marks, default=-1) + 1)
        for task in range(len(parts)) if cut_off is None else cut_off:
            part, rows = Part(QUERY, batch, task), parts[task]
            self.ledger.check(NAMES, part, name)
            now = digest(*map(record, rows))
            mark = self.marks.get(task)
            if is_written(NAMES, part, mark):
                assert mark is not None
                check_repeated(part, mark, now)
            else:
                self.records.update(rows)
                self.marks[task] = Mark.of(part, now)
        if cut_off is None:
            done = self.ledger.done(NAMES, QUERY, batch, len(parts), name)
            check_surplus(
                {task: self.marks.get(task) for task in self.ledger.surplus(batch, len(parts))}, QUERY, batch
            )
            self.ledger = done


def test_nothing_is_lost_or_doubled_unnoticed() -> None:
    """Batches are cut off anywhere, and split into tasks anew each time, some with other rows: the result of
    a batch is its last attempt, once, or an error."""
    seed = int(os.environ.get("SEED") or random.randrange(2**32))
    print(f"seed {seed}")
    chance = random.Random(seed)
    refused = 0
    for _ in range(ROUNDS):
        topic, expected = Topic(), Counter[bytes]()
        try:
            for batch in range(3):
                rows = [b"%d-%d" % (batch, n) for n in range(chance.randrange(5))]
                parts = cut(rows, chance)
                for _ in range(chance.randrange(3)):
                    died_after = chance.sample(range(len(parts)), chance.randint(0, len(parts)))
                    topic.attempt(batch, parts, died_after)
                    parts = anew(parts, rows, chance)
                topic.attempt(batch, parts, None)
                if chance.random() < 0.2:  # Spark died before it noted the batch as done
                    parts = anew(parts, rows, chance)
                    topic.attempt(batch, parts, None)
                expected.update(row for part in parts for row in part)
                assert topic.records == expected
        except PipelineError:
            refused += 1
    assert ROUNDS / 10 < refused < ROUNDS * 9 / 10, "both are seen"


def anew(parts: list[list[bytes]], rows: Sequence[bytes], chance: random.Random) -> list[list[bytes]]:
    """Mostly the same; sometimes split differently, sometimes with a row missing."""
    dice = chance.random()
    return parts if dice < 0.7 else cut(rows if dice < 0.85 else rows[1:], chance)


def cut(rows: Sequence[bytes], chance: random.Random) -> list[list[bytes]]:
    parts: list[list[bytes]] = [[] for _ in range(chance.randint(1, 4))]
    for row in rows:
        chance.choice(parts).append(row)
    return parts
