"""Records of consumer groups, in the versions Apache Kafka 4.x writes, and how they change the state."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from muster.coordinator.group.consumer.assignors.assignor import Assignment
from muster.coordinator.group.consumer.state import (
    INITIAL_EPOCH,
    ClassicProtocols,
    ConsumerState,
    Current,
    Held,
    MemberState,
    ResolvedRegex,
    Subscription,
)
from muster.coordinator.group.effects import Record
from muster.protocol.errors import DecodeError
from muster.protocol.message import Message
from muster.protocol.messages.coordinator_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)

_HeldPartitions = ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions
_ClassicMember = ConsumerGroupMemberMetadataValue.ClassicMemberMetadata

# --- to write -----------------------------------------------------------------------------------------------


def group_epoch(group_id: str, epoch: int, metadata_hash: int) -> Record:
    value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return Record(ConsumerGroupMetadataKey(group_id=group_id), value, 0)


def group_tombstone(group_id: str) -> Record:
    return Record(ConsumerGroupMetadataKey(group_id=group_id), None, 0)


def subscription(group_id: str, member_id: str, said: Subscription) -> Record:
    classic = said.classic
    value = ConsumerGroupMemberMetadataValue(
        instance_id=said.instance_id,
        rack_id=said.rack_id,
        client_id=said.client_id,
        client_host=said.client_host,
        subscribed_topic_names=list(said.topics),
        subscribed_topic_regex=said.regex,
        rebalance_timeout_ms=said.rebalance_timeout_ms,
        server_assignor=said.server_assignor,
        classic_member_metadata=None
        if classic is None
        else _ClassicMember(
            session_timeout_ms=classic.session_timeout_ms,
            supported_protocols=[
                _ClassicMember.ClassicProtocol(name=name, metadata=metadata)
                for name, metadata in classic.protocols
            ],
        ),
    )
    return Record(ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), value, 0)


def subscription_tombstone(group_id: str, member_id: str) -> Record:
    return Record(ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None, 0)


def target_epoch(group_id: str, epoch: int, at_ms: int) -> Record:
    value = ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=at_ms)
    return Record(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value, 0)


def target_epoch_tombstone(group_id: str) -> Record:
    return Record(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None, 0)


def target(group_id: str, member_id: str, assignment: Assignment) -> Record:
    value = ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[
            ConsumerGroupTargetAssignmentMemberValue.TopicPartition(
                topic_id=topic_id, partitions=sorted(partitions)
            )
            for topic_id, partitions in assignment.items()
        ]
    )
    return Record(ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value, 0)


def target_tombstone(group_id: str, member_id: str) -> Record:
    return Record(ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None, 0)


def current(group_id: str, member_id: str, has: Current) -> Record:
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=has.epoch,
        previous_member_epoch=has.previous_epoch,
        state=has.state,
        assigned_partitions=_held(has.assigned),
        partitions_pending_revocation=_held(has.revoking),
    )
    return Record(ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), value, 0)


def current_tombstone(group_id: str, member_id: str) -> Record:
    return Record(ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None, 0)


def regex(group_id: str, expression: str, resolved: ResolvedRegex) -> Record:
    value = ConsumerGroupRegularExpressionValue(
        topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.at_ms
    )
    key = ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=expression)
    return Record(key, value, 0)


def regex_tombstone(group_id: str, expression: str) -> Record:
    key = ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=expression)
    return Record(key, None, 0)


def _held(held: Held) -> list[_HeldPartitions]:
    topics = []
    for topic_id, epochs in held.items():
        numbers = sorted(epochs)
        topics.append(
            _HeldPartitions(
                topic_id=topic_id,
                partitions=numbers,
                assignment_epochs=[epochs[number] for number in numbers],
            )
        )
    return topics


# --- to apply -----------------------------------------------------------------------------------------------


class Table(NamedTuple):
    """How a type of record changes the state of a group."""

    value: type[Message]
    put: Callable[[ConsumerState, Any, Any], None]
    delete: Callable[[ConsumerState, Any], object]


def _put_epoch(state: ConsumerState, _: object, value: ConsumerGroupMetadataValue) -> None:
    state.epoch, state.metadata_hash = value.epoch, value.metadata_hash


def _delete_epoch(state: ConsumerState, _: object) -> None:
    state.epoch, state.metadata_hash = INITIAL_EPOCH, 0


def _put_subscription(
    state: ConsumerState, key: ConsumerGroupMemberMetadataKey, value: ConsumerGroupMemberMetadataValue
) -> None:
    said = value.classic_member_metadata
    classic = None
    if said is not None:
        protocols = tuple((each.name, each.metadata) for each in said.supported_protocols)
        classic = ClassicProtocols(said.session_timeout_ms, protocols)
    state.put_subscription(
        key.member_id,
        Subscription(
            value.instance_id,
            value.rack_id,
            value.client_id,
            value.client_host,
            tuple(sorted(value.subscribed_topic_names)),
            value.subscribed_topic_regex or "",
            value.rebalance_timeout_ms,
            value.server_assignor,
            classic,
        ),
    )


def _put_target_epoch(
    state: ConsumerState, _: object, value: ConsumerGroupTargetAssignmentMetadataValue
) -> None:
    state.assignment_epoch, state.assigned_at_ms = value.assignment_epoch, value.assignment_timestamp


def _delete_target_epoch(state: ConsumerState, _: object) -> None:
    state.assignment_epoch, state.assigned_at_ms = INITIAL_EPOCH, 0


def _put_target(
    state: ConsumerState,
    key: ConsumerGroupTargetAssignmentMemberKey,
    value: ConsumerGroupTargetAssignmentMemberValue,
) -> None:
    state.targets[key.member_id] = {
        topic.topic_id: frozenset(topic.partitions) for topic in value.topic_partitions
    }


def _put_current(
    state: ConsumerState,
    key: ConsumerGroupCurrentMemberAssignmentKey,
    value: ConsumerGroupCurrentMemberAssignmentValue,
) -> None:
    try:
        member_state = MemberState(value.state)
    except ValueError:
        member_state = MemberState.UNKNOWN
    state.put_current(
        key.member_id,
        Current(
            value.member_epoch,
            value.previous_member_epoch,
            member_state,
            _read_held(value.assigned_partitions, value.member_epoch),
            _read_held(value.partitions_pending_revocation, value.member_epoch),
        ),
    )


def _read_held(topics: Sequence[_HeldPartitions], epoch: int) -> Held:
    """If a record has no epochs for its partitions, the member's epoch applies to all of them."""
    held: dict[uuid.UUID, Mapping[int, int]] = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None:
            held[topic.topic_id] = dict.fromkeys(topic.partitions, epoch)
        elif len(epochs) == len(topic.partitions):
            held[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
        else:
            raise DecodeError(
                f"assignment_epochs: {len(epochs)} epochs of {len(topic.partitions)} partitions of a topic"
            )
    return held


def _put_regex(
    state: ConsumerState, key: ConsumerGroupRegularExpressionKey, value: ConsumerGroupRegularExpressionValue
) -> None:
    state.regexes[key.regular_expression] = ResolvedRegex(
        frozenset(value.topics), value.version, value.timestamp
    )


def _nothing(state: ConsumerState, *_: object) -> None:
    """For a record that is no longer read."""


TABLES: Final[Mapping[type[Message], Table]] = {
    ConsumerGroupMetadataKey: Table(ConsumerGroupMetadataValue, _put_epoch, _delete_epoch),
    ConsumerGroupPartitionMetadataKey: Table(ConsumerGroupPartitionMetadataValue, _nothing, _nothing),
    ConsumerGroupMemberMetadataKey: Table(
        ConsumerGroupMemberMetadataValue,
        _put_subscription,
        lambda state, key: state.delete_subscription(key.member_id),
    ),
    ConsumerGroupTargetAssignmentMetadataKey: Table(
        ConsumerGroupTargetAssignmentMetadataValue, _put_target_epoch, _delete_target_epoch
    ),
    ConsumerGroupTargetAssignmentMemberKey: Table(
        ConsumerGroupTargetAssignmentMemberValue,
        _put_target,
        lambda state, key: state.targets.pop(key.member_id, None),
    ),
    ConsumerGroupCurrentMemberAssignmentKey: Table(
        ConsumerGroupCurrentMemberAssignmentValue,
        _put_current,
        lambda state, key: state.delete_current(key.member_id),
    ),
    ConsumerGroupRegularExpressionKey: Table(
        ConsumerGroupRegularExpressionValue,
        _put_regex,
        lambda state, key: state.regexes.pop(key.regular_expression, None),
    ),
}
"""By the type of a record's key."""
