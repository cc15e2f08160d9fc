"""What a dead process left of the store, looked at before sqlite opens it: sqlite takes a damaged end of its
write-ahead log for a torn one, and a missing file for a new one, and says nothing of either.

The log's form is in sqlite's documentation ("WAL-mode File Format"). After a crash it may end in the middle
of one transaction, the one that was being written; no other was begun before that was synced. So a frame that
does not fit, with more than one transaction behind it, is damage to what was acknowledged.
"""

from __future__ import annotations

import sys
from pathlib import Path
from struct import Struct, unpack
from typing import Final

from muster.coordinator.storage.store import StoreDamaged

_HEADER: Final = Struct(">8I")  # magic, version, page size, checkpoints, two salts, two sums
_FRAME: Final = Struct(">6I")  # page, database size if it ends a transaction, two salts, two sums
_MAGIC: Final = 0x377F0682  # plus one when the sums are over big-endian words
_SUMMED_BYTES: Final = 8  # of a frame's own header; then the page
_WORD: Final = 0xFFFFFFFF
_PAGE_BYTES_DEFAULT: Final = 4_096

_Pair = tuple[int, int]


def inspect(store: Path, topics: Path) -> None:
    """StoreDamaged when `store` is missing beside records in `topics`, or when its write-ahead log has lost
    what was acknowledged. To be called while nobody has the files open."""
    wal = store.with_name(store.name + "-wal")
    if not _size(store):
        if _size(wal):
            _refuse_missing(store, wal, "changes to it that were not merged yet")
        if topics.is_dir() and any(topics.iterdir()):
            _refuse_missing(store, topics, "records of topics that only it knows")
    elif _size(wal):
        _check(wal)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _refuse_missing(store: Path, beside: Path, what: str) -> None:
    raise StoreDamaged(
        f"{store} is missing or empty, and {beside} holds {what}: put the file back, or move {beside} away "
        "to begin anew"
    )


def _check(wal: Path) -> None:
    damaged_at = first_damage(wal.read_bytes())
    if damaged_at is not None:
        raise StoreDamaged(
            f"{wal} is damaged at byte {damaged_at}, and what was committed after that is lost with it: put "
            f"a backup of the data directory in its place, or cut the file there to go on with what was "
            f"committed before (truncate -s {damaged_at} {wal})"
        )


def first_damage(log: bytes) -> int | None:
    """Where a write-ahead log stops to make sense though a whole transaction and more come after it; None
    when all that is wrong with it, if anything, is a torn end."""
    if len(log) < _HEADER.size:
        return None
    magic, _, page_bytes, _, *salts, sum1, sum2 = _HEADER.unpack_from(log)
    big_endian = bool(magic & 1)
    sums = _sums(log[: _HEADER.size - 8], (0, 0), big_endian)
    damage: int | None = None
    if magic & ~1 != _MAGIC or sums != (sum1, sum2):
        # Then sqlite takes nothing from it at all. What the header says must be had from elsewhere.
        damage, page_bytes, big_endian = 0, _PAGE_BYTES_DEFAULT, sys.byteorder == "big"
        salts = [int.from_bytes(log[at : at + 4], "big") for at in (_HEADER.size + 8, _HEADER.size + 12)]
    position, ended = _HEADER.size, False
    while position + _FRAME.size + page_bytes <= len(log):
        _, size, *found, sum1, sum2 = _FRAME.unpack_from(log, position)
        end = position + _FRAME.size + page_bytes
        sums = _sums(log[position : position + _SUMMED_BYTES], sums, big_endian)
        sums = _sums(log[position + _FRAME.size : end], sums, big_endian)
        follows = found == salts and sums == (sum1, sum2)
        if damage is None and not follows:
            damage = position
        elif damage is not None and follows and ended:
            return damage
        # A frame sums up all before it. From here on only what it says of itself counts: whether the next one
        # was written behind it.
        sums, ended = (sum1, sum2), damage is not None and found == salts and size > 0
        position = end
    return None


def _sums(data: bytes, start: _Pair, big_endian: bool) -> _Pair:
    one, two = start
    words = iter(unpack(f"{'>' if big_endian else '<'}{len(data) // 4}I", data))
    for first, second in zip(words, words, strict=True):
        one = (one + first + two) & _WORD
        two = (two + second + one) & _WORD
    return one, two
