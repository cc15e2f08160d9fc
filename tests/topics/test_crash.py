"""A process that dies at any file operation, or before or after any statement: what it had acknowledged is
there, and so is what it knew of its producers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from muster.coordinator.storage.files import MemoryFile, MemoryFolder
from muster.coordinator.topics.compaction import compact
from muster.coordinator.topics.retention import expire
from muster.protocol.errors import ErrorCode, KafkaError
from tests.topics.support import OneLog, TestRows


class Died(BaseException):
    """Nothing catches it, as nothing catches the end of a process."""


class MortalFolder(MemoryFolder):
    """Raises Died instead of its next operation but `left`; None: it lives."""

    left: int | None = None

    def operate(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Died

    def new_file(self) -> MemoryFile:
        return MortalFile(self)

    def open(self, name: str, *, create: bool = False) -> MemoryFile:
        if create and name not in self._entries:
            self.operate()
        return super().open(name, create=create)

    def store(self, name: str, contents: bytes) -> None:
        self.operate()
        self._entries[name] = file = MortalFile(self)
        file.contents += contents

    def rename(self, name: str, to: str) -> None:
        self.operate()
        super().rename(name, to)

    def remove(self, name: str) -> None:
        if name in self._entries:
            self.operate()
        super().remove(name)


class MortalFile(MemoryFile):
    __slots__ = ("_folder",)

    def __init__(self, folder: MortalFolder) -> None:
        super().__init__()
        self._folder = folder

    def append(self, buffers: Sequence[bytes | memoryview]) -> None:
        contents = b"".join(buffers)
        if self._folder.left == 0:
            self.contents += contents[: len(contents) // 2]
        self._folder.operate()
        super().append([contents])

    def truncate(self, size: int) -> None:
        self._folder.operate()
        super().truncate(size)


class MortalRows:
    """Raises Died around the database's next call but `left`: before it when that is even, else after it."""

    def __init__(self, rows: TestRows, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        self._run = rows.storage.database.run
        monkeypatch.setattr(rows.storage.database, "run", self.run)

    def run(self, call: Any, *, repeatable: bool) -> Any:
        if self.left is None:
            return self._run(call, repeatable=repeatable)
        self.left -= 2
        if self.left == -2:
            raise Died
        found = self._run(call, repeatable=repeatable)
        if self.left == -1:
            raise Died
        return found


class Life:
    """A log's life of some fifty steps, each drawn from `seed`, and what it was told."""

    def __init__(self, seed: int, policy: str, mortal: MortalFolder | MortalRows) -> None:
        self.dice = random.Random(seed)
        self.mortal = mortal
        self.one = OneLog(
            mortal if isinstance(mortal, MortalFolder) else None,
            cleanup_policy=policy,
            internal_segment_bytes="400",
            min_cleanable_dirty_ratio="0",
            retention_ms="15000",
        )
        self.acknowledged: dict[int, bytes] = {}
        self.sequences = dict.fromkeys(range(3), 0)
        self.under_way: tuple[int, bytes] | None = None

    def live(self) -> None:
        for step in range(50):
            self.one.now_ms += self.dice.randrange(3_000)
            self.step(b"value %d" % step * 3)

    def step(self, value: bytes) -> None:
        log = self.one.log
        match self.dice.choices(
            ("append", "seal", "mark", "compact", "expire", "delete"), (60, 8, 6, 6, 10, 10)
        )[0]:
            case "append":
                self.append(self.dice.randrange(3), value)
            case "seal":
                log.seal()
            case "mark":
                log.mark(1)
            case "compact" if log.config.compacts:
                log.seal()
                compact(log, self.one.now_ms)
            case "expire":
                expire(log, self.one.now_ms)
            case "delete" if log.config.deletes:
                log.delete_records(self.dice.randint(log.start_offset, log.high_watermark))

    def append(self, producer: int, value: bytes) -> None:
        self.under_way = producer, value
        sent = (producer, 0, self.sequences[producer])
        keys, timestamps = [b"key %d" % self.dice.randrange(5)], [self.one.now_ms]
        appended = self.one.append(value, keys=keys, timestamps=timestamps, producer=sent)
        self.acknowledged[appended.base_offset] = value
        self.sequences[producer] += 1
        self.under_way = None


@pytest.mark.parametrize("policy", ["delete", "compact", "compact,delete"])
def test_whenever_it_dies_nothing_acknowledged_is_lost_or_taken_twice(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = TestRows.in_use
    mortal_rows = None if rows is None else MortalRows(rows, monkeypatch)
    seed = random.randrange(2**32)
    steps = random.Random(seed)
    died_at = 0
    topic_ids: list[UUID] = []
    while True:
        print(f"seed {seed}, operation {died_at}")
        life = Life(seed, policy, mortal_rows or MortalFolder())
        if rows is not None:
            topic_ids.append(life.one.topic_id)
        life.mortal.left = died_at
        try:
            life.live()
        except Died:
            life.mortal.left = None
            life.one.reopen()
            check(life)
        else:
            life.mortal.left = None
            life.one.log.seal()
            break
        # A statement takes a hundred times as long as an operation in memory.
        died_at += 1 if rows is None else steps.randint(1, 6)
    assert died_at > 25  # some lives have few operations
    if rows is not None:
        rows.check_nothing_is_left_over(topic_ids)


def check(life: Life) -> None:
    one = life.one
    if life.under_way is not None:
        life.append(*life.under_way)  # as a client does that got no answer
    assert one.log.high_watermark == max(life.acknowledged, default=-1) + 1
    found = {record.offset: record.value for record in one.records()}
    assert found.items() <= life.acknowledged.items()
    if not one.log.config.compacts:
        assert found == {o: v for o, v in life.acknowledged.items() if o >= one.log.start_offset}
    for producer, sequence in life.sequences.items():
        if sequence:
            with pytest.raises(KafkaError) as caught:
                one.append(b"", keys=[b""], producer=(producer, 0, sequence + 5))
            assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        one.append(b"", keys=[b""], producer=(producer, 0, sequence))
    one.log.seal()
