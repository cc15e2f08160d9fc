"""A group's timeline drawn in the terminal: a row for the group and one for each member."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from muster.coordinator.arguments import printable
from muster.coordinator.journal.entries import Entry
from muster.coordinator.journal.explain import Explanation, Tracks, explain, explained, rebalances
from muster.coordinator.journal.explain.names import count, moment
from muster.coordinator.journal.explain.tracks import Span, Standing, Track
from muster.coordinator.journal.names import Names

_BARS: Final = {
    Standing.PENDING: ("?", "magenta"),
    Standing.JOINING: ("▒", "yellow"),
    Standing.AWAITED: ("░", "bright_red"),
    Standing.SYNCING: ("▓", "cyan"),
    Standing.STABLE: ("█", "green"),
    Standing.REVOKING: ("▚", "yellow"),
    Standing.SILENT: ("┄", "red"),
    "Empty": ("·", "bright_black"),
    "PreparingRebalance": ("▒", "yellow"),
    "CompletingRebalance": ("▓", "cyan"),
    "Assigning": ("▒", "yellow"),
    "Reconciling": ("▓", "cyan"),
    "Stable": ("█", "green"),
}
_MEANINGS: Final = {
    Standing.STABLE: "stable",
    Standing.JOINING: "has joined, waits",
    Standing.AWAITED: "has yet to join",
    Standing.SYNCING: "waits for its assignment",
    Standing.REVOKING: "has to revoke partitions",
    Standing.SILENT: "connection closed",
    Standing.PENDING: "took a member id",
}
_DRAWN_WITH: Final = "".join(bar for bar, _ in _BARS.values()) + "╵…"
_OWING: Final = frozenset({Standing.PENDING, Standing.AWAITED, Standing.REVOKING, Standing.SILENT})
"""States of members that hold up the group, or may soon."""
_ROWS_MAX: Final = 40
_GONE_ROWS_MAX: Final = _ROWS_MAX // 2
"""How many members that are gone keep present ones out."""
_LISTED_MAX: Final = 20
_NAME_MAX: Final = 32
"""Columns for names in windows of less than a hundred."""
_NAME_MIN: Final = 12
_TAIL: Final = 10
"""The end of a name that is kept: names that begin alike differ there, as in consumer-billing-1/3f9a1c."""
_BESIDE_HOST_MIN: Final = 16
"""A host is shown if this much is left for the name."""
_BARS_MIN: Final = 20


class _Axis:
    """Columns over time. The width between two changes grows with the logarithm of the time between them, so
    that a rebalance of two seconds is visible next to a quiet day."""

    def __init__(self, changes: Sequence[int], columns: int) -> None:
        changes = sorted(set(changes))[-(columns + 1) :]  # at least one column each; the oldest are dropped
        self.start_ms, self.end_ms = changes[0], changes[-1]
        weights = [math.log2(2 + (after - before) / 100) for before, after in pairwise(changes)]
        spare = columns - len(weights)
        total = sum(weights) or 1.0
        self._changes, self._places = changes, [0]
        reached = 0.0
        for index, weight in enumerate(weights):
            reached += weight
            self._places.append(index + 1 + round(spare * reached / total))

    def column(self, at_ms: int) -> int:
        """The column of a point in time."""
        if at_ms <= self.start_ms:
            return 0
        index = min(bisect_right(self._changes, at_ms), len(self._changes)) - 1
        return self._places[index]


def can_be_drawn(encoding: str) -> bool:
    """Whether a terminal of this encoding can show the picture."""
    try:
        _DRAWN_WITH.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def draw(
    group: str,
    entries: Sequence[Entry],
    names: Names,
    *,
    since_ms: int,
    now_ms: int,
    console: Console | None = None,
) -> None:
    """Draw the events since `since_ms` on the terminal, and list the rebalances below."""
    console = Console(highlight=False) if console is None else console
    end_ms = max([now_ms, *(each.at_ms for each in entries)])
    tracks = Tracks(entries, names, now_ms=end_ms)
    found = [each for each in rebalances(entries) if each.ended_ms is None or each.ended_ms >= since_ms]
    told = [explained(each, end_ms, names=names) for each in found[-_LISTED_MAX:]]
    in_sight = [each for each in tracks.members if any(_in_sight(span, since_ms) for span in each.spans)]
    rows = _chosen(in_sight, tracks, told)
    spans = [span for row in (tracks.group, *rows) for span in row.spans if _in_sight(span, since_ms)]
    changes = {max(span.start_ms, since_ms) for span in spans} | {span.end_ms or end_ms for span in spans}
    if len(changes) > 1:
        room = max(console.width // 3, min(_NAME_MAX, console.width - 3 - _BARS_MIN), _NAME_MIN)
        labels = [_shortened(printable(group), room), *(_label(row, room) for row in rows)]
        width = max(map(cell_len, labels))
        axis = _Axis(sorted(changes), max(console.width - width - 3, _BARS_MIN))
        bars = [
            _row(name, width, row, axis, since_ms, end_ms)
            for name, row in zip(labels, [tracks.group, *rows], strict=True)
        ]
        bars.append(_scale(width, axis, [each.started_ms for each in found], now_ms))
        for bar in bars:
            console.print(bar, no_wrap=True, overflow="crop")
        if left_out := len(in_sight) - len(rows):
            console.print(f"{count(left_out, 'member')} not shown", style="bright_black")
        console.print(_legend({span.standing for row in rows for span in row.spans}))
    if len(found) > _LISTED_MAX:
        console.print(f"\nthe last {_LISTED_MAX} of {len(found)} rebalances:", style="bright_black")
    for each in told:
        console.print(_listed(each, now_ms))
    last = explain(entries, group=group, now_ms=now_ms, names=names)
    if last is not None and not last.rebalanced and last.started_ms >= since_ms:
        console.print(_listed(last, now_ms))


def _in_sight(span: Span, since_ms: int) -> bool:
    return span.end_ms is None or span.end_ms >= since_ms


def _chosen(rows: Sequence[Track], tracks: Tracks, told: Sequence[Explanation]) -> list[Track]:
    """The rows to draw, in the same order: members that the group waits for, those that have gone, those that
    were slow, then the newest."""
    waiting = [tracks.of(each.member) for each in told[-1].waiting] if told else []
    slow = [
        tracks.of(who)
        for explanation in reversed(told)
        if explanation.phases is not None
        for who, _ in explanation.phases.slowest
    ]
    present = [each for each in reversed(rows) if each.is_present]
    gone = sorted((each for each in rows if not each.is_present), key=_ended_ms, reverse=True)
    owing = [each for each in present if each.spans[-1].standing in _OWING]
    ranked = [*waiting, *owing, *gone[:_GONE_ROWS_MAX], *slow, *present, *gone]
    in_sight = {id(each) for each in rows}
    ids = dict.fromkeys(id(each) for each in ranked if id(each) in in_sight)
    drawn = set(list(ids)[:_ROWS_MAX])
    return [each for each in rows if id(each) in drawn]


def _ended_ms(row: Track) -> int:
    return row.spans[-1].end_ms or 0


def _label(row: Track, room: int) -> str:
    """A member's name and host, in at most `room` columns."""
    name, host = printable(row.name), printable(row.host)
    beside_host = room - 1 - cell_len(host)
    if beside_host >= min(cell_len(name), _BESIDE_HOST_MIN):
        return f"{_shortened(name, beside_host)} {host}"
    return _shortened(name, room)


