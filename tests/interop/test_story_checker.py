"""The story's judges on made-up groups: each kind of fault must be found, and nothing else."""

from __future__ import annotations

import pytest

from tests.interop.programs.python import lines as program
from tests.interop.story.admin_calls import judge
from tests.interop.story.checker import Part, check, last_commits, later_rebalances
from tests.interop.story.lines import (
    AdminCall,
    Assigned,
    CommitFailed,
    Committed,
    Event,
    Heard,
    Killed,
    Left,
    Record,
    Revoked,
    parse_call,
    parse_event,
)

pytestmark = pytest.mark.interop

SESSION_S = 6.0
PRODUCED = [Part("none", 0, 4)]


def record(number: int, *, partition: int = 0, offset: int | None = None) -> Record:
    return Record(partition, number if offset is None else offset, f"k{number}", f"none-{number}")


def assigned(generation: int | None, *owned: int) -> Assigned:
    return Assigned(generation, frozenset(owned))


def revoked(*owned: int) -> Revoked:
    return Revoked(frozenset(owned))


def group(*said: tuple[str, Event]) -> list[Heard]:
    """Lines that are a second apart."""
    return [Heard(float(second), member, event) for second, (member, event) in enumerate(said)]


# One partition goes from "a", which leaves, to "b", which is killed with its last record uncommitted, to "c".
A = [("a", assigned(1, 0)), ("a", record(0)), ("a", Committed(0, 1)), ("a", revoked()), ("a", Left())]
B = [("b", assigned(2, 0)), ("b", record(1)), ("b", Committed(0, 2)), ("b", record(2)), ("b", Killed())]
C = [("c", assigned(3, 0)), ("c", record(2)), ("c", record(3)), ("c", Committed(0, 4)), ("c", Left())]


def problems(*said: tuple[str, Event]) -> list[str]:
    return check(group(*said), PRODUCED, SESSION_S)


def test_a_right_group_has_no_problems() -> None:
    assert problems(*A, *B, *C) == []
    assert last_commits(group(*A, *B, *C)) == {0: 4}


def test_a_double_owner_in_one_generation() -> None:
    (found,) = problems(*A, *B, *C, ("d", assigned(3, 0, 1)))
    assert found == "partition 0 has two owners in generation 3: c and d"


def test_an_owner_that_gives_up_in_the_generation_of_the_next() -> None:
    """As a cooperative member does, whose leader should have let the partition rest for a generation."""
    keeps = [("a", assigned(1, 0, 1)), ("a", Revoked(frozenset([0]), 2)), ("a", assigned(2, 0))]
    everything = [("a", record(number)) for number in range(4)]
    assert problems(*keeps, *everything, ("b", assigned(3, 1))) == []
    (found,) = problems(*keeps, *everything, ("b", assigned(2, 1)))
    assert found == "partition 1 has two owners in generation 2: a and b"


def test_an_owner_that_has_not_noticed_that_another_owned_it_meanwhile() -> None:
    everything = [("a", record(number)) for number in range(4)]
    (found,) = problems(
        ("a", assigned(1, 0, 1)), ("b", assigned(2, 1)), ("a", assigned(3, 0, 1)), *everything
    )
    assert found == "partition 1 has two owners in generation 2: a and b"


def test_a_lost_record() -> None:
    (found,) = problems(
        *A, *B, ("c", assigned(3, 0)), ("c", record(2)), ("c", Committed(0, 3)), ("c", Left())
    )
    assert found == "none-3 was never delivered"


def test_of_many_problems_of_a_kind_five_are_told() -> None:
    found = check([], [Part("gzip", 0, 100)], SESSION_S)
    assert len(found) == 6
    assert found[-1] == "... and 95 more of this kind"


def test_a_record_that_is_skipped() -> None:
    (found,) = problems(*A, *B, ("c", assigned(3, 0)), ("c", record(2)), ("c", record(3, offset=4)))
    assert found == "partition 0: c (generation 3) got offset 4 after 2"


def test_a_commit_that_goes_back() -> None:
    (found,) = problems(*A, *B, *C[:-1], ("c", Committed(0, 3)), ("c", Left()))
    assert found == "partition 0: c (generation 3) committed 3 after c (generation 3) committed 4"


