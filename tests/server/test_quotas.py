"""Quotas set and described, and clients held back by them. tests/kafka/test_quotas.py asks Apache Kafka the
same."""

from __future__ import annotations

import asyncio
import itertools
import random
import string
from pathlib import Path
from typing import Any

import pytest

from muster.coordinator.base.clock import ManualClock
from muster.coordinator.base.step import RequestContext
from muster.coordinator.security.quotas import MUTATIONS, PERCENTAGE, Quotas
from muster.coordinator.security.rates import Rate
from muster.coordinator.server.broker import Broker
from muster.coordinator.server.config_rows import ConfigRows
from muster.coordinator.server.kept_quotas import ENTITIES_MAX, KeptQuotas
from muster.coordinator.server.metering import Meters
from muster.coordinator.storage.memory import MemoryStore
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.classic_group import HeartbeatRequest
from muster.protocol.messages.data import FetchRequest, ProduceRequest
from muster.protocol.messages.metadata import DescribeClusterRequest, MetadataRequest
from muster.protocol.messages.quotas import AlterClientQuotasRequest, DescribeClientQuotasRequest
from muster.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from muster.protocol.record_batch import Record, build
from tests.server.conftest import StartBrokers
from tests.support.facts import until
from tests.support.failing_store import fail_from
from tests.support.wire import Wire

Entity = dict[str, str | None]
GREEDY: Entity = {"client-id": "greedy"}
ABOUT_THE_CLUSTER = DescribeClusterRequest(include_cluster_authorized_operations=False)
_Entry = AlterClientQuotasRequest.EntryData


def setting(entity: Entity, **quotas: float | None) -> AlterClientQuotasRequest.EntryData:
    """Quotas of an entity; None removes one."""
    return _Entry(
        entity=[_Entry.EntityData(entity_type=type, entity_name=name) for type, name in entity.items()],
        ops=[
            _Entry.OpData(key=key, value=0.0 if value is None else value, remove=value is None)
            for key, value in quotas.items()
        ],
    )


async def alter(broker: Broker, *entries: Any, validate_only: bool = False) -> list[int]:
    async with await Wire.connect(broker.port, client_id="admin") as wire:
        request = AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only)
        return [each.error_code for each in (await wire.call(request, 1)).entries]


async def described(broker: Broker) -> list[tuple[Entity, dict[str, float]]]:
    async with await Wire.connect(broker.port, client_id="admin") as wire:
        answer = await wire.call(DescribeClientQuotasRequest(components=[], strict=False), 1)
    return [
        (
            {part.entity_type: part.entity_name for part in entry.entity},
            {value.key: value.value for value in entry.values},
        )
        for entry in answer.entries
    ]


async def started(start_brokers: StartBrokers, **settings: Any) -> Broker:
    return (await start_brokers(auto_create_topics_enable=True, **settings)).brokers[0]


def producing(size: int, *, acks: int = -1) -> ProduceRequest:
    """A Produce request with a record of this size."""
    return ProduceRequest(
        transactional_id=None,
        acks=acks,
        timeout_ms=10_000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name="t",
                partition_data=[
                    ProduceRequest.PartitionProduceData(
                        index=0, records=build([Record(0, 0, None, bytes(size))])
                    )
                ],
            )
        ],
    )


def fetching() -> FetchRequest:
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=10_000_000,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[
            FetchRequest.FetchTopic(
                topic="t",
                partitions=[
                    FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10_000_000)
                ],
            )
        ],
        forgotten_topics_data=[],
    )


def records_of(answer: Any) -> int:
    return sum(len(bytes(each.records or b"")) for topic in answer.responses for each in topic.partitions)


async def made(broker: Broker) -> None:
    """Create the topic t with a record of 50,000 bytes."""
    async with await Wire.connect(broker.port, client_id="admin") as wire:
        await wire.call(MetadataRequest(topics=[MetadataRequest.Topic(name="t")]), 12)
        answer = await wire.call(producing(50_000), 9)
        assert answer.responses[0].partition_responses[0].error_code == 0


# --- set and described --------------------------------------------------------------------------------------


