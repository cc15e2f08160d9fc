"""The situations of consumer groups (KIP-848), and of groups that migrate between the protocols."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from muster.coordinator.storage.store import Append
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.coordinator_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupRegularExpressionKey,
    GroupMetadataKey,
    decode_record,
)
from tests.simulator.checkers import Disk, Exchange
from tests.simulator.expected import codes
from tests.simulator.network import Address
from tests.simulator.store import Fault
from tests.simulator.stream import CLIENT_HOST

EPOCH_SITUATIONS: dict[str, str] = {
    "muster's own client is in a consumer group": "",
    "member waits for partitions of another": "they are to be its own, and it is told the rest",
    "member is to give up partitions": "and until it has, its epoch stays",
    "member that does not give up in time is fenced": "it was heard of, but had not revoked",
    "broker dies during a reconciliation": "some member has yet to give up partitions",
    "member joins again after it was fenced": "a heartbeat was answered UNKNOWN_MEMBER_ID",
    "member of a wrong epoch is fenced": "its heartbeat is answered FENCED_MEMBER_EPOCH",
    "heartbeat of the epoch before is taken": "the answer with the new one was lost",
    "member goes on in its epoch at another broker": "",
    "static member leaves for a while and is back": "with epoch -2, and then under another id",
    "instance is not released": "the one that has it neither left nor expired",
    "commit of an earlier epoch is taken": "the member has had the partition since (KIP-1251)",
    "commit of an earlier epoch is refused": "STALE_MEMBER_EPOCH",
    "offsets are fetched in an earlier epoch": "STALE_MEMBER_EPOCH",
    "regular expression means a new topic": "one that came after it was looked up first",
    "topic of a consumer group is deleted": "a member had partitions of it",
    "group with members becomes a consumer group": "the first member of that protocol comes",
    "group with members becomes a classic group": "the last member of the other protocol goes",
    "group without members changes its kind": "",
    "classic member is assigned by the coordinator": "its SyncGroup is answered by a consumer group",
    "classic member is to rejoin a consumer group": "REBALANCE_IN_PROGRESS",
    "migration is not stored": "the store fails, and nothing was written",
    "migration is stored and the answer lost": "the broker cannot know it",
}
"""Each situation by name, with what it means."""

_UNREVOKED: Final = 1
_UNRELEASED: Final = 2
_HEARD_S: Final = 6.0
"""Shorter than a session."""


@dataclass(slots=True)
class _Member:
    epoch: int = 0
    """The epoch it was last told."""
    at: Address | None = None
    heard_s: float = 0.0
    leaves: bool = False


@dataclass(slots=True)
class _Group:
    members: dict[str, _Member] = field(default_factory=lambda: defaultdict(_Member))
    current: dict[str, ConsumerGroupCurrentMemberAssignmentValue] = field(default_factory=dict)
    regexes: dict[str, set[str]] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)
    """Instances that have left temporarily."""
    fenced: set[str] = field(default_factory=set)
    kind: str = ""
    has_members: bool = False
    coordinator: Address | None = None


class EpochCoverage:
    """Counts the situations. `saw` is called with each."""

    def __init__(self, disk: Disk, saw: Callable[[str], None]) -> None:
        self._disk = disk
        self._saw = saw
        self._groups: dict[str, _Group] = defaultdict(_Group)

    # --- the wire -----------------------------------------------------------------------------------------

    def asked(self, exchange: Exchange) -> None:
        request = exchange.request
        if exchange.api is ApiKey.CONSUMER_GROUP_HEARTBEAT and request.member_epoch < 0:
            group = self._groups[request.group_id]
            group.members[request.member_id].leaves = True
            if request.instance_id is not None and request.member_epoch == -2:
                group.away.add(request.instance_id)

    def replied(self, exchange: Exchange, response: Any) -> None:
        match exchange.api:
            case ApiKey.CONSUMER_GROUP_HEARTBEAT:
                self._heartbeat(exchange, response)
            case ApiKey.OFFSET_COMMIT:
                self._commit(exchange, codes(response))
            case ApiKey.OFFSET_FETCH if ErrorCode.STALE_MEMBER_EPOCH in codes(response):
                self._saw("offsets are fetched in an earlier epoch")
            case ApiKey.SYNC_GROUP | ApiKey.HEARTBEAT:
                self._classic(exchange, response)

    def _heartbeat(self, exchange: Exchange, response: Any) -> None:
        request, address = exchange.request, exchange.link.address
        group = self._groups[request.group_id]
        match response.error_code:
            case ErrorCode.UNKNOWN_MEMBER_ID:
                group.fenced.add(request.member_id)
            case ErrorCode.FENCED_MEMBER_EPOCH:
                self._saw("member of a wrong epoch is fenced")
            case ErrorCode.UNRELEASED_INSTANCE_ID:
                self._saw("instance is not released")
            case ErrorCode.NONE if request.member_epoch >= 0:
                self._beaten(exchange, response, group)
                group.coordinator = address

    def _beaten(self, exchange: Exchange, response: Any, group: _Group) -> None:
        request, address = exchange.request, exchange.link.address
        member = group.members[response.member_id]
        if exchange.link.client_host == CLIENT_HOST:
            self._saw("muster's own client is in a consumer group")
        if 0 < request.member_epoch < member.epoch:
            self._saw("heartbeat of the epoch before is taken")
        if member.at not in (None, address) and request.member_epoch == response.member_epoch == member.epoch:
            self._saw("member goes on in its epoch at another broker")
        if request.member_epoch == 0:
            if request.member_id in group.fenced:
                group.fenced.discard(request.member_id)
                self._saw("member joins again after it was fenced")
            if request.instance_id in group.away:
                group.away.discard(request.instance_id)
                self._saw("static member leaves for a while and is back")
        member.epoch, member.at = response.member_epoch, address
        member.heard_s, member.leaves = exchange.sent_s, False

    def _commit(self, exchange: Exchange, found: set[int]) -> None:
        request = exchange.request
        if ErrorCode.STALE_MEMBER_EPOCH in found:
            self._saw("commit of an earlier epoch is refused")
        elif found <= {ErrorCode.NONE}:
            member = self._groups[request.group_id].members.get(request.member_id)
            if member is not None and 0 <= request.generation_id_or_member_epoch < member.epoch:
                self._saw("commit of an earlier epoch is taken")

    def _classic(self, exchange: Exchange, response: Any) -> None:
        if not self._disk.consumers.is_consumer(exchange.request.group_id):
            return
        if exchange.api is ApiKey.SYNC_GROUP and response.error_code == 0:
            self._saw("classic member is assigned by the coordinator")
        elif response.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._saw("classic member is to rejoin a consumer group")

    def broker_dies(self, address: Address) -> None:
        """Called before a broker dies."""
        for group in self._groups.values():
            if group.coordinator == address and any(
                has.state == _UNREVOKED for has in group.current.values()
            ):
                self._saw("broker dies during a reconciliation")

    # --- the disk -----------------------------------------------------------------------------------------

    def written(self, key: Any, value: Any, at_s: float) -> None:
        match key:
            case ConsumerGroupCurrentMemberAssignmentKey():
                self._has(self._groups[key.group_id], key.member_id, value, at_s)
            case ConsumerGroupRegularExpressionKey():
                regexes = self._groups[key.group_id].regexes
                if value is None:
                    regexes.pop(key.regular_expression, None)
                    return
                before = regexes.get(key.regular_expression)
                regexes[key.regular_expression] = set(value.topics)
                if before is not None and set(value.topics) - before:
                    self._saw("regular expression means a new topic")

    def _has(self, group: _Group, member_id: str, value: Any, at_s: float) -> None:
        before = group.current.pop(member_id, None)
        if value is not None:
            group.current[member_id] = value
        if before is not None:
            had = {topic.topic_id for topic in before.assigned_partitions}
            has = set() if value is None else {topic.topic_id for topic in value.assigned_partitions}
            if any(self._disk.names.is_gone(topic_id) for topic_id in had - has):
                self._saw("topic of a consumer group is deleted")
        if value is None:
            member = group.members.pop(member_id, None)
            if (
                before is not None
                and before.state == _UNREVOKED
                and member is not None
                and not member.leaves
                and at_s - member.heard_s < _HEARD_S
            ):
                self._saw("member that does not give up in time is fenced")
        elif value.state == _UNRELEASED:
            self._saw("member waits for partitions of another")
        elif value.state == _UNREVOKED:
            self._saw("member is to give up partitions")

    def appended(self, touched: Iterable[str]) -> None:
        """Called after all records of an append; `touched` are the groups that changed."""
        for group_id in touched:
            group, records = self._groups[group_id], self._disk.consumers.groups[group_id]
            (classic,) = self._disk.groups[group_id][-1:] or [None]
            kind = "consumer" if records.exists else "classic" if classic is not None else ""
            has_members = bool(records.subscriptions or (classic is not None and classic.members))
            if group.kind and kind and group.kind != kind:
                self._saw(
                    "group without members changes its kind"
                    if not group.has_members
                    else f"group with members becomes a {kind} group"
                )
            group.kind, group.has_members = kind, has_members

    def failed(self, appends: Iterable[Append], fault: Fault) -> None:
        """Called when the store did not do as asked."""
        if not any(_migrates(append) for append in appends):
            return
        if fault is Fault.NOTHING_WRITTEN:
            self._saw("migration is not stored")
        elif fault is Fault.ANSWER_LOST:
            self._saw("migration is stored and the answer lost")


def _migrates(append: Append) -> bool:
    """Whether an append holds a group's records of both kinds."""
    classic, consumer = set(), set()
    for raw_key, raw_value in append.records:
        key, _ = decode_record(raw_key, raw_value) or (None, None)
        match key:
            case GroupMetadataKey():
                classic.add(key.group)
            case ConsumerGroupMemberMetadataKey():
                consumer.add(key.group_id)
    return bool(classic & consumer)