def test_a_commit_that_goes_back_between_two_members() -> None:
    """In generation order, whatever arrived first."""
    late = [("c", Committed(0, 1)), *C[3:]]
    (found,) = problems(*C[:3], *late, *A, *B)
    assert found == "partition 0: c (generation 3) committed 1 after b (generation 2) committed 2"


@pytest.mark.parametrize("first", [0, 1])
def test_a_resume_before_the_commit(first: int) -> None:
    again = [("c", record(number)) for number in range(first, 4)]
    (found,) = problems(*A, *B, C[0], *again)
    assert found == f"partition 0: c (generation 3) began at offset {first}, committed was 2"


def test_a_resume_after_the_commit() -> None:
    (found,) = problems(*A, *B[:3], ("b", revoked()), C[0], ("c", record(3)), ("d", assigned(4, 1)), lost())
    assert found == "partition 0: c (generation 3) began at offset 3, committed was 2"


def lost() -> tuple[str, Event]:
    """A record that would otherwise be lost, in another partition."""
    return "d", record(2, partition=1, offset=0)


def test_the_commit_of_a_killed_member_may_have_been_made() -> None:
    assert problems(*A, *B, C[0], ("c", record(3)), ("c", Committed(0, 4))) == []
    (found,) = problems(
        *A, *B, C[0], ("c", record(4)), ("d", assigned(4, 1)), ("d", record(3, partition=1, offset=0))
    )
    assert found == "partition 0: c (generation 3) began at offset 4, committed was 2"


def test_a_commit_whose_fate_is_unknown_may_have_been_made() -> None:
    unknown = [*B[:2], ("b", Committed(0, 2)), ("b", record(2)), ("b", CommitFailed(0, 3)), ("b", revoked())]
    assert problems(*A, *unknown, *C) == []
    assert problems(*A, *unknown, C[0], *C[2:]) == []


def test_without_a_commit_a_member_begins_at_the_beginning() -> None:
    again = [("c", record(number)) for number in range(1, 4)]
    (found,) = problems(("a", assigned(1, 0)), ("a", record(0)), ("a", revoked()), C[0], *again)
    assert found == "partition 0: c (generation 3) began at offset 1, committed was 0"


def test_partitions_that_are_kept_through_a_rebalance_go_on() -> None:
    kept = [("a", assigned(1, 0, 1)), ("a", record(0)), ("a", record(1)), ("a", revoked(0))]
    on = [("a", assigned(2, 0)), ("b", assigned(2, 1)), ("a", record(2)), ("a", record(3)), ("a", Left())]
    assert problems(*kept, *on) == []


def test_records_and_commits_of_partitions_that_are_not_owned() -> None:
    found = problems(*A, ("a", Committed(0, 1)), *B, *C, ("c", record(3)))
    assert found == [
        "a does not own partition 0, but said Committed(partition=0, offset=1)",
        "c does not own partition 0, but said Record(partition=0, offset=3, key='k3', value='none-3')",
    ]


def test_a_record_that_changes() -> None:
    (found,) = problems(*A, *B, C[0], ("c", Record(0, 2, "k9", "none-9")), *C[2:])
    assert found == "partition 0 offset 2 was none-2, and none-9 to c"


def test_a_record_that_nobody_produced() -> None:
    found = problems(*A, *B, *C[:3], ("c", Record(0, 4, "k5", "none-4")))
    assert found == [
        "c got a record that nobody produced: Record(partition=0, offset=4, key='k5', value='none-4')"
    ]


def told(member: str, *said: tuple[float, Event]) -> list[Heard]:
    return [Heard(at_s, member, event) for at_s, event in said]


@pytest.mark.parametrize(("ended_s", "is_wrong"), [(4.0, False), (5.4, False), (5.6, True)])
def test_without_generations_owners_may_not_overlap_in_time(ended_s: float, is_wrong: bool) -> None:
    first = told("a", (1.0, assigned(None, 0)), (ended_s, revoked()))
    second = told("b", (5.0, assigned(None, 0)))
    found = check(sorted(first + second, key=lambda heard: heard.at_s), [], SESSION_S)
    assert len(found) == is_wrong
    assert all("has two owners at a time" in each for each in found)


