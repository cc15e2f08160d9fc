"""`muster groups reset-offsets`, `delete-offsets` and `evict`, as a user runs them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from muster.client.admin import reset
from muster.client.errors import ConnectionLost
from muster.client.network.cluster import Cluster
from muster.coordinator.testing import Broker
from tests.cli.running import DEADLINE_S, Muster, environment, run, started
from tests.cli.test_groups import connect_worker, member, with_offsets
from tests.cli.test_running import server
from tests.support.each import each

COLUMNS = "GROUP    TOPIC   PARTITION  COMMITTED  NEW OFFSET\n"
DRY = "\nNothing was changed: use --execute to apply.\n"


def test_a_group_is_put_elsewhere(muster: Muster) -> None:
    with_offsets(muster)
    table = (
        COLUMNS + "billing  orders          0          3           0\n"
        "billing  orders          1          0           0\n"
    )
    reset = ("groups", "reset-offsets", "billing", "--topic", "orders", "--to-earliest")
    assert muster.done(*reset) == table + DRY
    assert committed(muster) == {0: 3, 1: 0}
    assert muster.done(*reset, "--execute") == table
    assert committed(muster) == {0: 0, 1: 0}
    read = run(muster.bootstrap, "consume", "orders", "--group", "billing", "--max-messages", "5")
    assert read.out == "a\nb\nc\nd\ne\n"


def committed(muster: Muster) -> dict[int, int]:
    (described,) = muster("groups", "describe", "billing", "--output", "json").json
    return {each["partition"]: each["committed_offset"] for each in described["offsets"]}


@pytest.fixture
def billing(muster: Muster) -> None:
    with_offsets(muster)


@each(
    "target, offset",
    [
        (["--to-earliest"], 0),
        (["--to-latest"], 5),
        (["--to-current"], 3),
        (["--to-offset", "4"], 4),
        (["--to-offset", "9"], 5),
        (["--shift-by", "-2"], 1),
        (["--shift-by", "1"], 4),
        (["--to-datetime", "2000-01-01T00:00:00Z"], 0),
        (["--to-datetime", "1969-12-31T00:00:00Z"], 0),
        (["--to-datetime", "99999999999999"], 5),
        (["--by-duration", "PT10H"], 0),
        (["--by-duration", "P0D"], 5),
        (["--by-duration", "2 days"], 0),
        (["--by-duration", "0s"], 5),
    ],
)
def test_targets(muster: Muster, billing: None, target: list[str], offset: int) -> None:
    reset = ["groups", "reset-offsets", "billing", "--topic", "orders:0", *target, "--output", "json"]
    expected = [
        {
            "group_id": "billing",
            "topic": "orders",
            "partition": 0,
            "committed_offset": 3,
            "new_offset": offset,
            "error": None,
        }
    ]
    assert muster(*reset).json == expected
    assert committed(muster) == {0: 3, 1: 0}
    done = muster(*reset, "--execute")
    assert done.json == expected
    told = "muster groups reset-offsets: orders-0: there is no offset 9; it is 5 instead\n"
    assert done.err == (told if target == ["--to-offset", "9"] else "")
    assert committed(muster) == {0: offset, 1: 0}
    muster.done(*reset[:5], "--to-offset", "3", "--execute")


def test_a_time_without_a_zone_is_utc(muster: Muster, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Kafka's tool, wherever the command runs."""
    with_offsets(muster)
    later = datetime.now(UTC) + timedelta(hours=2)
    reset = ("groups", "reset-offsets", "billing", "--topic", "orders:0", "--output", "csv", "--to-datetime")
    monkeypatch.setenv("TZ", "Etc/GMT-5")  # five hours ahead: this time of its clocks has passed
    time.tzset()
    try:
        assert muster.done(*reset, later.isoformat()) == "orders,0,5\n"
        assert muster.done(*reset, later.replace(tzinfo=None).isoformat()) == "orders,0,5\n"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_all_topics_are_those_with_offsets(muster: Muster) -> None:
    with_offsets(muster)
    muster.done("topics", "create", "audit")
    shown = muster("groups", "reset-offsets", "billing", "--all-topics", "--to-latest", "--output", "json")
    assert [(each["topic"], each["partition"]) for each in shown.json] == [("orders", 0), ("orders", 1)]


