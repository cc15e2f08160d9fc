"""Checks what a dead process left of the store before sqlite opens it: sqlite silently takes a damaged end of
its write-ahead log for a torn one, and a missing file for a new one.

sqlite's documentation describes the log ("WAL-mode File Format"). After a crash it may end in the middle of
one transaction, the one being written; no other began before that one was synced. So a frame that does not
fit, followed by more than one transaction, is damage to what was acknowledged.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from struct import Struct, pack, unpack
from typing import Final, NamedTuple
from uuid import UUID

from muster.coordinator.storage.store import StoreDamaged

MARKER: Final = "store.id"
"""A file in the folder of topics: whose it is (a `Mark`)."""
UNKNOWN: Final = 0
"""The folder came into being with the first record."""
MADE: Final = 1
"""It exists since before any topic, and has no mark."""
FIRST_MARK: Final = 2

_HEADER: Final = Struct(">8I")  # magic, version, page size, checkpoints, two salts, two sums
_FRAME: Final = Struct(">6I")  # page, database size if it ends a transaction, two salts, two sums
_MAGIC: Final = 0x377F0682  # plus one when the sums are over big-endian words
_PAIR_BYTES: Final = 8
_UUID_LENGTH: Final = 36
_WORD: Final = 0xFFFFFFFF
_PAGE_BYTES_DEFAULT: Final = 4_096

_Pair = tuple[int, int]


def inspect(store: Path, topics: Path) -> None:
    """Raise StoreDamaged if `store` is missing although `topics` has records, or if its write-ahead log has
    lost what was acknowledged. Call only while nobody has the files open."""
    wal = store.with_name(store.name + "-wal")
    if not _size(store):
        if _size(wal):
            _refuse_missing(store, wal, "changes not yet merged into it")
        refuse_records_without(store, topics)
    elif _size(wal):
        _check(wal)


def refuse_records_without(store: Path, topics: Path) -> None:
    """Raise StoreDamaged if `topics` has records: `store`, which alone lists their topics, has nothing."""
    if _has_records(topics):
        _refuse_missing(store, topics, "records of topics that only that file lists")


class Mark(NamedTuple):
    """What tells a store's folder of topics from others, also from those that the store had before: each that
    it marks gets a random number. As text, what `MARKER` says."""

    store_id: UUID
    number: int
    """From FIRST_MARK on; before a folder is marked, UNKNOWN or MADE."""

    def __str__(self) -> str:
        return f"{self.store_id} {self.number}"

    @property
    def is_given(self) -> bool:
        return self.number >= FIRST_MARK


class Expected(NamedTuple):
    """What a store says that its folder of topics should be."""

    mark: Mark
    topics: int
    """How many it lists."""


def refuse_without_records(store: Path, topics: Path, expected: Expected) -> None:
    """Raise StoreDamaged if `topics` is not the folder that `store` expects. Whoever starts a store creates
    and marks it (`sqlite.schema.prepare`), so one without the mark may be the mount point of a volume that is
    not mounted."""
    found, wanted = mark_of(topics), expected.mark
    wrong = None
    if not topics.exists():
        if expected.topics and wanted.number >= MADE:
            wrong = "is missing"
    elif found is None:
        if expected.topics and wanted.is_given:
            wrong = f"has no {MARKER}"
    elif found.store_id != wanted.store_id:
        if expected.topics or _has_records(topics):
            wrong = f"is that of another store (its {MARKER}: {found})"
    elif expected.topics and wanted.is_given and found != wanted:
        wrong = f"is one that it had before (its {MARKER}: {found})"
    if wrong is not None:
        folder = topics.resolve()  # where the volume would be, if it is a link
        raise StoreDamaged(
            f"{store} lists {expected.topics} topic{'s' * (expected.topics != 1)}, but {topics}, the folder "
            f"with their records, {wrong}: mount or restore it. To go on with what is there, or without "
            f"records: mkdir -p {quote(str(folder))} && echo {wanted} > {quote(str(folder / MARKER))}"
        )


def mark_of(topics: Path) -> Mark | None:
    """The mark of a folder of topics; None if it has none, or half of one."""
    try:
        store_id, number = (topics / MARKER).read_text().split()
        return Mark(UUID(store_id), int(number))
    except (OSError, ValueError):
        return None


def _has_records(topics: Path) -> bool:
    return topics.is_dir() and any(_is_of_topic(path.name) for path in topics.iterdir())


def _is_of_topic(name: str) -> bool:
    """Whether it is a topic's folder, also one put aside (see `folders`)."""
    try:
        return str(UUID(name[:_UUID_LENGTH])) == name[:_UUID_LENGTH]
    except ValueError:
        return False


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _refuse_missing(store: Path, beside: Path, what: str) -> None:
    raise StoreDamaged(
        f"{store} is missing or empty, but {beside} holds {what}: restore the file, with its -wal file if "
        f"the backup has one, or move {beside} away to start over"
    )


