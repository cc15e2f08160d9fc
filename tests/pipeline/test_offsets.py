"""Offsets as Spark stores them, and how the records between two of them are divided."""

from __future__ import annotations

import json
import random
import uuid

import pytest

from muster.client import TopicPartition
from muster.pipeline.errors import PipelineError
from muster.pipeline.offsets import Offsets, Place, Range, divided, limited

ID = uuid.UUID(int=1)
A = [TopicPartition("a", index) for index in range(12)]
B = TopicPartition("b", 0)


def test_the_text_is_that_of_sparks_own_source_and_in_order() -> None:
    places = {B: Place(1), A[10]: Place(3), A[2]: Place(2)}
    assert json.dumps(Offsets(places).to_json()) == '{"a": {"2": 2, "10": 3}, "b": {"0": 1}}'
    assert Offsets.from_json({"a": {"2": 2, "10": 3}, "b": {"0": 1}}) == Offsets(places)


def test_topic_ids_and_epochs_stand_beside_the_offsets() -> None:
    offsets = Offsets({A[0]: Place(5, 3), A[1]: Place(6), B: Place(7, 0)}, {"a": ID, "not read": ID})
    told = offsets.to_json()
    assert told == {
        "a": {"0": 5, "1": 6},
        "b": {"0": 7},
        "a#AAAAAAAAAAAAAAAAAAAAAQ": {"0": 3},
        "b#": {"0": 0},
    }
    assert Offsets.from_json(json.loads(json.dumps(told))) == offsets


def test_equal_offsets_are_equal_texts_in_whatever_order_they_were_found() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    found = [(where, Place(where.partition, 1)) for where in [*A, B]]
    texts = set()
    for _ in range(20):
        random.Random(seed).shuffle(found)
        seed += 1
        texts.add(json.dumps(Offsets(dict(found), {"b": ID, "a": ID}).to_json()))
    assert len(texts) == 1


@pytest.mark.parametrize("told", [{"a": 5}, {"a": {"x": 1}}, {"a#?": {}}, {"a": {"0": None}}])
def test_what_is_no_offsets_is_refused(told: dict[str, dict[str, int]]) -> None:
    with pytest.raises(PipelineError, match="no offsets of the format muster"):
        Offsets.from_json(told)


def test_a_limit_is_dealt_out_by_what_there_is() -> None:
    ends = {A[0]: 100, A[1]: 400, A[2]: 50}
    assert limited({A[2]: 50}, ends, 100) == {A[0]: 20, A[1]: 80, A[2]: 50}
    assert limited({}, ends, 1_000) == ends
    # No partition waits forever: each that has records gives one, and repetition reaches the end.
    starts, rounds = dict.fromkeys(ends, 0), 0
    while starts != ends:
        after = limited(starts, ends, 1)
        assert all(starts[where] <= after[where] <= ends[where] for where in ends)
        assert all(after[where] > starts[where] for where in ends if starts[where] < ends[where])
        starts, rounds = after, rounds + 1
        assert rounds <= 400


def test_ranges_are_divided_without_a_gap() -> None:
    ranges = [Range(A[1], 0, 900), Range(A[0], 10, 110), Range(B, 5, 5)]
    assert divided(ranges, None) == [Range(A[0], 10, 110), Range(A[1], 0, 900)]
    parts = divided(ranges, 10)
    assert len(parts) == 10
    assert sum(part.size for part in parts) == 1000
    of_one = [part for part in parts if part.where == A[1]]
    assert [part.until for part in of_one[:-1]] == [part.start for part in of_one[1:]]
    assert (of_one[0].start, of_one[-1].until) == (0, 900)
    assert len(divided([Range(A[0], 0, 2)], 50)) == 2
