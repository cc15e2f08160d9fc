"""Whatever the bytes: a message or DecodeError, soon.

Random streams, random bodies behind a valid header, and valid frames gone wrong, all from one seed, which a
failure prints. To repeat a run, or to fuzz for longer:

    MUSTER_TEST_SEED=4711 MUSTER_FUZZ_SECONDS=600 pytest tests/fuzz/test_fuzz_frames.py
"""

from __future__ import annotations

import os
import random
import struct as structs
import time
from collections.abc import Callable

import pytest

from muster.protocol import api, codec, embedded
from muster.protocol.api import ApiKey
from muster.protocol.errors import DecodeError
from muster.protocol.frame import FrameSplitter
from muster.protocol.header import decode_request_header, decode_response_header, encode_request
from muster.protocol.messages import coordinator_records
from muster.protocol.types import UnsignedVarint
from tests.protocol.sampling import SEED, sample, sampler, versions_of

SECONDS = float(os.environ.get("MUSTER_FUZZ_SECONDS", "1"))
INPUTS_MIN = 200
"""Tried however slow the machine is."""

SECONDS_PER_INPUT_MAX = 5.0
"""Far beyond what any input here needs, far below what an unchecked length would take."""

FRAME_BYTES_MAX = 1 << 16
EDGES = (0x00, 0x01, 0x02, 0x7F, 0x80, 0xFF)


def fuzz(name: str, attempt: Callable[[random.Random], None]) -> int:
    """Call `attempt` again and again. Returns how often DecodeError was the answer."""
    rng = sampler(name)
    refused = inputs = 0
    deadline = time.monotonic() + SECONDS
    while inputs < INPUTS_MIN or time.monotonic() < deadline:
        started = time.monotonic()
        try:
            attempt(rng)
        except DecodeError:
            refused += 1
        except Exception as error:
            pytest.fail(f"MUSTER_TEST_SEED={SEED}, input {inputs} of {name}: {error!r}")
        assert time.monotonic() - started < SECONDS_PER_INPUT_MAX, (
            f"MUSTER_TEST_SEED={SEED}, input {inputs} of {name} took too long"
        )
        inputs += 1
    return refused


def garbage(rng: random.Random, length_max: int = 300) -> bytes:
    """Random bytes; half of the time mostly those at which lengths and markers change their meaning."""
    length = rng.randrange(length_max)
    if rng.random() < 0.5:
        return rng.randbytes(length)
    return bytes(rng.choice(EDGES) if rng.random() < 0.7 else rng.randrange(256) for _ in range(length))


def damaged(rng: random.Random, data: bytes) -> bytes:
    """`data` with a few bytes changed, inserted, removed, or all cut off from some place on."""
    broken = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(broken) + 1)
        match rng.randrange(6):
            case 0 | 1:
                broken[at : at + 1] = bytes((rng.choice(EDGES),))
            case 2:
                broken[at : at + 1] = bytes((rng.randrange(256),))
            case 3:
                broken[at:at] = garbage(rng, 8)
            case 4:
                del broken[at : at + rng.randint(1, 8)]
            case 5:
                broken[at:] = garbage(rng, 8)
    return bytes(broken)


def receive(stream: bytes) -> None:
    """What a broker does with the bytes of a connection, up to the handlers."""
    for frame in FrameSplitter(FRAME_BYTES_MAX).feed(stream):
        header, offset = decode_request_header(frame)
        message = codec.decode(api.request_class(header.api_key), header.api_version, frame, offset)
        repr(message)


def test_random_streams() -> None:
    def attempt(rng: random.Random) -> None:
        receive(garbage(rng))

    fuzz("streams", attempt)


def test_random_bodies_behind_valid_headers() -> None:
    def attempt(rng: random.Random) -> None:
        key = rng.choice(api.declared_apis())
        version = rng.choice(versions_of(api.versions(key)))
        tags = b"\x00" if api.request_header_version(key, version) == 2 else b""
        frame = structs.pack(">hhih", key, version, 7, -1) + tags + garbage(rng)
        receive(structs.pack(">i", len(frame)) + frame)

    assert fuzz("bodies", attempt) > 0


def test_damaged_requests() -> None:
    def attempt(rng: random.Random) -> None:
        key = rng.choice(api.declared_apis())
        version = rng.choice(versions_of(api.versions(key)))
        message = sample(api.request_class(key), version, rng)
        frame = damaged(rng, encode_request(key, version, 7, "fuzz", message)[4:])
        receive(structs.pack(">i", len(frame)) + frame)

    assert fuzz("requests", attempt) > 0


def test_damaged_responses() -> None:
    """What a client reads: a broken broker must not break it either."""

    def attempt(rng: random.Random) -> None:
        key = rng.choice(api.declared_apis())
        cls = api.response_class(key)
        version = rng.choice(versions_of(cls.__schema__.versions))
        tags = b"\x00" if api.response_header_version(key, version) == 1 else b""
        frame = structs.pack(">i", 7) + tags + codec.encode(sample(cls, version, rng), version)
        frame = damaged(rng, frame)
        _, offset = decode_response_header(key, version, frame)
        repr(codec.decode(cls, version, frame, offset))
        if key == ApiKey.API_VERSIONS:
            api.decode_api_versions(version, frame[offset:])

    assert fuzz("responses", attempt) > 0


def test_damaged_blobs_and_records() -> None:
    subscription = embedded.encode_subscription(
        embedded.ConsumerProtocolSubscription(topics=["orders", "payments"], user_data=b"u")
    )
    key = coordinator_records.encode_key(
        coordinator_records.OffsetCommitKey(group="g", topic="orders", partition=1)
    )
    value = coordinator_records.encode_value(
        coordinator_records.OffsetCommitValue(offset=5, metadata="m", commit_timestamp=1), 4
    )

    def attempt(rng: random.Random) -> None:
        match rng.randrange(4):
            case 0:
                embedded.decode_subscription(damaged(rng, subscription))
            case 1:
                embedded.decode_assignment(garbage(rng, 40))
            case 2:
                coordinator_records.decode_record(damaged(rng, key), value)
            case _:
                coordinator_records.decode_record(key, damaged(rng, value))

    assert fuzz("blobs", attempt) > 0


def test_a_large_frame_of_nothing_but_empty_elements_is_done_in_time() -> None:
    """The most objects that bytes can ask for: a topic in a Metadata request v9 takes two bytes."""
    count = 200_000
    body = UnsignedVarint().build(count + 1) + b"\x01\x00" * count + bytes(4)
    started = time.monotonic()
    message = codec.decode(api.request_class(ApiKey.METADATA), 9, body)
    assert len(message.topics) == count  # type: ignore[attr-defined]
    assert time.monotonic() - started < SECONDS_PER_INPUT_MAX
