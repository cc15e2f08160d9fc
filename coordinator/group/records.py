"""Changes to hard state as records, in the versions Apache Kafka 4.x writes, and in muster's own."""

from __future__ import annotations

from muster.coordinator.group.committed_offset import CommittedOffset, value_of
from muster.coordinator.group.effects import Record
from muster.coordinator.group.group_offsets import TopicPartition
from muster.coordinator.group.hard_state import StoredGroup
from muster.coordinator.group.pending_offsets import TransactionalProducer
from muster.protocol.message import Message
from muster.protocol.messages.coordinator_records import (
    GROUP_METADATA_VALUE_VERSION,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    PendingOffsetKey,
    TransactionalProducerKey,
    TransactionalProducerValue,
    offset_commit_value_version,
)


def offset_commit(group_id: str, topic: str, partition: int, committed: CommittedOffset) -> Record:
    key = OffsetCommitKey(group=group_id, topic=topic, partition=partition)
    return _offset(key, committed)


def offset_tombstone(group_id: str, topic: str, partition: int) -> Record:
    return Record(OffsetCommitKey(group=group_id, topic=topic, partition=partition), None, 0)


def pending_offset(
    producer_id: int, group_id: str, partition: TopicPartition, committed: CommittedOffset
) -> Record:
    """An offset that becomes the group's when the producer's transaction commits."""
    return _offset(_pending_key(producer_id, group_id, partition), committed)


def pending_offset_tombstone(producer_id: int, group_id: str, partition: TopicPartition) -> Record:
    return Record(_pending_key(producer_id, group_id, partition), None, 0)


def transactional_producer(producer_id: int, producer: TransactionalProducer) -> Record:
    value = TransactionalProducerValue(
        producer_epoch=producer.epoch,
        coordinator_epoch=producer.coordinator_epoch,
        last_timestamp=producer.last_ms,
        in_transaction=producer.in_transaction,
    )
    return Record(TransactionalProducerKey(producer_id=producer_id), value, 0)


def transactional_producer_tombstone(producer_id: int) -> Record:
    return Record(TransactionalProducerKey(producer_id=producer_id), None, 0)


def _offset(key: Message, committed: CommittedOffset) -> Record:
    value = value_of(committed)
    return Record(key, value, offset_commit_value_version(value))


def _pending_key(producer_id: int, group_id: str, partition: TopicPartition) -> PendingOffsetKey:
    topic, number = partition
    return PendingOffsetKey(producer_id=producer_id, group=group_id, topic=topic, partition=number)


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
