"""Small groups and the targets that server-side assignors compute for them, worked out by hand.

Topics are numbers here, and so are their hash codes: topic 17 shares a bucket of 16 with topic 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

import pytest

from muster.coordinator.group.consumer.assignors import ASSIGNORS, Assignment, Spec, Subscriber

Target = Mapping[int, Iterable[int]]
Members = Mapping[str, tuple[frozenset[UUID], Target]]


def topics(*numbers: int) -> frozenset[UUID]:
    return frozenset(UUID(int=number) for number in numbers)


def target(given: Target) -> Assignment:
    return {UUID(int=topic): frozenset(numbers) for topic, numbers in given.items()}


def alike(counts: Mapping[int, int], **members: Target) -> Spec:
    """Members that subscribe to all topics, with their current targets."""
    return spec(counts, {each: (topics(*counts), has) for each, has in members.items()}, homogeneous=True)


def spec(
    counts: Mapping[int, int],
    members: Members,
    *,
    homogeneous: bool = False,
    static: Mapping[str, str] | None = None,
) -> Spec:
    return Spec(
        {
            each: Subscriber((static or {}).get(each), None, subscribed, target(has))
            for each, (subscribed, has) in members.items()
        },
        {UUID(int=topic): count for topic, count in counts.items()},
        homogeneous,
    )


def check(assignor: str, given: Spec, **expected: Target) -> None:
    assert ASSIGNORS[assignor](given) == {each: target(has) for each, has in expected.items()}


@pytest.mark.parametrize("name", ASSIGNORS)
@pytest.mark.parametrize("homogeneous", [False, True])
def test_groups_with_nobody_or_nothing(name: str, homogeneous: bool) -> None:
    check(name, spec({}, {}, homogeneous=homogeneous))
    check(name, spec({}, {"a": (topics(), {})}, homogeneous=homogeneous), a={})
    gone: Target = {9: [0]}
    check(name, spec({}, {"a": (topics(), gone)}, homogeneous=homogeneous), a={})
    check(name, spec({1: 0}, {"a": (topics(1), {})}, homogeneous=homogeneous), a={})


# --- uniform, members that subscribe to the same ------------------------------------------------------------


def test_the_last_members_get_the_longer_shares_at_first() -> None:
    check("uniform", alike({1: 3, 2: 2}, a={}, b={}), a={1: [0, 1]}, b={1: [2], 2: [0, 1]})
    check("uniform", alike({1: 1}, a={}, b={}, c={}), a={}, b={}, c={1: [0]})


def test_topics_are_dealt_out_by_their_bucket() -> None:
    check("uniform", alike({18: 1, 1: 1}, a={}, b={}), a={1: [0]}, b={18: [0]})
    check("uniform", alike({17: 1, 1: 1}, a={}, b={}), a={17: [0]}, b={1: [0]})


def test_a_newcomer_gets_what_the_others_have_too_much() -> None:
    given = alike({1: 8}, a={1: [0, 1, 2, 3]}, b={1: [4, 5, 6, 7]}, c={})
    check("uniform", given, a={1: [0, 1, 2]}, b={1: [4, 5, 6]}, c={1: [3, 7]})


def test_who_has_a_longer_share_keeps_it() -> None:
    given = alike({1: 5}, a={1: [0]}, b={1: [1, 2]}, c={})
    check("uniform", given, a={1: [0]}, b={1: [1, 2]}, c={1: [3, 4]})


def test_what_a_member_left_goes_to_those_below_their_share() -> None:
    check("uniform", alike({1: 3, 2: 3}, a={1: [0, 1]}, b={2: [1]}), a={1: [0, 1, 2]}, b={2: [0, 1, 2]})


def test_topics_are_given_up_from_the_last_bucket_on() -> None:
    given = alike({1: 2, 2: 2}, a={2: [0, 1], 1: [0, 1]}, b={})
    check("uniform", given, a={1: [0, 1]}, b={2: [0, 1]})
    # Within one bucket, the order in the target decides.
    given = alike({1: 2, 17: 2}, a={17: [0, 1], 1: [0, 1]}, b={})
    check("uniform", given, a={17: [0, 1]}, b={1: [0, 1]})


def test_topics_that_are_gone_still_count_for_the_size_of_a_table() -> None:
    # In a table of 16 buckets topic 17 comes before topic 2; in one of 32 it comes after.
    few: Target = {2: [0], 17: [0]}
    check("uniform", alike({2: 1, 17: 1}, a=few, b={}), a={17: [0]}, b={2: [0]})
    many = {**few, **{topic: [0] for topic in range(50, 61)}}
    check("uniform", alike({2: 1, 17: 1}, a=many, b={}), a={2: [0]}, b={17: [0]})


def test_partitions_are_given_up_from_the_last_bucket_on() -> None:
    """16 is in the first of 16 buckets."""
    nothing: dict[str, Target] = {f"b{index}": {} for index in range(17)}
    given = alike({1: 18}, a={1: [1, 16]}, **nothing)
    assert ASSIGNORS["uniform"](given)["a"] == target({1: [16]})


def test_a_set_that_is_copied_is_larger_at_twelve_than_one_that_grew() -> None:
    """It has 32 buckets, in which 16 and 17 are not among the first."""
    counts = {17: 1} | dict.fromkeys(range(1, 12), 1)
    nothing: dict[str, Target] = {letter: {} for letter in "abcdefghijkl"}
    assert ASSIGNORS["uniform"](alike(counts, **nothing))["l"] == target({17: [0]})

    given = alike({1: 17, 2: 5}, a={1: [*range(1, 12), 16]}, b={})
    check("uniform", given, a={1: range(1, 12)}, b={1: [0, 12, 13, 14, 15, 16], 2: range(5)})


def test_a_target_that_stays_is_the_same_object() -> None:
    given = alike({1: 4}, a={1: [0, 3]}, b={1: [1, 2]})
    result = ASSIGNORS["uniform"](given)
    assert all(result[each] is given.members[each].assigned for each in "ab")


# --- uniform, members that subscribe to different topics ----------------------------------------------------


def test_topics_with_less_choice_are_dealt_out_first() -> None:
    given = spec({1: 2, 2: 2}, {"a": (topics(1), {}), "b": (topics(1, 2), {})})
    check("uniform", given, a={1: [0, 1]}, b={2: [0, 1]})


def test_of_equal_topics_the_lowest_id_comes_first_as_a_signed_number() -> None:
    negative = 1 << 127
    both = topics(1, negative)
    check(
        "uniform",
        spec({1: 1, negative: 1}, {"a": (both, {}), "b": (both, {})}),
        a={negative: [0]},
        b={1: [0]},
    )


def test_the_lowest_load_rises_first() -> None:
    # Topic 1 has the most partitions per subscriber; of the others, 2 comes before 3.
    members: Members = {"a": (topics(2, 3), {}), "b": (topics(2, 3), {}), "c": (topics(1, 2, 3), {})}
    given = spec({1: 2, 2: 3, 3: 3}, members)
    check("uniform", given, a={2: [0, 2], 3: [2]}, b={2: [1], 3: [0, 1]}, c={1: [0, 1]})


def test_the_last_partitions_of_the_highest_load_move() -> None:
    given = spec({1: 4}, {"a": (topics(1), {1: [0, 1, 2, 3]}), "b": (topics(1), {})})
    check("uniform", given, a={1: [0, 1]}, b={1: [3, 2]})


def test_a_high_load_of_other_topics_stays_high() -> None:
    given = spec(
        {1: 4, 2: 2},
        {"a": (topics(1, 2), {1: [0, 1, 2, 3]}), "b": (topics(2), {2: [0, 1]}), "c": (topics(2), {})},
    )
    check("uniform", given, a={1: [0, 1, 2, 3]}, b={2: [0]}, c={2: [1]})


def test_loads_that_differ_by_one_along_a_chain_stay() -> None:
    given = spec(
        {1: 3, 2: 3},
        {"a": (topics(1), {1: [0]}), "b": (topics(1, 2), {1: [1, 2]}), "c": (topics(2), {2: [0, 1, 2]})},
    )
    check("uniform", given, a={1: [0]}, b={1: [1, 2]}, c={2: [0, 1, 2]})


def test_topics_no_longer_subscribed_go_to_others() -> None:
    given = spec({1: 2, 2: 1}, {"a": (topics(1), {1: [0], 2: [0]}), "b": (topics(1, 2), {})})
    check("uniform", given, a={1: [0, 1]}, b={2: [0]})


# --- uniform, targets that cannot be ------------------------------------------------------------------------


@pytest.mark.parametrize("homogeneous", [False, True])
def test_what_does_not_exist_or_belongs_to_another_is_dropped(homogeneous: bool) -> None:
    members: Members = {
        "a": (topics(1), {1: [0, 7]}),
        "b": (topics(1), {1: [0, 1]}),
        "c": (topics(1), {1: [0]}),
        "d": (topics(1), {1: [4]}),
    }
    given = spec({1: 4}, members, homogeneous=homogeneous)
    check("uniform", given, a={1: [0]}, b={1: [1]}, c={1: [2]}, d={1: [3]})


@pytest.mark.parametrize("homogeneous", [False, True])
def test_a_topic_without_partitions_in_a_target_is_dropped(homogeneous: bool) -> None:
    both = topics(1, 2)
    given = spec({1: 1, 2: 1}, {"a": (both, {1: [], 2: [0]}), "b": (both, {1: [0]})}, homogeneous=homogeneous)
    check("uniform", given, a={2: [0]}, b={1: [0]})


@pytest.mark.parametrize("name", ASSIGNORS)
@pytest.mark.parametrize("homogeneous", [False, True])
def test_a_topic_without_a_count_is_an_error(name: str, homogeneous: bool) -> None:
    with pytest.raises(KeyError):
        ASSIGNORS[name](spec({}, {"a": (topics(1), {})}, homogeneous=homogeneous))


# --- range --------------------------------------------------------------------------------------------------


def test_a_range_gives_chunks_in_the_order_of_member_ids() -> None:
    check("range", alike({1: 5}, b={1: [0, 1]}, a={}), a={1: [0, 1, 2]}, b={1: [3, 4]})


def test_topics_with_as_many_partitions_are_divided_alike() -> None:
    given = alike({1: 3, 2: 3, 3: 2}, a={}, b={})
    check("range", given, a={1: [0, 1], 2: [0, 1], 3: [0]}, b={1: [2], 2: [2], 3: [1]})


def test_later_members_get_nothing_when_there_are_too_few_partitions() -> None:
    check("range", alike({1: 2}, c={}, b={}, a={}), a={1: [0]}, b={1: [1]}, c={})


def test_static_members_come_first_in_the_order_of_their_instances() -> None:
    members: Members = {each: (topics(1), {}) for each in "abcd"}
    given = spec({1: 4}, members, homogeneous=True, static={"c": "second", "d": "first"})
    check("range", given, d={1: [0]}, c={1: [1]}, a={1: [2]}, b={1: [3]})


def test_ids_compare_as_utf_16() -> None:
    """A character beyond the BMP is two units, which sort before the last characters of the BMP."""
    beyond, last = "\N{GRINNING FACE}", "\N{FULLWIDTH TILDE}"
    check("range", alike({1: 2}, **{last: {}, beyond: {}}), **{beyond: {1: [0]}, last: {1: [1]}})
    half = beyond.encode("utf-16-le")[:2].decode("utf-16-le", "surrogatepass")
    check("range", alike({1: 2}, **{beyond: {}, half: {}}), **{half: {1: [0]}, beyond: {1: [1]}})


def test_each_topic_is_divided_among_its_own_subscribers() -> None:
    given = spec({1: 3, 2: 2}, {"a": (topics(1), {}), "b": (topics(1, 2), {}), "c": (topics(2), {})})
    check("range", given, a={1: [0, 1]}, b={1: [2], 2: [0]}, c={2: [1]})
