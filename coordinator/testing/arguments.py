"""Checks of what tests pass to calls: a mistake must not become a long wait or an error from within."""

from __future__ import annotations


def check_text(name: str, given: object) -> None:
    """Raises TypeError unless it is text."""
    __tracebackhide__ = True
    if not isinstance(given, str):
        raise TypeError(f"{name}: it takes text, not {given!r}")


def check_whole_number(name: str, given: object) -> None:
    """Raises TypeError unless it is a whole number."""
    __tracebackhide__ = True
    if not isinstance(given, int) or isinstance(given, bool):
        raise TypeError(f"{name}: it takes a whole number, not {given!r}")


def check_count(name: str, given: object, what: str) -> None:
    """Raises ValueError unless it is a number from 0 on; `what` says of what."""
    __tracebackhide__ = True
    if not isinstance(given, int) or isinstance(given, bool) or given < 0:
        raise ValueError(f"{name}={given!r} is not allowed; it takes {what}, 0 or more")
