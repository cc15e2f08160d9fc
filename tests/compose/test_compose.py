"""`docker compose up`, and everything that may happen to the containers afterwards, while clients keep
running.

The tests share one cluster and one load; each leaves three healthy brokers behind.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.compose.clients import placed
from tests.compose.conftest import GROUP, PARTITIONS, TOPIC, Load, ask
from tests.compose.project import BROKERS, FOURTH, Project, eventually

READ_S = 60.0


def coordinator(project: Project) -> str:
    """The service that coordinates the load's group."""
    return f"broker-{ask(project.bootstrap, 'describe_group', GROUP).coordinator.node_id}"


def shards(project: Project, at: str = "broker-1") -> dict[int, int]:
    """Number of shards of each broker, as broker `at` reports it."""
    told = json.loads(project.muster(at, "cluster", "describe", "--output", "json"))
    kinds = ("group_shards", "transaction_shards", "data_shards")
    return {each["node_id"]: sum(each[kind] for kind in kinds) for each in told["brokers"]}


# --- after startup ------------------------------------------------------------------------------------------


def test_brokers_are_not_root_and_can_write_nowhere(project: Project) -> None:
    for broker in BROKERS:
        assert project.compose("exec", "--no-TTY", broker, "id", "-u").strip() == "10001"
        host = project.container(broker)["HostConfig"]
        assert (host["ReadonlyRootfs"], host["CapDrop"], host["RestartPolicy"]["Name"]) == (
            True,
            ["ALL"],
            "unless-stopped",
        )
    with pytest.raises(AssertionError, match="Read-only file system"):
        project.compose("exec", "--no-TTY", "broker-1", "touch", "/data/x")
    assert (project.state("migrate")["Status"], project.state("migrate")["ExitCode"]) == ("exited", 0)


def test_the_tables_can_be_made_again(project: Project) -> None:
    assert "already" in project.compose("run", "--rm", "--no-TTY", "migrate")


def page(project: Project, broker: str, path: str) -> tuple[int, dict[str, Any]]:
    """Status and JSON body of a broker's page."""
    url = f"http://127.0.0.1:{project.pages[broker]}{path}"
    try:
        with urllib.request.urlopen(url, timeout=READ_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)


def test_the_page_of_a_group_s_coordinator_shows_it_and_the_others_lead_there(
    project: Project, load: Load
) -> None:
    mine = coordinator(project)
    status, group = page(project, mine, f"/api/groups/{GROUP}")
    assert (status, len(group["members"])) == (200, 2)

    def lags() -> list[int | None]:
        return [each["lag"] for each in page(project, mine, f"/api/groups/{GROUP}")[1]["partitions"]]

    # Other brokers lead most of the partitions: their log end offsets come from the database.
    eventually(lambda: len(lags()) == PARTITIONS and None not in lags(), "the lag of every partition")
    address = f"http://127.0.0.1:{project.pages[mine]}"
    for broker in set(BROKERS) - {mine}:
        status, answer = page(project, broker, f"/api/groups/{GROUP}")
        assert (status, answer["broker"]["page"]) == (421, address)
        _, listed = page(project, broker, "/api/groups")
        assert address in [each["page"] for each in listed["elsewhere"]]
        assert page(project, broker, "/readyz")[0] == 200


@pytest.mark.parametrize("broker", BROKERS)
def test_each_broker_is_the_way_in_from_outside_and_inside(project: Project, broker: str) -> None:
    outside = ask(f"127.0.0.1:{project.ports[broker]}", "describe_cluster")
    assert [(each.host, each.port) for each in outside.brokers] == [
        ("127.0.0.1", project.ports[each]) for each in BROKERS
    ]
    inside = project.muster(
        "broker-1", "cluster", "describe", "--bootstrap-server", f"{broker}:9092", "--output", "json"
    )
    assert [(each["host"], each["port"]) for each in json.loads(inside)["brokers"]] == [
        (each, 9092) for each in BROKERS
    ]


def test_records_go_from_inside_to_outside(project: Project) -> None:
    """Over the containers' network to all brokers, and out again through the published ports."""
    lines = "".join(f"{number}:number {number}\n" for number in range(50))
    produce = (
        "exec",
        "--no-TTY",
        "broker-2",
        "sh",
        "-c",
        f"printf '{lines}' | muster produce inside --key-separator :",
    )
    project.muster("broker-2", "topics", "create", "inside", "--partitions", "12")
    assert "50 records" in project.compose(*produce)
    assert sorted(read_all(project.bootstrap, "inside", 12).values()) == sorted(
        b"number %d" % number for number in range(50)
    )


# --- faults -------------------------------------------------------------------------------------------------

Fault = Callable[[Project, str], None]


