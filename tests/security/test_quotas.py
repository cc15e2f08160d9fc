"""Which quota applies to whom, and which quotas are valid."""

from __future__ import annotations

import itertools

import pytest

from muster.coordinator.security.quotas import (
    CLIENT_ID,
    CONNECTIONS,
    CONSUMED,
    IP,
    MUTATIONS,
    PERCENTAGE,
    PRODUCED,
    USER,
    Component,
    Entity,
    Limit,
    Quotas,
    check_types,
    check_value,
    entity_of,
    selected,
)
from muster.protocol.errors import ErrorCode, KafkaError

ALICE = (USER, "alice")
ANY_USER = (USER, None)
ETL = (CLIENT_ID, "etl")
ANY_CLIENT = (CLIENT_ID, None)

PRECEDENCE: list[tuple[frozenset[tuple[str, str | None]], tuple[str | None, str | None]]] = [
    (frozenset({ALICE, ETL}), ("alice", "etl")),
    (frozenset({ALICE, ANY_CLIENT}), ("alice", "etl")),
    (frozenset({ALICE}), ("alice", None)),
    (frozenset({ANY_USER, ETL}), ("alice", "etl")),
    (frozenset({ANY_USER, ANY_CLIENT}), ("alice", "etl")),
    (frozenset({ANY_USER}), ("alice", None)),
    (frozenset({ETL}), (None, "etl")),
    (frozenset({ANY_CLIENT}), (None, "etl")),
]
"""Kafka's order, most specific first, and who shares each quota."""


def test_the_most_specific_entity_counts_alone() -> None:
    for count in range(len(PRECEDENCE) + 1):
        there = PRECEDENCE[count:]
        quotas = Quotas(
            {entity: {PRODUCED: number} for number, (entity, _) in enumerate(there, 1)}  # type: ignore[misc]
        )
        expected = Limit(1, there[0][1]) if there else None
        assert quotas.limit(PRODUCED, "alice", "etl") == expected
        assert quotas.limit(PRODUCED, "alice", "etl") == expected, "remembered"
        assert quotas.limit(CONSUMED, "alice", "etl") is None


def test_a_long_name_shares_its_quota_with_nobody_else() -> None:
    long, other = "x" * 30_000 + "1", "x" * 30_000 + "2"
    quotas = Quotas(
        {frozenset({ANY_CLIENT}): {CONSUMED: 2.0}, frozenset({(CLIENT_ID, long)}): {CONSUMED: 1.0}}
    )
    limits = [quotas.limit(CONSUMED, "alice", name) for name in (long, other)]
    assert [each and each.value for each in limits] == [1, 2]
    stands_for = [each.shared_by[1] for each in limits if each is not None]
    assert len({*stands_for, *(_shared_by(quotas, each) for each in stands_for)}) == 4


def _shared_by(quotas: Quotas, client_id: str | None) -> str | None:
    limit = quotas.limit(CONSUMED, "alice", client_id or "")
    return limit and limit.shared_by[1]


def test_each_quota_is_looked_up_by_itself() -> None:
    quotas = Quotas({frozenset({ALICE}): {PRODUCED: 1.0}, frozenset({ANY_CLIENT}): {CONSUMED: 2.0}})
    assert quotas.limit(CONSUMED, "alice", "etl") == Limit(2.0, (None, "etl"))
    assert quotas.limit(PRODUCED, "bob", "etl") is None


