"""Changes of hard state as records, in the versions Apache Kafka 4.x writes."""

from __future__ import annotations

from muster.coordinator.group.effects import Record
from muster.coordinator.group.hard_state import CommittedOffset, StoredGroup
from muster.protocol.messages.coordinator_records import (
    GROUP_METADATA_VALUE_VERSION,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    offset_commit_value_version,
)


def offset_commit(group_id: str, topic: str, partition: int, committed: CommittedOffset) -> Record:
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp,
        expire_timestamp=committed.expire_timestamp,
        topic_id=committed.topic_id,
    )
    key = OffsetCommitKey(group=group_id, topic=topic, partition=partition)
    return Record(key, value, offset_commit_value_version(value))


def offset_tombstone(group_id: str, topic: str, partition: int) -> Record:
    return Record(OffsetCommitKey(group=group_id, topic=topic, partition=partition), None, 0)


def group_metadata(group_id: str, group: StoredGroup) -> Record:
    value = GroupMetadataValue(
        protocol_type=group.protocol_type,
        generation=group.generation_id,
        protocol=group.protocol_name,
        leader=group.leader,
        current_state_timestamp=group.state_timestamp,
        members=[
            GroupMetadataValue.MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in group.members
        ],
    )
    return Record(GroupMetadataKey(group=group_id), value, GROUP_METADATA_VALUE_VERSION)


def group_tombstone(group_id: str) -> Record:
    return Record(GroupMetadataKey(group=group_id), None, 0)
