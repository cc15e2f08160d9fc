"""Calling those who want to be told of something."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

_T = TypeVar("_T")


def call_all(listeners: Iterable[Callable[[_T], object]], told: _T) -> None:
    """Call every listener, also those behind one that fails; then raise the first error."""
    first: Exception | None = None
    for listener in listeners:
        try:
            listener(told)
        except Exception as error:
            first = first or error
    if first is not None:
        raise first
