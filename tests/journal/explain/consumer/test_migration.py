"""Groups that migrate from one protocol to the other, and how far they have come."""

from __future__ import annotations

from muster.coordinator.journal.explain import Diagnosis, Outcome, explain, rebalances
from muster.coordinator.journal.explain.cost import Unowned
from muster.coordinator.journal.explain.leaving import POLL
from muster.coordinator.journal.explain.vocabulary import Kind
from tests.journal.explain.consumer.stories import told, why
from tests.support.each import each

UPGRADE = """
topic orders 2

alice join topics=orders
alice join topics=orders
alice sync $alice=orders-0,orders-1
bob beat topics=orders
alice heartbeat
alice join topics=orders owned=orders-0,orders-1
alice sync
alice heartbeat
alice join topics=orders owned=orders-0
alice sync
bob beat
"""
DOWNGRADE = """
topic orders 2

alice beat topics=orders
bob join v3 topics=orders
alice beat owned=orders-0
bob join topics=orders
bob sync
advance 4s
alice beat epoch=-1
bob join topics=orders
bob sync $bob=orders-0,orders-1
"""


def test_the_first_member_of_the_consumer_protocol() -> None:
    found = why(UPGRADE)
    assert (found.cause, found.diagnosis, found.kind) == ("member joined", Diagnosis.UPGRADED, Kind.CONSUMER)
    assert found.member is not None
    assert found.member.client_id == "bob"
    assert "the classic group of 1 member" in found.meaning
    assert found.also == ("1 of 2 members still speaks the classic protocol: alice",)
    assert found.cost is not None


def test_the_last_member_of_the_classic_protocol() -> None:
    found = why(f"{UPGRADE}\nadvance 5s\nalice leave\nbob beat\n")
    assert found.also == ("the migration is over: the one member speaks the consumer protocol",)
    assert "all 2 members speak" in " ".join(
        why(f"{UPGRADE}\ncarol beat topics=orders\nbob beat\nalice leave\nbob beat\ncarol beat\n").also
    )


def test_the_last_member_of_the_consumer_protocol() -> None:
    found = why(DOWNGRADE)
    assert (found.cause, found.diagnosis, found.kind) == ("member left", Diagnosis.DOWNGRADED, Kind.CLASSIC)
    assert found.member is not None
    assert found.member.client_id == "alice"
    assert found.evidence[0] == "alice was the last that spoke it"
    assert [each.kind for each in rebalances(told(DOWNGRADE))] == [Kind.CONSUMER] * 2 + [Kind.CLASSIC]


LAST = """
topic orders 2

alice beat topics=orders instance=one rebalance=10s
bob join v3 topics=orders
alice beat owned=orders-0,orders-1
"""
LAST_SETTLED = f"""{LAST}
alice beat owned=orders-0
bob join topics=orders
bob sync
"""


@each(
    "story, what, went",
    [
        (
            f"{LAST}advance 10s\n",
            "member one (host 127.0.0.1, instance one) was evicted: it did not revoke partitions that others "
            "waited for",
            "it did not revoke orders-1 within its rebalance timeout: its application does not poll, or its "
            "rebalance callback takes too long (slow-revoke)",
        ),
        (
            f"{LAST_SETTLED}alice beat epoch=-2\nbob heartbeat\nadvance 30s\nbob heartbeat\nadvance 15s\n",
            "member one (host 127.0.0.1, instance one) was evicted: heartbeats stopped 45.0 s before, its "
            "connection stayed open",
            f"{POLL} (poll-deadline-missed)",
        ),
        (
            f"{LAST_SETTLED}carol join topics=orders instance=one\n",
            "member one (host 127.0.0.1, instance one) took the place of the last one of the consumer "
            "protocol",
            None,
        ),
        (
            f"{LAST_SETTLED}alice join v8 topics=orders instance=one\n",
            "member one (host 127.0.0.1, instance one) rejoined with the classic protocol",
            None,
        ),
    ],
    ids=["slow to revoke", "away", "replaced", "went over"],
)
def test_why_the_last_member_of_the_consumer_protocol_is_gone(
    story: str, what: str, went: str | None
) -> None:
    found = why(story)
    assert (found.diagnosis, found.what) == (Diagnosis.DOWNGRADED, what)
    assert found.evidence == ("one was the last that spoke it", *([] if went is None else [went]))


THREE = """
topic orders 4

carol beat topics=orders
alice join v3 topics=orders rebalance=60s
alice sync v2
bob join v3 topics=orders rebalance=30s
bob sync v2
"""
ITSELF = """
topic orders 2

alice join v3 topics=orders
alice sync v2 $alice=orders-0,orders-1
alice beat epoch=0 topics=orders
bob join v3 topics=orders
"""
UPGRADES_ONLY = f"""
config group.consumer.migration.policy upgrade
{THREE}
carol beat epoch=-1
config group.consumer.migration.policy bidirectional
reload
alice join v3 topics=orders rebalance=60s
alice sync v2
bob heartbeat v2
"""


