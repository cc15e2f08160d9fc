"""Splits a stream into frames in place, without copying what a connection reads. The slower counterpart is
`muster.protocol.frame.FrameSplitter`, which takes pieces.
"""

from __future__ import annotations

import struct as structs
from typing import Final

from muster.protocol.errors import DecodeError
from muster.protocol.frame import impossible_size

BUFFER_BYTES: Final = 64 * 1024

_SIZE: Final = structs.Struct(">i")
_SIZE_BYTES: Final = _SIZE.size


class FrameReceiver:
    """A buffer to receive into, and the frames received there.

        count = sock.recv_into(receiver.room())
        for frame in receiver.received(count): …

    Small frames share one buffer; a frame larger than the buffer gets its own memory, is received there
    directly, and returned without a copy. A size below zero or above `frame_bytes_max` raises
    DecodeError once the frames before it have been returned; the stream is unusable from then on.
    """

    __slots__ = ("_broken", "_buffer", "_filled", "_large", "_large_filled", "_view", "frame_bytes_max")

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._large: memoryview | None = None  # the incomplete frame with memory of its own
        self._large_filled = 0
        self._broken: DecodeError | None = None

    @property
    def unfinished(self) -> bool:
        """Whether there is an incomplete frame: at the end of a stream, a truncated one."""
        return self._large is not None or self._filled > 0

    def room(self) -> memoryview:
        """The buffer for the next bytes; never empty."""
        if self._large is not None:
            return self._large[self._large_filled :]
        return self._view[self._filled :]

    def received(self, count: int) -> list[bytes | bytearray]:
        """The frames, without their sizes, completed by the `count` bytes received into `room()`."""
        if self._broken is not None:
            raise self._broken
        if self._large is not None:
            self._large_filled += count
            if self._large_filled < len(self._large):
                return []
            frame, self._large = self._large.obj, None
            assert isinstance(frame, bytearray)
            return [frame]
        self._filled += count
        frames: list[bytes | bytearray] = []
        position, end = 0, self._filled
        while end - position >= _SIZE_BYTES:
            (size,) = _SIZE.unpack_from(self._buffer, position)
            if not 0 <= size <= self.frame_bytes_max:
                self._broken = impossible_size(size, self.frame_bytes_max)
                if not frames:
                    raise self._broken
                return frames
            begin = position + _SIZE_BYTES
            if size > end - begin:
                if size > BUFFER_BYTES - _SIZE_BYTES:
                    self._begin_large(size, begin)
                    return frames
                break
            position = begin + size
            frames.append(bytes(self._view[begin:position]))
        self._filled = end - position
        if position and self._filled:
            self._buffer[: self._filled] = self._buffer[position:end]
        return frames

    def _begin_large(self, size: int, begin: int) -> None:
        self._large = memoryview(bytearray(size))
        self._large_filled = self._filled - begin
        self._large[: self._large_filled] = self._view[begin : self._filled]
        self._filled = 0