def test_what_cannot_be_reset_is_named(muster: Muster) -> None:
    with_offsets(muster)
    muster.done("topics", "create", "audit")
    reset = ("groups", "reset-offsets", "billing", "--shift-by", "1", "--execute")
    ended = muster(*reset, *(word for topic in ("audit", "nope", "orders:0") for word in ("--topic", topic)))
    assert (ended.code, ended.out) == (1, COLUMNS + "billing  orders          0          3           4\n")
    first, second = sorted(ended.err.splitlines())
    assert first.startswith("muster groups reset-offsets: audit-0: audit-0 has no committed offset")
    assert second.startswith("muster groups reset-offsets: nope: topic nope: ")
    as_json = muster(*reset, "--topic", "audit", "--output", "json")
    (failed,) = as_json.json
    assert (as_json.code, failed["new_offset"], failed["error"]["code"]) == (1, None, "INVALID_REQUEST")


def test_several_groups(muster: Muster, broker: Broker) -> None:
    for group in ("billing", "audit"):
        with_offsets(muster, group) if group == "billing" else muster.done(
            "groups", "reset-offsets", group, "--topic", "orders:1", "--to-latest", "--execute"
        )
    reset = ("groups", "reset-offsets", "--to-earliest", "--all-topics", "--execute")
    assert muster.done(*reset, "--all-groups", "--output", "csv") == (
        "audit,orders,1,0\nbilling,orders,0,0\nbilling,orders,1,0\n"
    )
    with member(broker, "audit", "orders"):
        ended = muster(*reset, "billing", "audit")
        assert (ended.code, ended.out.split()[-5:]) == (1, ["billing", "orders", "1", "0", "0"])
        assert ended.err.startswith("muster groups reset-offsets: group audit: group audit is Stable with 1")


def test_every_group_that_fails_is_named(muster: Muster, broker: Broker) -> None:
    broker.create_topic("t", 1)
    reset = ("groups", "reset-offsets", "a", "b", "--to-latest", "--execute")
    with broker.faults.add(api="OffsetCommit", error="INVALID_COMMIT_OFFSET_SIZE", times=None):
        refused = muster(*reset, "--topic", "t", "--topic", "nope")
    assert (refused.code, refused.out) == (1, "")
    said = [line.split(": ")[1] for line in refused.err.splitlines()]
    assert sorted(said) == ["group a, nope", "group a, t-0", "group b, nope", "group b, t-0"]


def test_groups_that_all_fail_have_no_empty_table(muster: Muster, broker: Broker) -> None:
    broker.create_topic("t", 1)
    with broker.faults.add(api="FindCoordinator", error="GROUP_AUTHORIZATION_FAILED", times=None):
        refused = muster("groups", "reset-offsets", "a", "b", "--topic", "t", "--to-latest")
    assert (refused.code, refused.out) == (1, "")
    assert [line.split(": ")[1] for line in refused.err.splitlines()] == ["group a", "group b"]


def test_a_failure_of_one_of_several_groups_names_the_partition_once(muster: Muster, broker: Broker) -> None:
    broker.create_topic("t", 1)
    reset = ("groups", "reset-offsets", "a", "b", "--topic", "t", "--to-latest")
    with broker.faults.add(api="ListOffsets", error="TOPIC_AUTHORIZATION_FAILED", times=None):
        refused = muster(*reset)
    why = "not authorized for the topic (TOPIC_AUTHORIZATION_FAILED)"
    assert refused.err.splitlines() == [
        f"muster groups reset-offsets: group {group}, t-0: {why}" for group in "ab"
    ]


def test_every_group_has_the_whole_timeout(muster: Muster, broker: Broker) -> None:
    broker.create_topic("t", 1)
    reset = ("groups", "reset-offsets", *"abcd", "--topic", "t", "--to-latest", "--output", "csv")
    with broker.faults.add(api="OffsetFetch", delay="2s", times=None):
        assert muster.done(*reset, "--timeout", "6") == "".join(f"{group},t,0,0\n" for group in "abcd")


def test_a_cluster_that_does_not_answer_is_waited_for_once(capfd: pytest.CaptureFixture[str]) -> None:
    groups = [f"g{number}" for number in range(20)]
    with server(lambda connection: None) as bootstrap:
        began = time.monotonic()
        reset = ("groups", "reset-offsets", *groups, "--topic", "t", "--to-latest", "--timeout", "1")
        ended = Muster(bootstrap, capfd)(*reset)
        took_s = time.monotonic() - began
    assert [line.split(": ")[1] for line in ended.err.splitlines()] == [f"group {each}" for each in groups]
    assert (ended.code, took_s < 10) == (1, True), took_s


