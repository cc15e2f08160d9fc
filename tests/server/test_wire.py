"""The connection core: bytes in, requests out, responses in their order, without a socket or a clock."""

from __future__ import annotations

import random

import pytest

from muster.coordinator.server.apis import check_greeting_size
from muster.coordinator.server.memory import RequestMemory, ResponseMemory
from muster.coordinator.server.wire import (
    GREETING_BYTES_MAX,
    IN_LINE_BYTES_MAX,
    IN_LINE_MAX,
    QUEUED_FRAMES,
    Place,
    Traffic,
    Wire,
)
from muster.protocol.errors import DecodeError, TooLargeError

PRODUCE = bytes(2)
LARGE = 100_000
"""Size of a request that has to wait when memory is short."""


def framed(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


class Host:
    """One broker's bounds, and the wires that share them."""

    def __init__(self, request_bytes_max: int = 1 << 20, frame_bytes_max: int = 1 << 24) -> None:
        self.requests = RequestMemory(request_bytes_max, RequestMemory(request_bytes_max // 8))
        self.responses = ResponseMemory(1 << 20)
        self.listening: list[bool] = []
        self._frame_bytes_max = frame_bytes_max

    def wire(self, *, recognised: bool = True, greeting_bytes_max: int | None = None) -> Wire:
        wire = Wire(
            self.listening.append,
            self.requests,
            self.responses,
            traffic=Traffic(self._admit, check_greeting_size, paced=(), outlives={PRODUCE}),
            frame_bytes_max=self._frame_bytes_max,
            greeting_bytes_max=greeting_bytes_max,
        )
        if recognised:
            wire.recognised()
        return wire

    @staticmethod
    def _admit(api_key: int, size: int) -> None:
        if api_key == 99:
            raise TooLargeError("not this one")


@pytest.fixture
def host() -> Host:
    return Host()


def begun(wire: Wire) -> list[bytes]:
    """Begin whatever can be begun, and answer each request with itself."""
    frames = []
    while (frame := wire.next()) is not None:
        frames.append(frame)
        assert wire.answered(framed(frame)) == framed(frame)
    return frames


# --- order --------------------------------------------------------------------------------------------------


def test_one_request_at_a_time_in_order(host: Host) -> None:
    wire = host.wire()
    wire.receive(framed(b"first", b"second"))
    assert wire.next() == b"first"
    assert wire.next() is None
    assert host.requests.held_bytes == len(b"firstsecond")
    wire.receive(framed(b"third"))
    assert host.requests.held_bytes == len(b"firstsecondthird")
    assert wire.next() is None
    assert wire.answered(b"1") == b"1"
    assert begun(wire) == [b"second", b"third"]


def test_a_small_request_is_taken_as_it_arrives(host: Host) -> None:
    wire = host.wire()
    assert wire.take(framed(b"first")) == b"first"
    assert wire.busy
    assert wire.take(framed(b"second")) is None
    wire.receive(framed(b"second"))
    wire.answered(b"1")
    assert wire.take(framed(b"third")) is None  # the second is in front of it
    assert wire.next() == b"second"


@pytest.mark.parametrize("data", [framed(b"two", b"frames"), framed(b"half")[:5], framed(b"half") + b"\0"])
def test_nothing_but_one_whole_request_is_taken(host: Host, data: bytes) -> None:
    wire = host.wire()
    assert wire.take(data) is None
    assert not wire.busy
    assert host.requests.held_bytes == 0


def test_requests_do_not_depend_on_the_pieces_they_arrive_in() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(200):
        host = Host()
        wire = host.wire()
        wire.recognised()
        sent = [
            rng.randbytes(rng.choice((2, 10, 300))).replace(b"\0c", b"..")
            for _ in range(rng.randrange(1, 20))
        ]
        stream, processed = framed(*sent), []
        while stream:
            size = rng.randrange(1, 700)
            data, stream = stream[:size], stream[size:]
            frame = wire.take(data)
            if frame is None:
                wire.receive(data)
            else:
                processed.append(frame)
                assert wire.answered(b"x") == b"x"
            if rng.randrange(3):
                processed += begun(wire)
        assert processed + begun(wire) == sent
        assert host.requests.held_bytes == 0


def test_what_was_put_back_stays_in_front(host: Host) -> None:
    wire = host.wire()
    frame = wire.take(framed(b"first"))
    assert frame is not None
    wire.hold(frame)
    wire.receive(framed(b"second"))
    wire.put_back(frame)
    assert host.requests.held_bytes == len(b"firstsecond")
    wire.receive(framed(b"third"))
    assert host.requests.held_bytes == len(b"firstsecondthird")
    assert begun(wire) == [b"first", b"second", b"third"]
    assert host.requests.held_bytes == 0


# --- bounds -------------------------------------------------------------------------------------------------


def test_reading_pauses_at_a_full_queue_and_goes_on_at_half_of_it(host: Host) -> None:
    wire = host.wire()
    wire.receive(framed(b"x") * (QUEUED_FRAMES - 1))
    assert wire.reading
    wire.receive(framed(b"x"))
    assert host.listening == [False]
    left = QUEUED_FRAMES
    while left > QUEUED_FRAMES // 2 + 1:
        assert host.listening == [False]
        assert wire.next() is not None
        wire.answered(b"")
        left -= 1
    assert wire.next() is not None
    assert host.listening == [False, True]


def test_frames_are_small_until_a_header_was_recognised(host: Host) -> None:
    beginning = (GREETING_BYTES_MAX + 1).to_bytes(4, "big") + b"\0\3"
    with pytest.raises(DecodeError):
        host.wire(recognised=False).receive(beginning)
    wire = host.wire()
    wire.receive(beginning)
    assert wire.beginning == beginning


def test_a_produce_may_be_large_at_once_unless_its_client_has_to_log_in(host: Host) -> None:
    size = 1 << 24
    beginning = size.to_bytes(4, "big") + PRODUCE
    wire = host.wire(recognised=False)
    wire.receive(beginning)
    assert wire.beginning == beginning
    for too_large in ((size + 1).to_bytes(4, "big"), b"GET "):
        with pytest.raises(DecodeError):
            host.wire(recognised=False).receive(too_large)
    with pytest.raises(DecodeError):
        host.wire(recognised=False, greeting_bytes_max=1_000).receive((1_001).to_bytes(4, "big"))


def test_what_a_recognised_client_sends_is_bounded_by_its_api_alone(host: Host) -> None:
    size = (GREETING_BYTES_MAX + 1).to_bytes(4, "big")
    wire = host.wire(recognised=False)
    wire.receive(framed(b"\0\3 first") + size)
    assert wire.next() == b"\0\3 first"
    wire.recognised()
    wire.receive(b"\0\3")
    assert wire.beginning == size + b"\0\3"


def test_of_a_client_that_was_not_recognised_one_request_waits(host: Host) -> None:
    wire = host.wire(recognised=False)
    wire.receive(framed(b"first"))
    assert wire.next() == b"first"
    assert wire.reading
    wire.receive(framed(b"second", b"third"))
    assert not wire.reading
    wire.answered(b"1")
    assert wire.next() == b"second"
    assert not wire.reading
    wire.recognised()
    assert wire.reading
    wire.answered(b"2")
    assert wire.next() == b"third"
    wire.receive(framed(b"x") * (QUEUED_FRAMES - 1))
    assert wire.reading


def test_clients_not_recognised_yet_take_no_memory_of_others() -> None:
    host = Host(request_bytes_max=LARGE * 8)
    strangers = [host.wire(recognised=False) for _ in range(12)]
    half = framed(b"x" * (LARGE * 4))[: LARGE * 2]
    for stranger in strangers:
        stranger.receive(half)
    assert [stranger.reading for stranger in strangers] == [True] + [False] * 11  # one goes beyond
    assert host.requests.held_bytes == 0
    known = host.wire()
    known.receive(framed(b"y" * (LARGE * 7))[: LARGE * 6])
    assert known.reading
    strangers[1].recognised()
    strangers[2].recognised()
    assert strangers[1].reading  # like anybody else, it may go on beyond the bound, or waits for room
    assert not strangers[2].reading
    known.stop()
    strangers[1].stop()
    assert strangers[2].reading
    for stranger in strangers:
        stranger.stop()
    assert host.requests.held_bytes == host.requests.of_strangers.held_bytes == 0


@pytest.mark.parametrize("in_line", [False, True])
def test_of_clients_that_begin_with_a_large_request_one_at_a_time_goes_beyond_the_bound(
    in_line: bool,
) -> None:
    host = Host()
    large = framed(bytes(GREETING_BYTES_MAX + 1))  # a Produce
    strangers = [host.wire(recognised=False) for _ in range(3)]
    arrived = [0, 0, 0]
    held = []
    answered = 0
    while answered < len(strangers):
        for number, wire in enumerate(strangers):
            while wire.reading and arrived[number] < len(large):
                wire.receive(large[arrived[number] : arrived[number] + LARGE])
                arrived[number] += LARGE
        held.append(host.requests.held_bytes + host.requests.of_strangers.held_bytes)
        begun = [(wire, frame) for wire in strangers if (frame := wire.next())]
        assert len(begun) == 1
        ((wire, frame),) = begun
        wire.recognised()
        place = wire.enter_line(frame) if in_line else None
        assert not wire.reading
        assert wire.answered(b"ok", place) == b"ok"
        assert wire.reading
        answered += 1
        wire.receive(large[:LARGE])
        assert host.requests.held_bytes >= LARGE  # among those that are recognised
        wire.stop()
    assert max(held) < len(large) + (1 << 20)
    assert host.requests.held_bytes == host.requests.of_strangers.held_bytes == 0


def test_a_request_too_large_for_its_api_is_refused_at_its_api_key(host: Host) -> None:
    with pytest.raises(TooLargeError):
        host.wire().receive((70_000).to_bytes(4, "big") + b"\0\x63")


def test_whoever_finds_no_memory_waits_for_it() -> None:
    host = Host(request_bytes_max=LARGE * 3 // 2)
    first, beyond, third = (host.wire() for _ in range(3))
    first.receive(framed(bytes(LARGE)))
    for wire in (beyond, third):
        wire.receive(framed(bytes(LARGE))[: LARGE - 10])
    assert first.reading
    assert beyond.reading  # one at a time goes beyond the bound
    assert not third.reading
    small = host.wire()
    assert small.take(framed(b"small")) == b"small"
    assert begun(first) == [bytes(LARGE)]
    beyond.receive(bytes(14))
    assert begun(beyond) == [bytes(LARGE)]
    assert third.reading
    third.receive(bytes(14))
    assert begun(third) == [bytes(LARGE)]
    assert host.requests.held_bytes == 0


def test_what_is_answered_later_counts_until_then(host: Host) -> None:
    wire = host.wire()
    frame = wire.take(framed(b"parked"))
    assert frame is not None
    wire.hold(frame)
    assert host.requests.held_bytes == len(frame)
    wire.receive(framed(b"next"))
    assert host.requests.held_bytes == len(frame) + len(b"next")
    wire.answered(b"x")
    assert host.requests.held_bytes == len(b"next")
    assert begun(wire) == [b"next"]
    assert host.requests.held_bytes == 0


def test_what_has_half_arrived_counts_on_when_another_is_answered(host: Host) -> None:
    wire = host.wire()
    wire.receive(framed(b"first", b"half")[:-2])
    held = host.requests.held_bytes
    assert wire.next() == b"first"
    wire.answered(b"1")
    assert host.requests.held_bytes == held - len(b"first") > 0
    wire.receive(b"lf")
    assert begun(wire) == [b"half"]
    assert host.requests.held_bytes == 0


def test_whoever_went_beyond_the_bound_lets_the_next_do_so_with_its_answer() -> None:
    """Even though it holds as much again of the next request."""
    host = Host(request_bytes_max=LARGE)
    first, beyond, third = (host.wire() for _ in range(3))
    first.receive(framed(bytes(LARGE)))
    for wire in (beyond, third):
        wire.receive(framed(bytes(LARGE), bytes(LARGE))[: LARGE - 10])
    beyond.receive(framed(bytes(LARGE), bytes(LARGE))[LARGE - 10 : -10])
    assert host.listening == [False]
    assert beyond.next() == bytes(LARGE)
    beyond.answered(b"x")
    assert host.listening == [False, True]


def test_nothing_is_begun_while_responses_are_not_taken(host: Host) -> None:
    wire = host.wire()
    wire.sent(10)
    assert host.responses.held_bytes == 0
    wire.untaken()
    wire.sent(10)
    assert host.responses.held_bytes == 10
    assert wire.take(framed(b"next")) is None
    wire.receive(framed(b"next"))
    assert wire.next() is None
    wire.taken()
    assert host.responses.held_bytes == 0
    assert begun(wire) == [b"next"]


# --- in line ------------------------------------------------------------------------------------------------


def entered(wire: Wire) -> list[Place]:
    """Begin whatever can be begun; all of it enters the line."""
    places = []
    while (frame := wire.next()) is not None:
        places.append(wire.enter_line(frame))
    return places


def test_what_is_like_those_in_line_is_begun_behind_them_and_answered_in_order(host: Host) -> None:
    wire = host.wire()
    frame = wire.take(framed(PRODUCE + b"1"))
    assert frame is not None
    first = wire.enter_line(frame)
    assert wire.take(framed(PRODUCE + b"2")) is None
    wire.receive(framed(PRODUCE + b"2", PRODUCE + b"3"))
    second, third = entered(wire)
    assert host.requests.held_bytes == 9
    assert wire.answered(b"3", third) is None
    assert wire.answered(b"1", first) == b"1"
    assert host.requests.held_bytes == 6
    assert wire.answered(b"2", second) == b"23"
    assert not wire.in_line
    assert host.requests.held_bytes == 0
    assert wire.take(framed(b"next")) == b"next"


def test_what_is_unlike_those_in_line_waits_for_all_of_them(host: Host) -> None:
    wire = host.wire()
    wire.receive(framed(PRODUCE + b"1", PRODUCE + b"2", b"metadata", PRODUCE + b"3"))
    first, second = entered(wire)
    assert not wire.has_unanswered
    wire.answered(b"1", first)
    assert wire.next() is None
    wire.answered(b"2", second)
    assert wire.has_unanswered
    assert wire.next() == b"metadata"
    assert wire.next() is None


def test_what_does_not_enter_the_line_is_answered_behind_it_and_nothing_is_begun_meanwhile(
    host: Host,
) -> None:
    wire = host.wire()
    wire.receive(framed(PRODUCE + b"1", PRODUCE + b"2", PRODUCE + b"3"))
    first = wire.next()
    assert first is not None
    place = wire.enter_line(first)
    assert wire.next() == PRODUCE + b"2"
    assert wire.next() is None
    assert wire.answered(b"2") is None
    assert wire.next() == PRODUCE + b"3"
    assert wire.answered(b"1", place) == b"12"
    assert wire.answered(b"3") == b"3"
    assert host.requests.held_bytes == 0


@pytest.mark.parametrize(
    ("size", "begun_max"), [(3, IN_LINE_MAX), (IN_LINE_BYTES_MAX // 4, 4), (2 * IN_LINE_BYTES_MAX, 1)]
)
def test_a_line_has_a_bound(size: int, begun_max: int) -> None:
    host = Host(request_bytes_max=1 << 26)
    wire = host.wire()
    wire.recognised()
    for _ in range(begun_max + 2):
        wire.receive(framed(bytes(size)))
    places = entered(wire)
    assert len(places) == begun_max
    wire.answered(b"1", places[0])
    assert len(entered(wire)) == 1


def test_a_frozen_wire_keeps_the_answers_of_its_line(host: Host) -> None:
    wire = host.wire()
    wire.receive(framed(PRODUCE + b"1", PRODUCE + b"2", PRODUCE + b"3"))
    first, second, third = entered(wire)
    wire.freeze()
    assert wire.answered(b"1", first) is None
    assert wire.answered(b"2", second) is None
    assert wire.thaw() is None
    assert wire.leave_line() == b"12"
    assert wire.answered(b"3", third) == b"3"


def test_a_line_is_not_idle(host: Host) -> None:
    wire = host.wire()
    wire.receive(framed(PRODUCE))
    (place,) = entered(wire)
    for _ in range(3):
        wire.elapsed(100)
    assert wire.idle_ms == 0
    wire.answered(b"1", place)
    wire.elapsed(100)
    wire.elapsed(100)
    assert wire.idle_ms == 100


def test_a_wire_is_done_when_its_line_is_empty(host: Host) -> None:
    wire = host.wire()
    wire.receive(framed(PRODUCE + b"1", PRODUCE + b"2"))
    first, second = entered(wire)
    wire.finish()
    wire.answered(b"1", first)
    assert not wire.is_done
    wire.answered(b"2", second)
    assert wire.is_done


@pytest.mark.parametrize("how", ["end", "hang_up"])
def test_behind_a_line_that_ends_it_a_wire_answers_nothing(host: Host, how: str) -> None:
    wire = host.wire()
    wire.receive(framed(PRODUCE + b"1", PRODUCE + b"2", b"metadata"))
    first, second = entered(wire)
    getattr(wire, how)()
    assert wire.answered(b"1", first) == b"1"
    assert not wire.is_done
    assert wire.answered(b"2", second) == b"2"
    assert wire.is_done
    assert wire.next() is None
    assert host.requests.held_bytes == 0


def test_a_line_ends_unheard_when_the_socket_is_gone(host: Host) -> None:
    wire = host.wire()
    wire.receive(framed(PRODUCE + b"1", PRODUCE + b"2", b"metadata"))
    first, second = entered(wire)
    wire.freeze()
    wire.answered(b"1", first)
    wire.lost()
    assert not wire.is_done
    wire.answered(b"2", second)
    assert wire.is_done
    assert host.requests.held_bytes == 0
    late = host.wire()
    late.receive(framed(PRODUCE))
    (place,) = entered(late)
    late.stop()
    assert late.answered(b"1", place) is None
    assert host.requests.held_bytes == 0


# --- standing still -----------------------------------------------------------------------------------------


def test_a_frozen_wire_keeps_its_answer_and_begins_nothing(host: Host) -> None:
    wire = host.wire()
    wire.receive(framed(b"first", b"second"))
    assert wire.next() == b"first"
    wire.freeze()
    assert host.listening == [False]
    assert wire.answered(b"1") is None
    assert wire.next() is None
    assert wire.take(framed(b"third")) is None
    kept = wire.thaw()
    assert host.listening == [False, True]
    assert kept == b"1"
    assert wire.next() is None  # not before the answer is sent
    assert wire.answered(kept) == b"1"
    assert begun(wire) == [b"second"]


def test_a_muted_wire_answers_what_was_read(host: Host) -> None:
    wire = host.wire()
    wire.receive(framed(b"x"))
    wire.mute()
    assert begun(wire) == [b"x"]
    assert host.listening == [False]
    wire.unmute()
    wire.unmute()
    assert host.listening == [False, True]


def test_reading_goes_on_only_when_nothing_stops_it(host: Host) -> None:
    wire = host.wire()
    wire.mute()
    wire.freeze()
    wire.unmute()
    assert host.listening == [False]
    wire.thaw()
    assert host.listening == [False, True]


# --- time ---------------------------------------------------------------------------------------------------


def test_it_is_idle_while_no_bytes_move(host: Host) -> None:
    wire = host.wire()
    wire.elapsed(100)
    assert wire.idle_ms == 0  # it began meanwhile
    wire.elapsed(100)
    assert wire.idle_ms == 100
    wire.take(framed(b"beat"))
    for _ in range(3):
        wire.elapsed(100)
        assert wire.idle_ms == 0  # it is being answered
    wire.answered(b"x")
    wire.elapsed(100)
    wire.elapsed(100)
    assert wire.idle_ms == 100
    wire.receive(bytes(1))
    wire.elapsed(100)
    assert wire.idle_ms == 0
    wire.elapsed(100)
    assert wire.idle_ms == 100
    wire.freeze()
    wire.elapsed(100)
    assert wire.idle_ms == 0


def test_a_request_ages_while_it_arrives_and_is_read(host: Host) -> None:
    wire = host.wire()
    wire.receive(framed(b"slowly")[:5])
    wire.elapsed(100)
    assert wire.receiving_ms == 0
    wire.receive(b"l")
    wire.elapsed(100)
    assert wire.receiving_ms == 100  # a byte now and then does not help
    wire.mute()
    wire.elapsed(100)
    wire.unmute()
    wire.elapsed(100)
    assert wire.receiving_ms == 100
    wire.receive(b"owly")
    assert wire.receiving_ms < 0
    wire.receive(framed(b"", b"next")[:-1])
    wire.elapsed(100)
    assert wire.receiving_ms == 0  # another request
    wire.elapsed(100)
    assert wire.receiving_ms == 100
    wire.receive(b"t" + framed(b"third")[:-1])
    wire.elapsed(100)
    assert wire.receiving_ms == 0  # and again


# --- the end ------------------------------------------------------------------------------------------------


def test_finishing_answers_what_was_read(host: Host) -> None:
    wire = host.wire()
    wire.receive(framed(b"first", b"second"))
    assert wire.next() == b"first"
    wire.finish()
    wire.receive(framed(b"too late"))
    assert wire.take(framed(b"too late")) is None
    wire.answered(b"1")
    assert not wire.is_done
    assert begun(wire) == [b"second"]
    assert wire.is_done


def test_nothing_is_taken_once_it_finishes(host: Host) -> None:
    wire = host.wire()
    wire.finish()
    assert wire.take(framed(b"too late")) is None
    assert wire.is_done


def test_behind_the_end_nothing_is_answered(host: Host) -> None:
    wire = host.wire()
    wire.receive(framed(b"first", b"second"))
    wire.next()
    wire.end()
    held_bytes = host.requests.held_bytes
    wire.receive(framed(b"third"))
    assert host.requests.held_bytes == held_bytes
    assert wire.answered(b"1") == b"1"
    assert wire.is_done
    assert wire.next() is None
    assert host.requests.held_bytes == 0


def test_a_client_that_has_closed_is_gone_at_its_first_answer(host: Host) -> None:
    wire = host.wire()
    wire.receive(framed(b"1", b"2", b"3"))
    wire.hang_up()
    assert wire.next() == b"1"
    wire.answered(b"")  # none is due
    assert wire.next() == b"2"
    wire.answered(b"2")
    assert wire.is_done


@pytest.mark.parametrize("hung_up", [True, False])
def test_of_what_is_left_when_the_socket_is_gone_only_produce_in_front_is_processed(
    host: Host, hung_up: bool
) -> None:
    wire = host.wire()
    wire.receive(framed(b"first", PRODUCE + b"1", PRODUCE + b"2", b"metadata", PRODUCE + b"3"))
    wire.next()
    if hung_up:
        wire.hang_up()
    wire.lost()
    wire.answered(b"")
    left = []
    while (frame := wire.next()) is not None:
        left.append(frame)
        wire.answered(b"")
    assert left == ([PRODUCE + b"1", PRODUCE + b"2"] if hung_up else [])
    assert wire.is_done
    assert host.requests.held_bytes == 0


def test_an_answer_that_was_kept_goes_with_the_socket(host: Host) -> None:
    wire = host.wire()
    wire.receive(framed(b"x"))
    wire.next()
    wire.freeze()
    wire.answered(b"1")
    wire.lost()
    assert wire.is_done
    assert wire.thaw() is None
    assert host.requests.held_bytes == 0


def test_it_holds_nothing_when_it_is_over() -> None:
    host = Host(request_bytes_max=LARGE)
    over, waiting = host.wire(), host.wire()
    over.receive(framed(bytes(LARGE), b"x", bytes(LARGE))[: LARGE * 3 // 2])
    over.untaken()
    over.sent(10)
    for _ in range(2):
        waiting.receive(framed(bytes(LARGE))[: LARGE // 2])
    over.forget()
    told = len(host.listening)
    over.freeze()
    over.thaw()
    assert len(host.listening) == told
    assert host.responses.held_bytes == 0
    waiting.forget()
    assert host.requests.held_bytes == 0
