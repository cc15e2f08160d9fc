"""Writes the entries of a group's life by hand, in the order a coordinator would."""

from __future__ import annotations

from typing import Any, Self

from muster.coordinator.journal.entries import Entry, Member

T0 = 1_767_276_192_412
"""14:03:12.412 UTC on the first of January 2026."""


def member(name: str, host: str = "10.0.0.7", instance: str | None = None, tail: str = "111111") -> Member:
    return Member(f"{name}-{tail}", name, host, instance)


WEB_1 = member("web-1", "10.0.0.6")
WEB_2 = member("web-2")
WEB_3 = member("web-3", "10.0.0.8")


class Life:
    """Entries of one group. `at` is in ms since T0 and applies until it is set again."""

    def __init__(self, group: str = "billing", generation: int = 6, shard: int = 3) -> None:
        self.entries: list[Entry] = []
        self.group, self.generation, self.shard = group, generation, shard
        self.at_ms = T0
        self.broker = 1
        self._changed_ms: int | None = None
        """When the group last changed its state."""

    def at(self, ms: int) -> Self:
        self.at_ms = T0 + ms
        return self

    def add(
        self,
        kind: str,
        who: Member | None = None,
        *,
        trigger: str | None = None,
        reason: str | None = None,
        **data: Any,
    ) -> Self:
        shown = {name: _json(value) for name, value in data.items()}
        self.entries.append(
            Entry(
                kind,
                self.at_ms,
                self.broker,
                self.shard,
                self.group,
                self.generation,
                trigger,
                who,
                reason,
                shown,
            )
        )
        return self

    def shard_event(self, kind: str, **data: Any) -> Self:
        """Add an entry about the shard, or with shard=-1 about the broker."""
        shard = data.pop("shard", self.shard)
        self.entries.append(Entry(kind, self.at_ms, self.broker, shard, None, None, data=data))
        return self

    # --- steps ----------------------------------------------------------------------------------------------

    def preparing(
        self,
        who: Member | None,
        trigger: str,
        *,
        from_state: str = "Stable",
        waiting_for: tuple[Member, ...] = (),
        pending: tuple[str, ...] = (),
        reason: str | None = None,
        until_ms: int | None = None,
    ) -> Self:
        """The group enters PreparingRebalance."""
        return self.add(
            "state_changed",
            who,
            trigger=trigger,
            reason=reason,
            from_state=from_state,
            to_state="PreparingRebalance",
            phase_ms=self._phase_ms(60_000),
            waiting_for=waiting_for,
            pending_member_ids=list(pending),
            until_ms=until_ms,
        )

    def joined(
        self,
        trigger: str = "all members joined",
        *,
        waiting_for: tuple[Member, ...] = (),
        leader: Member | None = None,
        until_ms: int | None = None,
    ) -> Self:
        """The joins are complete, and the new generation begins; `waiting_for` did not come in time."""
        self.generation += 1
        return self.add(
            "state_changed",
            trigger=trigger,
            from_state="PreparingRebalance",
            to_state="CompletingRebalance",
            phase_ms=self._phase_ms(),
            waiting_for=waiting_for,
            pending_member_ids=[],
            until_ms=until_ms,
            leader=leader,
        )

    def stable(self, who: Member | None, trigger: str, started: int, joined: int, **data: Any) -> Self:
        """The leader's assignment has arrived; `started` and `joined` are in ms since T0. `waiting_for` have
        yet to ask for theirs."""
        waiting_for: tuple[Member, ...] = data.pop("waiting_for", ())
        self.add(
            "state_changed",
            who,
            trigger="leader sent the assignment",
            from_state="CompletingRebalance",
            to_state="Stable",
            phase_ms=self._phase_ms(),
            waiting_for=waiting_for,
            pending_member_ids=[],
        )
        return self.completed(who, trigger, started, joined, **data)

    def _phase_ms(self, unknown: int = 0) -> int:
        """How long the group was in the state that it leaves now."""
        since_ms, self._changed_ms = self._changed_ms, self.at_ms
        return unknown if since_ms is None else max(self.at_ms - since_ms, 0)

    def completed(self, who: Member | None, trigger: str, started: int, joined: int, **data: Any) -> Self:
        reason = data.pop("reason", None)
        given = {
            "started_ms": T0 + started,
            "join_ms": joined - started,
            "assignment_ms": self.at_ms - T0 - joined,
            "restarts": 0,
            "members": 2,
            "dropped": [],
            "last_joined": None,
            "joins": [],
        } | {name: _json(value) for name, value in data.items()}
        return self.add("rebalance_completed", who, trigger=trigger, reason=reason, **given)

    def rebalanced(
        self, who: Member | None, trigger: str, *, reason: str | None = None, took: int = 200, **data: Any
    ) -> Self:
        """A complete rebalance that begins with the step already written and ends `took` ms later."""
        began = self.at_ms - T0
        self.preparing(who, trigger, reason=reason)
        self.at(began + took // 2).joined()
        return self.at(began + took).stable(who, trigger, began, began + took // 2, reason=reason, **data)


def _json(value: Any) -> Any:
    if isinstance(value, Member):
        return value.to_json()
    if isinstance(value, list | tuple):
        return [_json(each) for each in value]
    return value
