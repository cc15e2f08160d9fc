"""Several listeners: clients of each are given the addresses reached through it."""

from __future__ import annotations

import socket

import pytest

from muster.coordinator.base.endpoints import Endpoint, reached_at
from muster.coordinator.config import SettingError, Settings
from muster.coordinator.server.listener import BindError
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.data import FetchRequest, ProduceRequest
from muster.protocol.messages.metadata import DescribeClusterRequest, FindCoordinatorRequest, MetadataRequest
from tests.server.conftest import StartBrokers
from tests.server.test_configs import BROKER, described
from tests.support.each import each
from tests.support.ports import free_ports
from tests.support.wire import Wire

LISTENERS = "INSIDE://127.0.0.1:0,OUTSIDE://localhost:0"
ADVERTISED = "INSIDE://muster:9092,OUTSIDE://[::1]:19092"
TOLD = {
    "INSIDE": {(1, "muster", 9092), (2, "muster", 9093)},
    "OUTSIDE": {(1, "::1", 19092), (2, "::1", 19093)},
}


@pytest.mark.parametrize("by", TOLD)
async def test_every_answer_has_the_addresses_of_the_listener_that_was_asked(
    start_brokers: StartBrokers, by: str
) -> None:
    brokers = await start_brokers(brokers=2, listeners=LISTENERS, advertised_listeners=ADVERTISED)
    first, second = brokers.brokers
    topic = await first.catalogue.create("t", partitions=8)
    await second.catalogue.refresh()
    index = next(index for index in range(8) if first.topology.leader(topic.topic_id, index).node_id == 1)
    (port,) = ({each.bound.listener: each.bound.port for each in second.listening}[by],)
    told = TOLD[by]
    (leader,) = (each for each in told if each[0] == 1)
    async with await Wire.connect(port) as wire:
        metadata = await wire.call(MetadataRequest(topics=[]), 12)
        assert {(each.node_id, each.host, each.port) for each in metadata.brokers} == told
        cluster = await wire.call(
            DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=1), 2
        )
        assert {(each.broker_id, each.host, each.port) for each in cluster.brokers} == told
        old = await wire.call(FindCoordinatorRequest(key="g", key_type=0), 3)
        new = await wire.call(FindCoordinatorRequest(coordinator_keys=["g"], key_type=0), 4)
        (found,) = new.coordinators
        assert (found.node_id, found.host, found.port) == (old.node_id, old.host, old.port)
        assert (old.node_id, old.host, old.port) in told
        part = ProduceRequest.PartitionProduceData(index=index, records=None)
        data = ProduceRequest.TopicProduceData(name="t", topic_id=topic.topic_id, partition_data=[part])
        produced = await wire.call(ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=[data]), 12)
        assert [(each.node_id, each.host, each.port) for each in produced.node_endpoints] == [leader]
        wanted = FetchRequest.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
        fetch = FetchRequest.FetchTopic(topic="t", topic_id=topic.topic_id, partitions=[wanted])
        fetched = await wire.call(FetchRequest(max_wait_ms=0, min_bytes=1, topics=[fetch]), 16)
        assert fetched.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert [(each.node_id, each.host, each.port) for each in fetched.node_endpoints] == [leader]
        own = await described(wire, BROKER, "2")
        values = {name: each.value for name, each in own.items()}
        assert values["advertised.listeners"] == "INSIDE://muster:9093,OUTSIDE://[::1]:19093"
        assert values["listeners"] == ",".join(str(each.bound) for each in second.listening)


async def test_without_advertised_addresses_the_bound_ones_are_told(start_brokers: StartBrokers) -> None:
    port = free_ports(4)
    listeners = f"A://127.0.0.1:{port},B://0.0.0.0:{port + 2}"
    brokers = await start_brokers(brokers=2, listeners=listeners)
    assert brokers.bootstrap == f"127.0.0.1:{port},127.0.0.1:{port + 1}"
    async with await Wire.connect(port + 3) as wire:
        metadata = await wire.call(MetadataRequest(topics=[]), 12)
        told = {(each.node_id, each.host, each.port) for each in metadata.brokers}
        assert told == {(1, "localhost", port + 2), (2, "localhost", port + 3)}


