"""Journals of real groups on real brokers: the actions are known, and muster wrote every entry.

    journal = asyncio.run(generate(groups=8, steps=60, seed=7))
    journal.records   # of __group_events
    journal.did       # what was done, in order

    python -m tests.pipeline.generator 100000 journal.parquet [SEED]

Groups are thin members over the wire; the brokers' clock is advanced instead of waiting. The seed alone
decides what happens, but not how many milliseconds it takes.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from muster.coordinator.testing import AsyncCluster, Cluster
from muster.coordinator.testing.topics import Record
from tests.pipeline.driven import (
    APART_MS,
    DEADLINE_S,
    INTERRUPTED,
    OTHER_TOPIC,
    PARTITIONS,
    TOPIC,
    UNDER_WAY,
    Failover,
    Group,
    Journal,
)
from tests.support.members import PATIENT_MS, SESSION_MS

__all__ = ["PATIENT_MS", "SEED", "Journal", "driven", "generate", "generate_many"]

JOURNAL: Final = "__group_events"
SEED: Final = int(os.environ.get("SEED") or 2026)
"""Seed of the journals that the tests share: the same in each run, another with `make test-spark SEED=7`."""
SHARDS: Final = 50
KINDS: Final = ("dynamic", "static", "cooperative")
_FOR_EVER: Final = 365 * 24 * 3_600_000
_EVENTS_A_STEP: Final = 17
"""Average over many steps, including the rarer events."""


@asynccontextmanager
async def driven(
    groups: int, seed: int, brokers: int = 2, prefix: str = "", session_ms: int = SESSION_MS
) -> AsyncIterator[tuple[AsyncCluster, list[Group], Journal]]:
    """Start brokers, and groups without members, a third of each kind. Between two calls members are silent
    while the brokers' clock runs: with PATIENT_MS nobody expires while something else is awaited."""
    chance = random.Random(seed)
    journal = Journal(seed, partitions={TOPIC: PARTITIONS, OTHER_TOPIC: PARTITIONS})
    async with Cluster(
        brokers,
        connections_max_idle_ms=_FOR_EVER,  # members are quiet for weeks of the brokers' time
        group_events_retention_ms=-1,
        group_events_retention_bytes=1 << 30,
        lease_term_ms=10_000,  # real time: no broker loses a lease because the machine is busy
    ) as cluster:
        for topic in (TOPIC, OTHER_TOPIC):
            await cluster.create_topic(topic, PARTITIONS)
        there = [
            Group(cluster, f"{prefix}group-{number}", journal, chance, KINDS[number % len(KINDS)], session_ms)
            for number in range(groups)
        ]
        try:
            yield cluster, there, journal
        finally:
            for group in there:
                await group.end()


async def generate(
    groups: int = 6,
    steps: int = 40,
    seed: int | None = None,
    *,
    members: int = 4,
    prefix: str = "",
    asked: bool = True,
) -> Journal:
    """Drive groups of up to `members` through `steps` random events, a failover in the middle of a rebalance,
    one of each rarer event, and a rebalance that is left unfinished; prints its seed. With `asked`, the
    brokers are queried at the end for their diagnosis of each rebalance that they still have in memory."""
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    print(f"journal generator: seed {seed}", file=sys.stderr)
    chance = random.Random(seed + 1)
    async with driven(groups, seed, prefix=prefix) as (cluster, there, journal):
        for group in there:
            await group.start(chance.randint(2, members))
        for step in range(steps):
            if step == steps // 2:
                await _at_least(3, there[0])
                await fail_over(cluster, there, journal)
                for group in there:
                    await _rarely(group, chance)
            await _often(chance.choice(there), chance, members)
        for group in there[:2]:
            await group.deploy()
        await _at_least(2, there[-1])
        await there[-1].leave_midway(there[-1].members[-1], UNDER_WAY)
        journal.records = await finished(cluster, there)
        for group in there:
            journal.owners[group.name] = {
                part: each.client_id for part, each in group.owners.items() if each in group.members
            }
            journal.members[group.name] = len(group.members)
            for generation, diagnosis in group.whys().items() if asked else ():
                journal.whys[group.name, generation] = diagnosis
    return journal


async def _often(group: Group, chance: random.Random, members: int) -> None:
    """An everyday event; afterwards there are at least two members again, and at most `members`."""
    # Static members that come and go within minutes look like a rolling restart.
    await group.passes(chance.randint(1_000, 240_000) + APART_MS * group.static)
    member = chance.choice(group.members)
    things: list[Callable[[], Awaitable[object]]] = [
        lambda: group.crash(member),
        lambda: group.subscribe(member),
        lambda: group.be_late(member),
        lambda: group.commit_late(member),
        group.work,
    ]
    if not group.static:
        things += [
            lambda: group.evict(member),
            lambda: group.stall(member),
            lambda: group.miss_poll(member),
            lambda: group.hang(member),
            lambda: group.close(member),
        ]
    await chance.choice(things)()
    if len(group.members) < 2 or (len(group.members) < members and chance.random() < 0.3):
        await group.start(1)


