"""Connections to the nodes of a cluster: kept, opened again, left alone for a while, found again."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import re
import socket
from functools import partial

import pytest

from muster.client import Consumer, Producer, TopicPartition
from muster.client.errors import Closed, ConnectionLost, RequestTimedOut, Unreachable
from muster.client.network.cluster import ANY, Cluster, ConnectionSettings
from muster.client.network.connection import Address, Connection, deadline
from muster.client.network.pool import Tries
from muster.coordinator import testing
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.metadata import MetadataRequest
from tests.client.fake_cluster import VERSIONS, FakeCluster
from tests.client.listeners import Handle, listener, read_request, shake_hands
from tests.support.facts import turns, until
from tests.support.ports import free_ports

LONG_S = 60.0
NEVER_MS = 3_600_000
DISTRUSTING = ConnectionSettings(reconnect_backoff_max_ms=NEVER_MS)
"""A node that failed is tried last for as long as any test takes."""

METADATA = MetadataRequest(topics=[])


async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def test_one_connection_serves_bootstrap_and_node() -> None:
    fake = FakeCluster()
    async with fake.listening(1) as addresses, Cluster(addresses) as cluster:
        await cluster.refresh([], deadline(LONG_S))
        await cluster.call(METADATA, deadline(LONG_S), node=1)
        await cluster.call(METADATA, deadline(LONG_S))
        assert fake.accepted == 1
        await cluster.call(METADATA, deadline(LONG_S), node=1, lane="fetch")
        assert fake.accepted == 2


async def test_many_who_want_a_connection_share_it() -> None:
    fake = FakeCluster()
    async with fake.listening(1) as addresses, Cluster(addresses) as cluster:
        await asyncio.gather(*(cluster.call(METADATA, deadline(LONG_S)) for _ in range(20)))
        assert fake.accepted == 1


async def test_a_connection_that_a_broker_closes_while_idle_is_no_error() -> None:
    """The loop was busy when the broker closed it, so nobody has noticed yet."""
    fake = FakeCluster()
    async with fake.listening(1) as addresses, Cluster(addresses) as cluster:
        await cluster.refresh([], deadline(LONG_S))
        connection = await cluster.connection(1, deadline(LONG_S))
        connection.used_at -= 600
        theirs = fake.writers[0].get_extra_info("socket")
        with socket.socket(fileno=os.dup(theirs.fileno())) as sock:
            sock.shutdown(socket.SHUT_WR)
        assert connection.is_open
        await cluster.call(METADATA, deadline(LONG_S), node=1)
        assert fake.accepted == 2


async def test_a_node_that_moves_to_another_port_is_followed() -> None:
    fake = FakeCluster()
    async with fake.listening(1, 2) as addresses, Cluster(addresses[:1]) as cluster:
        await cluster.refresh([], deadline(LONG_S))
        before = await cluster.connection(2, deadline(LONG_S))
        async with fake.listening(2) as (elsewhere,):
            await cluster.refresh([], deadline(LONG_S))
            after = await cluster.connection(2, deadline(LONG_S))
            assert after.address == elsewhere
            assert not before.is_open
            await cluster.call(METADATA, deadline(LONG_S), node=2)


async def test_a_node_that_moved_is_met_at_its_new_address_and_left_at_the_old_one() -> None:
    fake = FakeCluster()
    async with (
        fake.listening(1, 2) as addresses,
        listener(fake.serve) as moved,
        Cluster(addresses[:1]) as cluster,
    ):
        await cluster.refresh([], deadline(LONG_S))
        former = await cluster.connection(2, deadline(LONG_S))
        fake.nodes[2] = moved
        tries = cluster.tries()
        with tries:
            await cluster.refresh([], deadline(LONG_S))
        tries.again()
        assert cluster._pool._meeting is not None
        await cluster._pool._meeting
        assert (await cluster.connection(2, deadline(LONG_S))).address == moved
        assert not former.is_open


async def test_another_cluster_on_the_same_port_is_noticed() -> None:
    """A broker of another cluster takes over a node's address, and says so (KIP-1242)."""
    port = free_ports(1)
    with testing.Broker(port=port) as broker:
        cluster = Cluster([Address("127.0.0.1", port)])
        await cluster.refresh([], deadline(LONG_S))
        (node,) = cluster.image.nodes
        first = cluster.image.cluster_id
        connection = await cluster.connection(node, deadline(LONG_S))
        broker.close()
    async with cluster:
        await until(lambda: not connection.is_open)
        with testing.Broker(port=port):
            with pytest.raises(Unreachable, match=f"is not broker {node} of cluster {first} any more"):
                await cluster.call(METADATA, deadline(LONG_S), node=node)
            await cluster.refresh([], deadline(LONG_S))
            assert cluster.image.cluster_id != first
            await cluster.call(METADATA, deadline(LONG_S), node=node)


