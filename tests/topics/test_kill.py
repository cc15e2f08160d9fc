"""A process that is killed while it appends: what it acknowledged is still there."""

from __future__ import annotations

from pathlib import Path

from muster.coordinator.storage.files import DiskFolder
from tests.topics.support import OneLog, killed_after

_PROGRAM = """
import sys
from muster.coordinator.storage.files import DiskFolder
from tests.topics.support import OneLog

one = OneLog(DiskFolder(sys.argv[1]), internal_segment_bytes="4000")
for number in range(10**9):
    offset = one.append(b"%d" % number, b"x" * 500, producer=(5, 0, 2 * number)).base_offset
    print(offset, flush=True)
"""


def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    acknowledged = killed_after(300, _PROGRAM, tmp_path / "log")
    one = OneLog(DiskFolder(tmp_path / "log"), internal_segment_bytes="4000")
    values = [record.value for record in one.records()]
    assert acknowledged <= len(values) // 2 <= acknowledged + 1  # the last one may not have been reported
    assert values[::2] == [b"%d" % number for number in range(len(values) // 2)]
    written = len(values) // 2
    assert one.append(b"again", b"", producer=(5, 0, 2 * (written - 1))).base_offset == 2 * (written - 1)
    assert one.append(b"next", b"", producer=(5, 0, 2 * written)).base_offset == 2 * written
