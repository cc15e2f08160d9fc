"""What a rebalance moved, and what it cost: partitions without an owner, and lag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from muster.coordinator.observe.explain.facts import Move, counts, flag, lag, lag_before, moves, text, whole
from muster.coordinator.observe.explain.rebalances import LOOK_ENTRIES_MAX, Rebalance
from muster.coordinator.observe.explain.vocabulary import EMPTY, Trigger

_BEFORE_MS: Final = 60 * 60_000
"""A lag that was told longer ago says nothing about the moment before."""
_SILENT_MS: Final = 1_000
"""In less than that no lag worth telling comes up."""
_SLACK: Final = 10
"""Lag goes up and down with the commits: all but one part in so many of its growth made up for is all."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What the leader's assignment changed; None is not known."""

    partitions: int | None
    kept: int | None
    moved: int | None
    lost: int | None
    moves: tuple[Move, ...]
    owned: dict[str, int]
    truncated: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "partitions": self.partitions,
            "kept": self.kept,
            "moved": self.moved,
            "lost": self.lost,
            "moves": [list(each) for each in self.moves],
            "owned": self.owned,
            "truncated": self.truncated,
        }


class Unowned(NamedTuple):
    """Partitions that nobody worked on for so long."""

    partitions: tuple[tuple[str, int], ...]
    ms: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What it meant for the records; None is not known."""

    unowned: tuple[Unowned, ...]
    """The longest first."""
    lag_before: int | None
    lag_peak: int | None
    """The largest seen until it had recovered, or until now."""
    recovered_ms: int | None
    """When lag was back at what it was, epoch ms; None: not yet, or not known."""
    commits_refused: int
    """OffsetCommits of the generation that ended: what they were for is delivered again."""

    @property
    def lag_growth(self) -> int | None:
        """Records that came to wait because of it."""
        if self.lag_before is None or self.lag_peak is None:
            return None
        return max(self.lag_peak - self.lag_before, 0)

    def to_json(self) -> dict[str, Any]:
        return {
            "unowned": [
                {"partitions": [list(part) for part in each.partitions], "ms": each.ms}
                for each in self.unowned
            ],
            "lag_before": self.lag_before,
            "lag_peak": self.lag_peak,
            "lag_growth": self.lag_growth,
            "recovered_ms": self.recovered_ms,
            "commits_refused": self.commits_refused,
        }


def moved(rebalance: Rebalance) -> Moved | None:
    """What its assignment changed; None without one, or one that the coordinator cannot read."""
    entry = rebalance.assigned
    if entry is None or (whole(entry, "partitions") is None and not moves(entry)):
        return None
    return Moved(
        whole(entry, "partitions"),
        whole(entry, "kept"),
        whole(entry, "moved"),
        whole(entry, "lost"),
        tuple(moves(entry)),
        counts(entry, "owned"),
        bool(flag(entry, "truncated")),
    )


def cost(rebalance: Rebalance) -> Cost | None:
    """What it cost, as far as the journal says; None when it says nothing."""
    unowned = _unowned(rebalance)
    before, peak, recovered_ms = _lag(rebalance)
    refused = _commits_refused(rebalance)
    if not unowned and peak is None and not refused:
        return None
    return Cost(tuple(unowned), before, peak, recovered_ms, refused)


# --- partitions ---------------------------------------------------------------------------------------------


def _unowned(rebalance: Rebalance) -> list[Unowned]:
    """By how long: from when the former owner stopped to the end of the rebalance. One that went stopped with
    its last sign of life or its LeaveGroup; one that is still there when it rejoined, for until it hears of
    the rebalance it works on; where nobody noted when that was, at the start of the rebalance."""
    if rebalance.assigned is None or rebalance.ended_ms is None or rebalance.state == EMPTY:
        return []
    stopped = _rejoined(rebalance) | _stopped(rebalance)
    withheld = _withheld(rebalance)
    by_ms: dict[int, list[tuple[str, int]]] = {}
    for each in moves(rebalance.assigned):
        where = (each.topic, each.partition)
        if each.to_member is None:
            continue  # nobody has it yet: the next rebalance tells
        if each.from_member is not None:
            since_ms = stopped.get(each.from_member, rebalance.started_ms)
        elif where in withheld:
            since_ms = withheld[where]
        else:
            continue
        by_ms.setdefault(max(rebalance.ended_ms - since_ms, 0), []).append(where)
    return [Unowned(tuple(sorted(by_ms[ms])), ms) for ms in sorted(by_ms, reverse=True)]


def _stopped(rebalance: Rebalance) -> dict[str, int]:
    """When members that are gone stopped working, by member id."""
    stopped: dict[str, int] = {}
    for each in rebalance.entries:
        if each.type == "member_removed" and each.member is not None:
            silent_ms = 0
            if each.trigger == Trigger.SESSION_EXPIRED:
                silent_ms = max(whole(each, "silent_ms") or 0, 0)
            stopped[each.member.id] = each.at_ms - silent_ms
        elif each.type == "member_replaced" and (old := text(each, "old_member_id")) is not None:
            stopped[old] = each.at_ms - max(whole(each, "old_silent_ms") or 0, 0)
    return stopped


def _rejoined(rebalance: Rebalance) -> dict[str, int]:
    """When members gave up what they had, by member id."""
    rejoined: dict[str, int] = {}
    for each in rebalance.entries:
        if each.type == "member_rejoined" and each.member is not None:
            rejoined.setdefault(each.member.id, each.at_ms)
    return rejoined


def _withheld(rebalance: Rebalance) -> dict[tuple[str, int], int]:
    """Partitions that the assignment before took from somebody and gave to nobody (KIP-429), and when."""
    for index in range(rebalance.first - 1, max(-1, rebalance.first - LOOK_ENTRIES_MAX), -1):
        entry = rebalance.stream[index]
        if entry.type == "assigned":
            return {
                (each.topic, each.partition): entry.at_ms
                for each in moves(entry)
                if each.to_member is None and each.from_member is not None
            }
    return {}


# --- lag ----------------------------------------------------------------------------------------------------


def _lag(rebalance: Rebalance) -> tuple[int | None, int | None, int | None]:
    """Lag before, at its largest, and when it had recovered."""
    since_ms = min([rebalance.started_ms, *_stopped(rebalance).values()])
    done = rebalance.completed
    noted = None if done is None else lag_before(done)
    # What is noted is the lag as the rebalance began: by then that of a member that fell silent has grown.
    silent = since_ms < rebalance.started_ms - _SILENT_MS
    before = None if silent else noted
    for each in rebalance.earlier(_BEFORE_MS) if before is None else ():
        if each.at_ms <= since_ms and each.type in ("lag_at_commit", "rebalance_completed"):
            before = lag(each)
            if before is not None:
                break
    if before is not None and noted is not None:
        before = min(before, noted)
    peak: int | None = None
    for each in ([] if done is None else [done]) + list(rebalance.after[:LOOK_ENTRIES_MAX]):
        if each.type in ("lag_at_commit", "rebalance_completed") and (found := lag(each)) is not None:
            peak = found if peak is None else max(found, peak)
            back = before is not None and found - before <= max(peak - before, 0) // _SLACK
            said = flag(each, "recovered") is True and not silent
            if each.type == "lag_at_commit" and (said or back):
                return before, peak, each.at_ms
    return before, peak, None


def _commits_refused(rebalance: Rebalance) -> int:
    """Refused commits of generations that this rebalance ended."""
    generation = rebalance.generation
    return sum(
        1
        for each in (*rebalance.entries, *rebalance.after[:LOOK_ENTRIES_MAX])
        if each.type == "commit_refused"
        and (generation is None or (whole(each, "committed_generation_id") or 0) < generation)
    )
