"""Files with keys and secrets that are replaced while the broker runs."""

from __future__ import annotations

from pathlib import Path

from muster.coordinator.base.clock import ManualClock
from muster.coordinator.base.log import Logger
from muster.coordinator.security.exchange import SecurityError
from muster.coordinator.server.renewed import Renewed


def test_a_file_that_could_not_be_read_is_read_once_its_mode_is_put_right(tmp_path: Path) -> None:
    file, clock, readable = tmp_path / "key.pem", ManualClock(), True
    file.write_text("old")

    def read() -> str:
        if not readable:
            raise SecurityError("permission denied")
        return file.read_text()

    renewed = Renewed({"ssl.keystore.location": str(file)}, read, clock, Logger(part="test"), "keys")
    file.write_text("the new one")
    readable = False
    clock.advance(1_000)
    assert renewed.content == "old"
    readable = True
    clock.advance(1_000)
    assert renewed.content == "old", "nothing tells that it would succeed now"
    file.chmod(0o640)
    clock.advance(1_000)
    assert renewed.content == "the new one"
