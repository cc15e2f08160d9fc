"""The drills' checkers: sound histories pass, and each planted violation is found."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from tests.faults.batches import Violation
from tests.faults.cluster import audit, checker
from tests.faults.cluster.history import (
    Claim,
    Commit,
    GroupHistory,
    OffsetWrite,
    Owners,
    Produced,
    Seen,
    Write,
    value,
)
from tests.support.each import each

PLACE = "here"


# --- commits ------------------------------------------------------------------------------------------------


def commits() -> list[Commit]:
    """10 and 20 were acknowledged, at 2 and 4; the outcome of 30, sent at 5, is unknown."""
    return [Commit(10, 1, 2), Commit(20, 3, 4), Commit(30, 5)]


@each("seen", [Seen(20, 4.5, 5), Seen(30, 4.5, 6), Seen(10, 3.5, 4.5), Seen(20, 3.5, 4.5), Seen(-1, 1, 1.5)])
def test_an_offset_that_was_acknowledged_or_sent_since_is_sound(seen: Seen) -> None:
    checker.check_commits(PLACE, commits(), [seen])


@each(
    "seen, says",
    [
        (Seen(10, 4.5, 5), "offset 10 is committed, and 20 was acknowledged before"),
        (Seen(-1, 2.5, 3), "offset -1 is committed, and 10 was acknowledged"),
        (Seen(40, 5, 6), "offset 40 is committed, which nobody has sent"),
        (Seen(30, 4.2, 4.5), "offset 30 is committed, which nobody has sent"),
    ],
)
def test_a_commit_that_is_lost_or_nobodys_is_found(seen: Seen, says: str) -> None:
    with pytest.raises(Violation, match=says):
        checker.check_commits(PLACE, commits(), [seen])


def history(first_offset: int, begun_at: float = 4.5) -> GroupHistory:
    """A member that begins to read partition 0 at `first_offset`."""
    group = GroupHistory("orders", {0: commits()})
    stint = group.begin("late", 0, begun_at)
    group.read(stint, first_offset, b"x", 6)
    return group


@each("offset", [20, 30])
def test_a_member_begins_where_the_group_has_committed(offset: int) -> None:
    checker.check_stints(history(offset))


def test_a_group_without_commits_begins_at_the_beginning() -> None:
    group = history(0)
    group.commits.clear()
    checker.check_stints(group)
    skipping = history(1)
    skipping.commits.clear()
    with pytest.raises(Violation, match="offset 1 is committed, which nobody"):
        checker.check_stints(skipping)


@each("offset", [0, 10, 25, 31])
def test_a_member_that_begins_elsewhere_is_found(offset: int) -> None:
    with pytest.raises(Violation, match="partition 0, begun by late"):
        checker.check_stints(history(offset))


def test_a_member_that_skips_or_finds_other_records_is_found() -> None:
    group = history(20)
    (stint,) = group.stints
    with pytest.raises(ValueError, match="read 22 in place of 21"):
        group.read(stint, 22, b"y", 7)
    other = group.begin("other", 0, 8)
    with pytest.raises(ValueError, match="where b'x' was read before"):
        group.read(other, 20, b"z", 9)
    with pytest.raises(ValueError, match="again at 20, where b'x'"):
        group.read_again(stint, 20, b"z")


@each("offsets", [[5, 5, 9], [0, 1]])
def test_offsets_that_only_grow_are_sound(offsets: list[int]) -> None:
    checker.check_offset_writes(OffsetWrite("orders", "t", 0, each) for each in offsets)


@each("offsets, says", [([5, 9, 8], "offset 8 was written after 9"), ([5, None], "offset 5 was deleted")])
def test_an_offset_that_goes_back_or_away_is_found(offsets: list[int | None], says: str) -> None:
    with pytest.raises(Violation, match=says):
        checker.check_offset_writes(OffsetWrite("orders", "t", 0, each) for each in offsets)
    # Other partitions and groups are independent.
    checker.check_offset_writes(
        OffsetWrite("orders", "t", number, offset or 0) for number, offset in enumerate(offsets)
    )


def test_an_offset_that_was_sent_twice_may_come_late_and_no_other() -> None:
    repeated = {("orders", 0): {8}}
    checker.check_offset_writes((OffsetWrite("orders", "t", 0, each) for each in (8, 9, 8, 10)), repeated)
    with pytest.raises(Violation, match="offset 7 was written after 9"):
        checker.check_offset_writes((OffsetWrite("orders", "t", 0, each) for each in (9, 8, 7)), repeated)


def test_an_older_commit_is_found_only_if_it_was_sent_twice() -> None:
    commits = [Commit(8, 1, 9), Commit(9, 10, 11)]
    checker.check_commits(PLACE, commits, [Seen(8, 12, 13)], {8})
    with pytest.raises(Violation, match="offset 8 is committed, and 9 was acknowledged before"):
        checker.check_commits(PLACE, commits, [Seen(8, 12, 13)], {7})
    with pytest.raises(Violation, match="which nobody has sent"):
        checker.check_commits(PLACE, commits, [Seen(7, 12, 13)], {7})


def test_commits_that_took_long_are_told_from_others() -> None:
    assert Commit(5, sent_at=1).took_long(4)
    assert Commit(5, sent_at=1, acknowledged_at=5).took_long(4)
    assert not Commit(5, sent_at=1, acknowledged_at=2).took_long(4)


# --- records ------------------------------------------------------------------------------------------------


def produced() -> list[Produced]:
    """Two producers' records: three of a, all acknowledged; two of b, one of them acknowledged."""
    return [Produced("a", 0, 3, {0: 0, 1: 2, 2: 3}), Produced("b", 0, 2, {0: 1})]


