"""Fetches that wait until there is enough to read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from muster.coordinator.runtime.clock import Clock, Timer
from muster.coordinator.topics.catalogue import Topic
from muster.coordinator.topics.sources import FetchedPartition, FetchPartition, Parked, Source


class Fetches:
    """Those under way at one broker. Lives on its event loop."""

    def __init__(self, clock: Clock, source: Callable[[Topic], Source], *, parked_max: int) -> None:
        """`source`: where a topic's records stand. At `parked_max` fetches under way a further one is
        answered at once with what there is."""
        self._clock = clock
        self._source = source
        self._parked_max = parked_max
        self._under_way: set[Parked] = set()
        self._ended = False

    def __repr__(self) -> str:
        return f"<Fetches {len(self)}>"

    def __len__(self) -> int:
        """How many are under way; most of them wait."""
        return len(self._under_way)

    @property
    def all_wait(self) -> bool:
        """Whether none is being answered."""
        return all(fetch.waits for fetch in self._under_way)

    def end(self) -> None:
        """Let nothing wait again; who waits now has to be woken."""
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
        parked = Parked()
        timer: Timer | None = None
        self._under_way.add(parked)
        try:
            while True:
                # Watching begins before the read: what is appended meanwhile counts, and is not missed.
                parked.missing, parked.woken = min_bytes, False
                answers = await _read(asked, by_source, lend(max_bytes), parked)
                size = sum(len(answer.records) for answer in answers)
                if (
                    size >= min_bytes
                    or any(
                        answer.error is not None or answer.diverging_epoch is not None for answer in answers
                    )
                    or self._clock.now_ms() >= deadline_ms
                    or len(self._under_way) > self._parked_max
                    or self._ended
                ):
                    return answers
                parked.credit(size)
                del answers
                lend(0)
                if timer is None:
                    timer = self._clock.at(deadline_ms, parked.wake)
                await parked.wait()
        finally:
            self._under_way.discard(parked)
            if timer is not None:
                timer.cancel()
            parked.leave()


async def _read(
    asked: Sequence[FetchPartition], by_source: dict[Source, list[int]], max_bytes: int, parked: Parked
) -> list[FetchedPartition]:
    """One look at all partitions. The first batch found may exceed the limits, so that a consumer always gets
    on."""
    answers: dict[int, FetchedPartition] = {}
    nothing_yet = True
    for source, numbers in by_source.items():
        parts = [asked[number] for number in numbers]
        found = await source.read(parts, max_bytes, parked, first_may_exceed=nothing_yet)
        answers.update(zip(numbers, found, strict=True))
        size = sum(len(answer.records) for answer in found)
        max_bytes -= size
        nothing_yet = nothing_yet and not size
    return [answers[number] for number in range(len(asked))]
