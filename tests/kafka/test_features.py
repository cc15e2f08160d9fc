"""Features (KIP-584): levels that can be had, those that cannot, and what the consumer protocol (KIP-848)
answers where `group.version` is 0."""

from __future__ import annotations

import pytest

from muster.coordinator.testing import Broker
from muster.protocol.messages.connection import ApiVersionsRequest
from muster.protocol.messages.consumer_group import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)
from muster.protocol.messages.features import UpdateFeaturesRequest
from tests.kafka.conftest import KafkaOfConfigs
from tests.kafka.stories import KAFKA_CONFIGS, Side, assert_told_alike
from tests.support.wire_topics import until

pytestmark = pytest.mark.kafka

_GROUPS = "group.version"
_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3


def _level(side: Side) -> tuple[int, int]:
    """Of groups, as ApiVersions tells it, and the epoch."""
    asked = ApiVersionsRequest(client_software_name="story", client_software_version="1")
    answer = side.quietly(asked, 4)
    levels = {each.name: each.max_version_level for each in answer.finalized_features}
    return levels.get(_GROUPS, 0), answer.finalized_features_epoch


def _await_level(side: Side, level: int) -> None:
    """Kafka's brokers learn it after the answer."""
    until(lambda: _level(side)[0] == level, f"{_GROUPS} is {level}")


def _update(
    level: int, type: int, *, name: str = _GROUPS, validate_only: bool = False
) -> UpdateFeaturesRequest:
    each = UpdateFeaturesRequest.FeatureUpdateKey(feature=_GROUPS, max_version_level=level, upgrade_type=type)
    return UpdateFeaturesRequest(feature_updates=[each], validate_only=validate_only)


def _unasked(side: Side, when: str) -> None:
    """Every update, validated only."""
    for version in (1, 2):
        for level in (-1, 0, 1, 2, 9):
            for type in range(5):
                title = f"{when}: {level} ({type}), v{version}"
                side.ask(title, _update(level, type, validate_only=True), version)
    # v0 has no validate_only: what would change the level is left out.
    for level in {0, _level(side)[0], 9}:
        for allowed in (False, True):
            each = UpdateFeaturesRequest.FeatureUpdateKey(
                feature=_GROUPS, max_version_level=level, allow_downgrade=allowed
            )
            side.ask(f"{when}: {level} ({allowed}), v0", UpdateFeaturesRequest(feature_updates=[each]), 0)


def _consumer_groups(side: Side, when: str) -> None:
    beat = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1)
    describe = ConsumerGroupDescribeRequest(group_ids=["g", "", "g"], include_authorized_operations=True)
    for version in (0, 1):
        side.ask(f"{when}: a heartbeat, v{version}", beat, version)
        side.ask(f"{when}: described, v{version}", describe, version)


def levels_of_groups(side: Side) -> None:
    side.coordinate("g")
    _unasked(side, "at 1")
    epochs = [_level(side)[1]]
    for level, type in ((0, _SAFE_DOWNGRADE), (1, _UPGRADE), (0, _UNSAFE_DOWNGRADE), (1, _UPGRADE)):
        number = len(epochs)
        side.ask(f"{number}: to {level} ({type})", _update(level, type), 2)
        _await_level(side, level)
        epochs.append(_level(side)[1])
        if not level:
            _unasked(side, f"{number}: at 0")
            _consumer_groups(side, f"{number}: at 0")
        side.ask(f"{number}: again to {level} ({type})", _update(level, type), 2)
    side.note("epochs grow", epochs == sorted(set(epochs)))


def test_apache_kafka_answers_as_muster_does(kafka_of_configs: KafkaOfConfigs) -> None:
    with Broker(auto_create_topics_enable=False) as broker:
        assert_told_alike(levels_of_groups, kafka_of_configs(KAFKA_CONFIGS), broker)


def consumer_groups_switched_off(side: Side) -> None:
    side.coordinate("g")
    side.note("group.version", _level(side)[0])
    _consumer_groups(side, "off")


def test_apache_kafka_without_the_consumer_protocol(kafka_of_configs: KafkaOfConfigs) -> None:
    kafka = kafka_of_configs({**KAFKA_CONFIGS, "group.coordinator.rebalance.protocols": "classic"})
    with Broker(group_coordinator_rebalance_protocols=("classic",)) as broker:
        assert_told_alike(consumer_groups_switched_off, kafka, broker)
