"""ACLs: which are valid, what filters select, and what those in force decide."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest

from muster.coordinator.security.acls import (
    EVERYONE,
    OPERATIONS,
    Access,
    Acl,
    Filter,
    Pattern,
    _network,
    acl,
    acl_filter,
)
from muster.coordinator.security.decisions import Acls
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.acls import Operation, PatternType, Permission, ResourceType

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALICE, HOST = "User:alice", "10.1.2.3"


def made(
    name: str,
    operation: Operation = Operation.READ,
    permission: Permission = Permission.ALLOW,
    *,
    type: ResourceType = TOPIC,
    pattern: PatternType = LITERAL,
    principal: str = ALICE,
    host: str = "*",
) -> Acl:
    return Acl(Pattern(type, pattern, name), Access(principal, host, operation, permission))


def denying(name: str, operation: Operation = Operation.READ, **more: Any) -> Acl:
    return made(name, operation, Permission.DENY, **more)


def in_force(*acls: Acl, default: bool = False) -> Acls:
    by_pattern: dict[Pattern, set[Access]] = {}
    for pattern, access in acls:
        by_pattern.setdefault(pattern, set()).add(access)
    return Acls({pattern: frozenset(accesses) for pattern, accesses in by_pattern.items()}, default)


def reads(acls: Acls, name: str, *, principal: str = ALICE, host: str = HOST) -> bool:
    return acls.allow(principal, host, Operation.READ, TOPIC, name)


def test_nothing_is_allowed_unless_an_acl_allows_it() -> None:
    acls = in_force(made("orders"))
    assert reads(acls, "orders")
    assert not reads(acls, "orders-2")
    assert not reads(acls, "order")
    assert not reads(acls, "orders", principal="User:bob")
    assert not reads(acls, "orders", principal="Group:alice")
    assert not acls.allow(ALICE, HOST, Operation.READ, GROUP, "orders")


@pytest.mark.parametrize("name", ["foo", "foobar", "foo.bar", "fooé"])
def test_a_prefix_covers_what_begins_with_it(name: str) -> None:
    assert reads(in_force(made("foo", pattern=PREFIXED)), name)


@pytest.mark.parametrize("name", ["fo", "f", "", "Foo", "barfoo", "fo\u0301o"])
def test_and_nothing_else(name: str) -> None:
    assert not reads(in_force(made("foo", pattern=PREFIXED)), name)


def test_prefixes_of_several_lengths() -> None:
    acls = in_force(
        made("a", pattern=PREFIXED), denying("ab", pattern=PREFIXED), made("abcd", pattern=PREFIXED)
    )
    assert [reads(acls, name) for name in ("a", "ax", "ab", "abcd", "abcde")] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_a_star_covers_every_name_as_a_literal_alone() -> None:
    assert reads(in_force(made("*")), "orders")
    assert not reads(in_force(made("*", pattern=PREFIXED)), "orders")
    assert reads(in_force(made("*", pattern=PREFIXED)), "*rders")
    assert not reads(in_force(denying("*"), made("orders")), "orders")
    assert not reads(in_force(made("orders*")), "orders-1")


def test_what_is_denied_goes_before_what_is_allowed() -> None:
    for denied in (
        denying("orders"),
        denying("orders", Operation.ALL),
        denying("ord", pattern=PREFIXED),
        denying("*"),
        denying("orders", principal=EVERYONE),
        denying("orders", host=HOST),
        denying("orders", host="10.0.0.0/8"),
    ):
        assert not reads(in_force(made("orders"), made("*"), denied), "orders")
    for other in (
        denying("orders", Operation.WRITE),
        denying("orders", host="10.1.2.4"),
        denying("orders", host="192.168.0.0/16"),
        denying("orders", principal="User:bob"),
        denying("orders", type=GROUP),
    ):
        assert reads(in_force(made("orders"), other), "orders")


@pytest.mark.parametrize(
    ("given", "implied"),
    [
        *(
            (each, Operation.DESCRIBE)
            for each in (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)
        ),
        (Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS),
    ],
)
def test_what_is_allowed_implies_describing_and_what_is_denied_implies_nothing(
    given: Operation, implied: Operation
) -> None:
    assert in_force(made("t", given)).allow(ALICE, HOST, implied, TOPIC, "t")
    assert not in_force(made("t", implied)).allow(ALICE, HOST, given, TOPIC, "t")
    assert in_force(made("t", given), made("t", implied), denying("t", given)).allow(
        ALICE, HOST, implied, TOPIC, "t"
    )
    assert in_force(made("t", given), denying("t", implied)).allow(ALICE, HOST, given, TOPIC, "t")


def test_create_and_the_describing_of_configs_imply_nothing() -> None:
    for each in (Operation.CREATE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS):
        assert not in_force(made("t", each)).allow(ALICE, HOST, Operation.DESCRIBE, TOPIC, "t")


def test_all_is_every_operation() -> None:
    acls = in_force(made("t", Operation.ALL))
    assert all(acls.allow(ALICE, HOST, each, TOPIC, "t") for each in OPERATIONS[TOPIC])


def test_everyone_includes_who_has_not_authenticated() -> None:
    acls = in_force(made("t", principal=EVERYONE))
    assert reads(acls, "t", principal="User:ANONYMOUS")
    assert reads(acls, "t", principal="Service:x")


def test_a_user_who_is_called_star_is_one_user() -> None:
    """ACLs can name this user only as everyone, as in Kafka. But ACLs of other users do not apply to him."""
    acls = in_force(made("t"), denying("t", principal="User:bob"), made("t", principal="User:bob"))
    assert not reads(acls, "t", principal="User:*")


@pytest.mark.parametrize(
    "principal", ["User:ALICE", "User:alice ", "User:аlice", "User:alice\0", "alice", "*", ""]
)
def test_names_that_look_like_another_are_others(principal: str) -> None:
    assert not reads(in_force(made("t")), "t", principal=principal)


@pytest.mark.parametrize(
    ("host", "covered"),
    [
        ("10.1.2.3", True),
        ("10.1.2.30", False),
        ("*", True),
        ("10.1.0.0/16", True),
        ("10.2.0.0/16", False),
        ("0.0.0.0/0", True),
        ("::/0", False),
        ("10.1.2.3/32", True),
    ],
)
def test_hosts(host: str, covered: bool) -> None:
    assert reads(in_force(made("t", host=host)), "t") is covered


def test_an_ipv6_address_is_the_same_however_it_is_written() -> None:
    for host in ("::1", "0:0:0:0:0:0:0:1", "::/64"):
        assert reads(in_force(made("t", host=host)), "t", host="0:0:0:0:0:0:0:1")
        assert reads(in_force(made("t", host=host)), "t", host="::1")
    assert not reads(in_force(made("t", host="::2")), "t", host="::1")


def test_the_default_is_for_resources_that_no_acl_is_about() -> None:
    acls = in_force(made("orders", principal="User:bob"), made("x", pattern=PREFIXED), default=True)
    assert reads(acls, "free")
    assert not reads(acls, "orders")
    assert not reads(in_force(denying("other", principal="User:bob"), default=True), "other")
    assert not acls.allow(ALICE, HOST, Operation.WRITE, TOPIC, "xyz")
    assert acls.allow(ALICE, HOST, Operation.READ, GROUP, "orders")
    assert not reads(in_force(made("*", principal="User:bob"), default=True), "free")


def test_a_pattern_without_acls_is_about_nothing() -> None:
    assert reads(Acls({Pattern(TOPIC, LITERAL, "orders"): frozenset()}, True), "orders")


@pytest.mark.parametrize(
    ("acls", "allowed"),
    [
        ([], False),
        ([made("a", Operation.WRITE)], True),
        ([made("a", Operation.ALL)], True),
        ([made("a", Operation.READ)], False),
        ([made("a", Operation.WRITE, principal="User:bob")], False),
        ([made("a", Operation.WRITE, host="1.1.1.1")], False),
        ([made("a", Operation.WRITE, type=GROUP)], False),
        ([made("*", Operation.WRITE)], True),
        ([made("a", Operation.WRITE), denying("a", Operation.WRITE)], False),
        ([made("ab", Operation.WRITE), denying("a", Operation.WRITE, pattern=PREFIXED)], False),
        (
            [made("ab", Operation.WRITE, pattern=PREFIXED), denying("ab", Operation.ALL, pattern=PREFIXED)],
            False,
        ),
        (
            [
                made("ab", Operation.WRITE, pattern=PREFIXED),
                denying("abc", Operation.WRITE, pattern=PREFIXED),
            ],
            True,
        ),
        ([made("ab", Operation.WRITE, pattern=PREFIXED), denying("ab", Operation.WRITE)], True),
        ([made("*", Operation.WRITE), denying("*", Operation.WRITE)], False),
        ([made("*", Operation.WRITE), denying("a", Operation.WRITE)], True),
    ],
)
def test_whether_anything_may_be_written_at_all(acls: list[Acl], allowed: bool) -> None:
    assert in_force(*acls).allow_with_any(ALICE, HOST, Operation.WRITE, TOPIC) is allowed


def test_the_default_allows_writing_something() -> None:
    assert in_force(default=True).allow_with_any(ALICE, HOST, Operation.WRITE, TOPIC)
    assert not in_force(made("*", principal="User:bob"), default=True).allow_with_any(
        ALICE, HOST, Operation.WRITE, TOPIC
    )


def test_bits_are_those_of_operations_that_apply() -> None:
    acls = in_force(made("t", Operation.ALL), made("g", Operation.READ, type=GROUP))
    assert acls.bits(ALICE, HOST, TOPIC, "t") == sum(1 << each for each in OPERATIONS[TOPIC])
    assert acls.bits(ALICE, HOST, GROUP, "g") == 1 << Operation.READ | 1 << Operation.DESCRIBE
    assert acls.bits(ALICE, HOST, TOPIC, "u") == 0


# --- a slow twin --------------------------------------------------------------------------------------------


def plainly(
    acls: Iterable[Acl], default: bool, principal: str, host: str, operation: Operation, name: str
) -> bool:
    """The decision, straight from the written rules."""
    about = [
        (pattern, access)
        for pattern, access in acls
        if pattern.type is TOPIC
        and (name.startswith(pattern.name) if pattern.pattern is PREFIXED else pattern.name in (name, "*"))
    ]
    if not about:
        return default
    allowed = False
    for _, access in about:
        if access.principal not in (principal, EVERYONE) or access.host not in (host, "*"):
            continue
        if access.permission is Permission.DENY and access.operation in (operation, Operation.ALL):
            return False
        covered = {operation, Operation.ALL}
        if operation is Operation.DESCRIBE:
            covered |= {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
        if operation is Operation.DESCRIBE_CONFIGS:
            covered |= {Operation.ALTER_CONFIGS}
        allowed |= access.permission is Permission.ALLOW and access.operation in covered
    return allowed


def test_any_acls_decide_as_written_down() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    names = ["", "*", "a", "aa", "aab", "ab", "b", "bé"]
    for _ in range(2_000):
        acls = [
            made(
                rng.choice(names[1:]),
                rng.choice([Operation.ALL, *OPERATIONS[TOPIC]]),
                rng.choice([Permission.ALLOW, Permission.DENY]),
                pattern=rng.choice([LITERAL, PREFIXED]),
                principal=rng.choice([ALICE, "User:bob", EVERYONE]),
                host=rng.choice(["*", HOST, "1.1.1.1"]),
            )
            for _ in range(rng.randrange(6))
        ]
        default = rng.random() < 0.5
        asked = ALICE, HOST, rng.choice(OPERATIONS[TOPIC])
        name = rng.choice(names)
        decided = in_force(*acls, default=default).allow(*asked, TOPIC, name)
        assert decided is plainly(acls, default, *asked, name), (acls, default, asked, name)


# --- making and filtering -----------------------------------------------------------------------------------

FINE: dict[str, Any] = {
    "type": TOPIC,
    "pattern": LITERAL,
    "name": "t",
    "principal": ALICE,
    "host": "*",
    "operation": Operation.READ,
    "permission": Permission.ALLOW,
}


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("type", [0, 1, 8]),
        ("pattern", [0, 1, 2, 5]),
        ("name", ["", "a\0b", "x" * 2_049]),
        ("principal", ["", "alice", "x" * 3_000]),
        ("host", ["", "10.0.0.0/33", "x/8", "10.0.0.0/-1", "/", "y" * 300]),
        ("operation", [0, 1, 16]),
        ("permission", [0, 1, 4]),
    ],
)
def test_what_is_no_acl_is_refused(field: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(KafkaError) as raised:
            acl(**{**FINE, field: value})
        assert raised.value.code is ErrorCode.INVALID_REQUEST


def test_a_host_that_is_refused_is_not_remembered() -> None:
    _network.cache_clear()
    for host in ("10.0.0.0/33", "x/8", "/" * 100_000, "10.0.0.0/" + "0" * 100_000 + "8"):
        with pytest.raises(KafkaError) as raised:
            acl(**{**FINE, "host": host})
        assert raised.value.code is ErrorCode.INVALID_REQUEST
    assert _network.cache_info().currsize == 0


def test_the_cluster_has_one_name() -> None:
    assert acl(**{**FINE, "type": CLUSTER, "name": "kafka-cluster"}).pattern.type is CLUSTER
    with pytest.raises(KafkaError, match="kafka-cluster"):
        acl(**{**FINE, "type": CLUSTER, "name": "mine"})


def test_what_a_filter_selects() -> None:
    acls = in_force(
        made("orders"),
        made("ord", pattern=PREFIXED),
        made("*", principal=EVERYONE),
        denying("orders", type=GROUP),
    )

    def selected(
        type: int, pattern: int, name: str | None, principal: str | None = None
    ) -> set[tuple[str, str]]:
        found = acls.selected(acl_filter(type, pattern, name, principal, None, 1, 1))
        return {(each.type.name, each.name) for each in found}

    everything = {("TOPIC", "orders"), ("TOPIC", "ord"), ("TOPIC", "*"), ("GROUP", "orders")}
    assert selected(1, 1, None) == everything
    assert selected(2, 2, "orders") == {("TOPIC", "orders"), ("TOPIC", "ord"), ("TOPIC", "*")}
    assert selected(2, 2, "orderly") == {("TOPIC", "ord"), ("TOPIC", "*")}
    assert selected(2, 1, "ord") == {("TOPIC", "ord")}
    assert selected(1, 3, "orders") == {("TOPIC", "orders"), ("GROUP", "orders")}
    assert selected(2, 4, None) == {("TOPIC", "ord")}
    assert selected(1, 3, "*") == {("TOPIC", "*")}
    assert selected(1, 1, None, EVERYONE) == {("TOPIC", "*")}
    assert selected(1, 1, None, "User:bob") == set()


def test_what_a_filter_selects_is_what_a_look_at_each_acl_finds() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    names = ["*", "a", "aa", "b"]
    principals = [ALICE, EVERYONE]
    for _ in range(2_000):
        acls = in_force(
            *(
                made(
                    rng.choice(names),
                    rng.choice([Operation.READ, Operation.DESCRIBE]),
                    type=rng.choice([TOPIC, GROUP]),
                    pattern=rng.choice([LITERAL, PREFIXED]),
                    principal=rng.choice(principals),
                )
                for _ in range(rng.randrange(12))
            )
        )
        by = acl_filter(
            rng.choice([ResourceType.ANY, TOPIC, GROUP]),
            rng.choice([PatternType.ANY, PatternType.MATCH, LITERAL, PREFIXED]),
            rng.choice([None, *names]),
            rng.choice([None, *principals]),
            None,
            rng.choice([Operation.ANY, Operation.READ]),
            Permission.ANY,
        )
        found = {Acl(pattern, each) for pattern, those in acls.selected(by).items() for each in those}
        expected = {
            each for each in acls if by.selects_pattern(each.pattern) and by.selects_access(each.access)
        }
        assert found == expected, (list(acls), by)
        assert acls.looked_at(by) >= len(found)


def test_a_filter_that_names_a_pattern_looks_at_no_other() -> None:
    acls = in_force(*(made(f"t{number}") for number in range(100)), made("t1", Operation.DESCRIBE))
    for pattern, name, looked_at in (
        (3, "t1", 2),
        (3, "t2", 1),
        (4, "t1", 1),
        (2, "t1", 101),
        (3, None, 101),
    ):
        assert acls.looked_at(acl_filter(TOPIC, pattern, name, None, None, 1, 1)) == looked_at


@pytest.mark.parametrize("field", ["type", "pattern", "operation", "permission"])
def test_a_filter_of_unknown_numbers_is_refused(field: str) -> None:
    numbers = {"type": 1, "pattern": 1, "operation": 1, "permission": 1}
    assert isinstance(acl_filter(**numbers, name=None, principal=None, host=None), Filter)
    with pytest.raises(KafkaError, match=field.split("_")[0]):
        acl_filter(**{**numbers, field: 0}, name=None, principal=None, host=None)
