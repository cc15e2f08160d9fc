"""What caused a consumer group's new epoch, explained from the journals of stories that the core played."""

from __future__ import annotations

import textwrap

import pytest

from muster.coordinator.journal.explain import Certainty, Diagnosis, Explanation
from tests.journal.explain.consumer.stories import lines, told, why

PAIR = """
topic orders 4
topic refunds 2

alice beat topics=orders
bob beat topics=orders
alice beat
alice beat owned=orders-0,orders-1
bob beat
"""
STATIC = PAIR.replace("alice beat topics", "alice beat instance=one topics", 1)
BOTH = STATIC.replace("bob beat topics", "bob beat instance=two topics", 1)


def brief(found: Explanation) -> tuple[str, str, str, str | None]:
    """Cause, diagnosis, certainty and the member's client id."""
    who = None if found.member is None else found.member.client_id
    return found.cause, found.diagnosis.value, found.certainty.value, who


@pytest.mark.parametrize(
    ("then", "cause", "diagnosis", "who"),
    [
        ("", "member joined", "new-member", "bob"),
        (
            "bob beat topics=orders,refunds",
            "subscription or protocols changed",
            "subscription-changed",
            "bob",
        ),
        ("grow-topic orders 6\nalice beat\nbob beat", "topics changed", "topics-grown", None),
        ("bob beat assignor=range", "assignor changed", "assignor-changed", "bob"),
        ("dave leave $bob\nalice beat", "member left", "evicted-by-admin", "bob"),
        (
            "disconnect bob\nadvance 30s\nalice beat\nadvance 20s\nalice beat",
            "session expired",
            "crashed",
            "bob",
        ),
        ("advance 30s\nalice beat\nadvance 20s\nalice beat", "session expired", "stalled", "bob"),
    ],
)
def test_causes(then: str, cause: str, diagnosis: str, who: str | None) -> None:
    found = why(f"{PAIR}\n{then}\n")
    assert brief(found)[:2] == (cause, diagnosis)
    assert brief(found)[3] == who
    assert found.kind == "consumer"
    assert found.to_json()["type"] == "consumer"
    assert found.lines()[0].startswith(f"orders · epoch {found.generation} · ")


@pytest.mark.parametrize(
    ("said", "diagnosis", "meaning"),
    [
        ("assignor=range", "assignor-changed", "the server-side assignor changed from uniform to range"),
        ("topics=orders,refunds", "subscription-changed", "its subscription changed"),
        ("topics=none regex=ord.*", "subscription-changed", "its subscription changed"),
    ],
)
def test_what_a_static_member_brings_when_it_is_back(said: str, diagnosis: str, meaning: str) -> None:
    topics = "" if "topics=" in said else "topics=orders "
    found = why(f"{STATIC}\nalice beat epoch=-2\nanna beat instance=one {topics}{said}\nanna beat\n")
    assert brief(found) == ("static member returned", diagnosis, "certain", "anna")
    assert found.meaning is not None
    assert found.meaning.startswith(meaning)


def test_topics_that_come_go_and_grow() -> None:
    story = "topic orders 4\ntopic refunds 2\n\nalice beat topics=orders,refunds,later\n"
    assert why(f"{story}\ncreate-topic later 1\nalice beat\n").meaning == (
        "topic later was created with 1 partition"
    )
    assert why(f"{story}\ndelete-topic refunds\nalice beat\n").meaning == "topic refunds was deleted"
    assert why(f"{story}\ngrow-topic orders 5\nalice beat\n").meaning == (
        "the partitions of orders changed: 4 → 5"
    )


def test_partitions_of_a_topic_that_is_gone_have_its_name() -> None:
    story = "topic orders 2\ntopic refunds 1\n\nalice beat topics=orders,refunds\n"
    found = why(f"{story}delete-topic refunds\nalice beat\n")
    assert found.moved is not None
    assert [each[:2] for each in found.moved.moves] == [("refunds", 0)]


def test_what_the_target_tells_of_topics_after_the_coordinator_was_loaded() -> None:
    found = why("topic orders 2\n\nalice beat topics=orders\nreload\ngrow-topic orders 4\nalice beat\n")
    assert (found.diagnosis, found.meaning) == (Diagnosis.TOPICS_GROWN, "orders-2..3 are new")


def test_a_regular_expression_of_a_member_that_came() -> None:
    found = why("topic orders-eu 2\n\nalice beat regex=orders-.*\nadvance 2s\nalice beat\n")
    assert brief(found) == ("regular expression resolved", "regex-resolved", "certain", None)
    assert found.meaning == (
        "the topics of a regular expression were looked up: now with orders-eu (2 partitions)"
    )
    assert found.evidence == ("alice joined 0 ms before",)


