"""Requests to consumer groups (KIP-848), between the wire and the shard, which is simulated here: the
behaviour of groups is the core's, and tested there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from muster.coordinator.base.step import Step
from muster.coordinator.group.shard import Shard
from muster.coordinator.server.broker import Broker
from muster.coordinator.server.rights import UNRESTRICTED
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.acls import ResourceType
from muster.protocol.messages.consumer_group import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from muster.protocol.messages.features import UpdateFeaturesRequest
from muster.protocol.messages.metadata import AUTHORIZED_OPERATIONS_OMITTED
from tests.server.conftest import StartBrokers
from tests.support.wire import Wire

Described = ConsumerGroupDescribeResponse.DescribedGroup
Assignment = ConsumerGroupHeartbeatResponse.Assignment

SWITCHED_OFF = {"group_coordinator_rebalance_protocols": ("classic",)}


class Core:
    """Records what a shard was asked; refuses what `refuses` says."""

    def __init__(self) -> None:
        self.beats: list[ConsumerGroupHeartbeatRequest] = []
        self.refuses: KafkaError | None = None


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Core:
    made = Core()

    def heartbeat(
        shard: Shard, request: ConsumerGroupHeartbeatRequest, step: Step
    ) -> ConsumerGroupHeartbeatResponse:
        made.beats.append(request)
        if made.refuses is not None:
            raise made.refuses
        return ConsumerGroupHeartbeatResponse(
            member_id=request.member_id,
            member_epoch=5,
            heartbeat_interval_ms=5_000,
            assignment=Assignment(topic_partitions=[]) if request.member_epoch == 0 else None,
        )

    def describe(shard: Shard, group_id: str, step: Step) -> None:
        step.reads_hard_state = True
        code = ErrorCode.GROUP_ID_NOT_FOUND if group_id == "none" else ErrorCode.NONE
        step.reply(
            Described(
                error_code=code,
                group_id=group_id,
                group_state="Stable",
                group_epoch=3,
                assignment_epoch=3,
                assignor_name="uniform",
                members=[],
            )
        )

    monkeypatch.setattr(Shard, "consumer_heartbeat", heartbeat)
    monkeypatch.setattr(Shard, "describe_consumer", describe)
    return made


@pytest.fixture
async def broker(start_brokers: StartBrokers) -> Broker:
    return (await start_brokers()).brokers[0]


@pytest.fixture
async def wire(broker: Broker) -> Any:
    async with await Wire.connect(broker.port) as wire:
        yield wire


def joining(**fields: Any) -> ConsumerGroupHeartbeatRequest:
    values = {
        "group_id": "g",
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout_ms": 1_000,
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
    }
    return ConsumerGroupHeartbeatRequest(**{**values, **fields})


def beat(epoch: int = 5, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=epoch, **fields)


def describing(*group_ids: str, operations: bool = False) -> ConsumerGroupDescribeRequest:
    return ConsumerGroupDescribeRequest(group_ids=list(group_ids), include_authorized_operations=operations)


@pytest.mark.parametrize("version", [0, 1])
async def test_a_heartbeat_is_the_shard_s_to_answer(core: Core, wire: Wire, version: int) -> None:
    answer = await wire.call(joining(), version)
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (0, "m", 5)
    assert (answer.heartbeat_interval_ms, answer.assignment) == (5_000, Assignment(topic_partitions=[]))
    assert core.beats == [joining()]


async def test_a_refusal_has_code_and_text_and_no_epoch(core: Core, wire: Wire) -> None:
    core.refuses = KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, "the epoch is 7")
    answer = await wire.call(beat(), 1)
    assert (answer.error_code, answer.error_message) == (ErrorCode.FENCED_MEMBER_EPOCH, "the epoch is 7")
    assert (answer.member_id, answer.member_epoch, answer.heartbeat_interval_ms) == (None, 0, 0)
    assert answer.assignment is None


async def test_a_heartbeat_of_no_group_is_refused_by_any_broker(
    core: Core, start_brokers: StartBrokers
) -> None:
    for broker in (await start_brokers(brokers=2)).brokers:
        async with await Wire.connect(broker.port) as wire:
            for request in (joining(group_id=""), joining(group_id="", member_epoch=5)):
                assert (await wire.call(request, 1)).error_code == ErrorCode.INVALID_REQUEST
    assert core.beats == []


async def test_a_heartbeat_that_says_nothing_new_is_read_once(core: Core, wire: Wire) -> None:
    said = [beat(), beat(), beat(6), beat(5), joining(), joining(), beat(-1), beat(-1)]
    answers = [await wire.call(each, 1) for each in said]
    assert [each.member_epoch for each in answers] == [5] * len(said)
    assert core.beats == said  # none was changed, none missed
    first, second, _, fourth, join, join_again, leave, leave_again = core.beats
    assert first is second
    assert fourth is not first  # only one is remembered
    assert join is not join_again
    assert leave is not leave_again


async def test_every_group_is_described_in_the_order_asked_for(core: Core, wire: Wire) -> None:
    for version in (0, 1):
        answer = await wire.call(describing("g", "none", "", "g", operations=True), version)
        told = [(each.group_id, each.error_code, each.authorized_operations) for each in answer.groups]
        assert told == [
            ("g", 0, UNRESTRICTED.operations(ResourceType.GROUP)),
            ("none", ErrorCode.GROUP_ID_NOT_FOUND, AUTHORIZED_OPERATIONS_OMITTED),
            ("", ErrorCode.INVALID_GROUP_ID, AUTHORIZED_OPERATIONS_OMITTED),
        ]
        assert (answer.groups[2].group_state, answer.groups[2].group_epoch) == ("", 0)
    (group,) = (await wire.call(describing("g"), 1)).groups
    assert group.authorized_operations == AUTHORIZED_OPERATIONS_OMITTED


async def test_another_broker_s_groups_are_refused_one_by_one(
    core: Core, start_brokers: StartBrokers
) -> None:
    first, second = (await start_brokers(brokers=2)).brokers
    elsewhere = next(name for name in map(str, range(100)) if not _is_here(first, name))
    async with await Wire.connect(first.port) as wire:
        (group,) = (await wire.call(describing(elsewhere), 1)).groups
        assert (group.error_code, group.group_epoch) == (ErrorCode.NOT_COORDINATOR, 0)
        answer = await wire.call(joining(group_id=elsewhere), 1)
        assert answer.error_code == ErrorCode.NOT_COORDINATOR
    async with await Wire.connect(second.port) as wire:
        assert (await wire.call(joining(group_id=elsewhere), 1)).error_code == 0


def _is_here(broker: Broker, group_id: str) -> bool:
    return broker.runtime._host_of(group_id) is not None


async def _by_setting(start_brokers: StartBrokers) -> Broker:
    return (await start_brokers(**SWITCHED_OFF)).brokers[0]


async def _by_feature(start_brokers: StartBrokers) -> Broker:
    broker = (await start_brokers()).brokers[0]
    off = UpdateFeaturesRequest.FeatureUpdateKey(feature="group.version", max_version_level=0, upgrade_type=2)
    async with await Wire.connect(broker.port) as wire:
        assert (await wire.call(UpdateFeaturesRequest(feature_updates=[off]), 2)).error_code == 0
    return broker


@pytest.mark.parametrize("switched_off", [_by_setting, _by_feature])
async def test_the_consumer_protocol_can_be_switched_off(
    core: Core, start_brokers: StartBrokers, switched_off: Callable[[StartBrokers], Awaitable[Broker]]
) -> None:
    broker = await switched_off(start_brokers)
    async with await Wire.connect(broker.port) as wire:
        for version in (0, 1):
            for request in (joining(), beat()):
                answer = await wire.call(request, version)
                assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
                assert (answer.member_epoch, answer.heartbeat_interval_ms) == (0, 0)
            groups = (await wire.call(describing("g", ""), version)).groups
            assert [(each.group_id, each.error_code) for each in groups] == [
                ("g", ErrorCode.UNSUPPORTED_VERSION),
                ("", ErrorCode.UNSUPPORTED_VERSION),
            ]
    assert core.beats == []