async def test_a_node_that_does_not_let_us_connect_is_left_alone_for_a_while() -> None:
    fake = FakeCluster()
    settings = ConnectionSettings(reconnect_backoff_ms=NEVER_MS, reconnect_backoff_max_ms=NEVER_MS)
    async with fake.listening(1) as addresses, Cluster(addresses, settings=settings) as cluster:
        gone = Address("127.0.0.1", free_ports(1))
        fake.nodes[2] = gone
        await cluster.refresh([], deadline(LONG_S))
        with pytest.raises(Unreachable) as failed:
            await cluster.call(METADATA, deadline(LONG_S), node=2)
        assert str(failed.value) == (
            f"no connection to {gone}: connection refused (broker 2 advertises this address)"
        )
        for _ in range(20):
            assert cluster.least_loaded("new") == 1
        with pytest.raises(Unreachable, match="no time left to try again"):
            await cluster.call(METADATA, deadline(0.2), node=2)


async def test_who_comes_too_late_to_connect_at_all_has_no_answer_in_time() -> None:
    fake = FakeCluster()
    async with fake.listening(1) as addresses, Cluster(addresses) as cluster:
        with pytest.raises(Unreachable, match="no answer in time"):
            await cluster.call(METADATA, deadline(0))


async def test_that_no_broker_answers_is_said_once_until_one_does(caplog: pytest.LogCaptureFixture) -> None:
    port = free_ports(1)
    address = Address("127.0.0.1", port)
    settings = ConnectionSettings(reconnect_backoff_ms=0)
    async with Cluster([address], settings=settings, patient=True) as cluster:
        for _ in range(2):
            for _ in range(3):
                with pytest.raises(Unreachable):
                    await cluster.call(METADATA, deadline(LONG_S))
            assert caplog.messages == [
                f"no broker can be reached: no connection to {address}: connection refused"
            ]
            async with testing.Broker(port=port):
                await cluster.call(METADATA, deadline(LONG_S))
            caplog.clear()


async def test_a_failure_that_is_raised_at_once_is_not_logged_as_well(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A caller that prints the error would report everything twice."""
    port = free_ports(1)
    settings = ConnectionSettings(reconnect_backoff_ms=0)
    async with Cluster([Address("127.0.0.1", port)], settings=settings) as cluster:
        with pytest.raises(Unreachable):
            await cluster.call(METADATA, deadline(LONG_S))
        assert caplog.messages == []
        async with testing.Broker(port=port):
            await cluster.call(METADATA, deadline(LONG_S))
        with pytest.raises(Unreachable):  # from here on calls are repeated until their deadline
            await _called_again(cluster)
        assert len(caplog.messages) == 1


async def _called_again(cluster: Cluster) -> None:
    """Call until the loss of the broker is noticed: at first its connection may look open."""
    async with asyncio.timeout(LONG_S):
        while True:
            with contextlib.suppress(ConnectionLost):
                await cluster.call(METADATA, deadline(LONG_S))


async def test_a_timer_that_ends_early_does_not_end_the_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop's timers count whole milliseconds."""

    sleep = asyncio.sleep

    async def wake_early(_: float) -> None:
        await sleep(0)

    fake = FakeCluster()
    settings = ConnectionSettings(reconnect_backoff_ms=NEVER_MS, reconnect_backoff_max_ms=NEVER_MS)
    async with fake.listening(1) as addresses, Cluster(addresses, settings=settings) as cluster:
        fake.nodes[2] = Address("127.0.0.1", free_ports(1))
        await cluster.refresh([], deadline(LONG_S))
        with pytest.raises(Unreachable, match="refused"):
            await cluster.call(METADATA, deadline(LONG_S), node=2)
        monkeypatch.setattr(asyncio, "sleep", wake_early)
        with pytest.raises(Unreachable, match="no time left to try again"):
            await cluster.call(METADATA, deadline(LONG_S), node=2)


async def test_a_connection_that_ends_before_anything_was_asked_never_came_about() -> None:
    """So a request that is not repeatable can be tried again."""

    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)

    fake = FakeCluster()
    async with fake.listening(1) as addresses, listener(closing) as bad, Cluster(addresses) as cluster:
        fake.nodes[2] = bad
        await cluster.refresh([], deadline(LONG_S))
        with pytest.raises(Unreachable, match="before it said what it speaks") as failed:
            await cluster.call(METADATA, deadline(LONG_S), node=2)
        assert not cluster.is_final(failed.value)


