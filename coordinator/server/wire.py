"""One connection without its socket: bytes in, requests out one at a time, responses in their order.

Kafka mutes a channel while one of its requests is processed, and clients rely on it: the requests of one
connection are processed one at a time, and their responses leave in request order. Nobody can tell the
difference if a request waits in a line of its own, such as a Produce whose batches wait to be written: so
requests of the same API are begun behind it (`enter_line`), and all others wait until the line is empty.

    frame = wire.take(data)                     one small request that may be begun now, mostly all of `data`
    wire.receive(data); frame = wire.next()     anything else
    wire.answered(response)                     what may be sent of it now; then `next` again
    place = wire.enter_line(frame)              `next` again; in the end wire.answered(response, place)

Every queue has a bound. A wire stops reading when it has `QUEUED_FRAMES` requests waiting (one, until its
client is `recognised`), or when the broker has `queued.max.request.bytes` of requests in memory (`memory`);
it begins no request while its peer does not take its responses, and none behind a line of `IN_LINE_MAX`
requests or `IN_LINE_BYTES_MAX`. TCP then holds the client back.

It has no clock: `elapsed` tells it how much time has passed. `listen` is called with whether to read from the
socket, when that changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from itertools import takewhile
from typing import Final, NamedTuple

from muster.coordinator.server.memory import (
    SMALL_BYTES,
    RequestMemory,
    RequestReservation,
    ResponseMemory,
    ResponseReservation,
)
from muster.protocol.compiler import Pieces
from muster.protocol.frame import FrameSplitter

QUEUED_FRAMES: Final = 64
IN_LINE_MAX: Final = 64
IN_LINE_BYTES_MAX: Final = 1024 * 1024
"""Only small requests gain from a line. Large ones from a few connections would fill the write queue."""
GREETING_BYTES_MAX: Final = 2 * 1024 * 1024
"""Largest first frame, unless its API has no limit: who has not sent a valid header cannot make us wait for
100 MiB, but some clients begin a connection with a large Produce."""

_UNTAKEN, _FROZEN, _OVER, _THROTTLED = 1, 2, 4, 8
"""Why no request is begun: the peer does not take what was sent; see `freeze`; see `stop`; see `throttle`."""
_NONE_YET: Final = -1

Response = bytes | Pieces
"""A frame; empty where the protocol has no response (Produce with acks=0)."""


class Traffic(NamedTuple):
    """What connections need to know about requests, by API."""

    admit: Callable[[int, int], None]
    """Raises DecodeError for an API key and a size that are too large together."""
    greet: Callable[[int, int], None]
    """The same for a client that is not recognised yet and need not log in."""
    paced: Container[int]
    """Low bytes of the API keys whose requests are limited in number per turn of the loop."""
    outlives: Container[bytes] = frozenset()
    """API keys, as encoded in requests, of what is processed even if its client has closed."""


class Place:
    """A request's place in line, for its response; others may begin behind it."""

    __slots__ = ("api_key", "response", "size")

    def __init__(self, api_key: bytes, size: int, response: Response | None = None) -> None:
        """`api_key` as encoded in a request; `size` of the request in bytes."""
        self.api_key = api_key
        self.size = size
        self.response = response