def test_a_regular_expression_that_stands_for_other_topics() -> None:
    story = """
    topic orders-eu 2

    alice beat regex=orders-.*
    alice beat
    advance 40s
    alice beat
    advance 40s
    create-topic orders-us 1
    alice beat
    alice beat
    """
    assert (
        why(story).meaning == "a regular expression stands for other topics: now with orders-us (1 partition)"
    )
    assert why(story).evidence == ()


def test_a_topic_that_is_created_after_a_members_regular_expression_was_looked_up() -> None:
    story = """
    topic orders-eu 2

    alice beat regex=orders-.*
    alice beat
    bob beat regex=orders-.*
    alice beat
    alice beat owned=assigned
    bob beat
    advance 20s
    alice beat
    bob beat
    create-topic orders-us 2
    advance 20s
    alice beat
    bob beat
    """
    found = why(story)
    assert brief(found) == ("regular expression resolved", "regex-resolved", "certain", None)
    assert found.meaning == (
        "a regular expression stands for other topics: now with orders-us (2 partitions)"
    )
    assert found.evidence == ()


def test_another_regular_expression() -> None:
    story = PAIR.replace("bob beat topics=orders", "bob beat regex=ord.*").replace(
        "alice beat topics=orders", "alice beat regex=orders"
    )
    found = why(f"{story}\nadvance 20s\nbob beat regex=orders\n")
    assert found.diagnosis is Diagnosis.SUBSCRIPTION_CHANGED
    assert found.meaning == "its subscription changed: its regular expression is now orders"


SLOW = """
topic orders 4

alice beat topics=orders rebalance=30s
advance 1s
bob beat topics=orders
alice beat
advance 20s
alice beat
bob beat
"""


def test_a_member_that_does_not_revoke_is_told_while_it_goes_on() -> None:
    found = why(SLOW, after_ms=21_000)
    assert brief(found) == ("member joined", "slow-revoke", "certain", "alice")
    (waiting,) = found.waiting
    assert (waiting.member.client_id, [each.client_id for each in waiting.waiters]) == ("alice", ["bob"])
    assert waiting.partitions == (("orders", 2), ("orders", 3))
    assert waiting.to_json()["partitions"] == [["orders", 2], ["orders", 3]]
    assert any(
        each.startswith(
            "waiting   for alice (host 127.0.0.1) to revoke orders-2..3 for bob, 21.0 s so far; it is"
        )
        for each in lines(SLOW, after_ms=21_000)
    )


def test_nobody_is_said_to_wait_for_it_once_the_others_have_left() -> None:
    found = why(f"{SLOW}\nbob beat epoch=-1\nalice beat\n", after_ms=1_000)
    assert brief(found) == ("member joined", "slow-revoke", "certain", "alice")
    assert found.waiting[0].waiters == ()
    assert found.evidence[0] == "it was told to 21.0 s ago"


def test_and_when_it_was_removed_for_it() -> None:
    story = f"{SLOW}\nadvance 10s\nbob beat\n"
    found = why(story, generation=4)
    assert brief(found) == ("revocation timed out", "slow-revoke", "certain", "alice")
    assert "it did not revoke orders-2..3 within its rebalance timeout" in found.meaning
    assert found.also == ("the rebalance had begun with: member joined (bob: new-member)",)
    assert found.phases is not None
    assert [each.client_id for each in found.phases.dropped] == ["alice"]
    whole = why(story)
    assert brief(whole) == ("member joined", "new-member", "certain", "bob")
    assert whole.also == ("revocation timed out (alice: slow-revoke)",)
    assert why(story, generation=3).also == (
        "epoch 3 was not reached by every member: the group went on to 4",
        "revocation timed out (alice: slow-revoke)",
    )


def test_and_when_it_comes_back_under_its_id() -> None:
    found = why(f"{SLOW}\nadvance 10s\nbob beat\nadvance 3s\nalice beat epoch=0 topics=orders\n")
    assert (found.cause, found.member and found.member.client_id) == ("member joined", "alice")
    assert "rejoined-after-eviction (certain)" in f"{found.diagnosis} ({found.certainty})"
    assert "it came with the same member id" in found.evidence


def test_a_member_that_was_not_heard_of_since_it_has_to_revoke() -> None:
    found = why(
        "topic orders 4\n\nalice beat topics=orders\nadvance 1s\nbob beat topics=orders\n", after_ms=5_000
    )
    assert brief(found) == ("member joined", "slow-revoke", "likely", "alice")
    assert found.waiting[0].until_ms is None


