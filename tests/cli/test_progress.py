"""Progress on a terminal: what it shows while a command works, and that it appears nowhere else."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from muster.coordinator.commands.progress import Progress, _duration, _size
from muster.coordinator.testing import Broker
from tests.cli.running import DEADLINE_S, Muster, run
from tests.cli.terminal import Terminal


def test_produce_says_how_far_it_is(broker: Broker) -> None:
    with Terminal(
        broker.bootstrap, "produce", "t", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as terminal:
        assert terminal.process.stdin is not None
        assert terminal.process.stdout is not None
        terminal.process.stdin.write(b"twelve bytes\n" * 3)
        terminal.process.stdin.flush()
        terminal.until(r"muster produce: 3 records, 39 B, [\d.]+ records/s, \d+ B/s, [\d.]+ s")
        terminal.process.stdin.write(b"x\n" * 2_000)
        terminal.process.stdin.close()
        out = terminal.process.stdout.read()
        assert terminal.ended() == 0
        assert out == b"2003 records to t\n"
        # The progress line is erased; one line that sums it up remains.
        drawn, _, last = terminal.pieces.rpartition(b"\r\x1b[K")
        assert drawn
        assert re.fullmatch(
            r"muster produce: 2,003 records, 4.0 kB in .+ s \(.+ records/s, .+/s\)\r\n", last.decode()
        )
        terminal.process.stdin = None


def test_a_file_has_an_end_that_is_known(broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"x" * 99 + b"\n" + b"y" * 899 + b"\n")
    with broker.faults.add(api="Produce", delay="1h"):
        options = ("--file", str(tmp_path / "lines"), "--timeout", "600")
        with Terminal(broker.bootstrap, "produce", "t", *options, stdout=subprocess.DEVNULL) as terminal:
            terminal.until(r"muster produce: 0 records, 0 B of 1\.0 kB \(0%\)")
            terminal.type(b"\x03")
            assert terminal.ended() == 130
            assert "0 records in" in terminal.text


def test_consume_says_how_far_it_is_where_records_go_elsewhere(broker: Broker, tmp_path: Path) -> None:
    run(broker.bootstrap, "produce", "t", stdin=b"one\ntwo\n")
    with (tmp_path / "out").open("wb") as out:
        options = ("--from-beginning", "--max-messages", "3", "--group", "g")
        with Terminal(broker.bootstrap, "consume", "t", *options, stdout=out) as terminal:
            terminal.until(r"consume: 2 of 3 records, 8 B, ")
            run(broker.bootstrap, "produce", "t", stdin=b"three\n")
            assert terminal.ended() == 0
            assert re.search(r"muster consume: 3 records, 14 B in .* s", terminal.text)
            # Messages printed meanwhile have their own line.
            assert re.search(r"(^|[\n\r])muster consume: group g assigned t-0\n", terminal.text)
    assert (tmp_path / "out").read_bytes() == b"one\ntwo\nthree\n"


def test_records_on_the_terminal_stand_alone(broker: Broker) -> None:
    run(broker.bootstrap, "produce", "t", stdin=b"one\n")
    # Twice the delay after which progress would appear.
    with Terminal(broker.bootstrap, "consume", "t", "--from-beginning", "--idle-timeout", "2") as terminal:
        assert terminal.ended() == 0
        assert terminal.text == "one\n"


def test_who_types_lines_is_not_disturbed(broker: Broker) -> None:
    with Terminal(broker.bootstrap, "produce", "t", "--output", "json") as terminal:
        terminal.type(b"one\n")
        first = terminal.until(r'one\n\{"topic".*\}\n')
        terminal.type(b"two\n\x04")
        terminal.until(r'\{"topic".*"offset": 1.*\}\n', after=first.end())
        assert terminal.ended() == 0
        assert "records" not in terminal.text


def test_a_plain_terminal_is_left_alone(broker: Broker) -> None:
    with Terminal(
        broker.bootstrap, "produce", "t", term="dumb", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as terminal:
        out, _ = terminal.process.communicate(b"one\n", timeout=DEADLINE_S)
        assert (terminal.ended(), out, terminal.text) == (0, b"1 record to t\n", "")


def test_groups_and_elapsed_time(muster: Muster) -> None:
    progress = Progress("muster groups reset-offsets", "group", total=1_200)
    progress.advance(7)
    assert progress.line(2.0) == "muster groups reset-offsets: 7 of 1,200 groups, 3.5 groups/s, 2.0 s"
    assert Progress("muster store migrate", None).line(75.0) == "muster store migrate: working, 1 min 15 s"


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [(0, "0 B"), (999, "999 B"), (999.6, "1.0 kB"), (34_567_000, "35 MB"), (1e16, "10000 TB")],
)
def test_sizes(size_bytes: float, shown: str) -> None:
    assert _size(size_bytes) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.44, "0.4 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (3_599, "59 min 59 s"), (7_800, "2 h 10 min")],
)
def test_durations(seconds: float, shown: str) -> None:
    assert _duration(seconds) == shown
