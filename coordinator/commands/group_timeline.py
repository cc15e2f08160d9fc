"""`muster groups timeline`: what happened in a group, event by event."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from muster.client.network.cluster import Cluster
from muster.coordinator.arguments import printable
from muster.coordinator.base.clock import wall_ms
from muster.coordinator.commands import group_events, output, streams
from muster.coordinator.commands.group_events import GroupEvents
from muster.coordinator.commands.options import command
from muster.coordinator.commands.run import Failed
from muster.coordinator.journal.entries import Entry, Member
from muster.coordinator.journal.explain import Finding, Rebalance, describe, diagnosed, rebalances
from muster.coordinator.journal.explain.facts import everybody, present
from muster.coordinator.journal.explain.names import names_in

_LOOK_BACK_MS: Final = 60 * 60_000
_REMEMBERED_MAX: Final = 2_000
"""Events kept while following, to explain later ones."""

_DESCRIPTION: Final = """\
Reads the topic __group_events, where muster records what happens; docs/why.md says how causes are inferred.
On a terminal, draws the group's members over time and lists the rebalances with their causes; otherwise
prints one line per event, the cause first. Exit codes: 0 shown; 1 no events of the group, or the broker is
not muster.

JSON: one line per event, the object of docs/journal.schema.json with "name": the member's short
name or null, "text": text, and in rebalance_completed "diagnosis": text,
"certainty": "certain", "likely" or "possible", and "began_with": the cause that is
diagnosed if the rebalance restarted and the event tells of another one, or null."""


def declare(below: Any) -> None:
    """Add the action."""
    parser = command(
        below, "timeline", "show what happened in a group", _DESCRIPTION, output=("text", "json")
    )
    group_events.add_arguments(parser, "only events this recent, such as 1h or 90 min")
    parser.add_argument(
        "--follow", action="store_true", help="keep printing events as they happen, until Ctrl-C"
    )
    parser.add_argument("--verbose", action="store_true", help="print member ids too, in lines of text")
    parser.set_defaults(work=timeline)


async def timeline(cluster: Cluster, given: Namespace) -> int:
    """Show the recorded events and, with --follow, new ones as they happen."""
    asked_ms = wall_ms()
    since_ms = 0 if given.since is None else max(asked_ms - given.since, 0)
    async with GroupEvents(cluster, given) as events:
        entries = await events.read(max(since_ms - _LOOK_BACK_MS, 0) if since_ms else None)
        told = _Told(given.group, entries, await events.members())
        shown = [each for each in told.entries if each.at_ms >= since_ms]
        if not any(each.group is not None for each in shown) and not given.follow:
            raise Failed(group_events.nothing_known(given.group, since_ms or None))
        if not (given.output == "text" and _drawn(told, given.group, since_ms, asked_ms)):
            await _print(told, shown, given)
        if given.follow:
            async for entries in events.follow():
                if not entries:
                    streams.check_reader()
                    continue
                told.add(entries)
                await _print(told, entries, given)
    return 0


def _drawn(told: _Told, group: str, since_ms: int, now_ms: int) -> bool:
    """Draw the timeline if standard output is a terminal that can show it; return whether it is."""
    if sys.stdout is None or not sys.stdout.isatty():
        return False
    from muster.coordinator.commands.group_picture import can_be_drawn, draw

    if not can_be_drawn(sys.stdout.encoding):
        return False
    draw(group, told.entries, told.names, since_ms=since_ms, now_ms=now_ms)
    return True


class _Diagnosed(NamedTuple):
    """Why a completed rebalance began."""

    finding: Finding
    began_with: str | None
    """What began it, if the event of its end names what restarted it last."""

    def __str__(self) -> str:
        began = "" if self.began_with is None else f"began with {self.began_with}: "
        return f"{began}{self.finding.diagnosis} ({self.finding.certainty})"


class _Told:
    """The events so far, and the diagnoses of their rebalances."""

    def __init__(self, group: str, entries: Sequence[Entry], there: Sequence[Member] | None) -> None:
        """`there`: the current members, if known."""
        self._group = group
        self.entries = list(entries)
        self._there = there
        self.names = names_in(self.entries, there)

    def add(self, entries: Sequence[Entry]) -> None:
        if self._there is not None:
            known = everybody(entries) | {each.id: each for each in self._there}
            now = present(entries, [each.id for each in self._there])
            self._there = [each for each in known.values() if each.id in now]
        self.entries = [*self.entries, *entries][-_REMEMBERED_MAX:]
        self.names = names_in(self.entries, self._there)

    def diagnoses(self) -> dict[int, _Diagnosed]:
        """Diagnoses by the id of the event that completed the rebalance."""
        now = max((each.at_ms for each in self.entries), default=0)
        return {
            id(each.completed): _Diagnosed(diagnosed(each, now, self.names), self._began_with(each))
            for each in rebalances(self.entries)
            if each.completed is not None
        }

    def _began_with(self, rebalance: Rebalance) -> str | None:
        first, told = rebalance.starts[0], rebalance.completed
        if told is None or (first.trigger, first.member) == (told.trigger, told.member):
            return None
        who = "" if first.member is None else f" ({self.names.short(first.member)})"
        return f"{first.trigger or 'unknown cause'}{who}"


async def _print(told: _Told, entries: Sequence[Entry], given: Namespace) -> None:
    """Print a line per event."""
    names, diagnoses = told.names, told.diagnoses()
    lines: list[str] = []
    for entry in entries:
        said, diagnosis = describe(entry, names), diagnoses.get(id(entry))
        if given.output == "json":
            who = None if entry.member is None else names.short(entry.member)
            shown = json.loads(entry.to_json()) | {"name": who, "text": said}
            if diagnosis is not None:
                found = diagnosis.finding
                shown |= {"diagnosis": found.diagnosis, "certainty": found.certainty}
                shown["began_with"] = diagnosis.began_with
            lines.append(output.line(shown))
        else:
            meant = "" if diagnosis is None else f" → {diagnosis}"
            who = f" [{entry.member.id}]" if given.verbose and entry.member is not None else ""
            lines.append(f"{_time(entry.at_ms)}  {printable(said + meant + who)}")
    if lines:
        encoding = "utf-8" if sys.stdout is None else sys.stdout.encoding
        text = "".join(f"{each}\n" for each in lines)
        await streams.write(text.encode(encoding, errors="backslashreplace"))


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000).isoformat(" ", "milliseconds")
