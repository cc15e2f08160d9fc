"""What each answer means to a producer: what it sends next, under which numbers, and what its callers get."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest

from muster.client.errors import ClientError, DeliveryTimedOut
from muster.client.producer import Producer
from muster.protocol.errors import ErrorCode, KafkaError
from tests.client.posting import give
from tests.client.scripted import Say, Scripted
from tests.support.facts import until

LONG_S = 60.0
MANY = 100_000_000  # ms


def patient(servers: str, **given: Any) -> Producer[bytes, bytes]:
    """A producer that does not give up before a test does, and retries soon."""
    return Producer(servers, **{"retry_backoff_ms": 1, "retry_backoff_max_ms": 10, **given})


async def send_all(producer: Producer[bytes, bytes], count: int, first: int = 0) -> list[Any]:
    """Send records to partition 0, one batch each."""
    futures = []
    for number in range(first, first + count):
        futures.append(await producer.post("t", b"%d" % number, partition=0, urgent=True))
        producer._accumulator.seal(producer._topics["t"].queues[0].batches[-1])
    return list(await asyncio.gather(*futures, return_exceptions=True))


def numbers(cluster: Scripted) -> list[tuple[int, int, int]]:
    """Producer id, epoch and sequence of every batch."""
    return [(producer_id, epoch, sequence) for _, _, producer_id, epoch, sequence, _ in cluster.seen]


# --- numbers ------------------------------------------------------------------------------------------------


async def test_a_producer_asks_for_one_id_and_counts() -> None:
    cluster = Scripted()
    async with cluster.listening() as servers, patient(servers) as producer:
        told = await send_all(producer, 3)
        told += await send_all(producer, 2, 3)
    assert [each.offset for each in told] == [0, 1, 2, 3, 4]
    assert numbers(cluster) == [(101, 0, number) for number in range(5)]
    assert cluster.requests[22] == 1


@pytest.mark.parametrize(
    ("code", "then"),
    [
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, (101, 1, 0)),
        (ErrorCode.UNKNOWN_PRODUCER_ID, (101, 1, 0)),
        (ErrorCode.INVALID_PRODUCER_EPOCH, (102, 0, 0)),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, (102, 0, 0)),
    ],
)
async def test_numbers_that_the_broker_does_not_take_begin_anew(
    code: ErrorCode, then: tuple[int, int, int]
) -> None:
    cluster = Scripted()
    async with cluster.listening() as servers, patient(servers) as producer:
        await send_all(producer, 1)
        cluster.script.append(Say(code))
        (told,) = await send_all(producer, 1, 1)
        assert told.offset == 1
        await send_all(producer, 1, 2)
    assert numbers(cluster) == [(101, 0, 0), (101, 0, 1), then, (*then[:2], 1)]
    assert cluster.logs[0].records == [b"0", b"1", b"2"]


async def test_a_batch_behind_a_refused_one_is_out_of_order_and_goes_again_in_a_new_epoch() -> None:
    cluster = Scripted()
    async with cluster.listening() as servers, patient(servers) as producer:
        await send_all(producer, 1)
        cluster.script.append(Say(ErrorCode.INVALID_RECORD))
        told = await send_all(producer, 4, 1)
    assert isinstance(told[0], KafkaError)
    assert told[0].code is ErrorCode.INVALID_RECORD
    assert [each.offset for each in told[1:]] == [1, 2, 3]
    assert cluster.logs[0].records == [b"0", b"2", b"3", b"4"]
    assert numbers(cluster)[-3:] == [(101, 1, 0), (101, 1, 1), (101, 1, 2)]


async def test_a_repeat_that_the_broker_remembers_no_offset_of_is_written() -> None:
    cluster = Scripted(script=deque([Say(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)]))
    async with cluster.listening() as servers, patient(servers) as producer:
        (told,) = await send_all(producer, 1)
    assert (told.partition, told.offset) == (0, -1)


@pytest.mark.parametrize(
    "lost",
    [
        Say(cut=True, write=True),
        Say(cut=True),
        Say(leave_out=True, write=True),
        Say(leave_out=True),
        Say(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, write=True),
        Say(ErrorCode.REQUEST_TIMED_OUT, write=True),
        Say(ErrorCode.NOT_ENOUGH_REPLICAS),
        Say(ErrorCode.CORRUPT_MESSAGE),
        Say(ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
async def test_what_may_pass_is_sent_again_under_its_number(lost: Say) -> None:
    cluster = Scripted()
    async with cluster.listening() as servers, patient(servers) as producer:
        await send_all(producer, 1)
        cluster.script += [lost, *[lost] * lost.cut]
        told = await send_all(producer, 3, 1)
        assert [each.offset for each in told] == [1, 2, 3]
    assert cluster.logs[0].records == [b"0", b"1", b"2", b"3"]
    assert {each[:2] for each in numbers(cluster)} == {(101, 0)}


@pytest.mark.parametrize(
    "unclear", [Say(hang=True, write=True), Say(ErrorCode.REQUEST_TIMED_OUT, write=True)]
)
async def test_what_may_be_written_keeps_its_number_although_one_before_it_expired(unclear: Say) -> None:
    """Under a new number, which everything after a gap must get, it would be written twice."""
    cluster = Scripted()
    async with cluster.listening() as servers, patient(servers) as producer:
        await send_all(producer, 1)
        cluster.script += [Say(hang=True, write=True), unclear]
        sending = asyncio.create_task(send_all(producer, 2, 1))
        await until(lambda: len(cluster.logs[0].records) == 3, "both are written")
        await until(lambda: producer._topics["t"].queues[0].halted or unclear.hang)
        oldest = next(producer._accumulator.unsettled())
        oldest.created = -1e9
        give(producer, LONG_S)
        await until(lambda: oldest.done, "its time is over")
        cluster.cut()
        expired, other = await sending
        assert isinstance(expired, DeliveryTimedOut)
        assert str(expired).endswith("it may have been written all the same")
        assert other.offset == 2
        (last,) = await send_all(producer, 1, 3)
        assert last.offset == 3
    assert cluster.logs[0].records == [b"0", b"1", b"2", b"3"]


async def test_a_broker_that_says_nothing_is_asked_again() -> None:
    cluster = Scripted()
    async with cluster.listening() as servers, patient(servers, request_timeout_ms=300) as producer:
        await send_all(producer, 1)
        cluster.script += [Say(hang=True, write=True), Say(hang=True)]
        told = await send_all(producer, 3, 1)
        assert [each.offset for each in told] == [1, 2, 3]
    assert cluster.logs[0].records == [b"0", b"1", b"2", b"3"]


async def test_what_fails_together_is_one_try() -> None:
    """Backoff doubles with every try, not with every batch."""
    cluster = Scripted()
    async with cluster.listening() as servers:
        producer = await Producer(servers, retry_backoff_ms=50_000, retry_backoff_max_ms=60_000).start()
        try:
            await send_all(producer, 1)
            cluster.script += [Say(hang=True)] * 5
            sending = asyncio.create_task(send_all(producer, 5))
            await until(lambda: not cluster.script)
            cluster.cut()
            (queue,) = producer._topics["t"].queues
            await until(lambda: len(queue.batches) == 5, "they have come back")
            assert queue.tries == 1
        finally:
            await producer.close(0)
        await sending


@pytest.mark.parametrize("given", [{}, {"enable_idempotence": False}])
@pytest.mark.parametrize(
    "lost", [Say(cut=True, write=True), Say(leave_out=True, write=True), Say(ErrorCode.REQUEST_TIMED_OUT)]
)
async def test_a_refusal_after_a_try_without_an_answer_says_that_it_may_have_been_written(
    lost: Say, given: dict[str, Any]
) -> None:
    cluster = Scripted(script=deque([lost, Say(ErrorCode.TOPIC_AUTHORIZATION_FAILED)]))
    async with cluster.listening() as servers, patient(servers, **given) as producer:
        (told,) = await send_all(producer, 1)
        cluster.script.append(Say(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        (refused_at_once,) = await send_all(producer, 1, 1)
    assert isinstance(told, KafkaError)
    assert told.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert str(told).endswith("an earlier try may have been written all the same")
    assert isinstance(refused_at_once, KafkaError)
    assert "may have been written" not in str(refused_at_once)


async def test_a_topic_that_is_refused_after_a_try_without_an_answer_says_so_too() -> None:
    cluster = Scripted(script=deque([Say(cut=True, write=True)]))
    async with cluster.listening() as servers, patient(servers) as producer:
        await producer.partitions_for("t")
        cluster.topic_error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        (told,) = await send_all(producer, 1)
    assert isinstance(told, KafkaError)
    assert told.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert str(told).endswith("an earlier try may have been written all the same")


async def test_without_numbers_order_holds_all_the_same() -> None:
    cluster = Scripted()
    async with cluster.listening() as servers, patient(servers, acks=1) as producer:
        cluster.script += [Say(ErrorCode.NOT_LEADER_OR_FOLLOWER), Say(ErrorCode.NOT_LEADER_OR_FOLLOWER)]
        told = await send_all(producer, 5)
        assert [each.offset for each in told] == [0, 1, 2, 3, 4]
    assert {each[0] for each in numbers(cluster)} == {-1}
    assert cluster.requests[22] == 0


async def test_an_epoch_that_is_refused_for_good_is_not_tried_for_ever() -> None:
    cluster = Scripted(script=deque([Say(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)] * 100_000))
    async with cluster.listening() as servers, patient(servers) as producer:
        sending = asyncio.create_task(send_all(producer, 1))
        await until(lambda: cluster.requests[0] > 5)
        give(producer, 0.0)
        (told,) = await sending
    assert isinstance(told, DeliveryTimedOut)
    assert "OUT_OF_ORDER_SEQUENCE_NUMBER" in str(told)


# --- ids ----------------------------------------------------------------------------------------------------


async def test_an_id_that_cannot_be_had_yet_is_asked_for_again() -> None:
    cluster = Scripted(identity_errors=deque([ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 2))
    async with cluster.listening() as servers, patient(servers) as producer:
        assert [each.offset for each in await send_all(producer, 2)] == [0, 1]
    assert cluster.requests[22] == 3


async def test_records_do_not_wait_for_an_id_for_ever() -> None:
    cluster = Scripted(identity_errors=deque([ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 100_000))
    async with cluster.listening() as servers, patient(servers) as producer:
        sending = asyncio.create_task(send_all(producer, 1))
        await until(lambda: cluster.requests[22] > 5)
        give(producer, 0.0)
        (told,) = await sending
    assert isinstance(told, DeliveryTimedOut)
    assert "COORDINATOR_LOAD_IN_PROGRESS" in str(told)
    assert str(told).endswith("it was not written")


async def test_a_leader_that_changed_meanwhile_may_have_left_the_batch_to_the_next() -> None:
    cluster = Scripted(script=deque([Say(ErrorCode.NOT_LEADER_OR_FOLLOWER)]))
    hour_ms = 3_600_000
    async with (
        cluster.listening() as servers,
        patient(servers, retry_backoff_ms=hour_ms, retry_backoff_max_ms=hour_ms) as producer,
    ):
        await producer.partitions_for("t")
        queue = producer._topics["t"].queues[0]
        sending = asyncio.create_task(send_all(producer, 1))
        await until(lambda: queue.tries == 1, "it is to be sent again")
        assert not queue.in_flight
        give(producer, 0.0)
        (told,) = await sending
    assert isinstance(told, DeliveryTimedOut)
    assert str(told).endswith("it may have been written all the same")


async def test_an_answer_in_another_protocol_fails_no_record_that_waits_for_an_id() -> None:
    cluster = Scripted(foreign={22})
    async with cluster.listening() as servers, patient(servers) as producer:
        (told,) = await send_all(producer, 1)
        assert told.offset == 0
    assert cluster.requests[22] == 2


async def test_an_id_that_is_refused_fails_what_waits_for_it_and_the_next_try_is_another() -> None:
    cluster = Scripted(identity_errors=deque([ErrorCode.CLUSTER_AUTHORIZATION_FAILED]))
    async with cluster.listening() as servers, patient(servers) as producer:
        told = await send_all(producer, 2)
        assert [each.code for each in told] == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * 2
        (told_again,) = await send_all(producer, 1)
        assert told_again.offset == 0


async def test_what_is_on_its_way_is_not_told_that_the_next_id_was_refused() -> None:
    cluster = Scripted(leaders=[2, 1])
    async with cluster.listening(1, 2) as servers, patient(servers) as producer:
        await send_all(producer, 1)
        await producer.send("t", b"v", partition=1)
        cluster.script.append(Say(ErrorCode.INVALID_PRODUCER_EPOCH))
        cluster.identity_errors.append(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        cluster.answering.clear()
        on_its_way = await producer.post("t", b"v", partition=1, urgent=True)
        await until(lambda: cluster.requests[0] == 3, "it is there")
        refused = await producer.post("t", b"v", partition=0, urgent=True)
        with pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
            await refused
        cluster.answering.set()
        assert (await on_its_way).offset == 1


async def test_a_broker_without_ids_is_told_what_to_do() -> None:
    cluster = Scripted(versions={0: (3, 9), 3: (0, 12), 18: (0, 3)})
    async with cluster.listening() as servers:
        async with patient(servers) as producer:
            (told,) = await send_all(producer, 1)
            assert isinstance(told, KafkaError)
            assert told.code is ErrorCode.UNSUPPORTED_VERSION
            assert "enable_idempotence=False" in str(told)
        async with patient(servers, enable_idempotence=False) as producer:
            (told,) = await send_all(producer, 1)
            assert told.offset == 0


# --- leaders ------------------------------------------------------------------------------------------------


async def test_a_leader_that_the_answer_names_is_taken_at_its_word() -> None:
    cluster = Scripted()
    async with cluster.listening(1, 2) as servers, patient(servers) as producer:
        await send_all(producer, 1)
        asked = cluster.requests[3]
        cluster.lead(2)
        cluster.script.append(Say(ErrorCode.NOT_LEADER_OR_FOLLOWER, leader=2, leader_epoch=1))
        (told,) = await send_all(producer, 1, 1)
        assert told.offset == 1
        assert [each[0] for each in cluster.seen] == [1, 1, 2]
        assert cluster.requests[3] == asked


@pytest.mark.parametrize(
    "refused",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.FENCED_LEADER_EPOCH,
    ],
)
async def test_a_leader_that_nobody_names_is_looked_for(refused: ErrorCode) -> None:
    cluster = Scripted()
    async with cluster.listening(1, 2) as servers, patient(servers) as producer:
        await send_all(producer, 1)
        cluster.lead(2)
        cluster.script.append(Say(refused))
        told = await send_all(producer, 3, 1)
        assert [each.offset for each in told] == [1, 2, 3]
        assert {each[0] for each in cluster.seen[-3:]} == {2}


async def test_an_answer_in_another_protocol_fails_no_record_that_waits_for_a_leader() -> None:
    cluster = Scripted()
    async with cluster.listening() as servers, patient(servers) as producer:
        await send_all(producer, 1)
        cluster.script.append(Say(cut=True))
        cluster.foreign.add(3)
        (told,) = await send_all(producer, 1, 1)
        assert told.offset == 1
    assert not cluster.foreign


async def test_a_partition_without_a_leader_waits_for_one() -> None:
    cluster = Scripted(leaders=[-1, 1])
    async with cluster.listening() as servers, patient(servers) as producer:
        sending = asyncio.create_task(send_all(producer, 2))
        assert (await producer.send("t", b"other", partition=1)).offset == 0, "others do not wait"
        asked = cluster.requests[3]
        await until(lambda: cluster.requests[3] > asked + 1, "it is asked for")
        cluster.lead(1)
        assert [each.offset for each in await sending] == [0, 1]


async def test_new_partitions_are_found_with_time() -> None:
    cluster = Scripted()
    async with cluster.listening() as servers, patient(servers, metadata_max_age_ms=20) as producer:
        assert await producer.partitions_for("t") == 1
        cluster.leaders.append(1)
        cluster.lead(1, 1)
        async with asyncio.timeout(LONG_S):
            while await producer.partitions_for("t") < 2:  # noqa: ASYNC110 - nothing but time brings it
                await asyncio.sleep(0)


async def test_a_topic_that_goes_is_waited_for_as_long_as_its_records_live() -> None:
    cluster = Scripted()
    async with cluster.listening() as servers, patient(servers) as producer:
        await send_all(producer, 1)
        cluster.topic_error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        cluster.script += [Say(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)] * 100_000
        asked = cluster.requests[3]
        sending = asyncio.create_task(send_all(producer, 1))
        await until(lambda: cluster.requests[3] > asked + 5)
        give(producer, 0.0)
        (told,) = await sending
        assert isinstance(told, DeliveryTimedOut)
        assert "UNKNOWN_TOPIC_OR_PARTITION" in str(told)
        assert str(told).endswith("it was not written")


# --- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "known_as"),
    [
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (ErrorCode.INVALID_REQUIRED_ACKS, ErrorCode.INVALID_REQUIRED_ACKS),
        (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR),
        (9_999, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
async def test_what_is_refused_for_good_fails_and_others_go_on(code: int, known_as: ErrorCode) -> None:
    cluster = Scripted()
    async with cluster.listening() as servers, patient(servers) as producer:
        cluster.script.append(Say(code))
        told = await send_all(producer, 3)
        assert isinstance(told[0], KafkaError)
        assert told[0].code is known_as
        assert [each.offset for each in told[1:]] == [0, 1]


async def test_a_topic_that_may_not_be_seen_is_refused_at_once() -> None:
    cluster = Scripted(topic_error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    async with cluster.listening() as servers, patient(servers) as producer:
        with pytest.raises(KafkaError) as refused:
            await producer.send("t", b"v")
        assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_records_of_a_topic_that_may_not_be_seen_any_more_fail() -> None:
    cluster = Scripted()
    async with cluster.listening() as servers, patient(servers) as producer:
        await send_all(producer, 1)
        cluster.topic_error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        cluster.script.append(Say(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        told = await send_all(producer, 2)
        assert [each.code for each in told] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 2


async def test_brokers_too_old_for_our_requests_are_named() -> None:
    cluster = Scripted(versions={0: (0, 2), 3: (0, 12), 18: (0, 3), 22: (0, 1)})
    async with cluster.listening() as servers, patient(servers) as producer:
        (told,) = await send_all(producer, 1)
        assert isinstance(told, KafkaError)
        assert told.code is ErrorCode.UNSUPPORTED_VERSION


async def test_what_is_no_broker_is_named_at_once() -> None:
    from tests.client.listeners import listener

    async def web_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()

    async with listener(web_server) as address, patient(str(address)) as producer:
        with pytest.raises(ClientError, match="does not answer as a Kafka broker does"):
            await producer.send("t", b"v")


# --- pace ---------------------------------------------------------------------------------------------------


async def test_a_pause_that_the_broker_asks_for_is_kept() -> None:
    cluster = Scripted(script=deque([Say(write=True, throttle_ms=300)]))
    async with cluster.listening() as servers, patient(servers) as producer:
        await send_all(producer, 1)
        await send_all(producer, 1)
    first, second = cluster.produced_at
    assert second - first >= 0.3


async def test_what_is_awaited_together_travels_together() -> None:
    """A thousand tasks that await their records need few requests, and do not linger."""
    cluster = Scripted(leaders=[1, 1, 1])
    async with (
        cluster.listening() as servers,
        patient(servers, linger_ms=MANY, delivery_timeout_ms=MANY + 1) as producer,
    ):
        await producer.send("t", b"first")
        before = cluster.requests[0]
        await asyncio.gather(*(producer.send("t", b"v", partition=n % 3) for n in range(1_000)))
        assert cluster.requests[0] - before <= 5


def under_way(producer: Producer[bytes, bytes]) -> int:
    return sum(not task.done() for task in producer._sender._requests)


async def test_requests_to_a_node_have_their_number() -> None:
    cluster = Scripted(leaders=[1] * 20)
    async with (
        cluster.listening() as servers,
        patient(servers, max_in_flight=2, linger_ms=0, max_request_size=200, batch_size=100) as producer,
    ):
        await producer.partitions_for("t")
        most = 0
        futures = []
        for number in range(200):
            futures.append(await producer.post("t", b"x" * 80, partition=number % 20))
            most = max(most, under_way(producer))
        while not all(future.done() for future in futures):
            most = max(most, under_way(producer))
            await asyncio.sleep(0)
        assert most == 2


async def test_nobody_is_told_with_acks_0_and_broken_connections_are_made_anew() -> None:
    cluster = Scripted(script=deque([Say(write=True), Say(cut=True)]))
    async with cluster.listening() as servers, patient(servers, acks=0) as producer:
        told = await send_all(producer, 2)
        await until(lambda: not cluster.script)
        while len(cluster.logs[0].records) < 3:
            told += await send_all(producer, 1, len(told))
    assert {each.offset for each in told} == {-1}
    assert cluster.logs[0].records[0] == b"0"
