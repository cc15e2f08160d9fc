"""Moves the time of the brokers of one process, so that a test need not wait.

A move goes from deadline to deadline: to the next timer of groups and topics, or to where a lease or a
registration of a dead or paused broker expires. There everything that falls due happens, becomes durable and
is reported to whoever waits for it, before time moves on. So deadlines come in order, and each sees its own
time.

- *Clients are not heard meanwhile.* Their clocks stand still, so they could not act in time anyway, and what
  they send while time moves would fall between two deadlines by chance. Responses go out; what clients send
  is read when the move is over.
- *Members are presumed alive* while their connections are open (`Shard.presume_alive`), unless they are late,
  or are marked stalled, or everything is to expire. Members not heard from since their shard was loaded are,
  too, if a connection to any of the brokers has their client id.
- *Live brokers count as having renewed* their leases and registrations; dead and paused ones do not, and
  nobody waits for their answers.
- *Connections stay in real time*, with their idle timers: a live client must not be cut off.
- *Periodic work* does not run a thousand times for a week. Retention and compaction of logs run once, at the
  end of the move: what they remove depends on the time alone, not on how often they ran before (except that
  compaction counts delete.retention.ms from when it first met a tombstone). The sweep for offsets past their
  retention runs when the first one is (`Shard.skip_sweeps`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from muster.coordinator.base.movable_clock import MovableClock
from muster.coordinator.base.step import Step
from muster.coordinator.group.shard import Shard
from muster.coordinator.runtime.machine import Notice
from muster.coordinator.runtime.runtime import Runtime
from muster.coordinator.runtime.shard_host import HostState, ShardHost
from muster.coordinator.server.broker import Broker
from muster.coordinator.storage.store import Ageing, StoreClosed

REST_S: Final = 15.0
"""Maximum real time until all is at rest; a store that hangs or fails is not waited for any longer."""
MOVE_S: Final = 40.0
"""How long a whole move may take, in real time."""
_TURNS: Final = 50
"""Turns of the loop that are checked one by one; whatever takes longer waits for a disk or a thread."""
_LOOK_AGAIN_S: Final = 0.001


class ClockFixed(RuntimeError):
    """The clock of these brokers cannot be moved. The text says why."""


class NotAtRest(TimeoutError):
    """A move ended early, since what was due did not happen or did not become durable. The text says what
    failed or is still under way. The clock stays where it stopped."""


class Advancing:
    """Moves the clock of `brokers`, which returns the running ones. Belongs to their loop."""

    def __init__(
        self,
        clock: MovableClock,
        store: Ageing,
        brokers: Callable[[], Sequence[Broker]],
        *,
        rest_s: float = REST_S,
        move_s: float = MOVE_S,
    ) -> None:
        self._clock = clock
        self._store = store
        self._brokers = brokers
        self._rest_s = rest_s
        self._move_s = move_s
        self._moving = asyncio.Lock()
        self._stalled: set[tuple[str, str]] = set()
        self._ended = False

    def __repr__(self) -> str:
        return f"<Advancing {self._clock!r} stalled={len(self._stalled)}>"

    async def advance(self, ms: int, *, expire_all: bool = False) -> None:
        """Let `ms` pass, and return when all that fell due has happened and is durable.

        With `expire_all` nobody is presumed alive. Concurrent moves run one after the other. Raises
        ValueError if `ms` is negative. Raises NotAtRest, or StoreClosed if the brokers are stopped meanwhile:
        then only a part of the time has passed.
        """
        if ms < 0:
            raise ValueError(f"the clock cannot go back: {ms} ms")
        async with self._moving:
            for _ in range(2):
                # First hear what sockets have to report, such as that a client has died.
                await asyncio.sleep(0)
            move = _Move(
                self._clock,
                self._store,
                self._brokers,
                self._check_running,
                None if expire_all else frozenset(self._stalled),
                rest_s=self._rest_s,
                move_s=self._move_s,
            )
            by_ms = ms  # a part of it may have passed by itself
            try:
                await move.make(ms)
            except BaseException:
                by_ms = move.moved_ms
                move.call_off()
                raise
            finally:
                now_ms = self._clock.now_ms()
                for broker in self._brokers():
                    broker.partitions.resume_upkeep()
                    broker.connections.unmute()
                    if by_ms:
                        broker.note("clock_moved", {"by_ms": by_ms}, at_ms=now_ms)

    def stall(self, group_id: str, member_id: str) -> None:
        """From now on the member does not count as alive while time moves. Raises LookupError if no running
        broker has it."""
        for broker in self._brokers():
            for host in broker.runtime.hosts():
                if host.machine is None or not broker.runtime.serving(host.lease):
                    continue
                group = host.machine.groups.get(group_id)
                if group is not None and any(each.member_id == member_id for each in group.identities()):
                    self._stalled.add((group_id, member_id))
                    return
        raise LookupError(f"group {group_id!r} has no member {member_id!r}")

    def unstall(self, group_id: str, member_id: str) -> None:
        """Undo `stall`; harmless without it."""
        self._stalled.discard((group_id, member_id))

    def end(self) -> None:
        """The brokers stop: end a move that is under way."""
        self._ended = True

    def _check_running(self) -> None:
        if self._ended:
            raise StoreClosed("the brokers were stopped while the clock was being advanced")


def _runtimes(brokers: Iterable[Broker]) -> Iterator[tuple[Broker, Runtime[Any]]]:
    for broker in brokers:
        yield broker, broker.runtime
        yield broker, broker.transaction_runtime


class _Move:
    """One move. `stalled` are the (group, member) that do not count as alive; None: nobody does."""

    def __init__(
        self,
        clock: MovableClock,
        store: Ageing,
        brokers: Callable[[], Sequence[Broker]],
        check_running: Callable[[], None],
        stalled: frozenset[tuple[str, str]] | None,
        *,
        rest_s: float,
        move_s: float,
    ) -> None:
        self.moved_ms = 0
        self._clock = clock
        self._store = store
        self._brokers = brokers
        self._check_running = check_running
        self._stalled = stalled
        self._rest_s = rest_s
        self._loop = asyncio.get_running_loop()
        self._until_s = self._loop.time() + move_s
        self._end_ms = 0
        self._stops: dict[Runtime[Any], int] = {}
        self._told: dict[ShardHost[Shard], int] = {}
        """Number of steps that each host had made when it was told."""

    async def make(self, ms: int) -> None:
        self._hold()
        self._stops = {runtime: runtime.stops for _, runtime in _runtimes(self._brokers())}
        await self._rest()
        self._end_ms = self._clock.now_ms() + ms
        while True:
            self._hold()
            if self._tell():
                await self._rest()
            next_ms = self._next_ms()
            self._go_to(next_ms)
            if next_ms >= self._end_ms:
                break
            await self._rest()
        for broker in self._live():
            await broker.partitions.sweep_quietly()
        await self._rest()
        for broker in self._live():
            broker.runtime.flush()
        await self._rest()

    def call_off(self) -> None:
        """The end will not come: members that were presumed alive until then get a session from now on."""
        for host in self._told:
            host.tell(lambda shard, step: shard.presume_alive(step.now_ms, (), step))

    def _live(self) -> list[Broker]:
        return [broker for broker in self._brokers() if not broker.paused]

    def _hold(self) -> None:
        """Repeated in each round, for brokers that were started meanwhile."""
        for broker in self._brokers():
            broker.connections.mute()
            broker.partitions.hold_upkeep()

    # --- rounds ---------------------------------------------------------------------------------------------

    def _tell(self) -> bool:
        """Tell the shards what to ignore until the end; whether there was any to tell."""
        told = False
        for broker in self._live():
            for host in broker.runtime.hosts():
                if host.state is HostState.ACTIVE and self._told.get(host) != host.steps:
                    host.tell(self._notice(host, first=host not in self._told))
                    told = True
        return told

    def _notice(self, host: ShardHost[Shard], *, first: bool) -> Notice[Shard]:
        stalled = self._stalled if first else None

        def notice(shard: Shard, step: Step) -> None:
            self._told[host] = host.steps + 1
            if stalled is not None:
                shard.presume_alive(self._end_ms, stalled, step, clients=self._clients())
            shard.skip_sweeps(self._end_ms, step.now_ms)

        return notice

    def _next_ms(self) -> int:
        """Where to move time next: to the next deadline or to the end."""
        now_ms = self._clock.now_ms()
        deadline_ms = self._clock.next_ms()
        runs_out_ms = self._store.runs_out_in(self._live_ids())
        return min(
            self._end_ms,
            self._end_ms if deadline_ms is None else max(deadline_ms, now_ms),
            self._end_ms if runs_out_ms is None else now_ms + runs_out_ms,
        )

    def _go_to(self, when_ms: int) -> None:
        by_ms = self._clock.move_to(when_ms)
        self.moved_ms += by_ms
        if by_ms:
            for broker in self._brokers():
                if broker.paused:
                    broker.missed(by_ms)
        # Even by 0 ms: what expired may have done so by itself, a moment ago.
        self._store.let_pass(by_ms, self._live_ids())

    def _live_ids(self) -> set[int]:
        return {broker.node_id for broker in self._live()}

    def _clients(self) -> set[str]:
        """The client ids of all connections."""
        return {each.client_id for broker in self._brokers() for each in broker.connections.open.values()}

    # --- coming to rest -------------------------------------------------------------------------------------

    async def _rest(self) -> None:
        """Return when everything that was started has finished.

        Whatever can be under way reports it; what a turn of the loop starts shows in the next. Raises
        NotAtRest and StoreClosed.
        """
        turns = quiet = 0
        until_s = min(self._loop.time() + self._rest_s, self._until_s)
        while quiet < 2:
            await asyncio.sleep(0 if turns < _TURNS else _LOOK_AGAIN_S)
            self._check_running()
            turns += 1
            under_way = next(self._under_way(), None)
            quiet = quiet + 1 if under_way is None else 0
            if self._loop.time() >= until_s:
                raise self._not_at_rest(under_way or "deadlines keep falling due")
        # What a shard was doing when it stopped is not durable, and is forgotten once it is loaded again.
        for broker, runtime in _runtimes(self._live()):
            if runtime.stops > self._stops.get(runtime, 0):
                raise self._not_at_rest(f"broker {broker.node_id}: {runtime.last_stop}")

    def _not_at_rest(self, why: str) -> NotAtRest:
        left_ms = max(self._end_ms - self._clock.now_ms(), 0)
        return NotAtRest(f"the clock stopped {left_ms} ms short: {why}")

    def _under_way(self) -> Iterator[str]:
        live_ids = self._live_ids()
        for broker in self._live():
            for what in broker.under_way(live_ids):
                yield f"broker {broker.node_id}: {what}"
