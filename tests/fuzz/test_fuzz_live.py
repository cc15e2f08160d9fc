"""An attack on a live broker: a small part of what `make fuzz` and `make fuzz-live` do."""

from __future__ import annotations

from collections import Counter

from muster.protocol.api import ApiKey
from tests.fuzz import campaign, live
from tests.fuzz.sweep import Tally, unasked
from tests.protocol.sampling import SEED


def test_an_attacked_broker_serves_the_others_and_keeps_nothing() -> None:
    print(f"MUSTER_TEST_SEED={SEED}")
    outcome = live.run(SEED, 150)
    print(outcome)
    assert outcome.sent.connections == 150
    assert outcome.sent.closed > 0
    assert all(outcome.counts.values())


def test_a_round_of_everything() -> None:
    print(f"MUSTER_TEST_SEED={SEED}")
    outcome = campaign.run(SEED, 0, campaign.Sizes(garbage=40, idle=300, flood=300))
    print(outcome)
    assert outcome.rounds == 1
    assert outcome.stood == outcome.flooded == 300
    assert all(outcome.counts.values())
    assert ApiKey.HEARTBEAT in outcome.served


def test_a_version_that_was_never_answered_is_named() -> None:
    tally: Tally = Counter({(ApiKey.HEARTBEAT, version, True, "answered"): 1 for version in (0, 1, 2, 4)})
    tally[ApiKey.HEARTBEAT, 3, True, "closed"] = 7
    tally[ApiKey.HEARTBEAT, 3, False, "answered"] = 7
    assert unasked(tally, {ApiKey.HEARTBEAT, ApiKey.JOIN_GROUP}) == ["HEARTBEAT v3"]
