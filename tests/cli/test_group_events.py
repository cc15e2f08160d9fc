"""`muster groups why` and `muster groups timeline`, as a user runs them."""

from __future__ import annotations

import asyncio
import os
import pty
import random
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from muster.client import Consumer
from muster.coordinator.commands.group_events import dated, partition_of
from muster.coordinator.commands.group_timeline import _Told
from muster.coordinator.journal.entries import MOMENTS, Entry
from muster.coordinator.journal.explain.timing import Awaited
from muster.coordinator.journal.schema import TYPES
from muster.coordinator.testing import Broker, Cluster
from tests.cli.running import DEADLINE_S, Muster, environment, started
from tests.journal.explain.writing import WEB_2, WEB_3, Life
from tests.support.leases import TERM_MS, die


def used(broker: Cluster, group_id: str = "billing") -> None:
    """A group with one member that joins and closes: generations 1 and 2."""

    async def use() -> None:
        async with Consumer(
            broker.bootstrap, group_id=group_id, topics="orders", client_id="web-1"
        ) as consumer:
            while not consumer.assignment:
                await consumer.get(timeout=1)

    asyncio.run(asyncio.wait_for(use(), DEADLINE_S))


def recorded(muster: Muster, kind: str, group_id: str = "billing") -> None:
    """Wait until an entry of this type can be read: entries are stored shortly after the event."""
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        ended = muster("groups", "timeline", group_id, "--output", "json")
        if any(each["type"] == kind for each in ended.lines):
            return
    raise AssertionError(f"no {kind} in {ended}")


T0, HOURS_MS = 1_767_276_192_412, 7_200_000


def dates(*entries: tuple[int, int], now_ms: int) -> list[int]:
    """When entries seem to have happened, from the broker's clock and the date of each; ms since T0."""
    told = [(Entry("group_created", T0 + at_ms, 1, 0, "g", 1), T0 + date_ms) for at_ms, date_ms in entries]
    return [each.at_ms - T0 for each in dated(told, T0 + now_ms)]


def test_entries_have_the_date_where_the_broker_s_clock_was_behind() -> None:
    suspended = [(0, 0), (1_000, HOURS_MS + 1_000), (2_000, HOURS_MS + 2_000)]
    assert dates(*suspended, now_ms=HOURS_MS + 3_000) == [0, HOURS_MS + 1_000, HOURS_MS + 2_000]
    # It was restarted, and has the date again.
    restarted = [*suspended, (HOURS_MS + 4_000, HOURS_MS + 4_000)]
    assert dates(*restarted, now_ms=HOURS_MS + 5_000) == [date_ms for _, date_ms in restarted]


def test_a_date_that_was_wrong_for_a_while_changes_no_duration() -> None:
    wrong = [(0, 0), (1_000, HOURS_MS + 1_000), (2_000, HOURS_MS + 2_000), (3_000, 3_000)]
    assert dates(*wrong, now_ms=4_000) == [0, 1_000, 2_000, 3_000]
    assert dates(*wrong[:3], now_ms=4_000) == [0, 1_000, 2_000], "it was corrected since"
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    for _ in range(100):
        clock = sorted(dice.randrange(100_000) for _ in range(20))
        entries = [(at_ms, at_ms + dice.choice([0, 1_000, 30_000, HOURS_MS])) for at_ms in clock]
        told = dates(*entries, now_ms=100_000)
        assert told == sorted(told)
        assert all(at_ms <= each for at_ms, each in zip(clock, told, strict=True))


def test_all_moments_of_an_entry_are_moved() -> None:
    for each in TYPES:
        moments = {field.name for field in each.fields if "epoch ms" in field.text}
        assert moments <= set(MOMENTS)
    entry = Entry("t", 1_000, 1, 0, "g", 1, data={"until_ms": 5_000, "expires_ms": None, "join_ms": 300})
    moved = entry.dated(3_000)
    assert (moved.at_ms, moved.data) == (3_000, {"until_ms": 7_000, "expires_ms": None, "join_ms": 300})


def test_why_a_group_rebalanced(muster: Muster, broker: Broker) -> None:
    muster.done("topics", "create", "orders", "--partitions", "2")
    used(broker)
    recorded(muster, "member_disconnected")
    lines = muster.done("groups", "why", "billing").splitlines()
    moment = r"\d\d:\d\d:\d\d\.\d{3}"
    head = rf"billing · generation 2 · {moment} → {moment} \(.* m?s\) · no members left: Empty"
    assert re.fullmatch(head, lines[0])
    assert lines[1].startswith("  cause     member web-1 (host 127.0.0.1) left")
    assert any(line.endswith("→ the consumer was closed (clean-shutdown)") for line in lines)
    first = muster.done("groups", "why", "billing", "--generation", "1").splitlines()
    assert "joined the empty group" in " ".join(first)
    assert "  moved     2 partitions newly assigned: web-1 2" in first


