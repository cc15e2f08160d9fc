"""Rates and buckets, checked against numbers worked out by hand from Kafka's rules."""

from __future__ import annotations

import pytest

from muster.coordinator.security.rates import Rate, TokenBucket

NOW_MS = 1_700_000_000_000


def test_a_rate_that_has_just_begun_is_taken_over_ten_seconds() -> None:
    rate = Rate()
    assert rate.a_second(NOW_MS) == 0
    rate.record(100_000, NOW_MS)
    assert rate.a_second(NOW_MS) == 10_000
    assert rate.throttle_ms(1_000, NOW_MS) == 90_000
    assert rate.throttle_ms(10_000, NOW_MS) == 0


def test_samples_are_a_second_long_and_eleven_count() -> None:
    rate = Rate()
    for second in range(11):
        rate.record(10, NOW_MS + second * 1_000)
        rate.record(10, NOW_MS + second * 1_000 + 999)
    assert rate.a_second(NOW_MS + 10_999) == pytest.approx(220 / 10.999)
    rate.record(10, NOW_MS + 11_000)
    assert rate.a_second(NOW_MS + 11_000) == pytest.approx(230 / 11), "the oldest reaches into the time"
    assert rate.a_second(NOW_MS + 11_999) == pytest.approx(210 / 10.999)


def test_what_is_older_is_forgotten() -> None:
    rate = Rate()
    rate.record(100, NOW_MS)
    assert not rate.is_over(NOW_MS + 10_999)
    assert rate.a_second(NOW_MS + 10_999) > 0
    assert rate.is_over(NOW_MS + 11_000)
    assert rate.a_second(NOW_MS + 11_000) == 0
    assert rate.throttle_ms(1, NOW_MS + 11_000) == 0


def test_what_came_can_be_taken_back() -> None:
    rate = Rate()
    rate.record(100, NOW_MS)
    rate.record(-100, NOW_MS)
    assert rate.a_second(NOW_MS) == 0


def test_tokens_come_at_a_rate_up_to_eleven_seconds() -> None:
    bucket = TokenBucket(NOW_MS)
    assert bucket.is_over(NOW_MS)
    assert bucket.throttle_ms(2, NOW_MS) == 0
    bucket.spend(22, 2, NOW_MS)
    assert bucket.throttle_ms(2, NOW_MS) == 0, "all that were there"
    bucket.spend(10, 2, NOW_MS)
    assert bucket.throttle_ms(2, NOW_MS) == 5_000
    assert not bucket.is_over(NOW_MS + 60_000), "nobody has looked whether it is full"
    assert bucket.throttle_ms(2, NOW_MS + 4_999) == 1
    assert bucket.throttle_ms(2, NOW_MS + 5_000) == 0
    bucket.spend(0, 2, NOW_MS + 60_000)
    assert bucket.is_over(NOW_MS + 71_000)
    bucket.spend(23, 2, NOW_MS + 71_000)
    assert bucket.throttle_ms(2, NOW_MS + 71_000) == 500, "it was full, not more"


@pytest.mark.parametrize("limit", [5e-324, 1e-310, 1e-300])
def test_a_tiny_limit_asks_for_a_long_wait(limit: float) -> None:
    rate, bucket = Rate(), TokenBucket(NOW_MS)
    rate.record(1, NOW_MS)
    bucket.spend(1, limit, NOW_MS)
    assert rate.throttle_ms(limit, NOW_MS) == bucket.throttle_ms(limit, NOW_MS) == 2**53
