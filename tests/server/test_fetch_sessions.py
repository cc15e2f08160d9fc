"""Fetch sessions: how many are kept, and what the gates see of them. `tests/kafka/test_fetch_sessions.py`
compares their answers with Apache Kafka's."""

from __future__ import annotations

from typing import Any

import pytest

from muster.coordinator.base.clock import ManualClock
from muster.coordinator.server.fetch_sessions import EVICTION_MS, FetchSessions
from muster.coordinator.topics.sources import FetchedPartition
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.acls import Operation, ResourceType
from muster.protocol.messages.data import FetchRequest, ProduceRequest
from tests.server.conftest import StartBrokers
from tests.server.test_authorize import as_user, creation, give, take_all
from tests.server.test_data import batch
from tests.server.test_fault_gate import Staged, staged
from tests.support.facts import until
from tests.support.principals import know_users

__all__ = ["staged"]

NAMES = 12


def request(session_id: int = 0, epoch: int = 0, **topics: int) -> FetchRequest:
    """A fetch, in a session, of the first partitions of each topic, as many as given."""
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        session_id=session_id,
        session_epoch=epoch,
        topics=[
            FetchRequest.FetchTopic(
                topic=topic,
                partitions=[
                    FetchRequest.FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1 << 20)
                    for number in range(partitions)
                ],
            )
            for topic, partitions in topics.items()
        ],
    )


def listed(asked: FetchRequest) -> list[tuple[str, int]]:
    return [(topic.topic, each.partition) for topic in asked.topics for each in topic.partitions]


class Kept:
    """Sessions with a clock that the test moves."""

    def __init__(self, slots: int = 2, partitions_max: int = 1_000) -> None:
        self.clock = ManualClock()
        self.sessions = FetchSessions(self.clock, slots=slots, partitions_max=partitions_max)

    def opened(self, partitions: int) -> int:
        """Open a session of that many partitions; return its id, or 0 if there was no room."""
        asked = request(t=partitions)
        assert self.sessions.complete(asked, by_id=False) is None
        assert len(listed(asked)) == partitions
        return asked.session_id

    def goes_on(self, session_id: int) -> bool:
        session = self.sessions.get(session_id)
        epoch = 1 if session is None else session.epoch
        refusal = self.sessions.complete(request(session_id, epoch), by_id=False)
        return refusal is None


# --- how many -----------------------------------------------------------------------------------------------


def test_a_session_in_use_makes_no_room() -> None:
    kept = Kept()
    first, second = kept.opened(1), kept.opened(1)
    kept.clock.advance(EVICTION_MS)
    assert kept.opened(5) == 0
    assert kept.goes_on(first)
    assert kept.goes_on(second)
    assert (len(kept.sessions), kept.sessions.partitions, kept.sessions.evicted) == (2, 2, 0)


def test_the_least_recently_used_goes_once_its_time_is_over() -> None:
    kept = Kept()
    first, second = kept.opened(3), kept.opened(3)
    kept.clock.advance(1)
    assert kept.goes_on(first)
    kept.clock.advance(EVICTION_MS)
    third = kept.opened(1)
    assert third
    assert not kept.goes_on(second)
    assert kept.goes_on(first)
    assert (len(kept.sessions), kept.sessions.partitions, kept.sessions.evicted) == (2, 4, 1)


def test_an_old_session_goes_for_a_larger_one() -> None:
    kept = Kept()
    small, large = kept.opened(2), kept.opened(3)
    kept.clock.advance(EVICTION_MS + 1)
    assert kept.goes_on(small)
    assert kept.goes_on(large)
    assert kept.opened(2) == 0
    assert kept.opened(3)
    assert not kept.goes_on(small)
    assert kept.goes_on(large)


def test_there_are_only_so_many_partitions() -> None:
    kept = Kept(slots=10, partitions_max=5)
    first = kept.opened(3)
    assert kept.opened(3) == 0
    second = kept.opened(2)
    assert second
    refusal = kept.sessions.complete(request(second, 1, u=1), by_id=False)
    assert refusal is not None
    assert refusal.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert kept.goes_on(first)
    assert (len(kept.sessions), kept.sessions.partitions) == (1, 3)


def test_the_epoch_after_the_last_is_the_first_after_the_opening() -> None:
    kept = Kept()
    session = kept.sessions.get(kept.opened(1))
    assert session is not None
    session.epoch = 2**31 - 1
    assert kept.goes_on(session.session_id)
    assert session.epoch == 1
    (partition,) = session.topics()[0].partitions
    answer = FetchedPartition(None, b"", 5, 5, 0, 0)
    assert partition.news(2**31 - 1, answer)
    assert partition.news(1, answer)  # once more than it had to
    assert not partition.news(2, answer)


# --- what the gates see -------------------------------------------------------------------------------------