async def _rarely(group: Group, chance: random.Random) -> None:
    """Rarer events that fit the kind of group."""
    await group.passes(chance.randint(1_000, 240_000))
    if group.static:
        await group.duplicate(chance.choice(group.members))
    elif group.cooperative:
        await group.grow()
        await group.start(1)
    else:
        await group.flap(chance.choice(group.members))
        await group.stop_all()
    await _at_least(2, group)
    await group.fall_behind(chance.choice(group.members))
    await _at_least(2, group)


async def _at_least(members: int, group: Group) -> None:
    await group.start(max(members - len(group.members), 0))


async def fail_over(cluster: AsyncCluster, groups: Sequence[Group], journal: Journal) -> None:
    """The first group's broker dies while the group rebalances; another takes over everything it had. A
    member that had left is therefore a member again until its session expires, and so is a member of another
    group that dies with the broker."""
    first, dead = groups[0], cluster.coordinator_of(groups[0].name)
    assert dead is not None
    theirs = [each for each in groups if cluster.coordinator_of(each.name) == dead]
    gone = {first.name: [first.members[-1]]}
    await first.leave_midway(first.members[-1], INTERRUPTED)
    await _stored(cluster, [first])
    others = [each for each in theirs[1:] if len(each.members) > 2]
    for group in others[:1]:
        gone[group.name] = [group.members.pop()]
    await cluster.kill(dead)
    for group in others[:1]:
        await gone[group.name][0].close()
    await first.passes(15_000)  # until its leases expire
    for group in groups:
        await group.facts.coordinated()
        await group.reconnect()
    await first.passes(first.session_ms + 1_000)  # in one jump: the others do not wait forever to rejoin
    for group in theirs:
        if group.name in gone:
            await group.lose(gone[group.name], "clean-shutdown" if group is first else "crashed")
    shards = {each.key: each.partition for each in await cluster.records(JOURNAL)}
    on = {each.name: shards[each.name.encode()] for each in theirs}
    lost = dict.fromkeys(on.values(), 0)
    for name, members in gone.items():
        lost[on[name]] += len(members)
    journal.failovers.append(
        Failover(dead + 1, {shard: list(on.values()).count(shard) for shard in lost}, on[first.name], lost)
    )


async def finished(cluster: AsyncCluster, groups: Sequence[Group]) -> list[Record]:
    """The journal, once it also holds the entries that come without a change of a group."""
    return await _stored(cluster, groups)


async def _stored(cluster: AsyncCluster, groups: Sequence[Group]) -> list[Record]:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            records = await cluster.records(JOURNAL)
            written = {each.key: each.value for each in records}
            if all(group.last_told() == written.get(group.name.encode()) for group in groups):
                return records


# --- many events --------------------------------------------------------------------------------------------


def generate_many(events: int, path: Path, seed: int | None = None, processes: int = 2) -> int:
    """Write at least `events` entries to a Parquet file with the columns of the bronze table; return their
    number. Each process drives its own clusters, whose shards are numbered after those of the others."""
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    print(f"journal generator: seed {seed} for all", file=sys.stderr)
    import pyarrow
    from pyarrow import parquet

    schema = pyarrow.schema(
        [("key", "binary"), ("value", "binary"), ("partition", "int32"), ("offset", "int64")]
    )
    found, clusters = 0, 0
    with (
        ProcessPoolExecutor(processes, get_context("spawn")) as pool,
        parquet.ParquetWriter(path, schema) as out,
    ):
        for number in count(0, processes):
            batch = [
                pool.submit(_one_cluster, seed + each, f"c{each}-")
                for each in range(number, number + processes)
            ]
            for each in batch:
                rows = [
                    (key, value, clusters * SHARDS + partition, offset)
                    for key, value, partition, offset in each.result()
                ]
                clusters += 1
                found += len(rows)
                columns = [list(column) for column in zip(*rows, strict=True)]
                out.write_table(pyarrow.table(columns, schema=schema))
                print(f"{found:,} events", file=sys.stderr)
            if found >= events:
                return found
    raise AssertionError("not reached")


def _one_cluster(seed: int, prefix: str) -> list[tuple[bytes | None, bytes, int, int]]:
    """Generate about ten thousand events."""
    return asyncio.run(
        generate(12, 10_000 // _EVENTS_A_STEP, seed, members=8, prefix=prefix, asked=False)
    ).rows()


if __name__ == "__main__":
    began = time.monotonic()
    made = generate_many(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
    print(f"{made:,} events in {time.monotonic() - began:.0f} s")
