"""What a node may do with its leases, and when: no store, no clock."""

from __future__ import annotations

from muster.coordinator.cluster.lease import HeldLeases, Plan, wanted
from muster.coordinator.cluster.placement import place
from muster.coordinator.storage.store import Grant, Lease, LeaseKind

A = Lease(LeaseKind.GROUP, 0)
B = Lease(LeaseKind.GROUP, 1)
C = Lease(LeaseKind.DATA, 0)
COUNTS = {LeaseKind.GROUP: 50, LeaseKind.DATA: 50}


def grant(lease: Lease, *, epoch: int = 1, node_id: int = 1, remaining_ms: int = 3_000) -> Grant:
    return Grant(lease, node_id, epoch, remaining_ms)


def held(*grants: Grant, sent_ms: int = 0) -> HeldLeases:
    leases = HeldLeases(margin_ms=300)
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


def test_what_is_wanted_and_free_is_claimed() -> None:
    assert held().plan({A, C}, {}, 1, 0) == Plan([C, A], [], None)


def test_what_is_held_already_is_not_claimed_again() -> None:
    assert held(grant(A)).plan({A}, {A: grant(A)}, 1, 0) == Plan([], [], None)


def test_what_the_store_calls_ours_without_our_knowing_is_claimed() -> None:
    # The process was killed and started again, or the shard's state was lost.
    assert held().plan({A}, {A: grant(A)}, 1, 0) == Plan([A], [], None)


def test_what_another_holds_is_looked_at_again_when_it_runs_out_wanted_or_not() -> None:
    holders = {
        A: grant(A, node_id=2, remaining_ms=900),
        B: grant(B, node_id=2, remaining_ms=400),
    }
    assert held().plan({A, B}, holders, 1, 5_000) == Plan([], [], 5_401)
    assert held().plan(set(), holders, 1, 5_000) == Plan([], [], 5_401)


def test_what_is_no_longer_wanted_is_given_up() -> None:
    assert held(grant(A), grant(B)).plan({A}, {}, 1, 0) == Plan([], [grant(B)], None)


def test_every_lease_is_wanted_by_exactly_one_live_node() -> None:
    shares = [wanted(node_id, [1, 2, 3], COUNTS) for node_id in (1, 2, 3)]
    assert sum(len(share) for share in shares) == 100
    assert set().union(*shares) == {Lease(kind, n) for kind in LeaseKind for n in range(50)}
    assert all(place(lease.kind.value, lease.number, [1, 2, 3]) == 1 for lease in shares[0])