def test_why_and_when_though_the_coordinator_does_not_answer(muster: Muster, broker: Broker) -> None:
    muster.done("topics", "create", "orders", "--partitions", "2")
    used(broker)
    recorded(muster, "member_disconnected")
    with broker.faults.add(api="DescribeGroups", delay="1h", times=None):
        why = muster.done("groups", "why", "billing", "--timeout", "2")
        timeline = muster.done("groups", "timeline", "billing", "--timeout", "2")
    assert "member web-1 (host 127.0.0.1) left" in why
    assert "web-1" in timeline


def test_why_for_programs(muster: Muster, broker: Broker) -> None:
    muster.done("topics", "create", "orders", "--partitions", "2")
    used(broker)
    recorded(muster, "member_disconnected")
    told = muster("groups", "why", "billing", "--output", "json").json
    assert (told["group"], told["generation"], told["state"]) == ("billing", 2, "Empty")
    assert (told["cause"], told["diagnosis"], told["certainty"]) == (
        "member left",
        "clean-shutdown",
        "certain",
    )
    assert told["member"]["client_id"] == "web-1"
    assert told["rebalanced"] is True
    assert muster("groups", "why", "billing", "--since", "1h", "--output", "json").json == told
    described = muster("groups", "why", "--help").out
    waiting = Awaited(WEB_2, pending=False, since_ms=0, until_ms=None).to_json()
    assert [name for name in (*told, *waiting) if f'"{name}": ' not in described] == []


def test_what_is_not_known(muster: Muster, broker: Broker) -> None:
    assert muster.refused("groups", "why", "nobody").startswith(
        "muster groups why: no events of group nobody in __group_events"
    )
    assert "no events of group nobody" in muster.refused("groups", "timeline", "nobody")
    muster.done("topics", "create", "orders")
    used(broker)
    recorded(muster, "rebalance_completed")
    assert muster.refused("groups", "why", "billing", "--generation", "9") == (
        "muster groups why: the journal does not say how group billing reached generation 9\n"
    )
    assert "--since: " in muster.misused("groups", "why", "billing", "--since", "yesterday")


def test_a_broker_that_records_nothing(muster: Muster) -> None:
    with Broker(group_events=False) as silent:
        for action in ("why", "timeline"):
            ended = muster("groups", action, "billing", bootstrap=silent.bootstrap)
            assert (ended.code, ended.out) == (1, "")
            assert ended.err == (
                f"muster groups {action}: there is no topic __group_events: only muster records why "
                "groups rebalance, and only with --group-events true (the default); Apache Kafka does not\n"
            )


def test_events_that_tell_of_no_rebalance(muster: Muster) -> None:
    muster.done("topics", "create", "orders", "--partitions", "2")
    muster.done("groups", "reset-offsets", "billing", "--topic", "orders", "--to-earliest", "--execute")
    recorded(muster, "group_created")
    said = muster.refused("groups", "why", "billing")
    assert said.startswith(
        "muster groups why: the journal has no rebalance of group billing; muster groups timeline"
    )


def test_a_timeline_without_a_terminal(muster: Muster, broker: Broker) -> None:
    muster.done("topics", "create", "orders", "--partitions", "2")
    used(broker)
    recorded(muster, "member_disconnected")
    lines = muster.done("groups", "timeline", "billing").splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  \S", line) for line in lines)
    assert lines[0].endswith("  group created")
    ends = [line for line in lines if "rebalanced to generation" in line]
    assert [line.split(" → ")[-1] for line in ends] == ["new-member (certain)", "clean-shutdown (certain)"]
    assert ends[1][25:].startswith("member left (web-1 at 127.0.0.1): rebalanced to generation 2 in")


def test_a_timeline_for_programs(muster: Muster, broker: Broker) -> None:
    muster.done("topics", "create", "orders", "--partitions", "2")
    used(broker)
    recorded(muster, "member_disconnected")
    events = muster("groups", "timeline", "billing", "--output", "json").lines
    assert {each["group"] for each in events} == {"billing"}
    assert all(each["text"] for each in events)
    ends = [each for each in events if each["type"] == "rebalance_completed"]
    assert [(each["generation"], each["diagnosis"]) for each in ends] == [
        (1, "new-member"),
        (2, "clean-shutdown"),
    ]
    assert [each["began_with"] for each in ends] == [None, None]


