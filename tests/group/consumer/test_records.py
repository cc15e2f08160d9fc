"""Records of consumer groups, one by one: they read back as written, and a tombstone removes them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Final, NamedTuple

from muster.coordinator.group.consumer import records
from muster.coordinator.group.consumer.state import (
    INITIAL_EPOCH,
    ClassicProtocols,
    ConsumerState,
    Current,
    MemberState,
    ResolvedRegex,
    Subscription,
)
from muster.coordinator.group.effects import Record
from muster.coordinator.group.hard_state import HardState
from muster.coordinator.group.pending_offsets import PendingOffsets
from muster.protocol.messages.coordinator_records import (
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    decode_record,
    encode_key,
    encode_value,
)
from tests.support.each import each

GROUP: Final = "orders"
ORDERS, CLICKS = uuid.UUID(int=1), uuid.UUID(int=2)
SAID: Final = Subscription(
    instance_id="store-1",
    rack_id="a",
    client_id="shop",
    client_host="/10.0.0.2",
    topics=("clicks", "orders"),
    regex="pay.*",
    rebalance_timeout_ms=60_000,
    server_assignor="range",
    classic=ClassicProtocols(10_000, (("range", b"\0\1"), ("sticky", b""))),
)
HAS: Final = Current(
    7, 6, MemberState.UNREVOKED_PARTITIONS, {ORDERS: {0: 3, 2: 5}}, {ORDERS: {1: 3}, CLICKS: {0: 4}}
)
TARGET: Final = {ORDERS: frozenset({0, 2}), CLICKS: frozenset({1})}
NOTHING_PENDING: Final = PendingOffsets().durable()
RESOLVED: Final = ResolvedRegex(frozenset({"payments", "payrolls"}), 12, 1_700_000_000_000)


class Kind(NamedTuple):
    """A type of record: an example, its tombstone, and what they leave in the state."""

    written: Record
    tombstone: Record
    read: Callable[[ConsumerState], object]
    there: object
    gone: object


KINDS: Final = {
    "group epoch": Kind(
        records.group_epoch(GROUP, 7, -3),
        records.group_tombstone(GROUP),
        lambda state: (state.epoch, state.metadata_hash),
        (7, -3),
        (INITIAL_EPOCH, 0),
    ),
    "member": Kind(
        records.subscription(GROUP, "shop-1", SAID),
        records.subscription_tombstone(GROUP, "shop-1"),
        lambda state: (state.subscriptions.get("shop-1"), state.instances),
        (SAID, {"store-1": "shop-1"}),
        (None, {}),
    ),
    "target epoch": Kind(
        records.target_epoch(GROUP, 6, 1_700_000_000_001),
        records.target_epoch_tombstone(GROUP),
        lambda state: (state.assignment_epoch, state.assigned_at_ms),
        (6, 1_700_000_000_001),
        (INITIAL_EPOCH, 0),
    ),
    "target": Kind(
        records.target(GROUP, "shop-1", TARGET),
        records.target_tombstone(GROUP, "shop-1"),
        lambda state: state.targets.get("shop-1"),
        TARGET,
        None,
    ),
    "current": Kind(
        records.current(GROUP, "shop-1", HAS),
        records.current_tombstone(GROUP, "shop-1"),
        lambda state: (state.current.get("shop-1"), state.owner_epoch(ORDERS, 1)),
        (HAS, 7),
        (None, -1),
    ),
    "regex": Kind(
        records.regex(GROUP, "pay.*", RESOLVED),
        records.regex_tombstone(GROUP, "pay.*"),
        lambda state: state.regexes.get("pay.*"),
        RESOLVED,
        None,
    ),
}
OF_ANOTHER: Final = records.subscription(GROUP, "alice-1", Subscription(topics=("orders",)))
"""Keeps the group in existence."""
_KEY: Final = ConsumerGroupPartitionMetadataKey(group_id=GROUP)
OLD: Final = Record(
    _KEY,
    ConsumerGroupPartitionMetadataValue(
        topics=[
            ConsumerGroupPartitionMetadataValue.TopicMetadata(
                topic_id=ORDERS, topic_name="orders", num_partitions=3, partition_metadata=[]
            )
        ]
    ),
    0,
)
OLD_TOMBSTONE: Final = Record(_KEY, None, 0)


def through_bytes(record: Record) -> Record:
    value = None if record.value is None else encode_value(record.value, record.value_version)
    decoded = decode_record(encode_key(record.key), value)
    assert decoded is not None
    return Record(*decoded, record.value_version)


def replayed(*of: Record) -> HardState:
    hard = HardState()
    for record in of:
        hard.apply(through_bytes(record))
    return hard


@each("kind", list(KINDS))
def test_what_is_written_is_read(kind: str) -> None:
    written, _, read, there, _ = KINDS[kind]
    assert written.value_version == 0
    assert read(replayed(written).consumers[GROUP]) == there


@each("kind", list(KINDS))
def test_a_tombstone_takes_away_what_is_of_its_key_alone(kind: str) -> None:
    written, tombstone, read, _, gone = KINDS[kind]
    hard = replayed(*(each.written for each in KINDS.values()), OF_ANOTHER, tombstone)
    assert read(hard.consumers[GROUP]) == gone
    others = [each.written for name, each in KINDS.items() if name != kind]
    assert hard.durable() == replayed(*others, OF_ANOTHER).durable()
    hard.apply(through_bytes(written))
    assert hard.durable() == replayed(*others, OF_ANOTHER, written).durable()


@each("kind", list(KINDS))
def test_a_tombstone_of_what_is_not_there_is_ignored(kind: str) -> None:
    tombstone = KINDS[kind].tombstone
    assert replayed(tombstone).durable() == ({}, {}, {}, NOTHING_PENDING)
    assert replayed(OF_ANOTHER, tombstone).durable() == replayed(OF_ANOTHER).durable()


def test_a_group_is_gone_with_its_last_record() -> None:
    hard = replayed(*(each.written for each in KINDS.values()))
    for each_kind in KINDS.values():
        assert GROUP in hard.consumers
        hard.apply(through_bytes(each_kind.tombstone))
    assert hard.durable() == ({}, {}, {}, NOTHING_PENDING)


def test_records_of_topics_are_read_over() -> None:
    """Apache Kafka before 4.1 wrote them; the metadata hash has replaced them."""
    assert replayed(OLD_TOMBSTONE).durable() == ({}, {}, {}, NOTHING_PENDING)
    assert replayed(OF_ANOTHER, OLD).durable() == replayed(OF_ANOTHER).durable()
    assert replayed(OF_ANOTHER, OLD, OLD_TOMBSTONE).durable() == replayed(OF_ANOTHER).durable()
