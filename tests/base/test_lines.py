"""Lines written by a thread: whole, in order, and counted where they are lost."""

from __future__ import annotations

import json
import os
import select
from errno import ENOSPC
from types import SimpleNamespace

import pytest

from muster.coordinator.base import lines
from muster.coordinator.base.lines import LineWriter
from tests.support.facts import DEADLINE_S


class Disk:
    """Takes `room` bytes."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.contents = b""

    def write(self, descriptor: int, data: memoryview) -> int:
        if not self.room:
            raise OSError(ENOSPC, os.strerror(ENOSPC))
        taken = bytes(data[: self.room])
        self.room -= len(taken)
        self.contents += taken
        return len(taken)


class Written:
    """What a writer writes to a disk: lines of ten bytes, and reports of what was lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
        self.disk = Disk(room)
        monkeypatch.setattr(lines, "os", SimpleNamespace(write=self.disk.write))
        self.writer = LineWriter(-1, lambda count: self.writer.write(f'{{"lost": {count}}}\n'))

    def write(self, *numbers: int) -> None:
        for number in numbers:
            self.writer.write(f'{{"n": {number:2}}}\n')
        self.writer.drain(DEADLINE_S)

    @property
    def lines(self) -> list[bytes]:
        return self.disk.contents.splitlines()


@pytest.mark.parametrize("room", range(20, 31))
def test_what_a_full_disk_did_not_take_is_counted_and_the_next_line_is_whole(
    monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    written = Written(monkeypatch, room)
    written.write(0, 1, 2, 3, 4)
    written.write(5)
    written.disk.room = 1_000
    written.write(6)
    written.write(7)
    whole = 3 if room >= 29 else 2  # a line whose end alone is missing gets that
    kept = [json.loads(line) for line in written.lines if line.endswith(b"}")]
    assert [line["n"] for line in kept if "n" in line] == [*range(whole), 6, 7]
    assert [line["lost"] for line in kept if "lost" in line] == [6 - whole]
    cut = [line for line in written.lines if not line.endswith(b"}")]
    assert len(cut) == (room not in (20, 29, 30))
    written.writer.close()


def test_a_lost_report_counts_for_what_it_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    written = Written(monkeypatch, 0)
    written.write(0, 1, 2)
    written.disk.room = 10
    written.write(3)  # fits; the report does not
    assert written.lines == [b'{"n":  3}']
    written.disk.room = 1_000
    written.write(4)
    assert json.loads(written.lines[-1]) == {"lost": 3}
    written.writer.close()


def test_a_pipe_that_does_not_block_is_waited_for() -> None:
    """As node.js leaves the one that it shares with its child."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    filled = 0
    try:
        while True:
            filled += os.write(writing, b"#" * 1_024)
    except BlockingIOError:
        pass
    lost: list[int] = []
    writer = LineWriter(writing, lost.append)
    for number in range(3_000):
        writer.write(f"{number:99}\n")
    read = bytearray()
    while len(read) < filled + 300_000:
        assert select.select([reading], [], [], DEADLINE_S)[0], f"{len(read) - filled} bytes, lost: {lost}"
        read += os.read(reading, 65_536)
    assert [int(line) for line in read[filled:].splitlines()] == list(range(3_000))
    assert lost == []
    writer.close()
    writer.drain(DEADLINE_S)
    for descriptor in (reading, writing):
        os.close(descriptor)
