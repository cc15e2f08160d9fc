"""How a broker handles what another broker changed, and of which it has not heard yet: topics that were
created or deleted, configs and feature levels."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from muster.coordinator.server.apis import configs, several
from muster.coordinator.server.broker import Broker
from muster.coordinator.storage.store import StoreError
from muster.protocol.errors import ErrorCode
from muster.protocol.message import Message
from muster.protocol.messages.cluster import ElectLeadersRequest
from muster.protocol.messages.configs import ResourceType
from muster.protocol.messages.features import UpdateFeaturesRequest
from muster.protocol.messages.reassignments import AlterPartitionReassignmentsRequest as Alter
from muster.protocol.messages.topics import CreatePartitionsRequest, DeleteTopicsRequest
from muster.protocol.types import ZERO_UUID
from tests.server.conftest import StartBrokers
from tests.server.test_metadata import creating
from tests.support.facts import until
from tests.support.wire import Wire
from tests.support.wire_configs import BROKER, GROUP, SET, TOPIC, altering, describing, replacing


class Asked(NamedTuple):
    """A request about topics in one version, and where its answer has their codes."""

    request: Message
    version: int
    answers: str


def about(*names: str) -> dict[str, Asked]:
    """Requests to brokers that in Kafka the controller answers, by their name."""
    topic = ResourceType.TOPIC
    Growing = CreatePartitionsRequest.CreatePartitionsTopic
    growing = [Growing(name=name, count=2, assignments=None) for name in names]
    electing = [ElectLeadersRequest.TopicPartitions(topic=name, partitions=[0]) for name in names]
    deleting = [DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=ZERO_UUID) for name in names]
    settings = {"retention.ms": "1000"}
    changes = [("retention.ms", SET, "1000")]
    return {
        "alter configs": Asked(altering(*((topic, name, changes) for name in names)), 1, "responses"),
        "replace configs": Asked(replacing(*((topic, name, settings) for name in names)), 2, "responses"),
        "describe configs": Asked(describing(*((topic, name) for name in names)), 4, "results"),
        "create partitions": Asked(
            CreatePartitionsRequest(topics=growing, timeout_ms=30_000, validate_only=False), 3, "results"
        ),
        "elect leaders": Asked(
            ElectLeadersRequest(election_type=0, topic_partitions=electing, timeout_ms=30_000),
            2,
            "replica_election_results",
        ),
        "delete topics": Asked(DeleteTopicsRequest(topics=deleting, timeout_ms=30_000), 6, "responses"),
    }


def codes(response: Any, answers: str) -> list[int]:
    """One code for each topic."""
    found = getattr(response, answers)
    return [
        each.partition_result[0].error_code if "election" in answers else each.error_code for each in found
    ]


async def two(start_brokers: StartBrokers) -> Sequence[Broker]:
    """Two brokers; the second hears nothing of what the first does."""
    brokers = (await start_brokers(brokers=2)).brokers
    deafen(brokers[1])
    return brokers


def deafen(broker: Broker) -> None:
    """From here on it reads only what it asks for itself."""
    assert broker._catalogue_task is not None
    broker._catalogue_task.cancel()


def counted_reads(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Sequence[object]:
    """Gets an item for each read of the topics from here on."""
    read: Callable[[], Any] = broker._store.topics
    reads: list[object] = []

    async def counted() -> Any:
        reads.append(None)
        return await read()

    monkeypatch.setattr(broker._store, "topics", counted)
    return reads


@pytest.mark.parametrize("what", about())
async def test_nobody_is_refused_for_a_topic_that_another_broker_has_just_made(
    start_brokers: StartBrokers, what: str
) -> None:
    first, second = await two(start_brokers)
    await first.catalogue.create("t")
    assert second.catalogue.by_name("t") is None
    request, version, answers = about("t")[what]
    async with await Wire.connect(second.port) as wire:
        (code,) = codes(await wire.call(request, version), answers)
    if what == "elect leaders":
        assert code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    else:
        assert code == ErrorCode.NONE


async def test_a_name_is_free_once_another_broker_has_deleted_the_topic(start_brokers: StartBrokers) -> None:
    first, second = await two(start_brokers)
    topic = await first.catalogue.create("t")
    await second.catalogue.refresh()
    await first.catalogue.delete(topic)
    assert second.catalogue.by_name("t") == topic
    async with await Wire.connect(second.port) as wire:
        (created,) = (await wire.call(creating("t"), 7)).topics
    assert (created.error_code, created.topic_id == topic.topic_id) == (ErrorCode.NONE, False)


@pytest.mark.parametrize("again", [True, False])
async def test_a_topic_is_deleted_by_its_name_even_if_another_broker_has_made_it_again(
    start_brokers: StartBrokers, again: bool
) -> None:
    first, second = await two(start_brokers)
    topic = await first.catalogue.create("t")
    await second.catalogue.refresh()
    await first.catalogue.delete(topic)
    if again:
        await first.catalogue.create("t")
    assert second.catalogue.by_name("t") == topic
    request, version, answers = about("t")["delete topics"]
    async with await Wire.connect(second.port) as wire:
        found = codes(await wire.call(request, version), answers)
    assert found == [ErrorCode.NONE if again else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    await first.catalogue.refresh()
    assert first.catalogue.by_name("t") is None


async def test_a_deletion_that_goes_on_after_its_time_spares_a_topic_that_was_made_again_since(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await two(start_brokers)
    topic = await first.catalogue.create("t")
    await second.catalogue.refresh()
    goes_on, store = asyncio.Event(), second.catalogue._store
    delete = store.delete_topic

    async def late(topic_id: UUID) -> bool:
        await goes_on.wait()
        return await delete(topic_id)

    monkeypatch.setattr(store, "delete_topic", late)
    asked = [DeleteTopicsRequest.DeleteTopicState(name="t", topic_id=ZERO_UUID)]
    async with await Wire.connect(second.port) as wire:
        answer = await wire.call(DeleteTopicsRequest(topics=asked, timeout_ms=50), 6)
    assert [each.error_code for each in answer.responses] == [ErrorCode.REQUEST_TIMED_OUT]
    await first.catalogue.delete(topic)
    made = await first.catalogue.create("t")
    goes_on.set()
    await until(lambda: not several._MADE, "the late attempt to end")
    await first.catalogue.refresh()
    assert first.catalogue.by_name("t") == made


@pytest.mark.parametrize("what", ["elect leaders", "reassign"])
async def test_nobody_is_refused_for_a_partition_that_another_broker_has_just_added(
    start_brokers: StartBrokers, what: str
) -> None:
    first, second = await two(start_brokers)
    await first.catalogue.create("t")
    await second.catalogue.refresh()
    await first.catalogue.add_partitions("t", 2)
    assert second.catalogue.named("t").partitions == 1
    async with await Wire.connect(second.port) as wire:
        if what == "reassign":
            added = Alter.ReassignablePartition(partition_index=1, replicas=[1, 2])
            topic = Alter.ReassignableTopic(name="t", partitions=[added])
            (moved,) = (await wire.call(Alter(topics=[topic]), 1)).responses
            code = moved.partitions[0].error_code
            assert list(second.catalogue.named("t").assignments) == [1]
        else:
            partition = ElectLeadersRequest.TopicPartitions(topic="t", partitions=[1])
            request = ElectLeadersRequest(topic_partitions=[partition], timeout_ms=30_000)
            (elected,) = (await wire.call(request, 2)).replica_election_results
            code = elected.partition_result[0].error_code
    assert code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("what", [*about(), "create topics"])
async def test_the_store_is_read_once_for_all_that_a_request_names(
    start_brokers: StartBrokers, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (broker,) = (await start_brokers()).brokers
    names = [f"t-{number}" for number in range(300)]
    if what == "create topics":
        for name in names[:30]:
            await broker.catalogue.create(name)
        asked = Asked(creating(*names[:30]), 7, "topics")
    else:
        asked = about(*names)[what]
    deafen(broker)
    reads = counted_reads(broker, monkeypatch)
    async with await Wire.connect(broker.port) as wire:
        found = codes(await wire.call(asked.request, asked.version), asked.answers)
    wanted = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert set(found) == {ErrorCode.TOPIC_ALREADY_EXISTS if what == "create topics" else wanted}
    assert len(reads) == 1


@pytest.mark.parametrize("what", about())
async def test_a_store_that_cannot_be_read_refuses_what_needs_it(
    start_brokers: StartBrokers, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (broker,) = (await start_brokers()).brokers

    async def failing() -> Any:
        raise StoreError("the disk is on fire")

    monkeypatch.setattr(broker._store, "topics", failing)
    request, version, answers = about("t")[what]
    async with await Wire.connect(broker.port) as wire:
        (code,) = codes(await wire.call(request, version), answers)
    local = what in ("describe configs", "elect leaders", "delete topics")
    assert code == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if local else ErrorCode.KAFKA_STORAGE_ERROR)


async def test_a_description_does_not_wait_for_a_store_that_hangs(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    (broker,) = (await start_brokers()).brokers
    hanging = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(broker._store, "topics", lambda: hanging)
    monkeypatch.setattr(configs, "_HEARD_OF_WITHIN_MS", 50)
    request, version, answers = about("t")["describe configs"]
    async with await Wire.connect(broker.port) as wire:
        found = codes(await wire.call(request, version), answers)
    hanging.set_result([])
    assert found == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def setting(type: int, resource: str, name: str, value: str, *, validate_only: bool = False) -> Message:
    return altering((type, resource, [(name, SET, value)]), validate_only=validate_only)


def levelling(level: int, *, validate_only: bool = False) -> Message:
    """Lower `transaction.version` to 0, or raise it."""
    Update = UpdateFeaturesRequest.FeatureUpdateKey
    update = Update(
        feature="transaction.version", max_version_level=level, upgrade_type=2 if level == 0 else 1
    )
    return UpdateFeaturesRequest(feature_updates=[update], validate_only=validate_only)


def growing(count: int, assignments: Sequence[Sequence[int]] | None = None) -> Message:
    Growing = CreatePartitionsRequest.CreatePartitionsTopic
    Assigned = Growing.CreatePartitionsAssignment
    assigned = None if assignments is None else [Assigned(broker_ids=list(each)) for each in assignments]
    asked = [Growing(name="t", count=count, assignments=assigned)]
    return CreatePartitionsRequest(topics=asked, timeout_ms=30_000, validate_only=False)


async def told(broker: Broker, request: Message) -> int:
    """The error code of the answer to a request about one thing."""
    async with await Wire.connect(broker.port) as wire:
        if isinstance(request, UpdateFeaturesRequest):
            answer = await wire.call(request, 2)
            return int(answer.error_code)
        if isinstance(request, CreatePartitionsRequest):
            (code,) = codes(await wire.call(request, 3), "results")
        else:
            (code,) = codes(await wire.call(request, 1), "responses")
        return code


HEARTBEAT, SESSION = "consumer.heartbeat.interval.ms", "consumer.session.timeout.ms"


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize(
    ("change", "next_change"),
    [
        (setting(BROKER, "", "num.io.threads", "16"), partial(setting, BROKER, "", "num.io.threads", "32")),
        (setting(GROUP, "g", SESSION, "60000"), partial(setting, GROUP, "g", HEARTBEAT, "50000")),
        (levelling(0), partial(levelling, 1)),
        (
            setting(TOPIC, "t", "max.compaction.lag.ms", "2000"),
            partial(setting, TOPIC, "t", "min.compaction.lag.ms", "1500"),
        ),
    ],
    ids=["broker", "group", "feature", "topic"],
)
async def test_nobody_is_refused_for_what_was_set_before_another_broker_changed_it(
    start_brokers: StartBrokers, change: Message, next_change: Callable[..., Message], validate_only: bool
) -> None:
    brokers = await start_brokers(brokers=2, group_consumer_max_heartbeat_interval_ms=60_000)
    first, second = brokers.brokers
    await first.catalogue.create("t", configs={"max.compaction.lag.ms": "1000"})
    await second.catalogue.refresh()
    deafen(second)
    assert await told(first, change) == ErrorCode.NONE
    assert await told(second, next_change(validate_only=validate_only)) == ErrorCode.NONE


async def test_a_topic_grows_from_the_partitions_that_another_broker_gave_it(
    start_brokers: StartBrokers,
) -> None:
    first, second = await two(start_brokers)
    topic = await first.catalogue.create("t", partitions=5)
    await second.catalogue.refresh()
    await first.catalogue.delete(topic)
    await first.catalogue.create("t", partitions=1)
    assert await told(second, growing(3)) == ErrorCode.NONE
    await first.catalogue.add_partitions("t", 4)
    assert await told(second, growing(5, [[second.node_id]])) == ErrorCode.NONE
    assert second.catalogue.named("t").partitions == 5


@pytest.mark.parametrize("what", ["alter configs", "replace configs", "create partitions"])
async def test_the_store_is_read_once_for_all_refusals_of_a_request(
    start_brokers: StartBrokers, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (broker,) = (await start_brokers()).brokers
    names = [f"t-{number}" for number in range(30)]
    for name in names:
        await broker.catalogue.create(name, partitions=2)
    bad = {"retention.ms": "never"}
    asked = {
        "alter configs": altering(*((TOPIC, name, [("retention.ms", SET, "never")]) for name in names)),
        "replace configs": replacing(*((TOPIC, name, bad) for name in names)),
        "create partitions": about(*names)["create partitions"].request,
    }[what]
    _, version, answers = about("t")[what]
    deafen(broker)
    reads = counted_reads(broker, monkeypatch)
    async with await Wire.connect(broker.port) as wire:
        found = codes(await wire.call(asked, version), answers)
    refused = ErrorCode.INVALID_PARTITIONS if what == "create partitions" else ErrorCode.INVALID_CONFIG
    assert set(found) == {refused}
    assert len(reads) == 1
