"""The records of `__consumer_offsets`: bytes written by hand from the schemas, and what readers must
tolerate."""

from __future__ import annotations

import uuid

import pytest

from muster.protocol.errors import DecodeError, EncodeError
from muster.protocol.message import Message
from muster.protocol.messages import coordinator_records
from muster.protocol.messages.coordinator_records import (
    GROUP_METADATA_VALUE_VERSION,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    PendingOffsetKey,
    TransactionalProducerKey,
    TransactionalProducerValue,
    decode_record,
    encode_key,
    encode_value,
    is_own,
    offset_commit_value_version,
)
from tests.protocol.golden_frames import read_records
from tests.protocol.sampling import SEED, sample, sampler
from tests.support.each import each

TOPIC_ID = uuid.UUID("00010203-0405-0607-0809-0a0b0c0d0e0f")
OFFSET_KEY = OffsetCommitKey(group="g", topic="t", partition=3)
GROUP_KEY = GroupMetadataKey(group="g")

OFFSET_KEY_BYTES = bytes.fromhex("00010001 670001 7400000003")
GROUP_KEY_BYTES = bytes.fromhex("00020001 67")


def offset_value(**changes: object) -> OffsetCommitValue:
    values: dict[str, object] = {
        "offset": 42,
        "leader_epoch": 7,
        "metadata": "m",
        "commit_timestamp": 1000,
        "expire_timestamp": 2000,
        "topic_id": TOPIC_ID,
    }
    return OffsetCommitValue(**{**values, **changes})  # type: ignore[arg-type]


def group_value(**changes: object) -> GroupMetadataValue:
    values: dict[str, object] = {
        "protocol_type": "consumer",
        "generation": 5,
        "protocol": "range",
        "leader": "a",
        "current_state_timestamp": 1000,
        "members": [
            GroupMetadataValue.MemberMetadata(
                member_id="a",
                group_instance_id="i",
                client_id="c",
                client_host="/127.0.0.1",
                rebalance_timeout=300000,
                session_timeout=45000,
                subscription=b"S",
                assignment=b"A",
            )
        ],
    }
    return GroupMetadataValue(**{**values, **changes})  # type: ignore[arg-type]


def test_keys_are_the_record_type_and_the_fields() -> None:
    assert encode_key(OFFSET_KEY) == OFFSET_KEY_BYTES
    assert encode_key(OFFSET_KEY) == OFFSET_KEY_BYTES  # keys are remembered
    assert encode_key(GROUP_KEY) == GROUP_KEY_BYTES


def test_only_keys_of_short_names_are_remembered() -> None:
    remembered = coordinator_records._remembered_offset_key
    for length, kept in ((511, 1), (512, 0)):
        key = OffsetCommitKey(group="g" * length, topic="t", partition=3)
        before = remembered.cache_info()
        assert encode_key(key) == encode_key(key)
        assert decode_record(encode_key(key), None) == (key, None)
        after = remembered.cache_info()
        assert (after.misses - before.misses, after.hits - before.hits) == (kept, 2 * kept)


def test_only_a_key_is_encoded_as_a_key() -> None:
    with pytest.raises(EncodeError, match="OffsetCommitValue"):
        encode_key(offset_value())


# Each version of the value, and what of `offset_value()` it loses.
OFFSET_VALUES = [
    (0, "0000000000000000002a0001 6d00000000000003e8", {"expire_timestamp": -1, "leader_epoch": -1}),
    (1, "0001000000000000002a0001 6d00000000000003e800000000000007d0", {"leader_epoch": -1}),
    (2, "0002000000000000002a0001 6d00000000000003e8", {"expire_timestamp": -1, "leader_epoch": -1}),
    (3, "0003000000000000002a000000070001 6d00000000000003e8", {"expire_timestamp": -1}),
]


@each("version, encoded, lost", OFFSET_VALUES)
def test_offset_values_before_topic_ids(version: int, encoded: str, lost: dict[str, object]) -> None:
    assert encode_value(offset_value(), version) == bytes.fromhex(encoded)
    kept = offset_value(**lost, topic_id=uuid.UUID(int=0))
    assert decode_record(OFFSET_KEY_BYTES, bytes.fromhex(encoded)) == (OFFSET_KEY, kept)


