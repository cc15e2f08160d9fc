"""Reads and writes the files of golden bytes.

A file of frames holds what one client and one broker sent to each other. A frame is a line with the message's
name and version, then lines with its bytes in hexadecimal, with the header but without the size, then an
empty line. The file of records holds what that left in `__consumer_offsets`: a line for the key, and one for
the value, which is empty for a tombstone.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

GOLDEN: Final = Path(__file__).with_name("golden")
RECORDS: Final = GOLDEN / "consumer_offsets_records.txt"

_ORIGIN: Final = "captured by tests/protocol/capture.py"


class GoldenFrame(NamedTuple):
    message: str
    version: int
    frame: bytes


def write_frames(path: Path, between: str, frames: Iterable[GoldenFrame]) -> None:
    blocks = [f"# Between {between}; {_ORIGIN}.\n"]
    for message, version, frame in sorted(frames):
        blocks.append("\n".join([f"{message} v{version}", *textwrap.wrap(frame.hex(), 100)]) + "\n")
    path.write_text("\n".join(blocks))


def read_frames(path: Path) -> Iterator[GoldenFrame]:
    for block in path.read_text().split("\n\n"):
        title, *lines = block.splitlines()
        if not title.startswith("#"):
            message, version = title.split(" v")
            yield GoldenFrame(message, int(version), bytes.fromhex("".join(lines)))


def write_records(broker: str, records: Iterable[tuple[bytes, bytes | None]]) -> None:
    lines = [f"# Records of __consumer_offsets, written by {broker}; {_ORIGIN}."]
    for key, value in records:
        lines += [f"key {key.hex()}", f"value {'' if value is None else value.hex()}".rstrip()]
    RECORDS.write_text("\n".join(lines) + "\n")


def read_records() -> Iterator[tuple[bytes, bytes | None]]:
    lines = [line.partition(" ")[2] for line in RECORDS.read_text().splitlines() if not line.startswith("#")]
    for key, value in zip(lines[::2], lines[1::2], strict=True):
        yield bytes.fromhex(key), bytes.fromhex(value) if value else None
