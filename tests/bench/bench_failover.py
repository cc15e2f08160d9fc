"""How long groups are without a coordinator when the process of their broker is killed.

`python -m tests.bench failover`

Three broker processes over PostgreSQL, started anew for each number of groups. All of these groups are on the
broker that is killed, each with one member that heartbeats and commits every three seconds, as Kafka's
consumers do by default; the members share some connections. A member that loses its connection asks for its
coordinator again and again, with the pauses of the Java client (0.1 s at first, 1 s at last), and heartbeats
as soon as it has found it: so up to a second of each figure is the client's own pause.

The time counts from the signal to the heartbeat that is answered last. A heartbeat is answered while a shard
still loads, so the note says when the last commit was acknowledged; what had been acknowledged before is read
back.
"""

from __future__ import annotations

import asyncio
import math
import signal
import statistics
import time
from typing import Any, Final

from muster.coordinator.cluster.placement import GROUP_SHARDS, shard_of
from muster.protocol.messages.topics import CreateTopicsRequest
from tests.bench import cluster, database, load, processes
from tests.bench.figures import Figure
from tests.bench.followers import TOPIC, Brokers, Follower, gather_all

TERM_S: Final = 3.0
"""The default of --lease-term-ms."""
ROUNDS: Final = {1: 3, 100: 3, 5_000: 1}
"""How often each number of groups is tried; the longest counts."""
BEYOND_TERM_S: Final = {100: 2.0, 5_000: 5.0}
INTERVAL_S: Final = 3.0
"""heartbeat.interval.ms of Kafka's consumers."""
CONNECTIONS: Final = 10
"""To each broker."""
VICTIM: Final = 2
_JOINS_AT_ONCE: Final = 200
_SECONDS_MAX: Final = 60.0


async def _follow(ports: dict[str, int], groups: int, prefix: str, ready: str) -> dict[str, Any]:
    brokers = Brokers({int(node_id): port for node_id, port in ports.items()})
    link = await brokers.connection(VICTIM)
    topic = CreateTopicsRequest.CreatableTopic(
        name=TOPIC, num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    await link.call(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 7)
    here = {number for number, node_id in (await cluster.shards(brokers)).items() if node_id == VICTIM}
    names = (f"{prefix}-{number}" for number in range(groups * GROUP_SHARDS))
    on_victim = [name for name in names if shard_of(name) in here][:groups]
    members = [Follower(brokers, name, index % CONNECTIONS) for index, name in enumerate(on_victim)]
    some = asyncio.Semaphore(_JOINS_AT_ONCE)

    async def begin(member: Follower) -> None:
        async with some:
            await member.join()
            await member.heartbeat()
            await member.commit()

    await asyncio.gather(*map(begin, members))
    assert all(member.node_id == VICTIM for member in members), "a shard moved before anything was killed"
    for member in members:
        member.forget()
    generations = [member.generation_id for member in members]
    keeping = [asyncio.create_task(member.keep(INTERVAL_S, commits=True)) for member in members]
    await asyncio.sleep(INTERVAL_S + 1)
    processes.tell(ready)
    await gather_all(keeping, asyncio.ensure_future(_moved(members)))
    for task in keeping:
        task.cancel()
    await asyncio.gather(*keeping, return_exceptions=True)
    # A commit that was cancelled on its way may have arrived: at least what was acknowledged has to be there.
    kept = await asyncio.gather(*(member.committed() for member in members))
    brokers.close()
    # Who was at a commit when the broker died has that answered first, and keeps its session by it.
    beats = [_first_elsewhere(sorted(member.beats + member.commits)) or math.inf for member in members]
    return {
        "last_s": max(beats),
        "median_s": statistics.median(beats),
        "commit_s": max(_first_elsewhere(member.commits) or math.inf for member in members),
        "rebalanced": sum(
            member.generation_id != before for member, before in zip(members, generations, strict=True)
        ),
        "lost": sum(member.offset > offset for member, offset in zip(members, kept, strict=True)),
    }


async def _moved(members: list[Follower]) -> None:
    """Return when each member has heartbeat and committed at another broker."""
    async with asyncio.timeout(_SECONDS_MAX):
        while any(  # noqa: ASYNC110  # a look now and then is cheaper than an event for each heartbeat
            _first_elsewhere(member.beats) is None or _first_elsewhere(member.commits) is None
            for member in members
        ):
            await asyncio.sleep(0.1)


def _first_elsewhere(answered: list[tuple[float, int]]) -> float | None:
    return next((when_s for when_s, node_id in answered if node_id != VICTIM), None)


def follow(ports: dict[str, int], groups: int, prefix: str, ready: str) -> dict[str, Any]:
    """In the load's process: when the groups' first heartbeats and commits were answered by another broker,
    by `time.monotonic`, how many groups rebalanced and how many lost a commit."""
    return load.run(_follow(ports, groups, prefix, ready))


def _kill(url: str, groups: int, rounds: int) -> list[dict[str, float]]:
    found = []
    with cluster.brokers(url, "--lease-term-ms", str(int(TERM_S * 1000))) as served:
        ports = cluster.ports(served)
        for number in range(rounds):
            with processes.signal() as ready:
                following = processes.start_load(
                    follow, ports=ports, groups=groups, prefix=f"bench-{number}", ready=str(ready)
                )
                processes.wait_for(ready, following)
                killed_s = time.monotonic()
                served[VICTIM].process.send_signal(signal.SIGKILL)
                said = processes.finish_load(following)
            served[VICTIM].kill()  # waits for what is dead already
            found.append({name: said[name] - (killed_s if name.endswith("_s") else 0) for name in said})
            if number + 1 < rounds:
                served[VICTIM].start()
                cluster.settle(ports)
    return found


def measure() -> list[Figure]:
    figures = []
    worst_of: dict[str, float] = {"rebalanced": 0, "lost": 0}
    with database.server() as postgres:
        for groups, rounds in ROUNDS.items():
            found = _kill(postgres.new_database(), groups, rounds)
            for each in found:
                print(
                    f"   {groups:,} groups: last heartbeat after {each['last_s']:.2f} s (median "
                    f"{each['median_s']:.2f}), last commit {each['commit_s']:.2f}, "
                    f"{each['rebalanced']:g} rebalanced, {each['lost']:g} lost a commit",
                    flush=True,
                )
            worst = max(found, key=lambda each: each["last_s"])
            for name in worst_of:
                worst_of[name] += sum(each[name] for each in found)
            beyond_s = BEYOND_TERM_S.get(groups)
            figures.append(
                Figure(
                    f"kill -9 to the last of {groups:,} group{'s' * (groups > 1)} heartbeating",
                    "s",
                    worst["last_s"],
                    TERM_S,
                    "the lease term",
                    target="" if beyond_s is None else f"at most the term + {beyond_s:g} s",
                    reached=None if beyond_s is None else worst["last_s"] <= TERM_S + beyond_s,
                    note=f"the longest of {rounds}; median of its groups {worst['median_s']:.2f} s; the last "
                    f"commit acknowledged again after {max(each['commit_s'] for each in found):.2f} s",
                )
            )
    return [
        *figures,
        Figure(
            "groups that rebalanced",
            "",
            worst_of["rebalanced"],
            target="none",
            reached=not worst_of["rebalanced"],
        ),
        Figure(
            "groups that lost a commit",
            "",
            worst_of["lost"],
            target="none",
            reached=not worst_of["lost"],
        ),
    ]
