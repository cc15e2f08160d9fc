"""Configs of single groups (KIP-848): altered at one broker, in force at all, and kept.
tests/kafka/test_configs.py compares the answers with Apache Kafka's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from muster.coordinator.group.config import GroupOverrides
from muster.coordinator.server import group_configs
from muster.coordinator.server.broker import Broker
from muster.coordinator.storage.store import BrokerConfigsRow
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.configs import ListConfigResourcesRequest
from tests.server.conftest import StartBrokers
from tests.support.facts import until
from tests.support.wire import Wire
from tests.support.wire_configs import (
    APPEND,
    BROKER,
    DELETE,
    GROUP,
    SET,
    SUBTRACT,
    Change,
    altering,
    describing,
    replacing,
)

SESSION: Final = "consumer.session.timeout.ms"
HEARTBEAT: Final = "consumer.heartbeat.interval.ms"
ASSIGNMENT: Final = "consumer.assignment.interval.ms"
OFFLOAD: Final = "consumer.assignor.offload.enable"
DEFAULT: Final = GroupOverrides(45_000, 5_000, 1_000)


@pytest.fixture
async def broker(start_brokers: StartBrokers) -> Broker:
    return (await start_brokers()).brokers[0]


@pytest.fixture
async def wire(broker: Broker) -> Any:
    async with await Wire.connect(broker.port) as wire:
        yield wire


async def alter(
    wire: Wire, name: str, *changes: Change, type: int = GROUP, validate_only: bool = False
) -> tuple[int, str | None]:
    """Alter configs and return the error code and text."""
    request = altering((type, name, changes), validate_only=validate_only)
    (answer,) = (await wire.call(request, 1)).responses
    return answer.error_code, answer.error_message


async def described(wire: Wire, name: str, keys: list[str] | None = None) -> dict[str, tuple[Any, ...]]:
    """Value, source and synonyms of each config; all can be altered."""
    (result,) = (await wire.call(describing((GROUP, name), synonyms=True, keys=keys), 4)).results
    assert result.error_code == 0
    assert not any(each.read_only or each.is_sensitive for each in result.configs)
    return {
        each.name: (
            each.value,
            each.config_source,
            [(synonym.name, synonym.value, synonym.source) for synonym in each.synonyms],
        )
        for each in result.configs
    }


async def listed(wire: Wire) -> list[str]:
    """The groups that ListConfigResources names."""
    response = await wire.call(ListConfigResourcesRequest(resource_types=[GROUP]), 1)
    assert all(each.resource_type == GROUP for each in response.config_resources)
    return [each.resource_name for each in response.config_resources]


def in_force(broker: Broker, group_id: str = "g") -> GroupOverrides:
    return broker.group_configs.in_force.of(group_id)


def _of_broker(name: str, value: str) -> tuple[str, int, list[tuple[str, str, int]]]:
    return value, 5, [(f"group.{name}", value, 5)]


async def test_a_group_has_the_broker_s_configs_until_it_has_its_own(broker: Broker, wire: Wire) -> None:
    defaults = {
        ASSIGNMENT: _of_broker(ASSIGNMENT, "1000"),
        HEARTBEAT: _of_broker(HEARTBEAT, "5000"),
        SESSION: _of_broker(SESSION, "45000"),
    }
    assert await described(wire, "g") == defaults
    assert (in_force(broker), await listed(wire)) == (DEFAULT, [])
    assert await alter(wire, "g", (SESSION, SET, "50000"), (OFFLOAD, SET, "false")) == (0, None)
    session = "50000", 8, [(SESSION, "50000", 8), (f"group.{SESSION}", "45000", 5)]
    offload = "false", 8, [(OFFLOAD, "false", 8), (f"group.{OFFLOAD}", "true", 5)]
    assert await described(wire, "g") == {**defaults, SESSION: session, OFFLOAD: offload}
    assert await described(wire, "g", [SESSION, "no.such.config"]) == {SESSION: session}
    assert in_force(broker) == DEFAULT._replace(consumer_session_timeout_ms=50_000)
    assert in_force(broker, "h") == DEFAULT
    assert await listed(wire) == ["g"]
    assert await alter(wire, "g", (SESSION, DELETE, None), (OFFLOAD, DELETE, None)) == (0, None)
    assert await described(wire, "g") == defaults
    assert (in_force(broker), await listed(wire)) == (DEFAULT, [])


async def test_configs_are_replaced_as_a_whole(broker: Broker, wire: Wire) -> None:
    assert await alter(wire, "g", (SESSION, SET, "50000")) == (0, None)
    for configs, wanted in (
        ({HEARTBEAT: "6000"}, DEFAULT._replace(consumer_heartbeat_interval_ms=6_000)),
        ({}, DEFAULT),
    ):
        (answer,) = (await wire.call(replacing((GROUP, "g", configs)), 2)).responses
        assert (answer.error_code, in_force(broker)) == (0, wanted)


async def test_what_is_only_validated_is_not_made(broker: Broker, wire: Wire) -> None:
    assert await alter(wire, "g", (SESSION, SET, "50000"), validate_only=True) == (0, None)
    assert in_force(broker) == DEFAULT


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ((SESSION, SET, "44999"), f"{SESSION} must be in the range 45000 to 60000 inclusive."),
        ((SESSION, SET, "60001"), f"{SESSION} must be in the range 45000 to 60000 inclusive."),
        ((HEARTBEAT, SET, "4999"), f"{HEARTBEAT} must be in the range 5000 to 15000 inclusive."),
        ((ASSIGNMENT, SET, "15001"), f"{ASSIGNMENT} must be in the range 0 to 15000 inclusive."),
        ((SESSION, SET, "x"), f"Invalid value x for configuration {SESSION}: it takes a whole number from 1"),
        ((OFFLOAD, SET, "x"), f"Invalid value x for configuration {OFFLOAD}: it takes true or false"),
        (("no.such.config", SET, "1"), "Unknown group config name: no.such.config"),
        (("share.session.timeout.ms", SET, "50000"), "muster has no share groups"),
        ((SESSION, APPEND, "1"), f"{SESSION} is not a list"),
        ((SESSION, SUBTRACT, "1"), f"{SESSION} is not a list"),
    ],
)
async def test_bad_values_and_unknown_names_are_refused_in_words(
    broker: Broker, wire: Wire, change: Change, why: str
) -> None:
    good = (ASSIGNMENT, SET, "0") if change[0] != ASSIGNMENT else (SESSION, SET, "50000")
    for changes in ([change], [good, change]):
        code, text = await alter(wire, "g", *changes)
        assert code == ErrorCode.INVALID_CONFIG
        assert why in (text or "")
    assert in_force(broker) == DEFAULT


async def test_a_session_outlasts_a_heartbeat(start_brokers: StartBrokers) -> None:
    broker = (await start_brokers(group_consumer_max_heartbeat_interval_ms=60_000)).brokers[0]
    async with await Wire.connect(broker.port) as wire:
        code, text = await alter(wire, "g", (HEARTBEAT, SET, "45000"))
        assert code == ErrorCode.INVALID_CONFIG
        assert f"{SESSION} (45000) must be greater than {HEARTBEAT} (45000)" in (text or "")
        assert await alter(wire, "g", (HEARTBEAT, SET, "45000"), (SESSION, SET, "45001")) == (0, None)


async def test_names_of_groups(broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    change = (SESSION, SET, "50000")
    for name in ("", "a\0b", "é" * (group_configs.NAME_BYTES_MAX // 2 + 1)):
        assert (await alter(wire, name, change))[0] == ErrorCode.INVALID_REQUEST
        (answer,) = (await wire.call(replacing((GROUP, name, {SESSION: "50000"})), 2)).responses
        assert answer.error_code == ErrorCode.INVALID_REQUEST
    (result,) = (await wire.call(describing((GROUP, "")), 4)).results
    assert result.error_code == ErrorCode.INVALID_REQUEST
    names = [" ", "1", "é" * (group_configs.NAME_BYTES_MAX // 2), "group:g", "features"]
    for name in names:
        assert await alter(wire, name, change) == (0, None)
    assert await listed(wire) == sorted(names)
    assert broker.features.consumer_groups
    # Make the bound as high as the number of groups with configs.
    monkeypatch.setattr(group_configs, "GROUPS_MAX", len(names))
    code, text = await alter(wire, "one more", change)
    assert (code, "5 groups have configs" in (text or "")) == (ErrorCode.INVALID_REQUEST, True)
    assert await alter(wire, "1", (HEARTBEAT, SET, "6000")) == (0, None)
    assert await alter(wire, "1", (HEARTBEAT, DELETE, None), (SESSION, DELETE, None)) == (0, None)
    assert await alter(wire, "one more", change) == (0, None)


async def test_all_brokers_and_their_shards_are_told_and_it_is_kept(
    start_brokers: StartBrokers, tmp_path: Path
) -> None:
    kept = {"ephemeral": False, "data": str(tmp_path)}
    brokers = await start_brokers(brokers=2, **kept)
    first, second = brokers.brokers
    wanted = DEFAULT._replace(consumer_heartbeat_interval_ms=12_000)
    async with await Wire.connect(first.port) as wire:
        assert await alter(wire, "g", (HEARTBEAT, SET, "12000")) == (0, None)
    assert in_force(first) == wanted  # at once, where it was altered
    await until(lambda: in_force(second) == wanted)
    for broker in (first, second):
        machines = [host.machine for host in broker.runtime.hosts()]
        assert machines
        assert all(each is not None and each.configs.of("g") == in_force(broker) for each in machines)
    await brokers.stop()
    # Bounds may differ by then: a value beyond a bound counts as the bound.
    narrower = {"group_consumer_max_heartbeat_interval_ms": 7_000}
    (again,) = (await start_brokers(**kept, **narrower)).brokers
    assert in_force(again) == DEFAULT._replace(consumer_heartbeat_interval_ms=7_000)
    async with await Wire.connect(again.port) as wire:
        assert (await described(wire, "g"))[HEARTBEAT][:2] == ("12000", 8)


async def test_the_broker_s_assignment_interval_is_altered_while_it_runs(broker: Broker, wire: Wire) -> None:
    name = f"group.{ASSIGNMENT}"
    code, text = await alter(wire, "1", (name, SET, "15001"), type=BROKER)
    assert code == ErrorCode.INVALID_REQUEST
    assert text is not None
    assert text.startswith(f"{name} must be less than or equal to group.consumer.max.assignment.interval.ms")
    assert await alter(wire, "1", (name, SET, "2000"), type=BROKER) == (0, None)
    assert await alter(wire, "h", (ASSIGNMENT, SET, "0")) == (0, None)
    assert in_force(broker).consumer_assignment_interval_ms == 2_000
    assert in_force(broker, "h").consumer_assignment_interval_ms == 0
    assert (await described(wire, "g"))[ASSIGNMENT] == (
        "2000",
        2,
        [(name, "2000", 2), (name, "1000", 5)],
    )


async def test_what_a_newer_muster_kept_does_no_harm(broker: Broker, wire: Wire) -> None:
    row = BrokerConfigsRow("group:g", {"of.a.newer.muster": "1", SESSION: "no number", HEARTBEAT: "6000"})
    await broker.store.update_broker_configs(row, expected={})
    await broker.configs.refresh()
    assert in_force(broker) == DEFAULT._replace(consumer_heartbeat_interval_ms=6_000)
    assert "of.a.newer.muster" not in await described(wire, "g")
    cleaned = ("of.a.newer.muster", DELETE, None), (SESSION, SET, "50000")
    assert await alter(wire, "g", *cleaned) == (0, None)


async def test_what_a_newer_muster_kept_stays_when_others_are_altered(broker: Broker, wire: Wire) -> None:
    newer = {"of.a.newer.muster": "1", HEARTBEAT: "newer"}
    await broker.store.update_broker_configs(BrokerConfigsRow("group:g", newer), expected={})
    await broker.configs.refresh()
    assert await alter(wire, "g", (SESSION, SET, "50000")) == (0, None)
    assert in_force(broker) == DEFAULT._replace(consumer_session_timeout_ms=50_000)
    assert await broker.store.broker_configs() == [BrokerConfigsRow("group:g", {**newer, SESSION: "50000"})]
    for name in newer:
        assert (await alter(wire, "g", (name, SET, "newest")))[0] == ErrorCode.INVALID_CONFIG
    assert await alter(wire, "g", *((name, DELETE, None) for name in newer)) == (0, None)
    assert await broker.store.broker_configs() == [BrokerConfigsRow("group:g", {SESSION: "50000"})]