@pytest.mark.parametrize(("next_s", "is_wrong"), [(4.0, True), (5.4, True), (6.0, False)])
def test_without_generations_a_killed_member_owns_until_it_can_be_evicted(
    next_s: float, is_wrong: bool
) -> None:
    first = told("a", (1.0, assigned(None, 0)), (2.0, Killed()))
    second = told("b", (next_s, assigned(None, 0)))
    assert len(check(first + second, [], SESSION_S)) == is_wrong


def test_two_owners_without_generations_that_never_end() -> None:
    assert len(check(group(("a", assigned(None, 0)), ("b", assigned(None, 0))), [], SESSION_S)) == 1


# --- admin calls -------------------------------------------------------------------------------------------


def test_an_admin_call_may_fail_as_it_does_against_apache_kafka() -> None:
    calls = [AdminCall("createTopics", True), AdminCall("electLeaders", False, "ELECTION_NOT_NEEDED")]
    verdict = judge(calls, calls)
    assert (verdict.tried, verdict.as_kafka, verdict.problems) == (2, 2, ())


@pytest.mark.parametrize(
    "kafka", [AdminCall("createTopics", True), AdminCall("createTopics", False, "OTHER")]
)
def test_an_admin_call_may_not_fail_otherwise(kafka: AdminCall) -> None:
    verdict = judge([AdminCall("createTopics", False, "INVALID_REQUEST")], [kafka])
    said = kafka.error or "ok"
    assert verdict.problems == (
        f"admin call createTopics failed: INVALID_REQUEST; against Apache Kafka: {said}",
    )
    assert verdict.as_kafka == 0


def test_what_is_not_served_must_fail() -> None:
    kafka = [AdminCall("create_acls", True)]
    refused = judge([AdminCall("create_acls", False, "UNSUPPORTED_VERSION")], kafka)
    assert (refused.tried, refused.as_kafka, refused.problems) == (1, 0, ())
    assert judge(kafka, kafka).problems


def test_a_call_that_was_left_out_is_missed() -> None:
    assert judge([], [AdminCall("createTopics", True)]).problems


# --- lines -------------------------------------------------------------------------------------------------


def test_lines_are_read() -> None:
    assert parse_event('{"event":"assigned","generation":7,"owned":[0,3]}') == assigned(7, 0, 3)
    assert parse_event('{"event":"assigned","generation":null,"owned":[]}') == assigned(None)
    assert parse_event('{"event":"revoked","owned":[3]}') == revoked(3)
    assert parse_event('{"event":"commit_failed","partition":0,"offset":13}') == CommitFailed(0, 13)
    assert parse_event('{"event":"left"}') == Left()
    assert parse_call('{"call":"c","ok":true}') == AdminCall("c", True)


@pytest.mark.parametrize(
    "text", ["", "left", "[]", '{"event":"Left"}', '{"event":"revoked"}', '{"event":"revoked","owned":["0"]}']
)
def test_other_lines_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no line of a member"):
        parse_event(text)


@pytest.mark.parametrize("text", ["", "{}", '{"call":"c","ok":1}', '{"call":"c","ok":false}'])
def test_other_lines_of_an_admin_program_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no line of an admin program"):
        parse_call(text)


def test_rebalances_after_a_moment() -> None:
    before = [("a", assigned(4, 0)), ("b", assigned(5, 1))]
    late = [*before, ("a", assigned(5, 0))]
    assert later_rebalances(group(*before), group(*late)) == []
    for event in (assigned(6, 0), revoked(), assigned(None, 0)):
        (found,) = later_rebalances(group(*before), group(*late, ("a", event)))
        assert found.event == event


@pytest.mark.parametrize("answers", [["new", "old"], ["old", "new", "old"]])
def test_a_program_is_content_when_one_broker_has_heard_of_a_change(answers: list[str]) -> None:
    """A client asks another broker each time, and that one may not know of the change yet."""
    asked = iter(answers)
    program.expect_in_time(lambda: next(asked), "new")


def test_a_program_complains_of_what_no_broker_hears_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "EXPECT_S", 0.0)
    with pytest.raises(AssertionError, match="'old', not 'new'"):
        program.expect_in_time(lambda: "old", "new")
