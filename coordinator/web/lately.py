"""A group's recent rebalances for the overview: how many, and the cause of the last one. Read from the
journal, explained in a thread, and cached until something new happens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence, Set
from typing import Any, Final, NamedTuple

from muster.coordinator.group.group import Group
from muster.coordinator.journal.entries import Entry
from muster.coordinator.journal.explain import Outcome, explained, rebalances
from muster.coordinator.journal.names import Names
from muster.coordinator.runtime.ring import GROUP_ENTRIES_MAX
from muster.coordinator.server.brokers import Brokers
from muster.coordinator.web import facts
from muster.coordinator.web.tallies import Tallies
from muster.coordinator.web.trends import Point

HOUR_MS: Final = 3_600_000
_LEARNED_AT_ONCE: Final = 200
"""Maximum groups explained for one response; the rest wait for the next one."""
_LEARNED_S: Final = 0.5
_SETTLED_MS: Final = 60_000
"""Entries this soon after a rebalance may still change its explanation."""
_AGAIN_MS: Final = 5_000


class Digest(NamedTuple):
    """A summary of a group's journal."""

    began_ms: tuple[int, ...]
    """Start times of its rebalances, oldest first."""
    known_from_ms: int
    """How far back the journal covers the group."""
    last: dict[str, Any] | None
    """The last completed rebalance."""
    lags: tuple[Point, ...]
    """Its lag at commits."""

    def how_often(self, now_ms: int) -> dict[str, int]:
        """How many rebalances began within the last hour, or since the journal began to cover the group if
        that is shorter."""
        within_ms = min(max(now_ms - self.known_from_ms, 0), HOUR_MS)
        return {"count": sum(each >= now_ms - within_ms for each in self.began_ms), "within_ms": within_ms}


class _Known(NamedTuple):
    digest: Digest
    mark: object
    """The group's generation, state and last rebalance at that time."""
    at_ms: int


class Lately:
    """The digests of requested groups."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def of(self, group_id: str) -> Digest | None:
        """A group's digest; None if its journal has not been read yet."""
        known = self._known.get(group_id)
        return None if known is None else known.digest

    def _forget_others(self, group_ids: Set[str]) -> None:
        for group_id in self._known.keys() - group_ids:
            del self._known[group_id]

    async def learn(self, brokers: Brokers, tallies: Tallies, some: Sequence[facts.Held]) -> None:
        """Read the journals of groups that may have something new; if they are many, only some. Groups that
        are gone, or have moved to another process, are forgotten."""
        since = time.perf_counter()
        due = [each for each in some if self._is_due(each, tallies)]
        if due:
            self._forget_others({each.group.group_id for each in facts.held(brokers)})
        for broker, group, _ in due[:_LEARNED_AT_ONCE]:
            if time.perf_counter() - since > _LEARNED_S:
                break
            now_ms, mark = broker.clock.now_ms(), _mark(group, tallies)
            entries = facts.journalled(brokers, group.group_id)
            names = facts.names_of(group, entries)
            digest = await asyncio.to_thread(digested, entries, names, now_ms)
            self._known[group.group_id] = _Known(digest, mark, now_ms)

    def _is_due(self, held: facts.Held, tallies: Tallies) -> bool:
        known = self._known.get(held.group.group_id)
        if known is None or known.mark != _mark(held.group, tallies):
            return True
        now_ms = held.broker.clock.now_ms()
        last_ms = known.digest.began_ms[-1] if known.digest.began_ms else None
        if known.digest.last is not None:
            last_ms = known.digest.last["at_ms"]
        settled = last_ms is None or known.at_ms > last_ms + _SETTLED_MS
        return not settled and now_ms > known.at_ms + _AGAIN_MS


def _mark(group: Group, tallies: Tallies) -> object:
    tally = tallies.groups.get(group.group_id)
    return group.generation_id, group.view().state, None if tally is None else tally.last


def digested(entries: Sequence[Entry], names: Names, now_ms: int) -> Digest:
    """The digest of one group's entries, oldest first, with these member names."""
    own = [each for each in entries if each.group is not None]
    found = rebalances(entries)
    over = [each for each in found if each.outcome is not Outcome.UNDER_WAY]
    last = None
    if over:
        told = explained(over[-1], now_ms, names=names)
        last = {
            "at_ms": told.started_ms if told.ended_ms is None else told.ended_ms,
            "generation": told.generation,
            "cause": told.cause,
            "member": None if told.member is None else facts.named(told.member, names),
            "diagnosis": told.diagnosis.value,
            "certainty": told.certainty.value,
            "meaning": told.meaning,
        }
    others = [each for each in own if each.type != "lag_at_commit"]
    # Lag entries have a ring of their own, which may reach back further than a full one of the others.
    reach = others if len(others) >= GROUP_ENTRIES_MAX else own
    lags = [(each.at_ms, each.data.get("total")) for each in own if each.type == "lag_at_commit"]
    return Digest(
        began_ms=tuple(each.started_ms for each in found),
        known_from_ms=reach[0].at_ms if reach else now_ms,
        last=last,
        lags=tuple((at_ms, total) for at_ms, total in lags if isinstance(total, int)),
    )
