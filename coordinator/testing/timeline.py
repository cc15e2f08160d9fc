"""A group's journal in tests."""

from __future__ import annotations

from itertools import groupby
from typing import Final

from muster.coordinator.journal.entries import Entry

_STORY_MAX: Final = 60
"""Maximum lines shown of a group when a wait for it fails."""


class Timeline(list[Entry]):
    """A group's entries, oldest first. `str` gives one line per entry, or per run of identical lines."""

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def as_story(self, lines_max: int = _STORY_MAX) -> str:
        """Its last lines, for a failure message."""
        if not self:
            return "  no events"
        lines = self._lines()
        left_out = len(lines) - lines_max
        heading = f"  events, {left_out} older lines omitted:" if left_out > 0 else "  events:"
        return "\n".join([heading, *(f"    {line}" for line in lines[-lines_max:])])

    def _lines(self) -> list[str]:
        if not self:
            return []
        from muster.coordinator.journal.explain import about

        # A client kept away, for example, meets the same fault many times a second.
        runs = [(line, len(list(alike))) for line, alike in groupby(line for _, line in about(self))]
        return [line if times == 1 else f"{line} ({times} times)" for line, times in runs]