def log() -> list[bytes]:
    return [value(name, 0, number) for name, number in (("a", 0), ("b", 0), ("a", 1), ("a", 2), ("b", 1))]


@each("count", [4, 5])
def test_a_log_with_all_that_was_acknowledged_is_sound(count: int) -> None:
    checker.check_log(PLACE, log()[:count], produced())


@each(
    "harm, says",
    [
        (lambda log: log[:3], r"acknowledged records \[2\] of a are lost"),
        (lambda log: [], "acknowledged records"),
        (lambda log: [*log, log[4]], "record 1 of b is there twice"),
        (lambda log: [log[0], *log], "record 0 of a is there twice"),
        (lambda log: [log[1], log[0], *log[2:]], r"record 0 of b is at \[0\], acknowledged at 1"),
        (lambda log: [log[0], log[1], log[3]], "record 1 of a is missing before 2"),
        (lambda log: [*log, value("b", 0, 2)], "nobody sent at offset 5"),
        (lambda log: [*log, b"noise"], "nobody sent at offset 5"),
    ],
)
def test_a_log_that_lost_or_gained_anything_is_found(
    harm: Callable[[list[bytes]], list[bytes]], says: str
) -> None:
    with pytest.raises(Violation, match=says):
        checker.check_log(PLACE, harm(log()), produced())


def test_what_is_acknowledged_further_on_is_judged_when_that_is_read() -> None:
    checker.check_log(PLACE, log()[:3], [each.up_to(3) for each in produced()])
    with pytest.raises(Violation, match=r"\[1\] of a are lost"):
        checker.check_log(PLACE, log()[:2], [each.up_to(3) for each in produced()])


def test_a_record_acknowledged_without_its_offset_is_judged_with_the_ones_behind_it() -> None:
    of_a = Produced("a", 0, 3, {0: 0, 1: None, 2: 3})
    of_b = produced()[1]
    checker.check_log(PLACE, log(), [of_a, of_b])
    checker.check_log(PLACE, log()[:2], [of_a.up_to(2), of_b.up_to(2)])
    with pytest.raises(Violation, match=r"\[1, 2\] of a are lost"):
        checker.check_log(PLACE, log()[:2], [of_a.up_to(4), of_b.up_to(2)])
    last = Produced("a", 0, 3, {0: 0, 1: 2, 2: None})
    checker.check_log(PLACE, log()[:3], [last.up_to(3), of_b.up_to(3)])
    with pytest.raises(Violation, match=r"\[2\] of a are lost"):
        checker.check_log(PLACE, log()[:3], [last, of_b])


def test_what_is_committed_was_read() -> None:
    group = GroupHistory("orders", reads={0: dict(enumerate(log()))})
    checker.check_reads(group, 0, log(), 5)
    checker.check_reads(group, 0, log()[:3], 3)  # the rest has not been read back yet
    del group.reads[0][2]
    checker.check_reads(group, 0, log(), 2)
    with pytest.raises(Violation, match=r"offsets \[2\] are committed, and nobody has read them"):
        checker.check_reads(group, 0, log(), 5)
    group.reads[0][2] = b"other"
    with pytest.raises(Violation, match="was read at offset 2"):
        checker.check_reads(group, 0, log(), 5)


# --- generations and leases ---------------------------------------------------------------------------------


def owners(generation: int, **owned: list[int]) -> Owners:
    return Owners.of(
        "orders", generation, [(name, [("t", each) for each in parts]) for name, parts in owned.items()]
    )


