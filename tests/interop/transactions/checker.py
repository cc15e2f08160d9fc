"""What must be in the target topic once a source with this many numbers was transformed exactly once.

It reads with librdkafka and knows nothing of muster's code.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.interop.story.processes import StoryFailed
from tests.interop.transactions.clients import PARTITIONS

_READ_S: Final = 120.0
_SHOWN: Final = 10


class Seen(NamedTuple):
    """A record of the target."""

    partition: int
    offset: int
    key: str
    value: str


def read(bootstrap: str, topic: str, isolation: str) -> tuple[list[Seen], dict[int, int]]:
    """All records that this isolation level shows, in order within each partition, and by partition the end
    offset that it shows. Raises StoryFailed."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "checker",  # required, and not used
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
    )
    seen: list[Seen] = []
    ends: dict[int, int] = {}
    deadline = time.monotonic() + _READ_S
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        while len(ends) < PARTITIONS:
            if time.monotonic() > deadline:
                raise StoryFailed(f"{topic} could not be read with {isolation} in {_READ_S:g} s")
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is None:
                key, value = (message.key() or b"").decode(), (message.value() or b"").decode()
                seen.append(Seen(message.partition(), message.offset(), key, value))
            elif error.code() == KafkaError._PARTITION_EOF:
                ends[message.partition()] = message.offset()
            elif not error.retriable():
                raise StoryFailed(f"reading {topic} with {isolation}: {error}")
    finally:
        consumer.close()
    return seen, ends


def check(
    numbers: int, committed: Sequence[Seen], uncommitted: Sequence[Seen], aborted_on_purpose: int
) -> list[str]:
    """What is wrong with the target; the source held `numbers` numbers, from 0 on. `aborted_on_purpose`
    records were acknowledged and then aborted."""
    problems = []
    times = Counter(_number(each) for each in committed)
    wrong = [each for each in committed if not _is_right(each)]
    if wrong:
        problems.append(f"{len(wrong)} records are not what was written: {some(wrong)}")
    lacking = [number for number in range(numbers) if not times[number]]
    if lacking:
        problems.append(f"{len(lacking)} of {numbers} were lost: {some(lacking)}")
    repeated = [number for number, count in times.items() if count > 1]
    if repeated:
        problems.append(f"{len(repeated)} of {numbers} were committed more than once: {some(repeated)}")
    strangers = [number for number in times if number is not None and not 0 <= number < numbers]
    if strangers:
        problems.append(f"{len(strangers)} were never in the source: {some(strangers)}")
    if disorder := _disorder(committed):
        problems.append(
            f"{len(disorder)} stand behind later ones of their source partition: {some(disorder)}"
        )
    if hidden := set(committed) - set(uncommitted):
        problems.append(f"{len(hidden)} are shown with read_committed alone: {some(sorted(hidden))}")
    least = numbers + aborted_on_purpose
    if len(uncommitted) < least:
        problems.append(
            f"read_uncommitted shows {len(uncommitted)} records: {numbers} were committed and "
            f"{aborted_on_purpose} aborted on purpose"
        )
    return problems


def _number(seen: Seen) -> int | None:
    text = seen.value.partition(" ")[0]
    return int(text) if text.isascii() and text.isdigit() else None


def _is_right(seen: Seen) -> bool:
    number = _number(seen)
    return number is not None and seen == Seen(
        number // PARTITIONS % PARTITIONS, seen.offset, f"k{number}", f"{number} {number**2}"
    )


def _disorder(committed: Sequence[Seen]) -> list[int]:
    """Numbers that follow greater ones of the same source and target partition."""
    greatest: dict[tuple[int, int], int] = {}
    behind = []
    for seen in committed:
        number = _number(seen)
        if number is None:
            continue
        way = (number % PARTITIONS, seen.partition)
        if number < greatest.get(way, -1):
            behind.append(number)
        greatest[way] = max(number, greatest.get(way, -1))
    return behind


def some(found: Iterable[object]) -> str:
    """The first few, as text."""
    shown = [*found]
    more = ", ..." if len(shown) > _SHOWN else ""
    return ", ".join(map(str, shown[:_SHOWN])) + more
