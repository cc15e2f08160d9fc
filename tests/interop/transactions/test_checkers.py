"""The judges on made-up topics: each kind of fault must be found, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pytest

from tests.interop.transactions import connect, flink, words
from tests.interop.transactions.checker import Seen, check
from tests.interop.transactions.clients import TRANSFORMERS, by_name
from tests.interop.transactions.frameworks import FRAMEWORKS
from tests.interop.transactions.play import VICTIMS, Plan, protocol_problems

pytestmark = pytest.mark.interop

NUMBERS: Final = 60


def written(number: int, offset: int = 0) -> Seen:
    return Seen(number // 3 % 3, offset or number, f"k{number}", f"{number} {number**2}")


RIGHT: Final = [written(number) for number in range(NUMBERS)]
ABORTED: Final = [written(7, 100), written(8, 101)]


def problems(committed: Sequence[Seen], uncommitted: Sequence[Seen] | None = None) -> list[str]:
    return check(NUMBERS, committed, [*committed, *ABORTED] if uncommitted is None else uncommitted, 2)


def test_a_right_target_has_no_problems() -> None:
    assert problems(RIGHT) == []


def test_what_was_lost_is_found() -> None:
    (found,) = problems([*RIGHT[:5], *RIGHT[6:]], [*RIGHT, *ABORTED])
    assert found == "1 of 60 were lost: 5"


def test_what_is_there_twice_is_found() -> None:
    twice = written(NUMBERS - 1, 70)
    assert problems([*RIGHT, twice]) == ["1 of 60 were committed more than once: 59"]


def test_what_was_never_written_is_found() -> None:
    assert problems([*RIGHT, written(60)]) == ["1 were never in the source: 60"]


@pytest.mark.parametrize(
    "wrong", [{"value": "9 82"}, {"key": "k8"}, {"partition": 1}, {"value": "nine"}], ids=str
)
def test_what_is_not_what_was_written_is_found(wrong: dict[str, object]) -> None:
    spoiled = RIGHT[9]._replace(**wrong)
    found = problems([*RIGHT[:9], spoiled, *RIGHT[10:]])
    assert found[0] == f"1 records are not what was written: {spoiled}"


def test_disorder_is_found() -> None:
    early, late = 0, 9  # of the same source and target partition
    swapped = [*RIGHT]
    swapped[early], swapped[late] = swapped[late], swapped[early]
    assert problems(swapped) == ["1 stand behind later ones of their source partition: 0"]


def test_what_read_uncommitted_hides_is_found() -> None:
    (found,) = problems(RIGHT, [*RIGHT[1:], *ABORTED, written(3, 102)])
    assert found.startswith("1 are shown with read_committed alone")


def test_aborted_records_that_are_not_there_are_found() -> None:
    (found,) = problems(RIGHT, RIGHT)
    assert found == "read_uncommitted shows 60 records: 60 were committed and 2 aborted on purpose"


def test_the_protocol_is_told_by_the_epochs() -> None:
    new, old = by_name("java-client"), by_name("java-client-3")
    assert protocol_problems(new, 200, 90) == protocol_problems(old, 200, 5) == []
    assert "spoke the transactions before KIP-890" in protocol_problems(new, 200, 5)[0]
    assert "spoke the transactions of KIP-890" in protocol_problems(old, 200, 90)[0]
    assert protocol_problems(new, 10, 1) == []  # too few to tell


def test_a_plan_is_its_seed() -> None:
    plan = Plan.of(7, 2_000, 3, 2)
    assert plan == Plan.of(7, 2_000, 3, 2)
    assert plan != replace(Plan.of(8, 2_000, 3, 2), seed=7)
    assert Counter(kill.victim for kill in plan.kills) == dict(zip(VICTIMS, (3, 1, 1), strict=True))
    for plans in (words.Plan, connect.Plan, flink.Plan):
        assert plans.of(7, 100, 2) == plans.of(7, 100, 2) != plans.of(8, 100, 2)


def test_clients_have_names_of_their_own() -> None:
    names = {each.name for each in TRANSFORMERS} | FRAMEWORKS.keys()
    assert len(names) == len(TRANSFORMERS) + len(FRAMEWORKS)


def count(word: str, value: int) -> Seen:
    return Seen(0, 0, word, str(value))


def test_counts_go_up_by_one() -> None:
    right = [count("a", 1), count("b", 1), count("a", 2)]
    assert words.check(["a b", "a"], right) == []
    assert words.check(["a b", "a"], right[:2]) == ["a was written 2 times, and its counts are 1"]
    assert words.check(["a b", "a"], [*right, count("a", 2)]) == [
        "a was written 2 times, and its counts are 1, 2, 2"
    ]
    assert words.check(["a b", "a"], [*right, count("c", 1)]) == [
        "c was written 0 times, and its counts are 1"
    ]


def copied(number: int, partition: int = 0) -> Seen:
    return Seen(partition, number, "", connect.line(number))


def test_lines_are_copied_once_and_in_order() -> None:
    right = [copied(number) for number in (0, 2, 1, 3)]
    assert connect.check(4, 2, right) == []  # two files: 0, 2 and 1, 3
    assert connect.check(4, 2, right[1:]) == ["1 of 4 lines were lost: 0"]
    assert connect.check(4, 2, [*right, copied(3)]) == ["1 lines were committed more than once: 3"]
    assert connect.check(3, 2, right)[0].startswith("1 lines were never written: 3 ...")
    assert connect.check(4, 1, right) == ["lines of file 0 are in another order in partition 0"]
    assert connect.check(4, 1, [copied(2, 1), *right[:1], *right[2:]]) == []
