"""What must hold through every fault, judged by what clients saw and what was written. Knows nothing of
muster.

Each function raises Violation, which says what is wrong.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from tests.faults.batches import Violation
from tests.faults.cluster.history import (
    Claim,
    Commit,
    GroupHistory,
    OffsetWrite,
    Owners,
    Produced,
    Seen,
    Write,
)


def check_commits(
    place: str, commits: Sequence[Commit], seen: Iterable[Seen], repeated: Collection[int] = ()
) -> None:
    """A committed offset that somebody finds was sent by a client, and is no older than what had been
    acknowledged when it was queried, unless it is in `repeated`: see `check_offset_writes`."""
    for found in seen:
        acknowledged = [
            each.offset
            for each in commits
            if each.acknowledged_at is not None and each.acknowledged_at < found.asked_at
        ]
        if acknowledged and found.offset < max(acknowledged) and found.offset not in repeated:
            before = f"{max(acknowledged)} was acknowledged before"
            raise Violation(f"{place}: offset {found.offset} is committed, and {before}")
        sent = {each.offset for each in commits if each.sent_at < found.answered_at}
        if found.offset != -1 and found.offset not in sent:
            raise Violation(f"{place}: offset {found.offset} is committed, which nobody has sent")


def check_stints(
    history: GroupHistory, repeated: Mapping[tuple[str, int], Collection[int]] = MappingProxyType({})
) -> None:
    """A new owner of a partition starts where the group has committed, or at the beginning if it has not."""
    for stint in history.stints:
        if stint.first_offset is None or stint.judged:
            continue
        commits = history.commits.get(stint.partition, [])
        began = stint.first_offset
        if not began and not any(each.offset == 0 for each in commits):
            began = -1
        place = f"group {history.group}, partition {stint.partition}, begun by {stint.member}"
        again = repeated.get((history.group, stint.partition), ())
        check_commits(place, commits, [Seen(began, stint.begun_at, stint.first_read_at)], again)
        stint.judged = True


def check_reads(history: GroupHistory, partition: int, log: Sequence[bytes], committed: int) -> None:
    """The group's reads match the log, as far as it was read back, and cover everything below its committed
    offset."""
    place = f"group {history.group}, partition {partition}"
    reads = history.reads.get(partition, {})
    for offset, read in list(reads.items()):  # members keep reading, some in threads
        if offset < len(log) and log[offset] != read:
            raise Violation(f"{place}: {read!r} was read at offset {offset}, and there is {log[offset]!r}")
    missing = [offset for offset in range(committed) if offset not in reads]
    if missing:
        raise Violation(f"{place}: offsets {missing[:5]} are committed, and nobody has read them")


def check_log(place: str, log: Sequence[bytes], producers: Iterable[Produced]) -> None:
    """A partition's values by offset: every acknowledged record is at its offset, each record is there once,
    in the order sent."""
    by_name = {each.producer: each for each in producers}
    counts = dict.fromkeys(by_name, 0)
    for offset, found in enumerate(log):
        name, _, number = [*found.decode("utf-8", "replace").split(), "", "", ""][:3]
        producer = by_name.get(name)
        if producer is None or not number.isdigit() or int(number) >= producer.sent:
            raise Violation(f"{place}: a record that nobody sent at offset {offset}: {found!r}")
        due = counts[name]
        if int(number) < due:
            raise Violation(f"{place}: record {number} of {name} is there twice or out of order, at {offset}")
        if int(number) > due:
            raise Violation(f"{place}: record {due} of {name} is missing before {number}, at offset {offset}")
        acknowledged = producer.acknowledged.get(due)
        if acknowledged not in (None, offset):
            everywhere = [each for each, value in enumerate(log) if value == found]
            told = f"record {due} of {name} is at {everywhere}, acknowledged at {acknowledged}"
            raise Violation(f"{place}: {told}")
        counts[name] += 1
    for name, producer in by_name.items():
        lost = sorted(number for number in producer.acknowledged if number >= counts[name])
        if lost:
            raise Violation(f"{place}: acknowledged records {lost[:5]} of {name} are lost")


def check_owners(generations: Iterable[Owners]) -> None:
    """No partition has two owners in one generation, which has one assignment, and generations only grow.

    When a generation is written again, it may have fewer members (one has left), but nobody's partitions
    differ.
    """
    last: dict[str, int] = {}
    owned_by: dict[tuple[str, int], dict[tuple[str, int], str]] = {}
    for each in generations:
        place = f"group {each.group}, generation {each.generation}"
        if each.generation < last.get(each.group, 0):
            raise Violation(f"{place} was written after generation {last[each.group]}")
        last[each.group] = each.generation
        owners = owned_by.setdefault((each.group, each.generation), {})
        for member, partitions in each.owned:
            for partition in partitions:
                owner = owners.setdefault(partition, member)
                if owner != member:
                    raise Violation(f"{place}: {partition} belongs to {owner} and to {member}")


def check_no_rebalance(group: str, before: tuple[int, int], after: tuple[int, int]) -> None:
    """A fault changed neither the written generation nor the number of assignments that members received."""
    if before != after:
        raise Violation(
            f"group {group} has rebalanced: generation {before[0]} became {after[0]}, "
            f"{after[1] - before[1]} assignments"
        )


def check_epochs(claims: Sequence[Claim], epochs: Mapping[str, int]) -> None:
    """An epoch is granted once, and grows; `epochs` is where each lease began."""
    last = dict(epochs)
    for each in claims:
        if each.epoch <= last.get(each.lease, 0):
            raise Violation(f"{each.lease}: epoch {each.epoch} was given after {last[each.lease]}")
        last[each.lease] = each.epoch


def check_writes(claims: Iterable[Claim], writes: Iterable[Write]) -> None:
    """Nobody writes under a lease whose epoch is another's, either at the moment of the write or when it is
    committed."""
    by_lease: dict[str, list[Claim]] = {}
    for claim in sorted(claims, key=lambda each: each.at):
        by_lease.setdefault(claim.lease, []).append(claim)
    for write in writes:
        given = by_lease.get(write.lease, [])
        place = f"{write.lease}: node {write.node} has written {write.table} under epoch {write.epoch}"
        holders = {each.node for each in given if each.epoch == write.epoch}
        if write.epoch is not None and holders != {write.node}:
            raise Violation(f"{place}, which is of node {holders or 'nobody'}")
        then = given[: bisect_right([each.at for each in given], write.at)]
        if not then or then[-1].node != write.node:
            fenced = f"epoch {then[-1].epoch} of node {then[-1].node}" if then else "any epoch"
            raise Violation(f"{place} after {fenced} was committed")


def check_offset_writes(
    writes: Iterable[OffsetWrite], repeated: Mapping[tuple[str, int], Collection[int]] = MappingProxyType({})
) -> None:
    """A committed offset never goes back: the load commits ever higher ones.

    `repeated`, by group and partition: offsets that a client gave up on and sent again over another
    connection. Once the network is whole again, the kernel still delivers what was left in the closed socket,
    and no broker can tell that from a new commit: such an offset may come once more, later.
    """
    last: dict[tuple[str, str, int], int] = {}
    for each in writes:
        key = each.group, each.topic, each.partition
        place = f"group {each.group}, {each.topic}-{each.partition}"
        if each.offset is None:
            raise Violation(f"{place}: the committed offset {last.get(key)} was deleted")
        if each.offset in repeated.get((each.group, each.partition), ()):
            continue
        if each.offset < last.get(key, 0):
            raise Violation(f"{place}: offset {each.offset} was written after {last[key]}")
        last[key] = each.offset
