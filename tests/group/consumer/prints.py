"""Prints consumer protocol responses and records as lines of a transcript."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from muster.coordinator.group import events as happenings
from muster.coordinator.group.consumer.state import MemberState
from muster.coordinator.group.effects import Record
from muster.coordinator.group.events import Event
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.consumer_group import (
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatResponse,
)
from muster.protocol.messages.coordinator_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
)
from tests.group import blobs
from tests.group.cast import Cast
from tests.group.scenario import span

_USUAL_INTERVAL_MS = 5_000
_EPOCHS_OF_GROUPS = {
    ConsumerGroupMetadataKey: "epoch",
    ConsumerGroupTargetAssignmentMetadataKey: "target epoch",
}


def beat(response: ConsumerGroupHeartbeatResponse, cast: Cast, version: int) -> list[str]:
    if response.error_code != ErrorCode.NONE:
        return _explained(response, cast)
    words = [f"epoch={response.member_epoch}"]
    if version < 1:
        words.append(f"member={cast.symbol(response.member_id or '')}")
    if response.heartbeat_interval_ms != _USUAL_INTERVAL_MS and response.member_epoch >= 0:
        words.append(f"interval={span(response.heartbeat_interval_ms)}")
    if response.assignment is not None:
        words.append(f"assignment={_partitions(response.assignment.topic_partitions, cast)}")
    return [" ".join(words)]


def describe(response: ConsumerGroupDescribeResponse, cast: Cast, version: int) -> list[str]:
    printed: list[str] = []
    for group in response.groups:
        name = cast.told(group.group_id)
        if group.error_code != ErrorCode.NONE:
            printed += [f"{name} {text}" for text in _explained(group, cast)]
            continue
        printed.append(
            f"{name} state={group.group_state} epoch={group.group_epoch} target={group.assignment_epoch} "
            f"assignor={group.assignor_name}"
        )
        printed += sorted(f"{name} {_described(member, cast, version)}" for member in group.members)
    return printed


def _described(member: ConsumerGroupDescribeResponse.Member, cast: Cast, version: int) -> str:
    words = [
        f"{cast.member(member.member_id, member.instance_id)} epoch={member.member_epoch} "
        f"client={member.client_id} host={member.client_host}"
    ]
    if member.rack_id is not None:
        words.append(f"rack={member.rack_id}")
    if version >= 1:
        words.append(f"type={member.member_type}")
    words.append(f"({','.join(map(cast.told, member.subscribed_topic_names)) or 'none'})")
    if member.subscribed_topic_regex:
        words.append(f"regex={cast.text(member.subscribed_topic_regex)}")
    words.append(f"assignment={_partitions(member.assignment.topic_partitions, cast)}")
    words.append(f"target={_partitions(member.target_assignment.topic_partitions, cast)}")
    return " ".join(words)


def _explained(response: Any, cast: Cast) -> list[str]:
    text = cast.text(response.error_message or "")
    return [f"error={ErrorCode(response.error_code).name}" + (f' "{text}"' if text else "")]


def partitions(topics: Iterable[Any], cast: Cast) -> list[str]:
    """`orders-0`, `orders-1` for topics given by id, sorted by name."""
    named = sorted(
        (cast.told(cast.topic_names[topic.topic_id]), index) for topic in topics for index in topic.partitions
    )
    return [f"{name}-{index}" for name, index in named]


def _partitions(topics: Iterable[Any], cast: Cast) -> str:
    return ",".join(partitions(topics, cast)) or "none"


# --- events -------------------------------------------------------------------------------------------------


def event(event: Event, since_ms: int, cast: Cast) -> str | None:
    """Print the event; None if it is not specific to consumer groups."""
    match event:
        case happenings.ProtocolMigrated():
            return f"{event.from_type} -> {event.to_type} with {event.members} members"
        case happenings.EpochBumped():
            return f"new epoch, {event.members} members"
        case happenings.TargetAssigned():
            owned = ", ".join(f"{cast.symbol(each)} has {count}" for each, count in event.owned.items())
            moves = [
                f"{move.topic}-{move.partition} "
                f"{' -> '.join(_who(each, cast) for each in (move.from_member_id, move.to_member_id))}"
                for move in event.moves
            ]
            return (
                f"target of {event.assignor}: {event.partitions} ({owned}), kept {event.kept}, moved "
                f"{event.moved}, lost {event.lost}" + (f": {', '.join(moves)}" if moves else "")
            )
        case happenings.RevocationRequested():
            until = "" if event.until_ms is None else f", until +{span(event.until_ms - since_ms)}"
            return f"is to give up {_named(event.partitions)}{until}"
        case happenings.PartitionsRevoked():
            after = "" if event.after_ms is None else f" after {span(event.after_ms)}"
            return f"has given up {_named(event.partitions)}{after}"
        case happenings.PartitionsAssigned():
            waiting = f", waiting for {_named(event.still_held)}" if event.still_held else ""
            return f"has {_named(event.partitions)} in epoch {event.member_epoch}{waiting}"
        case happenings.RebalanceCompleted() if (
            event.target_ms is not None and event.reconcile_ms is not None
        ):
            last = "" if event.last_joined is None else f", last {cast.symbol(event.last_joined.member_id)}"
            return (
                f"rebalanced, members={event.members} target={span(event.target_ms)} "
                f"reconcile={span(event.reconcile_ms)} restarts={event.restarts} "
                f"since +{span(event.started_ms - since_ms)}{last}"
            )
        case _:
            return None


def _who(member_id: str | None, cast: Cast) -> str:
    return "nobody" if member_id is None else cast.symbol(member_id)


def _named(partitions: Sequence[tuple[str, int]]) -> str:
    return ",".join(f"{topic}-{index}" for topic, index in sorted(partitions)) or "nothing more"


# --- records ------------------------------------------------------------------------------------------------


def record(record: Record, cast: Cast) -> str | None:
    """Print the record; None if it is not a consumer group's."""
    key: Any = record.key
    value: Any = record.value
    match key:
        case ConsumerGroupMetadataKey() | ConsumerGroupTargetAssignmentMetadataKey():
            what = [f"{key.group_id} {_EPOCHS_OF_GROUPS[type(key)]}"]
        case ConsumerGroupMemberMetadataKey():
            what = [f"{key.group_id} member {cast.symbol(key.member_id)}"]
        case ConsumerGroupTargetAssignmentMemberKey():
            what = [f"{key.group_id} target {cast.symbol(key.member_id)}"]
        case ConsumerGroupCurrentMemberAssignmentKey():
            what = [f"{key.group_id} current {cast.symbol(key.member_id)}"]
        case ConsumerGroupRegularExpressionKey():
            what = [f"{key.group_id} regex {key.regular_expression}"]
        case _:
            return None
    match key:
        case _ if value is None:
            what.append("deleted")
        case ConsumerGroupMetadataKey():
            what.append(f"{value.epoch}")
        case ConsumerGroupTargetAssignmentMetadataKey():
            what.append(f"{value.assignment_epoch}" + ("" if value.assignment_timestamp else " at no time"))
        case ConsumerGroupMemberMetadataKey():
            what += _member(value, cast)
        case ConsumerGroupTargetAssignmentMemberKey():
            what.append(_partitions(value.topic_partitions, cast))
        case ConsumerGroupCurrentMemberAssignmentKey():
            what += _current(value, cast)
        case ConsumerGroupRegularExpressionKey():
            what.append(",".join(value.topics) or "none")
    return " ".join(what)


