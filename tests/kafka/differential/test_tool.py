"""The comparison tool: its requests can be encoded, and it finds planted differences and shrinks them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from muster.coordinator.testing import Broker
from muster.protocol import codec
from muster.protocol.api import ApiKey, versions
from tests.group import steps
from tests.kafka.differences import Difference
from tests.kafka.differential import duel
from tests.kafka.differential.campaign import Campaign, Kind
from tests.kafka.differential.duel import scenario_of
from tests.kafka.differential.generator import VERBS
from tests.kafka.differential.player import SequenceCast
from tests.kafka.differential.servers import builds, muster, ours_like, with_topics
from tests.kafka.differential.shrink import shrunk

pytestmark = pytest.mark.kafka

_SEED = 1_000


def _requests(kind: Kind, seed: int, *, timed: bool) -> Iterator[tuple[ApiKey, int, Any]]:
    scenario = scenario_of(kind.write(seed, timed=timed))
    cast = SequenceCast(scenario.actors, "-x", scenario.topics)
    for step in scenario.steps:
        if step.actor is not None and step.verb != "forget":
            yield steps.request(scenario, step, cast, lambda name: uuid.uuid5(uuid.NAMESPACE_DNS, name))


@pytest.mark.parametrize("kind", Kind)
def test_sequences_say_the_same_for_a_seed_and_ask_in_every_version(kind: Kind) -> None:
    one, again, other = (kind.write(seed, timed=False) for seed in (_SEED, _SEED, _SEED + 1))
    assert one == again != other
    assert any(line.startswith("advance") for line in kind.write(_SEED, timed=True))
    asked = set()
    for seed in range(_SEED, _SEED + 400):
        for timed in (False, True):
            for api, version, message in _requests(kind, seed, timed=timed):
                codec.encode(message, version)
                asked.add((api, version))
    wanted = set(VERBS.values())
    if kind is Kind.CLASSIC:
        wanted -= {ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE}
    assert asked == {
        (api, version) for api in wanted for version in range(versions(api)[0], versions(api)[1] + 1)
    }


async def test_shrinking_keeps_what_is_needed() -> None:
    header = ["topic orders 3", "group team", ""]
    lines = [*header, *(f"alice heartbeat v{version % 5}" for version in range(30))]
    lines[10] = "alice join v3"
    lines[20] = "bob leave v1"

    async def differs(fewer: list[str]) -> bool:
        return "alice join v3" in fewer and "bob leave v1" in fewer

    assert await shrunk(lines, differs) == [*header, "alice join v3", "bob leave v1"]


def _compared(kind: Kind, others_settings: dict[str, Any], sequences: int) -> Campaign:
    """Two musters, one of them with other settings in place of Apache Kafka."""
    with ExitStack() as stack:
        other: Broker = stack.enter_context(muster(**others_settings))
        theirs = with_topics(other.port)
        ours = stack.enter_context(ours_like(theirs))
        campaign = Campaign(kind, _SEED, sequences, timed=0, at_once=4)
        asyncio.run(campaign.run(theirs, ours))
    return campaign


@pytest.mark.parametrize("kind", Kind)
def test_a_broker_is_like_itself(kind: Kind) -> None:
    campaign = Campaign(kind, _SEED, 20, timed=0, at_once=4, rules=())
    with builds() as (served, ours):
        asyncio.run(campaign.run(served, ours))
    # A machine with other work may be too slow to be certain of some.
    assert campaign.compared + campaign.too_slow == 20
    assert campaign.compared >= 10
    assert not campaign.findings, "\n".join(map(str, campaign.findings.values()))


def test_a_planted_difference_is_found_and_shrunk() -> None:
    campaign = _compared(Kind.CLASSIC, {"offset_metadata_max_bytes": 3}, 40)
    [finding] = campaign.findings.values()
    assert "commit" in finding.text.splitlines()[-2]
    assert "OFFSET_METADATA_TOO_LARGE" in finding.theirs[0]
    assert sum(1 for line in finding.text.splitlines() if " v" in line) <= 3


def test_a_missing_answer_is_found_where_time_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Awaiting it takes so long that regular expressions may be looked up again."""
    monkeypatch.setattr(duel, "_PATIENCE_S", 1.0)
    monkeypatch.setattr(duel, "_LOOK_UP_AGAIN_MS", 0)
    lines = ["topic orders 3", "group team", "", "alice beat v1 regex=ord.*"]
    with muster() as other, muster() as broker:
        broker.faults.add(api="ConsumerGroupHeartbeat", client_id="alice", drop_response=True)
        theirs, ours = with_topics(other.port), with_topics(broker.port)

        async def play() -> duel.Outcome:
            try:
                return await duel.duel(lines, theirs, ours, rules=())
            finally:
                theirs.close()
                ours.close()

        outcome = asyncio.run(play())
    assert not outcome.is_too_slow
    assert outcome.found


def test_another_assignor_is_found() -> None:
    campaign = _compared(Kind.CONSUMER, {"group_consumer_assignors": ("range", "uniform")}, 12)
    assert any("assignor_name" in row.field for row in _differences(campaign))
    assert any("partitions" in row.field for row in _differences(campaign))


def _differences(campaign: Campaign) -> list[Difference]:
    return [row for finding in campaign.findings.values() for row in finding.differences]
