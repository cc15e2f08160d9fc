"""Where things belong: which shard has a group or a partition, and which node should hold a shard. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from uuid import UUID, uuid5
from zlib import crc32

from muster.protocol.java import java_hash

GROUP_SHARDS = 50  # offsets.topic.num.partitions; fixed when a store is created
OFFSETS_TOPIC = "__consumer_offsets"
EVENTS_TOPIC = "__group_events"
_INT32_MIN = -(2**31)


@lru_cache(maxsize=16_384)
def shard_of(group_id: str, count: int = GROUP_SHARDS) -> int:
    """The partition of `__consumer_offsets` Kafka would keep this group in.

    Kafka's Utils.abs takes the absolute value, and 0 for the one number that has none in 32 bits.
    """
    value = java_hash(group_id)
    return 0 if value == _INT32_MIN else abs(value) % count


def internal_topic_id(cluster_id: UUID, name: str) -> UUID:
    """The id of OFFSETS_TOPIC or EVENTS_TOPIC, which are no topics of the store: every broker works out
    the same one."""
    return uuid5(cluster_id, name)


def data_shard(topic_id: UUID, partition: int, count: int) -> int:
    """The data shard whose lease holder leads this partition.

    Neighbouring partitions get neighbouring shards: a topic with up to `count` partitions puts no two into
    one shard, where a hash over both would make some brokers lead several and others none.
    """
    return (crc32(topic_id.bytes) + partition) % count


def place(kind: str, number: int, node_ids: Iterable[int]) -> int | None:
    """The node that should hold shard `number` of `kind`: rendezvous hashing, None without nodes.

    Every node draws a weight per shard and the heaviest wins, so a node that goes moves only what it had won,
    and one that comes takes only what it wins.
    """
    return max(node_ids, key=lambda node_id: (_weight(kind, number, node_id), node_id), default=None)


@lru_cache(maxsize=16_384)
def _weight(kind: str, number: int, node_id: int) -> int:
    # Not Python's hash(): that one is salted per process, and all nodes must agree.
    return int.from_bytes(blake2b(f"{kind}/{number}@{node_id}".encode(), digest_size=8).digest(), "big")
