"""`Broker(security=...)`: which clients are let in with `client_settings`, and which are not."""

from __future__ import annotations

import gc
import json
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest

from muster.client import Admin, AuthenticationFailed, Consumer, Producer
from muster.client.errors import ConnectionLost, Unreachable
from muster.coordinator.config import SettingError
from muster.coordinator.testing import Broker, Cluster
from tests.client.failing import failure
from tests.support.ports import free_ports, has_ipv6

SECURED = ["SSL", "SASL_PLAINTEXT", "SASL_SSL"]


async def round_trip(settings: dict[str, Any]) -> list[bytes | None]:
    """What a consumer of a group reads after one record is produced."""
    async with Producer(**settings) as producer:
        await producer.send("orders", b"tea")
    options = {"topics": ["orders"], "group_id": "billing", "auto_offset_reset": "earliest"}
    async with Consumer(**settings, **options) as consumer:
        async for record in consumer:
            return [record.value]
    return []


@pytest.mark.parametrize("security", ["PLAINTEXT", *SECURED])
async def test_a_client_with_its_settings_is_let_in(security: str) -> None:
    async with Broker(security=security) as broker:
        assert await round_trip(broker.client_settings("muster")) == [b"tea"]


@pytest.mark.parametrize("security", SECURED)
async def test_a_broker_has_the_host_and_the_advertised_address_that_it_is_given(security: str) -> None:
    port = free_ports(1)
    if has_ipv6():
        async with Broker(security=security, host="::1") as broker:
            assert broker.bootstrap == f"[::1]:{broker.port}"
            assert await round_trip(broker.client_settings("muster")) == [b"tea"]
    async with Broker(security=security, host="0.0.0.0", port=port, advertised=f"localhost:{port}") as broker:
        assert broker.bootstrap == f"localhost:{port}"
        assert await round_trip(broker.client_settings("muster")) == [b"tea"]
    with pytest.raises(SettingError, match=r"^advertised: 'nowhere' is not allowed; it takes HOST:PORT"):
        Broker(security=security, advertised="nowhere")
    with pytest.raises(SettingError, match=r"^advertised: 'here:1' is not allowed; it takes nothing beside "):
        Broker(security=security, advertised="here:1", advertised_listeners=f"{security}://there:2")


@pytest.mark.parametrize("security", SECURED)
async def test_without_them_it_is_not(security: str) -> None:
    async with Broker(security=security) as broker, Admin(broker.bootstrap) as admin:
        why = await failure(lambda: admin.describe_cluster(timeout=1), "closed the connection")
        assert isinstance(why, (Unreachable, ConnectionLost))


async def test_a_wrong_password_is_told_at_once() -> None:
    async with Broker(security="SASL_SSL") as broker:
        settings = broker.client_settings("muster") | {"sasl_plain_password": "guessed"}
        with pytest.raises(
            AuthenticationFailed, match="invalid credentials with SASL mechanism SCRAM-SHA-256"
        ):
            async with Admin(**settings) as admin:
                await admin.describe_cluster()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_mechanisms(mechanism: str) -> None:
    async with Broker(security="SASL_PLAINTEXT") as broker:
        assert await round_trip(broker.client_settings("muster") | {"sasl_mechanism": mechanism}) == [b"tea"]


async def test_a_cluster_whose_coordinator_dies() -> None:
    async with Cluster(2, security="SASL_SSL") as cluster:
        settings = cluster.client_settings("muster")
        assert await round_trip(settings) == [b"tea"]
        coordinator = cluster.coordinator_of("billing")
        assert coordinator is not None
        await cluster.kill(coordinator)
        assert await round_trip(settings) == [b"tea"]


async def test_a_snapshot_has_the_user() -> None:
    async with Broker(security="SASL_PLAINTEXT") as broker:
        await broker.restore(await broker.snapshot())
        assert await round_trip(broker.client_settings("muster")) == [b"tea"]


def test_what_each_client_is_started_with() -> None:
    with Broker(security="SASL_SSL") as broker:
        confluent = broker.client_settings("confluent-kafka")
        java = broker.client_settings("java")
        assert confluent["security.protocol"] == java["security.protocol"] == "SASL_SSL"
        assert Path(confluent["ssl.ca.location"]).exists()
        assert confluent["sasl.password"] in java["sasl.jaas.config"]
        assert isinstance(broker.client_settings("aiokafka")["ssl_context"], ssl.SSLContext)
        assert broker.client_settings("kafka-python") == broker.client_settings("muster")
        kafkajs = json.loads(json.dumps(broker.client_settings("kafkajs")))
        assert kafkajs["brokers"] == [broker.bootstrap]
        assert kafkajs["sasl"]["password"] == confluent["sasl.password"]


def test_its_files_go_with_it() -> None:
    with Broker(security="SSL") as broker:
        folder = Path(broker.client_settings("muster")["ssl_cafile"]).parent
        assert {each.name for each in folder.iterdir()} >= {"ca.pem", "client.pem", "server-both.pem"}
    del broker
    gc.collect()
    assert not folder.exists()


def test_without_security_a_client_needs_an_address_alone() -> None:
    with Broker() as broker:
        assert broker.client_settings("muster") == {
            "bootstrap_servers": broker.bootstrap,
            "security_protocol": "PLAINTEXT",
        }


def test_what_is_not_known_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        TypeError, match="security='TLS' is not one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"
    ):
        Broker(security="TLS")
    with (
        Broker() as broker,
        pytest.raises(TypeError, match="'sarama' are not known; choose from confluent-kafka"),
    ):
        broker.client_settings("sarama")
    monkeypatch.setitem(sys.modules, "trustme", None)
    with pytest.raises(ImportError, match=r"pip install 'muster-kafka\[security\]'"):
        Broker(security="SASL_SSL")