@pytest.fixture(params=["in order", "reversed"])
def order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Try candidates in one order, or in reverse: nothing is left to chance."""
    monkeypatch.setattr(random, "shuffle", list.reverse if request.param == "reversed" else lambda _: None)


async def accepts_and_closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Like a broker that turns its clients away."""


async def closes_when_asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await shake_hands(reader, writer, VERSIONS)
    await read_request(reader)


@pytest.mark.parametrize("bad", [accepts_and_closes, closes_when_asked])
async def test_a_broker_that_closes_is_not_begun_with_again(order: None, bad: Handle) -> None:
    fake = FakeCluster()
    async with (
        fake.listening(1) as (good,),
        listener(bad) as address,
        Cluster([address, good], settings=DISTRUSTING) as cluster,
    ):
        tries = 0

        async def ask() -> None:
            nonlocal tries
            tries += 1
            await cluster.call(METADATA, deadline(LONG_S))

        await cluster.retrying(ask, deadline(LONG_S))
        assert tries <= 2


async def test_an_impatient_client_gives_up_when_every_address_closes_at_the_first_request() -> None:
    """As a SASL listener does to clients without SASL."""
    async with (
        listener(closes_when_asked) as one,
        listener(closes_when_asked) as other,
        Cluster([one, other]) as cluster,
    ):

        async def ask() -> None:
            await cluster.call(METADATA, deadline(LONG_S))

        with pytest.raises(ConnectionLost, match="at the first request: it may be a listener for SASL"):
            await asyncio.wait_for(cluster.retrying(ask, math.inf), LONG_S)


async def test_a_node_that_closes_is_not_asked_again_while_another_answers(order: None) -> None:
    """Although others have use for it, and connect to it again and again, so that it is the least loaded."""
    fake = FakeCluster()
    async with (
        listener(closes_when_asked) as bad,
        fake.listening(2) as addresses,
        Cluster(addresses, settings=DISTRUSTING) as cluster,
    ):
        fake.nodes = {1: bad, **fake.nodes}
        fake.coordinator = 2
        tries = cluster.tries()
        with tries:
            await cluster.refresh([], deadline(LONG_S))
        await cluster.connection(1, deadline(LONG_S))
        tries.again()  # so that it is the bad one's turn
        failures = 0
        for _ in range(5):
            await cluster.connection(1, deadline(LONG_S))
            try:
                with tries:
                    await cluster.coordinators(["g"], deadline(LONG_S))
            except ConnectionLost:
                failures += 1
        assert failures == 1
        assert cluster.least_loaded() == 2


async def test_of_those_that_have_failed_the_first_to_fail_is_asked_first(order: None) -> None:
    fake = FakeCluster()
    async with fake.listening(1, 2, 3) as addresses, Cluster(addresses, settings=DISTRUSTING) as cluster:
        await cluster.refresh([], deadline(LONG_S))
        for node in (2, 3, 1):
            await cluster.connection(node, deadline(LONG_S))
            cluster._pool.failed(node, addresses[node - 1])
        for node in (2, 3, 1):
            assert cluster.least_loaded() == node
            connection = await cluster.connection(ANY, deadline(LONG_S))
            assert connection.node_id == node
            cluster._pool.failed(node, addresses[node - 1])


async def test_reconnect_backoff_doubles_and_ends_with_success() -> None:
    fake = FakeCluster()
    settings = ConnectionSettings(reconnect_backoff_ms=100, reconnect_backoff_max_ms=100_000)
    async with fake.listening(1) as addresses, Cluster(addresses, settings=settings) as cluster:
        port = free_ports(1)
        fake.nodes[2] = Address("127.0.0.1", port)
        await cluster.refresh([], deadline(LONG_S))
        failures = 0
        began = deadline(0)
        while failures < 4:
            with pytest.raises(Unreachable):
                await cluster.call(METADATA, deadline(LONG_S), node=2)
            failures += 1
        # 100, 200 and 400 ms lie between the four, give or take a fifth.
        assert deadline(0) - began > 0.8 * 0.7
        async with listener(fake.serve, port):
            await cluster.call(METADATA, deadline(LONG_S), node=2)
        assert cluster._pool._failures == {}


