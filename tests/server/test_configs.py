"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources over the wire.

tests/kafka/test_configs.py compares the answers with Apache Kafka's; these tests show what concerns muster
only: that every broker follows changes, and that they outlive the process.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from muster.coordinator.base import log
from muster.coordinator.server.apis import configs as handlers
from muster.coordinator.server.broker import Broker
from muster.coordinator.server.broker_config_specs import DRAINED
from muster.coordinator.server.broker_configs import Source
from muster.coordinator.server.kept_configs import BY_LISTENER
from muster.coordinator.storage.store import BrokerConfigsRow, StoreBusy, StoreFull
from muster.protocol.compression import Codec
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.configs import ListConfigResourcesRequest
from muster.protocol.messages.data import ProduceRequest
from tests.server.conftest import StartBrokers
from tests.server.test_data import batch
from tests.server.test_metadata import creating, failing_at_the_second
from tests.support.each import each
from tests.support.facts import until
from tests.support.served import Served
from tests.support.wire import Wire
from tests.support.wire_configs import (
    APPEND,
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    DELETE,
    GROUP,
    SET,
    TOPIC,
    Change,
    altering,
    describing,
    replacing,
)

DEADLINE_S: Final = 30.0
LARGE: Final = b"v" * 3_000


def logged(monkeypatch: pytest.MonkeyPatch, level: str) -> io.StringIO:
    """What is logged from now on, from this level."""
    lines = io.StringIO()
    for part, new in (("level", log.LEVELS[level]), ("stream", lines), ("logger", None), ("writer", None)):
        monkeypatch.setattr(log._Output, part, new)
    return lines


@pytest.fixture
async def broker(start_brokers: StartBrokers) -> Broker:
    """One broker with the topic "t"."""
    broker = (await start_brokers()).brokers[0]
    await broker.catalogue.create("t")
    return broker


@pytest.fixture
async def wire(broker: Broker) -> Any:
    async with await Wire.connect(broker.port) as wire:
        yield wire


async def described(wire: Wire, type: int, name: str, version: int = 4, **options: Any) -> dict[str, Any]:
    """The configs of one resource by name."""
    (result,) = (await wire.call(describing((type, name), **options), version)).results
    assert (result.error_code, result.resource_type, result.resource_name) == (0, type, name)
    assert [each.name for each in result.configs] == sorted(each.name for each in result.configs)
    return {each.name: each for each in result.configs}


async def value(wire: Wire, type: int, name: str, config: str) -> tuple[str | None, int]:
    """Value and source of one config."""
    found = (await described(wire, type, name, keys=[config]))[config]
    return found.value, found.config_source


async def alter(wire: Wire, type: int, name: str, *changes: Change, **options: Any) -> int:
    """Alter configs and return the error code."""
    (answer,) = (await wire.call(altering((type, name, changes), **options), 1)).responses
    assert (answer.resource_type, answer.resource_name) == (type, name)
    assert (answer.error_message is None) is (answer.error_code == 0)
    code: int = answer.error_code
    return code


async def produce(wire: Wire, data: bytes, partition: int = 0, codec: Codec = Codec.NONE) -> int:
    """Produce a batch and return the error code."""
    part = ProduceRequest.PartitionProduceData(index=partition, records=batch(data, codec=codec))
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[part])
    response = await wire.call(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic]), 9)
    code: int = response.responses[0].partition_responses[0].error_code
    return code


async def becomes(ask: Callable[[], Awaitable[object]], wanted: object) -> None:
    """Ask again until the answer is `wanted`."""
    async with asyncio.timeout(DEADLINE_S):
        while await ask() != wanted:  # noqa: ASYNC110 - facts are not events, and a turn costs nothing
            await asyncio.sleep(0)


# --- describing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 5))
async def test_a_topic_is_described_in_every_version(wire: Wire, version: int) -> None:
    options: dict[str, Any] = {"synonyms": True} | ({"documentation": True} if version >= 3 else {})
    found = await described(wire, TOPIC, "t", version, **options)
    policy = found["cleanup.policy"]
    assert (policy.value, policy.config_source, policy.read_only, policy.is_sensitive) == (
        "delete",
        5,
        False,
        False,
    )
    assert [(each.name, each.value, each.source) for each in policy.synonyms] == [
        ("log.cleanup.policy", "delete", 5)
    ]
    assert policy.config_type == (7 if version >= 3 else 0)
    assert "compact" in policy.documentation if version >= 3 else policy.documentation == ""
    assert "internal.segment.bytes" not in found


async def test_synonyms_and_documentation_come_only_when_asked_for(wire: Wire) -> None:
    for type, name in ((TOPIC, "t"), (BROKER, "1")):
        for config in (await described(wire, type, name)).values():
            assert config.synonyms == []
            assert config.documentation is None
        for config in (await described(wire, type, name, documentation=True)).values():
            assert config.documentation.endswith(".")


async def test_only_the_configs_asked_for_are_described(wire: Wire) -> None:
    keys = ["retention.ms", "no.such.config"]
    assert list(await described(wire, TOPIC, "t", keys=keys)) == ["retention.ms"]
    assert list(await described(wire, BROKER, "1", keys=["node.id"])) == ["node.id"]
    assert list(await described(wire, BROKER_LOGGER, "1", keys=keys)) == []
    # No keys means all keys, as in Kafka.
    assert await described(wire, TOPIC, "t", keys=[]) == await described(wire, TOPIC, "t")