def kill(project: Project, broker: str) -> None:
    project.compose("kill", "--signal", "KILL", broker)


def start(project: Project, broker: str) -> None:
    project.compose("start", broker)


def pause(project: Project, broker: str) -> None:
    project.compose("pause", broker)


def unpause(project: Project, broker: str) -> None:
    project.compose("unpause", broker)


@pytest.mark.parametrize(
    ("harm", "mend"),
    [(kill, start), (pause, unpause), (Project.disconnect, Project.reconnect)],
    ids=["kill -9", "pause", "disconnect"],
)
def test_groups_outlive_their_coordinator_without_a_rebalance(
    project: Project, load: Load, harm: Fault, mend: Fault, capsys: pytest.CaptureFixture[str]
) -> None:
    before = load.rebalances()
    harmed = coordinator(project)
    began = time.monotonic()
    harm(project, harmed)
    load.go_on(f"{harmed} is gone")
    took_s = time.monotonic() - began
    assert coordinator(project) != harmed
    mend(project, harmed)
    project.wait_until_ready(*BROKERS)
    eventually(lambda: min(shards(project).get(node, 0) for node in (1, 2, 3)) > 0, "all three have shards")
    load.go_on(f"{harmed} is back")
    assert load.rebalances() == before
    with capsys.disabled():
        print(f"\n  every partition written, both members committing {took_s:.1f} s after the fault")


def test_a_rolling_restart_costs_no_rebalance(project: Project, load: Load) -> None:
    before = load.rebalances()
    for broker in BROKERS:
        project.compose("restart", broker)
        project.wait_until_ready(broker)
    load.go_on("all have been restarted")
    assert load.rebalances() == before


def test_a_restart_of_the_database_is_lived_through(project: Project, load: Load) -> None:
    before = load.rebalances()
    project.compose("restart", "postgres")
    project.wait_until_ready(*BROKERS)
    load.go_on("the database is back")
    assert load.rebalances() == before


def test_a_fourth_broker_takes_its_share_and_gives_it_back(project: Project, load: Load) -> None:
    before = load.rebalances()
    project.compose("--profile", "more", "up", "--detach")
    project.wait_until_ready(FOURTH)
    eventually(lambda: shards(project).get(4, 0) > 0, "the fourth broker has shards")
    load.go_on("there are four")
    project.muster("broker-1", "cluster", "drain", "4")
    assert shards(project)[4] == 0
    project.compose("--profile", "more", "stop", FOURTH)
    load.go_on("there are three again")
    assert load.rebalances() == before


# --- what is left at the end --------------------------------------------------------------------------------


def test_nothing_acknowledged_is_lost_when_all_of_it_is_stopped_and_started(
    project: Project, load: Load
) -> None:
    """Runs last, since it ends the clients: after all faults, every acknowledged record is stored exactly
    once, and the committed offsets are the last ones acknowledged."""
    load.end()
    project.compose("stop")
    for broker in BROKERS:
        assert project.state(broker)["ExitCode"] == 0
    project.compose("up", "--detach")
    project.wait_until_ready(*BROKERS)
    stored = read_all(project.bootstrap, TOPIC, PARTITIONS)
    acknowledged = load.writer.acknowledged
    assert len(acknowledged) > 0
    assert {where: stored.get(where) for where in acknowledged} == acknowledged
    assert len(set(stored.values())) == len(stored), "a record was stored twice"
    for member in load.members:
        assert {where: stored[where] for where in member.read} == member.read
    offsets = ask(project.bootstrap, "list_group_offsets", GROUP)
    committed = {where.partition: each.offset for where, each in offsets.items()}
    assert committed == load.committed()
    read = {where for member in load.members for where in member.read}
    passed = {(partition, offset) for partition, end in committed.items() for offset in range(end)}
    assert passed - read == set(), "a record was committed that nobody has read"


def read_all(bootstrap: str, topic: str, partitions: int) -> dict[tuple[int, int], bytes]:
    """Every record of a topic by partition and offset, read by librdkafka."""
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "log_level": 2})
    try:
        ends = {
            each: reader.get_watermark_offsets(TopicPartition(topic, each), timeout=READ_S)[1]
            for each in range(partitions)
        }
        reader.assign([TopicPartition(topic, each, 0) for each in range(partitions)])
        found: dict[tuple[int, int], bytes] = {}
        deadline = time.monotonic() + READ_S
        while len(found) < sum(ends.values()):
            assert time.monotonic() < deadline, f"{len(found)} of {ends} are read"
            for message in reader.consume(1_000, 1.0):
                assert message.error() is None, message.error()
                where, value = placed(message)
                found[where] = value
        return found
    finally:
        reader.close()
