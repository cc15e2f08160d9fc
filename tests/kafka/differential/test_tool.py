"""The tool that compares: what it asks can be sent, and it finds what is planted and shrinks it."""

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
from tests.kafka.differential.campaign import Campaign, Kind
from tests.kafka.differential.connections import Connections
from tests.kafka.differential.duel import scenario_of
from tests.kafka.differential.generator import VERBS, sequence
from tests.kafka.differential.player import SequenceCast
from tests.kafka.differential.servers import muster, with_topics
from tests.kafka.differential.shrink import shrunk

pytestmark = pytest.mark.kafka

_SEED = 1_000


def _requests(seed: int, *, timed: bool) -> Iterator[tuple[ApiKey, int, Any]]:
    scenario = scenario_of(sequence(seed, timed=timed))
    cast = SequenceCast(scenario.actors, "-x", scenario.topics)
    for step in scenario.steps:
        if step.actor is not None and step.verb != "forget":
            yield steps.request(scenario, step, cast, lambda name: uuid.uuid5(uuid.NAMESPACE_DNS, name))


def test_sequences_say_the_same_for_a_seed_and_ask_in_every_version() -> None:
    assert sequence(_SEED) == sequence(_SEED) != sequence(_SEED + 1)
    assert any(line.startswith("advance") for line in sequence(_SEED, timed=True))
    asked = set()
    for seed in range(_SEED, _SEED + 400):
        for timed in (False, True):
            for api, version, message in _requests(seed, timed=timed):
                codec.encode(message, version)
                asked.add((api, version))
    every = {
        (api, version) for api in VERBS.values() for version in range(versions(api)[0], versions(api)[1] + 1)
    }
    assert asked == every


async def test_shrinking_keeps_what_is_needed() -> None:
    header = ["topic orders 3", "group team", ""]
    lines = [*header, *(f"alice heartbeat v{version % 5}" for version in range(30))]
    lines[10] = "alice join v3"
    lines[20] = "bob leave v1"

    async def differs(fewer: list[str]) -> bool:
        return "alice join v3" in fewer and "bob leave v1" in fewer

    assert await shrunk(lines, differs) == [*header, "alice join v3", "bob leave v1"]


def _compared(others_settings: dict[str, Any], sequences: int) -> Campaign:
    """Two musters, one with other settings, in Apache Kafka's place."""
    with ExitStack() as stack:
        other: Broker = stack.enter_context(muster(**others_settings))
        ours: Broker = stack.enter_context(muster())
        campaign = Campaign(Kind.CLASSIC, _SEED, sequences, timed=0, at_once=4)
        asyncio.run(campaign.run(_connections(other), _connections(ours)))
    return campaign


def _connections(broker: Broker) -> Connections:
    return with_topics(broker.port)


def test_a_broker_is_like_itself() -> None:
    campaign = _compared({}, 20)
    assert campaign.compared == 20
    assert not campaign.findings, "\n".join(map(str, campaign.findings.values()))
    assert not campaign.deliberate


def test_a_planted_difference_is_found_and_shrunk() -> None:
    campaign = _compared({"offset_metadata_max_bytes": 3}, 40)
    [finding] = campaign.findings.values()
    assert "commit" in finding.text.splitlines()[-2]
    assert "OFFSET_METADATA_TOO_LARGE" in finding.theirs[0]
    assert sum(1 for line in finding.text.splitlines() if " v" in line) <= 3
