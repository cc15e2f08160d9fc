"""What a rebalance moved and what it cost: partitions without an owner, and lag."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from muster.coordinator.journal.entries import Entry
from muster.coordinator.journal.explain import pace
from muster.coordinator.journal.explain.consumer import cost as of_consumers
from muster.coordinator.journal.explain.facts import (
    Move,
    counts,
    flag,
    growths,
    lag,
    lag_before,
    moves,
    text,
    texts,
    whole,
)
from muster.coordinator.journal.explain.pace import BEFORE_MS, WINDOW_MS, FallingBehind
from muster.coordinator.journal.explain.rebalances import FOLLOW_UP_MS, LOOK_ENTRIES_MAX, Rebalance
from muster.coordinator.journal.explain.vocabulary import COMPLETING, EMPTY, Kind, Trigger

_SILENT_MS: Final = 1_000
"""A shorter silence causes no lag worth mentioning."""
_FIRST_MS: Final = 15_000
"""The first lag sample comes ten seconds after a rebalance; it stands in for the lag at its end if that is
unknown."""
_EAGER: Final = frozenset({"range", "roundrobin", "sticky"})
"""Kafka's assignors with which members give up everything when they rejoin (KIP-429)."""
_STOP_MS: Final = 1_000
"""A shorter stop of partitions that keep their owner is not worth mentioning."""
_SLACK: Final = 10
"""Lag fluctuates with commits: it has recovered when all but 1/_SLACK of its growth is made up."""
_SILENCED: Final = frozenset(
    {
        Trigger.SESSION_EXPIRED,
        Trigger.SYNC_TIMED_OUT,
        Trigger.REBALANCE_TIMED_OUT,
        Trigger.REVOCATION_TIMED_OUT,
    }
)
"""Members removed for these may have died long before: they stopped with their last heartbeat."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What the assignment changed; None is unknown."""

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


class Stopped(NamedTuple):
    """Partitions that kept their owner, but were given up by it during the rebalance."""

    partitions: int
    ms: int
    """The longest time between a member's JoinGroup and the assignment."""
    protocol: str
    """The assignor that demands it."""


class Unowned(NamedTuple):
    """Partitions without an owner, and for how long."""

    partitions: tuple[tuple[str, int], ...]
    ms: int