class Wire:
    """The wire of one connection. Any change may end it: see `is_done`."""

    __slots__ = (
        "_admit",
        "_barred",
        "_begun_bytes",
        "_finishing",
        "_frame_bytes_max",
        "_frames",
        "_hung_up",
        "_joins_later",
        "_kept",
        "_last",
        "_line",
        "_line_bytes",
        "_listen",
        "_memory",
        "_moved",
        "_outlives",
        "_queue_max",
        "_queued_bytes",
        "_requests",
        "_responses",
        "_splitter",
        "_stopped",
        "_stops",
        "busy",
        "idle_ms",
        "receiving_ms",
    )

    def __init__(
        self,
        listen: Callable[[bool], None],
        requests: RequestMemory,
        responses: ResponseMemory,
        *,
        traffic: Traffic,
        frame_bytes_max: int,
        greeting_bytes_max: int | None = None,
    ) -> None:
        """`greeting_bytes_max` bounds frames until the client is `recognised`; None: `Traffic.greet` does."""
        self.busy = False
        """Whether the last request begun has no answer yet; those in line do not count."""
        self.idle_ms = 0
        """How long no bytes have moved; 0 while a request is being answered or the wire is frozen."""
        self.receiving_ms = _NONE_YET
        """How long a request has been arriving, not counting pauses; negative if none is."""
        self._listen = listen
        self._frame_bytes_max = frame_bytes_max
        self._outlives = traffic.outlives
        self._admit = traffic.admit
        if greeting_bytes_max is None:
            self._splitter = FrameSplitter(frame_bytes_max, traffic.greet, SMALL_BYTES)
        else:
            bytes_max = min(greeting_bytes_max, frame_bytes_max)
            self._splitter = FrameSplitter(bytes_max, traffic.admit, SMALL_BYTES)
        self._frames: deque[bytes] = deque()
        self._queue_max = 1  # of a client that is not `recognised` little is held
        self._queued_bytes = 0
        self._begun_bytes = 0
        self._line: deque[Place] = deque()  # begun, but unanswered or behind an unanswered one
        self._line_bytes = 0
        self._memory = requests
        self._requests = RequestReservation(requests.of_strangers, self._room_has_come)
        self._joins_later = False  # recognised by a large request, which is not answered yet
        self._responses = ResponseReservation(responses)
        self._stops: set[str] = set()  # why reading is paused
        self._stopped = False  # whether it was paused at any time since `elapsed`
        self._barred = 0
        self._kept: Response | None = None  # the response to what was begun, if it came while frozen
        self._finishing = False  # reads no more
        self._hung_up = False  # the client has closed its side, perhaps within a request
        self._last = False  # nothing is answered after what is being answered
        self._moved = True

    def __repr__(self) -> str:
        state = "answering" if self.busy else "waiting"
        waiting = f"line={len(self._line)} queued={len(self._frames)}"
        return f"<Wire {state} {waiting} stops={sorted(self._stops)} barred={self._barred}>"

    # --- requests -------------------------------------------------------------------------------------------

    def take(self, data: bytes) -> bytes | None:
        """Take `data` as a request, if it is a single small one that may begin now. None, with nothing
        changed: pass it to `receive`."""
        if self.busy or self._barred or self._frames or self._line or self._finishing:
            return None
        frame = self._splitter.whole(data)
        if frame is not None:
            self.busy = self._moved = True
        return frame

    def receive(self, data: bytes) -> None:
        """Take any bytes. Raises DecodeError for a stream that does not consist of requests."""
        if self._finishing or self._last:
            return
        self._moved = True
        frames = self._splitter.feed(data)
        self._frames.extend(frames)
        self._queued_bytes += sum(map(len, frames))
        if not self._splitter.pending_bytes:
            self.receiving_ms = _NONE_YET
        elif frames or self.receiving_ms == _NONE_YET:
            self.receiving_ms = 0
            self._stopped = True  # the time until `elapsed` is not all this request's
        self._count()
        if len(self._frames) >= self._queue_max:
            self._pause("queue")

    def next(self) -> bytes | None:
        """The request to begin now; None if there is none, or it has to wait."""
        if self.busy or self._barred or not self._frames or not self._follows(self._frames[0]):
            return None
        frame = self._frames.popleft()
        if len(self._frames) <= self._queue_max // 2:
            self._resume("queue")
        self._queued_bytes -= len(frame)
        self._begun_bytes = len(frame)
        self.busy = True
        return frame

    def hold(self, frame: bytes) -> None:
        """Count a taken request in memory, since it is not answered at once."""
        self._begun_bytes = len(frame)
        self._requests.hold_whole(self._queued_bytes + len(frame))

    def put_back(self, frame: bytes) -> None:
        """Put back a request that is counted by `hold` or `next`: it waits on, in front of the others."""
        self.busy = False
        self._begun_bytes = 0
        self._frames.appendleft(frame)
        self._queued_bytes += len(frame)

    def enter_line(self, frame: bytes) -> Place:
        """The request begun last has entered a line of its own: the next one may begin. Returns its place,
        for `answered`."""
        place = Place(frame[:2], len(frame))
        self._line.append(place)
        self._line_bytes += place.size
        self.busy = False
        self._begun_bytes = 0
        self._count()
        return place

    def _follows(self, frame: bytes) -> bool:
        """Whether a request may be begun behind the line."""
        line = self._line
        return not line or (
            frame[:2] == line[0].api_key
            and len(line) < IN_LINE_MAX
            and self._line_bytes < IN_LINE_BYTES_MAX
            and not self._last
        )

    def answered(self, response: Response, place: Place | None = None) -> Response | None:
        """The request begun last, or the one with this place in line, has been answered; returns what to send
        now. None: nothing, before `thaw` or before those in front of it are answered."""
        if place is not None:
            place.response = response
            return self.leave_line()
        if self._barred & _FROZEN:
            self._kept = response
            return None
        if self._line:
            self._line.append(Place(b"", self._begun_bytes, response))
            self._line_bytes += self._begun_bytes
            self._begun_bytes = 0
            self.busy = False
            return self.leave_line()
        self.busy = False
        self._moved = True
        self._begun_bytes = 0
        if self._frames or self._splitter.pending_bytes:
            self._requests.answered()
            self._count()
        else:
            self._requests.release()
        if self._joins_later:
            self._join()
        if self._last or (self._hung_up and response):
            self.stop()
        return response

    def leave_line(self) -> Response | None:
        """Take the answers in line that may be sent now; None: nothing."""
        line, leaving = self._line, []
        while line and line[0].response is not None and not self._barred & _FROZEN:
            place = line.popleft()
            self._line_bytes -= place.size
            leaving.append(place.response)
        if not leaving:
            return None
        self._moved = True
        self._requests.answered()
        self._count()
        if self._joins_later:
            self._join()
        if not line and not self.busy and (self._last or self._hung_up):
            self.stop()
        return b"".join(each if isinstance(each, bytes) else b"".join(each) for each in leaving if each)

    @property
    def in_line(self) -> bool:
        """Whether the request begun last must be answered behind others."""
        return bool(self._line)

    @property
    def goes_on(self) -> bool:
        """Whether `next` or `is_done` may have something to report."""
        return bool(self._frames or self._stops or self._finishing)

    @property
    def is_done(self) -> bool:
        """Whether nothing more will be answered."""
        return self._finishing and not self.busy and not self._frames and not self._line

    def recognised(self) -> None:
        """The client has shown what it is: from now on, frames may have their full size and number. If the
        request begun is larger than other strangers may send, nothing is read until it is answered."""
        if self._queue_max != QUEUED_FRAMES:
            if self._begun_bytes > GREETING_BYTES_MAX:
                # It stays with the strangers, of whom one at a time may have so large a request.
                self._joins_later = True
                self._pause("queue")
            else:
                self._join()
        self._splitter.frame_bytes_max = self._frame_bytes_max
        self._splitter.admit = self._admit
        self._splitter.known = True

    def _join(self) -> None:
        """Count with the recognised clients from now on."""
        self._joins_later = False
        self._requests.move(self._memory)
        self._count()
        self._queue_max = QUEUED_FRAMES
        if len(self._frames) < QUEUED_FRAMES:
            self._resume("queue")

    # --- responses ------------------------------------------------------------------------------------------

    def untaken(self) -> None:
        """The peer does not take what was sent."""
        self._barred |= _UNTAKEN

    def sent(self, count_bytes: int) -> None:
        """So many bytes were handed to the socket: they count while the peer does not take them."""
        if self._barred & _UNTAKEN:
            self._responses.hold(count_bytes)

    def taken(self) -> None:
        """The peer has taken what was sent."""
        self._moved = True
        self._responses.hold(0)
        self._barred &= ~_UNTAKEN

    # --- time -----------------------------------------------------------------------------------------------

    def elapsed(self, ms: int) -> None:
        """So much time has passed since the last call. What began meanwhile counts as no older than that."""
        still = self.busy or self._line or self._barred & _FROZEN
        self.idle_ms = 0 if self._moved or still else self.idle_ms + ms
        self._moved = False
        if self.receiving_ms != _NONE_YET and not self._stopped:
            self.receiving_ms += ms
        self._stopped = bool(self._stops)

    @property
    def beginning(self) -> bytes:
        """The first bytes of an unfinished request, its size included."""
        return self._splitter.beginning

    # --- stopping -------------------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Read nothing and answer nothing until `thaw`, as a stopped process would."""
        self._barred |= _FROZEN
        self._pause("frozen")

    def thaw(self) -> Response | None:
        """Undo `freeze`; returns the response that came meanwhile, for `answered`."""
        self._barred &= ~_FROZEN
        kept, self._kept = self._kept, None
        self._resume("frozen")
        return kept

    @property
    def frozen(self) -> bool:
        return bool(self._barred & _FROZEN)

    def mute(self) -> None:
        """Read nothing until `unmute`; what was read before is answered."""
        self._pause("mute")

    def unmute(self) -> None:
        """Undo `mute`. Harmless without it."""
        self._resume("mute")

    def throttle(self) -> None:
        """Read and begin nothing until `unthrottle`, but send what is being answered (KIP-219)."""
        self._barred |= _THROTTLED
        self._pause("quota")

    def unthrottle(self) -> None:
        """Undo `throttle`. Harmless without it."""
        self._barred &= ~_THROTTLED
        self._resume("quota")

    def finish(self) -> None:
        """Read no more, answer what was read."""
        self._finishing = True
        self._pause("finishing")

    def end(self) -> None:
        """Answer nothing after what is being answered, and drop what else comes."""
        self._last = True

    def hang_up(self) -> None:
        """The client has closed its side. As in Kafka, it counts as gone and gets no more answers."""
        self._hung_up = True

    def lost(self) -> None:
        """The socket is gone. As in Kafka, what the client produced with acks=0 before it closed is written,
        and its other waiting requests are dropped."""
        self._finishing = True
        if self._kept is not None:
            self._kept, self.busy, self._begun_bytes = None, False, 0
        left = takewhile(lambda frame: frame[:2] in self._outlives, self._frames) if self._hung_up else ()
        self._frames = deque(left)
        self._queued_bytes = sum(map(len, self._frames))
        self._barred &= _OVER
        self._responses.hold(0)
        self.leave_line()
        self._count()

    def stop(self) -> None:
        """Begin nothing more, and hold nothing."""
        self._barred |= _OVER
        self._finishing = True
        self.busy = False
        self._kept = None
        self._frames.clear()
        self._line.clear()
        self._queued_bytes = self._begun_bytes = self._line_bytes = 0
        self._joins_later = False
        self._requests.end()
        self._responses.hold(0)

    def forget(self) -> None:
        """The connection has ended: stop, and call `listen` no more."""
        self.stop()
        self._listen = _nobody

    # --- bounds ---------------------------------------------------------------------------------------------

    @property
    def reading(self) -> bool:
        return not self._stops

    @property
    def has_unanswered(self) -> bool:
        """Whether there is a request that could be begun now."""
        frames = self._frames
        return bool(frames) and not self._barred and not self.busy and self._follows(frames[0])

    def _count(self) -> None:
        """Count what is in memory, and stop reading when there is no room for more."""
        pending = 0 if self._finishing else self._splitter.pending_bytes
        missing = self._splitter.announced_bytes - pending if pending else 0
        held = self._queued_bytes + self._begun_bytes + self._line_bytes + pending
        if self._requests.hold(held, arrived=pending, missing=missing):
            self._resume("memory")
        else:
            self._pause("memory")

    def _room_has_come(self) -> None:
        self._resume("memory")

    def _pause(self, why: str) -> None:
        begins = not self._stops
        self._stops.add(why)
        self._stopped = True
        if begins:
            self._listen(False)

    def _resume(self, why: str) -> None:
        if why in self._stops:
            self._stops.discard(why)
            if not self._stops:
                self._listen(True)


def _nobody(reading: bool) -> None:
    """Stands in for `listen` when it is over."""
