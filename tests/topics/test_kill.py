"""A process that is killed while it appends: what it had acknowledged is there."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from muster.coordinator.storage.files import DiskFolder
from tests.topics.support import OneLog

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
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(tmp_path / "log")], stdout=subprocess.PIPE, cwd=root
    ) as process:
        assert process.stdout is not None
        for _ in range(300):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        acknowledged = 300 + len(process.stdout.read().splitlines())
    one = OneLog(DiskFolder(tmp_path / "log"), internal_segment_bytes="4000")
    values = [record.value for record in one.records()]
    assert acknowledged <= len(values) // 2 <= acknowledged + 1  # the last one may not have been told
    assert values[::2] == [b"%d" % number for number in range(len(values) // 2)]
    written = len(values) // 2
    assert one.append(b"again", b"", producer=(5, 0, 2 * (written - 1))).base_offset == 2 * (written - 1)
    assert one.append(b"next", b"", producer=(5, 0, 2 * written)).base_offset == 2 * written
