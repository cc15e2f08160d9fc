"""How often something is reported."""

from __future__ import annotations

from muster.coordinator.base.rate_limiter import RateLimiter


def test_so_many_times_in_a_span_of_time() -> None:
    ration = RateLimiter(2, 1_000)
    assert [ration.allows("a", at) for at in (0, 1, 2, 999, 1_000, 1_001, 1_002)] == [
        True,
        True,
        False,
        False,
        True,
        True,
        False,
    ]


def test_what_was_withheld_is_counted() -> None:
    ration = RateLimiter(2, 1_000)
    assert [ration.take("a", at) for at in (0, 1, 2, 999, 1_000, 1_001, 2_000)] == [
        0,
        0,
        None,
        None,
        2,
        0,
        0,
    ]


def test_each_key_has_its_own() -> None:
    ration = RateLimiter(1, 1_000, keys_max=2)
    assert [ration.allows(key, 0) for key in ("a", "a", "b", "b")] == [True, False, True, False]


def test_a_key_too_many_waits_until_another_is_old() -> None:
    ration = RateLimiter(1, 1_000, keys_max=2)
    assert ration.allows("a", 0)
    assert ration.allows("b", 500)
    assert not ration.allows("c", 999)
    assert ration.allows("c", 1_000)
    assert not ration.allows("a", 1_001)
    assert repr(ration) == "<RateLimiter 1 in 1000 ms of 2 keys>"