async def test_least_loaded_is_who_has_the_fewest_requests_in_flight() -> None:
    fake = FakeCluster()
    async with fake.listening(1, 2) as addresses, Cluster(addresses[:1]) as cluster:
        assert cluster.least_loaded() == ANY
        await cluster.refresh([], deadline(LONG_S))
        for node in (1, 2):
            await cluster.connection(node, deadline(LONG_S))
        fake.answering.clear()
        waiting = []
        for busy, idle in ((1, 2), (2, 1), (1, 2)):
            node = cluster.least_loaded() if waiting else busy
            if len(waiting) % 2:
                assert node == busy
            waiting.append(asyncio.create_task(cluster.call(METADATA, deadline(LONG_S), node=busy)))
            connection = await cluster.connection(busy, deadline(LONG_S))
            expected = sum(1 for _ in waiting[::2]) if busy == 1 else 1
            await until(lambda: connection.in_flight == expected)  # noqa: B023
            if len(waiting) % 2:
                assert cluster.least_loaded() == idle
        fake.answering.set()
        await asyncio.gather(*waiting)


async def test_a_request_that_any_broker_can_answer_stays_with_one_until_it_is_repeated() -> None:
    """Who was told of a new topic by a broker asks that one again; who was not asks another."""
    fake = FakeCluster()
    async with fake.listening(1, 2) as addresses, Cluster(addresses[:1], retry_backoff_ms=1) as cluster:
        await cluster.refresh([], deadline(LONG_S))
        one, other = [await cluster.connection(node, deadline(LONG_S)) for node in (1, 2)]
        asked: list[Connection] = []

        async def ask() -> None:
            asked.append(await cluster.connection(ANY, deadline(LONG_S)))
            if len(asked) % 2:
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)

        await cluster.retrying(ask, deadline(LONG_S))
        assert set(asked) == {one, other}
        assert {await cluster.connection(ANY, deadline(LONG_S)) for _ in range(9)} == {asked[1]}


async def test_a_repeated_request_goes_to_a_known_broker_that_nobody_has_connected_to_yet() -> None:
    fake = FakeCluster()
    async with fake.listening(1, 2) as addresses, Cluster(addresses[:1], retry_backoff_ms=1) as cluster:
        asked: list[Connection] = []

        async def ask() -> None:
            await cluster.refresh([], deadline(LONG_S))
            asked.append(await cluster.connection(ANY, deadline(LONG_S)))
            if asked[-1].address == addresses[0]:
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)

        await cluster.retrying(ask, deadline(LONG_S))
        assert {await cluster.connection(ANY, deadline(LONG_S)) for _ in range(9)} == {asked[-1]}
        assert fake.accepted == 2


@pytest.mark.parametrize("known", ["no broker", "a coordinator"])
async def test_a_repeated_request_asks_which_other_brokers_there_are(known: str) -> None:
    fake = FakeCluster()
    async with fake.listening(1, 2) as addresses, Cluster(addresses[:1], retry_backoff_ms=1) as cluster:
        if known == "a coordinator":
            assert await cluster.coordinator("g", deadline(LONG_S)) == 1
        asked: list[Connection] = []
        fake.answering.clear()

        async def ask() -> None:
            asked.append(await cluster.connection(ANY, deadline(LONG_S)))
            assert len(asked) > 1 or not fake.asked
            if len(asked) == 5:
                fake.answering.set()
            if asked[-1].address == addresses[0]:
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)

        await cluster.retrying(ask, deadline(LONG_S))
        assert asked[-1].address == addresses[1]
        await cluster.refresh(["t"], deadline(LONG_S))
        assert fake.asked == [[], ["t"]]  # once, however long the answer took


