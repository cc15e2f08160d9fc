"""`muster acls`, as a user runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from muster.client import Acl, AclOperation, AclResourceType, Admin
from muster.coordinator.testing import Broker
from tests.cli.running import Muster


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(super_users="ANONYMOUS") as running:
        yield running


@pytest.fixture
def muster(broker: Broker, capfd: pytest.CaptureFixture[str]) -> Muster:
    return Muster(broker.bootstrap, capfd)


def test_a_consumer_is_allowed_shown_and_removed(muster: Muster) -> None:
    assert muster.done("acls", "list") == "no ACLs\n"
    assert muster.done("acls", "allow", "alice", "--consume", "orders", "--group", "billing") == (
        "User:alice may read topic orders\nUser:alice may read group billing\n"
    )
    assert muster.done("acls", "list").splitlines() == [
        "PRINCIPAL   PERMISSION  OPERATION  RESOURCE  NAME     PATTERN  HOST",
        "User:alice  ALLOW       READ       TOPIC     orders   LITERAL  *",
        "User:alice  ALLOW       READ       GROUP     billing  LITERAL  *",
    ]
    assert muster.done("acls", "remove", "alice", "--consume", "orders", "--group", "billing") == (
        "removed: User:alice may read topic orders\nremoved: User:alice may read group billing\n"
    )
    assert muster.done("acls", "list") == "no ACLs\n"
    assert muster.done("acls", "remove", "alice", "--all") == "no such ACLs\n"


def test_every_way_to_say_it(muster: Muster) -> None:
    for words, lines in {
        "allow bob --produce orders --transactional-id tx": [
            "User:bob may write topic orders",
            "User:bob may write transactional id tx",
        ],
        "allow * --operation describe --topic *": ["User:* may describe every topic"],
        "allow ops dev --operation describe --operation alter-configs --cluster": [
            f"User:{user} may {what} the cluster"
            for user in ("ops", "dev")
            for what in ("describe", "alter configs")
        ],
        "allow bob --operation ALL --topic bob. --group bob. --prefixed": [
            "User:bob may do anything with every topic that begins with bob.",
            "User:bob may do anything with every group that begins with bob.",
        ],
        "deny User:mallory --consume orders --host 10.0.0.0/8 --host 1.2.3.4": [
            f"User:mallory may not read topic orders from {host}" for host in ("10.0.0.0/8", "1.2.3.4")
        ],
    }.items():
        assert muster.done("acls", *words.split()).splitlines() == lines


def test_lists_what_applies_to_one_resource(muster: Muster) -> None:
    muster.done("acls", "allow", "alice", "--consume", "orders")
    muster.done("acls", "allow", "bob", "--produce", "ord", "--prefixed")
    muster.done("acls", "deny", "*", "--operation", "delete", "--topic", "*")
    muster.done("acls", "allow", "alice", "--operation", "read", "--group", "orders")
    muster.done("acls", "allow", "alice", "--consume", "other")

    def names(*words: str) -> list[tuple[str, str]]:
        listed = muster("acls", "list", *words, "--output", "json").json
        return [(each["principal"], each["resource_name"]) for each in listed]

    assert names("--topic", "orders") == [("User:*", "*"), ("User:alice", "orders"), ("User:bob", "ord")]
    assert names("--topic", "orders", "--user", "alice") == [("User:alice", "orders")]
    assert names("--user", "alice") == [("User:alice", name) for name in ("orders", "other", "orders")]
    assert names("--cluster") == []
    assert muster.done("acls", "list", "--user", "bob", "--output", "csv").splitlines()[1:] == [
        "User:bob,ALLOW,WRITE,TOPIC,ord,PREFIXED,*"
    ]


def test_removing_takes_what_is_named_and_no_more(muster: Muster) -> None:
    muster.done(
        "acls", "allow", "alice", "bob", "--operation", "read", "--operation", "write", "--topic", "t"
    )
    muster.done("acls", "allow", "alice", "--consume", "t", "--prefixed")
    assert (
        muster.done("acls", "remove", "alice", "--produce", "t") == "removed: User:alice may write topic t\n"
    )
    removed = muster("acls", "remove", "alice", "--topic", "t", "--output", "json").json
    assert removed == [
        {
            "principal": "User:alice",
            "permission": "ALLOW",
            "operation": "READ",
            "resource_type": "TOPIC",
            "resource_name": "t",
            "pattern_type": "LITERAL",
            "host": "*",
        }
    ]
    assert muster.done("acls", "remove", "alice", "--all") == (
        "removed: User:alice may read every topic that begins with t\n"
    )
    assert len(muster("acls", "list", "--output", "json").json) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "allow alice",
            "say what it is about: --consume, --produce, --topic, --group, --transactional-id or --cluster",
        ),
        ("allow alice --topic t", "--topic: say what may be done with it: --operation"),
        ("allow alice --group g", "--group: say what may be done with it: --operation"),
        ("allow alice --consume t --operation read", "--operation: say what it is about"),
        ("allow alice --operation read --topic * --prefixed", "--prefixed: * stands for all names only"),
        ("allow alice --operation write --group g", "--operation write does not apply to --group"),
        ("deny alice --operation read --cluster", "--cluster, which takes all, create, alter"),
        ("allow alice --operation all --operation alter --transactional-id x", "takes all, describe, write"),
        (
            "remove alice",
            "say which: --consume, --produce, --topic, --group, --transactional-id, --cluster, or",
        ),
        ("remove alice --all --topic t", "--all: it stands alone"),
        ("allow User: --cluster", "'User:' is not allowed; it takes a user's name, or a principal"),
        ("allow alice --operation raed --topic t", "'raed' is not allowed, did you mean read?"),
    ],
)
def test_what_is_not_said_well(muster: Muster, words: str, said: str) -> None:
    ended = muster("acls", *words.split())
    assert ended.code == 2
    assert said in ended.err


NAME = "system:serviceaccount:shop:web"
"""A Kubernetes service account's, as in the claim `sub` of its tokens."""


