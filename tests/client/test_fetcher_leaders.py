"""Which of the in-memory brokers a fetcher asks, and how it handles their answers: leaders that move,
refusals, sessions, quotas, and answers that no broker should give."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from muster.client.errors import ConnectionLost, NotKafka
from muster.client.fetch.positions import Position
from muster.client.network.metadata import Node
from muster.client.partitions import TopicPartition
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.data import (
    FetchRequest,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from muster.protocol.messages.metadata import MetadataResponse
from tests.client.fetch_fakes import T0, T1, T2, Reader, batch, one_topic
from tests.support.facts import turns, until

# --- leaders ------------------------------------------------------------------------------------------------


async def test_each_broker_is_asked_for_what_it_leads() -> None:
    cluster = one_topic(2, nodes=(1, 2))
    cluster.logs[T1].leader = 2
    for where in (T0, T1):
        cluster.append(where, batch(0, b"%d" % where.partition))
    async with Reader(cluster) as reader:
        reader.begin(T0, T1)
        assert sorted(each or b"" for each in await reader.values(2)) == [b"0", b"1"]
        assert {
            (node, part.partition)
            for request, node, _ in cluster.requests
            if isinstance(request, FetchRequest)
            for part in request.topics[0].partitions
        } == {(1, 0), (2, 1)}


async def test_a_broker_that_hangs_holds_up_its_own_partitions_alone() -> None:
    cluster = one_topic(2, nodes=(1, 2))
    cluster.logs[T1].leader = 2
    cluster.hangs.add(1)
    async with Reader(cluster) as reader:
        reader.begin(T0, T1)
        for offset in range(5):
            cluster.append(T1, batch(offset, b"%d" % offset))
            assert await reader.values(1) == [b"%d" % offset]


async def test_what_moves_to_a_broker_while_its_connection_is_lost_is_read() -> None:
    cluster = one_topic(2, nodes=(1, 2))
    cluster.logs[T1].leader = 2
    cluster.hangs.add(1)
    async with Reader(cluster) as reader:
        reader.begin(T0, T1)
        await until(lambda: {node for _, node, _ in cluster.requests} == {1, 2})
        # The fetcher learns of the move when the Fetch that waits at the new leader fails.
        cluster.logs[T1].leader = 1
        cluster.learn()
        cluster.fails[1] = ConnectionLost("gone")
        cluster.released.set()
        await until(lambda: reader.fetcher.troubles)
        cluster.fails.clear()
        cluster.append(T1, batch(0, b"1"))
        assert await reader.values(1) == [b"1"]


async def test_what_two_brokers_answer_while_a_partition_moves_is_taken_once() -> None:
    cluster = one_topic(nodes=(1, 2))
    cluster.append(T0, batch(0, b"0"))
    cluster.hangs.add(1)
    async with Reader(cluster, max_wait_ms=600_000) as reader:
        reader.begin(T0)
        await until(lambda: cluster.fetches)
        cluster.logs[T0].leader, cluster.logs[T0].replicas = 2, {1}
        cluster.learn()
        reader.fetcher.set_assigned([T0])
        assert await reader.values(1) == [b"0"]
        await until(lambda: [node for _, node, _ in cluster.requests].count(2) == 2)
        await turns()
        # The old leader's answer refers to the position at the time of the request.
        cluster.logs[T0].refuses = [ErrorCode.OFFSET_OUT_OF_RANGE]
        cluster.released.set()
        await until(lambda: not cluster.logs[T0].refuses)
        await turns()
        cluster.append(T0, batch(1, b"1"))
        assert [each.offset for each in await reader.read(1)] == [1]
        assert reader.resets == []


async def test_what_the_old_leader_sends_while_a_partition_moves_is_taken() -> None:
    cluster = one_topic(nodes=(1, 2))
    cluster.append(T0, batch(0, b"0"))
    cluster.hangs |= {1, 2}
    async with Reader(cluster) as reader:
        reader.begin(T0)
        await until(lambda: cluster.fetches)
        cluster.logs[T0].leader, cluster.logs[T0].replicas = 2, {1}
        cluster.learn()
        reader.fetcher.set_assigned([T0])
        await until(lambda: [node for _, node, _ in cluster.requests] == [1, 2])
        await turns()  # The new leader hangs as well, so that the old one answers first.
        cluster.hangs.clear()
        cluster.released.set()
        assert await reader.values(1) == [b"0"]
        cluster.append(T0, batch(1, b"1"))
        assert [each.offset for each in await reader.read(1)] == [1]


async def test_a_partition_without_a_leader_does_not_stop_the_others() -> None:
    cluster = one_topic(2)
    cluster.logs[T0].leader = -1
    async with Reader(cluster) as reader:
        reader.fetcher.set_assigned([T0, T1])
        reader.fetcher.reset(T0)
        reader.fetcher.seek(T1, Position(0))
        for offset in range(5):
            cluster.append(T1, batch(offset, b"%d" % offset))
            assert await reader.values(1) == [b"%d" % offset]
        await until(lambda: reader.fetcher.troubles)
        assert (
            str(reader.fetcher.troubles[T0].error) == "LEADER_NOT_AVAILABLE: t-0 has no leader at the moment"
        )
        cluster.append(T0, batch(0, b"back"))
        cluster.logs[T0].leader = 1
        assert await reader.values(1) == [b"back"]
        assert reader.fetcher.troubles == {}


async def test_troubles_of_idle_partitions_end_with_their_cause() -> None:
    """In a fetch session, brokers list only partitions with news."""
    cluster = one_topic(3, nodes=(1, 2))
    cluster.has_sessions = True
    cluster.logs[T2].leader = 2
    for where in (T0, T1, T2):
        cluster.append(where, batch(0, b"0"))
    async with Reader(cluster, max_wait_ms=600_000) as reader:
        reader.begin(T0, T1, T2)
        await reader.read(3)
        await until(lambda: sorted(node for _, node, _ in cluster.requests) == [1, 1, 2, 2])
        # The topic is unknown for a moment, while a Fetch waits at broker 1.
        cluster.missing["t"] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        cluster.logs[T2].refuses = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        cluster.tell()
        await until(lambda: reader.fetcher.troubles.keys() == {T0, T1, T2})
        cluster.append(T0, batch(1, b"1"))
        assert await reader.values(1) == [b"1"]
        assert T1 in reader.fetcher.troubles
        cluster.missing.clear()
        cluster.append(T0, batch(2, b"2"))
        cluster.append(T2, batch(1, b"1"))
        assert sorted(await reader.values(2), key=str) == [b"1", b"2"]
        assert reader.fetcher.troubles == {}


async def test_a_response_that_a_quota_holds_back_ends_no_troubles() -> None:
    cluster = one_topic(2)
    cluster.has_sessions = True
    for where in (T0, T1):
        cluster.append(where, batch(0, b"0"))
    async with Reader(cluster, max_wait_ms=600_000) as reader:
        reader.begin(T0, T1)
        await reader.read(2)
        cluster.logs[T1].refuses = [ErrorCode.KAFKA_STORAGE_ERROR] * 1_000
        cluster.tell()
        await until(lambda: T1 in reader.fetcher.troubles)
        since = reader.fetcher.troubles[T1].since
        cluster.withholds = True
        cluster.append(T0, batch(1, b"1"))
        await until(lambda: T1 in cluster.withheld)
        asked = len(cluster.fetches)
        await until(lambda: len(cluster.fetches) > asked)
        assert reader.fetcher.troubles[T1].since == since
        cluster.withholds = False
        cluster.logs[T1].refuses.clear()
        cluster.append(T1, batch(1, b"1"))
        assert await reader.values(2) == [b"1", b"1"]
        assert reader.fetcher.troubles == {}


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
async def test_what_may_pass_is_tried_again_with_fresh_metadata(code: ErrorCode) -> None:
    cluster = one_topic()
    cluster.append(T0, batch(0, b"0"))
    cluster.logs[T0].refuses = [code, code]
    async with Reader(cluster) as reader:
        reader.begin(T0)
        refreshed = len(cluster.refreshed)
        assert await reader.values(1) == [b"0"]
        assert len(cluster.refreshed) > refreshed
        assert reader.fetcher.troubles == {}


@pytest.mark.parametrize("code", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_REQUEST])
async def test_what_cannot_pass_is_raised_for_its_partition(code: ErrorCode) -> None:
    cluster = one_topic(2)
    cluster.logs[T0].refuses = [code]
    cluster.append(T1, batch(0, b"1"))
    async with Reader(cluster) as reader:
        reader.begin(T0, T1)
        assert await reader.values(1) == [b"1"]
        raised = await reader.raised(KafkaError)
        assert raised.code is code
        assert "t-0" in str(raised)


async def test_a_topic_that_may_not_be_seen_is_raised() -> None:
    cluster = one_topic()
    cluster.missing["t"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    async with Reader(cluster) as reader:
        reader.begin(T0)
        raised = await reader.raised(KafkaError)
        assert raised.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_a_topic_that_is_gone_may_come_back() -> None:
    cluster = one_topic()
    cluster.append(T0, batch(0, b"0"))
    cluster.missing["t"] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    async with Reader(cluster) as reader:
        reader.fetcher.set_assigned([T0])
        reader.fetcher.reset(T0)
        await until(lambda: reader.fetcher.troubles)
        assert "topic t" in str(reader.fetcher.troubles[T0].error)
        del cluster.missing["t"]
        assert await reader.values(1) == [b"0"]


async def test_it_follows_a_partition_to_its_next_leader() -> None:
    cluster = one_topic(nodes=(1, 2))
    cluster.append(T0, batch(0, b"0"))
    async with Reader(cluster) as reader:
        reader.begin(T0)
        await reader.read(1)
        cluster.fails[1] = ConnectionLost("gone")
        cluster.logs[T0].leader, cluster.logs[T0].leader_epoch = 2, 1
        cluster.append(T0, batch(1, b"1", epoch=1))
        assert await reader.values(1) == [b"1"]
        assert cluster.fetches[-1].topics[0].partitions[0].current_leader_epoch == 1


async def test_a_refusal_that_names_the_leader_spares_a_question() -> None:
    cluster = one_topic(nodes=(1, 2))
    cluster.append(T0, batch(0, b"0"))
    async with Reader(cluster) as reader:
        reader.begin(T0)
        await reader.read(1)
        refreshed = len(cluster.refreshed)
        cluster.nodes[3] = Node(3, "127.0.0.1", 1003)
        cluster.logs[T0].leader, cluster.logs[T0].leader_epoch = 3, 1
        cluster.logs[T0].refuses, cluster.logs[T0].hint = [ErrorCode.NOT_LEADER_OR_FOLLOWER], (3, 1)
        cluster.append(T0, batch(1, b"1", epoch=1))
        assert await reader.values(1) == [b"1"]
        assert len(cluster.refreshed) == refreshed
        assert reader.fetcher._reading.doubtful == set()


async def test_a_follower_is_not_asked_about_epochs_that_it_may_not_know() -> None:
    """A follower learns of a leader's epoch with the first record of it, and refuses the offset until
    then."""
    cluster = one_topic(nodes=(1, 2))
    cluster.append(T0, batch(0, b"0"))
    cluster.logs[T0].preferred = 2
    async with Reader(cluster, client_rack="r") as reader:
        reader.fetcher.set_assigned([T0])
        reader.fetcher.seek(T0, Position(0, 0))
        assert await reader.values(1) == [b"0"]
        epochs = [
            (node, request.topics[0].partitions[0].last_fetched_epoch)
            for request, node, _ in cluster.requests[:2]
            if isinstance(request, FetchRequest)
        ]
        assert epochs == [(1, 0), (2, -1)]


async def test_the_replica_that_the_leader_prefers() -> None:
    cluster = one_topic(nodes=(1, 2))
    cluster.append(T0, batch(0, b"0"))
    cluster.logs[T0].preferred = 2
    async with Reader(cluster, client_rack="r") as reader:
        reader.begin(T0)
        assert await reader.values(1) == [b"0"]
        assert cluster.fetches[0].rack_id == "r"
        assert [node for _, node, _ in cluster.requests][:2] == [1, 2]
        # A follower that lacks the position is no reason to give it up: its leader decides.
        cluster.logs[T0].refuses = [ErrorCode.OFFSET_OUT_OF_RANGE]
        cluster.logs[T0].preferred, cluster.logs[T0].replicas = -1, {2}
        cluster.append(T0, batch(1, b"1"))
        assert await reader.values(1) == [b"1"]
        assert reader.resets == []
        assert cluster.requests[-1][1] == 1


async def test_a_preferred_replica_that_is_not_known_is_looked_up_once() -> None:
    cluster = one_topic()
    cluster.append(T0, batch(0, b"0"))
    cluster.learn()
    cluster.logs[T0].preferred = 2
    cluster.nodes = {**cluster.nodes, 2: Node(2, "127.0.0.1", 1002)}
    async with Reader(cluster, client_rack="r") as reader:
        reader.begin(T0)
        assert await reader.values(1) == [b"0"]
        assert len(cluster.refreshed) == 1
        assert [node for _, node, _ in cluster.requests][:3] == [1, 1, 2]
        assert reader.fetcher.troubles == {}


async def test_a_leader_older_than_the_position_is_not_believed() -> None:
    """KIP-320: a commit holds the epoch of the record before it."""
    cluster = one_topic(nodes=(1, 2))
    cluster.append(T0, batch(0, b"0", epoch=0))
    cluster.learn()
    cluster.logs[T0].leader, cluster.logs[T0].leader_epoch, cluster.logs[T0].replicas = 2, 5, {1}
    cluster.logs[T0].refuses = [ErrorCode.OFFSET_OUT_OF_RANGE]  # by the former leader
    cluster.append(T0, batch(1, b"1", epoch=5), batch(2, b"2", epoch=5))
    async with Reader(cluster) as reader:
        reader.fetcher.set_assigned([T0])
        reader.fetcher.seek(T0, Position(2, 5))
        assert await reader.values(1) == [b"2"]
        assert reader.resets == []
        assert [node for _, node, _ in cluster.requests][:2] == [1, 2]


async def test_an_epoch_that_no_leader_reaches_does_not_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit may hold any epoch."""
    cluster = one_topic()
    cluster.append(T0, batch(0, b"0"))
    monkeypatch.setattr(cluster, "backoff_s", lambda _: 0.0)
    async with Reader(cluster) as reader:
        reader.fetcher.set_assigned([T0])
        reader.fetcher.seek(T0, Position(7, 5))
        assert await reader.values(1) == [b"0"]
        assert [(each.from_offset, each.to_offset) for each in reader.resets] == [(7, 0)]


