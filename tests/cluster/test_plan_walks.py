"""The pure parts of several nodes against a model of the store, through random lives: a lease is never served
by two nodes, steps are bounded, and in the end every node has what placement gives it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from muster.coordinator.cluster.lease import HeldLeases, Moves, placeable, wanted
from muster.coordinator.storage.store import Grant, Lease, LeaseKind, NodeRow

TERM_MS, MARGIN_MS, RENEWAL_MS = 3_000, 300, 1_000
COUNTS = {LeaseKind.GROUP: 12, LeaseKind.DATA: 8}
ALL = [Lease(kind, number) for kind, count in COUNTS.items() for number in range(count)]
NODE_IDS = (1, 2, 3, 4)
CLAIMS_MAX, MOVES_MAX = 4, 3


@dataclass
class Store:
    """Grants and registrations with their expiry times."""

    now_ms: int = 0
    epochs: Counter[Lease] = field(default_factory=Counter)
    grants: dict[Lease, tuple[Grant, int]] = field(default_factory=dict)
    registered: dict[int, tuple[NodeRow, int]] = field(default_factory=dict)

    def nodes(self) -> list[NodeRow]:
        return [row for row, until_ms in self.registered.values() if until_ms > self.now_ms]

    def holders(self) -> dict[Lease, Grant]:
        return {
            lease: grant._replace(remaining_ms=until_ms - self.now_ms)
            for lease, (grant, until_ms) in self.grants.items()
            if until_ms > self.now_ms
        }

    def claim(self, lease: Lease, node_id: int) -> Grant | None:
        held = self.holders().get(lease)
        if held is not None and held.node_id != node_id:
            return None
        self.epochs[lease] += 1
        grant = Grant(lease, node_id, self.epochs[lease], TERM_MS)
        self.grants[lease] = grant, self.now_ms + TERM_MS
        return grant

    def has(self, grant: Grant) -> bool:
        held, _ = self.grants.get(grant.lease, (None, 0))
        return held is not None and (held.node_id, held.epoch) == (grant.node_id, grant.epoch)


class Node:
    """What Membership does with the pure parts, without waiting for anything."""

    def __init__(self, node_id: int, store: Store) -> None:
        self.store = store
        self.row = NodeRow(node_id, "", 0, None, TERM_MS, UUID(int=node_id))
        self.held = HeldLeases(MARGIN_MS)
        self.moves = Moves(MOVES_MAX, TERM_MS)
        self.loading: list[Grant] = []
        self.resting: list[Grant] = []
        self.renew_ms = 0
        self.stands_still = False

    def renew(self) -> None:
        now_ms = self.store.now_ms
        self.renew_ms = now_ms + RENEWAL_MS
        self.store.registered[self.row.node_id] = self.row, now_ms + TERM_MS
        self.held.registered(TERM_MS, now_ms)
        for grant in [*self.held.grants(), *self.resting]:
            if self.store.has(grant):
                stored, _ = self.store.grants[grant.lease]
                self.store.grants[grant.lease] = stored, now_ms + TERM_MS
                self.held.renewed(grant, TERM_MS, now_ms)
            elif self.held.has(grant):
                self.held.drop(grant.lease)

    def runs(self) -> None:
        """What happens by itself as time passes."""
        if self.stands_still:
            return
        for lease in self.held.lapsed(self.store.now_ms):
            self.held.drop(lease)
        if self.store.now_ms >= self.renew_ms:
            self.renew()

    def round(self) -> None:
        store, node_id = self.store, self.row.node_id
        nodes, holders = store.nodes(), store.holders()
        if self.stands_still or node_id not in [node.node_id for node in nodes]:
            return
        self.moves.settle(holders, node_id, self.held, store.now_ms)
        plan = self.held.plan(
            wanted(node_id, placeable(nodes), COUNTS),
            holders,
            node_id,
            store.now_ms,
            resting={grant.lease for grant in self.resting},
            claims_max=CLAIMS_MAX,
            give_up_max=self.moves.room,
        )
        assert len(plan.claim) <= CLAIMS_MAX
        assert len([grant for grant in plan.give_up if self.held.has(grant)]) <= self.moves.room
        for grant in plan.give_up:
            self.moves.begin(grant.lease, store.now_ms)
            self.held.drop(grant.lease)
            self.resting.append(grant)
        for lease in plan.claim:
            granted = store.claim(lease, node_id)
            if granted is not None:
                self.held.granted(granted, store.now_ms)
                self.loading.append(granted)

    def load(self) -> None:
        """Finish loading one shard, and bring one to rest."""
        if self.stands_still:
            return
        if self.loading:
            self.held.loaded(self.loading.pop(0))
        for grant in self.held.unannounced():
            if self.store.has(grant):
                stored, until_ms = self.store.grants[grant.lease]
                self.store.grants[grant.lease] = stored._replace(announced=True), until_ms
            self.held.announced(grant)
        if self.resting:
            grant = self.resting.pop(0)
            if self.store.has(grant):
                del self.store.grants[grant.lease]


class World:
    def __init__(self) -> None:
        self.store = Store()
        self.nodes: dict[int, Node] = {}

    def join(self, node_id: int) -> None:
        if node_id not in self.nodes and node_id not in [node.node_id for node in self.store.nodes()]:
            self.nodes[node_id] = Node(node_id, self.store)
            self.nodes[node_id].renew()

    def die(self, node_id: int) -> None:
        self.nodes.pop(node_id, None)

    def drain(self, node_id: int) -> None:
        if node_id in self.nodes:
            node = self.nodes[node_id]
            node.row = replace(node.row, drained=not node.row.drained)
            node.renew_ms = 0

    def stand_still(self, node_id: int) -> None:
        if node_id in self.nodes:
            self.nodes[node_id].stands_still = not self.nodes[node_id].stands_still

    def passes(self, ms: int) -> None:
        self.store.now_ms += ms
        for node in self.nodes.values():
            node.runs()

    def step(self, ms: int, *, all_load: bool) -> None:
        """Let some time pass and every node act."""
        self.passes(ms)
        for node in self.nodes.values():
            node.round()
            node.load()
            while all_load and node.loading and not node.stands_still:
                node.load()
        self.check()

    def unserved(self) -> int:
        """Number of leases that nobody serves."""
        now_ms = self.store.now_ms
        served = [
            grant
            for node in self.nodes.values()
            for grant in node.held.grants()
            if grant.announced and node.held.serving(grant.lease, now_ms)
        ]
        return len(ALL) - len(served)

    def check(self) -> None:
        now_ms = self.store.now_ms
        serving = Counter(
            lease for node in self.nodes.values() for lease in ALL if node.held.serving(lease, now_ms)
        )
        assert set(serving.values()) <= {1}, "two nodes serve a lease"
        for node in self.nodes.values():
            for lease in ALL:
                grant = node.held.grant(lease)
                if grant is not None and node.held.serving(lease, now_ms):
                    assert self.store.has(grant), f"{lease} is served and the store knows nothing of it"

    def goes_on(self, what: str, rounds: int) -> None:
        """Step until every lease is in its place."""
        for _ in range(rounds):
            self.step(100, all_load=False)
            if self.is_placed():
                return
        raise AssertionError(f"{what}: {self.nodes.keys()} {self.store.holders()}")

    def is_placed(self) -> bool:
        ids = placeable([node.row for node in self.nodes.values()])
        known = [node.held.as_known(self.store.holders(), node.row.node_id) for node in self.nodes.values()]
        return all(each == known[0] for each in known) and all(
            set(node.held.as_known({}, 0)) == wanted(node.row.node_id, ids, COUNTS)
            and all(grant.announced for grant in node.held.grants())
            for node in self.nodes.values()
        )


ACTS = ("join", "join", "die", "drain", "stand_still")
STEPS = st.lists(st.tuples(st.integers(1, 1_000), st.booleans()), max_size=8)


@settings(max_examples=150)
@given(st.lists(st.tuples(st.sampled_from(ACTS), st.sampled_from(NODE_IDS), STEPS), max_size=15))
def test_leases_have_one_holder_and_get_where_they_belong(
    acts: list[tuple[str, int, list[tuple[int, bool]]]],
) -> None:
    world = World()
    for act, node_id, steps in acts:
        getattr(world, act)(node_id)
        for ms, all_load in steps:
            world.step(ms, all_load=all_load)
    for node in world.nodes.values():
        node.stands_still = False
    if world.nodes:
        # Dead nodes expire within a term. Then each lease may have to be given up by one node and taken by
        # another, a few at a time, with one loaded in each round.
        world.goes_on("not everybody has what is his", 200)


@given(st.sets(st.sampled_from(NODE_IDS), min_size=1, max_size=3), st.sampled_from(NODE_IDS))
@settings(max_examples=15)
def test_a_node_that_comes_moves_only_what_it_gets_and_a_few_at_a_time(first: set[int], comes: int) -> None:
    world = World()
    for node_id in first - {comes}:
        world.join(node_id)
    if not world.nodes:
        return
    world.goes_on("the start", 100)
    before = dict(world.store.epochs)
    world.join(comes)
    goes = wanted(comes, world.nodes, COUNTS)
    steps = 0
    while not world.is_placed():
        world.step(100, all_load=False)
        assert world.unserved() <= MOVES_MAX * (len(world.nodes) - 1)
        steps += 1
        assert steps < 200
    assert {lease for lease in ALL if world.store.epochs[lease] != before[lease]} == goes
    assert all(world.store.epochs[lease] == before[lease] + 1 for lease in goes)


@given(st.sets(st.sampled_from(NODE_IDS), min_size=2), st.data())
@settings(max_examples=15)
def test_a_drained_node_keeps_nothing_unless_all_are(ids: set[int], data: st.DataObject) -> None:
    drained = data.draw(st.sets(st.sampled_from(sorted(ids)), min_size=1))
    world = World()
    for node_id in ids:
        world.join(node_id)
    world.goes_on("the start", 100)
    for node_id in drained:
        world.drain(node_id)
    world.goes_on("the draining", 200)
    for node_id in drained:
        assert bool(world.nodes[node_id].held.grants()) == (drained == ids)


def test_another_that_takes_the_node_id_finds_nobody_serving() -> None:
    """Its registration decides, not the later expiry of a lease claimed since."""
    store = Store()
    old = Node(1, store)
    old.renew()
    store.now_ms = 900
    old.round()
    assert old.held.grants()
    store.now_ms = TERM_MS  # the registration has expired; the leases have 900 ms left
    assert store.nodes() == []
    assert store.holders()
    assert not any(old.held.serving(lease, store.now_ms) for lease in ALL)