def told(response: Any) -> dict[tuple[str, int], int]:
    """The code of each partition in an answer."""
    return {
        (topic.topic, part.partition_index): part.error_code
        for topic in response.responses
        for part in topic.partitions
    }


async def test_acls_hold_for_what_a_session_knows(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    know_users(monkeypatch)
    (broker,) = (await start_brokers(super_users="User:root;admin")).brokers
    for name in ("t", "secret"):
        await broker.catalogue.create(name, partitions=1)
    reading = [creation(Operation.READ, ResourceType.TOPIC, name) for name in ("t", "secret")]
    await give(broker, reading[0])
    denied = {("secret", 0): ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    async with await as_user(broker) as wire:
        opened = await wire.call(request(t=1, secret=1), NAMES)
        assert told(opened) == {("t", 0): 0, **denied}
        session_id = opened.session_id
        assert session_id
        assert told(await wire.call(request(session_id, 1), NAMES)) == denied
        await give(broker, reading[1])
        assert told(await wire.call(request(session_id, 2), NAMES)) == {("secret", 0): 0}
        assert told(await wire.call(request(session_id, 3), NAMES)) == {}
        await take_all(broker)
        both = {**denied, ("t", 0): ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        for epoch in (4, 5):
            answer = await wire.call(request(session_id, epoch), NAMES)
            assert (told(answer), answer.session_id) == (both, session_id)


async def test_a_session_without_any_right_goes_on(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    know_users(monkeypatch)
    (broker,) = (await start_brokers(super_users="User:root;admin")).brokers
    await broker.catalogue.create("secret", partitions=1)
    denied = {("secret", 0): ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    async with await as_user(broker) as wire:
        opened = await wire.call(request(secret=1), NAMES)
        assert told(opened) == denied
        (session_id,) = broker.fetch_sessions._kept
        assert opened.session_id == session_id
        again = await wire.call(request(session_id, 1), NAMES)
        assert (told(again), again.session_id) == (denied, session_id)
        assert list(broker.fetch_sessions._kept) == [session_id]
        alone = await wire.call(request(epoch=-1, secret=1), NAMES)
        assert (told(alone), alone.session_id) == (denied, 0)


async def test_a_fault_of_a_topic_meets_a_session_that_reads_it(staged: Staged) -> None:
    wire = await staged.connect()
    opened = await wire.call(request(t=1, u=1), NAMES)
    session_id = opened.session_id
    staged.add(api="Fetch", topic="u", error="NOT_LEADER_OR_FOLLOWER")
    assert told(await wire.call(request(session_id, 1), NAMES)) == {
        ("u", 0): ErrorCode.NOT_LEADER_OR_FOLLOWER
    }
    # What was left out because of the error is sent again.
    assert told(await wire.call(request(session_id, 2), NAMES)) == {("u", 0): 0}
    assert told(await wire.call(request(session_id, 3), NAMES)) == {}


@pytest.mark.parametrize(
    ("epoch", "code"),
    [
        (2, ErrorCode.INVALID_FETCH_SESSION_EPOCH),  # goes on
        (9, ErrorCode.NONE),  # is refused
        (0, ErrorCode.NONE),  # opens another in its place
        (-1, ErrorCode.NONE),  # closes it
    ],
)
async def test_what_a_waiting_request_is_answered_when_another_of_its_session_comes(
    staged: Staged, epoch: int, code: ErrorCode
) -> None:
    wire, other = await staged.connect(), await staged.connect("other")
    session_id = (await wire.call(request(t=1), NAMES)).session_id
    waiting = request(session_id, 1)
    waiting.max_wait_ms = 60_000
    await wire.send(waiting, NAMES)
    session = staged.broker.fetch_sessions.get(session_id)
    assert session is not None
    await until(lambda: session.epoch == 2, "the first request to wait")
    await other.call(request(session_id, epoch, t=1), NAMES)
    part = ProduceRequest.PartitionProduceData(index=0, records=batch(b"a"))
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[part])
    await other.call(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic]), NAMES)
    response = await wire.receive()
    assert (response.error_code, response.session_id) == (code, session_id)
    assert told(response) == ({} if code else {("t", 0): 0})
    if code:
        assert told(await wire.call(request(session_id, 3), NAMES)) == {("t", 0): 0}


async def test_a_session_waits_for_all_its_partitions(staged: Staged) -> None:
    wire, other = await staged.connect(), await staged.connect("other")
    session_id = (await wire.call(request(t=2, u=2), NAMES)).session_id
    waiting = request(session_id, 1)
    waiting.max_wait_ms = 60_000
    await wire.send(waiting, NAMES)
    part = ProduceRequest.PartitionProduceData(index=1, records=batch(b"a"))
    topic = ProduceRequest.TopicProduceData(name="u", partition_data=[part])
    await other.call(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic]), NAMES)
    response = await wire.receive()
    assert told(response) == {("u", 1): 0}
    assert response.responses[0].partitions[0].high_watermark == 1