@dataclass(frozen=True, slots=True)
class Lag:
    """Lag in records, in total; None is unknown."""

    before: int | None
    """Before the rebalance, or before one of its members fell silent."""
    after: int | None
    """At its end."""
    peak: int | None
    """The maximum until it recovered, at most ten minutes after the end."""
    recovered_ms: int | None = None
    """When the lag was back at its former level, epoch ms; None: not within those ten minutes."""
    recovered_in: int | None = None
    """The generation in which it recovered, if another rebalance had begun by then."""
    next_ms: int | None = None
    """When the next rebalance began, if within those ten minutes and before the lag recovered."""

    @property
    def growth(self) -> int | None:
        """Growth of the lag during the rebalance. Later growth is not its doing: every partition has an owner
        again, so lag only grows if the owner reads more slowly than records arrive."""
        if self.before is None or self.after is None:
            return None
        return max(self.after - self.before, 0)


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost in records; None is unknown."""

    unowned: tuple[Unowned, ...]
    """The longest first."""
    arrived: int | None
    """Approximate number of records that arrived in partitions without an owner: rate times duration."""
    lag: Lag
    falling_behind: FallingBehind | None
    """Lag that grew afterwards for another reason."""
    commits_refused: int
    """Refused OffsetCommits of the ended generation: their records are delivered again."""
    kept_stopped: Stopped | None = None
    """What the members of a classic group kept, if that stood still for a second or more."""

    @property
    def lag_before(self) -> int | None:
        """See `Lag.before`."""
        return self.lag.before

    @property
    def recovered_ms(self) -> int | None:
        """See `Lag.recovered_ms`."""
        return self.lag.recovered_ms

    @property
    def waited(self) -> int | None:
        """Records that had to wait because of the rebalance: those that arrived in partitions without an
        owner or, if the rates are unknown, the growth of the lag during it."""
        return self.lag.growth if self.arrived is None else self.arrived

    def to_json(self) -> dict[str, Any]:
        return {
            "unowned": [
                {"partitions": [list(part) for part in each.partitions], "ms": each.ms}
                for each in self.unowned
            ],
            "kept_stopped": None if self.kept_stopped is None else self.kept_stopped._asdict(),
            "arrived": self.arrived,
            "lag_before": self.lag.before,
            "lag_after": self.lag.after,
            "lag_peak": self.lag.peak,
            "lag_growth": self.lag.growth,
            "recovered_ms": self.lag.recovered_ms,
            "recovered_in": self.lag.recovered_in,
            "next_ms": self.lag.next_ms,
            "falling_behind": None if self.falling_behind is None else self.falling_behind.to_json(),
            "commits_refused": self.commits_refused,
        }


def moved(rebalance: Rebalance) -> Moved | None:
    """What the assignment changed; None without an assignment, or if the coordinator cannot read it."""
    entry = rebalance.assigned
    if entry is None or (whole(entry, "partitions") is None and not moves(entry)):
        return None
    if rebalance.kind is Kind.CONSUMER:
        return _moved_to_target(rebalance, entry)
    return Moved(
        whole(entry, "partitions"),
        whole(entry, "kept"),
        whole(entry, "moved"),
        whole(entry, "lost"),
        tuple(moves(entry)),
        counts(entry, "owned"),
        bool(flag(entry, "truncated")),
    )


def _moved_to_target(rebalance: Rebalance, target: Entry) -> Moved:
    """What a consumer group moved, from the target before the rebalance to its last."""
    changed = of_consumers.moved(rebalance)
    total = whole(target, "partitions")
    to_others = sum(each.from_member is not None and each.to_member is not None for each in changed)
    kept = whole(target, "kept")
    if len(rebalance.targets) > 1 and total is not None:
        kept = max(total - sum(each.to_member is not None for each in changed), 0)
    return Moved(
        total,
        kept,
        to_others if len(rebalance.targets) > 1 else whole(target, "moved"),
        sum(each.to_member is None for each in changed)
        if len(rebalance.targets) > 1
        else whole(target, "lost"),
        tuple(changed),
        counts(target, "owned"),
        any(flag(each, "truncated") for each in rebalance.targets),
    )


def cost(rebalance: Rebalance) -> Cost | None:
    """The cost as far as the journal shows; None if it shows nothing."""
    ownerless = unowned(rebalance, moves_since(rebalance))
    found = lag_of(rebalance)
    refused = _commits_refused(rebalance)
    kept = kept_stopped(rebalance)
    if not ownerless and found.peak is None and not refused and kept is None:
        return None
    arrived = pace.arrived(rebalance, ownerless) if ownerless else None
    return Cost(tuple(ownerless), arrived, found, pace.falling_behind(rebalance), refused, kept)


# --- partitions ---------------------------------------------------------------------------------------------


def unowned(rebalance: Rebalance, since: Iterable[tuple[Move, int | None]]) -> list[Unowned]:
    """How long each partition that has an owner again had none, longest first; `since` is the result of
    `moves_since`."""
    if rebalance.ended_ms is None or rebalance.state == EMPTY:
        return []
    if rebalance.kind is Kind.CONSUMER:
        still, _ = of_consumers.stood_still(rebalance, stopped(rebalance))
    else:
        still = {
            (each.topic, each.partition): max(rebalance.ended_ms - since_ms, 0)
            for each, since_ms in since
            if each.to_member is not None and since_ms is not None
        }
    by_ms: dict[int, list[tuple[str, int]]] = {}
    for part, ms in still.items():
        by_ms.setdefault(ms, []).append(part)
    return [Unowned(tuple(sorted(by_ms[ms])), ms) for ms in sorted(by_ms, reverse=True)]


def kept_stopped(rebalance: Rebalance) -> Stopped | None:
    """With an eager assignor, whoever rejoins gives up its partitions, also those that it gets back."""
    if rebalance.kind is Kind.CONSUMER or rebalance.ended_ms is None or rebalance.assigned is None:
        return None
    kept = whole(rebalance.assigned, "kept")
    protocol = rebalance.protocol_before(rebalance.starts[0])
    if not kept or protocol not in _EAGER:
        return None
    gone = stopped(rebalance)
    rejoined = [at_ms for who, at_ms in _rejoined(rebalance).items() if who not in gone]
    ms = rebalance.ended_ms - min(rejoined, default=rebalance.started_ms)
    return Stopped(kept, ms, protocol) if ms >= _STOP_MS else None


def moves_since(rebalance: Rebalance) -> list[tuple[Move, int | None]]:
    """What the assignment moved, and since when each partition had no owner (epoch ms; None: it had none
    before, or the rebalance is in progress): since the former owner stopped. In a consumer group it stopped
    when it had revoked the partition. A member that left stopped at its last sign of life or its LeaveGroup.
    A member that stayed stopped when it rejoined, since it works until it learns of the rebalance; if that
    time is unknown, at the start of the rebalance. A partition that has no owner now kept its owner until the
    end of the rebalance."""
    if rebalance.kind is Kind.CONSUMER:
        _, first = of_consumers.stood_still(rebalance, stopped(rebalance))
        return [(each, first.get((each.topic, each.partition))) for each in of_consumers.moved(rebalance)]
    if rebalance.assigned is None:
        return []
    gone, rejoined, withheld = stopped(rebalance), _rejoined(rebalance), _withheld(rebalance)
    found: list[tuple[Move, int | None]] = []
    for each in moves(rebalance.assigned):
        since_ms = withheld.get((each.topic, each.partition))
        if each.from_member in gone:
            since_ms = gone[each.from_member]
        elif each.from_member is not None:
            is_given = each.to_member is not None
            since_ms = (
                rejoined.get(each.from_member, rebalance.started_ms) if is_given else rebalance.ended_ms
            )
        found.append((each, since_ms))
    return found


def stopped(rebalance: Rebalance) -> dict[str, int]:
    """When removed members stopped working, by member id."""
    found: dict[str, int] = {}
    for index, each in enumerate(rebalance.entries, rebalance.first):
        if each.type == "member_removed" and each.member is not None:
            silent_ms = 0
            if each.trigger in _SILENCED:
                silent_ms = max(whole(each, "silent_ms") or 0, 0)
            found[each.member.id] = each.at_ms - silent_ms
            if each.trigger == Trigger.SYNC_TIMED_OUT and rebalance.kind is Kind.CLASSIC:
                # Since then it has had no assignment.
                found[each.member.id] = min(found[each.member.id], _joined_ms(rebalance, index))
        elif each.type == "member_replaced" and (old := text(each, "old_member_id")) is not None:
            found[old] = each.at_ms - max(whole(each, "old_silent_ms") or 0, 0)
    return found


def _joined_ms(rebalance: Rebalance, at: int) -> int:
    """When the newest generation before stream[at] began; the time of stream[at] if that is unknown."""
    for index in range(at - 1, max(-1, at - LOOK_ENTRIES_MAX), -1):
        if text(rebalance.stream[index], "to_state") == COMPLETING:
            return rebalance.stream[index].at_ms
    return rebalance.stream[at].at_ms


def _rejoined(rebalance: Rebalance) -> dict[str, int]:
    """When members gave up their partitions, by member id."""
    rejoined: dict[str, int] = {}
    first = rebalance.starts[0]
    by_joining = first.trigger in (Trigger.LEADER_REJOINED, Trigger.METADATA_CHANGED)
    if by_joining and first.member is not None and rebalance.began_in_sight:
        rejoined[first.member.id] = rebalance.started_ms
    for each in rebalance.entries:
        if each.type == "member_rejoined" and each.member is not None:
            rejoined.setdefault(each.member.id, each.at_ms)
    return rejoined


def _withheld(rebalance: Rebalance) -> dict[tuple[str, int], int]:
    """Partitions that the assignment just before revoked without giving them to anyone (KIP-429), and when.
    Those of topics that the group has only now were not withheld, nor is anything from a group without
    members."""
    for entry in rebalance.earlier(FOLLOW_UP_MS):
        if entry.type in ("group_created", "group_removed") or text(entry, "to_state") == EMPTY:
            break
        if entry.type == "assigned":
            new = _new_topics(rebalance)
            return {
                (each.topic, each.partition): entry.at_ms
                for each in moves(entry)
                if each.to_member is None and each.from_member is not None and each.topic not in new
            }
    return {}


def _new_topics(rebalance: Rebalance) -> set[str]:
    """Topics that did not exist before the rebalance, or that one of its members subscribed to in it."""
    found: set[str] = set()
    for each in rebalance.entries:
        if each.type == "topics_grown":
            found.update(growth.topic for growth in growths(each) if growth.before == 0)
        elif each.type == "metadata_changed":
            found.update(texts(each, "topics_added"))
    return found


# --- lag ----------------------------------------------------------------------------------------------------


def lag_of(rebalance: Rebalance) -> Lag:
    """The lag before, during and after the rebalance."""
    since_ms = min([rebalance.started_ms, *stopped(rebalance).values()])
    done = rebalance.completed
    noted = None if done is None else lag_before(done)
    # The lag noted is that at the start of the rebalance, when a silent member's lag had already grown.
    silent = since_ms < rebalance.started_ms - _SILENT_MS
    before = None if silent else noted
    for each in rebalance.earlier(BEFORE_MS) if before is None else ():
        if each.at_ms <= since_ms and each.type in ("lag_at_commit", "rebalance_completed"):
            before = lag(each)
            if before is not None:
                break
    if before is not None and noted is not None:
        before = min(before, noted)
    after = None if done is None else lag(done)
    if after is None and rebalance.ended_ms is not None:
        after = _first_lag(rebalance, rebalance.ended_ms + _FIRST_MS)
    peak = after
    if rebalance.ended_ms is None:
        return Lag(before, after, peak)
    stream, last = rebalance.stream, rebalance.last
    next_ms: int | None = None
    for index in range(last, min(len(stream), last + LOOK_ENTRIES_MAX)):
        each = stream[index]
        if each.at_ms > rebalance.ended_ms + WINDOW_MS:
            continue
        if index == rebalance.until:
            next_ms = each.at_ms
        if each.type not in ("lag_at_commit", "rebalance_completed") or (found := lag(each)) is None:
            continue
        peak = found if peak is None else max(found, peak)
        # A recovery noted after the next rebalance began is that rebalance's.
        said = flag(each, "recovered") is True and not silent and index < rebalance.until
        if said or (before is not None and found - before <= max(peak - before, 0) // _SLACK):
            other = None if index < rebalance.until else each.generation
            return Lag(before, after, peak, each.at_ms, other, next_ms)
    return Lag(before, after, peak, next_ms=next_ms)


def _first_lag(rebalance: Rebalance, until_ms: int) -> int | None:
    """The first lag sample between this rebalance and the next."""
    told = (each for each in rebalance.after[:LOOK_ENTRIES_MAX] if each.type == "lag_at_commit")
    return next((lag(each) for each in told if each.at_ms <= until_ms), None)


def _commits_refused(rebalance: Rebalance) -> int:
    after = rebalance.after[:LOOK_ENTRIES_MAX]
    return sum(1 for each in (*rebalance.entries, *after) if is_refused(rebalance, each))


def is_refused(rebalance: Rebalance, entry: Entry) -> bool:
    """Whether the entry is a refused commit of a generation that this rebalance ended."""
    if entry.type != "commit_refused":
        return False
    generation, committed = rebalance.generation, whole(entry, "committed_generation_id")
    if committed is None or committed < 0:
        return False  # of no generation, as of a consumer that assigns its partitions itself
    return generation is None or committed < generation