def test_offset_value_v4_is_flexible_and_carries_the_topic_id_as_a_tag() -> None:
    fields = "0004000000000000002a0000000702 6d00000000000003e8"
    with_id = bytes.fromhex(fields + "01 00 10 000102030405060708090a0b0c0d0e0f")
    without_id = bytes.fromhex(fields + "00")
    value = offset_value(expire_timestamp=-1)

    assert encode_value(value, 4) == with_id
    assert decode_record(OFFSET_KEY_BYTES, with_id) == (OFFSET_KEY, value)
    nameless = offset_value(expire_timestamp=-1, topic_id=uuid.UUID(int=0))
    assert encode_value(nameless, 4) == without_id
    assert decode_record(OFFSET_KEY_BYTES, without_id) == (OFFSET_KEY, nameless)


def test_offset_values_are_written_in_the_version_kafka_writes() -> None:
    assert offset_commit_value_version(offset_value(expire_timestamp=-1)) == 4
    # Only v1 has an expiry of its own, at the price of leader epoch and topic id.
    assert offset_commit_value_version(offset_value(expire_timestamp=2000)) == 1


# Each version of the value, and what of `group_value()` a reader gets back: timeouts, timestamp, instance id.
GROUP_VALUES = [
    (
        0,
        "0000 0008 636f6e73756d6572 00000005 0005 72616e6765 0001 61 00000001"
        "0001 61 0001 63 000a 2f3132372e302e302e31 0000afc8 00000001 53 00000001 41",
        (-1, -1, None),
    ),
    (
        1,
        "0001 0008 636f6e73756d6572 00000005 0005 72616e6765 0001 61 00000001"
        "0001 61 0001 63 000a 2f3132372e302e302e31 000493e0 0000afc8 00000001 53 00000001 41",
        (300000, -1, None),
    ),
    (
        2,
        "0002 0008 636f6e73756d6572 00000005 0005 72616e6765 0001 61 00000000000003e8 00000001"
        "0001 61 0001 63 000a 2f3132372e302e302e31 000493e0 0000afc8 00000001 53 00000001 41",
        (300000, 1000, None),
    ),
    (
        3,
        "0003 0008 636f6e73756d6572 00000005 0005 72616e6765 0001 61 00000000000003e8 00000001"
        "0001 61 0001 69 0001 63 000a 2f3132372e302e302e31 000493e0 0000afc8 00000001 53 00000001 41",
        (300000, 1000, "i"),
    ),
    (
        4,
        "0004 09 636f6e73756d6572 00000005 06 72616e6765 02 61 00000000000003e8 02"
        "02 61 02 69 02 63 0b 2f3132372e302e302e31 000493e0 0000afc8 02 53 02 41 00 00",
        (300000, 1000, "i"),
    ),
]


@each("version, encoded, kept", GROUP_VALUES)
def test_group_values(version: int, encoded: str, kept: tuple[int, int, str | None]) -> None:
    rebalance_timeout, timestamp, instance_id = kept
    expected = group_value(current_state_timestamp=timestamp)
    expected.members[0].rebalance_timeout = rebalance_timeout
    expected.members[0].group_instance_id = instance_id

    assert encode_value(group_value(), version) == bytes.fromhex(encoded)
    assert decode_record(GROUP_KEY_BYTES, bytes.fromhex(encoded)) == (GROUP_KEY, expected)


def test_group_metadata_is_written_in_v3() -> None:
    assert GROUP_METADATA_VALUE_VERSION == 3


def test_an_empty_group_has_nulls_for_protocol_and_leader() -> None:
    empty = group_value(protocol_type="", generation=0, protocol=None, leader=None, members=[])
    encoded = bytes.fromhex("0003 0000 00000000 ffff ffff 00000000000003e8 00000000")
    assert encode_value(empty, GROUP_METADATA_VALUE_VERSION) == encoded
    assert decode_record(GROUP_KEY_BYTES, encoded) == (GROUP_KEY, empty)


def test_no_value_is_a_tombstone() -> None:
    assert decode_record(OFFSET_KEY_BYTES, None) == (OFFSET_KEY, None)
    assert decode_record(GROUP_KEY_BYTES, None) == (GROUP_KEY, None)


def test_keys_from_before_0_9_are_read_as_those_of_today() -> None:
    old_key = b"\x00\x00" + OFFSET_KEY_BYTES[2:]
    value = offset_value(expire_timestamp=-1)
    assert decode_record(old_key, None) == (OFFSET_KEY, None)
    assert decode_record(old_key, encode_value(value, 4)) == (OFFSET_KEY, value)


