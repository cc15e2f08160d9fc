"""Holds back the markers of transactions, so that a test can look at what is decided but not visible yet."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple


class MarkerHold(NamedTuple):
    """Which markers are held back: those of a transactional id, for one topic or (None) for all."""

    transactional_id: str
    topic: str | None = None

    def to_json(self) -> dict[str, object]:
        return self._asdict()

    def covers(self, transactional_id: str, topic: str) -> bool:
        return self.transactional_id == transactional_id and self.topic in (None, topic)


class MarkerHolds:
    """The holds of all brokers of one process, since any of them may send markers. Belongs to their loop."""

    def __init__(self) -> None:
        self._holds: dict[int, MarkerHold] = {}
        self._last_number = 0
        self._watching: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<MarkerHolds {list(self._holds.values())}>"

    def hold(self, hold: MarkerHold) -> int:
        """Hold back markers that are not on their way yet, until `release`. Returns the hold's number."""
        self._last_number += 1
        self._holds[self._last_number] = hold
        return self._last_number

    def release(self, number: int) -> bool:
        """Let the markers go, unless another hold covers them. Returns whether there was such a hold."""
        released = self._holds.pop(number, None) is not None
        self._tell()
        return released

    def release_all(self, transactional_id: str | None = None) -> bool:
        """Undo every hold, or all of one id. Returns whether there were any."""
        numbers = [
            number
            for number, hold in self._holds.items()
            if transactional_id in (None, hold.transactional_id)
        ]
        for number in numbers:
            del self._holds[number]
        self._tell()
        return bool(numbers)

    def holds(self) -> list[MarkerHold]:
        """The holds in force, oldest first."""
        return list(self._holds.values())

    def cover(self, transactional_id: str, topic: str) -> bool:
        """Whether a marker for a partition of that topic is held back."""
        return bool(self._holds) and any(
            hold.covers(transactional_id, topic) for hold in self._holds.values()
        )

    # --- for senders of markers -----------------------------------------------------------------------------

    def attach(self, released: Callable[[], None]) -> None:
        """Call `released` whenever markers may be let go."""
        self._watching.append(released)

    def detach(self, released: Callable[[], None]) -> None:
        """Undo `attach`; harmless when repeated."""
        with suppress(ValueError):
            self._watching.remove(released)

    def _tell(self) -> None:
        for released in list(self._watching):
            released()