async def test_the_brokers_own_settings_are_the_sources_of_what_topics_inherit(
    start_brokers: StartBrokers, tmp_path: Path
) -> None:
    brokers = await start_brokers(
        ephemeral=False, data=str(tmp_path / "data"), log_retention_ms=99, message_max_bytes=77, rack="r1"
    )
    async with await Wire.connect(brokers.brokers[0].port) as wire:
        (created,) = (await wire.call(creating("t"), 7)).topics
        told = {each.name: (each.value, each.config_source) for each in created.configs}
        assert (told["retention.ms"], told["max.message.bytes"]) == (("99", 4), ("77", 4))
        found = await described(wire, TOPIC, "t", synonyms=True)
        assert {name: (each.value, each.config_source) for name, each in found.items()} == told
        assert [(each.name, each.value, each.source) for each in found["retention.ms"].synonyms] == [
            ("log.retention.ms", "99", 4),
            ("log.retention.hours", "168", 5),
        ]
        own = await described(wire, BROKER, "1")
        assert {name: own[name].value for name in ("broker.rack", "log.dirs", "node.id", "listeners")} == {
            "broker.rack": "r1",
            "log.dirs": str(tmp_path / "data"),
            "node.id": "1",
            "listeners": f"PLAINTEXT://127.0.0.1:{brokers.brokers[0].port}",
        }


async def test_resources_are_answered_one_by_one_and_in_order(wire: Wire) -> None:
    asked = [(TOPIC, "t"), (TOPIC, "nobody"), (BROKER, "7"), (99, "x"), (GROUP, "g"), (TOPIC, "t")]
    results = (await wire.call(describing(*asked), 4)).results
    assert [(each.resource_type, each.resource_name) for each in results] == asked
    assert [each.error_code for each in results] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
        ErrorCode.NONE,
    ]
    assert [bool(each.error_message) for each in results] == [False, True, True, True, False, False]
    assert results[0] == results[-1]


async def test_a_response_describes_so_many_configs_at_most(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "CONFIGS_DESCRIBED_MAX", 80)
    results = (await wire.call(describing(*[(TOPIC, "t")] * 4), 4)).results
    assert [each.error_code for each in results] == [0, 0, *[ErrorCode.INVALID_REQUEST] * 2]
    assert "80 configs" in results[2].error_message
    few = (await wire.call(describing(*[(TOPIC, "t")] * 4, keys=["retention.ms"]), 4)).results
    assert [len(each.configs) for each in few] == [1, 1, 1, 1]


