"""The checkers of transactions. They compare what readers of the ledger and of committed offsets see with
what producers requested and were told (`ledger.Book`), and know nothing of how brokers store it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from muster.protocol.api import ApiKey
from tests.simulator.checkers import Exchange, Violation, fetched_groups
from tests.simulator.ledger import INPUT, LEDGER, Book, Entry, Source, Told, is_of
from tests.simulator.member import Partition
from tests.simulator.reader import Reader, Whole

_NOBODY: Final = "which no producer knows of"


def _how(told: Told | None) -> str:
    if told is None:
        return _NOBODY
    if told.commits is None:
        return f"of {told.name}, which has not been ended"
    asked = "committed" if told.commits else "aborted"
    return f"of {told.name}, which {'was' if told.done else 'was asked to be'} {asked}"


# --- at any time ------------------------------------------------------------------------------------------


class ReadCommitted:
    """A read_committed reader sees no record of a transaction before its producer has asked for the commit,
    hence none of an aborted one, and always the same record at an offset."""

    def __init__(self, book: Book) -> None:
        self.at: dict[tuple[int, int], str] = {}
        """What was seen, by partition and offset."""
        self._book = book

    def seen(self, partition: int, offset: int, value: str) -> None:
        told = self._book.of(value)
        if told is None or told.commits is not True:
            raise Violation(
                f"a reader of committed records sees {value} in {LEDGER}-{partition}, {_how(told)}"
            )
        before = self.at.setdefault((partition, offset), value)
        if before != value:
            raise Violation(f"{LEDGER}-{partition} has {value} at {offset}, and had {before}")


class OffsetsWithTransactions:
    """Committed offsets of the input are reported and stored only if the producer of their transaction asked
    for its commit; and once that was acknowledged, a fetch of stable offsets returns no earlier one."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._least: dict[int, dict[Source, int]] = {}
        """By exchange: what was acknowledged when it was sent."""

    def written(self, group_id: str, partition: Partition, value: Any) -> None:
        """Called when an offset becomes a group's."""
        if partition[0] == INPUT and value is not None:
            self._check(Source(group_id, partition), value.offset, value.metadata, "stored")

    def asked(self, exchange: Exchange) -> None:
        if exchange.api is ApiKey.OFFSET_FETCH and exchange.request.require_stable:
            self._least[id(exchange)] = _acknowledged(self._book.transactions.values())

    def replied(self, exchange: Exchange, response: Any) -> None:
        if exchange.api is not ApiKey.OFFSET_FETCH:
            return
        least = self._least.pop(id(exchange), {})
        for group_id, group in fetched_groups(exchange.request, response):
            for topic in group.topics:
                for each in topic.partitions:
                    if topic.name != INPUT or each.error_code or group.error_code:
                        continue
                    source = Source(group_id, (topic.name, each.partition_index))
                    if each.committed_offset >= 0:
                        self._check(source, each.committed_offset, each.metadata, "told")
                    if each.committed_offset < least.get(source, -1):
                        raise Violation(
                            f"{source} is told to be {each.committed_offset}, after a transaction with "
                            f"{least[source]} was committed"
                        )

    def _check(self, source: Source, offset: int, metadata: str, what: str) -> None:
        told = self._book.of(metadata)
        if told is None or told.commits is not True or told.source != source:
            raise Violation(f"offset {offset} of {source} is {what}, {_how(told)}")
        if told.offset != offset:
            raise Violation(f"offset {offset} of {source} is {what}, {told.name} has committed {told.offset}")


def _acknowledged(transactions: Iterable[Told]) -> dict[Source, int]:
    """The highest offset of each source whose transaction was confirmed as committed."""
    highest: dict[Source, int] = {}
    for told in transactions:
        if told.source is not None and told.offset is not None and told.commits and told.done:
            highest[told.source] = max(told.offset, highest.get(told.source, -1))
    return highest


class OneProducer:
    """No two processes get the same epoch of a producer id, and the epochs of an id only grow; a process that
    lost the transactional id to another commits nothing that it requests afterwards."""

    def __init__(self, book: Book) -> None:
        self._book = book

    def look(self) -> None:
        for transactional_id, grants in self._book.grants.items():
            epochs: dict[int, list[int]] = defaultdict(list)
            for grant in sorted(grants, key=lambda each: each.producing):
                producer_id, epoch = grant.producing
                if epoch in epochs[producer_id]:
                    raise Violation(f"{transactional_id} was given twice as {grant.producing}: {grants}")
                epochs[producer_id].append(epoch)
        for told in self._book.transactions.values():
            if told.done and told.commits:
                self._check_not_lost(told)

    def _check_not_lost(self, told: Told) -> None:
        for grant in self._book.grants.get(told.transactional_id, ()):
            if grant.at_s < told.ends_s and _is_newer(grant.producing, told.producing):
                raise Violation(
                    f"{told.name} was committed as {told.producing}, which was asked at {told.ends_s:.3f} s, "
                    f"after {grant.client} had the id at {grant.at_s:.3f} s as {grant.producing}"
                )