def _shortened(text: str, room: int) -> str:
    """The text without its middle, if it is wider than `room` columns."""
    if cell_len(text) <= room:
        return text
    tail = _begin(text[::-1], min(_TAIL, (room - 1) // 2))[::-1]
    return f"{_begin(text, room - 1 - cell_len(tail))}…{tail}"


def _begin(text: str, room: int) -> str:
    return set_cell_size(text, room).rstrip()


def _row(name: str, width: int, track: Track, axis: _Axis, since_ms: int, end_ms: int) -> Text:
    text = Text(f"{set_cell_size(name, width)}  ")
    at = 0
    for span in track.spans:
        if not _in_sight(span, since_ms):
            continue
        first = max(axis.column(span.start_ms), at)
        last = max(axis.column(end_ms if span.end_ms is None else span.end_ms), first)
        bar, style = _BARS.get(span.standing, ("█", "white"))
        text.append(" " * (first - at))
        text.append(bar * (last - first), style)
        at = last
    return text


def _scale(width: int, axis: _Axis, starts: Sequence[int], now_ms: int) -> Text:
    """The start times of rebalances, where there is room."""
    line = ""
    for at_ms in [axis.start_ms, *starts]:
        column = axis.column(at_ms)
        if at_ms >= axis.start_ms and (not line or column > len(line)):
            line = line.ljust(column) + f"╵{moment(at_ms, None, near_ms=now_ms)}"
    return Text(" " * (width + 2) + line, style="bright_black")


def _legend(standings: set[str]) -> Text:
    text = Text()
    for standing, meaning in _MEANINGS.items():
        if standing in standings:
            text.append(f"{_BARS[standing][0]} ", _BARS[standing][1])
            text.append(f"{meaning}   ", "bright_black")
    return text


def _listed(explanation: Explanation, now_ms: int) -> Text:
    """The explanation of a rebalance, with its head and cause highlighted."""
    head, *rest = explanation.lines()
    text = Text("\n")
    text.append(head, "bold")
    for line in rest:
        text.append("\n")
        text.append(line[:12], "bright_black")
        text.append(line[12:], "bold" if line[12:].startswith("→") else "")
    return text