@pytest.mark.parametrize("other", ["refuses", "is silent"])
async def test_a_repeated_request_stays_where_it_was_answered_if_no_other_broker_can_be_reached(
    other: str,
) -> None:
    fake = FakeCluster()
    async with (
        fake.listening(1) as addresses,
        listener(mute) as silent,
        Cluster(addresses, retry_backoff_ms=1, retry_backoff_max_ms=1) as cluster,
    ):
        fake.nodes[2] = silent if other == "is silent" else Address("127.0.0.1", free_ports(1))
        await cluster.refresh([], deadline(LONG_S))
        asked: list[int] = []

        async def ask() -> None:
            asked.append((await cluster.connection(ANY, deadline(LONG_S))).node_id)
            if len(asked) < 100:
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)

        began = deadline(0)
        await cluster.retrying(ask, deadline(LONG_S))
        assert asked == [1] * 100
        assert deadline(0) - began < LONG_S / 2
        meeting = cluster._pool._meeting
        assert meeting is not None
        await cluster.close()
        assert meeting.done()


async def test_of_two_who_repeat_a_request_each_asks_every_broker() -> None:
    """They take turns, so that each would always meet the same broker if they moved on together."""
    fake = FakeCluster()
    async with fake.listening(1, 2) as addresses, Cluster(addresses[:1], retry_backoff_ms=1) as cluster:
        await cluster.refresh([], deadline(LONG_S))
        for node in (1, 2):
            await cluster.connection(node, deadline(LONG_S))
        turns_of = [asyncio.Semaphore(1), asyncio.Semaphore(0)]
        asked: list[list[int]] = [[], []]

        async def ask(number: int) -> None:
            await turns_of[number].acquire()
            asked[number].append((await cluster.connection(ANY, deadline(LONG_S))).node_id)
            turns_of[1 - number].release()
            if len(asked[number]) < 4:
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)

        await asyncio.gather(
            *(cluster.retrying(partial(ask, number), deadline(LONG_S)) for number in range(2))
        )
        for nodes in asked:
            assert nodes in ([1, 2, 1, 2], [2, 1, 2, 1])


async def test_what_two_ask_for_in_one_request_is_repeated_by_both_at_another_broker() -> None:
    fake = FakeCluster()
    async with fake.listening(1, 2) as addresses, Cluster(addresses[:1]) as cluster:
        await cluster.refresh([], deadline(LONG_S))
        for node in (1, 2):
            await cluster.connection(node, deadline(LONG_S))
        both = cluster.tries(), cluster.tries()

        async def ask(tries: Tries) -> None:
            with tries:
                await cluster.refresh([], deadline(LONG_S))

        asked = []
        for _ in range(4):
            await asyncio.gather(*map(ask, both))
            asked.append(cluster._pool._last)
            for each in both:
                each.again()
        assert asked in (addresses * 2, addresses[::-1] * 2)


@pytest.mark.parametrize(
    ("api", "error"),
    [("Metadata", "UNKNOWN_TOPIC_OR_PARTITION"), ("InitProducerId", "COORDINATOR_LOAD_IN_PROGRESS")],
)
async def test_a_producer_that_knows_one_broker_asks_another_if_that_one_cannot_tell(
    api: str, error: str
) -> None:
    async with testing.Cluster(2) as brokers:
        await brokers.create_topic("orders", 1)
        first = brokers.bootstrap.split(",")[0]
        about = {"topic": "orders"} if api == "Metadata" else {}
        async with (
            brokers.faults.add(api=api, broker=1, error=error, times=None, **about) as fault,
            Producer(first) as producer,
        ):
            await producer.send("orders", b"tea")
            assert fault.fired >= 1


@pytest.mark.parametrize("error", ["UNKNOWN_TOPIC_OR_PARTITION", "LEADER_NOT_AVAILABLE"])
@pytest.mark.parametrize("by", ["assign", "names", "pattern", "consumer protocol"])
async def test_a_consumer_that_knows_one_broker_asks_another_if_that_one_cannot_tell(
    by: str, error: str
) -> None:
    async with testing.Cluster(2) as brokers:
        await brokers.create_topic("orders", 1)
        await brokers.produce("orders", [b"tea"])
        first = brokers.bootstrap.split(",")[0]
        protocol = {"group_protocol": "consumer"} if by == "consumer protocol" else {}
        async with (
            brokers.faults.add(api="Metadata", topic="orders", error=error, broker=1, times=None) as fault,
            Consumer(first, group_id="g", auto_offset_reset="earliest", **protocol) as consumer,
        ):
            if by == "assign":
                consumer.assign([TopicPartition("orders", 0)])
            else:
                consumer.subscribe(re.compile("ord.*") if by == "pattern" else "orders")
            assert (await consumer.get(timeout=LONG_S)).value == b"tea"
            assert fault.fired >= 1


