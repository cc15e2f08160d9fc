"""Frames are cut out of a stream, whatever pieces it comes in."""

from __future__ import annotations

import itertools
import struct as structs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.protocol.errors import DecodeError, FrameTooLargeError, TooLargeError
from muster.protocol.frame import FRAME_BYTES_MAX_DEFAULT, FrameSplitter
from tests.support.each import each


def framed(*frames: bytes) -> bytes:
    return b"".join(structs.pack(">i", len(frame)) + frame for frame in frames)


@given(frames=st.lists(st.binary(max_size=40)), cuts=st.lists(st.integers(0, 300)))
def test_frames_do_not_depend_on_the_pieces(frames: list[bytes], cuts: list[int]) -> None:
    stream = framed(*frames)
    splitter = FrameSplitter()
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    received = []
    for begin, end in itertools.pairwise(edges):
        received += splitter.feed(stream[begin:end])
    assert received == frames
    assert splitter.pending_bytes == splitter.announced_bytes == 0


def test_byte_by_byte() -> None:
    splitter = FrameSplitter()
    stream = framed(b"ab", b"", b"c")
    assert [frame for byte in stream for frame in splitter.feed(bytes((byte,)))] == [b"ab", b"", b"c"]


@each("kind", [bytes, bytearray, memoryview])
def test_frames_are_bytes_of_their_own(kind: type) -> None:
    buffer = bytearray(framed(b"ab", b"cd") + b"\x00\x00")
    splitter = FrameSplitter()
    frames = splitter.feed(kind(buffer))
    assert splitter.pending_bytes == 2
    buffer[:] = bytes(len(buffer))
    assert frames == [b"ab", b"cd"]
    assert all(type(frame) is bytes for frame in frames)
    assert splitter.feed(b"\x00\x01x") == [b"x"]


def test_what_is_pending_and_what_is_announced() -> None:
    splitter = FrameSplitter()
    assert splitter.announced_bytes == 0
    splitter.feed(b"\x00\x00")
    assert (splitter.pending_bytes, splitter.announced_bytes) == (2, 4)
    splitter.feed(b"\x00\x0aabc")
    assert (splitter.pending_bytes, splitter.announced_bytes) == (7, 14)


@each("size", [-1, -(2**31), 11, 2**31 - 1])
def test_a_broken_size_is_refused_for_good(size: int) -> None:
    splitter = FrameSplitter(frame_bytes_max=10)
    with pytest.raises(DecodeError, match=f"a frame of {size} bytes; allowed are 0 to 10"):
        splitter.feed(structs.pack(">i", size) + b"abc")
    assert splitter.pending_bytes == 0
    with pytest.raises(DecodeError, match=f"a frame of {size} bytes"):
        splitter.feed(framed(b"fine"))


@each("size, kind", [(-1, DecodeError), (11, FrameTooLargeError), (0x47455420, FrameTooLargeError)])
def test_behind_a_known_beginning_a_large_size_is_a_large_frame(size: int, kind: type[DecodeError]) -> None:
    splitter = FrameSplitter(frame_bytes_max=10)
    splitter.known = True
    with pytest.raises(DecodeError) as caught:
        splitter.feed(structs.pack(">i", size))
    assert type(caught.value) is kind


def test_the_largest_frame_is_allowed() -> None:
    assert FrameSplitter(frame_bytes_max=10).feed(framed(b"x" * 10)) == [b"x" * 10]
    assert FrameSplitter().frame_bytes_max == FRAME_BYTES_MAX_DEFAULT == 104_857_600


def test_frames_before_a_broken_size_can_still_be_answered() -> None:
    splitter = FrameSplitter()
    assert splitter.feed(framed(b"fine") + b"\xff\xff\xff\xff") == [b"fine"]
    with pytest.raises(DecodeError, match="a frame of -1 bytes"):
        splitter.feed(b"")


def test_an_announced_frame_takes_no_memory_before_it_comes() -> None:
    splitter = FrameSplitter()
    splitter.feed(structs.pack(">i", FRAME_BYTES_MAX_DEFAULT) + b"x")
    assert splitter.pending_bytes == 5


@each("piece_bytes", [1, 3, 1_000])
def test_each_frame_is_put_forward_once_by_its_api_key_and_size(piece_bytes: int) -> None:
    asked: list[tuple[int, int]] = []
    splitter = FrameSplitter(admit=lambda api_key, size: asked.append((api_key, size)))
    bodies = [b"\x00\x03abc", b"\xff\xff", b"x", b"\x00\x12"]  # one byte is no api key
    stream = b"".join(map(framed, bodies))
    frames = []
    for start in range(0, len(stream), piece_bytes):
        frames += splitter.feed(stream[start : start + piece_bytes])
    assert frames == bodies
    assert asked == [(3, 5), (-1, 2), (18, 2)]


def test_a_frame_that_is_not_admitted_is_refused_for_good_at_its_second_byte() -> None:
    def admit(api_key: int, size: int) -> None:
        if api_key == 3:
            raise TooLargeError(f"{size} bytes")

    splitter = FrameSplitter(admit=admit)
    assert splitter.feed(framed(b"\x00\x02fine") + structs.pack(">i", 1_000) + b"\x00") == [b"\x00\x02fine"]
    for piece in (b"\x03", framed(b"\x00\x02fine")):
        with pytest.raises(TooLargeError, match="1000 bytes"):
            splitter.feed(piece)


@given(
    pieces=st.lists(
        st.one_of(
            st.binary(max_size=30).map(framed),
            st.binary(max_size=30),
            st.lists(st.binary(max_size=9), max_size=3).map(lambda frames: framed(*frames)),
        ),
        max_size=8,
    ),
    admitted_bytes=st.integers(0, 30),
    frame_bytes_max=st.integers(0, 30),
)
def test_whole_is_feed_where_it_answers_and_changes_nothing_where_not(
    pieces: list[bytes], admitted_bytes: int, frame_bytes_max: int
) -> None:
    def admit(api_key: int, size: int) -> None:
        assert size > admitted_bytes

    def cut(splitter: FrameSplitter, piece: bytes, *, by_whole: bool) -> list[bytes] | str:
        if by_whole and (frame := splitter.whole(piece)) is not None:
            return [frame]
        try:
            return splitter.feed(piece)
        except DecodeError as error:
            return str(error)

    splitters = [FrameSplitter(frame_bytes_max, admit, admitted_bytes) for _ in range(2)]
    for piece in pieces:
        fast, plain = (cut(splitter, piece, by_whole=index == 0) for index, splitter in enumerate(splitters))
        assert fast == plain
        assert splitters[0].pending_bytes == splitters[1].pending_bytes


def test_whole_takes_one_small_frame() -> None:
    splitter = FrameSplitter(100, admitted_bytes=10)
    assert splitter.whole(framed(b"0123456789")) == b"0123456789"
    assert splitter.whole(framed(b"0123456789a")) is None
    assert splitter.whole(framed(b"one", b"two")) is None
    splitter.feed(framed(b"cut")[:5])
    assert splitter.whole(framed(b"one")) is None
