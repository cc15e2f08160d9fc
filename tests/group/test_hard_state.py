"""Records and the tables they build."""

from __future__ import annotations

import uuid

import pytest

from muster.coordinator.base.step import BrokenInvariant, Step
from muster.coordinator.group import records
from muster.coordinator.group.committed_offset import CommittedOffset
from muster.coordinator.group.effects import Record
from muster.coordinator.group.hard_state import HardState, StoredGroup, StoredMember
from muster.coordinator.group.pending_offsets import PendingOffsets
from muster.protocol.messages.classic_group import HeartbeatRequest
from muster.protocol.messages.coordinator_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_record,
    encode_key,
    encode_value,
)
from muster.protocol.types import ZERO_UUID
from tests.support.each import each

TOPIC_ID = uuid.UUID(int=7)
OFFSET = CommittedOffset(42, 3, "here", 1_700_000_000_000, -1, TOPIC_ID)
GROUP = StoredGroup(
    "consumer",
    5,
    "range",
    "alice-1",
    1_700_000_000_001,
    (
        StoredMember("alice-1", None, "alice", "/10.0.0.1", 300_000, 45_000, b"sub", b"mine"),
        StoredMember("shop-1", "store-1", "shop", "/10.0.0.2", 60_000, 10_000, b"", b""),
    ),
)
EMPTY_GROUP = StoredGroup("", 0, None, None, -1, ())
NOTHING_PENDING = PendingOffsets().durable()


def through_bytes(record: Record) -> Record:
    value = None if record.value is None else encode_value(record.value, record.value_version)
    decoded = decode_record(encode_key(record.key), value)
    assert decoded is not None
    return Record(*decoded, record.value_version)


def test_an_offset_survives_its_record() -> None:
    hard = HardState()
    record = records.offset_commit("orders", "clicks", 3, OFFSET)
    assert record.value_version == 4
    hard.apply(through_bytes(record))
    assert hard.durable() == ({}, {}, {"orders": {("clicks", 3): OFFSET}}, NOTHING_PENDING)


def test_an_offset_with_an_expiry_of_its_own_is_of_the_version_that_has_one() -> None:
    hard = HardState()
    committed = CommittedOffset(42, -1, "", 1000, 5000, ZERO_UUID)
    record = records.offset_commit("orders", "clicks", 3, committed)
    assert record.value_version == 1
    hard.apply(through_bytes(record))
    assert hard.offsets == {"orders": {("clicks", 3): committed}}


@each("group", [GROUP, EMPTY_GROUP])
def test_a_group_survives_its_record(group: StoredGroup) -> None:
    hard = HardState()
    record = records.group_metadata("orders", group)
    assert record.value_version == 3
    hard.apply(through_bytes(record))
    assert hard.durable() == ({"orders": group}, {}, {}, NOTHING_PENDING)


def test_the_last_record_of_a_key_counts() -> None:
    hard = HardState()
    hard.apply(records.group_metadata("orders", EMPTY_GROUP))
    hard.apply(records.group_metadata("orders", GROUP))
    hard.apply(records.offset_commit("orders", "clicks", 0, OFFSET))
    hard.apply(records.offset_commit("orders", "clicks", 0, OFFSET._replace(offset=43)))
    assert hard.groups == {"orders": GROUP}
    assert hard.offsets == {"orders": {("clicks", 0): OFFSET._replace(offset=43)}}


def test_tombstones_delete_and_what_is_not_there_they_ignore() -> None:
    hard = HardState()
    hard.apply(records.group_metadata("orders", GROUP))
    hard.apply(records.group_metadata("clicks", GROUP))
    hard.apply(records.offset_commit("orders", "clicks", 0, OFFSET))
    hard.apply(records.offset_commit("orders", "clicks", 1, OFFSET))
    hard.apply(records.offset_commit("archive", "clicks", 1, OFFSET))
    for tombstone in (
        records.group_tombstone("orders"),
        records.group_tombstone("nowhere"),
        records.offset_tombstone("orders", "clicks", 0),
        records.offset_tombstone("orders", "clicks", 7),
        records.offset_tombstone("nowhere", "clicks", 0),
        records.offset_tombstone("archive", "clicks", 1),
    ):
        assert tombstone.value_version == 0
        assert Record.from_row(*tombstone.row()) == tombstone
        hard.apply(through_bytes(tombstone))
    assert hard.durable() == ({"clicks": GROUP}, {}, {"orders": {("clicks", 1): OFFSET}}, NOTHING_PENDING)
    assert repr(hard) == "<HardState groups=1 offsets=1 in 1 groups>"


