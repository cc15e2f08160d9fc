"""One node of a cluster: registers it, claims and keeps what placement gives it, hands over on leaving."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Mapping, Set
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

from muster.coordinator.base.clock import Clock, Timer
from muster.coordinator.base.log import Logger
from muster.coordinator.cluster.handover import Handovers
from muster.coordinator.cluster.lease import (
    HeldLeases,
    Moves,
    Plan,
    Standing,
    Wanted,
    home,
    placeable,
    without_transactions,
)
from muster.coordinator.cluster.topology import Topology
from muster.coordinator.cluster.worker import Alarm, Worker
from muster.coordinator.storage.store import (
    Grant,
    Lease,
    LeaseKind,
    NodeIdTaken,
    NodeRow,
    Replicas,
    Store,
    StoreClosed,
    StoreCounts,
    StoreDamaged,
    StoreError,
    StoreRefused,
)

T = TypeVar("T")

TERM_MS_DEFAULT: Final = 3_000
"""How long a broker that died keeps its shards before another may take them."""
CLAIMS_MAX: Final = 32
"""Leases claimed in one call to the store; a slow call must not hold up many."""
MOVES_AT_ONCE: Final = 8
"""Leases that a node gives up at a time, for a joining node or when it leaves."""
START_WAIT_MS: Final = 1_000
"""How long `announced` waits for leases claimed at the start to be loaded."""
LATE_RENEWALS_MAX: Final = 1
"""Renewals of an earlier registration that a start tolerates. One may reach the store after its sender has
died, delayed by the database or the network before it. Whoever renews again is alive."""

_HEARD_MAX: Final = 1_000
"""Nodes for which the last registration is remembered."""


class LeaseHolder(Protocol):
    """Serves the leases of one kind: the group runtime, the partitions."""

    def own(self, number: int, epoch: int) -> Awaitable[object] | None:
        """Begin to serve; if `number` is already served, begin again under the new epoch.

        The awaitable is done when the state kept under the lease is loaded, and cancelled when that is no
        longer wanted; None: it serves at once.
        """

    def disown(self, number: int, why: str) -> Awaitable[object]:
        """Stop serving now; `why` is for the journal. The awaitable is done when nothing is written under the
        lease any more."""


class _Reading(NamedTuple):
    """What the store said when it was asked at `seen_ms`."""

    nodes: Mapping[int, NodeRow]
    holders: Mapping[Lease, Grant]
    replicas: Mapping[Lease, Replicas]
    seen_ms: int


class Membership:
    """The leases and the registration of one node. Implements `lease.LeaseKeeper`.

    Registration and leases are renewed every third of the term, beside everything else: a slow claim costs no
    lease. A node stops serving a lease `margin_ms` before the store could give it away, by its own clock,
    whether or not it can reach the store. Changes in the store are seen when the store reports them, at the
    next renewal at the latest, and the expiry of another node's lease when it happens.

    A claimed lease is announced when its holder has loaded it; only then are clients sent here. Leases that
    placement gives to another node are given up, `MOVES_AT_ONCE` at a time; the next follow when those have
    been announced there.

    A node that has been registered for a lease term and could not read or claim leases in that time stands
    aside: for the others it is drained, so they claim what it lacks. It keeps what it holds, goes on trying,
    and comes back once that has worked for a term without a failure.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        term_ms: int = TERM_MS_DEFAULT,
        margin_ms: int | None = None,
        pins: Mapping[Lease, int] | None = None,
        log: Logger | None = None,
    ) -> None:
        """`clock` must run at the speed of the store's: real time where that is real. `pins` are leases that
        one node should hold while it is there, whatever placement says; every node must be given the same
        pins, and `place_again` must be called on each when they change."""
        self._store = store
        self._clock = clock
        self._pins = {} if pins is None else pins
        self._term_ms = term_ms
        self._retry_ms = max(term_ms // 15, 1)
        self._log = log or Logger(part="cluster")
        self._held = HeldLeases(term_ms // 10 if margin_ms is None else margin_ms)
        self._moves = Moves(MOVES_AT_ONCE, term_ms)
        self._wanted = Wanted()
        self._standing = Standing(term_ms)
        self._reclaiming: set[Lease] = set()
        self._holders: Mapping[LeaseKind, LeaseHolder] = {}
        self._node: NodeRow | None = None
        self._drained = False
        self._running = False
        self._leaving = False
        self._killed = False
        self._counts: StoreCounts | None = None
        self._reading: _Reading | None = None
        self._last_nodes: Mapping[int, NodeRow] = {}  # of the last reading that had any
        self._heard_ms: dict[int, int] = {}  # when each node last registered, by our clock
        self._topology: Topology | None = None  # made from the reading on demand
        self._announced_epochs: dict[Lease, int] = {}
        self._renew_ms = 0
        self._check_again_ms: int | None = None
        self._said: int | None = None  # how many leases were held when last logged
        self._lapse_timer: Timer | None = None
        self._alarm = Alarm(clock)  # for whoever waits for leases to come or go
        self._renewing = Worker("renewing leases", clock, self._renew, self._retry_ms, self._log)
        self._placing = Worker("placing leases", clock, self._place, self._retry_ms, self._log)
        self._announcing = Worker("announcing leases", clock, self._announce, self._retry_ms, self._log)
        self._handovers = Handovers(store, clock, self._retry_ms, self._log, self._wake)
        self.superseded = asyncio.Event()
        """Set when another broker has taken this node id: nothing is served any more, nor will be."""
        self.superseded_by: NodeIdTaken | None = None
        self.cut_off = False
        """This node cannot reach the store, and its registration has expired: others have taken over, and it
        cannot tell who. Never true if no others are known."""
        self.changed: list[Callable[[], None]] = []
        """Called when `topology` or `cut_off` may have changed."""

    def __repr__(self) -> str:
        node = "not started" if self._node is None else f"node {self._node.node_id}"
        return f"<Membership {node} {self._held!r} {self._moves!r} resting={len(self._handovers)}>"

    # --- what others ask ------------------------------------------------------------------------------------

    @property
    def topology(self) -> Topology:
        """The last reading, updated with changes to this node's own leases since; there is one once `start`
        has returned.

        It always has nodes: if all of them, or the store, have stood still for a lease term, the last ones
        known will register again in a moment. Clients that were told of no broker would give up theirs, and
        librdkafka's would not find them again.
        """
        if self._topology is None:
            if self._reading is None:
                raise RuntimeError("the membership has not been started")
            nodes, holders, replicas, _ = self._reading
            nodes = nodes or self._last_nodes
            known = self._held.as_known(holders, self._self.node_id)
            of_live = {lease: grant for lease, grant in known.items() if grant.node_id in nodes}
            self._topology = Topology(
                self._known.cluster_id,
                nodes,
                of_live,
                self._known.leases,
                replicas,
                self._announced_epochs,
            )
        return self._topology

    @property
    def started(self) -> bool:
        """Whether there is a `topology`."""
        return self._reading is not None

    async def until(self, reached: Callable[[], bool], timeout_s: float) -> bool:
        """Whether `reached` is true, or becomes true in time; it is checked whenever the topology may have
        changed."""
        changed = asyncio.Event()
        self.changed.append(changed.set)
        try:
            async with asyncio.timeout(timeout_s):
                while not reached():
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            return False
        finally:
            self.changed.remove(changed.set)
        return True

    def serving(self, lease: Lease) -> bool:
        """Whether the lease is certainly this node's now."""
        return self._held.serving(lease, self._clock.now_ms())

    @property
    def at_rest(self) -> bool:
        """Whether no work on leases is under way, and all changes in the store have been looked at. Leases
        that are still loading are `unannounced`."""
        workers = self._renewing, self._placing, self._announcing, self._handovers
        return all(each.at_rest for each in workers)

    def unannounced(self) -> list[Lease]:
        """The leases that this node has claimed and not announced yet."""
        return [grant.lease for grant in self._held.grants() if not grant.announced]

    def epoch(self, lease: Lease) -> int | None:
        """The epoch under which this node serves the lease; None when it does not."""
        grant = self._held.grant(lease)
        return grant.epoch if grant is not None and self.serving(lease) else None

    def reclaim(self, lease: Lease, epoch: int) -> None:
        """The state kept under `epoch` is lost: claim again if the lease is still this node's. If it may not
        be, or this node is leaving, give it up."""
        grant = self._held.grant(lease)
        if grant is not None and grant.epoch == epoch:
            if self._leaving or not self.serving(lease):
                self._disown(lease, "its state was lost", release=grant)
                self._tell_changed()
            else:
                self._held.drop(lease)
                self._topology = None
                self._reclaiming.add(lease)
        self._placing.wake()

    @property
    def reclaiming(self) -> Set[Lease]:
        """See `LeaseKeeper`."""
        return self._reclaiming

    def begin_anew(self, lease: Lease, epoch: int) -> None:
        """Hold the lease under a higher epoch than `epoch`, as after a hand-over: what was served under it
        comes to rest before it is claimed again. Does nothing if it is not held, or under a higher one."""
        grant = self._held.grant(lease)
        if grant is not None and grant.epoch <= epoch:
            self._disown(lease, "its lease begins anew", release=grant)
            self._tell_changed()

    def silent_ms(self, node_id: int) -> int | None:
        """How long ago another node last registered, as far as was seen."""
        heard_ms = self._heard_ms.get(node_id)
        return None if heard_ms is None else max(self._clock.now_ms() - heard_ms, 0)

    def why_short(self, held: Container[Lease]) -> str | None:
        """Why this node lacks leases of its share that no other is about to give it; None if it does not.
        `held` are those that some node holds now."""
        if self._standing.aside:
            return "it could not claim shards, and leaves them to the other brokers until it can"
        # While nothing fails, what is free is about to be claimed.
        lacking = sum(lease not in held for lease in self._wanted.last) if self._standing.failing else 0
        return f"it cannot claim {lacking} shards that no broker has" if lacking else None

    def place_again(self) -> None:
        """Place leases again: the pins have changed."""
        self._wake()

    def set_drained(self, drained: bool) -> None:
        """A drained node takes no leases and hands over what it has, unless all nodes are drained. Harmless
        when repeated, and before the start."""
        self._drained = drained
        self._tell_drained()

    def _tell_drained(self) -> None:
        drained = self._drained or self._standing.aside
        if self._node is not None and self._node.drained != drained and not self._leaving:
            self._node = replace(self._node, drained=drained)
            self._renewing.wake()

    # --- life -----------------------------------------------------------------------------------------------

    async def register(self, node: NodeRow) -> None:
        """Make the node known to the others, so that nodes that start meanwhile leave its share alone.

        If a broker of the same id has died without leaving, waits for its registration to expire. Raises
        NodeIdTaken if that is renewed more than LATE_RENEWALS_MAX times meanwhile, and StoreError.
        """
        self._node = replace(node, term_ms=self._term_ms, drained=self._drained)
        ran_out_ms: int | None = None
        renewals = 0
        while True:
            try:
                await self._register()
                return
            except NodeIdTaken as taken:
                runs_out_ms = self._clock.now_ms() + taken.remaining_ms
                if ran_out_ms is None:
                    ran_out_ms = runs_out_ms
                    self._log.warning(
                        "waiting for an earlier registration of this node id to expire", why=str(taken)
                    )
                elif runs_out_ms > ran_out_ms + self._retry_ms:  # two clocks may differ by a little
                    ran_out_ms = runs_out_ms
                    renewals += 1
                    if renewals > LATE_RENEWALS_MAX:
                        raise
                await self._wait(runs_out_ms + 1)

    async def start(self, node: NodeRow, holders: Mapping[LeaseKind, LeaseHolder]) -> None:
        """Claim the free leases of this node's share, and keep doing so. Registers first if `register` has
        not been called.

        Returns with `topology` read and free leases claimed; `announced` waits for the rest. Leases that
        others must hand over follow. Nodes that start together should all be registered before the first of
        them starts, or it claims everything. Leases of kinds without a holder are left alone. Raises
        NodeIdTaken and other StoreErrors; `kill` a membership that did not start.
        """
        if self._node is None:
            await self.register(node)
        self._holders = dict(holders)
        self._counts = await self._store.counts()
        self._check_not_killed()
        self._store.changed.append(self._wake)
        self._running = True
        self._renewing.start(self._renew_ms)  # Many claims, or slow ones, may take longer than the term.
        self._announcing.start(None)
        self._handovers.start()
        try:
            while await self._claim_and_give_up():
                pass
        except BaseException:
            self._renewing.kill()  # The others must not wait for a node that does not serve.
            raise
        self._check_not_killed()
        self._placing.start(self._check_again_ms)

    async def announced(self) -> None:
        """Return when all that has been claimed is loaded and announced, or after START_WAIT_MS."""
        until_ms = self._clock.now_ms() + START_WAIT_MS
        while any(not grant.announced for grant in self._held.grants()) and self._clock.now_ms() < until_ms:
            await self._wait(until_ms)
        self._said = len(self._held)

    async def stop(self) -> None:
        """Leave: hand over as to a joining node, a few leases at a time, and serve the others meanwhile;
        leases that nobody is there to take are released at once. A node that has only registered is removed.
        What the store fails to do is tried again for a lease term, and only while the registration lasts;
        then raises StoreError."""
        if not self._running:
            if self._node is not None and not (self._leaving or self._killed):
                self._leaving = True
                await self._retried(self._remove)
            return
        self._leaving = True
        await self._placing.end()  # Waits for a claim under way: nobody would know of its leases.
        self._reclaiming.clear()
        await self._hand_over()
        # The registration before the rest, so that the others want the leases when they are released.
        await self._renewing.end()
        await self._retried(self._remove)
        for grant in self._held.grants():
            self._disown(grant.lease, "the broker was stopped", release=grant)
        await self._handovers.end()
        await self._announcing.end()
        self._end()

    def kill(self) -> None:
        """Die as a process does: release nothing, notify nobody. `register`, `start` or `stop`, if under way,
        raises StoreClosed."""
        self._killed = True
        self._alarm.ring()
        for each in (self._renewing, self._placing, self._announcing, self._handovers):
            each.kill()
        self._end()
        for grant in self._held.grants():
            self._held.drop(grant.lease)
        self._topology = None

    async def _wait(self, until_ms: int | None) -> None:
        """Wait until leases have come or gone, or until that time."""
        await self._alarm.wait(until_ms)
        self._check_not_killed()

    def _check_not_killed(self) -> None:
        if self._killed:
            raise StoreClosed("the broker was killed")

    def _end(self) -> None:
        if self._running:
            self._running = False
            self._store.changed.remove(self._wake)
        if self._lapse_timer is not None:
            self._lapse_timer.cancel()

    # --- keeping --------------------------------------------------------------------------------------------

    async def _register(self) -> None:
        sent_ms = self._clock.now_ms()
        await self._store.register_node(self._self)
        self._held.registered(self._term_ms, sent_ms)
        self._renew_ms = sent_ms + self._term_ms // 3

    async def _renew(self) -> int | None:
        """Renew registration and leases for another term from now. Returns when to do so again."""
        if self.superseded_by is not None:
            return None
        try:
            # The registration first: when both expire, a node is no longer wanted as holder by the time its
            # leases are free.
            await self._register()
        except NodeIdTaken as taken:
            self._supersede(taken)
            return None
        except StoreError:
            self._note_cut_off()
            raise
        if self.cut_off:
            self.cut_off = False
            self._log.warning("store reachable again")
            self._tell_changed()
        await self._renew_leases(self._held.grants() + self._handovers.grants())
        self._placing.wake()
        return self._renew_ms

    def _note_cut_off(self) -> None:
        others = self._reading is not None and len(self._reading.nodes) > 1
        if others and not self.cut_off and not self._held.is_registered(self._clock.now_ms()):
            self.cut_off = True
            self._log.warning("store unreachable for a lease term; sending clients away")
            self._tell_changed()

    async def _renew_leases(self, grants: list[Grant]) -> None:
        if not grants:
            return
        sent_ms = self._clock.now_ms()
        lost: list[Lease] = []
        for grant, remaining_ms in zip(grants, await self._store.renew(grants, self._term_ms), strict=True):
            if remaining_ms is not None:
                self._held.renewed(grant, remaining_ms, sent_ms)
            elif self._held.has(grant):
                lost.append(grant.lease)
        if lost:
            self._log.warning("leases lost to other brokers or in a database failover", leases=len(lost))
        for lease in lost:
            self._disown(lease, "another broker has taken it over, or the database has failed over")
        self._arm_lapse()

    def _arm_lapse(self) -> None:
        lapse_ms = self._held.lapse_ms()
        if self._lapse_timer is not None:
            self._lapse_timer.cancel()
        self._lapse_timer = None if lapse_ms is None else self._clock.at(lapse_ms, self._lapse)

    def _lapse(self) -> None:
        """Give up lapsed leases by our own clock, without the store, which may be unreachable."""
        lapsed = self._held.lapsed(self._clock.now_ms())
        if lapsed:
            self._log.warning("leases not renewed in time", leases=len(lapsed))
        for lease in lapsed:
            self._disown(lease, "its lease was not renewed in time: the broker or its store stood still")
        self._arm_lapse()
        self._wake()

    def _supersede(self, taken: NodeIdTaken) -> None:
        """Another broker has this node id by now, and may take the node's leases for its own."""
        self._log.error("another broker took this node id; serving stopped", why=str(taken))
        self.superseded_by = taken
        self._reclaiming.clear()
        for grant in self._held.grants():
            self._disown(grant.lease, "another broker has taken this one's node id")
        self.superseded.set()

    # --- placing --------------------------------------------------------------------------------------------

    async def _place(self) -> int | None:
        try:
            more = await self._claim_and_give_up()
        except Exception as error:
            now_ms = self._clock.now_ms()
            # While the store is away for every node, none should look drained when it is back.
            replaceable = self._held.is_registered(now_ms) and len(self._last_nodes) > 1
            if self._standing.failed(now_ms, replaceable=replaceable):
                self._log.warning(
                    "shards cannot be claimed for a lease term; leaving them to the other brokers",
                    why=str(error),
                )
                self._tell_drained()
            raise
        if more:
            self._placing.wake()
        return self._check_again_ms

    async def _claim_and_give_up(self) -> bool:
        """Take one bounded step towards what placement wants. Returns whether the next can follow at once."""
        nodes, holders, replicas, seen_ms = await self._read()
        node_id = self._self.node_id
        mine = nodes.get(node_id)
        if self.superseded_by is not None or mine is None or mine.incarnation != self._self.incarnation:
            # If our registration expired while we or the store stood still, placement without us would give
            # away everything we have, and give it all back a moment later. If another broker has our id, what
            # we claimed would be its. The next renewal finds out, so it comes now.
            self._check_again_ms = None
            self._renewing.wake()
            return False
        self._moves.settle(holders, node_id, self._held, seen_ms)
        counts: dict[LeaseKind, int] = {
            kind: self._known.leases[kind] for kind in self._holders if kind is not LeaseKind.REPLICAS
        }
        if LeaseKind.REPLICAS not in self._holders:
            replicas = {}
        no_transactions = without_transactions(nodes.values())
        live = placeable(nodes.values())
        if not self._drained and node_id not in live:
            live.append(node_id)  # Standing aside: what it has it keeps, and a claim shows that it can again.
        wanted = self._wanted.of(node_id, live, counts, self._pins, replicas, no_transactions)
        of_others = {lease for lease, grant in holders.items() if grant.node_id != node_id}
        self._reclaiming &= wanted - of_others
        plan = self._held.plan(
            wanted,
            {lease: grant for lease, grant in holders.items() if lease.kind in self._holders},
            node_id,
            seen_ms,
            resting=self._handovers.leases,
            claims_max=CLAIMS_MAX,
            # Standing aside, it keeps what it has, also where all nodes count since none is in line.
            give_up_max=0 if self._standing.aside and not self._drained else self._moves.room,
        )
        self._say_what_is_held(plan)
        self._give_up(plan.give_up)
        refused = await self._claim(plan.claim)
        if self._standing.succeeded(self._clock.now_ms()):
            self._log.info("shards can be claimed again; taking them back")
            self._tell_drained()
        self._tell_changed()
        # A refused lease is another's by now, or held up in the store by a node that has died.
        retry_ms = self._clock.now_ms() + self._retry_ms if refused else None
        times_ms = (plan.check_again_ms, self._moves.check_again_ms, retry_ms)
        self._check_again_ms = min((when_ms for when_ms in times_ms if when_ms is not None), default=None)
        return plan.more and not refused

    def _say_what_is_held(self, plan: Plan) -> None:
        """Log it once, after leases have moved."""
        grants = self._held.grants()
        moving = plan.claim or plan.give_up or not all(grant.announced for grant in grants)
        if self._said is not None and not moving and len(grants) != self._said:
            self._said = len(grants)
            self._log.info("leases moved", held=self._said)

    async def _read(self) -> _Reading:
        seen_ms = self._clock.now_ms()
        nodes, lists, holders_of = await asyncio.gather(
            self._store.nodes(),
            self._store.replica_lists(),
            asyncio.gather(*(self._store.holders(kind) for kind in LeaseKind)),
        )
        holders = {grant.lease: grant for of_kind in holders_of for grant in of_kind.values()}
        for lease, grant in holders.items():
            if grant.announced and grant.epoch > self._announced_epochs.get(lease, 0):
                self._announced_epochs[lease] = grant.epoch
        replicas = {Lease(LeaseKind.REPLICAS, number): each for each, number in lists.items()}
        for node in nodes:
            self._heard_ms.pop(node.node_id, None)  # the one heard of last comes last
            self._heard_ms[node.node_id] = seen_ms - node.age_ms
        while len(self._heard_ms) > _HEARD_MAX:
            del self._heard_ms[next(iter(self._heard_ms))]
        self._reading = _Reading({node.node_id: node for node in nodes}, holders, replicas, seen_ms)
        self._last_nodes = self._reading.nodes or self._last_nodes
        self._topology = None
        return self._reading

    async def _claim(self, leases: list[Lease]) -> bool:
        """Claim leases. Returns whether any was refused."""
        if not leases and not self._standing.aside:  # Then the call shows whether claims succeed.
            return False
        sent_ms = self._clock.now_ms()
        claimed = await self._store.claim(
            leases, self._self.node_id, self._term_ms, incarnation=self._self.incarnation
        )
        if self.superseded_by is not None:
            return False
        grants = [grant for grant in claimed if grant is not None]
        for grant in grants:
            self._held.granted(grant, sent_ms)
            self._reclaiming.discard(grant.lease)
            loaded = self._holders[grant.lease.kind].own(grant.lease.number, grant.epoch)
            if loaded is None:
                self._held.loaded(grant)
            else:
                asyncio.ensure_future(loaded).add_done_callback(partial(self._loaded, grant))
        self._log.debug("leases claimed", leases=len(grants), refused=len(leases) - len(grants))
        self._arm_lapse()
        self._announcing.wake()
        return len(grants) < len(leases)

    def _loaded(self, grant: Grant, loaded: asyncio.Future[object]) -> None:
        if not loaded.cancelled() and loaded.exception() is None:
            self._held.loaded(grant)
            self._announcing.wake()

    async def _announce(self) -> None:
        """Announce ready leases to the others; those that become ready meanwhile go into the next call."""
        grants = self._held.unannounced()
        if not grants:
            return
        await self._store.announce(grants)
        for grant in grants:
            self._held.announced(grant)
        self._tell_changed()
        self._alarm.ring()

    def _tell_changed(self) -> None:
        self._topology = None
        for callback in self.changed:
            callback()

    def _wake(self) -> None:
        """Something changed in the store, or among the leases here."""
        self._placing.wake()
        self._alarm.ring()

    # --- stopping to serve ----------------------------------------------------------------------------------

    async def _hand_over(self) -> None:
        """Hand over to the others, as long as any take leases, and as fast as they take them."""
        if not await self._retried(self._awaited):
            return
        self._node = replace(self._self, drained=True)
        await self._retried(self._register)
        while grants := await self._retried(self._awaited):
            self._give_up(grants[: self._moves.room])
            self._tell_changed()
            await self._wait(self._moves.check_again_ms)

    async def _retried(self, step: Callable[[], Awaitable[T]]) -> T:
        """The outcome of a step of leaving, which is repeated for a lease term if the store fails, unless
        that cannot help. Once the registration has run out there is nothing left to hand over, and the
        failure is raised."""
        until_ms: int | None = None
        while True:
            try:
                return await step()
            except (NodeIdTaken, StoreClosed, StoreDamaged, StoreRefused):
                raise
            except StoreError as error:
                now_ms = self._clock.now_ms()
                if not self._held.is_registered(now_ms) or (until_ms is not None and now_ms >= until_ms):
                    raise
                if until_ms is None:
                    until_ms = now_ms + self._term_ms
                    self._log.warning("the store failed while leaving, retrying", why=str(error))
                await self._wait(now_ms + self._retry_ms)

    async def _remove(self) -> None:
        await self._store.remove_node(self._self.node_id, self._self.incarnation)

    async def _awaited(self) -> list[Grant]:
        """The leases that another node will take as soon as they are released, as far as can be seen; none
        once some were not taken in time."""
        nodes, holders, replicas, seen_ms = await self._read()
        overdue = self._moves.settle(holders, self._self.node_id, self._held, seen_ms)
        takers = [
            node.node_id for node in nodes.values() if not node.drained and node.node_id != self._self.node_id
        ]
        if overdue or not takers:
            return []
        no_transactions = without_transactions(nodes.values())
        return [
            grant
            for grant in self._held.grants()
            # A node that has not renewed in time may be dead, and keep its share waiting.
            if (node_id := home(grant.lease, takers, self._pins, replicas, no_transactions)) is not None
            and nodes[node_id].age_ms < self._term_ms * 2 // 3
        ]

    def _give_up(self, grants: list[Grant]) -> None:
        if grants:
            self._log.debug("handing over leases", leases=len(grants))
        for grant in grants:
            self._moves.begin(grant.lease, self._clock.now_ms())
            self._disown(grant.lease, "handed over", release=grant)

    def _disown(self, lease: Lease, why: str, *, release: Grant | None = None) -> None:
        """Stop serving now, and release the lease when its holder is at rest."""
        self._held.drop(lease)
        self._reclaiming.discard(lease)
        self._topology = None
        self._handovers.begin(lease, self._holders[lease.kind].disown(lease.number, why), release)

    @property
    def _self(self) -> NodeRow:
        assert self._node is not None
        return self._node

    @property
    def _known(self) -> StoreCounts:
        assert self._counts is not None
        return self._counts
