"""The cluster: where to begin, who leads and coordinates, and what is retried."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import pytest

from muster.client.admin.cluster import describe_cluster
from muster.client.admin.configs import ConfigResource, describe_configs
from muster.client.admin.groups import list_groups
from muster.client.admin.offsets import LATEST, list_group_offsets, list_offsets
from muster.client.admin.topics import describe_topics
from muster.client.errors import Closed, ConnectionLost, NotKafka, RequestTimedOut, Unreachable
from muster.client.network import cluster as cluster_module
from muster.client.network.cluster import Cluster, all_of, parse_bootstrap
from muster.client.network.connection import Address, deadline
from muster.client.partitions import TopicPartition
from muster.coordinator import testing
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.configs import DescribeConfigsResponse
from muster.protocol.messages.data import FetchResponse
from muster.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.client.fake_cluster import FakeCluster
from tests.client.listeners import (
    answer,
    listener,
    losing_answers,
    read_frame,
    read_request,
    shake_hands,
)
from tests.support.each import each
from tests.support.facts import turns, until
from tests.support.leases import TERM_MS, die
from tests.support.ports import free_ports

LONG_S = 60.0


@each(
    "text, addresses",
    [
        ("a:1", [Address("a", 1)]),
        (" a:1 , b:65535", [Address("a", 1), Address("b", 65_535)]),
        ("[::1]:9092", [Address("::1", 9092)]),
        ("PLAINTEXT://a:1, SASL_SSL://[::1]:2", [Address("a", 1), Address("::1", 2)]),
    ],
)
def test_bootstrap_servers(text: str, addresses: list[Address]) -> None:
    assert parse_bootstrap(text) == addresses


@each(
    "text",
    [
        "",
        "a",
        "a:",
        ":1",
        "a:0",
        "a:65536",
        "a:x",
        "a:1,",
        "::1:9092",
        "a:١",
        "SSL://",
        "a b://c:1",
        "SSL://SSL://a:1",
    ],
)
def test_bootstrap_servers_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        parse_bootstrap(text)


def test_an_address_is_shown_as_it_is_written() -> None:
    assert [str(each) for each in parse_bootstrap("a:1,[::1]:2")] == ["a:1", "[::1]:2"]


@pytest.fixture
async def three() -> AsyncIterator[tuple[testing.Cluster, Cluster]]:
    with testing.Cluster(3, lease_term_ms=TERM_MS) as brokers:
        async with Cluster(parse_bootstrap(brokers.bootstrap)) as cluster:
            yield brokers, cluster


async def test_partitions_and_groups_are_asked_for_where_they_are(
    three: tuple[testing.Cluster, Cluster],
) -> None:
    brokers, cluster = three
    brokers.create_topic("t", 12)
    led = {(await cluster.leadership(TopicPartition("t", each), deadline(LONG_S)))[0] for each in range(12)}
    assert led == {1, 2, 3}
    for group_id in ("a", "b", "c", "d"):
        index = brokers.coordinator_of(group_id)
        assert index is not None
        assert await cluster.coordinator(group_id, deadline(LONG_S)) == index + 1
    offsets = await list_offsets(
        cluster, {TopicPartition("t", each): LATEST for each in range(12)}, deadline(LONG_S)
    )
    ends = {where: end and end.offset for where, end in offsets.raise_for_failures().items()}
    assert ends == {TopicPartition("t", each): 0 for each in range(12)}


async def test_what_moves_is_found_again(three: tuple[testing.Cluster, Cluster]) -> None:
    brokers, cluster = three
    brokers.create_topic("t", 12)
    wanted = {TopicPartition("t", each): LATEST for each in range(12)}
    assert len((await list_offsets(cluster, wanted, deadline(LONG_S))).succeeded) == 12
    assert await list_groups(cluster, deadline(LONG_S)) == []
    index = brokers.coordinator_of("g")
    assert index is not None
    assert await list_group_offsets(cluster, ["g"], deadline(LONG_S)) == {"g": {}}
    die(brokers, index)
    assert len((await list_offsets(cluster, wanted, deadline(LONG_S))).succeeded) == 12
    assert await list_group_offsets(cluster, ["g"], deadline(LONG_S)) == {"g": {}}
    assert await cluster.coordinator("g", deadline(LONG_S)) != index + 1


async def test_any_broker_that_answers_will_do() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    with testing.Broker() as broker:
        async with listener(mute) as hanging:
            refusing = Address("127.0.0.1", free_ports(1))
            bootstrap = [refusing, hanging, Address("127.0.0.1", broker.port)]
            async with Cluster(bootstrap) as cluster:
                # Half the time goes to the one that hangs.
                facts = await describe_cluster(cluster, deadline(10))
        assert [each.port for each in facts.brokers] == [broker.port]


async def test_when_none_answers_each_is_named() -> None:
    first, second = (Address("127.0.0.1", free_ports(2) + each) for each in (0, 1))
    async with Cluster([first, second]) as cluster:
        with pytest.raises(Unreachable) as failed:
            await describe_cluster(cluster, deadline(LONG_S))
    assert str(first) in str(failed.value)
    assert str(second) in str(failed.value)


async def test_what_is_no_broker_is_not_asked_again() -> None:
    asked = 0

    async def garbling(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await read_frame(reader)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()

    async with listener(garbling) as address, Cluster([address]) as cluster:
        with pytest.raises(NotKafka):
            await describe_cluster(cluster, deadline(LONG_S))
    assert asked == 1


async def test_what_only_reads_is_asked_again_when_its_answer_is_lost() -> None:
    with testing.Broker() as broker:
        async with (
            losing_answers(broker.port, ApiKey.DESCRIBE_CLUSTER, 1) as address,
            Cluster([address]) as cluster,
        ):
            assert (await describe_cluster(cluster, deadline(LONG_S))).brokers


async def test_what_changes_something_is_not() -> None:
    attempts = 0

    async def attempt() -> None:
        nonlocal attempts
        attempts += 1
        raise ConnectionLost("gone")

    async with Cluster([Address("127.0.0.1", 1)]) as cluster:
        with pytest.raises(ConnectionLost, match="gone; it may have been applied anyway"):
            await cluster.retrying(attempt, deadline(LONG_S), repeatable=False)
    assert attempts == 1


async def test_tries_end_at_the_deadline_with_the_last_failure() -> None:
    attempts = 0

    async def attempt() -> None:
        nonlocal attempts
        attempts += 1
        raise KafkaError(ErrorCode.NOT_COORDINATOR, f"attempt {attempts}")

    async with Cluster([Address("127.0.0.1", 1)]) as cluster:
        with pytest.raises(KafkaError) as failed:
            await cluster.retrying(attempt, deadline(0.5))
    assert attempts > 1
    assert failed.value.why == f"attempt {attempts}"


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_REQUEST])
async def test_what_cannot_pass_is_raised_at_once(code: ErrorCode) -> None:
    attempts = 0

    async def attempt() -> None:
        nonlocal attempts
        attempts += 1
        raise KafkaError(code)

    async with Cluster([Address("127.0.0.1", 1)]) as cluster:
        with pytest.raises(KafkaError):
            await cluster.retrying(attempt, deadline(LONG_S))
    assert attempts == 1


async def test_a_broker_that_hangs_is_given_up_at_the_deadline() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with listener(mute) as address, Cluster([address]) as cluster:
        began = deadline(0)
        with pytest.raises((Unreachable, RequestTimedOut), match="did not answer API_VERSIONS in time"):
            await describe_cluster(cluster, deadline(0.5))
        assert deadline(0) - began < 20


async def test_of_several_brokers_one_that_hangs_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answered before, so its connection is the one at hand."""
    # Half of a sufficiently long deadline would be long.
    monkeypatch.setattr(cluster_module, "share_of", lambda *_: deadline(0.5))
    with testing.Cluster(2, lease_term_ms=TERM_MS) as brokers:
        async with Cluster(parse_bootstrap(brokers.bootstrap)) as cluster:
            await describe_cluster(cluster, deadline(LONG_S))
            brokers.pause(0)
            try:
                facts = await describe_cluster(cluster, deadline(LONG_S))
            finally:
                brokers.resume(0)
    assert len(facts.brokers) == 2


