"""Checks that consumer and producer settings share."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final, SupportsFloat

from muster.settings import INT16_MAX, Setting, Type, either, settings_of

_UNITS: Final = {"ms": "milliseconds"}


class _Hidden:
    def __repr__(self) -> str:
        return "..."


HIDDEN: Final = _Hidden()
"""Shown in place of a secret."""


def check_known(client: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raises TypeError if `client` has no such setting, and suggests a similar one."""
    known = set(known)
    for name in given:
        if name not in known:
            from difflib import get_close_matches  # rarely needed, and slow to import

            close = get_close_matches(name.replace(".", "_"), known, 1)
            perhaps = f"; did you mean {close[0]}?" if close else ""
            raise TypeError(f"{client} has no setting {name!r}{perhaps}")


def check(settings: Any) -> None:
    """Raises ValueError, naming the setting and what it takes, if a value is not allowed."""
    for name, each in settings_of(settings.__class__).items():
        value = getattr(settings, name)
        if not (each.optional if value is None else each.allows(value)):
            raise wrong(name, HIDDEN if each.sensitive else value, allowed(each))


def check_below(settings: Any, smaller: str, larger: str) -> None:
    """Raises ValueError unless one setting is less than another."""
    less, more = getattr(settings, smaller), getattr(settings, larger)
    if less >= more:
        raise ValueError(f"{smaller} ({less}) must be less than {larger} ({more})")


def check_text(name: str, given: str | None) -> None:
    """Raises ValueError unless requests can carry the text."""
    if given is None:
        return
    try:
        fits = len(given.encode()) <= INT16_MAX
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise wrong(name, given[:100], f"Unicode text of at most {INT16_MAX} bytes")


def seconds_of(timeout: object, default_s: float | None = None) -> float:
    """A call's `timeout`; the default, if there is one, for None. Raises TypeError or ValueError that names
    it."""
    if timeout is None and default_s is not None:
        return default_s
    if not isinstance(timeout, SupportsFloat):
        raise TypeError(f"timeout={timeout!r}: it takes seconds, a number")
    try:
        seconds = float(timeout)
    except OverflowError:
        seconds = math.nan
    if math.isnan(seconds):
        raise ValueError(f"timeout={timeout!r}: it takes seconds, a number")
    return seconds


def wrong(name: str, given: object, takes: str) -> ValueError:
    """The error for a value that a setting does not allow."""
    return ValueError(f"{name}={given!r}: it takes {takes}")


def allowed(each: Setting) -> str:
    """The allowed values, as written in Python."""
    if each.shape is not None:
        return each.shape
    if each.type is Type.BOOLEAN:
        return "True or False"
    if each.choices:
        return either(map(repr, each.choices))
    if each.unit is not None:
        return f"{_UNITS.get(each.unit, each.unit)}, {each.allowed}"
    return each.allowed if each.numeric else "text"
