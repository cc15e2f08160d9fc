"""Rebalances of consumer groups (KIP-848) in the table: what explanations say, however the journal is split
into batches. No Spark."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from muster.coordinator.journal.explain.cost import moved
from muster.coordinator.journal.explain.rebalances import cut
from muster.pipeline.journal.entries import read
from muster.pipeline.journal.rebalances import explained, rows_of
from tests.journal.explain.consumer.stories import told
from tests.pipeline.replays import Replay, Row, batches

SHARD = 3
LIFE = """
topic orders 4
topic refunds 2

alice beat topics=orders rebalance=30s
advance 1s
bob beat topics=orders
alice beat
advance 2s
alice beat owned=orders-0,orders-1
bob beat
advance 20s
alice beat
bob beat
advance 20s
grow-topic orders 6
alice beat
bob beat
advance 20s
bob beat topics=orders,refunds
bob beat owned=orders-2,orders-4,refunds-0,refunds-1
alice beat
bob beat
alice beat
advance 20s
reload
advance 20s
alice beat
bob beat
advance 10s
carol beat topics=orders
alice beat
bob beat
carol beat
advance 20s
bob beat
carol beat
alice beat
advance 20s
bob beat
carol beat
bob beat owned=orders-2,orders-4,refunds-0,refunds-1
carol beat
bob beat
carol beat
advance 40m
dave beat topics=orders
advance 1s
dave beat
"""
"""Moves, a grown topic, another subscription, another coordinator, a member that does not revoke, and expired
sessions."""

JOINS = """
topic orders 6

alice beat topics=orders rebalance=300s
advance 1s
alice beat owned=orders-0,orders-1,orders-2,orders-3,orders-4,orders-5
advance 20s
alice beat
bob beat topics=orders
advance 2s
bob beat
carol beat topics=orders
advance 2s
carol beat
bob beat
alice beat
advance 2s
alice beat owned=orders-0,orders-1
bob beat
carol beat
bob beat
carol beat
advance 2s
alice beat
bob beat
carol beat
"""
"""Two members join one after the other: one rebalance with two targets."""


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return [(b"orders", each.to_json(), SHARD, at) for at, each in enumerate(told(LIFE))]


def whole(rows: list[Row]) -> dict[str, dict[str, Any]]:
    records = (read(offset, value) for _, value, _, offset in rows)
    found = explained((SHARD, "orders", each) for each in records if each is not None)
    return {each["rebalance_id"]: each for each in found}


def test_rows_of_the_table(rows: list[Row]) -> None:
    found = list(whole(rows).values())
    causes = {start["cause"] for each in found for start in each["starts"]}
    assert {"member joined", "topics changed", "subscription or protocols changed"} <= causes
    assert "session expired" in causes
    slow = [each for each in found if any(one["cause"] == "revocation timed out" for one in each["starts"])]
    assert len(slow) == 1
    assert slow[0]["restarts"] >= 1
    joined = found[1]
    assert (joined["cause"], joined["diagnosis"], joined["from_state"]) == (
        "member joined",
        "new-member",
        "Stable",
    )
    assert (joined["unowned_partitions"], joined["unowned_max_ms"], joined["moved"]) == (2, 0, 2)
    assert [each["since_ms"] for each in joined["moves"]] == [joined["ended_ms"]] * 2
    assert joined["members_before"] == 1
    assert (joined["type"], joined["sync_ms"]) == ("consumer", None)
    assert joined["target_ms"] + joined["reconcile_ms"] == joined["duration_ms"]
    assert found[0]["from_state"] == "Empty"
    assert all(each["began_in_sight"] for each in found)


@pytest.mark.parametrize("story", [LIFE, JOINS], ids=["life", "joins"])
def test_counts_are_those_of_all_targets(story: str) -> None:
    entries = told(story)
    rebalances = cut(entries)
    assert any(len(each.targets) > 1 for each in rebalances)
    records = [(SHARD, "orders", read(at, each.to_json())) for at, each in enumerate(entries)]
    found = list(explained((shard, group, each) for shard, group, each in records if each is not None))
    assert len(found) == len(rebalances)
    for row, rebalance in zip(found, rebalances, strict=True):
        change = moved(rebalance)
        if change is None:
            assert "moves" not in row
            continue
        for name in ("partitions", "kept", "moved", "lost", "truncated"):
            assert row[name] == getattr(change, name), (row["rebalance_id"], name)
        assert len(row["moves"]) == len(change.moves)
        assert row["bounced"] <= row["moved"]


@pytest.mark.parametrize("size", [1, 2, 5, 13, sys.maxsize])
def test_pieces_say_what_the_whole_journal_says(rows: list[Row], size: int) -> None:
    replay = Replay()
    found: dict[str, dict[str, Any]] = {}
    for batch in batches(rows, size):
        for shard, piece in replay.take(batch):
            found |= {each["rebalance_id"]: each for each in rows_of(shard, piece)}
    assert found == whole(rows)
