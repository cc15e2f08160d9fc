"""Requests that clients make first, and tools' queries, with answers compared with Apache Kafka's."""

from __future__ import annotations

import uuid

import pytest

from muster.coordinator.server.apis import APIS
from muster.coordinator.testing import Broker
from muster.protocol.api import ApiKey, advertised_versions
from muster.protocol.messages.connection import ApiVersionsRequest, ApiVersionsResponse
from muster.protocol.messages.group_admin import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from muster.protocol.messages.metadata import (
    DescribeClusterRequest,
    FindCoordinatorRequest,
    MetadataRequest,
)
from muster.protocol.messages.offsets import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from muster.protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from muster.protocol.messages.transactions import InitProducerIdRequest
from tests.kafka.conftest import KafkaOfConfigs
from tests.kafka.stories import KAFKA_CONFIGS, Side, Story, assert_told_alike
from tests.support.wire_blocking import WireConnection

pytestmark = pytest.mark.kafka


# --- stories ------------------------------------------------------------------------------------------------


def metadata(side: Side) -> None:
    ids = side.create(t=2)
    asked = MetadataRequest.Topic

    def asking(*topics: MetadataRequest.Topic, **fields: bool) -> MetadataRequest:
        return MetadataRequest(topics=list(topics), **{"allow_auto_topic_creation": False, **fields})

    no_topic = MetadataRequest(topics=[])

    for version in range(14):
        # Before v4, a request cannot forbid creation.
        request = asking(
            asked(name=side.name("t")), asked(name="none"), allow_auto_topic_creation=version < 4
        )
        side.ask(f"v{version}", request, version)
    for version in (1, 9, 13):
        side.ask(f"of no topic, v{version}", no_topic, version)
    for name in ("", ".", "a b", "x" * 250):
        side.ask(f"called {name[:3]}", asking(asked(name=name)), 12)
    side.ask("twice the same", asking(asked(name=side.name("t")), asked(name=side.name("t"))), 12)
    side.ask("twice what is not there", asking(asked(name="none"), asked(name="none")), 12)
    twice = asked(topic_id=ids["t"], name=None)
    side.ask("twice the same id", asking(twice, twice), 12)
    for version in (10, 12, 13):
        side.ask(f"by id, v{version}", asking(asked(topic_id=ids["t"], name=None)), version)
    side.ask("by an id that no topic has", asking(asked(topic_id=uuid.UUID(int=7), name=None)), 12)
    side.ask("by id and by name", asking(asked(topic_id=ids["t"], name="none")), 12)
    # An Apache Kafka that other tests have restarted may be in a later leader epoch.
    side.ask("the topic of offsets", asking(asked(name="__consumer_offsets")), 12, but="leader_epoch")
    operations = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    for version in (8, 10):
        request = asking(asked(name=side.name("t")), asked(name="none"), **operations)
        side.ask(f"operations, v{version}", request, version)


def cluster(side: Side) -> None:
    for version in range(3):
        for operations in (False, True):
            request = DescribeClusterRequest(include_cluster_authorized_operations=operations)
            side.ask(f"v{version}, operations: {operations}", request, version)
    for endpoint_type in (0, 2, 3):
        request = DescribeClusterRequest(
            include_cluster_authorized_operations=False, endpoint_type=endpoint_type
        )
        side.ask(f"endpoint type {endpoint_type}", request, 2)
    fenced = DescribeClusterRequest(include_cluster_authorized_operations=False, include_fenced_brokers=True)
    side.ask("with the fenced", fenced, 2)
    for version in range(4):
        side.ask(f"coordinator, v{version}", FindCoordinatorRequest(key="g"), version)
    for version in range(4, 7):
        side.ask(
            f"coordinators, v{version}", FindCoordinatorRequest(coordinator_keys=["g", "h", ""]), version
        )
        side.ask(f"no coordinators, v{version}", FindCoordinatorRequest(coordinator_keys=[]), version)
        for key_type in (2, 9, -1):
            request = FindCoordinatorRequest(coordinator_keys=["g"], key_type=key_type)
            side.ask(f"coordinator of type {key_type}, v{version}", request, version)
    side.ask("one coordinator of type 9", FindCoordinatorRequest(key="g", key_type=9), 3)


