"""A process that dies at any file operation, or before or after any statement: what it acknowledged is still
there, and so is what it knew of its producers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from muster.coordinator.storage.files import Folder, MemoryFile, MemoryFolder
from muster.coordinator.topics.compaction import compact
from muster.coordinator.topics.retention import expire
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.record_batch import end_of
from tests.topics.support import OneLog, TestRows
from tests.topics.test_transactions import Transactions, close_segment


class Died(BaseException):
    """Nothing catches it, as nothing catches the end of a process."""


class MortalFolder(MemoryFolder):
    """Raises Died in place of an operation once `left` more were performed; None: never."""

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
    """Raises Died at a database call once `left // 2` more were made: before it if `left` is even, else after
    it."""

    def __init__(self, rows: TestRows, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        self._run = rows.storage.database.run
        monkeypatch.setattr(rows.storage.database, "run", self.run)

    def run(self, call: Any, *, repeatable: bool, era: int | None = None) -> Any:
        if self.left is None:
            return self._run(call, repeatable=repeatable, era=era)
        self.left -= 2
        if self.left == -2:
            raise Died
        found = self._run(call, repeatable=repeatable, era=era)
        if self.left == -1:
            raise Died
        return found


class Life:
    """A log's life of fifty steps, each drawn from `seed`, and what it acknowledged."""

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


class TransactionsLife(Life):
    """A life of transactions only."""

    def __init__(self, seed: int, policy: str, mortal: MortalFolder | MortalRows) -> None:
        super().__init__(seed, policy, mortal)
        self.one = Transactions(
            mortal if isinstance(mortal, MortalFolder) else None,
            cleanup_policy=policy,
            internal_segment_bytes="400",
            min_cleanable_dirty_ratio="0",
            delete_retention_ms="2000",
        )
        self.open: dict[int, dict[int, bytes]] = {}  # by producer, values by offset
        self.committed: dict[int, bytes] = {}
        self.unanswered: tuple[int, bytes] | tuple[int, bool] | None = None

    def step(self, value: bytes) -> None:
        producer = self.dice.randrange(3)
        match self.dice.choices(("append", "end", "seal", "compact"), (50, 30, 8, 20))[0]:
            case "append":
                self.append(producer, b"key %d: " % self.dice.randrange(4) + value)
            case "end" if producer in self.open:
                self.end(producer, self.dice.random() < 0.5)
            case "seal":
                self.one.log.seal()
            case "compact":
                self.one.log.seal()
                compact(self.one.log, self.one.now_ms)

    def append(self, producer: int, value: bytes) -> None:
        self.unanswered = producer, value
        key, _, _ = value.partition(b":")
        sequence = self.sequences[producer]
        offset = self.one.put(producer, value, keys=[key], timestamps=[self.one.now_ms], sequence=sequence)
        self.open.setdefault(producer, {})[offset] = value
        self.sequences[producer] += 1
        self.unanswered = None

    def end(self, producer: int, committed: bool) -> None:
        self.unanswered = producer, committed
        self.one.end(producer, committed)
        written = self.open.pop(producer)
        if committed:
            self.committed |= written
        self.unanswered = None

    def go_on(self) -> None:
        """Retry, as clients and coordinators do that got no answer."""
        match self.unanswered:
            case producer, bool() as committed:
                self.end(producer, committed)
            case producer, bytes() as value:
                self.append(producer, value)

    def expected(self) -> dict[bytes, bytes]:
        """The last committed value of each key."""
        return {value.partition(b":")[0]: value for _, value in sorted(self.committed.items())}

    def read(self) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        offset = 0
        while data := self.one.log.read_committed(offset, 1 << 20, first_may_exceed=True)[0]:
            values = self.one.committed(offset)
            found |= {value.partition(b":")[0]: value for value in values if value is not None}
            offset = end_of(data)
        return found


def test_whenever_it_dies_transactions_are_read_as_they_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = TestRows.in_use
    mortal_rows = None if rows is None else MortalRows(rows, monkeypatch)
    seed = random.randrange(2**32)
    steps = random.Random(seed)
    died_at = 0
    while True:
        print(f"seed {seed}, operation {died_at}")
        life = TransactionsLife(seed, "compact", mortal_rows or MortalFolder())
        life.mortal.left = died_at
        try:
            life.live()
        except Died:
            life.mortal.left = None
            life.one.reopen()
            life.go_on()
        else:
            break
        finally:
            life.mortal.left = None
        check_transactions(life)
        died_at += 1 if rows is None else steps.randint(1, 6)
    check_transactions(life)
    assert died_at > 25


def check_transactions(life: TransactionsLife) -> None:
    one = life.one
    for producer in list(life.open):
        life.end(producer, False)
    assert one.stable == one.log.high_watermark
    assert life.read() == life.expected()
    for _ in range(3):
        close_segment(one)
        one.now_ms += 2_000
        compact(one.log, one.now_ms)
        assert life.read() == life.expected()
        if one.rows is None:
            forget_all_but_batches(one.folder)
        one.reopen()
        assert one.stable == one.log.high_watermark
        assert life.read() == life.expected()
        for producer, sequence in life.sequences.items():
            if sequence:
                with pytest.raises(KafkaError) as caught:
                    one.put(producer, b"", keys=[b""], sequence=sequence + 5)
                assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def forget_all_but_batches(folder: Folder) -> None:
    for name in folder.names():
        if not name.endswith(".log"):
            folder.remove(name)


def check(life: Life) -> None:
    one = life.one
    if life.under_way is not None:
        life.append(*life.under_way)  # retried, as by a client that got no answer
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