def test_generations_with_one_owner_each_are_sound() -> None:
    checker.check_owners([owners(1, a=[0, 1]), owners(2, a=[0], b=[1]), owners(2, a=[0]), owners(3)])


@each(
    "written, says",
    [
        ([owners(1, a=[0, 1], b=[1])], "belongs to a and to b"),
        ([owners(1, a=[0], b=[1]), owners(1, a=[1], b=[0])], "generation 1: .* belongs to"),
        ([owners(2, a=[0]), owners(1, a=[0])], "generation 1 was written after generation 2"),
    ],
)
def test_two_owners_and_generations_that_go_back_are_found(written: list[Owners], says: str) -> None:
    with pytest.raises(Violation, match=says):
        checker.check_owners(written)


def test_a_rebalance_is_found() -> None:
    checker.check_no_rebalance("orders", (3, 7), (3, 7))
    for after in ((4, 7), (3, 8), (4, 8)):
        with pytest.raises(Violation, match="orders has rebalanced"):
            checker.check_no_rebalance("orders", (3, 7), after)


CLAIMS = [Claim("group 1", 5, 1, 10.0), Claim("group 2", 3, 2, 11.0), Claim("group 1", 6, 2, 20.0)]
"""Node 2 takes over group 1 at 20."""


@each(
    "write",
    [
        Write("group 1", 5, 1, 19.9, "records"),
        Write("group 1", 6, 2, 20.1, "records"),
        Write("group 2", 3, 2, 30.0, "records"),
        Write("group 1", None, 1, 15.0, "logs"),
    ],
)
def test_the_holder_may_write(write: Write) -> None:
    checker.check_writes(CLAIMS, [write])


@each(
    "write, says",
    [
        (Write("group 1", 6, 1, 20.1, "records"), r"under epoch 6, which is of node \{2\}"),
        (Write("group 1", 5, 1, 20.1, "records"), "after epoch 6 of node 2 was committed"),
        (Write("group 1", None, 1, 20.1, "logs"), "after epoch 6 of node 2 was committed"),
        (Write("group 1", 5, 1, 9.0, "records"), "after any epoch"),
        (Write("group 1", 4, 1, 12.0, "records"), "which is of node nobody"),
        (Write("group 3", 1, 1, 12.0, "records"), "which is of node nobody"),
        (Write("group 1", 5, 0, 12.0, "records"), "node 0 has written"),
    ],
)
def test_a_write_by_whoever_is_fenced_is_found(write: Write, says: str) -> None:
    with pytest.raises(Violation, match=says):
        checker.check_writes(CLAIMS, [write])


def test_an_epoch_is_given_once() -> None:
    checker.check_epochs(CLAIMS, {"group 1": 4, "group 2": 2})
    with pytest.raises(Violation, match="group 1: epoch 5 was given after 5"):
        checker.check_epochs(CLAIMS, {"group 1": 5})
    with pytest.raises(Violation, match="group 1: epoch 6 was given after 6"):
        checker.check_epochs([*CLAIMS, replaced(CLAIMS[2], node=3)], {})


def replaced(claim: Claim, **changes: int) -> Claim:
    return claim._replace(**changes)


# --- records in the database --------------------------------------------------------------------------------


def text(said: str | None) -> bytes:
    return struct.pack(">h", -1) if said is None else struct.pack(">h", len(said)) + said.encode()


def blob(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def test_offsets_are_read_from_their_records() -> None:
    key = struct.pack(">h", 1) + text("orders") + text("t") + struct.pack(">i", 7)
    committed = struct.pack(">hqi", 3, 41, -1) + text("") + struct.pack(">q", 0)
    assert audit.record(key, committed) == OffsetWrite("orders", "t", 7, 41)
    assert audit.record(key, None) == OffsetWrite("orders", "t", 7, None)


def test_owners_are_read_from_their_records() -> None:
    assignment = struct.pack(">hi", 0, 1) + text("t") + struct.pack(">iii", 2, 4, 6) + blob(b"")
    member = text("m") + text("static") + text("client") + text("/host") + struct.pack(">ii", 1, 2)
    other = text("n") + text(None) + text("client") + text("/host") + struct.pack(">ii", 1, 2)
    head = struct.pack(">h", 3) + text("consumer") + struct.pack(">i", 9) + text("range") + text("m")
    group = head + struct.pack(">qi", 5, 2) + member + blob(b"sub") + blob(assignment) + other + blob(b"") * 2
    key = struct.pack(">h", 2) + text("orders")
    assert audit.record(key, group) == Owners.of("orders", 9, [("static", [("t", 4), ("t", 6)]), ("n", [])])
    assert audit.record(key, None) is None
