"""The state of a consumer group, built from records: in the order written, and as in a compacted log."""

from __future__ import annotations

import itertools
import random
import uuid

import pytest

from muster.coordinator.base.step import Step
from muster.coordinator.group.consumer import records
from muster.coordinator.group.consumer.state import (
    INITIAL_EPOCH,
    NOBODY,
    ClassicProtocols,
    ConsumerState,
    Current,
    MemberState,
    ResolvedRegex,
    Subscription,
)
from muster.coordinator.group.effects import Record
from muster.coordinator.group.hard_state import HardState
from tests.group.consumer.invariants import check_counted
from tests.group.harness import replayed

GROUP, ORDERS = "orders", uuid.UUID(int=1)


def put(state: ConsumerState, member_id: str, epoch: int, *partitions: int) -> None:
    state.put_current(member_id, Current(epoch, assigned={ORDERS: dict.fromkeys(partitions, epoch)}))


def owner(state: ConsumerState, partition: int = 0) -> int:
    return state.owner_epoch(ORDERS, partition)


def test_a_group_begins_at_epoch_1() -> None:
    state = ConsumerState()
    assert (state.epoch, state.assignment_epoch) == (INITIAL_EPOCH, INITIAL_EPOCH) == (1, 1)
    assert state.is_gone


def test_a_partition_is_free_when_its_member_has_given_it_up() -> None:
    state = ConsumerState()
    assert owner(state) == NOBODY
    put(state, "alice", 3, 0, 1)
    assert (owner(state), owner(state, 2)) == (3, NOBODY)
    revoking = Current(3, 3, MemberState.UNREVOKED_PARTITIONS, {ORDERS: {1: 3}}, {ORDERS: {0: 3}})
    state.put_current("alice", revoking)
    assert owner(state) == 3
    put(state, "alice", 4, 1)
    assert (owner(state), owner(state, 1)) == (NOBODY, 4)
    state.delete_current("alice")
    assert state.owners == {}


def test_a_member_that_is_away_for_a_while_holds_its_partitions() -> None:
    state = ConsumerState()
    put(state, "alice", 3, 0)
    put(state, "alice", -2, 0)
    assert owner(state) == -2
    state.delete_current("alice")
    assert owner(state) == NOBODY


def test_a_new_owner_may_be_seen_before_the_old_one_has_given_up() -> None:
    """In a compacted log: alice gave up partition 0 between these two records of hers."""
    state = ConsumerState()
    put(state, "alice", 3, 0)
    put(state, "bob", 4, 0)
    put(state, "alice", 5)
    assert owner(state) == 4
    put(state, "alice", 3, 0)
    assert owner(state) == 4, "an owner of an older epoch has given it up since"
    state.delete_current("bob")
    assert owner(state) == NOBODY


def test_the_settled_are_those_that_are_stable_at_an_epoch() -> None:
    state = ConsumerState()
    put(state, "alice", 3)
    put(state, "bob", 3)
    state.put_current("carol", Current(3, state=MemberState.UNRELEASED_PARTITIONS))
    assert state.settled == {3: 2}
    put(state, "bob", 4)
    assert state.settled == {3: 1, 4: 1}
    state.delete_current("bob")
    assert state.settled == {3: 1}


def test_an_instance_belongs_to_who_had_it_last() -> None:
    state = ConsumerState()
    state.put_subscription("alice", Subscription(instance_id="one"))
    state.put_subscription("bob", Subscription(instance_id="one"))
    state.delete_subscription("alice")
    assert state.instances == {"one": "bob"}
    state.delete_subscription("bob")
    assert state.instances == {}


@pytest.mark.parametrize(
    ("said", "alike"),
    [
        ([Subscription(topics=("a",)), Subscription(topics=("a",))], True),
        ([Subscription(topics=("a",)), Subscription(topics=("a", "b"))], False),
        ([Subscription(topics=("a",)), Subscription()], False),
        ([Subscription(), Subscription()], True),
        ([Subscription(regex="a.*"), Subscription(regex="a.*")], True),
        ([Subscription(regex="a.*"), Subscription(regex="b.*")], False),
        ([Subscription(regex="a.*"), Subscription(topics=("a",))], False),
        ([Subscription(topics=("a",), regex="b"), Subscription(topics=("a",), regex="b")], False),
        ([Subscription(regex="a.*"), Subscription()], False),
    ],
)
def test_members_subscribe_alike_by_the_same_names_or_by_one_regex(
    said: list[Subscription], alike: bool
) -> None:
    state = ConsumerState()
    for number, each in enumerate(said):
        state.put_subscription(f"member-{number}", each)
    assert state.is_homogeneous() == alike


def test_a_regex_stands_for_nothing_until_it_is_resolved() -> None:
    state = ConsumerState()
    said = Subscription(topics=("a",), regex="b.*")
    state.put_subscription("alice", said)
    assert set(state.topics_of(said)) == state.subscribed_topics() == {"a"}
    state.regexes["b.*"] = ResolvedRegex(frozenset({"b", "bb"}), 1, 1)
    assert set(state.topics_of(said)) == state.subscribed_topics() == {"a", "b", "bb"}
    state.delete_subscription("alice")
    assert state.subscribed_topics() == set()


