"""Whom a consumer group's rebalance waits for, and since when: the journals of random stories, against what
the core knows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.coordinator.group.consumer.group import ConsumerGroup
from muster.coordinator.group.consumer.state import Held
from muster.coordinator.journal.entries import Entry, Member
from muster.coordinator.journal.explain import explain
from muster.coordinator.journal.explain.consumer.holders import Holders
from muster.coordinator.runtime.recorder import Recorder
from muster.coordinator.runtime.ring import Journal
from tests.group import prints, steps
from tests.group.cast import Cast
from tests.group.core_driver import CoreDriver
from tests.group.scenario import Scenario, Step

STEPS = 40
NAMES = ["ann", "bob", "cid", "dan"]

Partition = tuple[str, int]
Wait = tuple[str, tuple[Partition, ...], int]
"""A member, what it is to revoke (nothing: it is to learn of its partitions), and since when."""


class Story:
    """Plays random steps, and keeps account of who is waited for."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.told: list[str] = []
        """The steps so far."""
        self._interval_ms = self.random.choice(["0", "0", "3000"])
        config = {
            "group.initial.rebalance.delay.ms": "0",
            "group.consumer.assignment.interval.ms": self._interval_ms,
            "group.consumer.assignors": self.random.choice(["range,uniform", "uniform,range"]),
        }
        topics = {"orders": self.random.choice([3, 4, 6]), "refunds": 2}
        self._scenario = Scenario(Path("random"), [], config=config, topics=topics, actors=NAMES)
        self._driver = CoreDriver(self._scenario)
        self._cast = Cast(NAMES)
        for name in topics:
            self._cast.know_topic(name, self._driver.topic_id(name))
        self._joined: set[str] = set()
        self._since: dict[tuple[str, Partition, str], int] = {}
        self._recorder = Recorder(1, Journal())
        self.entries: list[Entry] = []

    @property
    def now_ms(self) -> int:
        return self._driver.harness.now_ms

    def play(self) -> Iterator[None]:
        """Play a step at a time."""
        for _ in range(STEPS):
            self._act()
            self.entries += self._recorder.of_events(3, self._driver.take_events())
            self._account()
            yield
            self._driver.advance(self.random.choice([1, 400, 1_500]))
            self.entries += self._recorder.of_events(3, self._driver.take_events())

    def _act(self) -> None:
        who = self.random.choice(NAMES)
        actor = self._cast.actors[who]
        dice = self.random.random()
        if dice < 0.04:
            partitions = self.random.choice([5, 7, 8])
            self.told.append(f"grow-topic orders {partitions}")
            if partitions > self._scenario.topics["orders"]:
                self._scenario.topics["orders"] = partitions
                self._driver.grow_topic("orders", partitions)
            return
        options: dict[str, str] = {}
        if who not in self._joined:
            self._joined.add(who)
            options = {"epoch": "0", "topics": self.random.choice(["orders", "orders", "orders,refunds"])}
            if who in ("ann", "bob"):
                options["instance"] = who
            # Targets do not tell what stays the member's that left and is back before the next one.
            if self.random.random() < 0.5 or self._interval_ms != "0":
                actor.forget()
        elif dice < 0.14:
            self._joined.remove(who)
            options["epoch"] = "-2" if actor.instance_id and dice < 0.1 else "-1"
        elif dice < 0.18:
            options["topics"] = self.random.choice(["orders", "refunds", "orders,refunds"])
        elif dice < 0.6:
            options["owned"] = "assigned"
        self.told.append(f"{who} beat {options}")
        step = Step(0, self.told[-1], who, "beat", None, [], options, [])
        self._driver.send(who, *steps.request(self._scenario, step, self._cast, self._driver.topic_id))
        for answer in self._driver.replies(1):
            prints.remember(answer, self._cast)

    # --- what the core knows --------------------------------------------------------------------------------

    @property
    def _group(self) -> ConsumerGroup:
        (group,) = self._driver.harness.shard.groups.values()
        assert isinstance(group, ConsumerGroup)
        return group

    def _named(self, held: Held) -> set[Partition]:
        return {(self._driver.topic_name(topic), each) for topic, some in held.items() for each in some}

    def _account(self) -> None:
        """Note since when each member is waited for because of each partition."""
        if not self._driver.harness.shard.groups:
            return
        group = self._group
        current = {each: group.current(each) for each in group.members}
        had = {each: self._named(has.assigned) for each, has in current.items()}
        revoking = {each: self._named(has.revoking) for each, has in current.items()}
        taken = set().union(*had.values(), *revoking.values())
        since: dict[tuple[str, Partition, str], int] = {}
        for member_id, who in group.members.items():
            target = {
                (self._driver.topic_name(topic), each)
                for topic, some in group.state.target(member_id).items()
                for each in some
            }
            for why, some in (
                ("told", revoking[member_id]),
                ("untold", had[member_id] - target),
                ("free", target - taken),
            ):
                for part in some:
                    key = who.identity.client_id, part, why
                    since[key] = self._since.get(key, self.now_ms)
        self._since = since

    def awaited(self) -> list[Wait]:
        """Whom the group waits for, by the core."""
        group = self._group
        if group.state.assignment_epoch != group.state.epoch:
            return []  # it waits for a target
        wanted = {
            (self._driver.topic_name(topic), each)
            for member_id in group.members
            for topic, some in group.state.target(member_id).items()
            for each in some
        }
        found: list[Wait] = []
        for who in NAMES:
            mine = {
                why: {
                    part: ms for (name, part, each), ms in self._since.items() if (name, each) == (who, why)
                }
                for why in ("told", "untold", "free")
            }
            for ms in sorted(set(mine["told"].values())):
                found.append(
                    (who, tuple(sorted(part for part in mine["told"] if mine["told"][part] == ms)), ms)
                )
            untold = {part: ms for part, ms in mine["untold"].items() if part in wanted}
            if untold:
                found.append((who, tuple(sorted(untold)), min(untold.values())))
            if mine["free"] and not mine["told"]:
                found.append((who, (), min(mine["free"].values())))
        return found


@pytest.mark.parametrize("seed", range(60))
def test_who_is_awaited_and_since_when(seed: int) -> None:
    story = Story(seed)
    for _ in story.play():
        found = explain(story.entries, now_ms=story.now_ms)
        if found is None or found.outcome != "under way":
            continue
        named = [(each.member.client_id, each.partitions, each.since_ms) for each in found.waiting]
        assert sorted(named) == sorted(story.awaited()), f"seed {seed}\n" + "\n".join(story.told)


class _Id(str):
    """A member id that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        _Id.compared += 1
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        _Id.compared += 1
        return str.__ne__(self, other)

    __hash__ = str.__hash__


def test_the_work_grows_with_the_members_that_revoke_not_with_their_square() -> None:
    def entry(kind: str, number: int, **data: object) -> Entry:
        who = Member(_Id(f"m{number}"), "web", "10.0.0.1")
        given = {"partitions": [["orders", number]]} | data
        return Entry(kind, 1_000, 1, 0, "billing", 2, None, who, None, given)

    def compared(size: int) -> int:
        told = [entry("revocation_requested", each, until_ms=60_000) for each in range(size)]
        _Id.compared = 0
        holders = Holders(told + [entry("partitions_revoked", each, after_ms=5) for each in range(size)])
        assert len(holders.requests) == size
        assert all(each.revoked_ms == 1_000 for each in holders.requests)
        return _Id.compared

    assert compared(400) < 4 * compared(100) + 100