def _is_newer(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] == other[0] and one[1] > other[1]


# --- in the end -------------------------------------------------------------------------------------------


class Log:
    """A partition of the ledger, with the end of each transaction worked out independently."""

    def __init__(self, partition: int, entries: Iterable[Entry]) -> None:
        """Raises Violation if an epoch of a producer follows a newer one: a zombie's write."""
        self.committed: list[tuple[int, str]] = []
        """Offsets and values, in order of offsets."""
        self.open: dict[int, list[Entry]] = defaultdict(list)
        """Open transactions, by producer id."""
        newest: dict[int, int] = {}
        for entry in entries:
            producer_id, epoch = entry.producing
            if epoch < newest.get(producer_id, epoch):
                raise Violation(
                    f"{LEDGER}-{partition} has {entry} behind epoch {newest[producer_id]} of its producer"
                )
            newest[producer_id] = epoch
            if entry.committed is None:
                self.open[producer_id].append(entry)
                continue
            ended = self.open.pop(producer_id, [])
            if entry.committed:
                self.committed += [(each.offset, each.value or "") for each in ended]
        self.committed.sort()


class Audit:
    """What holds once all transactions are over: a reader of committed records is shown exactly those whose
    marker commits them; of each transaction either all records and its offset are committed, in all
    partitions, or nothing; what was confirmed as committed is there, once; and a moved partition's offset is
    behind the records that were written for it."""

    def __init__(self, book: Book, seen: ReadCommitted) -> None:
        self._book = book
        self._seen = seen

    def look(
        self, wholes: Mapping[int, Whole], readers: Iterable[Reader], offsets: Mapping[Source, int]
    ) -> None:
        """`offsets` are the committed offsets of the moved sources."""
        logs = {partition: Log(partition, whole.entries) for partition, whole in wholes.items()}
        for partition, log in logs.items():
            shown = wholes[partition].committed
            if shown != log.committed:
                raise Violation(_differ(f"of {LEDGER}-{partition} a reader is shown", shown, log.committed))
            self._look_back(partition, log, readers)
        self._all_or_nothing(logs)
        self._offsets_agree(logs, offsets)

    def _look_back(self, partition: int, log: Log, readers: Iterable[Reader]) -> None:
        """Readers during the run were shown exactly the committed records."""
        seen = {offset: value for (of, offset), value in self._seen.at.items() if of == partition}
        present = dict(log.committed)
        for offset, value in seen.items():
            if present.get(offset) != value:
                raise Violation(
                    f"{value} was shown at {offset} of {LEDGER}-{partition}, and is not committed"
                )
        behind = max(reader.positions[partition] for reader in readers)
        for offset, value in log.committed:
            if offset < behind and offset not in seen:
                raise Violation(f"{value} at {offset} of {LEDGER}-{partition} was passed over by its readers")

    def _all_or_nothing(self, logs: Mapping[int, Log]) -> None:
        present: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for partition, log in logs.items():
            for _, value in log.committed:
                told = self._book.of(value)
                if told is None or not is_of(told, value):
                    raise Violation(f"{value} is committed in {LEDGER}-{partition}, {_how(told)}")
                present[told.name].append((partition, value))
        for told in self._book.transactions.values():
            there = Counter(present.get(told.name, []))
            wanted = Counter(
                (number, value) for number, values in told.acknowledged.items() for value in values
            )
            if there and not told.commits:
                raise Violation(f"{sorted(there)} is committed, {_how(told)}")
            if (there or (told.commits and told.done)) and there != wanted:
                raise Violation(
                    f"of {told.name}, in which {sorted(wanted)} was acknowledged, {sorted(there.elements())} "
                    f"is committed, {_how(told)}"
                )

    def _offsets_agree(self, logs: Mapping[int, Log], offsets: Mapping[Source, int]) -> None:
        moved: dict[Source, list[int]] = defaultdict(list)
        for log in logs.values():
            for _, value in log.committed:
                told = self._book.of(value)
                if told is not None and told.source is not None:
                    moved[told.source].append(int(value.partition("|in")[2]))
        for source, offset in offsets.items():
            if sorted(moved[source]) != list(range(offset)):
                raise Violation(
                    f"{source} is committed up to {offset}, and moved was {sorted(moved[source])}"
                )


def _differ(what: str, shown: list[tuple[int, str]], wanted: list[tuple[int, str]]) -> str:
    more = [each for each in shown if each not in wanted]
    fewer = [each for each in wanted if each not in shown]
    return f"{what} {more}, which is not committed, and not {fewer}, which is"
