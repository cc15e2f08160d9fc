"""`muster groups`, as a user runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from muster.client import Producer
from muster.coordinator.commands import group_reads
from muster.coordinator.testing import Broker, Cluster
from muster.protocol.messages.classic_group import JoinGroupRequest, JoinGroupResponse
from tests.cli.running import DEADLINE_S, SHARE_OF_WHAT_IS_NOT_TOLD, Muster, started
from tests.support.each import each
from tests.support.leases import TERM_MS
from tests.support.wire_blocking import WireConnection


@contextmanager
def member(broker: Broker, group_id: str, topic: str) -> Iterator[None]:
    """A member of the group while the block runs; it leaves at the end."""
    process = started(broker.bootstrap, "consume", topic, "--group", group_id, "--from-beginning")
    try:
        broker.wait_for_group(group_id, "Stable", timeout_s=DEADLINE_S)
        yield
    finally:
        process.terminate()
        process.communicate(timeout=DEADLINE_S)


@contextmanager
def connect_worker(broker: Broker) -> Iterator[None]:
    """A member of the group `workers`, which is not one of consumers, while the block runs."""
    host, port = broker.bootstrap.rsplit(":", 1)
    with WireConnection(host, int(port), "worker") as worker:
        join = JoinGroupRequest(
            group_id="workers",
            session_timeout_ms=45_000,
            rebalance_timeout_ms=60_000,
            member_id="",
            protocol_type="connect",
            protocols=[JoinGroupRequest.Protocol(name="compatible", metadata=b"url")],
        )
        assert worker.call(join, 3, JoinGroupResponse).error_code == 0
        yield


def with_offsets(muster: Muster, group_id: str = "billing") -> None:
    """Create topic `orders` with two partitions and 5 records in the first, of which the group has read 3."""
    muster.done("topics", "create", "orders", "--partitions", "2")

    async def fill() -> None:
        async with Producer[bytes, bytes](muster.bootstrap) as producer:
            for value in (b"a", b"b", b"c", b"d", b"e"):
                await producer.send("orders", value, partition=0)

    asyncio.run(fill())
    read = muster("consume", "orders", "--group", group_id, "--from-beginning", "--max-messages", "3")
    assert (read.code, read.out) == (0, "a\nb\nc\n")


def test_how_far_a_group_is(muster: Muster) -> None:
    with_offsets(muster)
    assert muster.done("groups", "list") == (
        "GROUP    TYPE     PROTOCOL  STATE\nbilling  classic  consumer  Empty\n"
    )
    assert muster.done("groups", "describe", "billing") == (
        "GROUP    TOPIC   PARTITION  COMMITTED  LOG END  LAG  MEMBER  HOST  CLIENT\n"
        "billing  orders          0          3        5    2       -     -       -\n"
        "billing  orders          1          0        0    0       -     -       -\n"
    )
    assert muster.done("groups", "describe", "billing", "--state") == (
        "GROUP    COORDINATOR" + " " * (len(muster.bootstrap) - 7) + "  ASSIGNOR  STATE  MEMBERS\n"
        f"billing  {muster.bootstrap} (1)  -         Empty        0\n"
    )
    assert muster.done("groups", "describe", "billing", "--members") == (
        "GROUP  MEMBER  INSTANCE  HOST  CLIENT  PARTITIONS\n"
    )
    row = muster.done("groups", "describe", "billing", "--state", "--verbose").splitlines()[1]
    assert row.split()[-5:] == ["0", "classic", "consumer", "-", "-"]
    assert muster.done("groups", "describe", "--all-groups", "--output", "csv") == (
        "group_id,topic,partition,committed_offset,log_end_offset,lag,member_id,host,client_id\n"
        "billing,orders,0,3,5,2,,,\n"
        "billing,orders,1,0,0,0,,,\n"
    )
    assert muster.done("groups", "describe", "billing", "--verbose", "--output", "csv").startswith(
        "group_id,topic,partition,committed_offset,log_end_offset,lag,member_id,host,client_id,metadata\n"
    )
    assert muster.done("groups", "list", "--output", "csv") == (
        "group_id,type,protocol_type,state\nbilling,classic,consumer,Empty\n"
    )


def test_a_partition_that_cannot_be_asked_hides_no_other(muster: Muster, broker: Broker) -> None:
    with_offsets(muster)
    broker.create_topic("offline", 1)
    muster.done("groups", "reset-offsets", "billing", "--topic", "offline", "--to-latest", "--execute")
    describe = ("groups", "describe", "billing")
    refused = "TOPIC_AUTHORIZATION_FAILED"
    with broker.faults.add(api="ListOffsets", topic="offline", error=refused, times=None):
        shown, as_json = muster(*describe), muster(*describe, "--output", "json")
    assert (shown.code, as_json.code) == (1, 1)
    assert [line.split()[1:6] for line in shown.out.splitlines()[1:]] == [
        ["offline", "0", "0", "-", "-"],
        ["orders", "0", "3", "5", "2"],
        ["orders", "1", "0", "0", "0"],
    ]
    assert [each["log_end_offset"] for each in as_json.json[0]["offsets"]] == [None, 5, 0]
    (line,) = shown.err.splitlines()
    assert line == f"muster groups describe: offline-0: not authorized for the topic ({refused})"


def test_a_broker_that_tells_no_log_ends_hides_no_committed_offset(
    muster: Muster, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_offsets(muster)
    monkeypatch.setattr(group_reads, "_SHARE", SHARE_OF_WHAT_IS_NOT_TOLD)
    with broker.faults.add(api="ListOffsets", delay="1h", times=None):
        shown = muster("groups", "describe", "--all-groups", "--output", "csv", "--timeout", "240")
    assert shown.code == 1
    assert shown.out.splitlines()[1:] == ["billing,orders,0,3,,,,,", "billing,orders,1,0,,,,,"]
    assert [line.split(": ")[1] for line in shown.err.splitlines()] == ["orders-0", "orders-1"]


@pytest.mark.parametrize("fault", [{"delay": "1h"}, {"error": "TOPIC_AUTHORIZATION_FAILED"}], ids=str)
def test_one_reason_for_many_partitions_is_said_once(
    muster: Muster, broker: Broker, fault: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("t", 20)
    if "delay" in fault:
        monkeypatch.setattr(group_reads, "_SHARE", SHARE_OF_WHAT_IS_NOT_TOLD)
    muster.done("groups", "reset-offsets", "g", "--topic", "t", "--to-latest", "--execute")
    with broker.faults.add(api="ListOffsets", times=None, **fault):
        shown = muster("groups", "describe", "g", "--timeout", "240")
    assert (shown.code, len(shown.out.splitlines())) == (1, 21)
    (line,) = shown.err.splitlines()
    named = ", ".join(f"t-{number}" for number in range(8))
    assert line.startswith(f"muster groups describe: {named} and 12 more: ")


@pytest.mark.parametrize("api", ["DescribeGroups", "OffsetFetch"])
def test_a_group_that_is_refused_hides_no_other(muster: Muster, broker: Broker, api: str) -> None:
    with_offsets(muster)
    muster.done("groups", "reset-offsets", "mail", "--topic", "orders", "--to-latest", "--execute")
    describe = ("groups", "describe", "--output", "csv")
    with broker.faults.add(api=api, group="mail", error="GROUP_AUTHORIZATION_FAILED", times=None):
        every, named = muster(*describe, "--all-groups"), muster(*describe, "mail", "billing")
        alone = muster(*describe, "mail")
    for shown in (every, named):
        assert shown.code == 1
        assert shown.out.splitlines()[1:] == ["billing,orders,0,3,5,2,,,", "billing,orders,1,0,0,0,,,"]
        (line,) = shown.err.splitlines()
        assert line.startswith("muster groups describe: group mail: ")
        assert "GROUP_AUTHORIZATION_FAILED" in line
    assert (alone.code, alone.out, "GROUP_AUTHORIZATION_FAILED" in alone.err) == (1, "", True)


def test_a_group_that_does_not_exist_hides_no_other(muster: Muster) -> None:
    with_offsets(muster)
    shown = muster("groups", "describe", "nope", "billing", "--state", "--output", "csv")
    assert (shown.code, shown.err.count("\n"), "GROUP_ID_NOT_FOUND" in shown.err) == (1, 1, True)
    assert [line.split(",")[0] for line in shown.out.splitlines()[1:]] == ["billing"]


def test_a_group_of_other_members_than_consumers(muster: Muster, broker: Broker) -> None:
    with connect_worker(broker):
        ended = muster("groups", "describe", "workers")
        assert (ended.code, ended.out.count("\n")) == (0, 1)
        assert ended.err == (
            "muster groups describe: workers is not a consumer group (connect) and has no positions; "
            "--members shows its members\n"
        )
        assert muster.done("groups", "describe", "workers", "--members").splitlines()[1].startswith("workers")
        assert muster.done("groups", "describe", "--all-groups").count("\n") == 1


def test_members(muster: Muster, broker: Broker) -> None:
    with_offsets(muster)
    with member(broker, "billing", "orders"):
        (described,) = muster("groups", "describe", "billing", "--output", "json").json
        (found,) = described["members"]
        assert found == {
            "member_id": found["member_id"],
            "group_instance_id": None,
            "name": "muster",
            "client_id": "muster",
            "host": "/127.0.0.1",
            "assignment": [{"topic": "orders", "partition": 0}, {"topic": "orders", "partition": 1}],
            "protocol": "classic",
            "epoch": None,
            "target": None,
        }
        assert (described["state"], described["assignor"]) == ("Stable", "range")
        assert muster.done("groups", "describe", "billing", "--members").splitlines()[1].split()[-1] == "2"
        as_csv = muster.done("groups", "describe", "billing", "--members", "--verbose", "--output", "csv")
        assert as_csv.splitlines()[1].endswith(',/127.0.0.1,muster,2,"orders-0,orders-1",classic,,')
        columns, row = muster.done("groups", "describe", "billing", "--members", "--verbose").splitlines()
        assert columns.split() == [
            "GROUP",
            "MEMBER",
            "MEMBER",
            "ID",
            "INSTANCE",
            "HOST",
            "CLIENT",
            "PARTITIONS",
            "ASSIGNMENT",
            "PROTOCOL",
            "EPOCH",
            "TARGET",
        ]
        assert row.split() == [
            "billing", "muster", found["member_id"], "-", "/127.0.0.1", "muster", "2", "orders-0,orders-1",
            "classic", "-", "-",
        ]  # fmt: skip
        row = muster.done("groups", "describe", "billing").splitlines()[1]
        assert row.split()[6:] == ["muster", "/127.0.0.1", "muster"]
        row = muster.done("groups", "describe", "billing", "--verbose").splitlines()[1]
        assert row.split()[6:9] == ["muster", found["member_id"], "/127.0.0.1"]
        as_csv = muster.done("groups", "describe", "billing", "--output", "csv")
        assert as_csv.splitlines()[1].endswith(f",{found['member_id']},/127.0.0.1,muster")
        assert muster.done("groups", "describe", "billing", "--state").split()[-4:] == [
            "(1)", "range", "Stable", "1",
        ]  # fmt: skip
        refused = muster.refused("groups", "delete", "billing")
        assert "billing: the group has 1 member (muster at 127.0.0.1) (NON_EMPTY_GROUP; " in refused
        assert "stop its members, or remove dead ones with muster groups evict)" in refused
        assert refused.count("stop") == 1
        assert muster("groups", "list", "--state", "stable", "--output", "json").json == [
            {"group_id": "billing", "type": "classic", "protocol_type": "consumer", "state": "Stable"}
        ]
    # The member left; it was not removed by the session timeout.
    assert broker.group("billing").facts.members == 0
    assert muster("groups", "list", "--state", "stable", "--output", "json").json == []
    assert len(muster("groups", "list", "--type", "classic", "--output", "json").json) == 1


def test_a_member_has_one_name_in_all_views_and_is_evicted_by_it(muster: Muster, broker: Broker) -> None:
    muster.done("topics", "create", "orders", "--partitions", "2")
    with member(broker, "billing", "orders"), member(broker, "billing", "orders"):
        broker.group("billing").stable(members=2, timeout=DEADLINE_S)
        (described,) = muster("groups", "describe", "billing", "--output", "json").json
        ids = {each["name"]: each["member_id"] for each in described["members"]}
        assert set(ids) == {f"muster/{each[-6:]}" for each in ids.values()}
        shown = muster.done("groups", "describe", "billing", "--members").splitlines()[1:]
        assert {row.split()[1] for row in shown} == set(ids)
        assert {each.name for each in broker.group("billing").members} == set(ids)
        generation = broker.group("billing").generation
        broker.group("billing").rebalanced(after=generation - 1, timeout=DEADLINE_S)
        why = muster("groups", "why", "billing", "--output", "json").json
        assert {name: each for each, name in why["names"].items()} == ids
        told = muster.done("groups", "why", "billing", "--verbose")
        assert all(f"{name}: {each} (client id muster, host 127.0.0.1)" in told for name, each in ids.items())
        several = muster("groups", "evict", "billing", "--member", "muster")
        assert several.code == 2
        assert (
            f"muster is the name of 2 members: {', '.join(sorted(ids, key=ids.__getitem__))}" in several.err
        )
        first = sorted(ids)[0]
        assert muster.done("groups", "evict", "billing", "--member", first) == f"{ids[first]} evicted\n"


def test_json(muster: Muster) -> None:
    with_offsets(muster)
    host, port = muster.bootstrap.split(":")
    assert muster("groups", "describe", "billing", "--output", "json").json == [
        {
            "group_id": "billing",
            "state": "Empty",
            "protocol_type": "consumer",
            "assignor": "",
            "type": "classic",
            "epoch": None,
            "target_epoch": None,
            "coordinator": {"node_id": 1, "host": host, "port": int(port)},
            "members": [],
            "offsets": [
                {
                    "topic": "orders", "partition": 0, "committed_offset": 3, "log_end_offset": 5, "lag": 2,
                    "metadata": "", "member_id": None,
                },
                {
                    "topic": "orders", "partition": 1, "committed_offset": 0, "log_end_offset": 0, "lag": 0,
                    "metadata": "", "member_id": None,
                },
            ],
        }
    ]  # fmt: skip


def test_delete(muster: Muster) -> None:
    with_offsets(muster)
    deleted = muster("groups", "delete", "billing", "nope")
    assert (deleted.code, deleted.out) == (1, "billing deleted\n")
    assert deleted.err.startswith("muster groups delete: nope: ")
    assert "GROUP_ID_NOT_FOUND" in deleted.err
    assert muster.done("groups", "list") == "GROUP  TYPE  PROTOCOL  STATE\n"
    assert "billing" in muster.refused("groups", "describe", "billing")
    assert muster("groups", "delete", "nope", "--output", "json").json == [
        {
            "group_id": "nope",
            "error": {"code": "GROUP_ID_NOT_FOUND", "message": "there is no group of that id"},
        }
    ]


def test_a_terminal_does_not_obey_a_group_id(muster: Muster) -> None:
    with_offsets(muster, "\x1b[31mred\nline")
    row = muster.done("groups", "list").splitlines()[1]
    assert row.startswith(r"\x1b[31mred\nline ")
    assert muster("groups", "list", "--output", "json").json[0]["group_id"] == "\x1b[31mred\nline"
    assert r"\x1b[0m\n" in muster.refused("groups", "delete", "\x1b[0m\n")


@each(
    "arguments",
    [
        ["describe"],
        ["describe", "g", "--all-groups"],
        ["delete"],
        ["describe", "g", "--members", "--state"],
        ["describe", "g", "--x"],
    ],
)
def test_a_wrong_command_line(muster: Muster, arguments: list[str]) -> None:
    assert f"muster groups {arguments[0]}" in muster.misused("groups", *arguments)


@each(
    "command",
    [
        "groups describe",
        "groups delete",
        "groups evict --all",
        "groups evict g --member",
        "groups evict g --instance",
        "groups why",
        "groups timeline",
        "groups reset-offsets --to-earliest --all-topics",
        "groups delete-offsets --topic t",
        "groups delete-offsets g --topic",
        "groups reset-offsets g --to-earliest --topic",
        "transactions list --pattern",
        "transactions describe",
        "transactions find-hanging --topic",
        "transactions abort --partition 0 --start-offset 0 --topic",
        "top --once",
        "topics create",
        "topics describe",
        "topics alter --partitions 2",
        "topics reassign --partition 0=1",
        "topics delete",
        "produce",
        "consume",
    ],
)
def test_a_name_that_no_request_can_carry(muster: Muster, command: str) -> None:
    for name, shown in (("caf\udce9", "'caf\\udce9'"), ("x" * 32_768, f"'{'x' * 100}'")):
        message = muster.misused(*command.split(), name)
        assert f": {shown} is not allowed; it takes text in UTF-8 of at most 32767 bytes" in message


def test_groups_of_all_brokers(capfd: pytest.CaptureFixture[str]) -> None:
    with Cluster(3, lease_term_ms=TERM_MS) as cluster:
        muster = Muster(cluster.bootstrap, capfd)
        muster.done("topics", "create", "t")
        groups = ["a", "b", "c", "d"]
        assert len({cluster.coordinator_of(each) for each in groups}) > 1
        for each in groups:
            assert muster("consume", "t", "--group", each, "--idle-timeout", "0.1").code == 0
        assert [each["group_id"] for each in muster("groups", "list", "--output", "json").json] == groups
        described = muster("groups", "describe", *groups, "--output", "json").json
        assert [each["coordinator"]["node_id"] - 1 for each in described] == [
            cluster.coordinator_of(each) for each in groups
        ]
