"""Feature levels: set at one broker, in force at all, and kept. tests/kafka/test_features.py compares the
answers with Apache Kafka's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.coordinator.server.broker import Broker
from muster.coordinator.server.features import EPOCH, FEATURES
from muster.coordinator.storage.store import BrokerConfigsRow, StoreFull
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.connection import ApiVersionsRequest
from muster.protocol.messages.features import UpdateFeaturesRequest
from tests.server.conftest import StartBrokers
from tests.support.facts import until
from tests.support.wire import Wire

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
GROUPS = "group.version"
TRANSACTIONS = "transaction.version"
WITHOUT_CONSUMERS = {"metadata.version": 33, TRANSACTIONS: 2}
"""The levels in force when that of groups is 0."""


async def update(
    wire: Wire, *updates: tuple[str, int, int], version: int = 2, validate_only: bool = False
) -> int:
    """Update features and return the error code."""
    Update = UpdateFeaturesRequest.FeatureUpdateKey
    asked = [
        Update(feature=name, max_version_level=level, upgrade_type=type) for name, level, type in updates
    ]
    request = UpdateFeaturesRequest(feature_updates=asked, validate_only=validate_only)
    answer = await wire.call(request, version)
    assert (answer.error_message is None) is (answer.error_code == 0)
    code: int = answer.error_code
    return code


async def in_force(wire: Wire) -> tuple[int, dict[str, int]]:
    """The epoch and the levels that ApiVersions reports."""
    asked = ApiVersionsRequest(client_software_name="wire", client_software_version="1.0")
    answer = await wire.call(asked, 4)
    supported = {each.name: (each.min_version, each.max_version) for each in answer.supported_features}
    assert supported == {name: (each.first, each.last) for name, each in FEATURES.items()}
    levels = {each.name: each.max_version_level for each in answer.finalized_features}
    assert levels == {each.name: each.min_version_level for each in answer.finalized_features}
    return answer.finalized_features_epoch, levels


@pytest.fixture
async def wire(start_brokers: StartBrokers) -> Any:
    async with await Wire.connect((await start_brokers()).brokers[0].port) as wire:
        yield wire


@pytest.mark.parametrize("type", [SAFE_DOWNGRADE, UNSAFE_DOWNGRADE])
async def test_a_level_is_lowered_and_raised_under_a_new_epoch(wire: Wire, type: int) -> None:
    epoch, levels = await in_force(wire)
    assert (epoch, levels[GROUPS]) == (EPOCH, 1)
    assert await update(wire, (GROUPS, 0, type)) == 0
    assert await in_force(wire) == (EPOCH + 1, WITHOUT_CONSUMERS)
    assert await update(wire, (GROUPS, 0, type)) == 0  # unchanged
    assert await in_force(wire) == (EPOCH + 1, WITHOUT_CONSUMERS)
    assert await update(wire, (GROUPS, 1, UPGRADE)) == 0
    assert await in_force(wire) == (EPOCH + 2, levels)


@pytest.mark.parametrize(
    "refused",
    [
        (GROUPS, 0, UPGRADE),
        (GROUPS, 0, 0),
        (GROUPS, 0, 9),
        (GROUPS, 2, UPGRADE),
        (GROUPS, -1, UNSAFE_DOWNGRADE),
        ("metadata.version", 32, SAFE_DOWNGRADE),
        (TRANSACTIONS, 1, UPGRADE),
        (TRANSACTIONS, 3, UPGRADE),
        (TRANSACTIONS, -1, UNSAFE_DOWNGRADE),
        ("no.such.feature", 0, UPGRADE),
    ],
)
async def test_of_several_updates_all_are_made_or_none(wire: Wire, refused: tuple[str, int, int]) -> None:
    good = ("metadata.version", 33, UPGRADE) if refused[0] == GROUPS else (GROUPS, 0, SAFE_DOWNGRADE)
    for updates in ([refused], [good, refused], [refused, good]):
        assert await update(wire, *updates) == ErrorCode.INVALID_UPDATE_VERSION
    assert (await in_force(wire))[0] == EPOCH


async def test_what_is_lowered_is_raised_by_an_upgrade_alone(wire: Wire) -> None:
    assert await update(wire, (GROUPS, 0, SAFE_DOWNGRADE)) == 0
    for type in (SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        assert await update(wire, (GROUPS, 1, type)) == ErrorCode.INVALID_UPDATE_VERSION
    assert await update(wire, (GROUPS, 1, UPGRADE), version=1) == 0


async def test_transactions_have_three_levels(wire: Wire) -> None:
    for level, type in ((1, SAFE_DOWNGRADE), (0, UNSAFE_DOWNGRADE), (2, UPGRADE)):
        assert await update(wire, (TRANSACTIONS, level, type)) == 0
        assert (await in_force(wire))[1].get(TRANSACTIONS, 0) == level


async def test_what_is_only_validated_is_not_made(wire: Wire) -> None:
    assert await update(wire, (GROUPS, 0, SAFE_DOWNGRADE), validate_only=True) == 0
    assert await update(wire, (GROUPS, 2, UPGRADE), validate_only=True) == ErrorCode.INVALID_UPDATE_VERSION
    assert (await in_force(wire))[0] == EPOCH


async def test_the_first_version_has_upgrades_alone(wire: Wire) -> None:
    """Kafka ignores its allow_downgrade."""
    Update = UpdateFeaturesRequest.FeatureUpdateKey
    asked = Update(feature=GROUPS, max_version_level=0, allow_downgrade=True)
    answer = await wire.call(UpdateFeaturesRequest(feature_updates=[asked]), 0)
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION


def _level(broker: Broker) -> int:
    return broker.features.level(GROUPS)


async def test_all_brokers_have_the_level_and_keep_it(start_brokers: StartBrokers, tmp_path: Path) -> None:
    kept = {"ephemeral": False, "data": str(tmp_path)}
    brokers = await start_brokers(brokers=2, **kept)
    first, second = brokers.brokers
    async with await Wire.connect(first.port) as wire:
        assert await update(wire, (GROUPS, 0, SAFE_DOWNGRADE)) == 0
    assert _level(first) == 0  # at once, where it was requested
    await until(lambda: _level(second) == 0)
    assert not second.features.consumer_groups
    await brokers.stop()
    (again,) = (await start_brokers(**kept)).brokers
    assert _level(again) == 0
    async with await Wire.connect(again.port) as wire:
        assert await in_force(wire) == (EPOCH + 1, WITHOUT_CONSUMERS)


async def test_a_level_of_a_newer_muster_counts_as_the_highest_here(start_brokers: StartBrokers) -> None:
    broker = (await start_brokers()).brokers[0]
    row = BrokerConfigsRow("features", {GROUPS: "7", "of.a.newer.muster": "1", "changes": "3"})
    await broker.store.update_broker_configs(row, expected={})
    await broker.configs.refresh()
    async with await Wire.connect(broker.port) as wire:
        assert await in_force(wire) == (EPOCH + 3, {GROUPS: 1, **WITHOUT_CONSUMERS})
        assert await update(wire, (GROUPS, 0, SAFE_DOWNGRADE)) == 0
    (kept,) = await broker.store.broker_configs()
    assert kept.configs == {GROUPS: "0", TRANSACTIONS: "2", "of.a.newer.muster": "1", "changes": "4"}


async def test_a_change_that_does_not_fit_on_the_disk_is_refused_and_not_made(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = (await start_brokers()).brokers[0]

    async def full(*_: object, **__: object) -> None:
        raise StoreFull("no space left")

    monkeypatch.setattr(broker.store, "update_broker_configs", full)
    async with await Wire.connect(broker.port) as wire:
        assert await update(wire, (GROUPS, 0, SAFE_DOWNGRADE)) == ErrorCode.KAFKA_STORAGE_ERROR
    assert _level(broker) == 1
