"""For any entries in any order, an explanation ends, raises nothing, and returns values of the right
types."""

from __future__ import annotations

import json
import random
from datetime import UTC
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from muster.coordinator.journal.entries import Entry, Member
from muster.coordinator.journal.explain import (
    Certainty,
    Diagnosis,
    Explanation,
    Tracks,
    diagnosed,
    explain,
    explained,
)
from muster.coordinator.journal.explain import rebalances as cut
from muster.coordinator.journal.explain.telling import about
from muster.coordinator.journal.explain.vocabulary import Trigger
from tests.journal.explain.test_words import stall
from tests.journal.explain.writing import T0, WEB_1, WEB_2, WEB_3

_STATES = [
    "Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Sleeping", "Assigning",
    "Reconciling",
]  # fmt: skip
_TYPES = [
    *["state_changed"] * 4, *["rebalance_completed"] * 2, "assigned", "all_synced", "member_added",
    "member_removed", "member_removed", "member_rejoined", "member_id_issued", "pending_member_removed",
    "member_disconnected", "member_replaced", "member_fenced", "heartbeat_late", "metadata_changed",
    "topics_grown", "leader_changed", "protocol_chosen", "commit_refused", "join_refused", "offsets_removed",
    "shard_loaded", "shard_unloaded", "lag_at_commit", "fault_fired", "clock_moved", "new_one",
    *["epoch_bumped"] * 3, *["target_assigned"] * 2, "revocation_requested", "partitions_revoked",
    *["partitions_assigned"] * 2, "protocol_migrated", "group_created", "group_removed",
]  # fmt: skip
_FIELDS = [
    "from_state", "to_state", "phase_ms", "waiting_for", "pending_member_ids", "until_ms", "expires_ms",
    "former_member_id", "waited_ms", "protocols", "topics", "silent_ms", "connected", "disconnected_ms",
    "late", "heartbeat_interval_ms", "session_timeout_ms", "requested_by", "old_member_id", "old_client_host",
    "old_silent_ms", "old_connected", "api", "topics_added", "topics_removed", "protocols_before",
    "protocols_after", "user_data_changed", "owned_changed", "protocol", "before", "votes", "partitions",
    "kept",     "moved", "lost", "moves", "owned", "truncated", "after_ms", "last", "started_ms", "join_ms",
    "assignment_ms", "restarts", "members", "dropped", "last_joined", "joins", "lag", "lag_before", "late_ms",
    "error", "committed_generation_id", "superseded_ms", "owner", "topic", "partition", "epoch", "took_ms",
    "from_broker", "why", "total", "recovered", "rule", "action", "by_ms", "after_removal_ms", "size_max",
    "protocol_types", "offered", "shared",
    "assignor", "still_held", "member_epoch", "sent_epoch", "from_type", "to_type", "target_ms",
    "reconcile_ms", "regex",
]  # fmt: skip

_members = st.sampled_from(
    [
        WEB_1,
        WEB_2,
        WEB_3,
        Member("", "", ""),
        Member("x" * 300, "\x00\x1b", "/", "\ud800"),
        Member("s", "c", "h", "i"),
    ]
)
_numbers = st.one_of(st.integers(-5, 50_000), st.integers(-(2**70), 2**70))
_scalars = st.one_of(
    st.none(), st.booleans(), _numbers, st.floats(), st.text(max_size=8), st.sampled_from(_STATES)
)
_json = st.recursive(
    st.one_of(_scalars, _members.map(Member.to_json)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["a", WEB_1.id, "total"]), inner, max_size=3),
    ),
    max_leaves=6,
)
_shaped: dict[str, st.SearchStrategy[Any]] = {
    "from_state": st.sampled_from(_STATES),
    "to_state": st.sampled_from(_STATES),
    "waiting_for": st.lists(_members.map(Member.to_json), max_size=3),
    "joins": st.lists(st.tuples(_members.map(Member.to_json), _numbers).map(list), max_size=3),
    "moves": st.lists(
        st.tuples(
            st.sampled_from("ab"),
            _numbers,
            st.one_of(st.none(), _members.map(lambda each: each.id)),
            st.one_of(st.none(), _members.map(lambda each: each.id)),
        ).map(list),
        max_size=4,
    ),
    "partitions": st.lists(st.tuples(st.sampled_from("ab"), _numbers).map(list), max_size=3),
    "still_held": st.lists(st.tuples(st.sampled_from("ab"), _numbers).map(list), max_size=3),
    "to_type": st.sampled_from(["classic", "consumer", "share"]),
    "restarts": st.one_of(st.integers(0, 2), _numbers),
    "owned": st.dictionaries(_members.map(lambda each: each.id), _numbers, max_size=3),
    "topics": st.lists(st.tuples(st.sampled_from("ab"), _numbers, _numbers).map(list), max_size=2),
    "old_member_id": _members.map(lambda each: each.id),
    "former_member_id": _members.map(lambda each: each.id),
}


@st.composite
def any_entry(draw: st.DrawFn) -> Entry:
    names = draw(st.lists(st.sampled_from(_FIELDS), max_size=12, unique=True))
    return Entry(
        draw(st.sampled_from(_TYPES)),
        draw(st.one_of(st.integers(0, 100).map(lambda ms: T0 + 1_000 * ms), _numbers)),
        draw(st.integers(-1, 3)),
        draw(st.integers(-1, 2)),
        draw(st.sampled_from(["billing", "billing", "billing", "other", "", None])),
        draw(st.one_of(st.none(), st.integers(-1, 9))),
        draw(st.one_of(st.none(), st.sampled_from([each.value for each in Trigger]), st.text(max_size=5))),
        draw(st.one_of(st.none(), _members)),
        draw(st.one_of(st.none(), st.sampled_from(["closed", "poll timeout", "revoke", "\x1b[2J"]))),
        {name: draw(st.one_of(_shaped.get(name, _json), _json)) for name in names},
    )


def holds(found: Explanation) -> None:
    """Check what is true of every explanation."""
    assert found.diagnosis in Diagnosis
    assert found.certainty in Certainty
    assert found.ended_ms is None or found.ended_ms >= found.started_ms
    assert found.diagnosis not in {each.diagnosis for each in found.alternatives}
    lines = found.lines(UTC)
    assert max(map(len, lines)) <= 110
    assert all(each.isprintable() for each in lines)
    json.dumps(found.to_json())


@settings(max_examples=150)
@given(st.lists(any_entry(), max_size=18), _numbers)
def test_any_entries(entries: list[Entry], now_ms: int) -> None:
    found = cut(entries)
    assert all(each.starts and each.first <= each.last <= each.until for each in found)
    for each in found:
        holds(explained(each, now_ms))
    for group in {each.group for each in entries}:
        told = explain(entries, group=group, now_ms=now_ms)
        if told is not None:
            holds(told)
    assert [each for each, _ in about(entries)] == entries
    tracks = Tracks(entries)
    for row in (*tracks.members, tracks.group):
        assert all(span.end_ms is None or span.end_ms >= span.start_ms for span in row.spans)


def test_the_entries_of_a_rebalance_in_any_order_and_with_any_missing() -> None:
    entries = stall().entries
    for seed in range(500):
        chance = random.Random(seed)
        some = [each for each in entries if chance.random() < 0.8]
        chance.shuffle(some)
        found = explain(some)
        if found is not None:
            holds(found)
        for each in cut(some):
            told = explained(each, T0)
            holds(told)
            if each.completed is not None:
                assert diagnosed(each, T0, told.names)[:2] == (told.diagnosis, told.certainty), seed