def test_a_diagnosis_stands_beside_the_cause_that_it_is_about() -> None:
    life = Life().add("member_removed", WEB_2, trigger="session expired", silent_ms=45_000, connected=True)
    life.preparing(WEB_2, "session expired").at(100).joined().at(200)
    life.add("member_added", WEB_3, trigger="member joined")
    life.preparing(WEB_3, "member joined", from_state="CompletingRebalance").at(250).joined()
    life.at(300).stable(WEB_3, "member joined", 0, 250, restarts=1)
    life.at(60_000).rebalanced(WEB_3, "member left")
    told = _Told("billing", life.entries, None).diagnoses()
    restarted, simple = [str(told[id(each)]) for each in life.entries if each.type == "rebalance_completed"]
    assert restarted == "began with session expired (web-2): stalled (likely)"
    assert "began" not in simple


def test_another_group_of_the_same_partition_is_passed_over(muster: Muster, broker: Broker) -> None:
    muster.done("topics", "create", "orders")
    other = next(
        name
        for name in (f"group-{number}" for number in range(1_000))
        if partition_of(name, 50) == partition_of("billing", 50)
    )
    used(broker, "billing")
    used(broker, other)
    recorded(muster, "member_disconnected", other)
    events = muster("groups", "timeline", "billing", "--output", "json").lines
    assert {each["group"] for each in events} == {"billing"}
    assert partition_of("polygenelubricants", 50) == 0, "the hash that has no absolute value"


def test_a_coordinator_that_moved(capfd: pytest.CaptureFixture[str]) -> None:
    with Cluster(3, lease_term_ms=TERM_MS) as cluster:
        muster = Muster(cluster.bootstrap, capfd)
        cluster.create_topic("orders", 2)
        used(cluster)
        recorded(muster, "rebalance_completed")
        before = cluster.coordinator_of("billing")
        assert before is not None
        die(cluster, before)
        recorded(muster, "shard_loaded")
        told = muster("groups", "why", "billing", "--output", "json").json
        assert (told["cause"], told["diagnosis"], told["rebalanced"]) == (
            "coordinator moved",
            "coordinator-moved",
            False,
        )
        assert told["meaning"].startswith(f"from broker {before + 1} to broker ")
        assert "(clean-shutdown, certain)" in told["before"]


def test_following_until_ctrl_c(muster: Muster, broker: Broker) -> None:
    muster.done("topics", "create", "orders")
    used(broker)
    recorded(muster, "rebalance_completed")
    process = started(broker.bootstrap, "groups", "timeline", "billing", "--follow", "--output", "json")
    assert process.stdout is not None
    try:
        seen = b""
        while b'"generation": 2' not in seen:
            seen = process.stdout.readline()
            assert seen, process.communicate(timeout=DEADLINE_S)
        used(broker)
        while b'"generation": 4' not in seen:
            seen = process.stdout.readline()
            assert seen, process.communicate(timeout=DEADLINE_S)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, err) == (130, b"")
    finally:
        process.kill()
        process.communicate()


def test_a_timeline_in_a_terminal(muster: Muster, broker: Broker) -> None:
    muster.done("topics", "create", "orders", "--partitions", "2")
    used(broker)
    recorded(muster, "member_disconnected")
    shown = _in_a_terminal(broker, "groups", "timeline", "billing")
    bars = [line for line in shown.splitlines() if "█" in line]
    assert bars[0].startswith("billing")
    assert bars[1].startswith("web-1 127.0.0.1")
    assert "█ stable" in shown
    assert "→ the consumer was closed (clean-shutdown)" in shown


def test_a_timeline_in_a_terminal_that_has_no_blocks(muster: Muster, broker: Broker) -> None:
    muster.done("topics", "create", "orders", "--partitions", "2")
    used(broker)
    recorded(muster, "member_disconnected")
    shown = _in_a_terminal(broker, "groups", "timeline", "billing", encoding="iso-8859-1")
    lines = shown.splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  \S", line) for line in lines)
    (end,) = [line for line in lines if "rebalanced to generation 2" in line]
    assert end.endswith(r" \u2192 clean-shutdown (certain)")


def _in_a_terminal(broker: Broker, *arguments: str, encoding: str = "utf-8") -> str:
    """Output of a command in a terminal of 110 columns, without colours."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "muster", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env=environment(broker.bootstrap) | {"COLUMNS": "110", "TERM": "xterm", "PYTHONIOENCODING": encoding},
    )
    os.close(theirs)
    shown = b""
    giving_up = threading.Timer(DEADLINE_S, process.kill)
    giving_up.start()
    try:
        while True:
            try:
                piece = os.read(ours, 65_536)
            except OSError:  # Linux: the other end is closed
                break
            if not piece:
                break
            shown += piece
        assert process.wait(DEADLINE_S) == 0, process.communicate()
    finally:
        giving_up.cancel()
        process.kill()
        process.communicate()
        os.close(ours)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode(encoding)).replace("\r", "")
