"""The rings of entries in memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from muster.coordinator.journal.entries import WHOLE_BROKER, Entry
from muster.coordinator.runtime.ring import (
    LAG_ENTRIES_MAX,
    OUTLINE_ENTRIES_MAX,
    SHARD_ENTRIES_MAX,
    Journal,
    together,
)

_number = count()


def entry(
    group: str | None, at_ms: int, shard: int = 0, type: str = "group_created", elements: int = 0
) -> Entry:
    data = {"number": next(_number), "partitions": [["t", n] for n in range(elements)]}
    return Entry(type, at_ms, 1, shard, group, 0, data=data)


def test_a_group_has_its_own_entries_and_those_of_its_shard_by_time() -> None:
    journal = Journal()
    loaded, a1, b1, a2, unloaded = (
        entry(None, 1),
        entry("a", 2),
        entry("b", 3, shard=1),
        entry("a", 4),
        entry(None, 5),
    )
    journal.add([loaded, a1, b1, a2, unloaded])
    assert journal.of("a") == [loaded, a1, a2, unloaded]
    assert journal.of("b") == [b1]
    assert journal.of("c") == []
    assert journal.groups() == ["a", "b"]


def test_what_concerns_the_whole_broker_is_told_of_every_group() -> None:
    journal = Journal()
    moved = entry(None, 2, shard=WHOLE_BROKER, type="clock_moved")
    entries = [entry("a", 1), moved, entry("b", 3, shard=1)]
    journal.add(entries)
    assert journal.of("a") == entries[:2]
    assert journal.of("b") == entries[1:]


def test_what_tells_of_lag_pushes_nothing_else_out() -> None:
    journal = Journal(group_entries_max=3)
    events = [entry("a", at_ms) for at_ms in range(3)]
    lags = [entry("a", 10 + at_ms, type="lag_at_commit") for at_ms in range(LAG_ENTRIES_MAX + 1)]
    journal.add([*events, *lags])
    assert journal.of("a") == [*events, *lags[1:]]
    journal.restore(0, [])
    assert journal.of("a") == [*events, *lags[1:]]


def test_joins_do_not_push_out_what_outlines_a_rebalance() -> None:
    journal = Journal(group_entries_max=3)
    types = ("state_changed", "protocol_chosen", "leader_changed", "assigned", "rebalance_completed")
    outline = [entry("a", at_ms, type=type) for at_ms, type in enumerate(types)]
    joins = [entry("a", 10 + at_ms, type="member_added") for at_ms in range(5)]
    journal.add([*outline, *joins])
    assert journal.of("a") == journal.latest() == [*outline, *joins[2:]]
    journal.restore(0, [])
    assert journal.of("a") == [*outline, *joins[2:]]
    changes = [entry("a", 20 + at_ms, type="state_changed") for at_ms in range(OUTLINE_ENTRIES_MAX + 3)]
    journal.add(changes)
    assert journal.of("a") == changes
    journal.forget(0)
    assert repr(journal) == "<Journal groups=0 weight=0>"


def test_the_newest_of_all_come_in_order() -> None:
    journal = Journal()
    entries = [entry("a", 1), entry("b", 2), entry(None, 2), entry("a", 3), entry("b", 3)]
    journal.add(entries)
    assert {each.data["number"] for each in journal.latest()} == {each.data["number"] for each in entries}
    assert [each.at_ms for each in journal.latest(3)] == [2, 3, 3]
    assert journal.latest(0) == []


def test_entries_of_one_time_stay_in_order() -> None:
    journal = Journal()
    entries = [entry("a", 1) for _ in range(10)]
    journal.add(entries)
    assert journal.of("a") == entries
    assert journal.latest() == entries


def test_a_ring_drops_its_oldest_entries() -> None:
    journal = Journal(group_entries_max=3)
    entries = [entry("a", at_ms) for at_ms in range(5)]
    journal.add(entries)
    assert journal.of("a") == entries[2:]
    of_shard = [entry(None, at_ms) for at_ms in range(SHARD_ENTRIES_MAX + 1)]
    journal.add(of_shard)
    assert [each for each in journal.of("a") if each.group is None] == of_shard[1:]


def test_beyond_the_bound_of_all_the_groups_that_were_silent_for_longest_are_dropped() -> None:
    journal = Journal(weight_max=4)
    journal.add([entry("a", 1), entry("b", 2), entry("c", 3), entry("a", 4)])
    assert journal.groups() == ["a", "b", "c"]
    journal.add([entry("d", 5)])
    assert journal.groups() == ["a", "c", "d"]
    assert len(journal.of("a")) == 2


def test_entries_with_long_lists_count_for_more() -> None:
    journal = Journal(weight_max=10)
    journal.add([entry("a", 1), entry("b", 2, elements=64)])
    assert journal.groups() == ["a", "b"]
    journal.add([entry("b", 3, elements=64)])
    # "a" is dropped to make room, then the older of b's two entries; what is left may be kept.
    assert [each.at_ms for each in journal.of("b")] == [3]
    journal.add([entry("b", 4, elements=800)])
    assert [each.at_ms for each in journal.of("b")] == [4]
    journal.add([entry("b", 5)])
    assert [each.at_ms for each in journal.of("b")] == [5]


def test_long_texts_count_for_more() -> None:
    journal = Journal(weight_max=10)
    journal.add([entry("a", 1), entry("b" * 30_000, 2)])
    assert journal.groups() == ["b" * 30_000], "it weighs more than there is room for, and is kept alone"
    long = {"moves": [["t", 0, None, "m" * 700], ["t", 1, "m" * 700, "n"]], "owned": {"m" * 700: 1}}
    journal.add([entry("a", at_ms) for at_ms in range(3, 9)])
    assert [each.at_ms for each in journal.of("a")] == [3, 4, 5, 6, 7, 8]
    # 1, and 3 for 3 * 572 characters
    journal.add([Entry("assigned", 9, 1, 0, "c", 0, data=long)])
    assert journal.groups() == ["a", "c"]
    journal.add([entry("d", 10)])
    assert journal.groups() == ["c", "d"]


def test_listeners_hear_of_what_is_added() -> None:
    journal = Journal()
    heard: list[Sequence[Entry]] = []
    journal.listeners.append(heard.append)
    entries = [entry("a", 1), entry("b", 2)]
    journal.add(entries)
    journal.add([])
    assert heard == [entries]


def test_what_is_read_back_is_put_in_order_with_what_is_known_and_nobody_is_told() -> None:
    journal = Journal()
    entries = [entry("a", 1), entry(None, 2), entry("a", 3), entry("b", 3), entry("a", 4), entry("a", 5)]
    elsewhere = entry("c", 9, shard=1)
    # The broker saw all but the first, and the store has all but those of 3 (there was no room).
    journal.add([*entries[1:], elsewhere])
    heard: list[Sequence[Entry]] = []
    journal.listeners.append(heard.append)
    stored = [Entry.from_json(each.to_json()) for each in entries if each.at_ms != 3]
    journal.restore(0, stored)
    assert journal.of("a") == [each for each in entries if each.group != "b"]
    assert journal.of("b") == [entries[1], entries[3]]
    assert journal.of("c") == [elsewhere]
    assert heard == []


def test_entries_stay_in_order_if_the_clock_of_the_former_broker_was_ahead() -> None:
    journal = Journal()
    stored = [entry("a", 2_000), entry("a", 3_000)]
    journal.restore(0, stored)
    loaded, later = entry(None, 1_600), entry("a", 1_700)
    journal.add([loaded])
    journal.add([later])
    assert journal.of("a") == together([journal.of("a")]) == [*stored, loaded, later]
    assert together([[], journal.of("a")]) == journal.of("a")
    journal.restore(0, [*stored, loaded, later])
    assert journal.of("a") == [*stored, loaded, later]
    journal.forget(0)
    journal.add([loaded, later])
    assert [each.at_ms for each in journal.of("a")] == [1_600, 1_700]


def test_entries_that_were_not_stored_keep_their_place_if_the_clock_of_the_former_broker_was_ahead() -> None:
    journal = Journal()
    stored = [entry("a", 2_000), entry(None, 3_000)]
    journal.restore(0, stored)
    here = [entry("a", 5), entry("a", 6), entry("a", 7), entry("a", 8)]
    journal.add(here)
    for kept in (here[:3], [here[0], *here[2:]], here[1:], []):
        journal.restore(0, [*stored, *kept])
        assert journal.of("a") == [*stored, *here]


def test_what_only_the_store_knows_goes_before_what_is_later_and_was_not_stored() -> None:
    journal = Journal()
    unstored = entry("a", 1_000)
    journal.add([unstored])
    stored = [entry("a", 900), entry("a", 2_000), entry("a", 5)]
    journal.restore(0, stored)
    assert journal.of("a") == [stored[0], unstored, *stored[1:]]


def test_what_another_broker_has_is_forgotten() -> None:
    journal = Journal(weight_max=3)
    journal.add([entry("a", 1), entry(None, 2), entry("b", 3, shard=1)])
    journal.forget(0)
    assert journal.groups() == ["b"]
    assert [each.at_ms for each in journal.latest()] == [3]
    # Its weight went with it.
    journal.add([entry("c", 4), entry("d", 5)])
    assert journal.groups() == ["b", "c", "d"]