def awaited(story: str) -> dict[str, list[int]]:
    """Who is waited for, and the partitions it is to revoke."""
    of_range = (
        f"config group.consumer.assignors range,uniform\ntopic orders 6\n\nzoe beat topics=orders\n{story}"
    )
    return {
        each.member.client_id: [partition for _, partition in each.partitions]
        for each in why(of_range, after_ms=5_000).waiting
    }


def test_who_was_to_get_partitions_until_the_target_changed_is_not_to_revoke_them() -> None:
    story = "yve beat topics=orders\nadvance 1s\nxan beat topics=orders\n"
    assert awaited(f"{story}yve beat owned=none\n") == {"zoe": [0, 1, 2, 3]}


def test_who_is_to_keep_partitions_after_all_is_not_to_revoke_them() -> None:
    story = "yve beat topics=orders\nxan beat topics=orders\nyve beat epoch=-1\nadvance 1s\nxan beat\n"
    assert awaited(story) == {"zoe": [0, 1, 2]}


def test_who_got_partitions_before_the_target_changed_is_to_revoke_them() -> None:
    story = """
    yve beat topics=orders
    vic beat topics=orders
    zoe beat
    zoe beat owned=orders-4,orders-5
    yve beat owned=none
    yve beat owned=orders-2,orders-3
    xan beat topics=orders
    """
    assert awaited(textwrap.dedent(story)) == {"yve": [2, 3], "zoe": [4], "vic": []}


GIVEN = """
topic orders 6

zoe beat topics=orders
yve beat topics=orders
vic beat topics=orders
zoe beat
zoe beat owned=orders-0,orders-1
yve beat
yve beat owned=orders-3,orders-4
advance 20s
"""


def test_who_got_partitions_before_the_target_changed_is_not_awaited_for_them() -> None:
    story = f"{GIVEN}xan beat topics=orders\nzoe beat owned=orders-0\nyve beat owned=orders-3,orders-4\n"
    found = why(f"{story}xan beat\n", after_ms=5_000)
    assert brief(found) == ("member joined", "slow-revoke", "likely", "vic")
    assert [each.member.client_id for each in found.waiting] == ["vic"]


def test_a_member_is_awaited_since_it_could_first_learn_of_its_partitions() -> None:
    found = why(f"{GIVEN}grow-topic orders 7\nzoe beat\nyve beat\n", after_ms=5_000)
    (waiting,) = found.waiting
    assert (waiting.member.client_id, found.now_ms - waiting.since_ms) == ("vic", 25_000)


def test_a_member_that_left_and_is_back_has_nothing_to_revoke() -> None:
    story = """
    config group.consumer.assignors uniform,range
    topic orders 4

    bob beat topics=orders
    cid beat topics=orders
    dan beat topics=orders
    ann beat topics=orders
    bob beat epoch=-1
    advance 1s
    bob beat topics=orders epoch=0
    """
    found = why(story, after_ms=5_000)
    assert [(each.member.client_id, each.partitions) for each in found.waiting] == [
        ("cid", ()),
        ("dan", ()),
        ("ann", ()),
    ]


CLOSED = """
topic orders 4

alice beat topics=orders
advance 1s
bob beat topics=orders
alice beat
advance 1s
disconnect alice
"""


def test_a_member_that_crashed_before_it_revoked() -> None:
    found = why(CLOSED, after_ms=20_000)
    assert brief(found) == ("member joined", "crashed", "likely", "alice")
    assert found.meaning == (
        "alice has not revoked orders-2..3, and its connection closed 20.0 s ago: the process is probably "
        "gone"
    )
    (waiting,) = found.waiting
    closed_ms = found.started_ms + 1_000
    assert (waiting.disconnected_ms, waiting.until_ms) == (closed_ms, closed_ms - 1_000 + 45_000)
    text = " ".join(lines(CLOSED, after_ms=20_000))
    assert "21.0 s so far, its connection closed 20.0 s ago; it is removed at" in text
    assert "(in 24.0 s)" in text
    untold = CLOSED.replace("alice beat\nadvance 1s\n", "")
    assert brief(why(untold, after_ms=5_000)) == ("member joined", "crashed", "likely", "alice")


SHORT = CLOSED.replace("alice beat topics=orders", "alice beat topics=orders rebalance=30s")