NO_COORDINATOR = {"api": "FindCoordinator", "error": "COORDINATOR_NOT_AVAILABLE", "broker": 1, "times": None}


async def test_a_transaction_begins_though_one_broker_cannot_tell_who_coordinates_it() -> None:
    async with testing.Cluster(2) as brokers:
        await brokers.create_topic("orders", 1)
        first = brokers.bootstrap.split(",")[0]
        async with (
            brokers.faults.add(**NO_COORDINATOR) as fault,
            Producer(first, transactional_id="t") as producer,
        ):
            async with producer.transaction():
                await producer.send("orders", b"tea")
            assert fault.fired >= 1


@pytest.mark.parametrize("how", ["subscribe", "assign"])
async def test_a_group_is_found_though_one_broker_cannot_tell_who_coordinates_it(how: str) -> None:
    async with testing.Cluster(2) as brokers:
        await brokers.create_topic("orders", 1)
        await brokers.produce("orders", [b"tea"])
        first = brokers.bootstrap.split(",")[0]
        async with (
            brokers.faults.add(**NO_COORDINATOR) as fault,
            Consumer(first, group_id="g", auto_offset_reset="earliest") as consumer,
        ):
            if how == "subscribe":
                consumer.subscribe("orders")
            else:
                consumer.assign([TopicPartition("orders", 0)])
            assert (await consumer.get(timeout=LONG_S)).value == b"tea"
            assert (await consumer.commit(timeout=LONG_S)).ok
            assert fault.fired >= 1


async def test_when_no_known_node_answers_it_begins_anew_where_it_began() -> None:
    """KIP-899: all nodes have moved; the bootstrap address still leads to the cluster."""
    fake = FakeCluster()
    async with fake.listening(1) as addresses, Cluster(addresses) as cluster:
        fake.nodes = {node: Address("127.0.0.1", free_ports(1)) for node in (1, 2)}
        await cluster.refresh([], deadline(LONG_S))
        fake.writers[0].close()
        await until(lambda: cluster._pool._open_to_any("") is None)
        async with fake.listening(1, 2):
            await cluster.refresh([], deadline(LONG_S))
            await cluster.call(METADATA, deadline(LONG_S), node=2)


async def test_a_broker_may_ask_to_begin_anew() -> None:
    """KIP-1102."""
    fake = FakeCluster()
    async with fake.listening(1, 2) as addresses, Cluster(addresses[:1]) as cluster:
        await cluster.refresh([], deadline(LONG_S))
        fake.metadata_error = ErrorCode.REBOOTSTRAP_REQUIRED
        with pytest.raises(Unreachable, match="begin anew"):
            await cluster.refresh([], deadline(LONG_S))
        assert not cluster.image.nodes
        fake.metadata_error = ErrorCode.NONE
        await cluster.refresh([], deadline(LONG_S))
        assert set(cluster.image.nodes) == {1, 2}


async def test_who_begins_anew_leaves_the_connection_to_a_bootstrap_address_too() -> None:
    """The broker there asked for it, and advertises another address than the one given."""
    fake = FakeCluster()
    async with fake.listening(1) as ((_, port),), Cluster([Address("localhost", port)]) as cluster:
        await cluster.refresh([], deadline(LONG_S))
        assert fake.accepted == 1
        fake.metadata_error = ErrorCode.REBOOTSTRAP_REQUIRED
        with pytest.raises(Unreachable, match="begin anew"):
            await cluster.refresh([], deadline(LONG_S))
        fake.metadata_error = ErrorCode.NONE
        await cluster.refresh([], deadline(LONG_S))
        assert fake.accepted == 2


async def test_an_address_that_is_silent_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "shuffle", lambda _: None)
    fake = FakeCluster()
    async with (
        fake.listening(1) as (good,),
        listener(mute) as first,
        listener(mute) as second,
        Cluster([first, second, good], settings=DISTRUSTING) as cluster,
    ):
        began = deadline(0)
        await cluster.refresh([], deadline(10 * LONG_S))
        assert deadline(0) - began < LONG_S
        await until(lambda: cluster._pool._rank(first) > cluster._pool._rank(good) == 0)


