"""Where things belong: which shard has a group or a partition, which node should hold a shard, and which
brokers a new partition is assigned to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from uuid import UUID, uuid5
from zlib import crc32

from muster.protocol.java import java_hash

GROUP_SHARDS = 50  # offsets.topic.num.partitions; fixed when a store is created
OFFSETS_TOPIC = "__consumer_offsets"
EVENTS_TOPIC = "__group_events"
TRANSACTIONS_TOPIC = "__transaction_state"
_INT32_MIN = -(2**31)
_SHIFTS_MAX = 8


def shard_of(key: str, count: int = GROUP_SHARDS) -> int:
    """The partition in which Kafka would keep this group (`__consumer_offsets`) or transactional id
    (`__transaction_state`).

    Kafka's Utils.abs takes the absolute value, and 0 for the one number that has none in 32 bits.
    """
    value = java_hash(key)
    return 0 if value == _INT32_MIN else abs(value) % count


def internal_topic_id(cluster_id: UUID, name: str) -> UUID:
    """The id of a topic whose records are rows, which is not a topic of the store: every broker computes the
    same one."""
    return uuid5(cluster_id, name)


def data_shard(topic_id: UUID, partition: int, count: int) -> int:
    """The data shard whose lease holder leads this partition.

    Neighbouring partitions get neighbouring shards: a topic with up to `count` partitions puts no two into
    one shard, whereas a hash over both would make some brokers lead several and others none.
    """
    return (crc32(topic_id.bytes) + partition) % count


def place(kind: str, number: int, node_ids: Iterable[int]) -> int | None:
    """The node that should hold shard `number` of `kind`, by rendezvous hashing; None without nodes.

    Every node draws a weight per shard and the heaviest wins, so a leaving node moves only what it had won,
    and a joining one takes only what it wins.
    """
    return max(node_ids, key=lambda node_id: (_weight(kind, number, node_id), node_id), default=None)


@lru_cache(maxsize=16_384)
def _weight(kind: str, number: int, node_id: int) -> int:
    # Not Python's hash(): that one is salted per process, and all nodes must agree.
    return int.from_bytes(blake2b(f"{kind}/{number}@{node_id}".encode(), digest_size=8).digest(), "big")


def spread(
    topic_id: UUID, partitions: range, factor: int, brokers: Mapping[int, str | None]
) -> dict[int, tuple[int, ...]]:
    """A replica list for each of `partitions`: `factor` of the `brokers` (at least as many, with their
    racks), the preferred leader first.

    As in Kafka, leaders rotate over the brokers, the other replicas follow at a distance that changes with
    every round, and no rack has two replicas before each has one. Few distances are used, since each list has
    a shard of its own.
    """
    ring = _ring(brokers)
    start = crc32(topic_id.bytes)
    found = {}
    for partition in partitions:
        lap, place = divmod(start % len(ring) + partition, len(ring))
        shift = 1 + (start + lap) % min(_SHIFTS_MAX, max(len(ring) - 1, 1))
        others = [ring[(place + shift + step) % len(ring)] for step in range(len(ring))]
        found[partition] = _chosen([ring[place], *others], factor, brokers)
    return found


def _ring(brokers: Mapping[int, str | None]) -> list[int]:
    """The brokers, with neighbours on different racks where possible."""
    racks: dict[str | None, list[int]] = {}
    for node_id in sorted(brokers):
        racks.setdefault(brokers[node_id], []).append(node_id)
    return [
        node_id
        for _, node_id in sorted(
            ((place, node_id) for of_rack in racks.values() for place, node_id in enumerate(of_rack)),
            key=lambda each: (each[0], brokers[each[1]] or "", each[1]),
        )
    ]


def _chosen(candidates: Sequence[int], factor: int, brokers: Mapping[int, str | None]) -> tuple[int, ...]:
    """The first `factor` of the candidates, each rack once before any is used twice."""
    left = list(dict.fromkeys(candidates))
    chosen: list[int] = []
    used: set[str | None] = set()
    while len(chosen) < factor:
        node_id = next((each for each in left if brokers[each] not in used), None)
        if node_id is None:
            used.clear()
            continue
        left.remove(node_id)
        chosen.append(node_id)
        used.add(brokers[node_id])
    return tuple(chosen)
