"""Each action of a fault as clients meet it, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from muster.coordinator.config import Settings
from muster.coordinator.server.apis import APIS
from muster.coordinator.server.broker import Broker
from muster.coordinator.server.brokers import Brokers
from muster.coordinator.server.test_mode.faults import Faults, Rule
from muster.protocol.api import ApiKey, versions
from muster.protocol.errors import ErrorCode
from muster.protocol.message import Message
from muster.protocol.messages.classic_group import HeartbeatRequest, LeaveGroupRequest
from muster.protocol.messages.connection import ApiVersionsRequest
from muster.protocol.messages.data import FetchRequest, ProduceRequest
from muster.protocol.messages.group_admin import DescribeGroupsRequest
from muster.protocol.messages.metadata import (
    DescribeTopicPartitionsRequest,
    FindCoordinatorRequest,
    MetadataRequest,
)
from muster.protocol.messages.offsets import OffsetDeleteRequest, OffsetFetchRequest
from tests.server.test_api_versions import smallest_request
from tests.server.test_classic_group import join, stable_member, sync
from tests.server.test_data import batch, values_in
from tests.server.test_offsets import codes, commit
from tests.support.facts import turns, until
from tests.support.leases import TERM_MS
from tests.support.wire import Wire


class Staged:
    """A broker in test mode with the topics t and u of two partitions."""

    def __init__(self, brokers: Brokers) -> None:
        self.brokers = brokers
        self.broker: Broker = brokers.brokers[0]
        self.faults: Faults = brokers.faults
        self.wires: list[Wire] = []

    async def connect(self, client_id: str = "app") -> Wire:
        wire = await Wire.connect(self.broker.port, client_id=client_id)
        self.wires.append(wire)
        return wire

    def add(self, **fields: Any) -> int:
        return self.faults.add(Rule.read(fields))

    async def hit(self, rule: int, times: int = 1) -> None:
        async with asyncio.timeout(30):
            await self.faults.hit(rule, times)

    async def committed(self, wire: Wire | None = None) -> int:
        """The offset committed by group g for t-0, as another connection sees it."""
        wire = wire or await self.connect("observer")
        asked = [OffsetFetchRequest.Topic(name="t", partition_indexes=[0])]
        response = await wire.call(OffsetFetchRequest(group_id="g", topics=asked), 5)
        return int(response.topics[0].partitions[0].committed_offset)


async def started(**settings: Any) -> Brokers:
    defaults: dict[str, Any] = {
        "port": 0,
        "ephemeral": True,
        "test_mode": True,
        "group_initial_rebalance_delay_ms": 0,
        "shutdown_grace_ms": 60_000,
        "lease_term_ms": TERM_MS,
        "log_level": "error",
    }
    brokers = Brokers(Settings(**{**defaults, **settings}))
    await brokers.start()
    await brokers.brokers[0].runtime.loaded()
    return brokers


@pytest.fixture
async def staged() -> AsyncIterator[Staged]:
    brokers = await started()
    (broker,) = brokers.brokers
    for name in ("t", "u"):
        await broker.catalogue.create(name, partitions=2)
    staged = Staged(brokers)
    yield staged
    for wire in staged.wires:
        await wire.close()
    await brokers.stop()


def beat(group: str = "g", member: str = "m") -> HeartbeatRequest:
    return HeartbeatRequest(group_id=group, generation_id=1, member_id=member)


async def nothing_more(wire: Wire) -> None:
    """Check that nothing has come, though everything had time to."""
    await turns()
    assert not wire._reader._buffer  # type: ignore[attr-defined]


# --- standing aside -----------------------------------------------------------------------------------------


async def test_without_a_turn_left_there_is_no_gate(staged: Staged) -> None:
    sessions = staged.broker._fault_gate._sessions
    assert sessions.faults is None
    rule = staged.add(api="Heartbeat", error="NOT_COORDINATOR")
    assert sessions.faults is not None
    wire = await staged.connect()
    assert (await wire.call(beat(), 4)).error_code == ErrorCode.NOT_COORDINATOR
    assert sessions.faults is None
    assert (await wire.call(beat(), 4)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    staged.faults.remove(rule)
    other = staged.add(api="Heartbeat", error="NOT_COORDINATOR")
    staged.faults.remove(other)
    assert sessions.faults is None


async def test_a_rule_concerns_what_connections_have_sent_before_too(staged: Staged) -> None:
    """A session remembers the last requests, so that repeats of them are not read again."""
    wire = await staged.connect()
    for _ in range(2):
        assert (await wire.call(beat(), 4)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    staged.add(api="Heartbeat", error="NOT_COORDINATOR")
    assert (await wire.call(beat(), 4)).error_code == ErrorCode.NOT_COORDINATOR
    assert (await wire.call(beat(), 4)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


# --- errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api_key", APIS, ids=lambda key: key.name)
async def test_an_error_is_answered_in_every_version(staged: Staged, api_key: ApiKey) -> None:
    """In the layout of the version, where that has room for a code; the request is not applied."""
    rule = staged.add(api=int(api_key), error="KAFKA_STORAGE_ERROR", times=None)
    wire = await staged.connect()
    first, last = versions(api_key)
    code = int(ErrorCode.KAFKA_STORAGE_ERROR)
    for number, version in enumerate(range(first, last + 1), 1):
        response = await wire.call(request_naming_something(api_key, version), version)
        if api_key != ApiKey.DESCRIBE_LOG_DIRS or version >= 3:  # which has no code before v3
            assert code in codes_in(response), response
        assert staged.faults.fired(rule) == number


def request_naming_something(api_key: ApiKey, version: int) -> Message:
    if api_key == ApiKey.METADATA:
        return MetadataRequest(topics=[MetadataRequest.Topic(name="t")])
    return smallest_request(api_key, version)


def codes_in(message: Any) -> set[int]:
    """Every error code in a response."""
    found: set[int] = set()
    for declared in type(message).__fields__:
        value = getattr(message, declared.name)
        if declared.name in ("error_code", "partition_error_code"):
            found.add(int(value))
        for each in value if isinstance(value, list) else (value,):
            if hasattr(type(each), "__fields__"):
                found |= codes_in(each)
    return found


async def test_an_error_is_answered_to_the_second_commit_alone_and_that_is_not_applied(
    staged: Staged,
) -> None:
    began_ms = staged.broker.clock.now_ms()
    rule = staged.add(api="OffsetCommit", group="g", nth=2, error="NOT_COORDINATOR")
    wire = await staged.connect()
    answers = [codes(await wire.call(commit(("t", 0, offset)), 8)) for offset in (1, 2)]
    assert answers == [[0], [ErrorCode.NOT_COORDINATOR]]
    assert await staged.committed() == 1
    assert codes(await wire.call(commit(("t", 0, 3)), 8)) == [0]
    assert (staged.faults.fired(rule), await staged.committed()) == (1, 3)
    (firing,) = staged.faults.history
    assert began_ms <= firing.at_ms <= staged.broker.clock.now_ms()
    assert firing.to_json() == {
        "rule": rule,
        "at_ms": firing.at_ms,
        "broker": staged.broker.node_id,
        "api": "OffsetCommit",
        "version": 8,
        "group": "g",
        "member": None,
        "transactional_id": None,
        "client_id": "app",
        "action": "error NOT_COORDINATOR",
    }


async def test_an_error_for_one_topic_leaves_the_others_alone(staged: Staged) -> None:
    staged.add(api="OffsetCommit", topic="u", error="TOPIC_AUTHORIZATION_FAILED")
    wire = await staged.connect()
    response = await wire.call(commit(("u", 0, 5), ("t", 0, 5)), 8)
    outcomes = {topic.name: topic.partitions[0].error_code for topic in response.topics}
    assert outcomes == {"t": 0, "u": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert await staged.committed() == 5


async def test_produce_refuses_one_topic_and_stores_the_other(staged: Staged) -> None:
    staged.add(api="Produce", topic="u", error="NOT_LEADER_OR_FOLLOWER")
    wire = await staged.connect()
    topics = [
        ProduceRequest.TopicProduceData(
            name=name, partition_data=[ProduceRequest.PartitionProduceData(index=0, records=batch(b"v"))]
        )
        for name in ("t", "u")
    ]
    response = await wire.call(ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=topics), 9)
    outcomes = {each.name: each.partition_responses[0].error_code for each in response.responses}
    assert outcomes == {"t": 0, "u": ErrorCode.NOT_LEADER_OR_FOLLOWER}
    stored = {name: values_in(await fetched(wire, name)) for name in ("t", "u")}
    assert stored == {"t": [b"v"], "u": []}


async def fetched(wire: Wire, *names: str, version: int = 12, wait_ms: int = 0) -> Any:
    """Fetch partition 0 of each topic; return the records if there is one topic, else the response."""
    response = await wire.call(fetching(*names, wait_ms=wait_ms), version)
    return response if len(names) > 1 else response.responses[0].partitions[0].records or b""


def fetching(*names: str, wait_ms: int = 0) -> FetchRequest:
    part = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        topics=[FetchRequest.FetchTopic(topic=name, partitions=[part]) for name in names],
    )


async def test_fetch_has_the_code_at_the_partition_and_does_not_wait_for_the_others(staged: Staged) -> None:
    staged.add(api="Fetch", topic="u", error="NOT_LEADER_OR_FOLLOWER")
    wire = await staged.connect()
    response = await fetched(wire, "t", "u", wait_ms=600_000)
    assert response.error_code == 0
    outcomes = {each.topic: each.partitions[0].error_code for each in response.responses}
    assert outcomes == {"t": 0, "u": ErrorCode.NOT_LEADER_OR_FOLLOWER}


async def test_a_code_of_fetch_sessions_stands_on_top(staged: Staged) -> None:
    staged.add(api="Fetch", topic="u", error="FETCH_SESSION_ID_NOT_FOUND")
    response = await fetched(await staged.connect(), "t", "u")
    assert (response.error_code, response.responses) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])


async def test_a_fetch_by_topic_id_is_known_by_the_topics_name(staged: Staged) -> None:
    topic = staged.broker.catalogue.by_name("u")
    assert topic is not None
    staged.add(api="Fetch", topic="u", error="NOT_LEADER_OR_FOLLOWER")
    request = fetching("")
    request.topics[0].topic_id = topic.topic_id
    response = await (await staged.connect()).call(request, 13)
    assert response.responses[0].topic_id == topic.topic_id
    assert response.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("version", [1, 8, 12])
async def test_metadata_keeps_its_brokers_beside_the_error_of_a_topic(staged: Staged, version: int) -> None:
    staged.add(api="Metadata", topic="u", error="LEADER_NOT_AVAILABLE", times=2)
    wire = await staged.connect()
    named = [MetadataRequest.Topic(name=name) for name in ("t", "u")]
    for topics in (named, None):
        response = await wire.call(MetadataRequest(topics=topics), version)
        assert [node.port for node in response.brokers] == [staged.broker.port]
        outcomes = {each.name: (each.error_code, len(each.partitions)) for each in response.topics}
        assert outcomes["t"] == (0, 2)
        assert outcomes["u"] == (ErrorCode.LEADER_NOT_AVAILABLE, 0)


async def test_metadata_for_the_brokers_alone_is_passed_over_and_creates_nothing(staged: Staged) -> None:
    rule = staged.add(api="Metadata", error="UNKNOWN_TOPIC_OR_PARTITION")
    wire = await staged.connect()
    response = await wire.call(MetadataRequest(topics=[]), 12)
    assert len(response.brokers) == 1
    assert staged.faults.status(rule).matched == 0
    response = await wire.call(MetadataRequest(topics=[MetadataRequest.Topic(name="new")]), 12)
    assert response.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert staged.broker.catalogue.by_name("new") is None


@pytest.mark.parametrize("names", [["t", "u"], []], ids=["named", "all"])
async def test_topics_whose_partitions_are_described_have_the_error(staged: Staged, names: list[str]) -> None:
    topics = [DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in names]
    wire = await staged.connect()
    error = ErrorCode.LEADER_NOT_AVAILABLE
    for one, expected in (({"topic": "u"}, {"t": 0, "u": error}), ({}, {"t": error, "u": error})):
        rule = staged.add(api="DescribeTopicPartitions", error="LEADER_NOT_AVAILABLE", **one)
        response = await wire.call(DescribeTopicPartitionsRequest(topics=topics), 0)
        outcomes = {each.name: (each.error_code, len(each.partitions)) for each in response.topics}
        for name, code in expected.items():
            assert outcomes[name] == (code, 0 if code else 2)
        assert staged.faults.fired(rule) == 1
    staged.add(api="DescribeTopicPartitions", topic="none", error="LEADER_NOT_AVAILABLE")
    response = await wire.call(DescribeTopicPartitionsRequest(topics=topics), 0)
    assert {each.error_code for each in response.topics} == {0}


async def test_a_client_can_be_sent_to_bootstrap_again(staged: Staged) -> None:
    staged.add(api="Metadata", error="REBOOTSTRAP_REQUIRED")
    response = await (await staged.connect()).call(MetadataRequest(topics=[]), 13)
    assert response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED


async def test_one_group_of_several(staged: Staged) -> None:
    wire = await staged.connect()
    staged.add(api="FindCoordinator", group="b", error="COORDINATOR_NOT_AVAILABLE")
    found = await wire.call(FindCoordinatorRequest(coordinator_keys=["a", "b"]), 4)
    outcomes = {each.key: (each.error_code, each.port) for each in found.coordinators}
    assert outcomes == {"a": (0, staged.broker.port), "b": (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)}
    staged.add(api="DescribeGroups", group="b", error="GROUP_AUTHORIZATION_FAILED")
    described = await wire.call(DescribeGroupsRequest(groups=["a", "b"]), 5)
    outcomes = {each.group_id: each.error_code for each in described.groups}
    assert outcomes == {"a": 0, "b": ErrorCode.GROUP_AUTHORIZATION_FAILED}


def fetching_offsets(version: int) -> OffsetFetchRequest:
    if version < 8:
        topics = [OffsetFetchRequest.Topic(name=name, partition_indexes=[0]) for name in ("t", "u")]
        return OffsetFetchRequest(group_id="g", topics=topics)
    of = [OffsetFetchRequest.Group.Topics(name=name, partition_indexes=[0]) for name in ("t", "u")]
    groups = [OffsetFetchRequest.Group(group_id=group, topics=of) for group in ("g", "other")]
    return OffsetFetchRequest(groups=groups)


@pytest.mark.parametrize("version", [1, 5, 7, 8, 9])
async def test_offset_fetch_has_places_for_groups_and_for_partitions(staged: Staged, version: int) -> None:
    wire = await staged.connect()
    await wire.call(commit(("t", 0, 5), ("u", 0, 5)), 8)

    def seen(response: Any) -> list[tuple[str, str, int, int]]:
        of_groups = [(each.group_id, each.topics) for each in response.groups] or [("g", response.topics)]
        return [
            (group, topic.name, each.error_code, each.committed_offset)
            for group, topics in of_groups
            for topic in topics
            for each in topic.partitions
        ]

    untouched = seen(await wire.call(fetching_offsets(version), version))
    staged.add(api="OffsetFetch", group="g", topic="u", error="UNSTABLE_OFFSET_COMMIT")
    expected = [
        (group, name, ErrorCode.UNSTABLE_OFFSET_COMMIT, -1) if (group, name) == ("g", "u") else entry
        for entry in untouched
        for group, name, _, _ in [entry]
    ]
    assert seen(await wire.call(fetching_offsets(version), version)) == expected
    assert sum(offset == 5 for _, _, _, offset in expected) == 1
    staged.add(api="OffsetFetch", group="g", error="COORDINATOR_LOAD_IN_PROGRESS")
    response = await wire.call(fetching_offsets(version), version)
    if version >= 8:
        outcomes = {each.group_id: each.error_code for each in response.groups}
        assert outcomes == {"g": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "other": 0}
    else:
        assert ErrorCode.COORDINATOR_LOAD_IN_PROGRESS in codes_in(response)


async def test_leave_group_and_offset_delete_have_codes_for_parts(staged: Staged) -> None:
    wire = await staged.connect()
    staged.add(api="LeaveGroup", error="FENCED_INSTANCE_ID")
    leaving = [LeaveGroupRequest.MemberIdentity(member_id="", group_instance_id="web")]
    left = await wire.call(LeaveGroupRequest(group_id="g", members=leaving), 4)
    outcome = [(each.group_instance_id, each.error_code) for each in left.members]
    assert (left.error_code, outcome) == (0, [("web", ErrorCode.FENCED_INSTANCE_ID)])
    staged.add(api="LeaveGroup", error="NOT_COORDINATOR")
    left = await wire.call(LeaveGroupRequest(group_id="g", members=leaving), 4)
    assert (left.error_code, left.members) == (ErrorCode.NOT_COORDINATOR, [])
    await wire.call(commit(("t", 0, 5), ("u", 0, 5)), 8)
    staged.add(api="OffsetDelete", topic="u", error="GROUP_SUBSCRIBED_TO_TOPIC")
    part = OffsetDeleteRequest.Partition(partition_index=0)
    topics = [OffsetDeleteRequest.Topic(name=name, partitions=[part]) for name in ("t", "u")]
    deleted = await wire.call(OffsetDeleteRequest(group_id="g", topics=topics), 0)
    outcomes = {each.name: each.partitions[0].error_code for each in deleted.topics}
    assert (deleted.error_code, outcomes) == (0, {"t": 0, "u": ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC})


async def test_api_versions_can_be_told_that_it_is_too_new(staged: Staged) -> None:
    staged.add(api="ApiVersions", error="UNSUPPORTED_VERSION")
    wire = await staged.connect()
    await wire.send(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 4)
    frame = await wire.receive_bytes()  # in the layout of v0, as Kafka answers
    assert frame[4:6] == ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")
    assert len(frame) == 4 + 2 + 4 + 6  # one range: that of ApiVersions


async def test_a_failed_produce_without_acks_closes_the_connection(staged: Staged) -> None:
    rule = staged.add(api="Produce", error="NOT_LEADER_OR_FOLLOWER")
    wire = await staged.connect()
    await wire.send(smallest_request(ApiKey.PRODUCE, 9).__class__(acks=0, timeout_ms=1, topic_data=[]), 9)
    assert await wire.closed()
    assert staged.faults.fired(rule) == 1


# --- delays -------------------------------------------------------------------------------------------------


async def test_a_delay_lasts_by_the_brokers_clock_and_holds_up_its_connection_alone(staged: Staged) -> None:
    rule = staged.add(api="OffsetCommit", delay="1h")
    wire, other = await staged.connect(), await staged.connect()
    await wire.send(commit(("t", 0, 7)), 8)
    await staged.hit(rule)
    await wire.send(beat(), 4)
    assert (await other.call(beat(), 4)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert codes(await other.call(commit(("u", 0, 1)), 8)) == [0]
    assert await staged.committed() == -1  # it has not been applied
    await staged.brokers.advance(1_800_000)
    await nothing_more(wire)
    await staged.brokers.advance(1_800_000)
    assert codes(await wire.receive()) == [0]
    assert (await wire.receive()).error_code == ErrorCode.UNKNOWN_MEMBER_ID  # in the order they were sent
    assert await staged.committed() == 7


@pytest.mark.parametrize("end", ["remove", "clear"])
async def test_whoever_takes_a_rule_back_lets_go_what_it_holds(staged: Staged, end: str) -> None:
    rule = staged.add(delay="1h")
    wire = await staged.connect()
    await wire.send(beat(), 4)
    await staged.hit(rule)
    if end == "remove":
        staged.faults.remove(rule)
    else:
        staged.faults.clear()
    assert (await wire.receive()).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("end", ["remove", "clear"])
@pytest.mark.parametrize(
    "other", [{"delay": "1h"}, {"error": "NOT_COORDINATOR"}, {"close_before": True}], ids=str
)
async def test_what_a_rule_lets_go_meets_none_that_is_gone(
    staged: Staged, other: dict[str, Any], end: str
) -> None:
    delayed, gone = staged.add(delay="1h"), staged.add(**other)
    wire = await staged.connect()
    await wire.send(beat(), 4)
    await staged.hit(delayed)
    if end == "clear":
        staged.faults.clear()
    else:
        staged.faults.remove(gone)
        staged.faults.remove(delayed)
    assert (await wire.receive()).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert [each.rule for each in staged.faults.history] == ([] if end == "clear" else [delayed])


async def test_a_delay_goes_before_an_error(staged: Staged) -> None:
    staged.add(error="NOT_COORDINATOR", group="g")
    rule = staged.add(delay="1h", group="g")
    wire = await staged.connect()
    await wire.send(beat(), 4)
    await staged.hit(rule)
    await staged.brokers.advance(3_600_000)
    assert (await wire.receive()).error_code == ErrorCode.NOT_COORDINATOR


# --- lost responses and connections -------------------------------------------------------------------------


async def test_a_dropped_response_was_applied_and_nothing_comes_behind_it(staged: Staged) -> None:
    rule = staged.add(api="OffsetCommit", drop_response=True)
    wire = await staged.connect()
    await wire.send(commit(("t", 0, 7)), 8)
    await wire.send(beat(), 4)
    await staged.hit(rule)
    assert await staged.committed() == 7
    await nothing_more(wire)
    again = await staged.connect()
    assert codes(await again.call(commit(("t", 0, 8)), 8)) == [0]
    await wire.close()  # the client has given up
    await until(lambda: len(staged.broker.connections.alive) == 2, "the connection's end")  # again, observer


async def test_a_connection_kept_silent_ends_when_it_has_been_idle_for_too_long() -> None:
    brokers = await started(connections_max_idle_ms=100)
    rule = brokers.faults.add(Rule.read({"api": "Heartbeat", "drop_response": True}))
    async with await Wire.connect(brokers.brokers[0].port) as wire:
        await wire.send(beat(), 4)
        assert await wire.closed()
        assert brokers.faults.fired(rule) == 1
    await brokers.stop()


async def test_stopping_does_not_wait_for_what_faults_hold(staged: Staged) -> None:
    delayed = staged.add(api="OffsetCommit", delay="1h")
    dropped = staged.add(api="Heartbeat", drop_response=True)
    wire, silent = await staged.connect(), await staged.connect()
    await wire.send(commit(("t", 0, 7)), 8)
    await silent.send(beat(), 4)
    await staged.hit(delayed)
    await staged.hit(dropped)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await staged.brokers.stop()
    assert loop.time() - began < staged.broker.settings.shutdown_grace_ms / 1000
    assert await silent.closed()


async def test_close_before_applies_nothing(staged: Staged) -> None:
    staged.add(api="OffsetCommit", close_before=True)
    wire = await staged.connect()
    await wire.send(commit(("t", 0, 7)), 8)
    await wire.send(commit(("u", 0, 7)), 8)
    assert await wire.closed()
    assert await staged.committed() == -1
    assert staged.broker.connections.counts.unserved == 0


async def test_close_after_has_applied_it(staged: Staged) -> None:
    staged.add(api="OffsetCommit", close_after=True)
    wire = await staged.connect()
    await wire.send(commit(("t", 0, 7)), 8)
    assert await wire.closed()
    assert await staged.committed() == 7


@pytest.mark.parametrize("count", [0, 1, 4, 6, 10_000])
async def test_a_truncated_response_is_followed_by_the_end(staged: Staged, count: int) -> None:
    wire = await staged.connect()
    await wire.call(beat(), 4)
    await wire.send(beat(), 4)
    whole = await wire.receive_bytes()
    staged.add(api="Heartbeat", truncate=count)
    await wire.send(beat(), 4)
    async with asyncio.timeout(30):
        got = await wire._reader.read()
    expected = (len(whole).to_bytes(4, "big") + whole)[:count]
    assert got[:4] == expected[:4]
    assert got[8:] == expected[8:]  # the correlation id is in between
    assert len(got) == len(expected)


async def test_acks_0_has_no_response_that_could_be_dropped(staged: Staged) -> None:
    rule = staged.add(api="Produce", drop_response=True)
    wire = await staged.connect()
    part = ProduceRequest.PartitionProduceData(index=0, records=batch(b"v"))
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[part])
    await wire.send(ProduceRequest(acks=0, timeout_ms=1_000, topic_data=[topic]), 9)
    assert values_in(await fetched(wire, "t")) == [b"v"]
    assert staged.faults.fired(rule) == 1


# --- what is parked -----------------------------------------------------------------------------------------


async def test_a_parked_join_is_applied_and_its_response_dropped(staged: Staged) -> None:
    first, second = await staged.connect(), await staged.connect("late")
    member, _ = await stable_member(first)
    rule = staged.add(api="JoinGroup", group="orders", client_id="late", nth=2, drop_response=True)
    given = await second.call(join(), 5)
    assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED
    await second.send(join(member_id=given.member_id), 5)
    await until(lambda: staged.faults.status(rule).matched == 2, "the join")
    assert staged.faults.fired(rule) == 0  # it waits for the first member
    joined = await first.call(join(member_id=member), 5)
    assert joined.generation_id == 2
    assert {each.member_id for each in joined.members} == {member, given.member_id}
    await staged.hit(rule)
    await nothing_more(second)


async def test_a_parked_sync_can_be_cut(staged: Staged) -> None:
    first, second = await staged.connect(), await staged.connect("late")
    leader, _ = await stable_member(first)
    given = await second.call(join(), 5)
    await second.send(join(member_id=given.member_id), 5)
    assert (await first.call(join(member_id=leader), 5)).generation_id == 2
    assert (await second.receive()).generation_id == 2
    rule = staged.add(api="SyncGroup", member=given.member_id, close_after=True)
    await second.send(sync(2, given.member_id), 3)
    await until(lambda: staged.faults.status(rule).matched == 1, "the sync")
    assigned = await first.call(sync(2, leader, (leader, b"a"), (given.member_id, b"b")), 3)
    assert assigned.assignment == b"a"
    assert await second.closed()


async def test_a_parked_fetch_can_be_cut_and_goes_with_its_connection(staged: Staged) -> None:
    rule = staged.add(api="Fetch", topic="t", close_after=True)
    wire, producer = await staged.connect(), await staged.connect()
    await wire.send(fetching("t", wait_ms=600_000), 12)
    await until(lambda: staged.faults.status(rule).matched == 1, "the fetch")
    await turns()
    assert staged.faults.fired(rule) == 0
    part = ProduceRequest.PartitionProduceData(index=0, records=batch(b"v"))
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[part])
    await producer.call(ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=[topic]), 9)
    assert await wire.closed()
    assert staged.faults.fired(rule) == 1
    gone = staged.add(api="Fetch", topic="u", close_after=True)
    another = await staged.connect()
    await another.send(fetching("u", wait_ms=600_000), 12)
    await until(lambda: staged.faults.status(gone).matched == 1, "the fetch")
    await another.close()
    await until(lambda: len(staged.broker.connections.alive) == 1, "the fetch to be dropped")  # the producer


@pytest.mark.parametrize("action", [{"drop_response": True}, {"close_after": True}, {"truncate": 0}], ids=str)
async def test_a_parked_fetch_is_answered_when_its_rule_is_gone(
    staged: Staged, action: dict[str, Any]
) -> None:
    rule = staged.add(api="Fetch", topic="t", **action)
    wire, producer = await staged.connect(), await staged.connect()
    await wire.send(fetching("t", wait_ms=600_000), 12)
    await until(lambda: staged.faults.status(rule).matched == 1, "the fetch")
    staged.faults.clear()
    part = ProduceRequest.PartitionProduceData(index=0, records=batch(b"v"))
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[part])
    await producer.call(ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=[topic]), 9)
    assert values_in((await wire.receive()).responses[0].partitions[0].records) == [b"v"]
    assert not staged.faults.history


async def test_garbage_and_other_versions_go_past_the_rules(staged: Staged) -> None:
    rule = staged.add(error="NOT_COORDINATOR", times=None)
    wire = await staged.connect()
    await wire.send_bytes((8).to_bytes(4, "big") + bytes([0, 12, 0, 99, 0, 0, 0, 1]))
    assert await wire.closed()
    assert staged.faults.status(rule).matched == 0