@pytest.mark.parametrize(
    ("during", "shown", "left"),
    [
        ("a", b"", b"; 3 more were not"),
        ("c", b"a,t,0,0\nb,t,0,0\n", b"; 1 more was not"),
        ("d", b"a,t,0,0\nb,t,0,0\nc,t,0,0\n", b""),
    ],
)
def test_ctrl_c_tells_which_groups_were_reset(broker: Broker, during: str, shown: bytes, left: bytes) -> None:
    broker.create_topic("t", 1)
    reset = ("groups", "reset-offsets", *"abcd", "--topic", "t", "--to-latest", "--output", "csv")
    with broker.faults.add(api="OffsetFetch", group=during, delay="1h") as rule:
        process = started(broker.bootstrap, *reset, "--execute")
        try:
            rule.hit()
        finally:
            process.send_signal(signal.SIGINT)
            ended = process.communicate(timeout=DEADLINE_S)
    group = during.encode()
    said = b"muster groups reset-offsets: interrupted: group %s may have been reset%s\n" % (group, left)
    assert (process.returncode, *ended) == (130, shown, said)


def test_a_lost_answer_about_one_group_does_not_hide_the_others(
    muster: Muster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_offsets(muster)
    reset_group_offsets = reset.reset_group_offsets

    async def lost(cluster: Cluster, group_id: str, *given: Any, **more: Any) -> Any:
        if group_id == "audit":
            raise ConnectionLost("gone")
        return await reset_group_offsets(cluster, group_id, *given, **more)

    monkeypatch.setattr(reset, "reset_group_offsets", lost)
    words = ("groups", "reset-offsets", "--topic", "orders:0", "--to-latest", "--execute", "--output", "csv")
    ended = muster(*words, "audit", "billing")
    assert (ended.code, ended.out) == (1, "billing,orders,0,5\n")
    assert ended.err == "muster groups reset-offsets: group audit: gone (NETWORK_EXCEPTION)\n"
    assert muster.refused(*words, "audit") == "muster groups reset-offsets: gone\n"


def test_all_groups_are_those_of_consumers(muster: Muster, broker: Broker) -> None:
    with_offsets(muster)
    with connect_worker(broker):
        muster.done("groups", "evict", "workers", "--all")
    assert "workers  classic  connect   Empty" in muster.done("groups", "list")
    reset = ("groups", "reset-offsets", "--all-groups", "--topic", "orders:0", "--to-latest", "--execute")
    assert muster.done(*reset, "--output", "csv") == "billing,orders,0,5\n"


def test_lines_name_the_group_unless_the_user_did(muster: Muster, tmp_path: Path) -> None:
    """So that what is saved today can be put back tomorrow, however many groups there are."""
    with_offsets(muster)
    reset = ("groups", "reset-offsets", "--output", "csv")
    everything = muster.done(*reset, "--all-groups", "--all-topics", "--to-current")
    assert everything == "billing,orders,0,3\nbilling,orders,1,0\n"
    plan = tmp_path / "plan.csv"
    plan.write_text(everything)
    assert muster.done(*reset, "--from-file", str(plan), "--execute") == everything
    one = muster.done(*reset, "billing", "--all-topics", "--to-current")
    assert one == "orders,0,3\norders,1,0\n"


def test_what_is_saved_can_be_put_back_whatever_the_terminal_shows(muster: Muster, tmp_path: Path) -> None:
    group = "\u0437\u0430\u043a\u0430\u0437\u044b"
    run(muster.bootstrap, "produce", "t", stdin=b"a\nb\n")
    run(muster.bootstrap, "consume", "t", "--group", group, "--from-beginning", "--max-messages", "2")
    reset = ("groups", "reset-offsets")
    everything = ("--all-groups", "--all-topics", "--to-earliest", "--output", "csv")
    saved = subprocess.run(
        [sys.executable, "-m", "muster", *reset, *everything],
        capture_output=True,
        check=True,
        timeout=DEADLINE_S,
        env=environment(muster.bootstrap) | {"PYTHONIOENCODING": "latin-1"},
    ).stdout
    assert saved.decode() == f"{group},t,0,0\n"
    plan = tmp_path / "plan.csv"
    plan.write_bytes(saved)
    muster.done(*reset, "--from-file", str(plan), "--execute")
    (described,) = muster("groups", "describe", "--all-groups", "--output", "json").json
    assert described["offsets"][0]["committed_offset"] == 0


@pytest.mark.parametrize("lines", ["orders,0,4\norders,1,0\n", "billing,orders,0,4\n\nbilling,orders,1,0\n"])
def test_offsets_from_a_file(muster: Muster, tmp_path: Path, lines: str) -> None:
    """--from-file accepts the output of --output csv; a line may name its group."""
    with_offsets(muster)
    before = muster.done(
        "groups", "reset-offsets", "billing", "--all-topics", "--to-current", "--output", "csv"
    )
    assert before == "orders,0,3\norders,1,0\n"
    plan = tmp_path / "plan.csv"
    plan.write_text(lines)
    named = [] if lines.startswith("billing") else ["billing"]
    reset = ("groups", "reset-offsets", *named, "--from-file", str(plan))
    new = lines.replace("\n\n", "\n")
    assert muster.done(*reset, "--output", "csv") == new
    assert committed(muster) == {0: 3, 1: 0}
    muster.done(*reset, "--execute")
    assert committed(muster) == {0: 4, 1: 0}
    plan.write_text(before)
    assert run(
        muster.bootstrap,
        *("groups", "reset-offsets", "billing", "--from-file", "-", "--execute"),
        stdin=before.encode(),
    ).out.endswith("billing  orders          1          0           0\n")
    assert committed(muster) == {0: 3, 1: 0}


def test_a_file_with_a_byte_order_mark_and_an_offset_that_is_not_there(
    muster: Muster, tmp_path: Path
) -> None:
    with_offsets(muster)
    plan = tmp_path / "plan.csv"
    plan.write_bytes(b"\xef\xbb\xbforders,0,9\r\norders,1,0\r\n")
    for file, stdin in ((str(plan), b""), ("-", plan.read_bytes())):
        reset = ("groups", "reset-offsets", "billing", "--from-file", file, "--output", "csv")
        ended = run(muster.bootstrap, *reset, stdin=stdin)
        assert (ended.code, ended.out) == (0, "orders,0,5\norders,1,0\n")
        assert ended.err == "muster groups reset-offsets: orders-0: there is no offset 9; it is 5 instead\n"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", "it has no lines"),
        (
            "orders,0\n",
            "line 1: every line takes topic,partition,offset, or every line group,topic,partition,offset",
        ),
        ("orders,0,1\nbilling,orders,1,1\n", "line 2: every line takes topic,partition,offset"),
        ("orders,0,1\norders,x,1\n", "line 2: partition 'x' is not allowed; it takes a whole number, 0 to"),
        ("orders,0,-1\n", "line 1: offset '-1' is not allowed"),
        ("orders,0,1\norders,0,2\n", "line 2: orders-0 is given twice"),
        ('orders,0,"1\n', "line 1: unexpected end of data"),
        ("g,orders,0,1\n", "--from-file: its lines name the groups"),
    ],
)
def test_a_wrong_file(muster: Muster, tmp_path: Path, lines: str, said: str) -> None:
    plan = tmp_path / "plan.csv"
    plan.write_text(lines)
    assert said in muster.misused("groups", "reset-offsets", "billing", "--from-file", str(plan))


