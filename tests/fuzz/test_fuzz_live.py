"""An attack on a live broker, a small part of what `make fuzz` does."""

from __future__ import annotations

from tests.fuzz import live
from tests.protocol.sampling import SEED


def test_an_attacked_broker_serves_the_others_and_keeps_nothing() -> None:
    print(f"MUSTER_TEST_SEED={SEED}")
    outcome = live.run(SEED, 150)
    print(outcome)
    assert outcome.sent.connections == 150
    assert outcome.sent.closed > 0
    assert all(outcome.counts.values())
