"""Administrative operations have the same outcome on every target."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from muster.client import (
    EARLIEST,
    HIGH_WATERMARK,
    LATEST,
    MAX_TIMESTAMP,
    Append,
    At,
    ConfigResource,
    ConfigSource,
    Current,
    Earliest,
    ErrorCode,
    KafkaError,
    Latest,
    NewTopic,
    Offset,
    OffsetAndMetadata,
    ResetOffset,
    Shift,
    Subtract,
    TopicDescription,
    TopicPartition,
)
from tests.interop.behaviour.place import DEADLINE_S, LOOK_AGAIN_S, Place

SECOND_0 = datetime(1970, 1, 1, tzinfo=UTC)


def codes(outcomes: dict[object, object]) -> list[ErrorCode | None]:
    """The outcome of each: the code it was refused with, or None."""
    return [each.code if isinstance(each, KafkaError) else None for each in outcomes.values()]


async def log_of_ten(place: Place) -> list[TopicPartition]:
    """Two partitions. The first has ten records, one second apart, starting at second 1, of which the first
    three are deleted; the second is empty."""
    topic = await place.topic(2)
    for number in range(10):
        await place.send(topic, b"%d" % number, timestamp_ms=1000 * (number + 1))
    full, empty = TopicPartition(topic, 0), TopicPartition(topic, 1)
    assert await place.admin.delete_records({full: 3}) == {full: 3}
    return [full, empty]


async def described_with(place: Place, topic: str, *, partitions: int) -> TopicDescription:
    """The description, once the queried broker knows of all partitions; another broker created them."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            described = (await place.admin.describe_topics([topic])).succeeded.get(topic)
            if described is not None and len(described.partitions) == partitions:
                return described
            await asyncio.sleep(LOOK_AGAIN_S)