async def test_nobody_waits_longer_than_he_may_for_a_connection_that_another_is_opening() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with listener(mute) as address, Cluster([address]) as cluster:
        patient = asyncio.create_task(cluster.metadata([], deadline(LONG_S)))
        await asyncio.sleep(0)
        async with asyncio.timeout(LONG_S / 2):
            with pytest.raises(Unreachable, match="in time"):
                await cluster.metadata([], deadline(0.1))
        patient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await patient


async def test_an_answer_that_leaves_out_what_was_asked_is_no_answer() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await shake_hands(reader, writer, {18: (0, 4), 3: (0, 12), 32: (1, 4)})
        while True:
            head, _ = await read_request(reader)
            if head.api_key == ApiKey.METADATA:
                answer(writer, head, MetadataResponse(brokers=[], topics=[]))
            else:
                answer(writer, head, DescribeConfigsResponse(results=[]))

    async with listener(silent) as address, Cluster([address]) as cluster:
        for asking in (
            describe_topics(cluster, ["t"], deadline(LONG_S)),
            cluster.topic("t", deadline(LONG_S)),
            describe_configs(cluster, [ConfigResource.of_topic("t")], deadline(LONG_S)),
        ):
            with pytest.raises(NotKafka, match=r"leaves out (topic )?t"):
                await asking