async def test_quotas_come_and_go(start_brokers: StartBrokers) -> None:
    broker = await started(start_brokers)
    assert await described(broker) == []
    both: Entity = {"user": "alice", "client-id": None}
    assert await alter(
        broker,
        setting(GREEDY, producer_byte_rate=1024, request_percentage=12.5),
        setting(both, consumer_byte_rate=2048),
        setting({"ip": None}, connection_creation_rate=3),
    ) == [0, 0, 0]
    assert sorted(await described(broker), key=str) == sorted(
        [
            (GREEDY, {"producer_byte_rate": 1024, "request_percentage": 12.5}),
            (both, {"consumer_byte_rate": 2048}),
            ({"ip": None}, {"connection_creation_rate": 3}),
        ],
        key=str,
    )
    assert await alter(broker, setting(GREEDY, producer_byte_rate=None, consumer_byte_rate=None)) == [0]
    assert await alter(broker, setting(both, consumer_byte_rate=None)) == [0]
    assert await alter(broker, setting({"ip": None}, connection_creation_rate=None)) == [0]
    assert await described(broker) == [(GREEDY, {"request_percentage": 12.5})]


async def test_what_is_refused_leaves_the_others_alone(start_brokers: StartBrokers) -> None:
    broker = await started(start_brokers)
    refused = ErrorCode.INVALID_REQUEST
    twice = setting({"user": "a"}, producer_byte_rate=1)
    twice.ops += twice.ops
    assert await alter(
        broker,
        setting({"user": "u"}, producer_byte_rate=-1),
        setting(GREEDY, producer_byte_rate=1),
        twice,
        setting({"user": "b"}, producer_byte_rate=1),
        setting({"user": "b"}, consumer_byte_rate=1),
    ) == [refused, 0, refused, refused]
    assert await described(broker) == [(GREEDY, {"producer_byte_rate": 1})]
    assert await alter(broker, setting({"user": "c"}, producer_byte_rate=1), validate_only=True) == [0]
    assert len(await described(broker)) == 1