@pytest.mark.parametrize("user", [NAME, f"User:{NAME}"])
def test_a_name_may_have_colons(muster: Muster, user: str) -> None:
    assert muster.done("acls", "deny", user, "--consume", "t") == f"User:{NAME} may not read topic t\n"
    assert muster.done("acls", "list", "--user", user, "--output", "csv").splitlines()[1:] == [
        f"User:{NAME},DENY,READ,TOPIC,t,LITERAL,*"
    ]
    assert muster.done("acls", "remove", user, "--all") == f"removed: User:{NAME} may not read topic t\n"


def test_principals_of_other_types_are_listed_and_removed(broker: Broker, muster: Muster) -> None:
    async def make() -> None:
        async with Admin(broker.bootstrap) as admin:
            acl = Acl(AclResourceType.TOPIC, "t", "Group:ops", AclOperation.READ)
            assert not (await admin.create_acls([acl])).failed

    asyncio.run(make())
    assert muster.done("acls", "list", "--user", "Group:ops", "--topic", "t", "--output", "csv").splitlines()[
        1:
    ] == ["Group:ops,ALLOW,READ,TOPIC,t,LITERAL,*"]
    assert muster.done("acls", "remove", "Group:ops", "--all") == "removed: Group:ops may read topic t\n"


def test_without_an_authorizer_it_says_what_to_do(capfd: pytest.CaptureFixture[str]) -> None:
    with Broker() as broker:
        muster = Muster(broker.bootstrap, capfd)
        for words in ("list", "allow alice --consume t", "remove alice --all"):
            ended = muster("acls", *words.split())
            assert ended.code == 1
            assert "SECURITY_DISABLED" in ended.err
            assert "--super-users" in ended.err


def test_what_the_broker_refuses_is_told_of_each(muster: Muster) -> None:
    ended = muster("acls", "allow", "alice", "--consume", "t", "--host", "10.0.0.0/99", "--host", "*")
    assert ended.code == 1
    assert ended.out == "User:alice may read topic t\n"
    assert "10.0.0.0/99" in ended.err


def test_draining_without_the_right_to_describe_the_cluster(capfd: pytest.CaptureFixture[str]) -> None:
    with Broker(super_users="admin") as broker:
        said = Muster(broker.bootstrap, capfd).refused("cluster", "drain", "1")
    assert said.endswith("or you may not describe the cluster\n")
