"""Hashes and orders as in Java; `tests/cluster/test_placement.py` has more hashes."""

from __future__ import annotations

from struct import iter_unpack
from uuid import UUID

import pytest

from muster.protocol import java
from muster.protocol.java import (
    buckets_when_copied,
    buckets_when_grown,
    hash_map_order,
    java_hash,
    spread,
    uuid_hash,
    uuid_order,
)


def test_lone_surrogates_are_hashed_like_any_unit() -> None:
    assert java_hash("\ud83d") == 0xD83D


def test_only_short_texts_are_remembered() -> None:
    short, long = "aé😀" * 85 + "a", "aé😀" * 86
    assert (len(short), len(long)) == (256, 258)
    for text, kept in ((short, 1), (long, 0)):
        before = java._remembered.cache_info()
        assert java_hash(text) == java_hash(text) == by_the_book(text)
        after = java._remembered.cache_info()
        assert (after.misses - before.misses, after.hits - before.hits) == (kept, kept)


def by_the_book(text: str) -> int:
    value = 0
    for (unit,) in iter_unpack(">H", text.encode("utf-16-be")):
        value = 31 * value + unit
    return (value + 2**31) % 2**32 - 2**31


def test_a_small_table_iterates_by_bucket() -> None:
    # Buckets 8, 9, 10 and 15, as Apache Kafka's protocol votes show them.
    by_bucket = ["sticky", "range", "roundrobin", "cooperative-sticky"]
    assert hash_map_order(reversed(by_bucket)) == by_bucket


def test_one_bucket_keeps_the_order_of_insertion() -> None:
    assert java_hash("Aa") == java_hash("BB")
    assert hash_map_order(["BB", "Aa"]) == ["BB", "Aa"]
    assert hash_map_order(["Aa", "BB"]) == ["Aa", "BB"]


def test_a_table_grows_when_it_is_more_than_three_quarters_full() -> None:
    # "0" to "9" hash to 48 to 57 and "A" to 65: of 16 buckets "1" and "A" share one, of 32 they do not.
    digits = list("0123456789")
    assert hash_map_order([*"AB", *digits]) == ["0", "A", "1", "B", *digits[2:]]
    assert hash_map_order([*"ABC", *digits]) == ["A", "B", "C", *digits]


@pytest.mark.parametrize(
    ("keys", "grown", "copied"), [(0, 16, 16), (11, 16, 16), (12, 16, 32), (13, 32, 32), (24, 32, 64)]
)
def test_how_large_a_table_is(keys: int, grown: int, copied: int) -> None:
    assert (buckets_when_grown(keys), buckets_when_copied(keys)) == (grown, copied)


def test_high_bits_of_a_hash_code_count_too() -> None:
    assert spread(0x0003_0005) == 0x0003_0006
    assert spread(-1) == 0xFFFF_0000


def test_the_four_words_of_a_uuid_are_its_hash() -> None:
    assert uuid_hash(UUID("10000000-0200-0000-0030-000000000004")) == 0x1230_0004


def test_halves_of_uuids_compare_as_signed_numbers() -> None:
    ascending = ["80000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-8000-000000000000"]
    ascending += ["ffffffff-ffff-ffff-0000-000000000000", "00000000-0000-0000-0000-000000000001"]
    ids = [UUID(each) for each in ascending]
    assert sorted(set(ids), key=uuid_order) == ids
