"""What must be true after a crash, judged by what clients saw. Knows nothing of muster.

Each function compares what was sent and acknowledged (`history`) with what was found, and raises Violation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.faults.batches import Batch, Violation
from tests.faults.history import Commits, GroupLife, GroupState, Produced


class Committed(NamedTuple):
    """A partition's answer to OffsetFetch."""

    offset: int
    metadata: str


def check_commits(commits: Commits, found: Mapping[int, Committed]) -> int:
    """The number that all of the committer's partitions hold: the last acknowledged one or one sent since."""
    place = f"group {commits.group}, topic {commits.topic}"
    if set(found) != set(commits.partitions):
        raise Violation(f"{place}: offsets of partitions {sorted(found)}, not of {commits.partitions}")
    numbers = {each.offset for each in found.values()}
    if len(numbers) > 1:
        raise Violation(f"{place}: one commit is there in part: {found}")
    (number,) = numbers
    if number < commits.acknowledged:
        raise Violation(f"{place}: acknowledged commit {commits.acknowledged} is lost, {number} is there")
    if number != commits.acknowledged and not commits.first_of_life <= number <= commits.sent:
        sent = f"{commits.first_of_life} to {commits.sent}"
        raise Violation(f"{place}: commit {number} is there, and only {sent} were sent")
    for partition, each in found.items():
        if each.metadata != commits.metadata(number):
            raise Violation(f"{place}, partition {partition}: offset {number} with {each.metadata!r}")
    return number


def check_log(
    place: str, found: Sequence[Batch], end_offset: int, producers: Iterable[Produced]
) -> dict[str, int]:
    """How many batches of each producer a partition holds, read from its start to its end offset. Every
    acknowledged batch must be at its offset, each only once, in order, with none missing in between."""
    by_name = {each.name: each for each in producers}
    counts = dict.fromkeys(by_name, 0)
    offset, epoch = 0, -1
    for batch in found:
        if batch.base_offset != offset:
            raise Violation(f"{place}: a hole, offset {offset} is followed by {batch.base_offset}")
        if batch.leader_epoch < epoch:
            raise Violation(f"{place}: leader epoch {batch.leader_epoch} at {offset}, behind {epoch}")
        _check_batch(place, batch, by_name, counts)
        offset, epoch = batch.next_offset, batch.leader_epoch
    if offset != end_offset:
        raise Violation(f"{place}: the log is said to end at {end_offset}, and ends at {offset}")
    for name, producer in by_name.items():
        if counts[name] < producer.acknowledged:
            lost = f"batches {counts[name]} to {producer.acknowledged - 1} of {name}"
            raise Violation(f"{place}: acknowledged records are lost: {lost}")
    return counts


def _check_batch(place: str, batch: Batch, by_name: Mapping[str, Produced], counts: dict[str, int]) -> None:
    place = f"{place}, offset {batch.base_offset}"
    words = batch.values[0].split() if batch.values else []
    producer = by_name.get(words[0].decode("utf-8", "replace")) if len(words) == 3 else None
    if producer is None or not words[1].isdigit():
        raise Violation(f"{place}: a record that nobody sent: {batch.values[:1]}")
    number, expected = int(words[1]), counts[producer.name]
    if number < expected:
        raise Violation(f"{place}: batch {number} of {producer.name} is a duplicate or out of order")
    if number > expected:
        raise Violation(f"{place}: a hole, batch {number} of {producer.name} where {expected} is due")
    if number >= len(producer.batches):
        raise Violation(f"{place}: batch {number} of {producer.name}, which was never sent")
    sent = producer.batches[number]
    if batch.values != tuple(producer.value(number, record) for record in range(sent.records)):
        raise Violation(f"{place}: batch {number} of {producer.name} has other records: {batch.values}")
    if sent.offset not in (None, batch.base_offset):
        raise Violation(f"{place}: batch {number} of {producer.name} was acknowledged at {sent.offset}")
    if (batch.producer_id, batch.base_sequence) != (producer.producer_id, sent.sequence):
        stored = f"producer {batch.producer_id}, sequence {batch.base_sequence}"
        raise Violation(f"{place}: batch {number} of {producer.name} is stored as {stored}")
    if producer.ended and number >= producer.settled:
        raise Violation(f"{place}: batch {number} of {producer.name} came after its producer was gone")
    counts[producer.name] += 1


def check_sent_once(place: str, producer: Produced, count: int) -> None:
    """An idempotent producer has retried unacknowledged batches: now each must be there exactly once."""
    if count != len(producer.batches):
        raise Violation(f"{place}: {count} batches of {producer.name}, which sent {len(producer.batches)}")


@dataclass
class ObservedGroup:
    """A group as its members find it after a restart. Codes are Kafka's error codes, 0 for none."""

    state: str
    assignments: Mapping[str, bytes]
    heartbeats: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """(member id, generation) -> code of the answer."""
    syncs: Mapping[tuple[str, int], tuple[int, bytes]] = field(default_factory=dict)
    """(member id, generation) -> code and assignment of the answer."""


def check_group(life: GroupLife, observed: ObservedGroup) -> GroupState:
    """Which of the possible states the group is in. Remaining members must be able to go on as if nothing had
    happened: no rebalance, the same generation, the same assignment."""
    place = f"group {life.group}"
    found = (observed.state, dict(observed.assignments))
    matching = [each for each in life.possible if (each.state, dict(each.members)) == found]
    if not matching:
        raise Violation(f"{place}: {found} is none of {life.possible}")
    (now,) = matching
    for (member, generation), code in observed.heartbeats.items():
        known = member in observed.assignments and generation == now.generation
        if known != (code == 0):
            raise Violation(
                f"{place} in {now}: {member} at generation {generation} gets {code} for a heartbeat"
            )
    for (member, generation), (code, assignment) in observed.syncs.items():
        if (code, assignment) != (0, dict(now.members).get(member)):
            raise Violation(
                f"{place} in {now}: {member} at generation {generation} is synced {code} {assignment!r}"
            )
    return now


def check_next_generation(life: GroupLife, generation: int) -> None:
    """The first rebalance after a restart must lead to exactly the next generation."""
    if generation != life.durable.generation + 1:
        was = f"generation {life.durable.generation} was the last"
        raise Violation(f"group {life.group}: unexplained generation {generation}: {was}")


def check_producer_ids(given: Sequence[int]) -> None:
    """No two producers ever get the same id."""
    twice = [each for each, count in Counter(given).items() if count > 1]
    if twice:
        raise Violation(f"producer ids {sorted(twice)} were given out twice")


def check_topics(created: Iterable[str], sent: Iterable[str], listed: Iterable[str]) -> None:
    """Topics with an acknowledged creation must exist, and none that nobody asked for."""
    lost, strange = set(created) - set(listed), set(listed) - set(sent)
    if lost or strange:
        raise Violation(f"topics {sorted(lost)} are lost, topics {sorted(strange)} are nobody's")