async def test_the_first_failure_of_several_ends_the_others() -> None:
    ended = asyncio.Event()

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def fails() -> None:
        raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        await all_of([waits(), fails()])
    assert ended.is_set()


async def test_many_who_ask_at_once_share_one_request() -> None:
    fake = FakeCluster()
    async with fake.listening(1) as addresses, Cluster(addresses) as cluster:
        wanted = [TopicPartition(f"t{index}", 0) for index in range(50)]
        fake.answering.clear()
        asking = [asyncio.create_task(cluster.leadership(each, deadline(LONG_S))) for each in wanted]
        await until(lambda: fake.requests[ApiKey.METADATA])
        fake.answering.set()
        assert await asyncio.gather(*asking) == [(1, 1)] * 50
        assert len(fake.asked) <= 2
        assert (await cluster.leadership(wanted[0], deadline(LONG_S)))[0] == 1
        assert len(fake.asked) <= 2, "what is known is not asked for"


async def test_closing_refuses_what_has_just_been_asked_for() -> None:
    cluster = Cluster([Address("127.0.0.1", free_ports(1))], patient=True)
    asking = (cluster.refresh(topics, deadline(2.0)) for topics in (["t"], [], None))
    *told, _ = await asyncio.gather(*asking, cluster.close(), return_exceptions=True)
    assert [repr(each) for each in told] == [repr(Closed("the client is closed"))] * 3


@each("all_first", [True, False])
async def test_a_missing_topic_is_told_beside_a_question_for_all(all_first: bool) -> None:
    """What is told about all topics does not name it."""
    fake = FakeCluster()
    fake.missing.add("missing")
    fake.leaders["t"] = (1, 1)
    async with fake.listening(1) as addresses, Cluster(addresses) as cluster:
        fake.answering.clear()
        busy = asyncio.create_task(cluster.refresh([], deadline(LONG_S)))
        await until(lambda: fake.requests[ApiKey.METADATA])
        both = (cluster.refresh(None, deadline(LONG_S)), cluster.topic("missing", deadline(LONG_S)))
        asking = [asyncio.create_task(each) for each in (both if all_first else reversed(both))]
        await turns()
        fake.answering.set()
        answers = await asyncio.gather(*asking, return_exceptions=True)
        of_all, failure = answers if all_first else reversed(answers)
        assert isinstance(of_all, MetadataResponse)
        assert [topic.name for topic in of_all.topics] == ["t"]
        assert isinstance(failure, KafkaError)
        assert failure.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await busy
        assert fake.asked == [[], *([None, ["missing"]] if all_first else [["missing"], None])]