async def test_long_values_count_for_more(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    throttled = ",".join(["1:1"] * 5_000)  # 19,999 characters, and again as its own synonym
    assert await alter(wire, TOPIC, "t", ("leader.replication.throttled.replicas", SET, throttled)) == 0
    monkeypatch.setattr(handlers, "CONFIGS_DESCRIBED_MAX", 500)
    asked = [(TOPIC, "t")] * 3
    for synonyms, described in ((False, 2), (True, 1)):
        results = (await wire.call(describing(*asked, synonyms=synonyms), 4)).results
        assert [bool(each.configs) for each in results] == [index < described for index in range(3)]
    few = (await wire.call(describing(*asked, keys=["retention.ms"]), 4)).results
    assert [len(each.configs) for each in few] == [1, 1, 1]


async def test_a_list_cannot_grow_beyond_what_can_be_described(wire: Wire) -> None:
    name = "leader.replication.throttled.replicas"
    for first in range(0, 3_000, 1_000):
        more = ",".join(f"{number}:10000" for number in range(10_000 + first, 11_000 + first))
        code = await alter(wire, TOPIC, "t", (name, APPEND, more))
        assert code == (0 if first < 2_000 else ErrorCode.INVALID_CONFIG)
    assert len((await value(wire, TOPIC, "t", name))[0] or "") == 23_999


# --- topics -------------------------------------------------------------------------------------------------


async def test_topic_configs_are_altered_in_every_version(wire: Wire) -> None:
    for version in range(2):
        request = altering((TOPIC, "t", [("retention.ms", SET, str(version))]))
        assert [each.error_code for each in (await wire.call(request, version)).responses] == [0]
        assert await value(wire, TOPIC, "t", "retention.ms") == (str(version), 1)
    for version in range(3):
        request = replacing((TOPIC, "t", {"segment.ms": str(version + 1)}))
        assert [each.error_code for each in (await wire.call(request, version)).responses] == [0]
        assert await value(wire, TOPIC, "t", "segment.ms") == (str(version + 1), 1)
        assert await value(wire, TOPIC, "t", "retention.ms") == ("604800000", 5)


async def test_validation_changes_nothing(wire: Wire) -> None:
    before = await described(wire, TOPIC, "t"), await described(wire, BROKER, "1")
    assert await alter(wire, TOPIC, "t", ("retention.ms", SET, "5"), validate_only=True) == 0
    assert await alter(wire, BROKER, "1", ("log.retention.ms", SET, "5"), validate_only=True) == 0
    assert await alter(wire, BROKER_LOGGER, "1", ("root", SET, "DEBUG"), validate_only=True) == 0
    await wire.call(replacing((TOPIC, "t", {"retention.ms": "5"}), validate_only=True), 2)
    assert (await described(wire, TOPIC, "t"), await described(wire, BROKER, "1")) == before
    assert log.level() != "debug"


@pytest.mark.parametrize(
    ("type", "resource", "name"),
    [
        (TOPIC, "t", "retention.ms"),
        (BROKER, "", "log.retention.ms"),
        (BROKER, "1", "log.retention.ms"),
        (GROUP, "g", "consumer.session.timeout.ms"),
    ],
)
async def test_the_log_says_what_was_altered_and_not_what_was_repeated(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, type: int, resource: str, name: str
) -> None:
    said: list[tuple[str, str, list[str]]] = []

    class Lines:
        def info(self, event: str, *, node: int, resource: str, name: str, configs: list[str]) -> None:
            said.append((event, name, configs))

    monkeypatch.setattr(handlers, "_log", Lines())
    changes = [(name, SET, "50000"), (name, SET, "50000"), (name, SET, "50001"), (name, DELETE, None)]
    for change in [*changes, changes[-1]]:
        assert await alter(wire, type, resource, change) == 0
    assert said == [("configs altered", resource, [name])] * 3


async def test_of_one_resource_all_is_changed_or_nothing_and_the_others_go_on(wire: Wire) -> None:
    await wire.call(creating("other"), 7)
    half = [("retention.ms", SET, "5"), ("segment.ms", SET, "0")]
    request = altering((TOPIC, "t", half), (TOPIC, "other", half[:1]), (BROKER, "", [("nobody", SET, "1")]))
    answers = (await wire.call(request, 1)).responses
    assert [each.error_code for each in answers] == [ErrorCode.INVALID_CONFIG, 0, ErrorCode.INVALID_CONFIG]
    assert await value(wire, TOPIC, "t", "retention.ms") == ("604800000", 5)
    assert await value(wire, TOPIC, "other", "retention.ms") == ("5", 1)


async def test_open_partitions_follow_their_topics_configs(wire: Wire) -> None:
    assert await produce(wire, LARGE) == 0
    assert await alter(wire, TOPIC, "t", ("max.message.bytes", SET, "2000")) == 0
    assert await produce(wire, LARGE) == ErrorCode.MESSAGE_TOO_LARGE
    assert await alter(wire, TOPIC, "t", ("max.message.bytes", DELETE, None)) == 0
    assert await produce(wire, LARGE) == 0


async def test_what_a_batch_may_unpack_to_follows_the_topics_configs(wire: Wire) -> None:
    assert await alter(wire, TOPIC, "t", ("max.decompressed.message.bytes", SET, "2000")) == 0
    assert await produce(wire, LARGE, codec=Codec.GZIP) == ErrorCode.INVALID_RECORD
    assert await produce(wire, LARGE) == 0  # it is not compressed, so nothing is decompressed
    assert await alter(wire, TOPIC, "t", ("max.decompressed.message.bytes", SET, "4000")) == 0
    assert await produce(wire, LARGE, codec=Codec.GZIP) == 0
    huge = LARGE * 100  # slow validations take another path
    assert await produce(wire, huge, codec=Codec.GZIP) == ErrorCode.INVALID_RECORD


async def test_a_broker_is_drained_by_a_config_of_its_own(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(brokers=2)
    first, second = brokers.brokers

    def held(broker: Broker) -> int:
        return sum(grant.node_id == broker.node_id for grant in first.topology.holders.values())

    async with await Wire.connect(second.port) as wire:
        assert await value(wire, BROKER, "2", DRAINED) == ("false", Source.DEFAULT)
        assert await alter(wire, BROKER, "2", (DRAINED, SET, "TRUE")) == 0
        assert await value(wire, BROKER, "2", DRAINED) == ("true", Source.DYNAMIC_BROKER)
        await until(lambda: held(second) == 0 and held(first) == len(first.topology.leases))
        assert first.topology.nodes[2].drained
        assert not first.topology.nodes[1].drained
        assert await alter(wire, BROKER, "2", (DRAINED, DELETE, None)) == 0
        await until(lambda: held(second) > 0)
        assert not first.topology.nodes[2].drained


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("", (DRAINED, SET, "true")),
        ("1", (DRAINED, SET, "yes")),
        ("1", (DRAINED, SET, "")),
        ("1", (DRAINED, APPEND, "true")),
        ("2", (DRAINED, SET, "true")),
    ],
)
async def test_who_is_drained_is_one_broker_and_says_true_or_false(
    wire: Wire, name: str, change: Any
) -> None:
    code = ErrorCode.INVALID_CONFIG if change[1] == APPEND else ErrorCode.INVALID_REQUEST
    assert await alter(wire, BROKER, name, change) == code
    assert await value(wire, BROKER, "1", DRAINED) == ("false", Source.DEFAULT)


async def test_retention_follows_the_topics_configs(start_brokers: StartBrokers) -> None:
    broker = (await start_brokers(log_retention_check_interval_ms=20, log_retention_ms=-1)).brokers[0]
    topic = await broker.catalogue.create("t", configs={"internal.segment.bytes": "1000"})
    async with await Wire.connect(broker.port) as wire:
        for _ in range(4):
            assert await produce(wire, b"v" * 900) == 0

        async def range_() -> tuple[int, int]:
            return await broker.partitions.offsets(topic, 0)

        assert await range_() == (0, 4)
        assert await alter(wire, TOPIC, "t", ("retention.bytes", SET, "900")) == 0
        await becomes(range_, (3, 4))


