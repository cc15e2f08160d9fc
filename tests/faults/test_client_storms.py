"""Clients in a storm of random faults: make faults SEED=7 repeats its dice (but not the clock's)."""

from __future__ import annotations

import pytest

from tests.client.faults.storm import storm


@pytest.mark.parametrize("index", range(2))
@pytest.mark.parametrize(
    ("brokers", "changing", "dying"),
    [
        (1, False, False),
        (1, True, False),
        (3, False, False),
        (3, True, False),
        (3, False, True),
        (3, True, True),
    ],
)
async def test_storm(seed: int, index: int, brokers: int, changing: bool, dying: bool) -> None:
    await storm((seed + index) % 2**32, brokers=brokers, changing=changing, dying=dying)