async def test_what_is_stale_is_asked_for_once_and_nothing_else() -> None:
    fake = FakeCluster()
    async with fake.listening(1, 2) as addresses, Cluster(addresses) as cluster:
        first, second = TopicPartition("first", 0), TopicPartition("second", 0)
        await asyncio.gather(*(cluster.leadership(each, deadline(LONG_S)) for each in (first, second)))
        fake.leaders["first"] = (2, 2)
        assert await cluster.leadership(first, deadline(LONG_S)) == (1, 1)
        cluster.stale("first")
        assert await cluster.leadership(second, deadline(LONG_S)) == (1, 1)
        assert await cluster.leadership(first, deadline(LONG_S)) == (2, 2)
        assert await cluster.leadership(first, deadline(LONG_S)) == (2, 2)
        assert fake.asked[1:] == [["first"]]
        cluster.stale()
        await asyncio.gather(*(cluster.leadership(each, deadline(LONG_S)) for each in (first, second)))
        assert fake.asked[2:] == [["first", "second"]]


async def test_what_becomes_stale_while_it_is_asked_for_is_asked_for_again() -> None:
    fake = FakeCluster()
    where = TopicPartition("t", 0)
    async with fake.listening(1, 2) as addresses, Cluster(addresses) as cluster:
        fake.answering.clear()
        asking = asyncio.create_task(cluster.leadership(where, deadline(LONG_S)))
        await until(lambda: fake.requests[ApiKey.METADATA])
        cluster.stale("t")
        fake.answering.set()
        await asking
        fake.leaders["t"] = (2, 2)
        assert await cluster.leadership(where, deadline(LONG_S)) == (2, 2)


async def test_what_cannot_be_told_stays_stale() -> None:
    fake = FakeCluster()
    where = TopicPartition("t", 0)
    async with fake.listening(1) as addresses, Cluster(addresses) as cluster:
        await cluster.leadership(where, deadline(LONG_S))
        cluster.stale("t")
        fake.missing.add("t")
        for _ in range(2):
            with pytest.raises(KafkaError, match="topic t"):
                await cluster.leadership(where, deadline(LONG_S))
        fake.missing.clear()
        fake.answering.clear()
        with pytest.raises(RequestTimedOut, match="in time"):
            await cluster.leadership(where, deadline(0.1))
        fake.answering.set()
        assert await cluster.leadership(where, deadline(LONG_S)) == (1, 1)


async def test_an_older_leader_epoch_is_not_believed() -> None:
    fake = FakeCluster()
    where = TopicPartition("t", 0)
    async with fake.listening(1, 2) as addresses, Cluster(addresses) as cluster:
        fake.leaders["t"] = (2, 7)
        await cluster.leadership(where, deadline(LONG_S))
        fake.leaders["t"] = (1, 6)
        cluster.stale("t")
        assert await cluster.leadership(where, deadline(LONG_S)) == (2, 7)


async def test_a_hint_of_an_answer_moves_a_leader_without_asking() -> None:
    fake = FakeCluster()
    where = TopicPartition("t", 0)
    async with fake.listening(1, 2) as addresses, Cluster(addresses[:1]) as cluster:
        third = fake.nodes.pop(2)
        await cluster.leadership(where, deadline(LONG_S))
        endpoint = FetchResponse.NodeEndpoint(node_id=2, host=third.host, port=third.port)
        assert not cluster.new_leader(where, 2, 1, [endpoint])
        assert cluster.new_leader(where, 2, 2, [endpoint])
        assert await cluster.leadership(where, deadline(LONG_S)) == (2, 2)
        await cluster.call(MetadataRequest(topics=[]), deadline(LONG_S), node=2)
        assert fake.accepted == 2


