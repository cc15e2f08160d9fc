"""Frames: every request and response is preceded by its size, an int32."""

from __future__ import annotations

import struct as structs
from collections.abc import Callable
from typing import Final

from muster.protocol.errors import DecodeError, ForeignProtocolError, FrameTooLargeError
from muster.protocol.foreign import BEGINNING_BYTES, protocol_of

FRAME_BYTES_MAX_DEFAULT: Final = 100 * 1024 * 1024
"""Kafka's default for socket.request.max.bytes."""

_SIZE: Final = structs.Struct(">i")
SIZE_BYTES: Final = _SIZE.size
_API_KEY: Final = structs.Struct(">h")


def impossible_size(size: int, frame_bytes_max: int, *, known: bool = False) -> DecodeError:
    """The error for a frame with an invalid size. If its bytes are the beginning of another protocol, the
    error names that protocol. `known` as in FrameSplitter."""
    if known and size > frame_bytes_max:
        return FrameTooLargeError(f"a request of {size} bytes; the limit is {frame_bytes_max}")
    protocol = protocol_of(_SIZE.pack(size))
    if protocol is not None:
        return ForeignProtocolError(
            f"{protocol} instead of Kafka's protocol (taken for a frame of {size} bytes)", protocol
        )
    return DecodeError(f"a frame of {size} bytes; allowed are 0 to {frame_bytes_max}")


class FrameSplitter:
    """Splits a byte stream, arriving in pieces of any length, into frames.

        splitter = FrameSplitter(frame_bytes_max=…)
        for frame in splitter.feed(piece): …

    Frames are returned without their size, as separate bytes objects. A size below zero or above
    `frame_bytes_max` raises DecodeError (above it FrameTooLargeError, if the stream is `known`); the rest of
    the stream is meaningless then, and every further call raises the error again. Holds at most one
    incomplete frame besides the piece being fed.

    `admit(api_key, size)` is called for each frame as soon as its first two bytes have arrived: the api key
    of a request. It may refuse the frame with DecodeError before the rest is buffered.
    """

    __slots__ = (
        "_admitted",
        "_admitted_bytes",
        "_broken",
        "_pending",
        "_wanted",
        "admit",
        "frame_bytes_max",
        "known",
    )

    def __init__(
        self,
        frame_bytes_max: int = FRAME_BYTES_MAX_DEFAULT,
        admit: Callable[[int, int], None] | None = None,
        admitted_bytes: int = 0,
    ) -> None:
        """Frames up to `admitted_bytes` are admitted without calling `admit`."""
        self.frame_bytes_max = frame_bytes_max
        self.known = False
        """Whether the stream is known to consist of frames, so that a large size is that of a large frame."""
        self.admit = admit
        self._admitted_bytes = max(admitted_bytes, _API_KEY.size - 1)
        self._pending = bytearray()
        self._wanted = SIZE_BYTES  # bytes that `_pending` needs before it is worth checking
        self._admitted = False  # whether `admit` was called for the incomplete frame
        self._broken: DecodeError | None = None

    @property
    def pending_bytes(self) -> int:
        """Bytes of an incomplete frame, including its size field: at the end of a stream, anything but 0
        means a truncated frame."""
        return len(self._pending)

    @property
    def beginning(self) -> bytes:
        """The first bytes of an incomplete frame, including its size field."""
        return bytes(self._pending[:BEGINNING_BYTES])

    @property
    def announced_bytes(self) -> int:
        """The full size of the incomplete frame, including its size field; 0 between frames. A reader must
        make room for it."""
        return self._wanted if self._pending else 0

    def whole(self, piece: bytes) -> bytes | None:
        """A fast path for `feed`: returns the frame if `piece` is exactly one that needs no call of `admit`,
        and no other is incomplete. Otherwise returns None and changes nothing.
        """
        size = len(piece) - SIZE_BYTES
        if (
            self._pending
            or not _API_KEY.size <= size <= self._admitted_bytes
            or _SIZE.unpack_from(piece)[0] != size
            or size > self.frame_bytes_max
            or self._broken is not None
        ):
            return None
        return piece[SIZE_BYTES:]

    def feed(self, piece: bytes | bytearray | memoryview) -> list[bytes]:
        """The frames that `piece` completes, in order.

        An invalid size after complete frames is reported by the next call, so that those frames can still be
        answered.
        """
        broken = self._broken
        if broken is not None:
            raise broken
        if self._pending:
            self._pending += piece
            piece = self._pending
        if len(piece) < self._wanted:
            # Checking again with every piece of a large frame would be quadratic.
            if piece is not self._pending:
                self._pending = bytearray(piece)
            return []
        with memoryview(piece) as view:
            frames, position = self._cut(view)
            self._pending = bytearray(view[position:])
        if self._broken is not None:
            self._pending.clear()
            if not frames:
                raise self._broken
        return frames

    def _cut(self, view: memoryview) -> tuple[list[bytes], int]:
        """The complete frames in `view`, and where the incomplete one begins."""
        frames: list[bytes] = []
        position, end = 0, len(view)
        while True:
            self._wanted = SIZE_BYTES
            if end - position < SIZE_BYTES:
                return frames, position
            (size,) = _SIZE.unpack_from(view, position)
            if not 0 <= size <= self.frame_bytes_max:
                self._broken = impossible_size(size, self.frame_bytes_max, known=self.known)
                return frames, position
            if self.admit is not None and not self._admitted and size > self._admitted_bytes:
                self._wanted = SIZE_BYTES + _API_KEY.size
                if end - position < self._wanted:
                    return frames, position
                try:
                    (api_key,) = _API_KEY.unpack_from(view, position + SIZE_BYTES)
                    self.admit(api_key, size)
                except DecodeError as refused:
                    self._broken = refused
                    return frames, position
                self._admitted = True
            self._wanted = SIZE_BYTES + size
            if end - position < self._wanted:
                return frames, position
            self._admitted = False
            frames.append(bytes(view[position + SIZE_BYTES : position + self._wanted]))
            position += self._wanted
