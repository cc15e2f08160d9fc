"""Frames received in place, compared with what `FrameSplitter` makes of the same bytes."""

from __future__ import annotations

import random

import pytest

from muster.client.network.receive import BUFFER_BYTES, FrameReceiver
from muster.protocol.errors import DecodeError
from muster.protocol.frame import FrameSplitter
from tests.support.each import each

FRAME_BYTES_MAX = 4 * BUFFER_BYTES


def framed(frame: bytes) -> bytes:
    return len(frame).to_bytes(4, "big") + frame


def received(receiver: FrameReceiver, stream: bytes, piece_bytes: random.Random | None) -> list[bytes]:
    """The frames of the stream, fed in pieces of random sizes, or as large as there is room for."""
    frames, position = [], 0
    while position < len(stream):
        room = receiver.room()
        assert len(room)
        count = min(len(room), len(stream) - position)
        if piece_bytes is not None:
            count = min(count, piece_bytes.choice((1, 3, 4, 5, 100, 5_000, BUFFER_BYTES)))
        room[:count] = stream[position : position + count]
        frames += receiver.received(count)
        position += count
    return frames


@each("seed", range(30))
def test_both_cut_alike(seed: int) -> None:
    dice = random.Random(seed)
    sizes = [
        0,
        1,
        4,
        100,
        3_000,
        BUFFER_BYTES - 5,
        BUFFER_BYTES - 4,
        BUFFER_BYTES - 3,
        BUFFER_BYTES,
        FRAME_BYTES_MAX,
    ]
    frames = [dice.randbytes(dice.choice(sizes)) for _ in range(dice.randint(1, 12))]
    stream = b"".join(map(framed, frames))
    assert FrameSplitter(FRAME_BYTES_MAX).feed(stream) == frames
    receiver = FrameReceiver(FRAME_BYTES_MAX)
    assert received(receiver, stream, dice) == frames
    assert not receiver.unfinished
    assert received(receiver, stream, None) == frames
    assert received(receiver, framed(b"cut off")[:-1], None) == []
    assert receiver.unfinished


@each("size", [-1, FRAME_BYTES_MAX + 1, 0x48545450])
def test_a_size_that_is_none_ends_it_behind_the_frames_before_it(size: int) -> None:
    stream = framed(b"good") + size.to_bytes(4, "big", signed=True) + b"more"
    splitter, receiver = FrameSplitter(FRAME_BYTES_MAX), FrameReceiver(FRAME_BYTES_MAX)
    assert received(receiver, stream, None) == splitter.feed(stream) == [b"good"]
    for _ in range(2):
        with pytest.raises(DecodeError) as theirs:
            splitter.feed(b"x")
        with pytest.raises(DecodeError) as ours:
            receiver.received(1)
        assert str(ours.value) == str(theirs.value)


def test_frames_are_their_own() -> None:
    """Data received later does not change them."""
    receiver = FrameReceiver(FRAME_BYTES_MAX)
    small, large = bytes(100), bytes(2 * BUFFER_BYTES)
    frames = received(receiver, framed(small) + framed(large), None)
    received(receiver, framed(b"\xff" * 100) + framed(b"\xff" * 2 * BUFFER_BYTES), None)
    assert frames == [small, large]
