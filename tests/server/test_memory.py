"""The memory that connections share, beyond what tests over sockets can show."""

from __future__ import annotations

import random

from muster.coordinator.server.memory import SMALL_BYTES, RequestMemory, RequestReservation


def test_the_short_ways_hold_what_the_long_one_does() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    resumed: list[list[int]] = [[], []]
    memories = [RequestMemory(3 * SMALL_BYTES) for _ in resumed]
    shares = [
        [
            RequestReservation(memory, lambda way=way, number=number: resumed[way].append(number))
            for number in range(4)
        ]
        for way, memory in enumerate(memories)
    ]
    for _ in range(2_000):
        number = rng.randrange(4)
        what = rng.random()
        if what < 0.3:
            shares[0][number].release()
            shares[1][number].answered()
            assert shares[1][number].hold(0)
        elif what < 0.6:
            count = rng.choice([0, 100, SMALL_BYTES, SMALL_BYTES + 1, 3 * SMALL_BYTES])
            shares[0][number].hold_whole(count)
            assert shares[1][number].hold(count)
        else:
            arrived = rng.choice([10, SMALL_BYTES, 2 * SMALL_BYTES])
            missing = rng.choice([1, SMALL_BYTES, 4 * SMALL_BYTES])
            held = [share[number].hold(arrived, arrived=arrived, missing=missing) for share in shares]
            assert held[0] == held[1]
        if rng.random() < 0.2:
            for share in shares:
                share[number].answered()
        assert memories[0].held_bytes == memories[1].held_bytes
        assert [share.waiting for share in shares[0]] == [share.waiting for share in shares[1]]
        assert resumed[0] == resumed[1]
    assert resumed[0]