async def test_a_partition_without_a_leader_or_that_is_not_there_is_asked_for_each_time() -> None:
    fake = FakeCluster()
    async with fake.listening(1) as addresses, Cluster(addresses) as cluster:
        fake.leaders["t"] = (-1, 3)
        for where, code in (
            (TopicPartition("t", 0), ErrorCode.LEADER_NOT_AVAILABLE),
            (TopicPartition("t", 1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ):
            with pytest.raises(KafkaError) as refused:
                await cluster.leadership(where, deadline(LONG_S))
            assert refused.value.code is code
        assert len(fake.asked) == 2
        fake.leaders["t"] = (1, 4)
        assert await cluster.leadership(TopicPartition("t", 0), deadline(LONG_S)) == (1, 4)


async def test_what_is_old_is_asked_for_beside_its_use() -> None:
    fake = FakeCluster()
    where = TopicPartition("t", 0)
    async with fake.listening(1, 2) as addresses, Cluster(addresses, metadata_max_age_ms=200) as cluster:
        await cluster.leadership(where, deadline(LONG_S))
        fake.leaders["t"] = (2, 2)

        async def moved() -> None:
            while await cluster.leadership(where, deadline(LONG_S)) != (2, 2):  # noqa: ASYNC110
                await asyncio.sleep(0)

        await asyncio.wait_for(moved(), LONG_S)
        # A refresh that hangs then delays nobody.
        fake.answering.clear()
        asked = fake.requests[ApiKey.METADATA]
        while fake.requests[ApiKey.METADATA] == asked:
            assert await cluster.leadership(where, deadline(LONG_S)) == (2, 2)
            await asyncio.sleep(0)
        assert await cluster.leadership(where, deadline(LONG_S)) == (2, 2)


async def test_topics_that_nobody_uses_any_more_are_not_asked_for() -> None:
    """A broker might create one again that has been deleted."""
    fake = FakeCluster()
    async with fake.listening(1) as addresses, Cluster(addresses, metadata_max_age_ms=1) as cluster:
        for name in ("used", "left"):
            await cluster.topic(name, deadline(LONG_S))
        fake.asked.clear()
        async with asyncio.timeout(LONG_S):
            while len(fake.asked) < 3:
                await cluster.topic("used", deadline(LONG_S))
                await asyncio.sleep(0)
        assert fake.asked[:3] == [["used"]] * 3


@pytest.mark.parametrize("last", [3, 6])
async def test_coordinators_of_several_groups(last: int) -> None:
    """In one request if the broker supports that."""
    fake = FakeCluster()
    fake.versions[ApiKey.FIND_COORDINATOR] = (0, last)
    async with fake.listening(1, 2) as addresses, Cluster(addresses) as cluster:
        await cluster.refresh([], deadline(LONG_S))
        fake.coordinator = 2
        found = await cluster.coordinators(["a", "b", "c", "a"], deadline(LONG_S))
        assert found == {"a": 2, "b": 2, "c": 2}
        assert fake.requests[ApiKey.FIND_COORDINATOR] == (1 if last == 6 else 3)
        assert await cluster.coordinators([], deadline(LONG_S)) == {}
        assert await cluster.coordinator("a", deadline(LONG_S)) == 2
        fake.coordinator = 1
        assert await cluster.coordinator("a", deadline(LONG_S)) == 2
        cluster.forget_coordinator("a")
        assert await cluster.coordinator("a", deadline(LONG_S)) == 1
        assert await cluster.coordinator("b", deadline(LONG_S)) == 2


async def test_more_groups_than_python_nests_calls_at_a_broker_that_takes_one_a_request() -> None:
    fake = FakeCluster()
    fake.versions[ApiKey.FIND_COORDINATOR] = (0, 3)
    groups = [f"g{number}" for number in range(sys.getrecursionlimit() + 1)]
    async with fake.listening(1) as addresses, Cluster(addresses) as cluster:
        assert await cluster.coordinators(groups, deadline(LONG_S)) == dict.fromkeys(groups, 1)
    assert fake.requests[ApiKey.FIND_COORDINATOR] == len(groups)


async def test_a_patient_client_waits_for_a_cluster_to_start() -> None:
    port = free_ports(1)
    fake = FakeCluster()
    async with Cluster([Address("127.0.0.1", port)], patient=True) as cluster:
        asking = asyncio.create_task(
            cluster.retrying(lambda: cluster.refresh([], deadline(LONG_S)), deadline(LONG_S))
        )
        await until(lambda: cluster._pool._lanes)
        async with listener(fake.serve, port):
            await asking