# --- versions, sessions, quotas -----------------------------------------------------------------------------


async def test_topics_go_by_id_where_both_sides_know_it() -> None:
    for version, ids in ((18, True), (12, True), (18, False)):
        cluster = one_topic(version=version)
        cluster.append(T0, batch(0, b"0"))
        if not ids:
            cluster.ids["t"] = None  # type: ignore[assignment]
        async with Reader(cluster) as reader:
            reader.begin(T0)
            assert await reader.values(1) == [b"0"]


@pytest.mark.parametrize(
    "code", [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH]
)
async def test_a_session_that_is_gone_is_opened_again(code: ErrorCode) -> None:
    cluster = one_topic()
    cluster.append(T0, batch(0, b"0"))
    cluster.response_errors = [code, code]
    async with Reader(cluster) as reader:
        reader.begin(T0)
        assert await reader.values(1) == [b"0"]
        assert reader.fetcher.troubles == {}
        assert [each.session_epoch for each in cluster.fetches[:3]] == [0, 0, 0]


async def test_a_refusal_of_the_whole_fetch_is_raised_when_it_cannot_pass() -> None:
    cluster = one_topic()
    cluster.append(T0, batch(0, b"0"))
    cluster.response_errors = [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
    async with Reader(cluster) as reader:
        reader.begin(T0)
        assert (await reader.raised(KafkaError)).code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert await reader.values(1) == [b"0"]


async def test_a_throttled_client_waits() -> None:
    cluster = one_topic()
    cluster.throttle_ms = 3_600_000
    cluster.append(T0, batch(0, b"0"))
    async with Reader(cluster) as reader:
        reader.begin(T0)
        assert await reader.values(1) == [b"0"]
        cluster.append(T0, batch(1, b"1"))
        assert await reader.fetcher.poll(500, 0.05) == []
        assert len(cluster.fetches) == 1


# --- odd answers --------------------------------------------------------------------------------------------


async def test_metadata_that_does_not_come_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = one_topic()
    cluster.append(T0, batch(0, b"0"))
    refresh, failures = cluster.refresh, [ConnectionLost("nobody is there")] * 2

    async def failing(topics: Iterable[str] | None, until: float) -> MetadataResponse:
        if failures:
            raise failures.pop()
        return await refresh(topics, until)

    monkeypatch.setattr(cluster, "refresh", failing)
    monkeypatch.setattr(cluster, "_patient", True)
    async with Reader(cluster) as reader:
        reader.fetcher.set_assigned([T0])
        reader.fetcher.reset(T0)
        await until(lambda: reader.fetcher.troubles)
        assert str(reader.fetcher.troubles[T0].error) == "nobody is there"
        assert await reader.values(1) == [b"0"]


@pytest.mark.parametrize("api", ["ListOffsets", "OffsetForLeaderEpoch"])
async def test_an_answer_that_leaves_the_partition_out(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker should send it; an error is raised, and the request is repeated later."""
    cluster = one_topic(version=11)
    cluster.append(T0, batch(0, b"0"))
    call, left_out = cluster.call, [1]

    async def leaving_out(request: Any, until: float, **how: Any) -> Any:
        response = await call(request, until, **how)
        if type(response).__name__ == f"{api}Response" and left_out:
            left_out.pop()
            response.topics = []
        return response

    monkeypatch.setattr(cluster, "call", leaving_out)
    async with Reader(cluster) as reader:
        reader.fetcher.set_assigned([T0])
        if api == "ListOffsets":
            reader.fetcher.reset(T0)
        else:
            reader.fetcher.seek(T0, Position(0, 0))
        with pytest.raises(NotKafka, match=rf"leaves .* out of its answer to {api}"):
            await reader.read(1)
        assert await reader.values(1) == [b"0"]


async def test_a_leader_that_knows_no_end_of_an_epoch_yet() -> None:
    cluster = one_topic(version=11)
    cluster.append(T0, batch(0, b"0"))
    refusals = [ErrorCode.UNKNOWN_LEADER_EPOCH]
    end_of_epochs = cluster._end_of_epochs

    def refusing(request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        response = end_of_epochs(request)
        if refusals:
            response.topics[0].partitions[0].error_code = refusals.pop()
        return response

    cluster._end_of_epochs = refusing  # type: ignore[method-assign]
    async with Reader(cluster) as reader:
        reader.fetcher.set_assigned([T0])
        reader.fetcher.seek(T0, Position(0, 0))
        assert await reader.values(1) == [b"0"]
        assert not refusals


async def test_what_was_not_asked_for_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = one_topic(2)
    for where in (T0, T1):
        cluster.append(where, batch(0, b"%d" % where.partition))
    part_of = cluster._part

    def confused(where: TopicPartition, *rest: Any) -> Any:
        part = part_of(TopicPartition("t", 1), *rest)
        part.partition_index = 1
        return part

    async with Reader(cluster) as reader:
        reader.fetcher.set_assigned([T0])
        monkeypatch.setattr(cluster, "_part", confused)
        reader.fetcher.seek(T0, Position(0))
        await until(lambda: len(cluster.fetches) >= 3)
        monkeypatch.setattr(cluster, "_part", part_of)
        assert await reader.values(1) == [b"0"]
