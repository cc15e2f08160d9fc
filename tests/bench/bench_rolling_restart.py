"""Three brokers are restarted one after the other, in order (SIGTERM), under 1,000 members.

`python -m tests.bench rolling_restart`

Broker processes over PostgreSQL; 100 groups of ten members, each with connections of its own, which heartbeat
and commit once a second and follow their coordinator as stock clients do. Each broker is told to end, is
started again when it has ended, and the next one follows when the shards are back. So every shard is handed
over once or more, to a broker that stays and to one that has come back. The floor is the same with nothing
restarted. `bench_handover` says how long a single shard is served by nobody.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NoReturn

from muster.protocol.messages.topics import CreateTopicsRequest
from tests.bench import cluster, database, load, processes
from tests.bench.figures import Figure
from tests.bench.followers import TOPIC, Brokers, Follower, gather_all

GROUPS: Final = 100
GROUP_MEMBERS: Final = 10
INTERVAL_S: Final = 1.0
QUIET_S: Final = 5.0
"""How long the floor is measured, and what passes after the last restart."""
DELAY_MS: Final = 2_000
"""Of initial rebalances: the members of a group come together."""
_FORMED_SECONDS_MAX: Final = 60.0
_RESTARTS_SECONDS_MAX: Final = 120.0


async def _live(member: Follower) -> NoReturn:
    await member.join()
    await member.keep(INTERVAL_S, commits=True)


async def _formed(members: list[Follower]) -> None:
    """Return when all members of each group are in one generation, and heartbeat in it."""
    groups: dict[str, list[Follower]] = {}
    for member in members:
        groups.setdefault(member.group_id, []).append(member)

    def formed(group: list[Follower]) -> bool:
        return (
            len({member.generation_id for member in group}) == 1
            and any(member.group_size == GROUP_MEMBERS for member in group)
            and all(member.beats for member in group)
        )

    async with asyncio.timeout(_FORMED_SECONDS_MAX):
        while not all(map(formed, groups.values())):  # noqa: ASYNC110  # a benchmark, and no event to wait for
            await asyncio.sleep(0.1)


async def _follow(ports: dict[str, int], ready: str, over: str) -> dict[str, Any]:
    brokers = Brokers({int(node_id): port for node_id, port in ports.items()})
    link = await brokers.connection(1)
    topic = CreateTopicsRequest.CreatableTopic(
        name=TOPIC, num_partitions=GROUP_MEMBERS, replication_factor=1, assignments=[], configs=[]
    )
    await link.call(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 7)
    members = [
        Follower(brokers, f"bench-{number // GROUP_MEMBERS}", 1 + number, partition=number % GROUP_MEMBERS)
        for number in range(GROUPS * GROUP_MEMBERS)
    ]
    living: list[asyncio.Task[Any]] = [asyncio.create_task(_live(member)) for member in members]
    await gather_all(living, asyncio.ensure_future(_formed(members)))
    await asyncio.sleep(2 * INTERVAL_S)  # the groups' last rebalance is not counted
    generations = [member.generation_id for member in members]
    for member in members:
        member.forget()
    processes.tell(ready)
    await gather_all(living, asyncio.ensure_future(_made(Path(over))))
    ended_s = time.monotonic()
    for task in living:
        task.cancel()
    await asyncio.gather(*living, return_exceptions=True)
    kept = await asyncio.gather(*(member.committed() for member in members))
    brokers.close()
    refusals: Counter[str] = Counter()
    for member in members:
        refusals += member.refusals
    return {
        "gap_s": max(_longest_gap(member, ended_s) for member in members),
        "rebalanced": len(
            {
                member.group_id
                for member, before in zip(members, generations, strict=True)
                if member.generation_id != before
            }
        ),
        "lost": sum(member.offset > offset for member, offset in zip(members, kept, strict=True)),
        "refusals": dict(refusals),
    }


def _longest_gap(member: Follower, ended_s: float) -> float:
    """Between answered heartbeats, and after the last one, in seconds."""
    times_s = [when_s for when_s, _ in member.beats]
    return max(after_s - before_s for before_s, after_s in pairwise([*times_s, ended_s]))


async def _made(path: Path) -> None:
    async with asyncio.timeout(_RESTARTS_SECONDS_MAX):
        while not path.exists():  # noqa: ASYNC110, ASYNC240  # another process makes it
            await asyncio.sleep(0.05)


def follow(ports: dict[str, int], ready: str, over: str) -> dict[str, Any]:
    """In the load's process, until the file `over` is there."""
    return load.run(_follow(ports, ready, over))


def _run(url: str, *, restarting: bool) -> dict[str, Any]:
    """What the members say, and how long the restarts took together."""
    with (
        cluster.brokers(url, "--group-initial-rebalance-delay-ms", str(DELAY_MS)) as served,
        processes.signal() as ready,
        processes.signal() as over,
    ):
        ports = cluster.ports(served)
        following = processes.start_load(follow, ports=ports, ready=str(ready), over=str(over))
        processes.wait_for(ready, following)
        began = time.monotonic()
        if restarting:
            for node_id, broker in served.items():
                stopping_s = time.monotonic()
                code = broker.stop()
                stopped_s = time.monotonic()
                broker.start()
                started_s = time.monotonic()
                cluster.settle(ports)
                back_s = time.monotonic()
                print(
                    f"   broker {node_id} ended with {code} after {stopped_s - stopping_s:.2f} s, was ready "
                    f"{started_s - stopped_s:.2f} s later, and settled {back_s - started_s:.2f} s after that",
                    flush=True,
                )
        took_s = time.monotonic() - began
        time.sleep(QUIET_S)
        processes.tell(str(over))
        found: dict[str, Any] = processes.finish_load(following)
    return found | {"took_s": took_s}


def measure() -> list[Figure]:
    with database.server() as postgres:
        floor = _run(postgres.new_database(), restarting=False)
        found = _run(postgres.new_database(), restarting=True)
    refused = ", ".join(f"{count} {name}" for name, count in sorted(found["refusals"].items()))
    members = GROUPS * GROUP_MEMBERS
    return [
        Figure(
            "groups that rebalanced",
            "",
            found["rebalanced"],
            target="none",
            reached=not found["rebalanced"],
            note=f"of {GROUPS} with {members:,} members; three restarts took {found['took_s']:.1f} s; "
            f"members met: {refused or 'nothing'}",
        ),
        Figure(
            "commits lost",
            "",
            found["lost"],
            target="none",
            reached=not found["lost"],
        ),
        Figure(
            "longest time without a heartbeat answered, of any member",
            "s",
            found["gap_s"],
            floor["gap_s"],
            "nothing restarted",
            note=f"heartbeats are sent every {INTERVAL_S:g} s",
        ),
    ]
