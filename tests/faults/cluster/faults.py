"""What a drill does to its cluster. Each fault strikes, lasts, and is over when the function returns; then
the cluster has to recover by itself.

If one broker is struck and the others can go on, they must serve its groups and partitions while the fault
lasts.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, Protocol

from tests.faults.cluster.cuts import CLIENTS
from tests.faults.cluster.lab import DATABASE, NODES, TERM_S, Lab
from tests.faults.cluster.setting import REQUEST_TIMEOUT_MS
from tests.faults.cluster.zombie import Zombie

CLOCK_AHEAD_MAX_S: Final = 86_400.0
"""Far less than retention, which follows the clock as in Kafka."""
CLOCK_BEHIND_MAX_S: Final = 3_000.0
"""message.timestamp.after.max.ms is an hour: a broker whose clock is further behind rejects clients'
records."""


class Struck(Protocol):
    """The parts of the drill that a fault needs."""

    lab: Lab
    dice: Random
    bound_s: float

    def say(self, said: str) -> None:
        """Describe exactly what is done."""

    async def taken_over(self) -> None:
        """Wait until everybody is served, whatever has been struck since this round began."""

    async def whole(self) -> None:
        """Wait until all brokers are alive and agree."""

    async def last(self, seconds: float) -> None:
        """Let the fault last, while clients work."""


Fault = Callable[[Struck], Awaitable[None]]


async def kill(drill: Struck) -> None:
    """kill -9; the broker comes back at once, or after the others have taken over."""
    broker = drill.lab.brokers[drill.dice.choice(NODES)]
    at_once = drill.dice.random() < 0.3
    drill.say(f"broker {broker.node}{', which comes back at once' if at_once else ''}")
    broker.kill()
    if not at_once:
        await drill.taken_over()
    broker.begin()
    await broker.ready()


async def pause(drill: Struck) -> None:
    """SIGSTOP past the lease, then SIGCONT: it finds a commit in its socket when it wakes up."""
    broker = drill.lab.brokers[drill.dice.choice(NODES)]
    drill.say(f"broker {broker.node}")
    zombie = await Zombie.begin(broker.node, drill.bound_s)
    broker.signal(signal.SIGSTOP)
    await zombie.ask()
    await drill.taken_over()
    await zombie.overtake(drill.bound_s)
    broker.signal(signal.SIGCONT)
    await zombie.check(drill.bound_s)


async def cut_database(drill: Struck) -> None:
    """A broker and the database are cut off from each other, past the lease or for a moment."""
    await _cut_database(drill, lambda node: drill.lab.cuts.both_ways(node, DATABASE))


async def cut_to_database(drill: Struck) -> None:
    """The same, but the broker still hears the database."""
    await _cut_database(drill, lambda node: drill.lab.cuts.one_way(node, DATABASE))


async def cut_from_database(drill: Struck) -> None:
    """The same, but the database still hears the broker: it executes what nobody learns the outcome of."""
    await _cut_database(drill, lambda node: drill.lab.cuts.one_way(DATABASE, node))


async def _cut_database(drill: Struck, cut: Callable[[int], None]) -> None:
    node = drill.dice.choice(NODES)
    moment = drill.dice.uniform(0.3, TERM_S / 2) if drill.dice.random() < 0.25 else None
    drill.say(f"broker {node}{'' if moment is None else f' for {moment:.1f} s'}")
    cut(node)
    if moment is None:
        await drill.taken_over()
    else:
        await drill.last(moment)
    drill.lab.cuts.mend()


async def cut_clients(drill: Struck) -> None:
    """A broker and the clients are cut off from each other. It keeps its leases, so its groups wait."""
    await _cut_clients(drill, lambda node: drill.lab.cuts.both_ways(node, CLIENTS))


async def cut_to_clients(drill: Struck) -> None:
    """The same, but the broker still hears the clients: it executes what nobody learns the outcome of."""
    await _cut_clients(drill, lambda node: drill.lab.cuts.one_way(node, CLIENTS))


async def cut_from_clients(drill: Struck) -> None:
    """The same, but clients still hear the broker."""
    await _cut_clients(drill, lambda node: drill.lab.cuts.one_way(CLIENTS, node))


async def _cut_clients(drill: Struck, cut: Callable[[int], None]) -> None:
    node = drill.dice.choice(NODES)
    seconds = drill.dice.uniform(1, REQUEST_TIMEOUT_MS / 1000 + 2)
    drill.say(f"broker {node} for {seconds:.1f} s")
    cut(node)
    await drill.last(seconds)
    drill.lab.cuts.mend()


async def unplug(drill: Struck) -> None:
    """A broker's cable is pulled: it loses the database, the clients and the other brokers."""
    node = drill.dice.choice(NODES)
    drill.say(f"broker {node}")
    drill.lab.network.unplug(node)
    await drill.taken_over()
    drill.lab.network.plug(node)


async def restart_database(drill: Struck) -> None:
    """The database stops, cleanly or not, and starts again."""
    crash = drill.dice.random() < 0.5
    drill.say("crash" if crash else "restart")
    if crash:
        await asyncio.to_thread(drill.lab.postgres.kill)
        await drill.last(drill.dice.uniform(0, TERM_S))
        await asyncio.to_thread(drill.lab.postgres.start)
    else:
        await asyncio.to_thread(drill.lab.postgres.restart)


async def pause_database(drill: Struck) -> None:
    """The database is paused, for longer than the leases last or not."""
    longer = drill.dice.random() < 0.5
    seconds = drill.dice.uniform(TERM_S + 1, 2 * TERM_S) if longer else drill.dice.uniform(0.5, TERM_S - 0.5)
    drill.say(f"{seconds:.1f} s")
    drill.lab.postgres.pause()
    await drill.last(seconds)
    drill.lab.postgres.resume()


async def jump_clock(drill: Struck) -> None:
    """A broker's wall clock jumps ahead or back, and later returns: only the dates of records follow it,
    where it is ahead."""
    broker = drill.lab.brokers[drill.dice.choice(NODES)]
    ahead = drill.dice.random() < 0.5
    seconds = drill.dice.uniform(60, CLOCK_AHEAD_MAX_S if ahead else CLOCK_BEHIND_MAX_S)
    drill.say(f"broker {broker.node} by {seconds if ahead else -seconds:+.0f} s")
    broker.set_clock(seconds if ahead else -seconds)
    await drill.last(TERM_S + 1)
    await drill.taken_over()
    broker.set_clock(0)
    await drill.last(1)


async def rolling_restart(drill: Struck) -> None:
    """Every broker is shut down cleanly and restarted, one after the other."""
    order = drill.dice.sample(NODES, len(NODES))
    drill.say(f"brokers {', '.join(map(str, order))}")
    for node in order:
        broker = drill.lab.brokers[node]
        await broker.stop()
        broker.begin()
        await broker.ready()
        await drill.whole()


FAULTS: Final[dict[str, Fault]] = {
    each.__name__.replace("_", "-"): each
    for each in (
        kill,
        pause,
        cut_database,
        cut_to_database,
        cut_from_database,
        cut_clients,
        cut_to_clients,
        cut_from_clients,
        unplug,
        restart_database,
        pause_database,
        jump_clock,
        rolling_restart,
    )
}

SETS_CLOCKS: Final = frozenset({"jump-clock"})
"""Faults that need a lab whose brokers have separate clocks."""