def test_a_file_that_cannot_be_read(muster: Muster, tmp_path: Path) -> None:
    reset = ("groups", "reset-offsets", "billing", "--from-file")
    assert "No such file or directory" in muster.misused(*reset, str(tmp_path / "none"))
    (tmp_path / "bytes").write_bytes(b"\xff,0,1\n")
    assert "utf-8" in muster.misused(*reset, str(tmp_path / "bytes"))
    (tmp_path / "plan").write_text("orders,0,1\n")
    assert "it excludes --topic and --all-topics" in muster.misused(
        *reset, str(tmp_path / "plan"), "--all-topics"
    )


def test_an_active_group_is_left_alone(muster: Muster, broker: Broker) -> None:
    with_offsets(muster)
    with member(broker, "billing", "orders"):
        line = muster.refused("groups", "reset-offsets", "billing", "--topic", "orders", "--to-earliest")
        assert "group billing is Stable with 1 member (muster at 127.0.0.1)" in line
        assert "(NON_EMPTY_GROUP; stop its members, or" in line
        assert line.count("stop") == 1
        ended = muster("groups", "delete-offsets", "billing", "--topic", "orders:0")
        assert (ended.code, ended.out) == (1, "")
        assert "GROUP_SUBSCRIBED_TO_TOPIC" in ended.err


