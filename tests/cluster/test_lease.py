"""What a node may do with its leases, and when, without a store or a clock."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from muster.coordinator.cluster.lease import (
    HeldLeases,
    Moves,
    Plan,
    Wanted,
    home,
    placeable,
    wanted,
    without_transactions,
)
from muster.coordinator.cluster.placement import place
from muster.coordinator.storage.store import Grant, Lease, LeaseKind, NodeRow

A = Lease(LeaseKind.GROUP, 0)
B = Lease(LeaseKind.GROUP, 1)
C = Lease(LeaseKind.DATA, 0)
COUNTS = {LeaseKind.GROUP: 50, LeaseKind.DATA: 50}


def grant(lease: Lease, *, epoch: int = 1, node_id: int = 1, remaining_ms: int = 3_000) -> Grant:
    return Grant(lease, node_id, epoch, remaining_ms)


def held(*grants: Grant, sent_ms: int = 0) -> HeldLeases:
    leases = HeldLeases(margin_ms=300)
    leases.registered(1_000_000, sent_ms)
    for each in grants:
        leases.granted(each, sent_ms)
    return leases


def test_a_lease_is_served_until_the_margin_before_the_term_counted_from_the_sending() -> None:
    leases = held(grant(A), sent_ms=1_000)
    assert leases.serving(A, 3_699)
    assert not leases.serving(A, 3_700)
    assert not leases.serving(B, 0)
    assert leases.lapse_ms() == 3_700


def test_a_renewal_counts_from_when_it_was_sent_however_late_the_answer() -> None:
    leases = held(grant(A), sent_ms=0)
    leases.renewed(grant(A), 3_000, sent_ms=1_000)
    assert leases.lapse_ms() == 3_700


def test_an_answer_to_an_older_renewal_shortens_nothing() -> None:
    leases = held(grant(A), sent_ms=2_000)
    leases.renewed(grant(A), 3_000, sent_ms=1_000)
    assert leases.lapse_ms() == 4_700


def test_a_renewal_of_an_earlier_epoch_is_passed_over() -> None:
    leases = held(grant(A, epoch=2), sent_ms=0)
    leases.renewed(grant(A, epoch=1), 3_000, sent_ms=1_000)
    assert leases.lapse_ms() == 2_700


def test_a_renewal_does_not_bring_a_dropped_lease_back() -> None:
    leases = held(grant(A))
    leases.drop(A)
    leases.renewed(grant(A), 3_000, sent_ms=1_000)
    assert not leases.serving(A, 0)
    assert leases.lapse_ms() is None


def test_only_leases_past_their_time_have_lapsed() -> None:
    leases = held(grant(A), grant(B, remaining_ms=2_000))
    assert leases.lapsed(1_699) == []
    assert leases.lapsed(1_700) == [B]
    assert leases.lapsed(2_700) == [A, B]


def plan(
    leases: HeldLeases,
    wanted: set[Lease],
    holders: dict[Lease, Grant],
    seen_ms: int = 0,
    *,
    claims_max: int = 100,
    give_up_max: int = 100,
    resting: frozenset[Lease] = frozenset(),
) -> Plan:
    return leases.plan(
        wanted, holders, 1, seen_ms, resting=resting, claims_max=claims_max, give_up_max=give_up_max
    )


def test_what_is_wanted_and_free_is_claimed() -> None:
    assert plan(held(), {A, C}, {}) == Plan([C, A], [], None)


def test_what_is_held_already_is_not_claimed_again() -> None:
    assert plan(held(grant(A)), {A}, {A: grant(A)}) == Plan([], [], None)


def test_what_the_store_calls_ours_without_our_knowing_is_claimed() -> None:
    # The process was killed and started again, or the shard's state was lost.
    assert plan(held(), {A}, {A: grant(A)}) == Plan([A], [], None)


def test_what_another_holds_is_looked_at_again_when_it_runs_out_wanted_or_not() -> None:
    holders = {
        A: grant(A, node_id=2, remaining_ms=900),
        B: grant(B, node_id=2, remaining_ms=400),
    }
    assert plan(held(), {A, B}, holders, 5_000) == Plan([], [], 5_401)
    assert plan(held(), set(), holders, 5_000) == Plan([], [], 5_401)


def test_what_is_no_longer_wanted_is_given_up() -> None:
    assert plan(held(grant(A), grant(B)), {A}, {}) == Plan([], [grant(B)], None)


def test_every_lease_is_wanted_by_exactly_one_live_node() -> None:
    shares = [wanted(node_id, [1, 2, 3], COUNTS) for node_id in (1, 2, 3)]
    assert sum(len(share) for share in shares) == 100
    assert set().union(*shares) == {Lease(kind, n) for kind in COUNTS for n in range(50)}
    assert all(place(lease.kind.value, lease.number, [1, 2, 3]) == 1 for lease in shares[0])


def test_a_pinned_lease_is_wanted_by_its_node_as_long_as_that_is_there() -> None:
    here = next(iter(wanted(1, [1, 2, 3], COUNTS)))
    shares = {node_id: wanted(node_id, [1, 2, 3], COUNTS, {here: 3}) for node_id in (1, 2, 3)}
    assert [here in share for share in shares.values()] == [False, False, True]
    assert sum(len(share) for share in shares.values()) == 100
    assert shares[2] == wanted(2, [1, 2, 3], COUNTS)
    assert here in wanted(1, [1, 2], COUNTS, {here: 3})


def test_a_lease_with_a_replica_list_is_wanted_by_the_first_of_it_that_is_there() -> None:
    listed = Lease(LeaseKind.REPLICAS, 4)
    replicas = {listed: (3, 1)}

    def wanting(*live: int) -> list[int]:
        return [node_id for node_id in live if listed in wanted(node_id, live, COUNTS, {}, replicas)]

    assert wanting(1, 2, 3) == [3]
    assert wanting(1, 2) == [1]
    assert len(wanting(2, 4)) == 1  # nobody on the list is there: any other node
    assert [home(listed, [1, 2, 3], {listed: 2}, replicas)] == [2]
    assert home(listed, [], {}, replicas) is None


def test_transaction_shards_are_wanted_by_those_nodes_alone_that_know_them() -> None:
    counts = {**COUNTS, LeaseKind.TRANSACTION: 50}
    older = frozenset({1, 3})
    shares = {node_id: wanted(node_id, [1, 2, 3, 4], counts, {}, {}, older) for node_id in (1, 2, 3, 4)}
    of_transactions = {
        node_id: {lease for lease in share if lease.kind is LeaseKind.TRANSACTION}
        for node_id, share in shares.items()
    }
    assert [len(of_transactions[node_id]) for node_id in sorted(older)] == [0, 0]
    assert len(of_transactions[2]) + len(of_transactions[4]) == 50
    others = {node_id: share - of_transactions[node_id] for node_id, share in shares.items()}
    assert others == {node_id: wanted(node_id, [1, 2, 3, 4], COUNTS) for node_id in shares}
    shard = next(iter(of_transactions[2]))
    assert home(shard, [1, 2, 3], {shard: 3}, {}, older) == 2
    assert home(shard, [1, 3], {}, {}, older) is None
    old, new = (
        NodeRow(each, "h", 1, None, 1, UUID(int=each), keeps_transactions=each > 1) for each in (1, 2)
    )
    assert without_transactions([old, new]) == {1}


def test_what_is_wanted_follows_everything_that_decides_it() -> None:
    remembered = Wanted()
    pins: dict[Lease, int] = {}
    counts = {**COUNTS, LeaseKind.TRANSACTION: 50}
    here = next(iter(wanted(1, [1, 2], COUNTS)))
    listed = {Lease(LeaseKind.REPLICAS, 4): (1, 2)}
    sizes = []
    for node_id, node_ids, of_kinds, replicas, older in (
        (1, [1, 2], COUNTS, {}, frozenset[int]()),
        (2, [1, 2], COUNTS, {}, frozenset[int]()),
        (1, [1, 2, 3], COUNTS, {}, frozenset[int]()),
        (1, [1], COUNTS, {}, frozenset[int]()),
        (1, [1], COUNTS, listed, frozenset[int]()),
        (1, [1], counts, listed, frozenset[int]()),
        (1, [1, 2], counts, listed, frozenset({1})),
    ):
        for pinned in ({}, {here: 2}):
            pins.clear()
            pins |= pinned  # changed in place, as callers do
            found = remembered.of(node_id, node_ids, of_kinds, pins, replicas, older)
            assert found == wanted(node_id, node_ids, of_kinds, pins, replicas, older)
            assert found is remembered.of(node_id, list(node_ids), dict(of_kinds), pins, replicas, older)
            sizes.append(len(found))
    assert len(set(sizes)) > 6


def test_no_more_is_claimed_in_one_call_or_given_up_at_a_time_than_was_said() -> None:
    assert plan(held(), {A, B, C}, {}, claims_max=2) == Plan([C, A], [], None, more=True)
    assert plan(held(grant(A), grant(B)), set(), {}, give_up_max=1) == Plan([], [grant(A)], None)
    assert plan(held(grant(A)), set(), {}, give_up_max=0) == Plan([], [], None)


def test_what_is_on_its_way_out_is_neither_claimed_nor_given_up_again() -> None:
    assert plan(held(), {A}, {A: grant(A), B: grant(B)}, resting=frozenset({A, B})) == Plan([], [], None)


def test_what_the_store_calls_ours_and_belongs_to_another_is_given_up() -> None:
    """Its state was lost while it was to move: nobody serves it, so it does not count towards the bound."""
    assert plan(held(), set(), {A: grant(A)}, give_up_max=0) == Plan([], [grant(A)], None)


def test_no_lease_is_served_longer_than_the_node_is_registered() -> None:
    leases = HeldLeases(margin_ms=300)
    leases.registered(3_000, sent_ms=0)
    leases.granted(grant(A), sent_ms=900)
    assert leases.serving(A, 2_699)
    assert not leases.serving(A, 2_700)
    assert leases.lapse_ms() == 2_700
    assert leases.lapsed(2_700) == [A]
    leases.registered(3_000, sent_ms=2_000)
    assert leases.serving(A, 3_599)
    assert leases.lapse_ms() == 3_600
    assert leases.is_registered(4_699)
    assert not leases.is_registered(4_700)


def test_an_older_registration_that_is_answered_late_shortens_nothing() -> None:
    leases = held(grant(A))
    leases.registered(1, sent_ms=0)
    assert leases.serving(A, 2_699)


def test_what_is_ready_is_announced_once() -> None:
    leases = held(grant(A), grant(B, epoch=2))
    assert leases.unannounced() == []
    leases.loaded(grant(A))
    leases.loaded(grant(B, epoch=1))  # it was claimed again meanwhile
    assert leases.unannounced() == [grant(A)]
    leases.announced(grant(A))
    leases.announced(grant(B, epoch=1))
    assert leases.unannounced() == []
    assert [each.announced for each in leases.grants()] == [True, False]


def test_a_node_knows_better_than_a_reading_what_it_serves() -> None:
    leases = held(grant(A, epoch=2))
    leases.announced(grant(A, epoch=2))
    of_another = grant(C, node_id=2)
    known = leases.as_known({A: grant(A, epoch=1), B: grant(B), C: of_another}, 1)
    assert known == {A: grant(A, epoch=2)._replace(announced=True), C: of_another}
    taken = grant(A, node_id=2, epoch=3)
    assert leases.as_known({A: taken}, 1) == {A: taken}


def test_moves_are_forgotten_when_another_is_ready_or_after_a_while() -> None:
    moves, leases = Moves(at_once=2, patience_ms=1_000), held(grant(C))
    moves.begin(A, 0)
    moves.begin(B, 100)
    assert (moves.room, moves.check_again_ms) == (0, 1_000)
    moves.settle({A: grant(A), B: grant(B, node_id=2)}, 1, leases, 500)
    assert moves.room == 0
    moves.settle({A: grant(A), B: grant(B, node_id=2)._replace(announced=True)}, 1, leases, 500)
    assert (moves.room, moves.check_again_ms) == (1, 1_000)
    assert moves.settle({}, 1, leases, 999) == []
    assert moves.settle({}, 1, leases, 1_000) == [A]
    assert (moves.room, moves.check_again_ms) == (2, None)
    moves.begin(C, 0)
    moves.settle({}, 1, leases, 0)  # it came back
    assert moves.room == 2


def test_drained_nodes_get_nothing_unless_all_are_drained() -> None:
    nodes = [NodeRow(node_id, "", 0, None, 3_000, UUID(int=node_id)) for node_id in (1, 2, 3)]
    assert placeable(nodes) == [1, 2, 3]
    assert placeable([nodes[0], replace(nodes[1], drained=True)]) == [1]
    assert placeable([replace(node, drained=True) for node in nodes]) == [1, 2, 3]
    assert placeable([]) == []
