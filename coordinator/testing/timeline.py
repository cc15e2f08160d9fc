"""A group's journal as a test reads it."""

from __future__ import annotations

from typing import Final

from muster.coordinator.observe.journal.entries import Entry

_STORY_MAX: Final = 60
"""Entries shown of a group when a wait for it has failed."""


class Timeline(list[Entry]):
    """Entries of a group, oldest first. `str` of it is a line for each."""

    def __str__(self) -> str:
        return self._lines(len(self))

    def as_story(self, entries_max: int = _STORY_MAX) -> str:
        """The last of them, for a failure's text."""
        if not self:
            return "  nothing has happened to it"
        left_out = len(self) - entries_max
        heading = (
            f"  what happened to it, {left_out} older entries left out:"
            if left_out > 0
            else "  what happened to it:"
        )
        return "\n".join([heading, *(f"    {line}" for line in self._lines(entries_max).splitlines())])

    def _lines(self, entries_max: int) -> str:
        if not self:
            return ""
        from muster.coordinator.observe.explain import describe

        return "\n".join(describe(entry) for entry in self[-entries_max:])