def _check(wal: Path) -> None:
    damaged_at = first_damage(wal.read_bytes())
    if damaged_at is not None:
        raise StoreDamaged(
            f"{wal} is damaged at byte {damaged_at}; everything committed after that point is lost: restore "
            "the data directory from a backup, or go on with what was committed before by truncating the "
            f"file there (truncate -s {damaged_at} {wal})"
        )


def first_damage(log: bytes) -> int | None:
    """Where a write-ahead log stops making sense although more than a whole transaction follows; None if
    nothing is wrong with it but perhaps a torn end."""
    if len(log) < _HEADER.size:
        return None
    magic, _, page_bytes, _, *salts, sum1, sum2 = _HEADER.unpack_from(log)
    big_endian = bool(magic & 1)
    damage: int | None = None
    if magic & ~1 != _MAGIC or sums(log[: _HEADER.size - 8], (0, 0), big_endian) != (sum1, sum2):
        # Then sqlite ignores the whole log. What the header says must come from elsewhere.
        damage, page_bytes, big_endian = 0, _PAGE_BYTES_DEFAULT, sys.byteorder == "big"
        salts = [int.from_bytes(log[at : at + 4], "big") for at in (_HEADER.size + 8, _HEADER.size + 12)]
    frame_bytes = _FRAME.size + page_bytes
    positions = range(_HEADER.size, len(log) - frame_bytes + 1, frame_bytes)
    frames = [_FRAME.unpack_from(log, position) for position in positions]
    # A frame's sum covers all before it: after damage, only the sum that each frame states counts, and
    # whether the next frame was written after it.
    said = [(sum1, sum2), *((frame[4], frame[5]) for frame in frames)]
    summed = frame_sums(log, page_bytes, said[:-1], big_endian) if frames else []
    ended = False
    for number, (_, size, *found, _, _) in enumerate(frames):
        ours = found == salts
        follows = ours and summed[number] == said[number + 1]
        if damage is None and not follows:
            damage = positions[number]
        elif damage is not None and follows and ended:
            return damage
        ended = damage is not None and ours and size > 0
    return None


def frame_sums(log: bytes, page_bytes: int, before: Sequence[_Pair], big_endian: bool) -> list[_Pair]:
    """The sums that each frame should have if those stated by the one before it (`before`) are right.
    Computed for all frames at once, each in 64 bits of one large number: one by one (`sums`) takes a quarter
    of a second for the 4 MB that a killed broker leaves."""
    count = len(before)
    words = array("I", log[_HEADER.size : _HEADER.size + count * (_FRAME.size + page_bytes)])
    if big_endian:
        words.byteswap()
    pairs = memoryview(words).cast("B").cast("Q")
    in_frame = (_FRAME.size + page_bytes) // _PAIR_BYTES
    low_words = int.from_bytes((b"\xff" * 4 + bytes(4)) * count, "little")
    one, two = (int.from_bytes(pack(f"<{count}Q", *sum_), "little") for sum_ in zip(*before, strict=True))
    for index in (0, *range(_FRAME.size // _PAIR_BYTES, in_frame)):
        column = int.from_bytes(pairs[index::in_frame].tobytes(), "little")
        one = (one + (column & low_words) + two) & low_words
        two = (two + (column >> 32 & low_words) + one) & low_words
    ends = (unpack(f"<{count}Q", each.to_bytes(_PAIR_BYTES * count, "little")) for each in (one, two))
    return list(zip(*ends, strict=True))


def sums(data: bytes, start: _Pair, big_endian: bool) -> _Pair:
    """The sums over pairs of words, as in sqlite's documentation ("Checksum Algorithm")."""
    one, two = start
    words = iter(unpack(f"{'>' if big_endian else '<'}{len(data) // 4}I", data))
    for first, second in zip(words, words, strict=True):
        one = (one + first + two) & _WORD
        two = (two + second + one) & _WORD
    return one, two
