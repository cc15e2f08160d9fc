"""Hashes and orders as Java has them; `tests/cluster/test_placement.py` has more hashes."""

from __future__ import annotations

from muster.protocol.java import hash_map_order, java_hash


def test_lone_surrogates_are_hashed_like_any_unit() -> None:
    assert java_hash("\ud83d") == 0xD83D


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
