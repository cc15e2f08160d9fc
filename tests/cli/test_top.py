"""`muster top`: one snapshot of the groups without a terminal, a screen that updates with one."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import pytest

from muster.client.network.cluster import Cluster, parse_bootstrap
from muster.client.network.connection import deadline
from muster.client.partitions import TopicPartition
from muster.coordinator.base.clock import wall_ms
from muster.coordinator.commands import group_reads, top_facts
from muster.coordinator.commands.top_facts import Row, Watched
from muster.coordinator.commands.top_rows import SORTS, sort
from muster.coordinator.journal.entries import Entry
from muster.coordinator.testing import Broker
from tests.cli.running import DEADLINE_S, SHARE_OF_WHAT_IS_NOT_TOLD, Muster, run, started
from tests.cli.terminal import Terminal
from tests.support.each import each


@pytest.fixture
def groups(broker: Broker, muster: Muster) -> Iterator[None]:
    """`billing`, which is Empty and has read 3 of 5 records, and `mail`, which has a member."""
    broker.create_topic("orders", 1)
    broker.produce("orders", [b"a", b"b", b"c", b"d", b"e"])
    read = ("consume", "orders", "--from-beginning", "--group")
    assert muster(*read, "billing", "--max-messages", "3").code == 0
    member = started(broker.bootstrap, *read, "mail")
    broker.wait_for_group("mail", "Stable", timeout_s=DEADLINE_S)
    yield
    member.terminate()
    member.communicate(timeout=DEADLINE_S)


@pytest.mark.usefixtures("groups")
def test_one_look_where_nobody_watches(muster: Muster) -> None:
    lines = muster.done("top").splitlines()
    assert lines[0] == "GROUP    STATE   MEMBERS  PARTITIONS  LAG  RECORDS/S  REBALANCES/H"
    # Joining is one rebalance, leaving another.
    assert lines[1].split() == ["billing", "Empty", "0", "1", "2", "-", "2"]
    assert lines[2].split()[:3] == ["mail", "Stable", "1"]
    assert lines[2].split()[-2:] == ["-", "1"]
    assert muster("top", "billing", "--once", "--output", "json").json == [
        {
            "group_id": "billing", "state": "Empty", "members": 0, "partitions": 1, "lag": 2,
            "records_per_second": None, "rebalances": 2,
        }
    ]  # fmt: skip
    assert muster.done("top", "billing", "--output", "csv") == (
        "group_id,state,members,partitions,lag,records_per_second,rebalances\nbilling,Empty,0,1,2,,2\n"
    )
    by_members = muster("top", "--sort", "members", "--output", "json").json
    assert [each["group_id"] for each in by_members] == ["mail", "billing"]


@pytest.mark.usefixtures("groups")
def test_groups_that_are_not_there_and_those_that_are_too_many(
    muster: Muster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "GROUP_ID_NOT_FOUND" in muster.refused("top", "nope")
    partly = muster("top", "nope", "billing")
    assert (partly.code, partly.out.count("\n")) == (0, 2)
    assert partly.err.startswith("muster top: ")
    assert "nope" in partly.err
    monkeypatch.setattr(top_facts, "GROUPS_MAX", 1)
    first = muster("top")
    assert (first.code, first.out.splitlines()[1].split()[0]) == (0, "billing")
    assert first.err == "muster top: 1 more not shown; name groups to see them\n"


def test_a_lag_is_complete_or_unknown(muster: Muster, broker: Broker) -> None:
    reset = ("groups", "reset-offsets", "g", "--to-earliest", "--execute")
    for topic in ("a", "b"):
        broker.create_topic(topic, 1)
        broker.produce(topic, [b"x"] * 5)
        muster.done(*reset, "--topic", topic)
    assert [row["lag"] for row in muster("top", "--output", "json").json] == [10]
    with broker.faults.add(api="ListOffsets", topic="a", error="TOPIC_AUTHORIZATION_FAILED", times=None):
        partly = muster("top", "--output", "json")
    assert [row["lag"] for row in partly.json] == [None]
    assert "a-0" in partly.err
    muster.done("topics", "delete", "a")
    assert [row["lag"] for row in muster("top", "--output", "json").json] == [5]


def test_what_nobody_tells_takes_a_part_of_the_time(
    muster: Muster, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_reads, "_SHARE", SHARE_OF_WHAT_IS_NOT_TOLD)
    broker.create_topic("t", 1)
    muster.done("groups", "reset-offsets", "g", "--topic", "t", "--to-latest", "--execute")
    for fault in ({"error": "LEADER_NOT_AVAILABLE"}, {"delay": "1h"}):
        with broker.faults.add(api="ListOffsets", topic="t", times=None, **fault):
            shown = muster("top", "--output", "json", "--timeout", "240")
        assert [(row["group_id"], row["partitions"], row["lag"]) for row in shown.json] == [("g", 1, None)]
        assert shown.err.startswith("muster top: ")


def test_a_muster_without_a_journal(capfd: pytest.CaptureFixture[str]) -> None:
    with Broker(group_events=False) as broker:
        muster = Muster(broker.bootstrap, capfd)
        broker.create_topic("t")
        assert muster("consume", "t", "--group", "g", "--idle-timeout", "0.1").code == 0
        (row,) = muster("top", "--output", "json").json
        assert (row["group_id"], row["rebalances"]) == ("g", None)
        assert muster.done("top").splitlines()[1].endswith(" -")
        assert muster.done("top", "--output", "csv").endswith(",\n")


@pytest.mark.usefixtures("groups")
def test_a_screen_that_goes_on(broker: Broker) -> None:
    with Terminal(broker.bootstrap, "top", "--interval", "0.2") as terminal:
        before = terminal.settings()
        first = terminal.until(r"billing +Empty +0 +1 +2 +(-|0) +2 ")
        assert "2 groups" in terminal.text
        # New figures appear: records to read, and how fast they are read.
        run(broker.bootstrap, "produce", "orders", stdin=b"x\n" * 1_000)
        behind = terminal.until(r"billing +Empty +0 +1 +1,002 ", after=first.end())
        run(
            broker.bootstrap, "consume", "orders", "--from-beginning", "--group", "billing",
            "--max-messages", "1002",
        )  # fmt: skip
        terminal.until(r"billing +Empty +0 +1 +0 +[1-9][\d,]* +4 ", after=behind.end())
        for key, name in ((b"g", "group"), (b"R", "rate"), (b"b", "rebalances"), (b"\x1b[A", "rebalances")):
            terminal.type(key)
            pressed = terminal.until(f"sorted by {name}: ")
        terminal.until("mail", after=pressed.end())
        terminal.type(b"q")
        assert terminal.ended() == 0
        _left_as_it_was(terminal, before)


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize(
    ("key", "number", "code"),
    [
        (b"\x03", signal.SIGINT, 128 + signal.SIGINT),
        (b"", signal.SIGTERM, 128 + signal.SIGTERM),
        (b"", signal.SIGHUP, -signal.SIGHUP),
    ],
)
@pytest.mark.parametrize("with_keys", [True, False])
def test_a_signal_leaves_the_terminal_as_it_was(
    broker: Broker, key: bytes, number: signal.Signals, code: int, with_keys: bool
) -> None:
    with Terminal(
        broker.bootstrap, "top", **({} if with_keys else {"stdin": subprocess.DEVNULL})
    ) as terminal:
        before = terminal.settings()
        terminal.until("q quit")
        if key:
            terminal.type(key)
        else:
            terminal.process.send_signal(number)
        assert terminal.ended() == code
        _left_as_it_was(terminal, before)


def _left_as_it_was(terminal: Terminal, before: list[object]) -> None:
    """Echo and cursor are on again, and the previous screen is back."""
    assert terminal.settings() == before
    assert terminal.pieces.rfind(b"\x1b[?1049l") > terminal.pieces.rfind(b"\x1b[?1049h") >= 0
    assert terminal.pieces.rfind(b"\x1b[?25h") > terminal.pieces.rfind(b"\x1b[?25l") > 0
    assert "Traceback" not in terminal.text


@pytest.mark.usefixtures("groups")
def test_a_broker_that_goes_away_comes_back(broker: Broker) -> None:
    with Terminal(broker.bootstrap, "top", "--interval", "0.2") as terminal:
        terminal.until("q quit")
        broker.kill(0)
        gone = terminal.until(f"no connection to {broker.bootstrap}")
        stale = terminal.until("this is \\d+ s old", after=gone.start())
        terminal.until("billing", after=stale.end())
        broker.restart(0)
        # A picture without error messages.
        terminal.until(rf"muster top  {broker.bootstrap}  2 groups [^\n]*\n *\nGROUP", after=stale.end())
        broker.pause(0)
        terminal.until(r"no response for \d+ s", after=stale.end())
        terminal.type(b"q")
        assert terminal.ended() == 0
        broker.resume(0)


@pytest.mark.usefixtures("groups")
def test_a_window_that_is_closed_ends_it(broker: Broker) -> None:
    with Terminal(broker.bootstrap, "top") as terminal:
        terminal.until("q quit")
        terminal.hang_up()
        assert terminal.process.wait(DEADLINE_S) in (-signal.SIGHUP, 1)


@pytest.mark.usefixtures("groups")
def test_a_window_that_is_closed_ends_it_also_under_nohup(broker: Broker) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        terminal = Terminal(broker.bootstrap, "top")
    finally:
        signal.signal(signal.SIGHUP, before)
    with terminal:
        terminal.until("q quit")
        terminal.hang_up()
        assert terminal.process.wait(DEADLINE_S) == 1


@pytest.mark.usefixtures("groups")
def test_a_small_window_shows_what_fits(broker: Broker) -> None:
    with Terminal(broker.bootstrap, "top", "--sort", "group", lines=6, columns=80) as terminal:
        terminal.until("1 more not shown: the window is too small")
        terminal.until("billing")
        assert "mail" not in terminal.text
        terminal.type(b"q")
        assert terminal.ended() == 0


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize(
    ("columns", "by", "headings", "row"),
    [
        (60, "lag", "GROUP    STATE   MEMBERS  LAG  RECORDS/S  REBALANCES/H", "billing  Empty +0 +2 "),
        (30, "lag", "GROUP    STATE   LAG", "billing  Empty +2 "),
        (20, "lag", "GROUP    LAG", "billing    2 "),
        (20, "members", "GROUP    MEMBERS", "billing        0 "),
        (20, "group", "GROUP    LAG", "billing    2 "),
    ],
)
def test_a_narrow_window_shows_whole_figures(
    broker: Broker, columns: int, by: str, headings: str, row: str
) -> None:
    with Terminal(broker.bootstrap, "top", "--sort", by, columns=columns) as terminal:
        terminal.until(rf"\n{headings} *\n(.*\n)?{row}")
        terminal.type(b"q")
        assert terminal.ended() == 0


async def test_rebalances_are_not_known_before_the_whole_hour_is_read(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("t")
    run(broker.bootstrap, "consume", "t", "--group", "g", "--idle-timeout", "0.1")
    monkeypatch.setattr(top_facts, "_AT_ONCE", 1)
    monkeypatch.setattr(top_facts, "_ENTRIES_MAX", 1)
    async with Cluster(parse_bootstrap(broker.bootstrap)) as cluster:
        watched = Watched(cluster, ["g"])
        try:
            (first,) = (await watched.look(DEADLINE_S)).rows
            assert first.rebalances is None
            monkeypatch.undo()
            (whole,) = (await watched.look(DEADLINE_S, whole_journal=True)).rows
            assert whole.rebalances == 2
        finally:
            await watched.close()


@pytest.mark.usefixtures("groups")
def test_a_terminal_that_cannot_be_drawn_on_gets_one_look(broker: Broker) -> None:
    with Terminal(broker.bootstrap, "top", term="dumb") as terminal:
        assert terminal.ended() == 0
        assert terminal.text.startswith("GROUP ")
        assert b"\x1b" not in terminal.pieces
    with Terminal(broker.bootstrap, "top", "--once") as terminal:
        assert terminal.ended() == 0
        assert b"\x1b" not in terminal.pieces


async def test_only_recent_rebalances_of_shown_groups_are_remembered() -> None:
    now_ms = wall_ms()

    def records(*completed: tuple[str, int]) -> Iterator[tuple[bytes, bytes, int]]:
        for group, at_ms in completed:
            entry = Entry("rebalance_completed", at_ms - 7_200_000, 1, 0, group, 1)  # its clock was behind
            yield group.encode(), entry.to_json(), at_ms

    async with Cluster(parse_bootstrap("127.0.0.1:1")) as cluster:
        named, every = top_facts._Journal(cluster, ["g"]), top_facts._Journal(cluster, [])
        for journal in (named, every):
            journal._count(records(("g", now_ms), ("other", now_ms), ("past", now_ms - 2 * 3_600_000)))
        assert set(named._completed) == {"g"}
        await every.read(deadline(0), whole=False)
        assert set(every._completed) == {"g", "other"}


async def test_a_rebalance_does_not_count_by_a_date_that_was_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's date was two hours ahead, ninety minutes ago; the broker's clock was right."""
    hour_ms, now_ms = 3_600_000, wall_ms()
    wrong = now_ms - hour_ms * 3 // 2

    def record(at_ms: int, ahead_ms: int = 0) -> tuple[bytes, bytes, int]:
        return b"g", Entry("rebalance_completed", at_ms, 1, 0, "g", 1).to_json(), at_ms + ahead_ms

    async with Cluster(parse_bootstrap("127.0.0.1:1")) as cluster:
        journal = top_facts._Journal(cluster, [])
        journal._count([record(wrong, 2 * hour_ms), record(wrong + 1, 2 * hour_ms)])
        # Their dates, which have been found to be wrong, are past by now.
        monkeypatch.setattr(top_facts, "wall_ms", lambda: now_ms + 40 * 60_000)
        journal._count([record(now_ms)])
        journal._forget_old()
        assert len(journal._completed["g"]) == 1


