"""One log line per rebalance that says its cause, from the events of the group core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from muster.coordinator.group.events import (
    Event,
    GroupRemoved,
    MemberIdentity,
    MemberRemoved,
    RebalanceCompleted,
    Trigger,
)
from muster.coordinator.observe.log import Logger

_NAMES_MAX: Final = 5

log = Logger(part="groups")


class RebalanceLog:
    """Feed it a shard's events in order; it logs each rebalance once it is over.

    Most clients give no reason, so a session that expired is told apart by whether the member's connection
    was still there. What is kept between events is one removal per group, until that group's rebalance
    completes.
    """

    def __init__(self, node_id: int) -> None:
        self._log = log.bind(node=node_id)
        self._expired: dict[str, MemberRemoved] = {}

    def observe(self, shard: int, events: Sequence[Event]) -> None:
        """Events of steps that are durable, in step order."""
        for event in events:
            match event:
                case MemberRemoved(trigger=Trigger.SESSION_EXPIRED):
                    self._expired.setdefault(event.group_id, event)
                case RebalanceCompleted():
                    self._completed(shard, event)
                case GroupRemoved():
                    self._expired.pop(event.group_id, None)

    def _completed(self, shard: int, event: RebalanceCompleted) -> None:
        expired = self._expired.pop(event.group_id, None)
        fields: dict[str, object] = {
            "group": event.group_id,
            "cause": cause(event, expired),
            "generation": event.generation_id,
            "members": event.members,
            "took_ms": event.join_ms + event.assignment_ms,
            "join_ms": event.join_ms,
            "sync_ms": event.assignment_ms,
            "shard": shard,
        }
        if event.restarts:
            fields["restarts"] = event.restarts
        if event.dropped:
            fields["dropped"] = _names(event.dropped)
        if event.last_joined is not None and event.members > 1:
            fields["waited_for"] = _name(event.last_joined)
        self._log.info("group rebalanced", **fields)


def cause(event: RebalanceCompleted, expired: MemberRemoved | None = None) -> str:
    """Why the group rebalanced, in words; `expired` is the removal by session timeout that the rebalance
    began with."""
    text = event.trigger.value
    if event.member is not None:
        text += f": {_name(event.member)}"
    if event.trigger is Trigger.SESSION_EXPIRED and expired is not None:
        state = (
            "its connection is open, the process stalled"
            if expired.connected
            else "it crashed or was cut off"
        )
        text += f" (silent for {expired.silent_ms} ms; {state})"
    if event.reason:
        text += f" ({event.reason})"
    return text


def _name(member: MemberIdentity) -> str:
    known_as = member.group_instance_id or member.client_id or member.member_id
    return f"{known_as} at {member.client_host.lstrip('/')}"


def _names(members: Sequence[MemberIdentity]) -> str:
    shown = ", ".join(_name(each) for each in members[:_NAMES_MAX])
    return shown if len(members) <= _NAMES_MAX else f"{shown} and {len(members) - _NAMES_MAX} more"