def _member(value: ConsumerGroupMemberMetadataValue, cast: Cast) -> list[str]:
    words = [f"({','.join(value.subscribed_topic_names) or 'none'})"]
    told = {
        "regex": value.subscribed_topic_regex,
        "instance": value.instance_id,
        "rack": value.rack_id,
        "assignor": value.server_assignor,
    }
    words += [f"{name}={text}" for name, text in told.items() if text]
    classic = value.classic_member_metadata
    if classic is not None:
        protocols = [
            f"{each.name}({blobs.subscription_text(each.metadata, cast)})"
            for each in classic.supported_protocols
        ]
        words.append(f"classic={','.join(protocols)} session={span(classic.session_timeout_ms)}")
    return words


def _current(value: ConsumerGroupCurrentMemberAssignmentValue, cast: Cast) -> list[str]:
    words = [f"epoch={value.member_epoch}/{value.previous_member_epoch} {MemberState(value.state).name}"]
    for name, topics in (
        ("assigned", value.assigned_partitions),
        ("revoking", value.partitions_pending_revocation),
    ):
        if topics or name == "assigned":
            words.append(f"{name}={_held(topics, cast)}")
    return words


def _held(topics: Sequence[Any], cast: Cast) -> str:
    """`orders-0@2`: a partition and the epoch in which it was assigned."""
    named = sorted(
        (cast.told(cast.topic_names[topic.topic_id]), index, epoch)
        for topic in topics
        for index, epoch in zip(topic.partitions, topic.assignment_epochs or (), strict=True)
    )
    return ",".join(f"{name}-{index}@{epoch}" for name, index, epoch in named) or "none"