async def test_setting_up_a_connection_takes_no_longer_than_it_may() -> None:
    settings = ConnectionSettings(
        socket_connection_setup_timeout_ms=100, socket_connection_setup_timeout_max_ms=100
    )
    async with listener(mute) as address, Cluster([address], settings=settings) as cluster:
        with pytest.raises(Unreachable, match="did not answer API_VERSIONS in time"):
            await cluster.refresh([], deadline(10 * LONG_S))


async def test_who_has_little_patience_costs_nobody_else_a_connection() -> None:
    """A request that any broker may answer uses another connection; a request for this node does not."""
    fake = FakeCluster()
    async with fake.listening(1) as addresses, Cluster(addresses, request_timeout_ms=NEVER_MS) as cluster:
        await cluster.refresh([], deadline(LONG_S))
        fake.answering.clear()
        patient = asyncio.create_task(cluster.call(METADATA, deadline(LONG_S), node=1))
        await until(lambda: fake.requests[3] == 2)
        with pytest.raises(RequestTimedOut):
            await cluster.call(METADATA, deadline(0.1), node=1)
        asking_any = asyncio.create_task(cluster.call(METADATA, deadline(LONG_S)))
        await until(lambda: fake.requests[3] == 3)
        behind = asyncio.create_task(cluster.call(METADATA, deadline(LONG_S), node=1))
        await turns()
        assert fake.accepted == 2
        fake.answering.set()
        await asyncio.gather(patient, asking_any, behind)
        assert fake.accepted == 2


async def test_what_is_not_used_is_closed_before_the_broker_does() -> None:
    fake = FakeCluster()
    settings = ConnectionSettings(connections_max_idle_ms=200)
    async with fake.listening(1) as addresses, Cluster(addresses, settings=settings) as cluster:
        await cluster.refresh([], deadline(LONG_S))
        connection = cluster._pool._open_to_any("")
        assert connection is not None
        async with asyncio.timeout(LONG_S):
            await asyncio.wait([connection._gone])
        await cluster.call(METADATA, deadline(LONG_S))
        assert fake.accepted == 2


async def test_a_closed_cluster_takes_no_calls_and_ends_those_under_way() -> None:
    fake = FakeCluster()
    async with fake.listening(1) as addresses:
        cluster = Cluster(addresses)
        await cluster.refresh([], deadline(LONG_S))
        fake.answering.clear()
        calling = asyncio.create_task(cluster.call(METADATA, deadline(LONG_S)))
        refreshing = asyncio.create_task(cluster.refresh(["t"], deadline(LONG_S)))
        await until(lambda: fake.requests[3] == 2)
        await cluster.close()
        with pytest.raises(ConnectionLost, match="was closed"):
            await calling
        with pytest.raises(Closed):
            await refreshing
        for again in (cluster.call(METADATA, deadline(LONG_S)), cluster.refresh([], deadline(LONG_S))):
            with pytest.raises(Closed):
                await again
        await cluster.close()


async def test_closing_ends_what_is_still_connecting() -> None:
    async with listener(mute) as address:
        cluster = Cluster([address])
        connecting = asyncio.create_task(cluster.refresh([], deadline(LONG_S)))
        await turns()
        async with asyncio.timeout(LONG_S / 2):
            await cluster.close()
            with pytest.raises(Closed):
                await connecting


@pytest.mark.parametrize("count", range(0, 60, 2))
async def test_asking_can_be_cancelled_at_every_turn(count: int) -> None:
    """The cluster is usable afterwards, and nothing is left behind once it is closed."""
    fake = FakeCluster()
    async with fake.listening(1, 2) as addresses, Cluster(addresses) as cluster:

        async def ask() -> None:
            await cluster.topic("t", deadline(LONG_S))
            await cluster.coordinator("g", deadline(LONG_S))
            await cluster.call(METADATA, deadline(LONG_S), node=2, lane="other")

        task = asyncio.create_task(ask())
        await turns(count)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await ask()


@pytest.mark.parametrize("count", range(12))
async def test_closing_can_be_cancelled_at_every_turn(count: int) -> None:
    fake = FakeCluster()
    async with fake.listening(1, 2) as addresses:
        cluster = Cluster(addresses)
        await cluster.refresh([], deadline(LONG_S))
        await cluster.call(METADATA, deadline(LONG_S), node=2)
        closing = asyncio.create_task(cluster.close())
        await turns(count)
        closing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await closing