def test_it_is_sorted_with_what_is_not_known_at_the_end() -> None:
    rows = [
        Row("a", "Stable", 1, 1, None, 2.0, 0),
        Row("b", "Empty", 0, 1, 5, None, 3),
        Row("c", "Empty", 0, 1, 7, 9.0, None),
        Row("d", "Empty", 0, 1, 7, 0.0, None),
    ]
    orders = {name: "".join(each.group_id for each in sort(rows, name)) for name in SORTS}
    assert orders == {
        "group": "abcd", "state": "bcda", "members": "abcd", "lag": "cdba", "rate": "cadb",
        "rebalances": "bacd",
    }  # fmt: skip


def test_rates_are_of_ten_seconds_and_know_of_resets() -> None:
    where = TopicPartition("t", 0)
    rates = top_facts._Rates()
    rates.add(0.0, {"g": {where: 100}})
    assert rates.of("g") is None
    for second in range(1, 21):
        rates.add(float(second), {"g": {where: 100 + 50 * second}})
    assert rates.of("g") == 50.0
    rates.add(21.0, {"g": {where: 0}, "new": {where: 7}})
    assert rates.of("g") == pytest.approx(45.0, abs=0.5)
    assert rates.of("new") is None
    assert rates.of("nope") is None


@each(
    "arguments, said",
    [
        (["--interval", "0.1"], "--interval: 0.1 is not allowed; it takes 0.2 or more"),
        (["--sort", "lags"], "invalid choice: 'lags', did you mean lag?"),
    ],
)
def test_a_wrong_command_line(muster: Muster, arguments: list[str], said: str) -> None:
    assert said in muster.misused("top", *arguments)