async def test_what_is_altered_before_the_store_fails_is_reported(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await started(start_brokers)
    tried = fail_from(2, broker, "update_broker_configs", monkeypatch)
    changes = [setting({"user": name}, producer_byte_rate=1024) for name in ("a", "b", "c")]
    failed = ErrorCode.KAFKA_STORAGE_ERROR
    assert await alter(broker, *changes) == [0, failed, failed]
    assert len(tried) == 2, "the last is not tried"
    assert await described(broker) == [({"user": "a"}, {"producer_byte_rate": 1024})]


async def test_quotas_are_kept_and_known_to_every_broker(start_brokers: StartBrokers, tmp_path: Path) -> None:
    kept = {"ephemeral": False, "data": str(tmp_path / "data")}
    brokers = await start_brokers(brokers=2, **kept)
    one, other = brokers.brokers
    await alter(one, setting(GREEDY, producer_byte_rate=1024))
    await until(lambda: len(other.quotas.in_force) == 1, "the other broker knows")
    await brokers.stop()
    again = (await start_brokers(**kept)).brokers[0]
    assert await described(again) == [(GREEDY, {"producer_byte_rate": 1024})]


async def test_there_is_a_bound(start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ENTITIES_MAX == 10_000
    monkeypatch.setattr("muster.coordinator.server.kept_quotas.ENTITIES_MAX", 1)
    broker = await started(start_brokers)
    await broker.quotas.alter(frozenset({("user", "a")}), {"producer_byte_rate": 1.0})
    with pytest.raises(KafkaError, match="at most 1 entities"):
        await broker.quotas.alter(frozenset({("user", "b")}), {"producer_byte_rate": 1.0})
    await broker.quotas.alter(frozenset({("user", "a")}), {"consumer_byte_rate": 1.0})


async def test_there_is_room_for_more_once_another_broker_has_removed_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("muster.coordinator.server.kept_quotas.ENTITIES_MAX", 1)
    store = MemoryStore()
    await store.open()
    here, elsewhere = (KeptQuotas(ConfigRows(store)) for _ in range(2))
    first, second = (frozenset({("user", name)}) for name in "ab")
    await here.alter(first, {"producer_byte_rate": 1.0})
    await elsewhere.alter(first, {"producer_byte_rate": None})
    await here.alter(second, {"producer_byte_rate": 1.0})
    assert here.in_force.of(second)
    assert not here.in_force.of(first)


# --- held back ----------------------------------------------------------------------------------------------


async def test_a_producer_is_told_to_wait(start_brokers: StartBrokers) -> None:
    broker = await started(start_brokers)
    await made(broker)
    await alter(broker, setting(GREEDY, producer_byte_rate=1_000))
    async with await Wire.connect(broker.port, client_id="greedy") as wire:
        answer = await wire.call(producing(50_000), 9)
        assert answer.responses[0].partition_responses[0].error_code == 0
        # 50,000 bytes in ten seconds are 5,000 a second, four times as much as there is above the quota.
        assert 40_000 <= answer.throttle_time_ms <= 41_000
    async with await Wire.connect(broker.port, client_id="modest") as wire:
        assert (await wire.call(producing(50_000), 9)).throttle_time_ms == 0


async def test_who_waits_goes_on_when_the_time_is_over(start_brokers: StartBrokers) -> None:
    broker = await started(start_brokers)
    await made(broker)
    await alter(broker, setting(GREEDY, producer_byte_rate=4_990))
    async with await Wire.connect(broker.port, client_id="greedy") as wire:
        began_ms = broker.clock.now_ms()
        throttle_ms = (await wire.call(producing(50_000), 9)).throttle_time_ms
        assert 0 < throttle_ms < 1_000
        await wire.call(MetadataRequest(topics=[]), 12)
        assert broker.clock.now_ms() - began_ms >= throttle_ms


async def test_a_producer_that_waits_for_no_answer_has_to_wait(start_brokers: StartBrokers) -> None:
    broker = await started(start_brokers)
    await made(broker)
    await alter(broker, setting(GREEDY, producer_byte_rate=4_900))
    async with await Wire.connect(broker.port, client_id="greedy") as wire:
        began_ms = broker.clock.now_ms()
        await wire.send(producing(50_000, acks=0), 9)
        await wire.call(MetadataRequest(topics=[]), 12)
        # 50,000 bytes in ten seconds are 5,000 a second, 2 % above the quota.
        assert broker.clock.now_ms() - began_ms >= 200


async def test_a_consumer_above_its_quota_gets_nothing_yet(start_brokers: StartBrokers) -> None:
    broker = await started(start_brokers)
    await made(broker)
    await alter(broker, setting(GREEDY, consumer_byte_rate=5_100))
    async with await Wire.connect(broker.port, client_id="greedy") as wire:
        first = await wire.call(fetching(), 12)
        assert (first.throttle_time_ms, records_of(first) > 50_000) == (0, True)
        second = await wire.call(fetching(), 12)
        assert second.throttle_time_ms > 0
        assert second.responses == []
        await alter(broker, setting(GREEDY, consumer_byte_rate=None))


async def test_a_fetch_session_outlives_a_response_held_back(start_brokers: StartBrokers) -> None:
    """As in Kafka, a session that is continued goes on, and the client is told later what it was not told; a
    session that such a request opens is not kept."""
    broker = await started(start_brokers)
    await made(broker)

    def in_session(session_id: int, epoch: int) -> FetchRequest:
        request = fetching()
        request.session_id, request.session_epoch, request.min_bytes = session_id, epoch, 0
        request.topics[0].partitions[0].fetch_offset = 1 + epoch
        if epoch > 1:
            request.topics = []
        return request

    async with (
        await Wire.connect(broker.port, client_id="greedy") as greedy,
        await Wire.connect(broker.port, client_id="greedy") as another,
        await Wire.connect(broker.port, client_id="modest") as modest,
    ):
        session_id = (await modest.call(in_session(0, 0), 12)).session_id
        assert session_id
        await modest.call(producing(10), 9)  # a new high watermark
        await alter(broker, setting(GREEDY, consumer_byte_rate=5_100))
        assert (await greedy.call(fetching(), 12)).throttle_time_ms == 0
        await alter(broker, setting(GREEDY, consumer_byte_rate=1_000))
        held_back = await greedy.call(in_session(session_id, 1), 12)
        assert held_back.throttle_time_ms > 0
        assert (held_back.session_id, held_back.responses) == (session_id, [])
        later = await modest.call(in_session(session_id, 2), 12)
        assert [part.high_watermark for topic in later.responses for part in topic.partitions] == [2]
        assert (await modest.call(in_session(session_id, 3), 12)).responses == []
        not_opened = await another.call(in_session(0, 0), 12)
        assert not_opened.throttle_time_ms > 0
        assert (not_opened.session_id, not_opened.responses) == (0, [])
        assert len(broker.fetch_sessions) == 1
        await alter(broker, setting(GREEDY, consumer_byte_rate=None))


async def test_a_batch_above_the_quota_comes_alone(start_brokers: StartBrokers) -> None:
    broker = await started(start_brokers)
    await made(broker)
    await alter(broker, setting(GREEDY, consumer_byte_rate=4_990))
    async with await Wire.connect(broker.port, client_id="greedy") as wire:
        answer = await wire.call(fetching(), 12)
        assert (answer.throttle_time_ms > 0, records_of(answer) > 50_000) == (True, True)


async def test_a_batch_above_a_quota_that_is_shared_comes(start_brokers: StartBrokers) -> None:
    broker = await started(start_brokers)
    await made(broker)
    await alter(broker, setting(GREEDY, consumer_byte_rate=4_000))
    at_the_end = fetching()
    at_the_end.topics[0].partitions[0].fetch_offset = 1
    async with (
        await Wire.connect(broker.port, client_id="greedy") as quiet,
        await Wire.connect(broker.port, client_id="greedy") as wire,
    ):
        assert (await quiet.call(at_the_end, 12)).throttle_time_ms == 0
        answer = await wire.call(fetching(), 12)
        assert (answer.throttle_time_ms > 0, records_of(answer) > 50_000) == (True, True)
        held_back = await quiet.call(fetching(), 12)
        assert (held_back.throttle_time_ms > 0, records_of(held_back)) == (True, 0), "the quota is exceeded"


async def test_a_fetch_is_no_larger_than_its_quota_ever_lets_through(start_brokers: StartBrokers) -> None:
    broker = await started(start_brokers)
    await made(broker)
    async with await Wire.connect(broker.port, client_id="greedy") as wire:
        for _ in range(3):
            await wire.call(producing(50_000), 9)
        whole = records_of(await wire.call(fetching(), 12))
        await alter(broker, setting(GREEDY, consumer_byte_rate=11_000))
        assert 50_000 < records_of(await wire.call(fetching(), 12)) < whole


async def test_a_share_of_the_time(start_brokers: StartBrokers) -> None:
    """It also applies to repeated requests, which are not read again where there are no quotas."""
    broker = await started(start_brokers)
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m", group_instance_id=None)
    async with await Wire.connect(broker.port, client_id="greedy") as wire:
        for _ in range(2):
            assert (await wire.call(beat, 4)).throttle_time_ms == 0
        await alter(broker, setting(GREEDY, request_percentage=0.000_001))
        answer = await wire.call(beat, 4)
        assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert answer.throttle_time_ms == 1_000, "a window at most"
        await alter(broker, setting(GREEDY, request_percentage=None))
        for _ in range(2):
            assert (await wire.call(beat, 4)).throttle_time_ms == 0


async def test_a_tiny_quota_is_answered_all_the_same(start_brokers: StartBrokers) -> None:
    broker = await started(start_brokers)
    await alter(broker, setting(GREEDY, request_percentage=1e-310, controller_mutation_rate=5e-324))
    for request, version in ((ABOUT_THE_CLUSTER, 1), (creating("t", 1), 5)):
        async with await Wire.connect(broker.port, client_id="greedy") as wire:
            assert (await wire.call(request, version)).throttle_time_ms > 0


async def test_a_mistake_of_the_gate_is_answered(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await started(start_brokers)
    await alter(broker, setting(GREEDY, request_percentage=1))

    def mistaken(*_: object) -> int:
        raise ZeroDivisionError

    async with await Wire.connect(broker.port, client_id="greedy") as wire:
        monkeypatch.setattr(broker.meters, "record", mistaken)
        answer = await wire.call(ABOUT_THE_CLUSTER, 1)
        assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def creating(name: str, partitions: int) -> CreateTopicsRequest:
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
    )
    return CreateTopicsRequest(topics=[topic], timeout_ms=10_000, validate_only=False)


async def test_topics_created_and_deleted(start_brokers: StartBrokers) -> None:
    broker = await started(start_brokers)
    await alter(broker, setting(GREEDY, controller_mutation_rate=1))
    exceeded = ErrorCode.THROTTLING_QUOTA_EXCEEDED

    async def ask(request: Any, version: int) -> tuple[list[int], int]:
        """Codes and throttle time. Each request has a connection of its own, and only that one is then held
        back."""
        async with await Wire.connect(broker.port, client_id="greedy") as wire:
            answer = await wire.call(request, version)
        results = getattr(answer, "topics", None) or getattr(answer, "results", None) or answer.responses
        return [each.error_code for each in results], answer.throttle_time_ms

    assert await ask(creating("a", 11), 7) == ([0], 0), "the burst"
    codes, throttle_ms = await ask(creating("b", 10), 7)
    assert (codes, throttle_ms) == ([0], 0), "overdrawn once"
    assert (await ask(creating("a", 1), 7))[0] == [ErrorCode.TOPIC_ALREADY_EXISTS], "checked first"
    codes, throttle_ms = await ask(creating("c", 1), 7)
    assert (codes, 9_000 < throttle_ms <= 10_000) == ([exceeded], True)
    assert (await ask(DeleteTopicsRequest(topics=[], topic_names=["a"], timeout_ms=10_000), 5))[0] == [
        exceeded
    ]
    more = CreatePartitionsRequest.CreatePartitionsTopic(name="a", count=12, assignments=None)
    growing = CreatePartitionsRequest(topics=[more], timeout_ms=10_000, validate_only=False)
    assert (await ask(growing, 3))[0] == [exceeded]
    codes, throttle_ms = await ask(growing, 2)
    assert (codes, throttle_ms > 9_000) == ([0], True), "its version does not know the code"
    codes, later_ms = await ask(creating("d", 5), 4)
    assert (codes, later_ms > throttle_ms + 4_000) == ([0], True)


async def test_topics_created_because_a_client_asks_for_them(start_brokers: StartBrokers) -> None:
    broker = await started(start_brokers, num_partitions=100)
    await alter(broker, setting(GREEDY, controller_mutation_rate=1))

    async def ask(name: str) -> tuple[int, int]:
        async with await Wire.connect(broker.port, client_id="greedy") as wire:
            answer = await wire.call(MetadataRequest(topics=[MetadataRequest.Topic(name=name)]), 12)
        return answer.topics[0].error_code, answer.throttle_time_ms

    assert await ask("t") == (0, 0), "the quota is not used up yet"
    assert await ask("u") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)
    assert broker.catalogue.by_name("u") is None
    assert await ask("t") == (0, 0)
    await alter(broker, setting(GREEDY, controller_mutation_rate=None))
    assert await ask("u") == (0, 0)


async def test_without_quotas_nobody_meets_the_gate(start_brokers: StartBrokers) -> None:
    broker = await started(start_brokers)
    sessions = broker._quota_gate._sessions
    assert sessions.quotas is None
    await alter(broker, setting({"user": "somebody"}, producer_byte_rate=1))
    assert sessions.quotas is broker._quota_gate
    await alter(broker, setting({"user": "somebody"}, producer_byte_rate=None))
    assert sessions.quotas is None


async def test_a_broker_that_stops_lets_everyone_go(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(auto_create_topics_enable=True)
    broker = brokers.brokers[0]
    await made(broker)
    await alter(broker, setting(GREEDY, producer_byte_rate=1))
    async with await Wire.connect(broker.port, client_id="greedy") as wire:
        assert (await wire.call(producing(50_000), 9)).throttle_time_ms > 1_000_000
        async with asyncio.timeout(30):
            await brokers.stop()


async def test_clients_choose_their_ids(start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.coordinator.server.metering._METERS_MAX", 10)
    broker = await started(start_brokers)
    await alter(broker, setting({"client-id": None}, request_percentage=1_000))
    for number in range(15):
        async with await Wire.connect(broker.port, client_id=f"c{number}") as wire:
            await wire.call(MetadataRequest(topics=[]), 12)
    assert len(broker.meters._rates) == 10


async def test_long_client_ids_are_not_kept(start_brokers: StartBrokers) -> None:
    broker = await started(start_brokers)
    await alter(broker, setting({"client-id": None}, request_percentage=1_000))
    for number in range(3):
        async with await Wire.connect(broker.port, client_id="\U0001f600" * 8_000 + str(number)) as wire:
            await wire.call(MetadataRequest(topics=[]), 12)
    kept = [shared_by for _, shared_by in broker.meters._rates] + [
        names for _, *names in broker.quotas.in_force._found
    ]
    assert len(broker.meters._rates) == 3, "each has a quota of its own"
    assert max(len(name) for names in kept for name in names if name is not None) < 100


def test_meters_are_not_all_looked_at_for_each_new_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.coordinator.server.metering._METERS_MAX", 100)
    looks = 0
    is_over = Rate.is_over

    def counted(self: Rate, now_ms: int) -> bool:
        nonlocal looks
        looks += 1
        return is_over(self, now_ms)

    monkeypatch.setattr(Rate, "is_over", counted)
    kept = KeptQuotas(ConfigRows(MemoryStore()))
    kept.in_force = Quotas({frozenset({("client-id", None)}): dict.fromkeys((PERCENTAGE, MUTATIONS), 50.0)})
    clock = ManualClock()
    meters = Meters(kept, clock)

    def use(number: int) -> None:
        context = RequestContext(0, f"c{number}", "127.0.0.1", 0)
        meters.record(PERCENTAGE, 0.01, context)
        meters.mutated(1, context)

    for number in range(300):
        use(number)
        assert len(meters._rates) + len(meters._buckets) <= 100
    assert looks < 6_000, "at some 50 rates, for every tenth of 600 new meters"
    clock.advance(60_000)
    for number in range(300, 330):
        use(number)
    assert (len(meters._rates), len(meters._buckets)) == (30, 30), "none of the others is in use"


async def test_names_may_be_longer_than_an_index_takes(start_brokers: StartBrokers) -> None:
    broker = await started(start_brokers)
    names = ["".join(random.Random(1).choices(string.printable, k=30_000)), "\0", "<default>", "ü"]
    assert await alter(broker, *(setting({"user": name}, request_percentage=1) for name in names)) == [0] * 4
    assert {entity["user"] for entity, _ in await described(broker)} == {*names}


async def test_the_time_of_coroutines_counts(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = itertools.count(step=1_000_000)
    monkeypatch.setattr("muster.coordinator.server.spent.thread_time_ns", lambda: next(looks))
    broker = await started(start_brokers)
    await made(broker)
    await alter(broker, setting(GREEDY, request_percentage=1e6))
    async with await Wire.connect(broker.port, client_id="greedy") as wire:
        await wire.call(fetching(), 12)
        ((_, rate),) = broker.meters._rates.items()
        counted = rate._samples[0].amount
        assert counted > 0.15, "a millisecond to begin the task, and one for each of its steps"


async def test_connections_that_wait_and_go_are_not_kept(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.coordinator.server.quota_gate._SWEEP_MIN", 5)
    broker = await started(start_brokers)
    broker._quota_gate._sweep_at = 5
    await made(broker)
    await alter(broker, setting(GREEDY, producer_byte_rate=1))
    for _ in range(30):
        async with await Wire.connect(broker.port, client_id="greedy") as wire:
            await wire.call(producing(1_000), 9)
            for connection in list(broker.connections.open.values()):
                connection.abort()  # as when it is idle: a client that is not read from is not seen to go
            await until(lambda: not broker.connections.open, "the connection is gone")
    assert len(broker._quota_gate._throttled) <= 10
