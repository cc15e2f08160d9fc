"""The conclusions a soak draws from its samples."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.soak.verdict import JUDGED_S_MIN, MEMORY_MIB_PER_HOUR_MAX, fit, flat, left
from tests.support.each import each
from tests.support.held import LEFT


def samples(hours: float, mib_per_hour: float, objects_per_hour: float = 0.0) -> list[dict[str, Any]]:
    """A sample every 20 s around 80 MiB and 20,000 objects, with the noise of real traffic, plus growth."""
    rng = random.Random(1)
    made = []
    for index in range(int(hours * 180)):
        hour = index / 180
        mib = 80 + rng.uniform(-1, 1) + mib_per_hour * hour
        objects = 20_000 + rng.uniform(-3_000, 3_000) + objects_per_hour * hour
        held = {"resident_bytes": mib * 2**20, "objects": objects}
        made.append({"at_s": index * 20.0, "server": held})
    return made


def test_a_line_is_drawn_as_on_paper() -> None:
    line = fit([(0, 1.0), (1800, 2.0), (3600, 3.0)])
    assert (line.mean, line.per_hour) == pytest.approx((2.0, 2.0))
    assert line.error == pytest.approx(0.0, abs=1e-9)


def test_noise_is_flat_and_growth_is_not() -> None:
    assert [each.good for each in flat(samples(2, 0), "server")] == [True, True]
    grows = flat(samples(2, 2 * MEMORY_MIB_PER_HOUR_MAX), "server")
    assert [each.good for each in grows] == [False, True]
    leaks = flat(samples(2, 0, objects_per_hour=3_000), "server")
    assert [each.good for each in leaks] == [True, False]


def test_the_types_that_grew_most_are_named() -> None:
    leaking = samples(2, 0, objects_per_hour=3_000)
    for index, sample in enumerate(leaking):
        sample["server"]["types"] = {"builtins.dict": 100 - index % 3, "group.Member": 10 + 2 * index}
    _, objects = flat(leaking, "server")
    assert "; most grew group.Member +" in objects.why
    assert "dict" not in objects.why


def test_the_warm_up_is_left_out() -> None:
    warming = samples(2, 0)
    for index, sample in enumerate(warming[:60]):
        sample["server"]["resident_bytes"] -= (60 - index) * 2**20
    assert [each.good for each in flat(warming, "server")] == [True, True]


def test_what_is_too_short_is_not_judged() -> None:
    (only,) = flat(samples(JUDGED_S_MIN / 3600, 1_000), "server")
    assert only.good is None


@each("name", LEFT)
def test_one_more_than_before_is_left_behind(name: str) -> None:
    before = dict.fromkeys((*LEFT, "threads"), 7)
    assert left(before, before, LEFT, "server").good
    assert not left(before, {**before, name: 8}, LEFT, "server").good
    assert not left(before, {**before, "threads": 70}, LEFT, "server").good
