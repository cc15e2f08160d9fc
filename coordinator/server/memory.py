"""The memory that the connections of one broker share: for requests, and for responses.

Both limit what is actually held, not what is announced: thirty bytes that announce 100 MiB count as thirty.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Self

SMALL_BYTES: Final = 64 * 1024
"""A connection that holds no more than this never waits for memory. Heartbeats and joins go on, whatever the
producers do."""
_STEP_BYTES_MAX: Final = 1024 * 1024


class RequestMemory:
    """Bytes of requests that are arriving, waiting or being answered, over all connections of a broker.

    A connection that finds no room stops reading and waits in line. A frame asks for room in steps, each for
    as much again as it already has. Half-received frames could thus wait for each other forever, so one
    connection at a time, the first in line, goes on beyond the bound until one of its requests is answered.
    The total held is at most `bytes_max`, plus one request, plus what a connection may hold without asking:
    one piece as read from the socket, at most 256 KiB.
    """

    def __init__(self, bytes_max: int, of_strangers: RequestMemory | None = None) -> None:
        self.held_bytes = 0
        self.of_strangers = of_strangers or self
        """Where clients count that have not shown yet what they are, so that they take nobody else's room."""
        self._bytes_max = bytes_max
        self._line: dict[RequestReservation, None] = {}  # in order of arrival
        self.beyond: RequestReservation | None = None
        """The one that goes on beyond the bound."""

    def grants(self, reservation: RequestReservation, count: int) -> bool:
        """Whether `reservation` may hold `count` more bytes now, without overtaking those in line."""
        return reservation is self.beyond or (not self._line and self._fits(count))

    def stand_in_line(self, reservation: RequestReservation) -> None:
        """Wait for room; a reservation already in line keeps its place."""
        self._line[reservation] = None

    def leave_line(self, reservation: RequestReservation) -> None:
        """Wait no longer."""
        self._line.pop(reservation, None)

    def serve_line(self) -> None:
        """Let those in line go on, in order, as long as there is room."""
        while self._line:
            first = next(iter(self._line))
            if not self._fits(first.lacking_bytes):
                if self.beyond is not None:
                    return
                self.beyond = first
            del self._line[first]
            first.go_on()

    @property
    def anybody_waits(self) -> bool:
        return bool(self._line)

    def _fits(self, count: int) -> bool:
        return self.held_bytes + count <= self._bytes_max


class RequestReservation:
    """One connection's part of RequestMemory."""

    def __init__(self, memory: RequestMemory, resume: Callable[[], None]) -> None:
        """`resume()` is called when a reservation that had to wait may grow again."""
        self.counted_bytes = 0
        self.waiting = False
        self._memory = memory
        self._resume = resume
        self._bytes = 0
        self._step_bytes = 0

    def hold(self, count: int, *, arrived: int = 0, missing: int = 0) -> bool:
        """Count `count` bytes in memory, `arrived` of them from a frame that lacks `missing` bytes; whether
        those may be read now. If not, `resume` will be called."""
        self._bytes = count
        self._step_bytes = min(missing, arrived, _STEP_BYTES_MAX)
        wanted = count + self._step_bytes
        small = wanted <= max(SMALL_BYTES, self.counted_bytes)
        self.waiting = bool(missing) and not small and not self._memory.grants(self, self.lacking_bytes)
        if self.waiting:
            self._memory.stand_in_line(self)
            self._count(count)
        else:
            self._memory.leave_line(self)
            self._count(wanted)
        self._memory.serve_line()
        return not self.waiting

    def hold_whole(self, count: int) -> None:
        """`hold` for a few bytes of complete frames, cheaper while nobody waits."""
        if self.waiting or self._memory.anybody_waits or count > SMALL_BYTES:
            self.hold(count)
            return
        self._bytes, self._step_bytes = count, 0
        self._count(count)

    def release(self) -> None:
        """`answered`, and `hold` of nothing, cheaper while nobody waits."""
        memory = self._memory
        if self.waiting or memory.anybody_waits or memory.beyond is self:
            self.answered()
            self.hold(0)
            return
        self._bytes = self._step_bytes = 0
        memory.held_bytes -= self.counted_bytes
        self.counted_bytes = 0

    def answered(self) -> None:
        """A request was answered: the bound holds again for whoever went beyond it."""
        if self._memory.beyond is self:
            self._memory.beyond = None

    def move(self, memory: RequestMemory) -> None:
        """From now on, be a part of `memory`. Call `hold` next, since it may have room."""
        left, self._memory = self._memory, memory
        left.leave_line(self)
        if left.beyond is self:
            left.beyond = None
        left.held_bytes -= self.counted_bytes
        memory.held_bytes += self.counted_bytes
        left.serve_line()

    def end(self) -> None:
        """Hold nothing, wait for nothing, and drop `resume`."""
        self.answered()
        self.hold(0)
        self._resume = _nobody

    @property
    def lacking_bytes(self) -> int:
        """Additional bytes that this reservation needs to go on."""
        return self._bytes + self._step_bytes - self.counted_bytes

    def go_on(self) -> None:
        """Called by RequestMemory when it is this reservation's turn."""
        self.waiting = False
        self._count(self._bytes + self._step_bytes)
        self._resume()

    def _count(self, count: int) -> None:
        self._memory.held_bytes += count - self.counted_bytes
        self.counted_bytes = count


def _nobody() -> None:
    """Stands in for `resume` after the end of a reservation."""


class ResponseMemory:
    """Bytes of responses that are being read from the logs, or were written but not taken yet.

    Only fetches can be made smaller, so only they ask; what the rest holds counts all the same.
    """

    def __init__(self, bytes_max: int) -> None:
        self.held_bytes = 0
        self._bytes_max = bytes_max

    def room(self) -> int:
        return max(self._bytes_max - self.held_bytes, 0)


class ResponseReservation:
    """A part of ResponseMemory: what one fetch may read, or what one connection has not sent yet."""

    __slots__ = ("_memory", "bytes")

    def __init__(self, memory: ResponseMemory) -> None:
        self.bytes = 0
        self._memory = memory

    def hold(self, count: int) -> None:
        """Count so many bytes instead of what was counted before."""
        self._memory.held_bytes += count - self.bytes
        self.bytes = count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hold(0)

    def lend(self, wanted: int) -> int:
        """Count as much of `wanted` as there is room for, instead of what was counted before; how much."""
        self.hold(0)
        self.hold(min(wanted, self._memory.room()))
        return self.bytes
