"""ConsumerProtocol blobs: exact bytes, and the leniency that members of other versions need."""

from __future__ import annotations

import random

import pytest

from muster.protocol.embedded import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    subscribed_topics,
)
from muster.protocol.errors import DecodeError, TooLargeError
from tests.protocol.sampling import SEED, sample, sampler
from tests.support.each import each

OWNED = ConsumerProtocolSubscription.TopicPartition(topic="a", partitions=[0, 2])
SUBSCRIPTION = ConsumerProtocolSubscription(
    topics=["a", "b"], user_data=b"U", owned_partitions=[OWNED], generation_id=4, rack_id="r"
)
ASSIGNMENT = ConsumerProtocolAssignment(
    assigned_partitions=[ConsumerProtocolAssignment.TopicPartition(topic="a", partitions=[0, 2])],
    user_data=None,
)

V0_FIELDS = "00000002 0001 61 0001 62 00000001 55"
V1_FIELDS = V0_FIELDS + "00000001 0001 61 00000002 00000000 00000002"
V2_FIELDS = V1_FIELDS + "00000004"
V3_FIELDS = V2_FIELDS + "0001 72"

SUBSCRIPTIONS = [
    (0, "0000" + V0_FIELDS, {"owned_partitions": [], "generation_id": -1, "rack_id": None}),
    (1, "0001" + V1_FIELDS, {"generation_id": -1, "rack_id": None}),
    (2, "0002" + V2_FIELDS, {"rack_id": None}),
    (3, "0003" + V3_FIELDS, {}),
]


@each("version, encoded, lost", SUBSCRIPTIONS)
def test_subscription(version: int, encoded: str, lost: dict[str, object]) -> None:
    blob = bytes.fromhex(encoded)
    assert encode_subscription(SUBSCRIPTION, version) == blob

    decoded = decode_subscription(blob)
    for name in ("topics", "user_data", "owned_partitions", "generation_id", "rack_id"):
        assert getattr(decoded, name) == lost.get(name, getattr(SUBSCRIPTION, name)), name


def test_a_subscription_without_user_data() -> None:
    blob = bytes.fromhex("0000 00000001 0001 61 ffffffff")
    assert decode_subscription(blob) == ConsumerProtocolSubscription(topics=["a"], user_data=None)
    assert encode_subscription(ConsumerProtocolSubscription(topics=["a"]), 0) == blob


@each("version", range(4))
def test_assignment(version: int) -> None:
    blob = bytes.fromhex(f"{version:04x} 00000001 0001 61 00000002 00000000 00000002 ffffffff")
    assert encode_assignment(ASSIGNMENT, version) == blob
    assert decode_assignment(blob) == ASSIGNMENT


def test_the_highest_version_is_written_unless_asked() -> None:
    assert encode_subscription(SUBSCRIPTION) == encode_subscription(SUBSCRIPTION, 3)
    assert encode_assignment(ASSIGNMENT) == encode_assignment(ASSIGNMENT, 3)


@each("version", [4, 5, 32767])
def test_versions_above_3_are_read_as_3(version: int) -> None:
    blob = version.to_bytes(2, "big") + bytes.fromhex(V3_FIELDS) + b"fields of the future"
    assert decode_subscription(blob) == SUBSCRIPTION
    assert subscribed_topics(blob) == ["a", "b"]
    assert (
        decode_assignment(version.to_bytes(2, "big") + encode_assignment(ASSIGNMENT)[2:] + b"!") == ASSIGNMENT
    )


@each("version, encoded, lost", SUBSCRIPTIONS)
def test_bytes_after_the_known_fields_are_ignored(
    version: int, encoded: str, lost: dict[str, object]
) -> None:
    blob = bytes.fromhex(encoded)
    assert decode_subscription(blob + b"more") == decode_subscription(blob)


def test_blobs_may_be_views_of_a_frame() -> None:
    frame = b"??" + encode_subscription(SUBSCRIPTION)
    assert decode_subscription(memoryview(frame)[2:]) == SUBSCRIPTION
    assert subscribed_topics(memoryview(frame)[2:]) == ["a", "b"]
    assert decode_assignment(memoryview(encode_assignment(ASSIGNMENT))) == ASSIGNMENT