# --- replay -------------------------------------------------------------------------------------------------


class _Life:
    """A group whose members join, move partitions between them, and leave, as records that a coordinator
    could have written: nobody is assigned what another owns."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.hard = HardState()
        self.step = Step(0)
        self.epoch = INITIAL_EPOCH
        self.numbers = itertools.count(1)
        self.instances = itertools.count(1)

    @property
    def state(self) -> ConsumerState:
        return self.hard.consumers.get(GROUP) or ConsumerState()

    def write(self, record: Record) -> None:
        self.hard.emit(record, self.step)

    def act(self) -> None:
        act = self.random.choice(
            [self.join, self.join, self.move, self.move, self.move, self.leave, self.look]
        )
        act()

    def join(self) -> None:
        classic = ClassicProtocols(10_000, (("range", b"\0\0"), ("sticky", b"")))
        said = Subscription(
            instance_id=self.random.choice([None, f"instance-{next(self.instances)}"]),
            topics=tuple(sorted(self.random.sample(["a", "b", "c"], self.random.randint(0, 3)))),
            regex=self.random.choice(["", "", "x.*"]),
            server_assignor=self.random.choice([None, "range"]),
            classic=self.random.choice([None, None, classic]),
        )
        members = list(self.state.subscriptions)
        again = members and self.random.random() < 0.3
        member_id = self.random.choice(members) if again else f"member-{next(self.numbers)}"
        if again:
            said = said._replace(instance_id=self.state.subscriptions[member_id].instance_id)
        self.write(records.subscription(GROUP, member_id, said))
        self.bump()
        self.write(records.target(GROUP, member_id, {ORDERS: frozenset({self.random.randrange(8)})}))
        self.write(records.target_epoch(GROUP, self.epoch, self.epoch))

    def bump(self) -> None:
        self.epoch += 1
        self.write(records.group_epoch(GROUP, self.epoch, self.random.getrandbits(63)))

    def move(self) -> None:
        """A member gives up some partitions, has to revoke some, and gets some free ones."""
        if not self.state.subscriptions:
            return
        member_id = self.random.choice(list(self.state.subscriptions))
        has = self.state.current.get(member_id, Current())
        keep = {p: e for p, e in has.assigned.get(ORDERS, {}).items() if self.random.random() < 0.6}
        gone = {p: e for p, e in has.assigned.get(ORDERS, {}).items() if p not in keep}
        if gone and self.random.random() < 0.5:
            revoking = {**has.revoking.get(ORDERS, {}), **gone}
            then = Current(
                has.epoch, has.epoch, MemberState.UNREVOKED_PARTITIONS, {ORDERS: keep}, {ORDERS: revoking}
            )
        else:
            self.bump()
            free = [p for p in range(8) if self.state.owner_epoch(ORDERS, p) == NOBODY]
            got = dict.fromkeys(self.random.sample(free, min(2, len(free))), self.epoch)
            then = Current(self.epoch, has.epoch, MemberState.STABLE, {ORDERS: {**keep, **got}})
        self.write(records.current(GROUP, member_id, then))

    def leave(self) -> None:
        if not self.state.subscriptions:
            return
        member_id = self.random.choice(list(self.state.subscriptions))
        self.write(records.current_tombstone(GROUP, member_id))
        self.write(records.target_tombstone(GROUP, member_id))
        self.write(records.subscription_tombstone(GROUP, member_id))
        self.bump()
        if not self.state.subscriptions and self.random.random() < 0.5:
            self.write(records.target_epoch_tombstone(GROUP))
            self.write(records.group_tombstone(GROUP))
            self.epoch = INITIAL_EPOCH

    def look(self) -> None:
        if self.state.regex_users:
            topics = frozenset(self.random.sample(["xa", "xb"], self.random.randint(0, 2)))
            self.write(records.regex(GROUP, "x.*", ResolvedRegex(topics, 1, self.epoch)))


@pytest.mark.parametrize("seed", range(40))
def test_a_compacted_log_says_the_same_at_every_moment(seed: int) -> None:
    print("seed", seed)
    life = _Life(seed)
    for _ in range(60):
        life.act()
        check_counted(life.state)
        compacted = HardState()
        for row in replayed(life.step.rows):
            record = Record.from_row(*row)
            assert record is not None
            compacted.apply(record)
        assert compacted.durable() == life.hard.durable()
        if GROUP in compacted.consumers:
            check_counted(compacted.consumers[GROUP])


@pytest.mark.parametrize("seed", range(10))
def test_a_log_that_is_compacted_up_to_some_point_says_the_same(seed: int) -> None:
    print("seed", seed)
    life = _Life(1_000 + seed)
    for _ in range(60):
        life.act()
    rows = life.step.rows
    for cut in range(0, len(rows), 7):
        partly = HardState()
        for row in [*replayed(rows[:cut]), *rows[cut:]]:
            record = Record.from_row(*row)
            assert record is not None
            partly.apply(record)
        assert partly.durable() == life.hard.durable()
        if GROUP in partly.consumers:
            check_counted(partly.consumers[GROUP])