def test_a_member_that_crashed_and_was_removed_for_not_revoking() -> None:
    """Its rebalance timeout is shorter than its session."""
    found = why(SHORT, after_ms=20_000)
    assert brief(found) == ("member joined", "crashed", "likely", "alice")
    assert found.evidence[0] == "the group waits for it until the rebalance timeout, for 21.0 s so far"
    found = why(f"{SHORT}advance 30s\nbob beat\n", generation=4)
    assert brief(found) == ("revocation timed out", "crashed", "likely", "alice")
    assert found.meaning == (
        "it did not revoke orders-2..3 within its rebalance timeout: the process is probably gone"
    )
    assert found.evidence == (
        "it was told to 30.0 s before",
        "its last heartbeat came 30.0 s before",
        "its connection closed 29.0 s before",
    )


def test_a_member_whose_connection_closed_long_after_it_was_told_to_revoke_is_slow() -> None:
    story = SHORT.replace("advance 1s\ndisconnect", "advance 15s\nalice beat\nadvance 1s\ndisconnect")
    found = why(f"{story}advance 20s\nbob beat\n", generation=4)
    assert brief(found) == ("revocation timed out", "slow-revoke", "certain", "alice")


def test_a_member_that_crashed_before_it_got_its_partitions() -> None:
    story = CLOSED.replace("disconnect alice", "alice beat owned=orders-0,orders-1\ndisconnect bob")
    found = why(story, after_ms=5_000)
    assert brief(found) == ("member joined", "crashed", "likely", "bob")
    assert found.meaning.startswith("bob has sent no heartbeat to learn of its partitions, and its conn")
    assert "for bob (host 127.0.0.1) to send a heartbeat and learn of its partitions" in " ".join(
        lines(story, after_ms=5_000)
    )


def test_a_member_that_outlived_its_session_came_back_over_another_connection() -> None:
    story = CLOSED + "advance 3s\nalice beat\nbob beat\n" * 17
    assert told(story)[-1].type == "member_disconnected", "heartbeats are not recorded"
    found = why(story, after_ms=51_000)
    assert brief(found) == ("member joined", "slow-revoke", "certain", "alice")
    assert found.waiting[0].disconnected_ms is None


AWAY_WHILE_REVOKING = """
topic orders 4

alice beat topics=orders instance=one
advance 1s
bob beat topics=orders
alice beat
advance 2s
alice beat epoch=-2
"""


def test_a_static_member_that_left_for_a_while_has_let_go() -> None:
    found = why(AWAY_WHILE_REVOKING, after_ms=5_000)
    (waiting,) = found.waiting
    assert (waiting.member.client_id, waiting.partitions) == ("bob", ())
    assert found.phases is not None
    (revoked,) = found.phases.revocations
    assert (revoked.partitions, revoked.ms) == ((("orders", 2), ("orders", 3)), 2_000)


def test_a_member_that_starts_anew_has_let_go() -> None:
    story = "topic orders 4\n\nalice beat topics=orders\nbob beat topics=orders\n"
    (waiting,) = why(f"{story}alice beat epoch=0 topics=orders\n", after_ms=5_000).waiting
    assert (waiting.member.client_id, waiting.partitions) == ("bob", ())


def test_a_static_member_that_is_back_under_another_id_is_not_awaited_under_the_former() -> None:
    story = """
    topic orders 4

    alice beat topics=orders instance=one
    alice beat epoch=-2
    bob beat topics=orders
    alice forget
    alice beat topics=orders
    """
    assert [each.member.client_id for each in why(story, after_ms=5_000).waiting] == ["bob"]


def test_a_static_member_that_is_back_has_what_its_former_self_was_to_get() -> None:
    story = """
    topic orders 3

    alice beat topics=orders instance=one
    bob beat topics=orders
    carol beat topics=orders
    alice beat owned=orders-0
    bob beat
    carol beat
    advance 1s
    grow-topic orders 6
    bob beat
    alice beat epoch=-2
    alice forget
    alice beat topics=orders
    """
    assert [each.member.client_id for each in why(story, after_ms=5_000).waiting] == ["carol"]


def test_a_static_member_that_is_away() -> None:
    found = why(f"{STATIC}\nadvance 5s\nalice beat epoch=-2\n")
    assert (found.diagnosis, found.rebalanced) == (Diagnosis.STATIC_MEMBER_AWAY, False)
    assert found.names.short(found.member) == "one"
    then = "advance 30s\nbob beat\nadvance 16s\nbob beat\n"
    gone = why(f"{STATIC}\nalice beat epoch=-2\ndisconnect alice\n{then}")
    assert brief(gone) == ("session expired", "clean-shutdown", "certain", "alice")
    assert gone.evidence == ("it left temporarily 45.0 s before",)


