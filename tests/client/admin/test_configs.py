"""Configs: described and altered, of topics, brokers and groups."""

from __future__ import annotations

import pytest

from muster.client.admin.client import Admin
from muster.client.admin.configs import Append, ConfigResource, ConfigSource, ResourceType, Subtract
from muster.coordinator import testing
from muster.protocol.errors import ErrorCode, KafkaError
from tests.support.leases import TERM_MS

ORDERS = ConfigResource.of_topic("orders")


async def value(admin: Admin, name: str) -> tuple[str | None, ConfigSource]:
    found = (await admin.describe_configs([ORDERS], names=[name])).raise_for_failures()[ORDERS]
    assert list(found) == [name]
    return found[name].value, found[name].source


async def test_a_config_is_set_changed_and_let_go(admin: Admin) -> None:
    await admin.create_topic("orders")
    assert await value(admin, "cleanup.policy") == ("delete", ConfigSource.DEFAULT)
    altered = await admin.alter_configs({ORDERS: {"cleanup.policy": Append("compact"), "segment.ms": "5000"}})
    assert altered == {ORDERS: None}
    assert await value(admin, "cleanup.policy") == ("delete,compact", ConfigSource.TOPIC)
    assert await value(admin, "segment.ms") == ("5000", ConfigSource.TOPIC)
    await admin.alter_configs({ORDERS: {"cleanup.policy": Subtract("delete"), "segment.ms": None}})
    assert await value(admin, "cleanup.policy") == ("compact", ConfigSource.TOPIC)
    assert await value(admin, "segment.ms") == ("604800000", ConfigSource.DEFAULT)


async def test_a_config_that_is_no_text_is_named(admin: Admin) -> None:
    for change in (5, Append(5)):  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"config retention.ms: it takes text such as '5', not 5"):
            await admin.alter_configs({ORDERS: {"retention.ms": change}})  # type: ignore[dict-item]


async def test_what_is_only_validated_changes_nothing(admin: Admin) -> None:
    await admin.create_topic("orders")
    changes = {ORDERS: {"segment.ms": "5000"}}
    assert await admin.alter_configs(changes, validate_only=True) == {ORDERS: None}
    assert (await value(admin, "segment.ms"))[1] == ConfigSource.DEFAULT


async def test_a_broker_is_asked_about_itself() -> None:
    with testing.Cluster(3, lease_term_ms=TERM_MS) as brokers:
        async with Admin(brokers.bootstrap) as admin:
            each = [ConfigResource.of_broker(node) for node in (1, 2, 3)]
            found = await admin.describe_configs(
                [*each, ConfigResource.of_broker()], names=["advertised.listeners", "num.partitions"]
            )
            told = found.raise_for_failures()
            assert told.pop(ConfigResource.of_broker()) == {}
            assert list(told) == each
            altered = await admin.alter_configs(
                {
                    ConfigResource.of_broker(2): {"log.retention.ms": "7000"},
                    ConfigResource.of_broker(3): {"no.such": "1"},
                }
            )
            assert altered[ConfigResource.of_broker(2)] is None
            for name in ("9", "one"):
                resource = ConfigResource(ResourceType.BROKER, name)
                outcomes = await admin.describe_configs([resource])
                assert outcomes.failed[resource].why == f"broker {name} is not in the cluster"
            refused = altered[ConfigResource.of_broker(3)]
            assert isinstance(refused, KafkaError)
            assert refused.code == ErrorCode.INVALID_CONFIG


async def test_synonyms_and_documentation_come_when_they_are_asked_for(admin: Admin) -> None:
    await admin.create_topic("orders", configs={"retention.ms": "5000"})
    (plain,) = (await admin.describe_configs([ORDERS], names=["retention.ms"])).raise_for_failures().values()
    assert (plain["retention.ms"].synonyms, plain["retention.ms"].documentation) == ((), None)
    (full,) = (
        (await admin.describe_configs([ORDERS], names=["retention.ms"], synonyms=True, documentation=True))
        .raise_for_failures()
        .values()
    )
    config = full["retention.ms"]
    assert config.synonyms[0] == ("retention.ms", "5000", ConfigSource.TOPIC)
    assert config.documentation
    assert (config.read_only, config.sensitive) == (False, False)


async def test_each_resource_has_its_outcome(admin: Admin) -> None:
    await admin.create_topic("orders")
    nope, group = ConfigResource.of_topic("nope"), ConfigResource.of_group("billing")
    outcomes = await admin.describe_configs([nope, ORDERS, group, ConfigResource.of_broker(1)])
    assert list(outcomes) == [nope, ORDERS, group, ConfigResource.of_broker(1)]
    assert list(outcomes.failed) == [nope]
    assert outcomes.failed[nope].code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    altered = await admin.alter_configs({ORDERS: {"retention.ms": "soon"}, nope: {"retention.ms": "1"}})
    assert {name: each.code for name, each in altered.failed.items()} == {
        ORDERS: ErrorCode.INVALID_CONFIG,
        nope: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_how_resources_are_called() -> None:
    assert ConfigResource.of_broker(1) == (ResourceType.BROKER, "1")
    assert [
        str(each) for each in (ORDERS, ConfigResource.of_broker(), ConfigResource.of_broker_logger(2))
    ] == ["topic orders", "every broker", "broker logger 2"]
