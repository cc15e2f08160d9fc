"""Which shard holds a group or partition, which node a shard, and which brokers a new partition."""

from __future__ import annotations

import sys
from collections import Counter
from uuid import UUID

import pytest

from muster.coordinator.cluster.placement import data_shard, place, shard_of, spread
from muster.protocol.java import java_hash
from tests.support.each import each

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


@each("group_id, hash_code, shard", EXAMPLES)
def test_groups_are_hashed_as_kafka_does(group_id: str, hash_code: int, shard: int) -> None:
    assert java_hash(group_id) == hash_code
    assert shard_of(group_id) == shard


def test_the_smallest_number_is_shard_zero_whatever_the_count() -> None:
    assert shard_of("polygenelubricants", 7) == 0


def test_a_long_key_is_not_remembered() -> None:
    key = "k" * 32_000
    references = sys.getrefcount(key)
    assert 0 <= shard_of(key) < 50
    assert sys.getrefcount(key) == references


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


def replica_lists(partitions: int, factor: int, racks: dict[int, str | None]) -> list[tuple[int, ...]]:
    lists = spread(TOPIC, range(partitions), factor, racks)
    assert list(lists) == list(range(partitions))
    return list(lists.values())


@pytest.mark.parametrize("factor", [1, 2, 3, 5])
def test_replicas_are_on_different_brokers_and_leaders_and_replicas_even(factor: int) -> None:
    lists = replica_lists(100, factor, dict.fromkeys((4, 7, 8, 9, 11)))
    assert all(len(set(each)) == factor for each in lists)
    assert set(Counter(each[0] for each in lists).values()) == {20}
    counts = Counter(node_id for each in lists for node_id in each).values()
    assert max(counts) - min(counts) <= 20


def test_the_replicas_beside_one_leader_differ() -> None:
    """So that the partitions of a dead leader go to several other brokers."""
    lists = replica_lists(60, 2, dict.fromkeys(range(1, 7)))
    assert {len({each[1] for each in lists if each[0] == leader}) for leader in range(1, 7)} == {5}


def test_few_lists_are_made_whatever_the_number_of_brokers_and_partitions() -> None:
    assert len(set(replica_lists(10_000, 3, dict.fromkeys(range(50))))) <= 50 * 8


def test_each_rack_has_a_replica_before_one_has_two() -> None:
    racks: dict[int, str | None] = {1: "a", 2: "a", 3: "a", 4: "b", 5: "b", 6: "c"}
    for factor in (2, 3, 4):
        for replicas in replica_lists(60, factor, racks):
            counts = Counter(racks[node_id] for node_id in replicas)
            assert len(counts) == min(factor, 3)
            assert max(counts.values()) <= (1 if factor <= 3 else 2)


def test_further_partitions_go_on_where_the_first_ended() -> None:
    racks: dict[int, str | None] = dict.fromkeys((1, 2, 3))
    whole = spread(TOPIC, range(9), 2, racks)
    assert spread(TOPIC, range(4, 9), 2, racks) == {each: whole[each] for each in range(4, 9)}
