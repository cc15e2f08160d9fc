"""Fetches that wait until there is enough to read.

They are answered by Kafka's rule (ReplicaManager.fetchMessages, DelayedFetch). It first counts what could be
read within all limits, and then what is available: the bytes of each partition up to the end of its log, but
no more than the partition's limit. A partition that is read from an older segment ends the wait at once,
since no append makes its answer longer. Committed records end at the last stable offset instead, and nobody
who reads from beyond it waits. The minimum bytes are never more than the answer may have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from muster.coordinator.base.clock import Clock, Timer
from muster.coordinator.topics.catalogue import Topic
from muster.coordinator.topics.sources import Available, FetchedPartition, FetchPartition, Parked, Source


class Fetches:
    """The fetches under way at one broker. Lives on its event loop."""

    def __init__(self, clock: Clock, source: Callable[[Topic], Source], *, parked_max: int) -> None:
        """`source`: the source of a topic's records. At `parked_max` fetches under way a further one is
        answered at once with what there is."""
        self._clock = clock
        self._source = source
        self._parked_max = parked_max
        self._under_way: set[Parked] = set()
        self._ended = False

    def __repr__(self) -> str:
        return f"<Fetches {len(self)}>"

    def __len__(self) -> int:
        """Number of fetches under way; most of them wait."""
        return len(self._under_way)

    @property
    def all_wait(self) -> bool:
        """Whether none is being answered."""
        return all(fetch.waits for fetch in self._under_way)

    def end(self) -> None:
        """Let no fetch wait from now on; those that wait now must be woken."""
        self._ended = True

    async def fetch(
        self,
        asked: Sequence[FetchPartition],
        *,
        min_bytes: int,
        max_bytes: int,
        max_wait_ms: int,
        lend: Callable[[int], int],
    ) -> list[FetchedPartition]:
        """As `Partitions.fetch`."""
        by_source: dict[Source, list[int]] = {}
        for number, part in enumerate(asked):
            by_source.setdefault(self._source(part.topic), []).append(number)
        deadline_ms = self._clock.now_ms() + max_wait_ms
        min_bytes = min(min_bytes, max_bytes)
        parked = Parked(min_bytes)
        timer: Timer | None = None
        self._under_way.add(parked)
        try:
            answers = await _read(asked, by_source, max_bytes, lend)
            if (
                sum(len(answer.records) for answer in answers) >= min_bytes
                or any(answer.error is not None or answer.diverging_epoch is not None for answer in answers)
                or self._clock.now_ms() >= deadline_ms
                or len(self._under_way) > self._parked_max
                or self._ended
            ):
                return answers
            available = await _watch(asked, by_source, parked)
            enough = parked.woken or _readable_bytes(answers, available) >= min_bytes
            if enough and _still_true(answers, available):
                return answers
            del answers
            if not enough:
                lend(0)
                timer = self._clock.at(deadline_ms, parked.wake)
                await parked.wait()
            return await _read(asked, by_source, max_bytes, lend)
        finally:
            self._under_way.discard(parked)
            if timer is not None:
                timer.cancel()
            parked.leave()


async def _read(
    asked: Sequence[FetchPartition],
    by_source: dict[Source, list[int]],
    max_bytes: int,
    lend: Callable[[int], int],
) -> list[FetchedPartition]:
    """Read all partitions once. The first batch found may exceed the limits, so that a consumer always makes
    progress."""
    answers: dict[int, FetchedPartition] = {}
    size = 0

    def room(wanted: int) -> int:
        # Others need what these partitions cannot return: a client mostly allows far more bytes than it gets.
        # If all is lent, a first batch beyond its partition's limit does not narrow what the rest gets.
        wanted = min(size + wanted, max_bytes)
        lent = lend(wanted)
        return (max_bytes if lent == wanted else lent) - size

    for source, numbers in by_source.items():
        parts = [asked[number] for number in numbers]
        found = await source.read(parts, room, first_may_exceed=not size)
        answers.update(zip(numbers, found, strict=True))
        size += sum(len(answer.records) for answer in found)
    return [answers[number] for number in range(len(asked))]


async def _watch(
    asked: Sequence[FetchPartition], by_source: dict[Source, list[int]], parked: Parked
) -> list[Available]:
    available: dict[int, Available] = {}
    for source, numbers in by_source.items():
        found = await source.watch([asked[number] for number in numbers], parked)
        available.update(zip(numbers, found, strict=True))
    return [available[number] for number in range(len(asked))]


def _still_true(answers: Sequence[FetchedPartition], available: Sequence[Available]) -> bool:
    """Whether nothing was appended, and no leadership lost, since the partitions were read."""
    return all(
        answer.high_watermark == now.high_watermark for answer, now in zip(answers, available, strict=True)
    )


def _readable_bytes(answers: Sequence[FetchedPartition], available: Sequence[Available]) -> int:
    """How much Kafka would have read: it also sends the beginning of a batch that exceeds a limit."""
    return sum(
        max(len(answer.records), now.size)
        for answer, now in zip(answers, available, strict=True)
        if answer.records
    )