def test_offsets_are_deleted(muster: Muster) -> None:
    with_offsets(muster)
    assert muster.done("groups", "delete-offsets", "billing", "--topic", "orders:0") == "orders-0 deleted\n"
    assert committed(muster) == {1: 0}
    deleted = muster("groups", "delete-offsets", "billing", "--topic", "orders", "--output", "json")
    assert (deleted.code, deleted.json) == (
        0,
        [
            {"topic": "orders", "partition": 0, "error": None},
            {"topic": "orders", "partition": 1, "error": None},
        ],
    )
    assert "nope" in muster.refused("groups", "delete-offsets", "nope", "--topic", "orders")
    assert "topic nope" in muster.refused("groups", "delete-offsets", "billing", "--topic", "nope")


def test_members_are_removed(muster: Muster, broker: Broker) -> None:
    with_offsets(muster)
    ended = muster("groups", "evict", "billing", "--member", "m", "--instance", "i")
    assert (ended.code, ended.out) == (1, "")
    assert [line.split(": ")[1] for line in ended.err.splitlines()] == ["m", "i"]
    assert muster.done("groups", "evict", "billing", "--all") == "group billing has no members\n"
    by_kafkas_name = muster("groups", "remove-members", "billing", "--all", "--output", "json")
    assert by_kafkas_name.json == []
    with member(broker, "billing", "orders"):
        (described,) = muster("groups", "describe", "billing", "--output", "json").json
        (id,) = [each["member_id"] for each in described["members"]]
        assert muster("groups", "evict", "billing", "--all", "--output", "json").json == [
            {"member": id, "error": None}
        ]


@each(
    "arguments, said",
    [
        (["reset-offsets"], "one of the arguments --to-earliest"),
        (["reset-offsets", "--topic", "t", "--to-latest"], "GROUP or --all-groups is required"),
        (["reset-offsets", "g", "--all-groups", "--topic", "t", "--to-latest"], "not allowed with GROUP"),
        (["reset-offsets", "g", "--topic", "t"], "one of the arguments --to-earliest"),
        (["reset-offsets", "g", "--to-latest"], "one of the arguments --topic --all-topics is required"),
        (["reset-offsets", "g", "--to-latest", "--to-earliest", "--topic", "t"], "not allowed with argument"),
        (["reset-offsets", "g", "--to-latest", "--topic", "t:x"], "'t:x' is not allowed; it takes TOPIC, or"),
        (["reset-offsets", "g", "--to-latest", "--topic", ":1"], "':1' is not allowed"),
        (["reset-offsets", "g", "--topic", "t", "--to-offset", "-1"], "a whole number, 0 to"),
        (["reset-offsets", "g", "--topic", "t", "--to-datetime", "soon"], "a time like"),
        (["reset-offsets", "g", "--topic", "t", "--to-datetime", "20260131"], "write 2026-01-31"),
        (["reset-offsets", "g", "--topic", "t", "--to-datetime", "9" * 18], "it is out of range"),
        (
            ["reset-offsets", "g", "--topic", "t", "--by-duration", "P1M"],
            "'P1M'",
        ),
        (["delete-offsets", "g"], "--topic"),
        (["list", "--state", "foo"], "'foo' is not allowed; it takes Stable, Empty, PreparingRebalance"),
        (["list", "--type", "clasic"], "'clasic' is not allowed, did you mean classic? it takes classic"),
        (["evict", "g"], "--member, --instance or --all is required"),
        (["evict", "g", "--all", "--member", "m"], "argument --all: not allowed with --member"),
        (["describe", "g", "--all-groups"], "argument --all-groups: not allowed with GROUP"),
    ],
)
def test_a_wrong_command_line(muster: Muster, arguments: list[str], said: str) -> None:
    line = muster.misused("groups", *arguments)
    assert line.startswith(f"muster groups {arguments[0]}: ")
    assert said in line