def test_connections_are_counted_by_address() -> None:
    one, default = frozenset({(IP, "10.0.0.1")}), frozenset({(IP, None)})
    quotas = Quotas({one: {CONNECTIONS: 5.0}, default: {CONNECTIONS: 9.0}})
    assert quotas.of_address("10.0.0.1") == 5.0
    assert quotas.of_address("::ffff:10.0.0.1") == 5.0
    assert quotas.of_address("10.0.0.2") == 9.0
    assert Quotas({one: {CONNECTIONS: 5.0}}).of_address("10.0.0.2") is None


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([], "no type"),
        ([("zzz", "u")], "unknown entity type zzz"),
        ([(USER, "")], "the user entity's name is empty"),
        ([ALICE, (USER, "bob")], "named twice"),
        ([(IP, "1.2.3.4"), ALICE], "an ip cannot be combined"),
        ([(IP, "orders.example")], "orders.example is not a valid IP"),
    ],
)
def test_what_is_no_entity(parts: list[tuple[str, str | None]], why: str) -> None:
    with pytest.raises(KafkaError, match=why) as refused:
        entity_of(parts)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_what_is_one() -> None:
    for parts in ([ALICE], [ETL, ANY_USER], [(IP, None)]):
        assert entity_of(parts) == frozenset(parts)
        check_types(type for type, _ in parts)


@pytest.mark.parametrize(
    ("parts", "key", "value", "why"),
    [
        ([ALICE], "no.such.quota", 1, "there is no quota no.such.quota"),
        ([ALICE], CONNECTIONS, 1, "there is no quota connection_creation_rate"),
        ([(IP, None)], PRODUCED, 1, "there is no quota producer_byte_rate"),
        ([ALICE], PRODUCED, 0, "greater than 0"),
        ([ALICE], PERCENTAGE, -0.5, "greater than 0"),
        ([ALICE], PERCENTAGE, float("nan"), "greater than 0"),
        ([ALICE], MUTATIONS, float("inf"), "greater than 0"),
        ([ALICE], CONSUMED, 1.5, "a whole number"),
        ([ALICE], PRODUCED, 2.0**64, "a whole number"),
        ([(IP, None)], CONNECTIONS, 2.0**31, "a whole number up to 2147483647"),
    ],
)
def test_what_cannot_be_set(parts: list[tuple[str, str | None]], key: str, value: float, why: str) -> None:
    with pytest.raises(KafkaError, match=why) as refused:
        check_value(frozenset(parts), key, value)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_what_can_be_set() -> None:
    for key, value in ((PRODUCED, 1.0), (CONSUMED, 2.0**62), (PERCENTAGE, 0.5), (MUTATIONS, 0.01)):
        check_value(frozenset({ALICE, ANY_CLIENT}), key, value)
    check_value(frozenset({(IP, "10.0.0.1")}), CONNECTIONS, 2.0**31 - 1)


ENTITIES: list[Entity] = [
    frozenset({ALICE}),
    frozenset({ANY_USER}),
    frozenset({ALICE, ETL}),
    frozenset({ALICE, ANY_CLIENT}),
    frozenset({ETL}),
    frozenset({(IP, None)}),
]


@pytest.mark.parametrize(
    ("components", "loosely", "strictly"),
    [
        ([], [0, 1, 2, 3, 4, 5], []),
        ([Component(USER, True, "alice")], [0, 2, 3], [0]),
        ([Component(USER, True)], [1], [1]),
        ([Component(USER, False)], [0, 1, 2, 3], [0, 1]),
        ([Component(USER, False), Component(CLIENT_ID, False)], [2, 3], [2, 3]),
        ([Component(USER, True, "alice"), Component(CLIENT_ID, True)], [3], [3]),
        ([Component(CLIENT_ID, False)], [2, 3, 4], [4]),
        ([Component(USER, True, "bob")], [], []),
    ],
)
def test_conditions(components: list[Component], loosely: list[int], strictly: list[int]) -> None:
    quotas = Quotas({entity: {} for entity in ENTITIES})
    for strict, expected in ((False, loosely), (True, strictly)):
        found = [ENTITIES.index(entity) for entity, _ in selected(quotas, components, strict=strict)]
        assert found == expected


def test_what_is_remembered_is_bounded() -> None:
    quotas = Quotas({frozenset({ANY_CLIENT}): {PRODUCED: 1.0}})
    for number in itertools.islice(itertools.count(), 10_001):
        assert quotas.limit(PRODUCED, "", f"c{number}") == Limit(1.0, (None, f"c{number}"))
    assert len(quotas._found) == 1
