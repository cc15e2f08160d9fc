"""Which shard has a group or a partition, and which node a shard."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest

from muster.coordinator.cluster.placement import data_shard, place, shard_of
from muster.protocol.java import java_hash

# Confirmed with a JVM.
EXAMPLES = [
    ("", 0, 0),
    ("a", 97, 47),
    ("my-group", -1906497762, 12),  # masking the sign bit would say 36, Python's % on the signed value 38
    ("test-consumer-group", -1793216381, 31),
    ("console-consumer-12345", 158455506, 6),
    ("orders", -1008770331, 31),
    ("group-1", 293427299, 49),
    ("group-2", 293427300, 0),
    ("groupe-é", 506365602, 2),
    ("группа", 1749938458, 8),
    ("消费者组", 871131088, 38),
    ("grp-😀", -1235730613, 13),  # two UTF-16 units; hashing the code point would say 26
    ("polygenelubricants", -(2**31), 0),  # abs of the one number that has no positive counterpart
    ("GydZG_", -(2**31), 0),
    ("DESIGNING WORKHOUSES", -(2**31), 0),
    ("Aa", 2112, 12),
    ("BB", 2112, 12),
]


@pytest.mark.parametrize(("group_id", "hash_code", "shard"), EXAMPLES)
def test_groups_are_hashed_as_kafka_does(group_id: str, hash_code: int, shard: int) -> None:
    assert java_hash(group_id) == hash_code
    assert shard_of(group_id) == shard


def test_the_smallest_number_is_shard_zero_whatever_the_count() -> None:
    assert shard_of("polygenelubricants", 7) == 0


TOPIC = UUID("7f6b1f5e-2c0d-4b7e-9a53-0d9d3f1c2b4a")


def test_partitions_of_a_topic_are_in_different_data_shards_as_long_as_there_are_any() -> None:
    assert len({data_shard(TOPIC, partition, 50) for partition in range(50)}) == 50
    assert data_shard(TOPIC, 50, 50) == data_shard(TOPIC, 0, 50)


def test_data_shards_do_not_change_between_versions() -> None:
    # Records on disk would change their leader's epoch line without anything having happened.
    assert [data_shard(TOPIC, partition, 50) for partition in (0, 1, 49)] == [32, 33, 31]


def placed(nodes: list[int]) -> dict[int, int | None]:
    return {number: place("group", number, nodes) for number in range(50)}


def test_one_nodes_death_moves_only_its_own_shards() -> None:
    before, after = placed([1, 2, 3]), placed([1, 3])
    moved = {number for number in before if before[number] != after[number]}
    assert moved == {number for number, node in before.items() if node == 2}
    assert moved


def test_a_node_that_comes_takes_only_what_it_gets() -> None:
    before, after = placed([1, 2]), placed([1, 2, 3])
    assert all(after[number] == 3 for number in before if before[number] != after[number])


def test_every_node_gets_a_fair_share() -> None:
    shares = Counter(place("group", number, [1, 2, 3]) for number in range(3_000))
    assert all(900 < share < 1_100 for share in shares.values()), shares


def test_kinds_are_placed_independently_and_the_order_of_nodes_does_not_matter() -> None:
    assert placed([1, 2, 3]) == placed([3, 1, 2])
    assert [place("data", number, [1, 2, 3]) for number in range(50)] != list(placed([1, 2, 3]).values())


def test_without_nodes_there_is_no_place() -> None:
    assert place("group", 0, []) is None