@pytest.mark.parametrize(("generation", "who"), [(4, "alice"), (5, "bob")])
def test_each_static_member_that_is_stopped_has_left(generation: int, who: str) -> None:
    """Only the first one's leave changes the group's state."""
    away = "alice beat epoch=-2\nbob beat epoch=-2\ndisconnect alice\ndisconnect bob\n"
    found = why(f"{BOTH}\nadvance 1s\n{away}advance 46s\n", generation=generation)
    assert brief(found) == ("session expired", "clean-shutdown", "certain", who)


def test_a_static_member_that_came_back_and_crashed() -> None:
    story = f"{STATIC}\nalice beat epoch=-2\nadvance 1s\nalice beat topics=orders\nadvance 1s\nalice beat\n"
    found = why(f"{story}disconnect alice\nadvance 30s\nbob beat\nadvance 16s\nbob beat\n")
    assert brief(found) == ("session expired", "crashed", "likely", "alice")


def test_a_static_member_that_missed_its_poll_deadline() -> None:
    """It leaves for a while, and its process and connection stay."""
    found = why(f"{STATIC}\nalice beat epoch=-2\nadvance 30s\nbob beat\nadvance 16s\nbob beat\n")
    assert brief(found) == ("session expired", "poll-deadline-missed", "likely", "alice")
    assert found.evidence == ("it left temporarily (epoch −2)", "its connection stayed open")
    assert [each.diagnosis for each in found.alternatives] == [Diagnosis.CRASHED]


def test_static_members_that_come_back_under_their_ids_were_not_restarted() -> None:
    away = "alice beat epoch=-2\nbob beat epoch=-2\nadvance 3s\n"
    found = why(f"{BOTH}\n{away}alice beat topics=orders\nbob beat topics=orders\n")
    assert brief(found) == ("static member returned", "static-member-replaced", "likely", "bob")
    assert found.meaning.startswith("the same process came back after it had left temporarily")
    again = "alice forget\nbob forget\nalice beat topics=orders\nbob beat topics=orders\n"
    assert why(f"{BOTH}\n{away}{again}").diagnosis is Diagnosis.ROLLING_RESTART


def test_a_consumer_group_that_is_full() -> None:
    story = f"config group.consumer.max.size 2\n{PAIR}"
    assert why(f"{story}\ncarol beat topics=orders\n").meaning == (
        "group.consumer.max.size is 2 members; the others are unaffected"
    )


def test_a_static_member_that_is_back() -> None:
    found = why(f"{STATIC}\nalice beat epoch=-2\nadvance 3s\nalice forget\nalice beat topics=orders\n")
    assert (found.diagnosis, found.rebalanced) == (Diagnosis.STATIC_MEMBER_REPLACED, False)


def test_a_static_member_that_is_fenced_by_epoch_is_one_process() -> None:
    fenced = f"{STATIC}\nalice beat epoch=9\nalice beat epoch=-2\nalice beat epoch=0 topics=orders\n"
    restarted = "alice beat epoch=-2\nadvance 3s\nalice forget\nalice beat topics=orders\n"
    found = why(f"{fenced}advance 9s\n{restarted}")
    assert brief(found) == ("static member returned", "static-member-replaced", "likely", "alice")


def test_an_instance_id_that_another_process_has() -> None:
    found = why(f"{STATIC}\ncarol beat instance=one topics=orders\n")
    assert (found.diagnosis, found.certainty) == (Diagnosis.DUPLICATE_INSTANCE_ID, Certainty.LIKELY)
    found = why(f"{STATIC}\ndisconnect alice\nadvance 2s\ncarol beat instance=one topics=orders\n")
    assert (found.diagnosis, found.certainty) == (Diagnosis.CRASHED, Certainty.LIKELY)
    assert "one is free when that one's session expires" in found.meaning


def test_a_member_that_is_fenced() -> None:
    found = why(f"{PAIR}\nalice beat epoch=9\n")
    assert brief(found) == ("member fenced", "fenced", "certain", "alice")
    assert found.evidence == ("it sent epoch 9, and its epoch is 3",)


def test_a_commit_that_was_refused_and_who_has_the_partition() -> None:
    found = why(f"{PAIR}\nalice commit orders-3=4 generation=2\n")
    assert found.since == (
        "1 commit of alice in epoch 2 refused with STALE_MEMBER_EPOCH: orders-3 is bob's now",
    )
    assert found.cost is not None
    assert found.cost.commits_refused == 1
