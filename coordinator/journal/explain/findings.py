"""The input and the results of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from muster.coordinator.journal.entries import Entry, Member
from muster.coordinator.journal.explain.facts import flag, same_client, text, texts, whole
from muster.coordinator.journal.explain.names import owners
from muster.coordinator.journal.explain.rebalances import Rebalance, Start
from muster.coordinator.journal.explain.vocabulary import CERTAINTIES, Certainty, Diagnosis, Kind, Trigger
from muster.coordinator.journal.names import Names

GAVE: Final = "reason given: "
LOOK_BACK_MS: Final = 10 * 60_000
"""How far back near misses, evictions and restarts count."""
LOOK_AHEAD_MS: Final = 30 * 60_000
"""How much later a returning client still counts as the one that left."""


class Finding(NamedTuple):
    """The result of one rule."""

    diagnosis: Diagnosis
    certainty: Certainty
    says: str
    """What it means, as a sentence."""
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """One start of a rebalance (or an incident without one) and everything that may explain it."""

    rebalance: Rebalance
    start: Start
    names: Names
    now_ms: int

    @cached_property
    def trigger(self) -> str | None:
        return self.start.trigger

    @cached_property
    def member(self) -> Member | None:
        return self.start.member

    @cached_property
    def reason(self) -> str | None:
        return self.start.entry.reason

    @cached_property
    def step(self) -> list[Entry]:
        """Entries recorded together with the start, the start first."""
        return [self.start.entry, *self.rebalance.step(self.start)]

    @cached_property
    def kind(self) -> Kind:
        """The type of the group as it began: a downgraded group rebalances as a classic one, but the member
        behind it was in a consumer group."""
        downgraded = any(
            each.type == "protocol_migrated" and text(each, "to_type") == Kind.CLASSIC for each in self.step
        )
        return Kind.CONSUMER if downgraded else self.rebalance.kind

    def in_step(self, kind: str) -> Entry | None:
        """The entry of that type about this member or, failing that, any in the step."""
        found = [each for each in self.step if each.type == kind]
        return next((each for each in found if self.is_about(each)), found[0] if found else None)

    def is_about(self, entry: Entry) -> bool:
        return self.member is not None and entry.member is not None and entry.member.id == self.member.id

    @cached_property
    def removed(self) -> Entry | None:
        """The entry of the member's removal."""
        return self.in_step("member_removed")

    @cached_property
    def protocol(self) -> str | None:
        """The assignor in use before; None if the journal does not show it."""
        return self.rebalance.protocol_before(self.start)

    @cached_property
    def is_leader(self) -> bool:
        """Whether the member led the previous generation, as far as the journal shows."""
        leaders = (each.member for each in self.before("assigned", "leader_changed"))
        leader = next((each for each in leaders if each is not None), None)
        return leader is not None and self.member is not None and leader.id == self.member.id

    @cached_property
    def of_consumers(self) -> bool:
        """Whether the members are consumers, as far as the journal shows: what others say is unreadable."""
        if any(texts(each, "topics") for each in self.before("member_added")):
            return True
        assigned = next(self.before("assigned"), None)
        return assigned is None or whole(assigned, "partitions") is not None

    def before(self, *kinds: str, since_ms: int | None = None) -> Iterator[Entry]:
        """Entries of these types, or of any, before the start, newest first; all without `since_ms`."""
        for each in self.rebalance.before(self.start):
            if since_ms is not None and each.at_ms < since_ms:
                return
            if not kinds or each.type in kinds:
                yield each

    @cached_property
    def said(self) -> tuple[str, ...]:
        """The client's reason as evidence, if it gave one."""
        return (f'{GAVE}"{self.reason}"',) if self.reason else ()

    @cached_property
    def silent_ms(self) -> int | None:
        """How long the member had been silent when it was removed."""
        return None if self.removed is None else whole(self.removed, "silent_ms")

    def earlier_of_any_type(self, window_ms: int | None) -> Iterator[Entry]:
        """Entries in the `window_ms` before the start, newest first, or of any age."""
        return self.before(since_ms=None if window_ms is None else self.start.entry.at_ms - window_ms)

    def earlier(self, *kinds: str, window_ms: int = LOOK_BACK_MS) -> Iterator[Entry]:
        """Entries of these types in the `window_ms` before the start, newest first."""
        return self.before(*kinds, since_ms=self.start.entry.at_ms - window_ms)

    def later(self, *kinds: str, window_ms: int = LOOK_AHEAD_MS) -> Iterator[Entry]:
        """Entries of these types after the start."""
        return (each for each in self.rebalance.later(self.start, window_ms) if each.type in kinds)

    @cached_property
    def disconnected_before_ms(self) -> int | None:
        """How long before its removal the member's connection closed; None if it did not, or is unknown."""
        if self.removed is None:
            return None
        noted = whole(self.removed, "disconnected_ms")
        if noted is not None:
            return max(noted, 0)
        if flag(self.removed, "connected") is not None:
            return None  # the member used another connection since, or none
        for each in self.earlier("member_disconnected"):
            if self.is_about(each):
                return max(self.removed.at_ms - each.at_ms, 0)
        return None

    @cached_property
    def connected(self) -> bool | None:
        """Whether the member's connection was open when it was removed; None if unknown."""
        if self.disconnected_before_ms is not None:
            return False
        return None if self.removed is None else flag(self.removed, "connected")

    @cached_property
    def disconnected_after_ms(self) -> int | None:
        """How long after leaving the member's connection closed; None if it did not, or is unknown."""
        for each in self.later("member_disconnected", "member_added", "member_id_issued"):
            if each.type == "member_disconnected":
                if self.is_about(each):
                    noted = whole(each, "after_removal_ms")
                    return max(each.at_ms - self.start.entry.at_ms if noted is None else noted, 0)
            elif self.came_back_as(each):
                break  # later disconnects may belong to its next incarnation
        return None

    def came_back_as(self, entry: Entry) -> bool:
        """Whether a new member is the same process on the same connection."""
        return self.member is not None and text(entry, "former_member_id") == self.member.id

    @cached_property
    def near_misses(self) -> int:
        """How often the member's heartbeats were late in the ten minutes before the start."""
        seen = sum(1 for each in self.earlier("heartbeat_late") if self.is_about(each))
        noted = None if self.removed is None else whole(self.removed, "late")
        return max(seen, noted or 0)

    @cached_property
    def shares_its_name(self) -> bool:
        """Whether others in the group have the same client id and host, so that these do not identify a
        client."""
        if self.member is None:
            return False
        mine = self.member
        others = {
            each.member.id
            for each in (*self.earlier("member_added", "member_removed", "heartbeat_late"), *self.step)
            if each.member is not None and each.member.id != mine.id and same_client(each.member, mine)
        }
        return len(others) > 1 or any(
            each.id != mine.id and same_client(each, mine) for each in owners(self.rebalance, self.names)
        )


Rule = Callable[[Case], Finding | None]


def weigh(findings: list[Finding]) -> list[Finding]:
    """Findings by certainty, then in the order of the rules; each diagnosis once. If any is certain, the
    uncertain ones are dropped."""
    best: dict[Diagnosis, Finding] = {}
    for each in sorted(findings, key=lambda found: CERTAINTIES.index(found.certainty)):
        best.setdefault(each.diagnosis, each)
    kept = list(best.values())
    if kept and kept[0].certainty is Certainty.CERTAIN:
        return [each for each in kept if each.certainty is Certainty.CERTAIN]
    return kept


def is_eviction(entry: Entry) -> bool:
    """Whether a member was evicted rather than left."""
    return entry.type == "member_removed" and entry.trigger in (
        Trigger.SESSION_EXPIRED,
        Trigger.SYNC_TIMED_OUT,
        Trigger.REBALANCE_TIMED_OUT,
        Trigger.NEW_MEMBER_EXPIRED,
        Trigger.GROUP_FULL,
        Trigger.REVOCATION_TIMED_OUT,
    )
