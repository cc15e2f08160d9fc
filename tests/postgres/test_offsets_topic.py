"""`__consumer_offsets` over PostgreSQL: a reader follows it from holder to holder and misses nothing."""

from __future__ import annotations

import asyncio

from muster.client import Admin, Consumer, TopicPartition
from muster.coordinator.cluster.placement import OFFSETS_TOPIC, shard_of
from muster.coordinator.config import Settings
from muster.coordinator.server.brokers import Brokers
from muster.protocol.messages.coordinator_records import OffsetCommitKey, OffsetCommitValue, decode_record

DEADLINE_S = 60
GROUP = "billing"
SHARD = shard_of(GROUP)


async def test_a_reader_follows_from_holder_to_holder(store: str) -> None:
    brokers = Brokers(Settings(port=0, store=store, brokers=2))
    await brokers.start()
    try:
        bootstrap = ",".join(broker.address for broker in brokers.brokers)
        orders = [TopicPartition("orders", number) for number in range(2)]
        async with (
            asyncio.timeout(2 * DEADLINE_S),
            Admin(bootstrap) as admin,
            Consumer(bootstrap, auto_offset_reset="earliest") as reader,
        ):
            await admin.create_topic("orders", 2)
            reader.assign([TopicPartition(OFFSETS_TOPIC, SHARD)])
            read: list[tuple[int, int, int | None]] = []

            async def read_until(count: int) -> None:
                while len(read) < count:
                    record = await reader.get()
                    decoded = decode_record(record.key or b"", record.value)
                    assert decoded is not None
                    key, value = decoded
                    if isinstance(key, OffsetCommitKey):
                        offset = value.offset if isinstance(value, OffsetCommitValue) else None
                        read.append((record.offset, key.partition, offset))

            for number in range(3):
                await admin.alter_group_offsets(GROUP, {orders[0]: number, orders[1]: number})
                await read_until(2 * number + 2)
            (told,) = (await admin.describe_topics([OFFSETS_TOPIC])).values()
            holder = told.partitions[SHARD].leader
            index = next(n for n, each in enumerate(brokers.brokers) if each.node_id == holder)
            await brokers.kill_one(index)
            (left,) = [each for each in brokers.brokers if each.node_id != holder]
            await admin.alter_group_offsets(GROUP, {orders[0]: 7}, timeout=DEADLINE_S)
            await read_until(7)
            await admin.delete_group_offsets(GROUP, [orders[1]])
            await read_until(8)
            (told,) = (await admin.describe_topics([OFFSETS_TOPIC])).values()
            assert told.partitions[SHARD].leader == left.node_id
            assert sorted(each[1:] for each in read[:6]) == [
                (partition, number) for partition in range(2) for number in range(3)
            ]
            assert [each[1:] for each in read[6:]] == [(0, 7), (1, None)]
            offsets = [each[0] for each in read]
            assert offsets == sorted(set(offsets))
            assert offsets[6] - offsets[5] > 2**31, "numbers are reserved anew by each holder"

            # A new reader gets the last value of each key, reading across the gap.
            async with Consumer(bootstrap, auto_offset_reset="earliest") as late:
                late.assign([TopicPartition(OFFSETS_TOPIC, SHARD)])
                found = {}
                while len(found) < 2:
                    record = await late.get()
                    found[record.key] = record.offset
                assert sorted(found.values()) == offsets[6:]
    finally:
        await brokers.stop()