async def test_partitions_of_other_brokers_follow_too(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(brokers=3)
    topic = await brokers.brokers[0].catalogue.create("t", partitions=8)
    leaders = {index: brokers.brokers[0].topology.leader(topic.topic_id, index).node_id for index in range(8)}
    assert len(set(leaders.values())) > 1
    for broker in brokers.brokers:
        await broker.catalogue.refresh()
    async with await Wire.connect(brokers.brokers[0].port) as wire:
        assert await alter(wire, TOPIC, "t", ("max.message.bytes", SET, "2000")) == 0
    for index, leader in leaders.items():
        async with await Wire.connect(brokers.brokers[leader - 1].port) as wire:
            await becomes(lambda wire=wire, i=index: produce(wire, LARGE, i), ErrorCode.MESSAGE_TOO_LARGE)  # type: ignore[misc]
            assert await value(wire, TOPIC, "t", "max.message.bytes") == ("2000", 1)


async def test_a_change_that_does_not_fit_on_the_disk_is_refused_and_not_made(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: Any, **__: Any) -> None:
        raise StoreFull("database or disk is full")

    monkeypatch.setattr(log._Output, "level", 99)
    for change in ("update_topic", "update_broker_configs"):
        monkeypatch.setattr(broker._store, change, full)
    assert await alter(wire, TOPIC, "t", ("retention.ms", SET, "5")) == ErrorCode.KAFKA_STORAGE_ERROR
    assert await alter(wire, BROKER, "", ("log.retention.ms", SET, "5")) == ErrorCode.KAFKA_STORAGE_ERROR
    assert await value(wire, TOPIC, "t", "retention.ms") == ("604800000", 5)


async def test_what_was_altered_before_the_store_failed_is_told_so(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["t", "u", "v", "w"]
    for name in names[1:]:
        await broker.catalogue.create(name)
    for version, request in (
        (1, altering(*((TOPIC, name, [("retention.ms", SET, "5")]) for name in names))),
        (2, replacing(*((TOPIC, name, {"retention.ms": "6"}) for name in names))),
    ):
        with monkeypatch.context() as patch:
            tried = failing_at_the_second(broker, "update_topic", patch)
            codes = [each.error_code for each in (await wire.call(request, version)).responses]
        assert codes == [0, *[ErrorCode.KAFKA_STORAGE_ERROR] * 3]
        assert len(tried) == 2  # the rest is not tried
    assert await value(wire, TOPIC, "t", "retention.ms") == ("6", 1)
    assert await value(wire, TOPIC, "u", "retention.ms") == ("604800000", 5)


# --- brokers ------------------------------------------------------------------------------------------------


async def test_defaults_of_topics_are_altered_for_all_brokers_and_for_one(
    start_brokers: StartBrokers,
) -> None:
    brokers = await start_brokers(brokers=2)
    await brokers.brokers[0].catalogue.create("t", configs={"retention.ms": "1"})
    async with (
        await Wire.connect(brokers.brokers[0].port) as one,
        await Wire.connect(brokers.brokers[1].port) as two,
    ):
        for wire in one, two:
            await becomes(lambda wire=wire: value(wire, TOPIC, "t", "retention.ms"), ("1", 1))  # type: ignore[misc]
        changes = ("message.max.bytes", SET, "2000"), ("log.retention.ms", SET, "88")
        assert await alter(two, BROKER, "", *changes) == 0
        assert await alter(one, BROKER, "1", ("message.max.bytes", SET, "500")) == 0
        for wire, told in ((one, ("500", 2)), (two, ("2000", 3))):
            await becomes(lambda wire=wire: value(wire, TOPIC, "t", "max.message.bytes"), told)  # type: ignore[misc]
            await becomes(lambda wire=wire: value(wire, BROKER, "", "message.max.bytes"), ("2000", 3))  # type: ignore[misc]
            assert await value(wire, TOPIC, "t", "retention.ms") == ("1", 1)
        # Topics are created with them, too.
        (created,) = (await two.call(creating("late"), 7)).topics
        told_at_once = {each.name: (each.value, each.config_source) for each in created.configs}
        assert (told_at_once["retention.ms"], told_at_once["max.message.bytes"]) == (("88", 3), ("2000", 3))
        assert await alter(one, BROKER, "1", ("message.max.bytes", DELETE, None)) == 0
        assert await value(one, TOPIC, "t", "max.message.bytes") == ("2000", 3)
        (emptied,) = (await two.call(replacing((BROKER, "", {})), 2)).responses
        assert emptied.error_code == 0
        for wire in one, two:
            await becomes(lambda wire=wire: value(wire, TOPIC, "t", "max.message.bytes"), ("1048588", 5))  # type: ignore[misc]
            assert await described(wire, BROKER, "") == {}


async def test_a_broker_s_id_may_be_written_in_several_ways(wire: Wire) -> None:
    assert await alter(wire, BROKER, "01", ("message.max.bytes", SET, "2000")) == 0
    assert await value(wire, BROKER, "+1", "message.max.bytes") == ("2000", 2)
    assert await alter(wire, BROKER, "1", ("message.max.bytes", DELETE, None)) == 0
    assert await value(wire, BROKER, "1", "message.max.bytes") == ("1048588", 5)


async def test_open_partitions_follow_the_brokers_configs(wire: Wire) -> None:
    assert await produce(wire, LARGE) == 0
    assert await alter(wire, BROKER, "1", ("message.max.bytes", SET, "2000")) == 0
    assert await produce(wire, LARGE) == ErrorCode.MESSAGE_TOO_LARGE
    assert await alter(wire, TOPIC, "t", ("max.message.bytes", SET, "10000")) == 0
    assert await produce(wire, LARGE) == 0


async def test_what_can_be_altered_is_what_is_not_read_only(wire: Wire) -> None:
    found = await described(wire, BROKER, "1")
    assert not found["log.retention.ms"].read_only
    assert found["num.partitions"].read_only
    for name, config in found.items():
        text = config.value if config.value is not None else "1000"
        code = await alter(wire, BROKER, "1", (name, SET, text), validate_only=True)
        # Some cannot be set without a listener's prefix, and muster has no classes.
        refused = config.read_only or name in BY_LISTENER or name == "ssl.engine.factory.class"
        assert code == (ErrorCode.INVALID_REQUEST if refused else ErrorCode.NONE), name


@each(
    "name, changes, code",
    [
        ("1", [("no.such.config", SET, "1")], ErrorCode.INVALID_CONFIG),
        ("", [("num.partitions", SET, "1")], ErrorCode.INVALID_REQUEST),
        ("1", [("log.retention.ms", SET, "x")], ErrorCode.INVALID_REQUEST),
        ("1", [("log.retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ("1", [("log.retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        ("2", [("log.retention.ms", SET, "1")], ErrorCode.INVALID_REQUEST),
        ("one", [("log.retention.ms", SET, "1")], ErrorCode.INVALID_REQUEST),
        (
            "1",
            [
                ("log.cleaner.min.compaction.lag.ms", SET, "9"),
                ("log.cleaner.max.compaction.lag.ms", SET, "8"),
            ],
            ErrorCode.INVALID_REQUEST,
        ),
    ],
)
async def test_refused_changes_of_a_broker(
    wire: Wire, name: str, changes: list[Change], code: ErrorCode
) -> None:
    before = await described(wire, BROKER, "1")
    assert await alter(wire, BROKER, name, *changes) == code
    assert await described(wire, BROKER, "1") == before


async def test_changes_made_at_two_brokers_at_once_are_both_kept(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(brokers=2)
    async with (
        await Wire.connect(brokers.brokers[0].port) as one,
        await Wire.connect(brokers.brokers[1].port) as two,
    ):
        codes = await asyncio.gather(
            alter(one, BROKER, "", ("log.retention.ms", SET, "5")),
            alter(two, BROKER, "", ("message.max.bytes", SET, "6")),
        )
        assert codes == [0, 0]
        for wire in one, two:
            await becomes(lambda wire=wire: _names(wire), ["log.retention.ms", "message.max.bytes"])  # type: ignore[misc]


async def test_a_change_that_could_not_be_read_is_read_later(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (await start_brokers(brokers=2)).brokers
    read, failed = two._store.broker_configs, asyncio.Event()

    async def busy() -> Any:
        if not failed.is_set():
            failed.set()
            raise StoreBusy("database is locked")
        return await read()

    monkeypatch.setattr(two._store, "broker_configs", busy)
    monkeypatch.setattr(log._Output, "level", 99)
    async with await Wire.connect(one.port) as wire:
        assert await alter(wire, BROKER, "", ("log.retention.ms", SET, "5")) == 0
    async with asyncio.timeout(DEADLINE_S), await Wire.connect(two.port) as wire:
        await failed.wait()
        await becomes(lambda: _names(wire), ["log.retention.ms"])


async def _names(wire: Wire) -> list[str]:
    return list(await described(wire, BROKER, ""))


async def test_configs_outlive_kill_9(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as served:
        async with await Wire.connect(served.port) as wire:
            assert (await wire.call(creating("t"), 7)).topics[0].error_code == 0
            assert await alter(wire, TOPIC, "t", ("retention.ms", SET, "5")) == 0
            assert await alter(wire, BROKER, "", ("log.segment.bytes", SET, "2000000")) == 0
            assert await alter(wire, BROKER, "1", ("message.max.bytes", SET, "2000")) == 0
        served.kill()
        served.start()
        async with await Wire.connect(served.port) as wire:
            assert await value(wire, TOPIC, "t", "retention.ms") == ("5", 1)
            assert await value(wire, TOPIC, "t", "segment.bytes") == ("2000000", 3)
            assert await value(wire, TOPIC, "t", "max.message.bytes") == ("2000", 2)
            assert await produce(wire, LARGE) == ErrorCode.MESSAGE_TOO_LARGE


# --- configs that Kafka can alter ---------------------------------------------------------------------------


async def test_what_has_no_effect_here_is_kept_and_says_so(wire: Wire) -> None:
    kept = {
        "log.preallocate": "true",
        "num.io.threads": "16",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.internal.ssl.keystore.location": "/keys",
        "listener.name.internal.max.connections": "5",
    }
    assert await alter(wire, BROKER, "1", *((name, SET, text) for name, text in kept.items())) == 0
    found = await described(wire, BROKER, "1", documentation=True)
    for name, text in kept.items():
        assert (found[name].value, found[name].config_source) == (text, Source.DYNAMIC_BROKER)
        assert "without effect" in found[name].documentation
    assert await alter(wire, BROKER, "1", ("sasl.enabled.mechanisms", APPEND, "GSSAPI")) == 0
    assert await value(wire, BROKER, "1", "sasl.enabled.mechanisms") == ("PLAIN,GSSAPI", 2)


async def test_values_are_told_as_kafka_writes_them(wire: Wire) -> None:
    for name, given, told in (
        ("log.cleaner.io.max.bytes.per.second", "1e8", "1.0E8"),
        ("log.cleaner.min.cleanable.ratio", "0.0001", "1.0E-4"),
        ("max.connections", " +500 ", "500"),
        ("sasl.enabled.mechanisms", "PLAIN , GSSAPI", "PLAIN,GSSAPI"),
        ("log.preallocate", "TRUE", "true"),
    ):
        assert await alter(wire, BROKER, "1", (name, SET, given)) == 0
        (found,) = (await described(wire, BROKER, "1", keys=[name], synonyms=True)).values()
        assert (found.value, found.synonyms[0].value) == (told, given)


@pytest.mark.parametrize(
    "name",
    [
        "sasl.jaas.config",
        "listener.name.internal.ssl.key.password",
        "listener.name.internal.plain.sasl.jaas.config",
    ],
)
async def test_passwords_are_kept_and_neither_told_nor_logged(
    wire: Wire, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = logged(monkeypatch, "debug")
    secret = "hunter2-is-a-password"
    assert await alter(wire, BROKER, "1", (name, SET, secret)) == 0
    (found,) = (await described(wire, BROKER, "1", keys=[name], synonyms=True)).values()
    assert (found.value, found.is_sensitive, found.config_source) == (None, True, Source.DYNAMIC_BROKER)
    assert {each.value for each in found.synonyms} == {None}
    for refused in ((name, SET, secret), ("no.such.config", SET, "1")), ((name, APPEND, secret),):
        (answer,) = (await wire.call(altering((BROKER, "1", refused)), 1)).responses
        assert answer.error_code == ErrorCode.INVALID_CONFIG
        assert secret not in answer.error_message
    assert name in lines.getvalue()
    assert secret not in lines.getvalue()


async def test_what_is_of_one_broker_or_listener_is_altered_there_alone(wire: Wire) -> None:
    for broker, name, code in (
        ("", "ssl.client.auth", ErrorCode.INVALID_REQUEST),
        ("", "listener.name.x.ssl.client.auth", ErrorCode.INVALID_REQUEST),
        ("1", "ssl.keystore.location", ErrorCode.INVALID_REQUEST),
        ("", "listener.name.x.max.connections", 0),
        ("1", "listener.name.x.max.connections", 0),
        ("1", "listener.name.x.max.message.bytes", ErrorCode.INVALID_CONFIG),
        ("1", "listener.name.x.plain.ssl.client.auth", ErrorCode.INVALID_CONFIG),
        ("1", "listener.name.x", ErrorCode.INVALID_CONFIG),
        ("1", "listener.name.x.", ErrorCode.INVALID_CONFIG),
    ):
        change = (name, SET, "5" if "connections" in name else "none")
        assert await alter(wire, BROKER, broker, change, validate_only=True) == code, (broker, name)


async def test_configs_of_a_broker_have_a_bound(broker: Broker, wire: Wire) -> None:
    for resource in ("1", ""):
        name = "ssl.truststore.location" if resource else "max.connections"
        changes = [(f"listener.name.l{number}.{name}", SET, "5") for number in range(1_001)]
        assert await alter(wire, BROKER, resource, *changes) == ErrorCode.INVALID_REQUEST
        assert await alter(wire, BROKER, resource, *changes[:1_000]) == 0
        assert await alter(wire, BROKER, resource, changes[-1]) == ErrorCode.INVALID_REQUEST
        assert await alter(wire, BROKER, resource, (changes[0][0], DELETE, None), changes[-1]) == 0
    assert len(broker.configs.altered("1")) == len(broker.configs.altered("")) == 1_000


async def test_a_broker_with_more_configs_than_can_be_set_can_be_cut_down(broker: Broker, wire: Wire) -> None:
    names = [f"listener.name.l{number}.ssl.truststore.location" for number in range(1_010)]
    row = BrokerConfigsRow("1", dict.fromkeys(names, "x"))
    await broker.store.update_broker_configs(row, expected={})
    await broker.configs.refresh()
    assert await alter(wire, BROKER, "1", ("max.connections", SET, "5")) == ErrorCode.INVALID_REQUEST
    assert await alter(wire, BROKER, "1", (names[0], DELETE, None), ("max.connections", SET, "5")) == 0
    assert await alter(wire, BROKER, "1", *((name, DELETE, None) for name in names[1:9])) == 0
    assert len(broker.configs.altered("1")) == 1_002


async def test_a_pool_of_threads_is_at_most_doubled_or_halved_at_once(wire: Wire) -> None:
    for text, code in (("17", 42), ("16", 0), ("7", 42), ("8", 0), ("4", 0), ("2", 0), ("5", 42)):
        assert await alter(wire, BROKER, "1", ("num.io.threads", SET, text)) == code, text


MIN_LAG, MAX_LAG = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"
INTERVAL = "group.consumer.assignment.interval.ms"
DEFAULT_ENTITY, ENTITY_1 = "--entity-default", "--entity-name 1"


@pytest.mark.parametrize(
    ("settings", "rows", "stored", "contradicts", "entity"),
    [
        (
            {"log_cleaner_max_compaction_lag_ms": 3_600_000},
            {"": {MIN_LAG: "7200000"}},
            MIN_LAG,
            f"{MAX_LAG} (3600000)",
            DEFAULT_ENTITY,
        ),
        (
            {"log_cleaner_min_compaction_lag_ms": 3_600_000},
            {"1": {MAX_LAG: "5"}},
            MAX_LAG,
            f"{MIN_LAG} (3600000)",
            ENTITY_1,
        ),
        (
            {"group_consumer_max_assignment_interval_ms": 2_000},
            {"": {INTERVAL: "5000"}},
            INTERVAL,
            "group.consumer.max.assignment.interval.ms (2000)",
            DEFAULT_ENTITY,
        ),
        (
            {},
            {"": {"log.cleaner.dedupe.buffer.size": "1500000"}, "1": {"log.cleaner.threads": "2"}},
            "log.cleaner.threads",
            "log.cleaner.dedupe.buffer.size (1500000)",
            ENTITY_1,
        ),
    ],
)
async def test_a_stored_config_that_contradicts_a_setting_is_named_and_refuses_no_other_change(
    start_brokers: StartBrokers,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    settings: dict[str, int],
    rows: dict[str, dict[str, str]],
    stored: str,
    contradicts: str,
    entity: str,
) -> None:
    kept = {"ephemeral": False, "data": str(tmp_path)}
    before = await start_brokers(**kept)
    for name, configs in rows.items():
        await before.brokers[0].store.update_broker_configs(BrokerConfigsRow(name, configs), expected={})
    await before.stop()
    lines = logged(monkeypatch, "warning")
    (broker,) = (await start_brokers(**kept, **settings)).brokers
    async with await Wire.connect(broker.port) as wire:
        for text in "true", "false":
            assert await alter(wire, BROKER, "1", (DRAINED, SET, text)) == 0
        assert await alter(wire, BROKER, "", ("log.retention.ms", SET, "5")) == 0
        assert (await wire.call(creating("t"), 7)).topics[0].error_code == 0
        assert await alter(wire, TOPIC, "t", ("retention.ms", SET, "5")) == 0
        (line,) = (each for each in lines.getvalue().splitlines() if "contradicts" in each)
        for said in stored, contradicts, f"--entity-type brokers {entity} --delete-config {stored}":
            assert said in line
        worse = {MAX_LAG: "4", "log.cleaner.threads": "3"}.get(stored, "8000000")
        of = "1" if entity == ENTITY_1 else ""
        assert await alter(wire, BROKER, of, (stored, SET, worse)) == ErrorCode.INVALID_REQUEST
        assert await alter(wire, BROKER, of, (stored, DELETE, None)) == 0
        assert lines.getvalue().count("contradicts another") == 1


async def test_a_stored_limit_that_lets_nobody_in_is_named_and_not_in_force(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = logged(monkeypatch, "info")
    row = BrokerConfigsRow("1", {"max.connections.per.ip": "0"})
    await broker.store.update_broker_configs(row, expected={})
    await broker.configs.refresh()
    assert "max.connections.per.ip.overrides (empty)" in lines.getvalue()
    assert "--entity-name 1 --delete-config max.connections.per.ip" in lines.getvalue()
    async with await Wire.connect(broker.port) as wire:
        assert await alter(wire, BROKER, "1", ("max.connections.per.ip", DELETE, None)) == 0


async def test_max_connections_is_followed_while_the_broker_runs(broker: Broker, wire: Wire) -> None:
    assert await alter(wire, BROKER, "1", ("max.connections", SET, "1")) == 0
    async with await Wire.connect(broker.port) as second:
        assert await second.closed()
    assert broker.connections.counts.refused == 1
    assert await alter(wire, BROKER, "1", ("max.connections", DELETE, None)) == 0
    async with await Wire.connect(broker.port) as third:
        assert await value(third, BROKER, "1", "max.connections") == (str(2**31 - 1), Source.DEFAULT)


async def test_upkeep_follows_while_the_broker_runs(broker: Broker, wire: Wire) -> None:
    changes = ("log.cleaner.backoff.ms", SET, "70"), ("producer.id.expiration.ms", SET, "80")
    assert await alter(wire, BROKER, "", *changes) == 0
    upkeep = broker.partitions._upkeep
    assert (upkeep.cleaner_backoff_ms, upkeep.producer_expiration_ms) == (70, 80)
    assert await alter(wire, BROKER, "1", ("producer.id.expiration.ms", SET, "90")) == 0
    assert (upkeep.cleaner_backoff_ms, upkeep.producer_expiration_ms) == (70, 90)
    assert broker.group_configs.in_force.producer_id_expiration_ms == 90


async def test_a_kept_config_that_is_no_longer_known_does_no_harm(broker: Broker, wire: Wire) -> None:
    """A newer muster may have written it to a shared store."""
    await broker.store.update_broker_configs(
        BrokerConfigsRow("", {"of.a.newer.muster": "1", "message.max.bytes": "2000"}), expected={}
    )
    await broker.configs.refresh()
    assert list(await described(wire, BROKER, "")) == ["message.max.bytes"]
    assert "of.a.newer.muster" not in await described(wire, BROKER, "1")


async def test_a_kept_value_that_cannot_be_read_does_no_harm(broker: Broker, wire: Wire) -> None:
    """A newer muster may have written it to a shared store."""
    row = {"compression.type": "newer", "max.connections": "newer", "message.max.bytes": "2000"}
    await broker.store.update_broker_configs(BrokerConfigsRow("", row), expected={})
    await broker.configs.refresh()
    assert list(await described(wire, BROKER, "")) == ["message.max.bytes"]
    assert await value(wire, TOPIC, "t", "compression.type") == ("producer", 5)
    assert await value(wire, TOPIC, "t", "max.message.bytes") == ("2000", 3)


async def test_a_kept_value_that_cannot_be_read_is_named(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older muster took an address that is none."""
    lines = logged(monkeypatch, "info")
    row = {"max.connections.per.ip.overrides": "127.0.0.1:9,300.1.1.1:5", "num.io.threads": "newer"}
    await broker.store.update_broker_configs(BrokerConfigsRow("", row), expected={})
    await broker.configs.refresh()
    await broker.configs.refresh()
    said = [json.loads(line) for line in lines.getvalue().splitlines() if "cannot be read" in line]
    assert [(line["name"], line["value"], line.get("not_allowed")) for line in said] == [
        ("max.connections.per.ip.overrides", "127.0.0.1:9,300.1.1.1:5", "300.1.1.1:5"),
        ("num.io.threads", "newer", None),
    ]
    assert said[0]["takes"].startswith("ADDRESS:NUMBER")


async def test_kept_configs_that_cannot_be_read_stay_when_others_are_altered(
    broker: Broker, wire: Wire
) -> None:
    """A newer muster may have written them to a shared store."""
    newer = {"of.a.newer.muster": "1", "compression.type": "newer", "num.io.threads": "newer"}
    await broker.store.update_broker_configs(BrokerConfigsRow("", newer), expected={})
    await broker.configs.refresh()
    assert await alter(wire, BROKER, "", ("message.max.bytes", SET, "2000")) == 0
    assert await broker.store.broker_configs() == [
        BrokerConfigsRow("", {**newer, "message.max.bytes": "2000"})
    ]
    assert await alter(wire, BROKER, "", ("of.a.newer.muster", SET, "2")) == ErrorCode.INVALID_CONFIG
    assert await alter(wire, BROKER, "", ("compression.type", SET, "newest")) == ErrorCode.INVALID_REQUEST
    assert await alter(wire, BROKER, "", *((name, DELETE, None) for name in newer)) == 0
    assert await broker.store.broker_configs() == [BrokerConfigsRow("", {"message.max.bytes": "2000"})]


# --- log levels, groups, client metrics, lists --------------------------------------------------------------


async def test_the_log_level_is_altered_for_the_running_process(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log._Output, "level", log.LEVELS["warning"])
    assert await value(wire, BROKER_LOGGER, "1", "root") == ("WARN", 6)
    for name, ours in (("DEBUG", "debug"), ("INFO", "info"), ("ERROR", "error"), ("WARN", "warning")):
        assert await alter(wire, BROKER_LOGGER, "1", ("root", SET, name)) == 0
        assert log.level() == ours
        assert await value(wire, BROKER_LOGGER, "1", "root") == (name, 6)
    for change, code in (
        (("root", SET, "debug"), ErrorCode.INVALID_CONFIG),
        (("root", SET, "FATAL"), ErrorCode.INVALID_CONFIG),
        (("other", SET, "DEBUG"), ErrorCode.INVALID_CONFIG),
        (("root", DELETE, None), ErrorCode.INVALID_REQUEST),
        (("root", APPEND, "DEBUG"), ErrorCode.INVALID_REQUEST),
    ):
        assert await alter(wire, BROKER_LOGGER, "1", change) == code
    both = ("root", SET, "DEBUG"), ("other", SET, "DEBUG")
    assert await alter(wire, BROKER_LOGGER, "1", *both) == ErrorCode.INVALID_CONFIG
    (replaced,) = (await wire.call(replacing((BROKER_LOGGER, "1", {"root": "DEBUG"})), 2)).responses
    assert replaced.error_code == ErrorCode.INVALID_REQUEST
    assert log.level() == "warning"


async def test_what_muster_has_no_configs_of_has_none_and_takes_none(wire: Wire) -> None:
    type, config, code = CLIENT_METRICS, "interval.ms", ErrorCode.INVALID_REQUEST
    assert await described(wire, type, "g") == {}
    assert await alter(wire, type, "g") == 0
    assert await alter(wire, type, "g", (config, DELETE, None)) == 0
    assert await alter(wire, type, "g", (config, SET, "50000")) == code
    (replaced,) = (await wire.call(replacing((type, "g", {config: "50000"})), 2)).responses
    assert (replaced.error_code, config in replaced.error_message) == (code, True)
    assert await alter(wire, type, "", (config, SET, "50000")) == ErrorCode.INVALID_REQUEST


async def test_what_has_configs_is_listed_by_type(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(brokers=2)
    await brokers.brokers[0].catalogue.create("t")

    async with await Wire.connect(brokers.brokers[0].port) as wire:

        async def listed(*types: int, version: int = 1) -> tuple[int, set[tuple[int, str]]]:
            response = await wire.call(ListConfigResourcesRequest(resource_types=list(types)), version)
            found = [(each.resource_type, each.resource_name) for each in response.config_resources]
            assert len(set(found)) == len(found)
            return response.error_code, set(found)

        nodes = {(BROKER, "1"), (BROKER, "2")}
        assert (await listed(BROKER)) == (0, nodes)
        assert (await listed(BROKER, BROKER)) == (0, nodes)
        topics = (await listed(TOPIC))[1]
        assert (TOPIC, "t") in topics
        loggers = {(BROKER_LOGGER, name) for _, name in nodes}
        assert (await listed()) == (0, nodes | topics | loggers)
        assert (await listed(GROUP, CLIENT_METRICS)) == (0, set())
        assert (await listed(TOPIC, 99)) == (ErrorCode.UNSUPPORTED_VERSION, set())
        assert (await listed(version=0)) == (0, set())