def test_emitting_persists_and_applies() -> None:
    hard, step = HardState(), Step(0)
    record = records.group_metadata("orders", GROUP)
    hard.emit(record, step)
    assert step.rows == [record.row()]
    assert hard.groups == {"orders": GROUP}


def test_what_durable_gives_does_not_change_with_the_state() -> None:
    hard = HardState()
    hard.apply(records.offset_commit("orders", "clicks", 0, OFFSET))
    before = hard.durable()
    hard.apply(records.offset_tombstone("orders", "clicks", 0))
    hard.apply(records.group_metadata("orders", GROUP))
    assert before == ({}, {}, {"orders": {("clicks", 0): OFFSET}}, NOTHING_PENDING)


@each("rebalance_timeout, expected", [(-1, 10_000), (0, 0), (1, 1), (60_000, 60_000)])
def test_a_member_stored_without_rebalance_timeout_has_its_session_timeout_for_it(
    rebalance_timeout: int, expected: int
) -> None:
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=1,
        protocol="range",
        leader="alice-1",
        members=[
            GroupMetadataValue.MemberMetadata(
                member_id="alice-1",
                client_id="alice",
                client_host="/10.0.0.1",
                rebalance_timeout=rebalance_timeout,
                session_timeout=10_000,
                subscription=b"",
                assignment=b"",
            )
        ],
    )
    hard = HardState()
    hard.apply(Record(GroupMetadataKey(group="orders"), value, 3))
    [member] = hard.groups["orders"].members
    assert (member.rebalance_timeout_ms, member.session_timeout_ms) == (expected, 10_000)
    assert member.group_instance_id is None


@each("version", [0, 1, 2, 3, 4])
def test_group_records_of_every_version_are_read(version: int) -> None:
    value = records.group_metadata("orders", GROUP).value
    assert isinstance(value, GroupMetadataValue)
    if version < 3:
        value.members[1].group_instance_id = None
    hard = HardState()
    hard.apply(through_bytes(Record(GroupMetadataKey(group="orders"), value, version)))
    stored = hard.groups["orders"]
    assert (stored.generation_id, stored.protocol_name, stored.leader) == (5, "range", "alice-1")
    assert stored.state_timestamp == (GROUP.state_timestamp if version >= 2 else -1)
    timeouts = [member.rebalance_timeout_ms for member in stored.members]
    assert timeouts == ([300_000, 60_000] if version >= 1 else [45_000, 10_000])


@each("version", [0, 1, 2, 3, 4])
def test_offset_records_of_every_version_are_read(version: int) -> None:
    value = OffsetCommitValue(
        offset=42,
        leader_epoch=3,
        metadata="here",
        commit_timestamp=1000,
        expire_timestamp=5000,
        topic_id=TOPIC_ID,
    )
    hard = HardState()
    key = OffsetCommitKey(group="orders", topic="clicks", partition=0)
    hard.apply(through_bytes(Record(key, value, version)))
    assert hard.offsets["orders"]["clicks", 0] == CommittedOffset(
        42,
        3 if version >= 3 else -1,
        "here",
        1000,
        5000 if version == 1 else -1,
        TOPIC_ID if version == 4 else ZERO_UUID,
    )


def test_a_record_nobody_writes_is_a_bug() -> None:
    with pytest.raises(BrokenInvariant, match="nobody here writes"):
        HardState().apply(Record(HeartbeatRequest(group_id="", generation_id=0, member_id=""), None, 0))
    value = records.group_metadata("orders", GROUP).value
    with pytest.raises(BrokenInvariant, match="nobody here writes"):
        HardState().apply(Record(OffsetCommitKey(group="", topic="", partition=0), value, 0))
