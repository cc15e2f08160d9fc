"""A group's journal as a test reads it."""

from __future__ import annotations

from itertools import groupby
from typing import Final

from muster.coordinator.journal.entries import Entry

_STORY_MAX: Final = 60
"""Lines shown of a group when a wait for it has failed."""


class Timeline(list[Entry]):
    """Entries of a group, oldest first. `str` of it is a line for each, or for several alike in a row."""

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def as_story(self, lines_max: int = _STORY_MAX) -> str:
        """The last lines of it, for a failure's text."""
        if not self:
            return "  nothing has happened to it"
        lines = self._lines()
        left_out = len(lines) - lines_max
        heading = (
            f"  what happened to it, {left_out} older lines left out:"
            if left_out > 0
            else "  what happened to it:"
        )
        return "\n".join([heading, *(f"    {line}" for line in lines[-lines_max:])])

    def _lines(self) -> list[str]:
        if not self:
            return []
        from muster.coordinator.journal.explain import about

        # A client that is kept away, say, meets the same fault many times a second.
        runs = [(line, len(list(alike))) for line, alike in groupby(line for _, line in about(self))]
        return [line if times == 1 else f"{line} ({times} times)" for line, times in runs]