def unknown_groups(side: Side) -> None:
    side.create(t=2)
    side.coordinate("nobody", "")
    for version in range(7):
        side.ask(f"described, v{version}", DescribeGroupsRequest(groups=["nobody", ""]), version)
    for version in range(1, 8):
        named = OffsetFetchRequest.Topic(name=side.name("t"), partition_indexes=[0, 9])
        side.ask(f"offsets, v{version}", OffsetFetchRequest(group_id="nobody", topics=[named]), version)
        if version >= 2:
            side.ask(f"all offsets, v{version}", OffsetFetchRequest(group_id="nobody", topics=None), version)
    of_topic = OffsetFetchRequest.Group.Topics(name=side.name("t"), partition_indexes=[0, 9])
    groups = [
        OffsetFetchRequest.Group(group_id="nobody", topics=[of_topic]),
        OffsetFetchRequest.Group(group_id="", topics=None),
    ]
    for version in (8, 9):
        side.ask(f"offsets of several, v{version}", OffsetFetchRequest(groups=groups), version)
    for version in range(4):
        request = DeleteGroupsRequest(groups_names=["nobody", "", "nobody"])
        side.ask(f"deleted, v{version}", request, version)
    partition = OffsetDeleteRequest.Partition(partition_index=0)
    doomed = OffsetDeleteRequest.Topic(name=side.name("t"), partitions=[partition])
    side.ask("offsets deleted", OffsetDeleteRequest(group_id="nobody", topics=[doomed]), 0)
    side.ask("offsets of no group deleted", OffsetDeleteRequest(group_id="", topics=[doomed]), 0)


def listed_groups(side: Side) -> None:
    side.create(t=1)
    group = side.name("simple")
    side.coordinate(group)
    committed = OffsetCommitRequest.Partition(partition_index=0, committed_offset=1, committed_metadata="")
    for topic in ("t", "none", "a b"):
        name = side.name(topic) if topic == "t" else topic
        request = OffsetCommitRequest(
            group_id=group,
            member_id="",
            topics=[OffsetCommitRequest.Topic(name=name, partitions=[committed])],
        )
        side.ask(f"committed for {topic}", request, 9)

    def list_them(title: str, states: list[str], types: list[str], version: int = 5) -> None:
        fields = {"states_filter": states} if version >= 4 else {}
        if version >= 5:
            fields["types_filter"] = types
        answer = side.quietly(ListGroupsRequest(**fields), version)
        listed = [
            (each.protocol_type, each.group_state, each.group_type)
            for each in answer.groups
            if each.group_id == group
        ]
        side.note(title, listed, of=(answer, version))

    for version in range(6):
        list_them(f"listed, v{version}", [], [], version)
    for states in (["Empty"], ["eMPTY"], ["Stable"], ["Stable", "Empty"], ["Nonsense"]):
        list_them(f"listed by state {states}", states, [])
    for types in (["classic"], ["Classic"], ["consumer"], ["consumer", "classic"], ["nonsense"], ["share"]):
        list_them(f"listed by type {types}", [], types)
    list_them("listed by both", ["Empty"], ["consumer"])


def connection(side: Side) -> None:
    def hello(**fields: object) -> ApiVersionsRequest:
        told = {"client_software_name": "story", "client_software_version": "1.0", **fields}
        return ApiVersionsRequest(**told)

    for name in ("", "-x", "x-", "a b", "a.b-c", "ü"):
        answer = side.quietly(hello(client_software_name=name), 4)
        side.note(f"a client called {name}", (answer.error_code, len(answer.api_keys) > 0))
    for version in range(6):
        answer = side.quietly(hello(), version)
        side.note(f"v{version}", (answer.error_code, len(answer.api_keys) > 0))
    for fields in ({"cluster_id": "another"}, {"node_id": 1}, {"cluster_id": "another", "node_id": 1}):
        answer = side.quietly(hello(**fields), 5)
        side.note(f"{fields}", (answer.error_code, len(answer.api_keys) > 0))
    transactional = InitProducerIdRequest(transactional_id="", transaction_timeout_ms=60_000)
    side.ask("a producer of an empty transactional id", transactional, 5)


def authentication(side: Side) -> None:
    """SASL requests on a listener without SASL."""
    for version in range(2):
        side.ask(f"handshake, v{version}", SaslHandshakeRequest(mechanism="PLAIN"), version)
    side.ask("handshake for a mechanism that nobody knows", SaslHandshakeRequest(mechanism="NONE"), 1)
    for version in range(3):
        side.ask(f"token, v{version}", SaslAuthenticateRequest(auth_bytes=b"\x00user\x00secret"), version)


# --- told ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "story", [metadata, cluster, unknown_groups, listed_groups, connection, authentication]
)
def test_apache_kafka_answers_as_muster_does(story: Story, kafka_of_configs: KafkaOfConfigs) -> None:
    # A lease that expires on a busy machine starts another leader epoch.
    with Broker(auto_create_topics_enable=False, lease_term_ms=600_000) as broker:
        assert_told_alike(story, kafka_of_configs(KAFKA_CONFIGS), broker)


def test_what_is_served_is_served_in_all_versions_that_apache_kafka_serves(
    kafka_of_configs: KafkaOfConfigs,
) -> None:
    kafka = kafka_of_configs(KAFKA_CONFIGS)
    with WireConnection(kafka.host, kafka.port, "story") as wire:
        request = ApiVersionsRequest(client_software_name="story", client_software_version="1.0")
        answer = wire.call(request, 4, ApiVersionsResponse)
    theirs = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
    advertised = APIS.keys()
    ours = {key: tuple(advertised_versions(key)) for key in advertised}
    assert ours == {key: theirs.get(ApiKey(key)) for key in advertised}