PENDING_KEY = PendingOffsetKey(producer_id=41, group="g", topic="t", partition=3)
PRODUCER_KEY = TransactionalProducerKey(producer_id=41)
PENDING_KEY_BYTES = bytes.fromhex("2710 0000000000000029 0001 67 0001 74 00000003")
PRODUCER_KEY_BYTES = bytes.fromhex("2711 0000000000000029")


def test_records_of_transactions() -> None:
    """Existing stores hold them: they may get new versions, but never other bytes in this one."""
    assert encode_key(PENDING_KEY) == PENDING_KEY_BYTES
    assert encode_key(PRODUCER_KEY) == PRODUCER_KEY_BYTES
    offset = offset_value(expire_timestamp=-1)
    assert decode_record(PENDING_KEY_BYTES, encode_value(offset, 4)) == (PENDING_KEY, offset)
    producer = TransactionalProducerValue(
        producer_epoch=7, coordinator_epoch=-1, last_timestamp=1000, in_transaction=True
    )
    encoded = bytes.fromhex("0000 0007 ffffffff 00000000000003e8 01 00")
    assert encode_value(producer, 0) == encoded
    assert decode_record(PRODUCER_KEY_BYTES, encoded) == (PRODUCER_KEY, producer)


def test_which_records_are_not_kafkas() -> None:
    assert is_own(PENDING_KEY_BYTES)
    assert is_own(PRODUCER_KEY_BYTES)
    assert is_own(b"\x7f\xff")  # of a later version
    assert not any(is_own(kind.to_bytes(2, "big", signed=True)) for kind in (-32768, -1, 0, 1, 2, 16, 9999))


@each("record_type", [*range(9, 16), *range(17, 25), 32767, -1, -32768])
def test_unknown_record_types_are_passed_over(record_type: int) -> None:
    key = record_type.to_bytes(2, "big", signed=True) + b"whatever"
    assert decode_record(key, None) is None
    assert decode_record(key, b"\x00\x00whatever") is None
    assert decode_record(key, b"") is None


@each(
    "key, value",
    [
        pytest.param(b"", None, id="no record type"),
        pytest.param(b"\x00", None, id="half a record type"),
        pytest.param(OFFSET_KEY_BYTES[:-1], None, id="key too short"),
        pytest.param(OFFSET_KEY_BYTES + b"\x00", None, id="key too long"),
        pytest.param(OFFSET_KEY_BYTES, b"", id="no value version"),
        pytest.param(OFFSET_KEY_BYTES, b"\x00", id="half a value version"),
        pytest.param(OFFSET_KEY_BYTES, b"\x00\x04", id="no value fields"),
        pytest.param(OFFSET_KEY_BYTES, b"\x00\x05" + bytes(40), id="value version not known yet"),
        pytest.param(OFFSET_KEY_BYTES, b"\xff\xff" + bytes(40), id="negative value version"),
        pytest.param(GROUP_KEY_BYTES, bytes.fromhex("0003 ffff") + bytes(40), id="null protocol type"),
        pytest.param(
            GROUP_KEY_BYTES, bytes.fromhex("0003 0000 00000000 ffff ffff") + bytes(7), id="value too short"
        ),
    ],
)
def test_bytes_that_do_not_fit(key: bytes, value: bytes | None) -> None:
    with pytest.raises(DecodeError):
        decode_record(key, value)


@each("key, value", [*read_records()])
def test_records_of_apache_kafka(key: bytes, value: bytes | None) -> None:
    record = decode_record(key, value)
    assert record is not None
    decoded_key, decoded_value = record
    assert encode_key(decoded_key) == key
    if decoded_value is None:
        assert value is None
        return
    version = (
        offset_commit_value_version(decoded_value)
        if isinstance(decoded_value, OffsetCommitValue)
        else GROUP_METADATA_VALUE_VERSION
    )
    assert encode_value(decoded_value, version) == value, "written in another version than Kafka's"


@each("key, value_class", [(OFFSET_KEY, OffsetCommitValue), (GROUP_KEY, GroupMetadataValue)])
@each("version", range(5))
def test_what_is_written_is_read_back(key: Message, value_class: type[Message], version: int) -> None:
    rng = sampler(value_class.__name__, version)
    for _ in range(50):
        value = sample(value_class, version, rng)
        stored = encode_value(value, version)
        assert decode_record(encode_key(key), stored) == (key, value), f"MUSTER_TEST_SEED={SEED}"
