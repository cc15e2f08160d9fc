"""A member on its own."""

from __future__ import annotations

import pytest

from muster.coordinator.base.step import BrokenInvariant
from muster.coordinator.group.classic.member import ClassicMember
from muster.coordinator.group.events import MemberIdentity
from muster.coordinator.group.hard_state import StoredMember
from tests.group.requests import member
from tests.support.each import each


def test_metadata_is_that_of_the_protocol() -> None:
    alice = member(protocols=[("range", b"1"), ("sticky", b"2")])
    assert alice.metadata("range") == b"1"
    assert alice.metadata("sticky") == b"2"
    with pytest.raises(BrokenInvariant, match=r"alice-1 .* does not offer 'roundrobin'"):
        alice.metadata("roundrobin")


def test_the_vote_is_for_the_first_candidate_in_the_member_s_order() -> None:
    alice = member(protocols=[("range", b""), ("sticky", b"")])
    assert alice.vote({"range", "sticky"}) == "range"
    assert alice.vote({"sticky"}) == "sticky"
    assert alice.vote({"roundrobin", "sticky"}) == "sticky"
    with pytest.raises(BrokenInvariant, match=r"offers none of \['copy', 'roundrobin'\]"):
        alice.vote({"roundrobin", "copy"})


def test_protocol_names_are_a_set() -> None:
    assert member(protocols=[("range", b"1"), ("sticky", b"2"), ("range", b"3")]).protocol_names == {
        "range",
        "sticky",
    }


def test_static_is_who_has_an_instance_id() -> None:
    assert not member().is_static
    assert member(instance_id="store-1").is_static
    assert member(instance_id="").is_static
    assert member(instance_id="store-1").identity == MemberIdentity(
        "alice-1", "alice", "/10.0.0.1", "store-1"
    )
    assert member().identity == MemberIdentity("alice-1", "alice", "/10.0.0.1", None)


@each(
    "is_new, join, sync, waits",
    [
        (False, None, None, False),
        (False, 7, None, True),
        (False, None, 7, True),
        (True, None, None, False),
        (True, 7, None, False),
        (True, None, 7, False),
        (False, 0, None, True),
        (False, None, 0, True),
    ],
)
def test_who_waits_for_us_is_alive_unless_new(
    is_new: bool, join: int | None, sync: int | None, waits: bool
) -> None:
    alice = member()
    alice.is_new, alice.parked_join, alice.parked_sync = is_new, join, sync
    assert alice.waits is waits


def test_stored_and_loaded_again() -> None:
    alice = member(
        protocols=[("range", b"1"), ("sticky", b"2")],
        instance_id="store-1",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
    )
    alice.assignment = b"mine"
    stored = alice.stored("sticky")
    assert stored == StoredMember("alice-1", "store-1", "alice", "/10.0.0.1", 60_000, 10_000, b"2", b"mine")
    loaded = ClassicMember.loaded(stored, "sticky", 1234)
    assert loaded.stored("sticky") == stored
    assert loaded.protocols == (("sticky", b"2"),)
    assert loaded.heard_ms == 1234
    assert (loaded.is_new, loaded.parked_join, loaded.parked_sync, loaded.connection_id) == (
        False,
        None,
        None,
        None,
    )


def test_a_loaded_member_s_pace_is_not_known_yet() -> None:
    loaded = ClassicMember.loaded(member().stored("range"), "range", 1_000)
    loaded.heartbeats += 4
    assert loaded.heartbeat_interval_ms() is None


def test_late_is_forgotten_after_ten_minutes() -> None:
    alice = member()
    alice.was_late(20_000, 1_000)
    assert alice.late_count(600_999) == 1
    assert alice.late_count(601_000) == 0
    alice.was_late(20_000, 600_999)
    assert alice.late_at_ms == (1_000, 600_999)
    alice.was_late(20_000, 601_000)
    assert alice.late_at_ms == (600_999, 601_000)


def test_another_process_begins_anew() -> None:
    alice = member()
    alice.heartbeats, alice.session_from_ms, alice.late_at_ms = 10, 30_000, (9_000,)
    alice.begin_heartbeats(31_000)
    assert alice.heartbeat_interval_ms() == 3_000
    alice.begin_anew(32_000)
    assert (alice.heartbeats, alice.heartbeats_from_ms, alice.late_count(32_000)) == (0, 32_000, 0)
    assert alice.heartbeat_interval_ms() is None


def test_repr_says_what_one_debugs_with() -> None:
    alice = member()
    assert repr(alice) == "<ClassicMember alice-1 client=alice parked=None>"
    alice.parked_sync = 3
    assert repr(alice) == "<ClassicMember alice-1 client=alice parked=sync>"
    bob = member("bob-1", instance_id="b")
    bob.is_new, bob.parked_join = True, 4
    assert repr(bob) == "<ClassicMember bob-1 instance=b client=bob new parked=join>"
