"""One log line per rebalance, with its cause, from the events of the group core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from muster.coordinator.base.log import Logger
from muster.coordinator.group.events import (
    Event,
    GroupRemoved,
    MemberIdentity,
    MemberRemoved,
    RebalanceCompleted,
    Trigger,
)
from muster.coordinator.journal.names import Names
from muster.coordinator.runtime.recorder import member_of

_NAMES_MAX: Final = 5

log = Logger(part="groups")


class RebalanceLog:
    """Takes a shard's events in order; logs each rebalance once it completes.

    Most clients give no reason, so an expired session is classified by whether the member was still
    connected. The only state is what sessions expired in a group, until its rebalance completes.
    """

    def __init__(
        self, node_id: int, members: Callable[[str], Sequence[MemberIdentity]] = lambda group_id: ()
    ) -> None:
        """`members` returns a group's current members, to tell members with the same client id apart."""
        self._members = members
        self._log = log.bind(node=node_id)
        self._expired: dict[str, dict[str, MemberRemoved]] = {}
        """By group and member id. Those of a group that was loaded elsewhere meanwhile may be old."""

    def observe(self, shard: int, events: Sequence[Event]) -> None:
        """Take events of durable steps, in step order."""
        for event in events:
            match event:
                case MemberRemoved(trigger=Trigger.SESSION_EXPIRED, member=MemberIdentity(member_id)):
                    self._expired.setdefault(event.group_id, {})[member_id] = event
                case RebalanceCompleted():
                    self._completed(shard, event)
                case GroupRemoved():
                    self._expired.pop(event.group_id, None)

    def _completed(self, shard: int, event: RebalanceCompleted) -> None:
        of_group = self._expired.pop(event.group_id, {})
        expired = None if event.member is None else of_group.get(event.member.member_id)
        there = [member_of(each) for each in self._members(event.group_id)]
        mentioned = [*event.dropped, *filter(None, (event.member, event.last_joined))]
        names = Names([*map(member_of, mentioned), *there], {each.id for each in there})
        fields: dict[str, object] = {
            "group": event.group_id,
            "cause": cause(event, names, expired),
            "generation": event.generation_id,
            "members": event.members,
        }
        if event.target_ms is None:
            fields |= {
                "took_ms": event.join_ms + event.assignment_ms,
                "join_ms": event.join_ms,
                "sync_ms": event.assignment_ms,
            }
        else:
            fields |= {
                "took_ms": event.at_ms - event.started_ms,
                "target_ms": event.target_ms,
                "reconcile_ms": event.reconcile_ms,
            }
        fields["shard"] = shard
        if event.restarts:
            fields["restarts"] = event.restarts
        if event.dropped:
            fields["dropped"] = _listed(names, event.dropped)
        if event.last_joined is not None and event.members > 1:
            fields["waited_for"] = _name(names, event.last_joined)
        self._log.info("group rebalanced", **fields)


def cause(event: RebalanceCompleted, names: Names, expired: MemberRemoved | None = None) -> str:
    """Why the group rebalanced, in words; `expired` is the session expiry that started the rebalance."""
    text = event.trigger.value
    if event.member is not None:
        text += f": {_name(names, event.member)}"
    if event.trigger is Trigger.SESSION_EXPIRED and expired is not None:
        if expired.away:
            state = "it had left temporarily and did not come back"
        elif expired.connected:
            state = "its connection is open, the process stalled"
        else:
            state = "it crashed or was cut off"
        text += f" (silent for {expired.silent_ms} ms; {state})"
    if event.reason:
        text += f" ({event.reason})"
    return text


def _name(names: Names, member: MemberIdentity) -> str:
    return f"{names.short(member.member_id)} at {member.client_host.lstrip('/')}"


def _listed(names: Names, members: Sequence[MemberIdentity]) -> str:
    shown = ", ".join(_name(names, each) for each in members[:_NAMES_MAX])
    return shown if len(members) <= _NAMES_MAX else f"{shown} and {len(members) - _NAMES_MAX} more"
