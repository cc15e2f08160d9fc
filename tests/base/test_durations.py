"""Durations as people write them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.durations import DURATION_MAX_MS, parse
from tests.support.each import each

DAY = 86_400_000


@each(
    "written, ms",
    [
        ("45s", 45_000),
        ("500ms", 500),
        ("7 days", 7 * DAY),
        ("1 day", DAY),
        ("1h30m", 5_400_000),
        ("1h 30m", 5_400_000),
        ("1 hour, 30 minutes", 5_400_000),
        ("2 Weeks", 14 * DAY),
        ("1.5h", 5_400_000),
        ("0.5 s", 500),
        (" 10 min ", 600_000),
        ("0s", 0),
        ("P1DT2H", DAY + 7_200_000),
        ("PT45S", 45_000),
        ("pt0.25s", 250),
        ("P2W", 14 * DAY),
        ("PT1H30M", 5_400_000),
        (timedelta(days=7, milliseconds=3), 7 * DAY + 3),
        (timedelta(microseconds=1_600), 2),
        (45, 45_000),
        (0, 0),
        (0.1 + 0.2, 300),
        (1e-3, 1),
    ],
)
def test_what_can_be_written(written: str | timedelta | float, ms: int) -> None:
    assert parse(written) == ms


@each(
    "written, why",
    [
        ("", "it is empty"),
        ("  ", "it is empty"),
        ("45", "45s is seconds"),
        ("-5s", "negative"),
        ("5 parsecs", "'parsecs' is not a unit"),
        ("s", "write it like 45s"),
        ("5s!", "write it like 45s"),
        ("1e3s", "'e' is not a unit"),
        ("five minutes", "write it like 45s"),
        ("P1M", "ISO 8601"),
        ("P1Y", "ISO 8601"),
        ("P", "ISO 8601"),
        ("P1DT", "ISO 8601"),
        ("PT5", "ISO 8601"),
        ("-PT5S", "negative"),
        ("0.1ms", "shorter than a millisecond"),
        ("2000 weeks 1000000 days", "longer than a thousand years"),
        ("9" * 5_000 + "s", "write it like 45s"),
        (timedelta(seconds=-1), "negative"),
        (timedelta.max, "longer than a thousand years"),
        (-1, "negative"),
        (float("nan"), "not finite"),
        (float("inf"), "not finite"),
        (10**400, "longer than a thousand years"),
        (True, "takes text, a timedelta or a number"),
        (None, "takes text, a timedelta or a number"),
    ],
)
def test_what_cannot_is_refused_with_a_reason(written: object, why: str) -> None:
    with pytest.raises(ValueError, match="is not a valid duration") as refused:
        parse(written)  # type: ignore[arg-type]
    assert why in str(refused.value)
    assert len(str(refused.value)) < 250


@given(st.integers(0, DURATION_MAX_MS))
def test_milliseconds_come_back_however_they_are_given(ms: int) -> None:
    assert parse(f"{ms}ms") == parse(timedelta(milliseconds=ms)) == ms
    days, left = divmod(ms, DAY)
    assert parse(f"{days} d {left} ms") == ms
    assert parse(f"P{days}DT{left / 1000:.3f}S") == ms


@given(st.text())
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    try:
        ms = parse(text)
    except ValueError as error:
        refused = str(error)
    else:
        assert 0 <= ms <= DURATION_MAX_MS
        return
    assert "is not a valid duration" in refused