def test_the_topics_are_found_where_later_fields_are_broken() -> None:
    # Kafka's coordinator reads the part that all versions share, so it does not notice a client that claims
    # version 1 and leaves out the owned partitions.
    blob = b"\x00\x01" + bytes.fromhex(V0_FIELDS)
    assert subscribed_topics(blob) == ["a", "b"]
    with pytest.raises(DecodeError):
        decode_subscription(blob)


def test_a_topic_name_that_is_not_utf8_is_read_with_replacements() -> None:
    blob = bytes.fromhex("0000 00000001 0001 ff ffffffff")
    assert subscribed_topics(blob) == decode_subscription(blob).topics == ["\ufffd"]


GARBAGE = [
    pytest.param(b"", id="nothing"),
    pytest.param(b"\x00", id="half a version"),
    pytest.param(b"\x00\x03", id="a version alone"),
    pytest.param(b"\xff\xff" + bytes.fromhex(V3_FIELDS), id="version -1"),
    pytest.param(b"\x80\x00" + bytes.fromhex(V3_FIELDS), id="version -32768"),
    pytest.param(bytes.fromhex("0000 ffffffff ffffffff"), id="null topics"),
    pytest.param(bytes.fromhex("0000 7fffffff"), id="two thousand million topics"),
    pytest.param(bytes.fromhex("0000 00000001 ffff ffffffff"), id="null topic name"),
    pytest.param(bytes.fromhex("0000 00000001 0001 61 fffffffe"), id="user data of length -2"),
]


@each("blob", GARBAGE)
def test_garbage_is_a_decode_error(blob: bytes) -> None:
    for decode in (decode_subscription, decode_assignment, subscribed_topics):
        with pytest.raises(DecodeError):
            decode(blob)


def test_who_reads_may_bound_what_is_listed() -> None:
    """Topics and partitions count alike, and before any of them is read."""
    many = bytes.fromhex("0000 000186a1") + bytes(6 * 100_001 + 4)
    assert subscribed_topics(many) == [""] * 100_001
    for decode in (decode_subscription, subscribed_topics, decode_assignment):
        with pytest.raises(TooLargeError):
            decode(many, 100_000)
    assert subscribed_topics(encode_subscription(SUBSCRIPTION), 2) == ["a", "b"]
    assert decode_subscription(encode_subscription(SUBSCRIPTION), 5) == SUBSCRIPTION
    assert decode_assignment(encode_assignment(ASSIGNMENT), 3) == ASSIGNMENT
    with pytest.raises(TooLargeError):
        decode_subscription(encode_subscription(SUBSCRIPTION), 4)
    with pytest.raises(TooLargeError):
        decode_assignment(encode_assignment(ASSIGNMENT), 2)


def test_an_empty_assignment_is_not_an_assignment_of_nothing() -> None:
    nothing = ConsumerProtocolAssignment(assigned_partitions=[])
    assert decode_assignment(encode_assignment(nothing)) == nothing
    with pytest.raises(DecodeError):
        decode_assignment(b"")


@each("version", range(4))
def test_what_is_written_is_read_back(version: int) -> None:
    rng = sampler("embedded", version)
    for _ in range(50):
        subscription = sample(ConsumerProtocolSubscription, version, rng)
        assignment = sample(ConsumerProtocolAssignment, version, rng)
        assert decode_subscription(encode_subscription(subscription, version)) == subscription, f"seed {SEED}"
        assert decode_assignment(encode_assignment(assignment, version)) == assignment, f"seed {SEED}"


def test_mutated_blobs_decode_or_raise_decode_error() -> None:
    rng: random.Random = sampler("mutations")
    whole = encode_subscription(SUBSCRIPTION)
    for _ in range(2000):
        blob = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            blob[rng.randrange(len(blob))] = rng.randrange(256)
        mutated = bytes(blob[: rng.randrange(len(blob) + 1)])
        for decode in (decode_subscription, decode_assignment, subscribed_topics):
            try:
                decode(mutated)
            except DecodeError:
                pass
            except Exception as error:
                pytest.fail(f"MUSTER_TEST_SEED={SEED}: {decode.__name__}({mutated!r}) raised {error!r}")