async def test_topics(place: Place) -> None:
    admin, name = place.admin, place.name
    created = await admin.create_topics(
        [
            NewTopic(name=f"{name}-a", num_partitions=3, configs={"retention.ms": "-1"}),
            NewTopic(name=f"{name}-b", replication_factor=99),
            NewTopic(name="no/name"),
            NewTopic(name=f"{name}-c", configs={"retention.ms": "soon"}),
            NewTopic(name=f"{name}-d", replica_assignments={0: [99]}),
        ]
    )
    assert codes(created) == [
        None,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ]
    a = created.succeeded[f"{name}-a"]
    assert (a.num_partitions, a.replication_factor) == (3, 1)
    described = await described_with(place, f"{name}-a", partitions=3)
    assert (described.topic_id, described.internal, len(described.partitions)) == (a.topic_id, False, 3)
    assert all(each.leader == each.replicas[0] == each.isr[0] for each in described.partitions)
    validated = await admin.create_topic(f"{name}-e", 2, validate_only=True)
    assert validated == (f"{name}-e", None, 2, 1)
    assert codes(await admin.describe_topics([f"{name}-a", f"{name}-e"])) == [
        None,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    grown = await admin.create_partitions({f"{name}-a": 4, f"{name}-e": 4})
    assert codes(grown) == [None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert codes(await admin.create_partitions({f"{name}-a": 2})) == [ErrorCode.INVALID_PARTITIONS]
    await described_with(place, f"{name}-a", partitions=4)
    assert f"{name}-a" in [each.name for each in await admin.list_topics()]
    assert codes(await admin.delete_topics([f"{name}-a", f"{name}-e"])) == [
        None,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


async def test_configs(place: Place) -> None:
    admin, topic = place.admin, ConfigResource.of_topic(await place.topic())
    nope = ConfigResource.of_topic(f"{place.name}-nope")

    async def shown(name: str) -> tuple[str | None, bool]:
        configs = (await admin.describe_configs([topic], names=[name])).raise_for_failures()[topic]
        assert list(configs) == [name]
        return configs[name].value, configs[name].source == ConfigSource.TOPIC

    async def becomes(name: str, expected: tuple[str | None, bool]) -> None:
        """A broker of Apache Kafka learns of a change from its controller, later than the client."""
        async with asyncio.timeout(DEADLINE_S):
            while await shown(name) != expected:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_AGAIN_S)

    assert await shown("cleanup.policy") == ("delete", False)
    changes = {topic: {"cleanup.policy": Append("compact"), "retention.ms": "5000"}}
    assert codes(await admin.alter_configs(changes, validate_only=True)) == [None]
    assert await shown("retention.ms") == ("604800000", False)
    assert codes(await admin.alter_configs(changes)) == [None]
    await becomes("cleanup.policy", ("delete,compact", True))
    await becomes("retention.ms", ("5000", True))
    back = {topic: {"cleanup.policy": Subtract("delete"), "retention.ms": None}}
    assert codes(await admin.alter_configs(back)) == [None]
    await becomes("cleanup.policy", ("compact", True))
    await becomes("retention.ms", ("604800000", False))
    refused = await admin.alter_configs({topic: {"retention.ms": "soon"}, nope: {"retention.ms": "1"}})
    assert codes(refused) == [ErrorCode.INVALID_CONFIG, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    for broker in (await admin.describe_cluster()).brokers:
        resource = ConfigResource.of_broker(broker.node_id)
        configs = (await admin.describe_configs([resource])).raise_for_failures()[resource]
        assert configs["num.partitions"].read_only
    assert codes(await admin.describe_configs([nope, ConfigResource.of_broker(99)])) == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.BROKER_ID_NOT_REGISTERED,
    ]


async def test_offsets_of_logs(place: Place) -> None:
    admin, (full, empty) = place.admin, await log_of_ten(place)
    beyond = TopicPartition(full.topic, 2)

    async def offsets(what: int | datetime) -> list[int | ErrorCode | None]:
        found = await admin.list_offsets(dict.fromkeys([full, empty, beyond], what))
        return [
            each.code if isinstance(each, KafkaError) else None if each is None else each.offset
            for each in found.values()
        ]

    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await offsets(EARLIEST) == [3, 0, unknown]
    assert await offsets(LATEST) == [10, 0, unknown]
    assert await offsets(MAX_TIMESTAMP) == [9, None, unknown]
    assert await offsets(0) == [3, None, unknown]
    assert await offsets(SECOND_0 + timedelta(milliseconds=5001)) == [5, None, unknown]
    assert await offsets(10_001) == [None, None, unknown]
    assert codes(await admin.delete_records({full: 99, empty: HIGH_WATERMARK})) == [
        ErrorCode.OFFSET_OUT_OF_RANGE,
        None,
    ]
    assert await admin.delete_records({full: HIGH_WATERMARK}) == {full: 10}
    (state,) = (await admin.describe_producers([full])).raise_for_failures()[full]
    assert (state.last_sequence, state.last_timestamp) == (9, 10_000)
    assert codes(await admin.elect_leaders([full, beyond])) == [ErrorCode.ELECTION_NOT_NEEDED, unknown]
    replicas = [
        where
        for directories in (await admin.describe_log_dirs()).raise_for_failures().values()
        for directory in directories
        for where in directory.replicas
    ]
    assert {where for where in replicas if where.topic == full.topic} == {full, empty}


async def test_offsets_of_a_group(place: Place) -> None:
    admin, (full, empty), group = place.admin, await log_of_ten(place), place.group
    assert await admin.list_group_offsets(group) == {}
    nowhere = TopicPartition(f"{place.name}-nope", 0)
    committed = {full: OffsetAndMetadata(7, "by hand", 0), empty: OffsetAndMetadata(0)}
    assert codes(await admin.alter_group_offsets(group, {**committed, nowhere: 1})) == [
        None,
        None,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert await admin.list_groups_offsets([group, f"{group}-2"]) == {group: committed, f"{group}-2": {}}
    described = await admin.describe_group(group)
    assert (described.state, described.assignor, described.members) == ("Empty", "", [])
    assert codes(await admin.delete_group_offsets(group, [empty, nowhere])) == [
        None,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert list(await admin.list_group_offsets(group)) == [full]
    assert codes(await admin.delete_groups([group, f"{group}-2"])) == [None, ErrorCode.GROUP_ID_NOT_FOUND]
    assert await admin.list_group_offsets(group) == {}
    with pytest.raises(KafkaError) as failed:
        await admin.delete_group_offsets(group, [full])
    assert failed.value.code == ErrorCode.GROUP_ID_NOT_FOUND
    assert codes(await admin.describe_groups([group])) == [ErrorCode.GROUP_ID_NOT_FOUND]


async def test_a_group_is_put_elsewhere(place: Place) -> None:
    admin, (full, empty), group = place.admin, await log_of_ten(place), place.group
    for to, places in (
        (Latest(), [(5, 10, 10), (None, 0, 0)]),
        (Earliest(), [(5, 3, 3), (None, 0, 0)]),
        (Current(), [(5, 5, 5), (None, 0, 0)]),
        (Offset(99), [(5, 99, 10), (None, 99, 0)]),
        (At(SECOND_0 + timedelta(seconds=8)), [(5, 7, 7), (None, 0, 0)]),
        (At(SECOND_0 + timedelta(days=1)), [(5, 10, 10), (None, 0, 0)]),
    ):
        await admin.alter_group_offsets(group, {full: 5})
        reset = await admin.reset_group_offsets(group, to, topics=[full.topic])
        assert list(reset.values()) == [ResetOffset(*each) for each in places], to
        assert await place.committed() == {where: each.after for where, each in reset.succeeded.items()}
        await admin.delete_group_offsets(group, [empty])
    await admin.alter_group_offsets(group, {full: 5})
    assert await admin.reset_group_offsets(group, Shift(-9), dry_run=True) == {full: ResetOffset(5, -4, 3)}
    assert await place.committed() == {full: 5}


async def test_an_active_group_is_left_alone(place: Place) -> None:
    admin, group = place.admin, place.group
    topic = await place.topic(2)
    where = TopicPartition(topic, 0)
    async with place.member([topic]):
        await place.until_members(1)
        described = await admin.describe_group(group)
        (member,) = described.members
        assert (described.state, described.protocol_type, described.assignor) == (
            "Stable",
            "consumer",
            "range",
        )
        assert member.assignment == [where, TopicPartition(topic, 1)]
        (listed,) = [each for each in await admin.list_groups(states=["stable"]) if each.group_id == group]
        assert listed == (group, "classic", "consumer", "Stable")
        with pytest.raises(KafkaError) as refused:
            await admin.reset_group_offsets(group, Earliest(), topics=[topic])
        assert refused.value.code == ErrorCode.NON_EMPTY_GROUP
        assert codes(await admin.alter_group_offsets(group, {where: 0})) == [ErrorCode.UNKNOWN_MEMBER_ID]
        assert codes(await admin.delete_group_offsets(group, [where])) == [
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        ]
        assert codes(await admin.delete_groups([group])) == [ErrorCode.NON_EMPTY_GROUP]
        removed = await admin.remove_members(group, member_ids=["nobody"])
        assert codes(removed) == [ErrorCode.UNKNOWN_MEMBER_ID]
        assert codes(await admin.remove_members(group)) == [None]
        # A running member joins again as a new one.
        await place.until_members(1)
    async with place.member([topic], group_instance_id="one"):
        await place.until_members(1)
    # A static member stays when it closes, until somebody removes it.
    assert [each.group_instance_id for each in (await admin.describe_group(group)).members] == ["one"]
    assert codes(await admin.remove_members(group, instance_ids=["one"])) == [None]
    assert (await admin.describe_group(group)).state == "Empty"
