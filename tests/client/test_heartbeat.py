"""A member's timers: when it sends heartbeats, when its session expires, when it is no longer polled."""

from __future__ import annotations

from muster.client.group.heartbeat import Backoff, Heartbeat


def heartbeat(request_timeout_ms: int = 30_000, jitter: float = 1.0) -> Heartbeat:
    return Heartbeat(
        session_timeout_ms=9_000,
        interval_ms=1_000,
        max_poll_interval_ms=60_000,
        request_timeout_ms=request_timeout_ms,
        backoff=Backoff(100, 400, lambda: jitter),
    )


def test_it_beats_an_interval_after_the_last_was_sent_however_late_the_answer() -> None:
    made = heartbeat()
    made.begin(0)
    made.polled(0)
    assert not made.is_due(999)
    assert made.is_due(1_000)
    made.sent(1_100)
    assert made.next_deadline_ms(can_send=True) == 9_000  # one in flight is enough
    made.answered(1_900)
    assert made.next_deadline_ms(can_send=True) == 2_100
    assert (made.last_sent_ms, made.last_answered_ms) == (1_100, 1_900)


def test_one_is_in_flight_at_a_time() -> None:
    made = heartbeat()
    made.begin(0)
    made.sent(1_000)
    assert not made.is_due(5_000)
    made.answered(5_000)
    assert made.is_due(5_000)


def test_after_failures_it_beats_sooner_with_a_pause_that_grows_up_to_the_interval() -> None:
    made = heartbeat()
    made.begin(0)
    pauses = []
    for _ in range(4):
        made.sent(0)
        made.failed(10_000)
        due_ms = next(ms for ms in range(10_000, 12_000) if made.is_due(ms))
        pauses.append(due_ms - 10_000)
    assert pauses == [100, 200, 400, 400]
    made.answered(11_000)
    made.failed(12_000)
    assert made.is_due(12_100)


def test_it_is_silent_outside_of_a_generation() -> None:
    made = heartbeat()
    assert made.next_deadline_ms(can_send=True) is None
    made.begin(0)
    made.end()
    assert made.next_deadline_ms(can_send=True) is None
    assert not made.is_due(10**9)
    assert not made.session_is_over(10**9)
    assert not made.poll_is_over(10**9)


def test_the_session_is_over_when_no_answer_came_for_its_timeout() -> None:
    made = heartbeat()
    made.begin(0)
    made.polled(0)
    made.sent(1_000)
    made.answered(1_500)
    assert not made.session_is_over(10_499)
    assert made.session_is_over(10_500)
    made.restart_session(10_500)
    assert not made.session_is_over(19_499)


def test_an_answer_is_overdue_when_the_coordinator_is_silent_for_longer_than_the_interval() -> None:
    made = heartbeat()
    made.begin(0)
    assert (made.overdue_ms(1_000), made.overdue_ms(1_500)) == (0, 500)
    made.sent(1_500)
    made.failed(2_000)
    assert made.overdue_ms(2_000) == 1_000
    made.sent(2_200)
    made.answered(2_300)
    assert (made.overdue_ms(3_300), made.overdue_ms(3_301)) == (0, 1)
    made.end()
    assert made.overdue_ms(60_000) == 0
    made.begin(60_000)  # after a rebalance that took its time
    assert (made.overdue_ms(61_000), made.overdue_ms(61_001)) == (0, 1)


def test_nobody_asks_for_records() -> None:
    made = heartbeat()
    made.begin(0)
    made.polled(500)
    assert not made.poll_is_over(60_499)
    assert made.poll_is_over(60_500)
    made.polled(60_500)
    assert not made.poll_is_over(60_500)


def test_an_answer_is_waited_for_no_longer_than_a_third_of_the_session() -> None:
    assert heartbeat().timeout_ms == 3_000
    assert heartbeat(request_timeout_ms=2_000).timeout_ms == 2_000


def test_without_a_coordinator_there_are_only_the_ends_to_wait_for() -> None:
    made = heartbeat()
    made.begin(0)
    made.polled(0)
    assert made.next_deadline_ms(can_send=False) == 9_000
    assert made.next_deadline_ms(can_send=True) == 1_000


def test_a_backoff_doubles_up_to_its_bound_times_the_jitter() -> None:
    backoff = Backoff(100, 1_000, lambda: 1.2)
    assert [backoff.next_ms() for _ in range(6)] == [120, 240, 480, 960, 1_200, 1_200]
    backoff.reset()
    assert backoff.next_ms() == 120
