"""The checker itself: sound histories pass, and each planted violation is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from muster.protocol.compression import Codec
from muster.protocol.record_batch import Record, build
from tests.faults import batches, checker
from tests.faults.batches import Batch, Violation
from tests.faults.checker import Committed, ObservedGroup
from tests.faults.history import Commits, GroupLife, GroupState, Produced, Sent
from tests.support.each import each

PLACE = "orders-0"


def commits() -> Commits:
    """Seven commits of this life in flight, of which the first two are acknowledged; five before it."""
    return Commits("g", "orders", (0, 1), sent=12, acknowledged=7, first_of_life=6)


def committed(number: int) -> dict[int, Committed]:
    return {each: Committed(number, commits().metadata(number)) for each in (0, 1)}


@each("number", [7, 8, 12])
def test_an_acknowledged_commit_or_a_later_one_is_there(number: int) -> None:
    assert checker.check_commits(commits(), committed(number)) == number


@each(
    "found, says",
    [
        (committed(6), "acknowledged commit 7 is lost"),
        ({0: Committed(-1, ""), 1: Committed(-1, "")}, "acknowledged commit 7 is lost"),
        (committed(13), "only 6 to 12 were sent"),
        (committed(7) | {1: committed(8)[1]}, "in part"),
        (committed(7) | {1: Committed(7, commits().metadata(8))}, "offset 7 with"),
        ({0: committed(7)[0]}, "partitions"),
    ],
)
def test_a_commit_that_is_lost_or_nobodys_is_found(found: dict[int, Committed], says: str) -> None:
    with pytest.raises(Violation, match=says):
        checker.check_commits(commits(), found)


def test_a_commit_of_an_earlier_life_does_not_come_back() -> None:
    settled = commits()
    settled.settle(8)
    assert checker.check_commits(settled, committed(8)) == 8
    with pytest.raises(Violation, match="commit 10 is there"):
        checker.check_commits(settled, committed(10))


def producers() -> list[Produced]:
    """An idempotent producer with three batches, two of them acknowledged, and one without an id with two,
    one of them acknowledged."""
    safe = Produced("safe", "orders", 0, 9, [Sent(2, 0, 0), Sent(1, 2, 3), Sent(2, 3)])
    plain = Produced("plain", "orders", 0, -1, [Sent(1, -1, 2), Sent(1)])
    return [safe, plain]


def stored() -> list[Batch]:
    safe, plain = producers()
    found: list[Batch] = []
    for producer, number in ((safe, 0), (plain, 0), (safe, 1), (safe, 2), (plain, 1)):
        sent = producer.batches[number]
        values = tuple(producer.value(number, record) for record in range(sent.records))
        base = found[-1].next_offset if found else 0
        epoch = 0 if producer.idempotent else -1
        found.append(Batch(base, base + len(values), 1, producer.producer_id, epoch, sent.sequence, values))
    return found


def end(found: list[Batch]) -> int:
    return found[-1].next_offset


@each("count", [3, 4, 5])
def test_a_log_with_all_that_was_acknowledged_is_sound(count: int) -> None:
    found = stored()[:count]
    counts = checker.check_log(PLACE, found, end(found), producers())
    assert counts == {"safe": min(count - 1, 3), "plain": 1 + (count == 5)}


def moved(found: list[Batch]) -> list[Batch]:
    """The batches, renumbered with consecutive offsets."""
    base, again = 0, []
    for batch in found:
        again.append(batch._replace(base_offset=base, next_offset=base + len(batch.values)))
        base = again[-1].next_offset
    return again


@each(
    "harm, says",
    [
        (lambda log: log[:2], "acknowledged records are lost: batches 1 to 1 of safe"),
        (lambda log: [], "acknowledged records are lost"),
        (lambda log: [log[0], *log[2:]], "a hole, offset 2 is followed by 3"),
        (lambda log: moved([log[0], log[1], log[3], log[2]]), "a hole, batch 2 of safe where 1 is due"),
        (lambda log: moved([*log, log[3]]), "batch 2 of safe is a duplicate"),
        (lambda log: moved([*log, log[1]]), "batch 0 of plain is a duplicate"),
        (lambda log: moved([log[1], log[0], *log[2:]]), "batch 0 of plain was acknowledged at 2"),
        (
            lambda log: [*log[:2], log[2]._replace(base_sequence=7), *log[3:]],
            "stored as producer 9, sequence 7",
        ),
        (lambda log: [*log[:2], log[2]._replace(producer_id=8), *log[3:]], "stored as producer 8"),
        (lambda log: [*log[:4], log[4]._replace(values=(b"noise",))], "a record that nobody sent"),
        (lambda log: [*log[:4], log[4]._replace(values=(b"plain 7 0/1 ",))], "a hole, batch 7"),
        (lambda log: [*log[:4], log[4]._replace(values=(b"plain 1 0/2 ",))], "has other records"),
        (lambda log: [*log[:4], log[4]._replace(leader_epoch=0)], "leader epoch 0"),
    ],
)
def test_a_log_that_lost_or_gained_anything_is_found(
    harm: Callable[[list[Batch]], list[Batch]], says: str
) -> None:
    found = harm(stored())
    with pytest.raises(Violation, match=says):
        checker.check_log(PLACE, found, end(found) if found else 0, producers())


def test_a_log_that_does_not_end_where_it_says_is_found() -> None:
    with pytest.raises(Violation, match="said to end at 8, and ends at 7"):
        checker.check_log(PLACE, stored(), 8, producers())


def test_what_was_read_once_stays_and_what_was_not_never_comes() -> None:
    safe, plain = producers()
    safe.settle(3)
    plain.settle(1)
    log = stored()
    checker.check_log(PLACE, log[:4], end(log[:4]), [safe, plain])
    with pytest.raises(Violation, match="batches 2 to 2 of safe"):
        checker.check_log(PLACE, log[:3], end(log[:3]), [safe, plain])
    with pytest.raises(Violation, match="after its producer was gone"):
        checker.check_log(PLACE, log, end(log), [safe, plain])


def test_a_retried_batch_that_is_not_there_is_found() -> None:
    safe, _ = producers()
    checker.check_sent_once(PLACE, safe, 3)
    with pytest.raises(Violation, match="2 batches of safe, which sent 3"):
        checker.check_sent_once(PLACE, safe, 2)


STABLE = GroupState(4, (("m", b"mine"),))
NEXT = GroupState(5, (("m", b"mine, again"),))
EMPTY = GroupState(5, ())


def observed(now: GroupState = STABLE) -> ObservedGroup:
    beats = {
        ("m", generation): 0 if now.members and generation == now.generation else 22
        for generation in (3, 4, 5)
    }
    syncs = {(member, now.generation): (0, assignment) for member, assignment in now.members}
    return ObservedGroup(now.state, dict(now.members), beats, syncs)


@each("under_way", [None, NEXT, EMPTY])
def test_a_group_is_as_it_was_acknowledged_or_as_the_request_under_way_makes_it(
    under_way: GroupState | None,
) -> None:
    life = GroupLife("g", STABLE, under_way)
    assert checker.check_group(life, observed()) == STABLE
    if under_way is not None:
        assert checker.check_group(life, observed(under_way)) == under_way


@each(
    "found, says",
    [
        (observed(EMPTY), "is none of"),
        (observed(NEXT), "is none of"),
        (replace(observed(), state="PreparingRebalance"), "is none of"),
        (replace(observed(), assignments={"m": b"another's"}), "is none of"),
        (replace(observed(), assignments={"m": b"mine", "stranger": b""}), "is none of"),
        (replace(observed(), heartbeats={("m", 4): 27}), "gets 27 for a heartbeat"),
        (replace(observed(), heartbeats={("m", 4): 25}), "gets 25 for a heartbeat"),
        (replace(observed(), heartbeats={("m", 3): 0}), "at generation 3 gets 0"),
        (replace(observed(), syncs={("m", 4): (0, b"another's")}), "is synced 0"),
        (replace(observed(), syncs={("m", 4): (22, b"")}), "is synced 22"),
    ],
)
def test_an_impossible_group_is_found(found: ObservedGroup, says: str) -> None:
    with pytest.raises(Violation, match=says):
        checker.check_group(GroupLife("g", STABLE), found)


@each("generation", [1, 3, 4, 6])
def test_an_unexplained_generation_is_found(generation: int) -> None:
    life = GroupLife("g", STABLE)
    checker.check_next_generation(life, 5)
    with pytest.raises(Violation, match=f"unexplained generation {generation}"):
        checker.check_next_generation(life, generation)


def test_a_producer_id_given_out_twice_is_found() -> None:
    checker.check_producer_ids([0, 1, 1000])
    with pytest.raises(Violation, match=r"\[1\] were given out twice"):
        checker.check_producer_ids([0, 1, 1000, 1])


def test_a_lost_topic_and_a_strange_one_are_found() -> None:
    checker.check_topics({"a"}, {"a", "b"}, ["a", "b"])
    with pytest.raises(Violation, match=r"topics \['a'\] are lost"):
        checker.check_topics({"a"}, {"a", "b"}, ["b"])
    with pytest.raises(Violation, match=r"topics \['c'\] are nobody's"):
        checker.check_topics({"a"}, {"a", "b"}, ["a", "c"])


def record_set(codec: Codec = Codec.NONE) -> bytes:
    contents = [Record(7 + index, 1_700_000_000_000, b"key", b"value %d" % index) for index in range(3)]
    return build(contents, codec=codec, leader_epoch=2, producer_id=5, producer_epoch=0, base_sequence=1)


@each("codec", [Codec.NONE, Codec.GZIP])
def test_batches_are_read_without_muster(codec: Codec) -> None:
    values = (b"value 0", b"value 1", b"value 2")
    assert batches.read(record_set(codec) * 2, PLACE) == [Batch(7, 10, 2, 5, 0, 1, values)] * 2


def test_any_harmed_byte_that_the_checksum_covers_is_found() -> None:
    sound = record_set()
    for position in range(17, len(sound)):
        harmed = bytearray(sound)
        harmed[position] ^= 1
        with pytest.raises(Violation, match="checksum"):
            batches.read(bytes(harmed), PLACE)


@each("cut", [1, 50, 70])
def test_a_batch_that_is_not_whole_is_found(cut: int) -> None:
    with pytest.raises(Violation, match=r"behind the last batch|no whole batch"):
        batches.read(record_set()[:-cut], PLACE)
