"""Features (KIP-584): valid and invalid levels, and what the consumer protocol (KIP-848) answers when
`group.version` is 0."""

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
from tests.kafka.stories import KAFKA_CONFIGS, Side, Story, assert_told_alike
from tests.support.wire_topics import until

pytestmark = pytest.mark.kafka

_GROUPS = "group.version"
_TRANSACTIONS = "transaction.version"
_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3


def _level(side: Side, name: str) -> tuple[int, int]:
    """The level of a feature, as reported by ApiVersions, and the epoch."""
    asked = ApiVersionsRequest(client_software_name="story", client_software_version="1")
    answer = side.quietly(asked, 4)
    levels = {each.name: each.max_version_level for each in answer.finalized_features}
    return levels.get(name, 0), answer.finalized_features_epoch


def _await_level(side: Side, name: str, level: int) -> None:
    """Wait: Kafka's brokers learn it after the answer."""
    until(lambda: _level(side, name)[0] == level, f"{name} is {level}")


def _update(name: str, level: int, type: int, *, validate_only: bool = False) -> UpdateFeaturesRequest:
    each = UpdateFeaturesRequest.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=type)
    return UpdateFeaturesRequest(feature_updates=[each], validate_only=validate_only)


def _unasked(side: Side, name: str, when: str) -> None:
    """Every update, only validated."""
    for version in (1, 2):
        for level in (-1, 0, 1, 2, 3, 9):
            for type in range(5):
                title = f"{when}: {level} ({type}), v{version}"
                side.ask(title, _update(name, level, type, validate_only=True), version)
    # v0 has no validate_only, so updates that would change the level are left out.
    for level in {0, _level(side, name)[0], 9}:
        for allowed in (False, True):
            each = UpdateFeaturesRequest.FeatureUpdateKey(
                feature=name, max_version_level=level, allow_downgrade=allowed
            )
            side.ask(f"{when}: {level} ({allowed}), v0", UpdateFeaturesRequest(feature_updates=[each]), 0)


def _consumer_groups(side: Side, when: str) -> None:
    beat = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1)
    joining = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=1_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    describe = ConsumerGroupDescribeRequest(group_ids=["g", "", "g"], include_authorized_operations=True)
    for version in (0, 1):
        side.ask(f"{when}: a heartbeat, v{version}", beat, version)
        side.ask(f"{when}: joining, v{version}", joining, version)
        side.ask(f"{when}: described, v{version}", describe, version)


def levels_of_groups(side: Side) -> None:
    side.coordinate("g")
    _unasked(side, _GROUPS, "at 1")
    epochs = [_level(side, _GROUPS)[1]]
    for level, type in ((0, _SAFE_DOWNGRADE), (1, _UPGRADE), (0, _UNSAFE_DOWNGRADE), (1, _UPGRADE)):
        number = len(epochs)
        epochs.append(_changed(side, _GROUPS, level, type, number))
        if not level:
            _unasked(side, _GROUPS, f"{number}: at 0")
            _consumer_groups(side, f"{number}: at 0")
        side.ask(f"{number}: again to {level} ({type})", _update(_GROUPS, level, type), 2)
    side.note("epochs grow", epochs == sorted(set(epochs)))


def levels_of_transactions(side: Side) -> None:
    _unasked(side, _TRANSACTIONS, "at 2")
    epochs = [_level(side, _TRANSACTIONS)[1]]
    for level, type in (
        (1, _SAFE_DOWNGRADE),
        (0, _UNSAFE_DOWNGRADE),
        (2, _UPGRADE),
        (0, _SAFE_DOWNGRADE),
        (1, _UPGRADE),
        (2, _UPGRADE),
    ):
        number = len(epochs)
        epochs.append(_changed(side, _TRANSACTIONS, level, type, number))
        _unasked(side, _TRANSACTIONS, f"{number}: at {level}")
    side.note("epochs grow", epochs == sorted(set(epochs)))


def _changed(side: Side, name: str, level: int, type: int, number: int) -> int:
    """Change a level; returns the epoch afterwards."""
    side.ask(f"{number}: to {level} ({type})", _update(name, level, type), 2)
    _await_level(side, name, level)
    return _level(side, name)[1]


@pytest.mark.parametrize("story", [levels_of_groups, levels_of_transactions])
def test_apache_kafka_answers_as_muster_does(kafka_of_configs: KafkaOfConfigs, story: Story) -> None:
    with Broker(auto_create_topics_enable=False) as broker:
        assert_told_alike(story, kafka_of_configs(KAFKA_CONFIGS), broker)


def consumer_groups_switched_off(side: Side) -> None:
    side.coordinate("g")
    side.note("group.version", _level(side, _GROUPS)[0])
    _consumer_groups(side, "off")


def test_apache_kafka_without_the_consumer_protocol(kafka_of_configs: KafkaOfConfigs) -> None:
    kafka = kafka_of_configs({**KAFKA_CONFIGS, "group.coordinator.rebalance.protocols": "classic"})
    with Broker(group_coordinator_rebalance_protocols=("classic",)) as broker:
        assert_told_alike(consumer_groups_switched_off, kafka, broker)
