"""Durations as people write them: `45s`, `1h30m`, `7 days`, `P1DT2H`."""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction
from math import isfinite
from typing import Final

DURATION_MAX_MS: Final = 1_000 * 365 * 86_400_000
"""A thousand years: times after that have no date."""

_UNITS_MS: Final = {
    ("ms", "millisecond", "milliseconds"): 1,
    ("s", "sec", "secs", "second", "seconds"): 1_000,
    ("m", "min", "mins", "minute", "minutes"): 60_000,
    ("h", "hr", "hrs", "hour", "hours"): 3_600_000,
    ("d", "day", "days"): 86_400_000,
    ("w", "week", "weeks"): 604_800_000,
}
_UNIT_MS: Final = {name: ms for names, ms in _UNITS_MS.items() for name in names}
_NUMBER: Final = r"\d{1,18}(?:\.\d{1,18})?"
_PART: Final = re.compile(rf"({_NUMBER})\s*([a-z]+)[\s,]*")
_ISO: Final = re.compile(
    rf"P(?=.)(?:({_NUMBER})W)?(?:({_NUMBER})D)?"
    rf"(?:T(?=.)(?:({_NUMBER})H)?(?:({_NUMBER})M)?(?:({_NUMBER})S)?)?",
    re.IGNORECASE,
)
_ISO_MS: Final = (604_800_000, 86_400_000, 3_600_000, 60_000, 1_000)
_SHOWN_MAX: Final = 60


def parse(duration: str | timedelta | int | float) -> int:
    """Whole milliseconds, rounded to the nearest; 0 for a duration of nothing.

    A number is seconds. A text has a unit with each number (ms, s, m, h, d, w, or their names), or is an ISO
    8601 duration without years and months, whose length is nobody's guess. ValueError says what is wrong.
    """
    if isinstance(duration, str):
        ms = _read(duration)
    elif isinstance(duration, timedelta):
        ms = Fraction(duration // timedelta(microseconds=1), 1_000)
    elif isinstance(duration, (int, float)) and not isinstance(duration, bool):
        if isinstance(duration, float) and not isfinite(duration):
            raise _wrong(duration, "it is not finite")
        ms = Fraction(duration) * 1_000
    else:
        raise _wrong(duration, "it takes text, a timedelta or a number of seconds")
    if ms < 0:
        raise _wrong(duration, "it is negative")
    if ms > DURATION_MAX_MS:
        raise _wrong(duration, "it is longer than a thousand years")
    whole_ms = round(ms)
    if ms and not whole_ms:
        raise _wrong(duration, "it is shorter than a millisecond")
    return whole_ms


def _read(text: str) -> Fraction:
    stripped = text.strip()
    iso = _ISO.fullmatch(stripped)
    if iso is not None:
        return sum(
            (Fraction(number) * ms for number, ms in zip(iso.groups(), _ISO_MS, strict=True) if number),
            Fraction(0),
        )
    if stripped[:1] in ("P", "p"):
        raise _wrong(text, "in an ISO 8601 duration the parts are P, weeks, days, T, hours, minutes, seconds")
    if stripped.startswith("-"):
        raise _wrong(text, "it is negative")
    if re.fullmatch(_NUMBER, stripped):
        raise _wrong(text, f"it has no unit: {stripped}s is seconds, {stripped}ms milliseconds")
    total, at, lowered = Fraction(0), 0, stripped.lower()
    while at < len(lowered):
        part = _PART.match(lowered, at)
        if part is None:
            raise _wrong(text, "write it like 45s, 500ms, 1h30m, 7 days or PT45S")
        number, unit = part.groups()
        if unit not in _UNIT_MS:
            raise _wrong(text, f"{unit[:_SHOWN_MAX]!r} is not a unit: the units are ms, s, m, h, d and w")
        total += Fraction(number) * _UNIT_MS[unit]
        at = part.end()
    if not lowered:
        raise _wrong(text, "it is empty")
    return total


def _wrong(duration: object, why: str) -> ValueError:
    shown = repr(duration)
    if len(shown) > _SHOWN_MAX:
        shown = shown[:_SHOWN_MAX] + "…"
    return ValueError(f"{shown} is not a valid duration: {why}")