async def test_a_broker_that_is_started_again_has_the_ports_it_had(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(listeners=LISTENERS)
    before = brokers.brokers[0].listening
    await brokers.kill_one(0)
    await brokers.start_one(0)
    assert brokers.brokers[0].listening == before
    assert all(each.bound.port for each in before)


async def test_a_listener_that_finds_its_port_taken_leaves_none_behind(start_brokers: StartBrokers) -> None:
    port = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        second = taken.getsockname()[1]
        said = rf"127\.0\.0\.1:{second} is in use; choose another port in --listeners"
        with pytest.raises(BindError, match=said):
            await start_brokers(listeners=f"A://127.0.0.1:{port},B://127.0.0.1:{second}")
    await start_brokers(port=port)


async def test_a_node_without_the_listener_is_told_by_its_first(start_brokers: StartBrokers) -> None:
    (broker,) = (await start_brokers()).brokers
    node = (await broker.store.nodes())[0]
    assert reached_at(node, "OUTSIDE") == Endpoint("", "127.0.0.1", broker.port)


@each(
    "settings, refusal",
    [
        ({"listeners": "127.0.0.1:9092"}, r"^listeners: .* it takes NAME://HOST:PORT\[,\.\.\.\]$"),
        ({"listeners": "A://h:9092,"}, r"^listeners: "),
        ({"listeners": "A://h:9092,A://h:9093"}, "^listeners: .* each listener once"),
        ({"listeners": "A://h:9092,B://h:9094", "brokers": 3}, "^listeners: .* ports at least 3 apart"),
        ({"listeners": "A://h:65534", "brokers": 3}, r"^listeners: .* at most 65533 with 3 brokers"),
        ({"advertised_listeners": "A://h:9092"}, "^advertised_listeners: .* --listeners .* not given"),
        (
            {"listeners": "A://h:9092", "advertised_listeners": "B://h:9092"},
            r"^advertised_listeners: .* the listeners of --listeners \(A\)",
        ),
        (
            {"listeners": "A://h:9092", "advertised_listeners": "A://h:0"},
            "^advertised_listeners: ",
        ),
        ({"listeners": "A://h:9092", "advertised": "h:9092"}, "^advertised: .* --advertised-listeners"),
        ({"listeners": "SASLSSL://h:9092"}, "^listeners: .* SASLSSL is neither"),
        (
            {"listeners": "A://h:9092,SASL_PLAINTEXT://h:9093"},
            r"^listeners: .* that have one in --listener-security-protocol-map: A is neither",
        ),
        (
            {"listeners": "A://h:9092,B://h:9093", "listener_security_protocol_map": "A:PLAINTEXT"},
            "^listeners: .* B is neither",
        ),
        (
            {"listeners": "A://h:9092", "listener_security_protocol_map": "A:PLAINTEXT,B:SSL"},
            r"^listener_security_protocol_map: .* listeners of --listeners \(A\), not B",
        ),
        ({"listener_security_protocol_map": "A:PLAINTEXT"}, "none are named"),
        ({"listeners": "A://h:9092", "listener_security_protocol_map": "A:TLS"}, "it takes NAME:PROTOCOL"),
        (
            {"listeners": "SSL://h:9092"},
            "^ssl_keystore_location is required; it takes the PEM file of the broker's key",
        ),
        (
            {"ssl_keystore_location": "k.pem"},
            "^ssl_keystore_location: .* nothing while no listener has the protocol SSL or SASL_SSL",
        ),
        (
            {"listeners": "CLIENTS://h:9092", "ssl_client_auth": "required"},
            "^ssl_client_auth: .* none while no listener has the protocol SSL or SASL_SSL",
        ),
        (
            {"listeners": "SASL_PLAINTEXT://h:9092", "ssl_principal_mapping_rules": "RULE:a/b/"},
            "^ssl_principal_mapping_rules: .* DEFAULT while no listener has the protocol SSL ",
        ),
        (
            {"listeners": "CLIENTS://h:9092", "sasl_enabled_mechanisms": ("PLAIN", "SCRAM-SHA-512")},
            "^sasl_enabled_mechanisms: 'PLAIN,SCRAM-SHA-512' .* nothing while no listener has the protocol",
        ),
        (
            {"listeners": "A://h:1,B://h:2", "sasl_oauthbearer_expected_issuer": "x"},
            "^sasl_oauthbearer_expected_issuer: .* nothing while no listener has the protocol SASL_PLAINTEXT",
        ),
        (
            {"connections_max_reauth_ms": 5},
            r"^connections_max_reauth_ms: .* 0 while .* \(--listeners SASL_PLAINTEXT://...\)",
        ),
        ({"ssl_key_password": "geheim"}, "^ssl_key_password: the value given is not allowed"),
        (
            {"listeners": "SSL://h:9092", "ssl_keystore_location": "k", "ssl_client_auth": "required"},
            "^ssl_client_auth: .* --ssl-truststore-location",
        ),
        (
            {"listeners": "SSL://h:9092", "ssl_keystore_location": "k", "ssl_enabled_protocols": ()},
            "^ssl_enabled_protocols: .* one or more of TLSv1.2, TLSv1.3",
        ),
    ],
)
def test_listeners_that_contradict_themselves_are_refused(settings: dict[str, object], refusal: str) -> None:
    with pytest.raises(SettingError, match=refusal):
        Settings(**settings)  # type: ignore[arg-type]