@each(
    "story, who, evidence",
    [
        (f"{THREE}admin leave v5 $bob $carol\n", "carol", "carol was the last that spoke it"),
        (f"{THREE}admin leave v5 $carol $bob\n", "carol", "carol was the last that spoke it"),
        (
            f"{UPGRADES_ONLY}bob leave v2\n",
            "bob",
            "bob is gone, and all others speak the classic protocol",
        ),
        (
            f"{UPGRADES_ONLY}advance 30s\n",
            "bob",
            "bob is gone, and all others speak the classic protocol",
        ),
        (
            f"config group.max.size 1\n{THREE}carol beat epoch=-1\nbob leave v2\n",
            "bob",
            "bob is gone, and all others speak the classic protocol",
        ),
        (f"{UPGRADE}bob beat epoch=-1\n", "bob", "bob was the last that spoke it"),
        (f"{ITSELF}alice beat epoch=-1\n", "alice", "alice was the last that spoke it"),
    ],
    ids=[
        "bob and carol",
        "carol and bob",
        "policy",
        "policy, too slow",
        "size",
        "upgraded",
        "upgraded itself",
    ],
)
def test_who_was_the_last_member_of_the_consumer_protocol(story: str, who: str, evidence: str) -> None:
    """A member of the classic protocol is not said to be."""
    found = why(story)
    assert found.diagnosis is Diagnosis.DOWNGRADED
    assert found.member is not None
    assert found.member.client_id == who
    assert found.evidence[0] == evidence
    assert "(unknown)" not in " ".join(found.evidence)


def test_the_journal_does_not_show_what_the_last_member_spoke() -> None:
    entries = told(DOWNGRADE)
    begin = next(at for at, entry in enumerate(entries) if entry.type == "member_removed")
    found = explain(entries[begin:])
    assert found is not None
    assert found.evidence[0] == "alice is gone, and all others speak the classic protocol"


def test_a_classic_rebalance_that_an_upgrade_ends() -> None:
    story = """
    topic orders 2

    alice join topics=orders
    alice join topics=orders
    alice sync $alice=orders-0,orders-1
    carol join topics=orders
    carol join topics=orders
    bob beat topics=orders
    """
    found = rebalances(told(story))
    assert [(each.kind, each.outcome) for each in found] == [
        (Kind.CLASSIC, Outcome.COMPLETED),
        (Kind.CLASSIC, Outcome.INTERRUPTED),
        (Kind.CONSUMER, Outcome.UNDER_WAY),
    ]


def test_a_classic_member_that_does_not_rejoin() -> None:
    story = UPGRADE.replace("alice join topics=orders", "alice join topics=orders rebalance=30s")
    story = (
        f"{story}\ncarol beat topics=orders\nbob beat\nalice heartbeat\nadvance 31s\nbob beat\ncarol beat\n"
    )
    found = [each for each in rebalances(told(story)) if each.starts[-1].trigger == "rebalance timed out"]
    assert found, [each.starts for each in rebalances(told(story))]
    told_of = why(story, generation=found[0].generation)
    assert told_of.diagnosis is Diagnosis.SLOW_JOIN


def test_what_the_last_member_of_the_consumer_protocol_had_moves_from_it() -> None:
    found = why(DOWNGRADE)
    assert found.moved is not None
    (move,) = found.moved.moves
    former, now = (found.names.of_id(each or "") for each in (move.from_member, move.to_member))
    assert former is not None
    assert now is not None
    assert (former.client_id, now.client_id) == ("alice", "bob")
    assert (found.moved.moved, found.moved.kept) == (1, 1)


def test_a_rebalance_after_a_downgrade_outlives_its_broker() -> None:
    moves = DOWNGRADE.replace("alice beat epoch=-1", "alice beat epoch=-1\nreload")
    found = why(moves)
    assert (found.cause, found.diagnosis, found.kind) == ("member left", Diagnosis.DOWNGRADED, Kind.CLASSIC)
    assert any("coordinator moved" in each for each in found.also)


EAGER = """
topic orders 3

alice join topics=orders
alice join topics=orders
alice sync $alice=orders-0,orders-1,orders-2
bob beat topics=orders
carol beat topics=orders
alice heartbeat
alice join topics=orders
alice sync
bob beat
advance 5s
"""


def test_a_classic_member_that_gave_up_everything_to_rejoin_is_not_awaited() -> None:
    (waiting,) = why(EAGER).waiting
    assert (waiting.member.client_id, waiting.partitions) == ("carol", ())
    found = why(f"{EAGER}\ncarol beat\n")
    assert found.cost is not None
    assert Unowned((("orders", 1),), 5_000) in found.cost.unowned


def test_a_near_miss_of_a_classic_member() -> None:
    story = f"{EAGER}\nbob beat\ncarol beat\nalice heartbeat\nadvance 35s\nalice heartbeat\n"
    (late,) = (each for each in told(story) if each.type == "heartbeat_late")
    assert late.member is not None
    assert (late.member.client_id, late.data["late_ms"]) == ("alice", 35_000)
