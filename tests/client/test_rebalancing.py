"""The steps of a rebalance, with a group that the test controls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, cast

import pytest

from muster.client import CommitResult, Committed, OffsetAndMetadata, RebalanceListener, Retry, TopicPartition
from muster.client.assignors import RebalanceProtocol
from muster.client.consume import auto_commit
from muster.client.consume.auto_commit import AutoCommit
from muster.client.consume.listener import Calls
from muster.client.consume.rebalancing import Rebalancing
from muster.client.consume.scope import Scopes
from muster.client.consume.subscription import Subscription
from muster.client.errors import ClientError, Closed, RequestTimedOut, TimedOut
from muster.client.group.group import Group, Joined, Preparation, State
from muster.client.network.connection import deadline
from muster.protocol.errors import ErrorCode, KafkaError
from tests.client.reading import LONG_S, until

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


class FakeGroup:
    def __init__(self, protocol: RebalanceProtocol) -> None:
        self.protocol = protocol
        self.state = State.STABLE
        self.generation_id = 1
        self.lost = False
        self.rejoin_needed = True
        self.revokes_first = True
        self.results: list[Joined | None] = []
        self.done: list[Joined] = []

    def prepare(self, owned: frozenset[TopicPartition]) -> Preparation:
        if self.lost:
            self.lost = False
            return Preparation(None, owned, frozenset())
        if self.protocol is RebalanceProtocol.EAGER:
            return Preparation(owned, None, frozenset())
        gone = frozenset(where for where in owned if where.topic == "u" and self.revokes_first)
        return Preparation(gone or None, None, owned - gone)

    async def join(self, owned: frozenset[TopicPartition], until: float) -> Joined | None:
        assert until <= deadline(0.01)
        result = self.results.pop(0) if self.results else None
        if self.revokes_first:
            self.rejoin_needed = result is None or result.revoked is not None
        return result

    def reconciled(self, joined: Joined) -> None:
        self.done.append(joined)
        if not self.revokes_first:
            self.rejoin_needed = bool(self.results)

    def gives(self, owned: set[TopicPartition], assigned: set[TopicPartition]) -> None:
        """Set the result of the next join."""
        cooperative = self.protocol is RebalanceProtocol.COOPERATIVE
        had = frozenset(owned) if cooperative else frozenset()
        revoked = (had - assigned) or None
        self.results.append(Joined(frozenset(assigned), revoked, frozenset(assigned) - had, 2, "m", "range"))


class Told(RebalanceListener):
    def __init__(self, story: list[Any], raises: str, told: Callable[[str], None]) -> None:
        self.story = story
        self.raises = raises
        self.told = told

    def _told(self, what: str, partitions: Any) -> None:
        self.story.append((what, *sorted(map(str, partitions))))
        self.told(what)
        if what in self.raises:
            raise RuntimeError(what)

    def on_partitions_revoked(self, consumer: Any, partitions: Any) -> None:
        self._told("revoked", partitions)

    async def on_partitions_assigned(self, consumer: Any, partitions: Any) -> None:
        await asyncio.sleep(0)
        self._told("assigned", partitions)

    def on_partitions_lost(self, consumer: Any, partitions: Any) -> None:
        self._told("lost", partitions)


class Stage:
    """A Rebalancing, and the story of what it does."""

    def __init__(
        self,
        protocol: RebalanceProtocol = RebalanceProtocol.EAGER,
        raises: str = "",
        grace_s: float = 0.02,
    ) -> None:
        self.story: list[Any] = []
        self.group = FakeGroup(protocol)
        self.may_commit: Callable[[], Awaitable[bool]] | None = None
        self.why: KafkaError | ClientError = RequestTimedOut("late")
        self.gone = True
        self.is_member = True
        self.moved_to: int | None = None
        self.failures: list[BaseException] = []
        self.told: Callable[[str], None] = lambda what: None
        """Called during a callback, with its name."""
        subscription = Subscription()
        subscription.subscribe("t")
        calls = Calls(None, Told(self.story, raises, lambda what: self.told(what)))
        self.scopes = Scopes(self.failures.append)
        self.woken = asyncio.Event()
        self.auto_commit = AutoCommit(
            self._commit,
            self._handled,
            self.woken.set,
            self._are_gone,
            self._committed,
            lambda: self.is_member,
            interval_s=LONG_S,
            attempt_s=LONG_S,
            retry_backoff_s=0.001,
        )
        self.rebalancing = Rebalancing(
            cast(Group, self.group),
            subscription,
            calls,
            self.scopes,
            self.auto_commit,
            hold=lambda partitions: self.story.append(("hold", *sorted(map(str, partitions)))),
            adopt=lambda partitions, settled=True: self.story.append(("read", *sorted(map(str, partitions)))),
            grace_s=grace_s,
            rebalance_s=LONG_S,
        )

    def own(self, *partitions: TopicPartition) -> None:
        self.rebalancing.owned = frozenset(partitions)

    async def _are_gone(self, partitions: Iterable[TopicPartition], until: float) -> bool:
        return self.gone

    def _handled(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return {where: OffsetAndMetadata(7) for where in self.rebalancing.owned}

    async def _committed(
        self, partitions: Iterable[TopicPartition], until: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        return {where: OffsetAndMetadata(self.moved_to or 7, "note") for where in partitions}

    async def _commit(self, offsets: dict[TopicPartition, OffsetAndMetadata], until: float) -> CommitResult:
        self.story.append(("commit", *sorted(map(str, offsets))))
        if self.may_commit is not None and not await self.may_commit():
            return CommitResult({where: Retry(7, self.why) for where in offsets})
        result = CommitResult({where: Committed(7) for where in offsets})
        self.auto_commit.known(dict.fromkeys(offsets, 7))
        return result

    def hold_commits(self) -> asyncio.Event:
        """From now on commits wait for this event."""
        committing = asyncio.Event()

        async def late() -> bool:
            return await committing.wait()

        self.may_commit = late
        return committing

    async def go_on(self, seconds: float = LONG_S) -> list[Any]:
        """Continue the rebalance; return what it did."""
        try:
            await self.rebalancing.go_on(deadline(seconds))
        finally:
            story, self.story[:] = list(self.story), []
        return story


async def test_eager() -> None:
    stage = Stage()
    stage.own(T0, T1)
    assert await stage.go_on() == [
        ("hold", "t-0", "t-1"),
        ("commit", "t-0", "t-1"),
        ("revoked", "t-0", "t-1"),
        ("read",),
    ]
    # The join is in flight, and not awaited.
    assert stage.rebalancing.owned == set()
    stage.group.gives(set(), {T1})
    told = await stage.go_on()
    assert told[-2:] == [("read", "t-1"), ("assigned", "t-1")]
    assert stage.rebalancing.owned == {T1}
    assert stage.rebalancing.count == 1
    assert await stage.go_on() == []


async def test_cooperative_gives_up_what_is_not_wanted_before_and_what_moves_after_the_join() -> None:
    stage = Stage(RebalanceProtocol.COOPERATIVE)
    stage.own(T0, T1, U0)
    stage.group.gives({T0, T1}, {T0})
    stage.group.gives({T0}, {T0})
    assert await stage.go_on() == [
        ("hold", "u-0"),
        ("commit", "t-0", "t-1", "u-0"),
        ("revoked", "u-0"),
        ("read", "t-0", "t-1"),
        ("hold", "t-1"),
        ("revoked", "t-1"),
        ("read", "t-0"),
        ("read", "t-0"),
        ("assigned",),
        ("hold",),
        ("read", "t-0"),
        ("assigned",),
    ]
    assert stage.rebalancing.count == 2


async def test_what_was_read_while_the_group_was_joined_is_committed_before_it_goes() -> None:
    stage = Stage(RebalanceProtocol.COOPERATIVE)
    stage.own(T0, T1)
    assert await stage.go_on() == [("hold",), ("commit", "t-0", "t-1")]
    assert await stage.go_on() == []  # reading continues; nothing is committed repeatedly
    stage.auto_commit.forget([T1])  # as if more of it had been handled
    stage.group.gives({T0, T1}, {T0})
    assert (await stage.go_on())[:3] == [("hold", "t-1"), ("commit", "t-1"), ("revoked", "t-1")]


async def test_a_commit_that_takes_long_holds_up_neither_the_call_nor_the_rebalance_for_ever() -> None:
    stage = Stage()
    stage.own(T0)
    committing = stage.hold_commits()
    assert await stage.go_on(0.01) == [("hold", "t-0"), ("commit", "t-0")]
    assert await stage.go_on(0) == []
    assert await stage.go_on(0.01) == []
    committing.set()
    assert await stage.go_on() == [("revoked", "t-0"), ("read",)]


async def test_a_commit_of_a_step_that_came_to_nothing_is_nobody_elses() -> None:
    stage = Stage()
    stage.own(T0)
    committing = stage.hold_commits()
    assert await stage.go_on(0.01) == [("hold", "t-0"), ("commit", "t-0")]
    stage.group.lost = True
    committing.set()
    stage.group.gives(set(), {T1})
    assert await stage.go_on() == [("lost", "t-0"), ("read",), ("read", "t-1"), ("assigned", "t-1")]
    stage.auto_commit._due = True
    stage.auto_commit.tick()
    await until(lambda: stage.story == [("commit", "t-1")])
    stage.auto_commit.forget([T1])  # as if more of it had been handled
    stage.story.clear()
    stage.group.rejoin_needed = True
    assert (await stage.go_on())[:3] == [("hold", "t-1"), ("commit", "t-1"), ("revoked", "t-1")]


async def test_leaving_commits_what_an_unfinished_rebalance_did_not() -> None:
    stage = Stage()
    stage.own(T0, T1)
    committing = stage.hold_commits()
    assert not await stage.auto_commit.catch_up(frozenset({T0}), deadline(0.01), deadline(LONG_S))
    committing.set()
    await stage.rebalancing.leave(deadline(LONG_S), 0)
    assert ("commit", "t-0", "t-1") in stage.story


async def test_transactions_wait_for_the_commit_of_a_rebalance() -> None:
    stage = Stage()
    stage.own(T0)
    committing = stage.hold_commits()
    assert not await stage.auto_commit.catch_up(frozenset({T0}), deadline(0.01), deadline(LONG_S))
    with pytest.raises(TimedOut):
        await stage.auto_commit.hand_over(deadline(0.01))
    committing.set()
    await stage.auto_commit.hand_over(deadline(LONG_S))
    assert await stage.auto_commit.catch_up(frozenset({T0}), deadline(LONG_S), deadline(LONG_S))
    assert stage.story == [("commit", "t-0")]


async def test_a_call_that_ends_or_is_cancelled_takes_nothing_of_the_grace() -> None:
    stage = Stage(grace_s=LONG_S)
    stage.own(T0)
    finish = asyncio.Event()
    task = stage.scopes.of(T0).create_task(finish.wait())
    assert await stage.go_on(0.01) == [("hold", "t-0")]
    cancelled = asyncio.create_task(stage.go_on())
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert await stage.go_on(0) == []
    assert not task.done()
    finish.set()
    assert await stage.go_on() == [("commit", "t-0"), ("revoked", "t-0"), ("read",)]
    assert task.result()


async def test_a_commit_is_tried_again_until_the_rebalance_cannot_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage, passed_s = Stage(), 0.0
    stage.own(T0)

    async def never() -> bool:
        nonlocal passed_s
        passed_s = LONG_S if stage.story.count(("commit", "t-0")) == 3 else 0.0
        return False

    stage.may_commit = never
    monkeypatch.setattr(
        "muster.client.consume.auto_commit.deadline", lambda seconds: deadline(seconds) + passed_s
    )
    commits = [("commit", "t-0")] * 3
    assert await stage.go_on() == [("hold", "t-0"), *commits, ("revoked", "t-0"), ("read",)]


async def test_a_topic_that_is_gone_is_not_waited_for() -> None:
    stage = Stage()
    stage.own(T0)
    stage.why = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    async def never() -> bool:
        return False

    stage.may_commit = never
    assert await stage.go_on() == [("hold", "t-0"), ("commit", "t-0"), ("revoked", "t-0"), ("read",)]


async def test_a_topic_that_only_the_coordinator_does_not_know_is_waited_for() -> None:
    stage = Stage()
    stage.own(T0)
    stage.why = KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    stage.gone = False
    answers = iter([False, False, True])

    async def at_last() -> bool:
        return next(answers)

    stage.may_commit = at_last
    story = await stage.go_on()
    assert story == [("hold", "t-0"), *[("commit", "t-0")] * 3, ("revoked", "t-0"), ("read",)]


async def test_what_is_lost_is_not_committed() -> None:
    stage = Stage(RebalanceProtocol.COOPERATIVE)
    stage.own(T0, T1)
    stage.group.lost = True
    task = stage.scopes.of(T0).create_task(asyncio.Event().wait())
    assert await stage.go_on() == [("lost", "t-0", "t-1"), ("read",)]
    assert task.cancelled()
    stage.group.gives(set(), {T0})
    await stage.go_on()
    assert not stage.scopes.of(T0).ended


async def test_lost_partitions_take_no_work_until_they_are_assigned_again() -> None:
    stage = Stage()
    stage.own(T0, T1)
    refused: list[bool] = []
    stage.told = lambda what: refused.append(stage.scopes.of(T0).ended)
    committing = stage.hold_commits()
    assert await stage.go_on(0.01) == [("hold", "t-0", "t-1"), ("commit", "t-0", "t-1")]
    stage.group.lost = True
    stage.rebalancing.lost()
    for where in (T0, T1):  # of which nobody has asked for a scope before
        work = asyncio.sleep(0)
        with pytest.raises(Closed, match="no longer assigned"):
            stage.scopes.of(where).create_task(work)
    committing.set()
    stage.group.gives(set(), {T0})
    assert ("lost", "t-0", "t-1") in await stage.go_on()
    assert refused == [True, False]  # when told that they are lost, and that one is assigned
    await stage.scopes.of(T0).create_task(asyncio.sleep(0))


@pytest.mark.parametrize("leaves", [False, True])
async def test_lost_partitions_take_no_work_while_their_tasks_clean_up_or_the_listener_is_told(
    leaves: bool,
) -> None:
    stage = Stage()
    stage.own(T0)
    cleaning_up, clean = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaning_up.set()
            await clean.wait()

    async def ends() -> None:
        if leaves:
            await stage.rebalancing.leave(deadline(LONG_S), LONG_S)
        else:
            await stage.rebalancing.go_on(deadline(LONG_S))

    def refuses() -> bool:
        return stage.scopes.of(T0).ended

    task = stage.scopes.of(T0).create_task(work())
    await asyncio.sleep(0)
    stage.group.lost = True
    stage.rebalancing.lost()
    ending = asyncio.create_task(ends())
    await cleaning_up.wait()
    await asyncio.sleep(0)
    assert refuses()
    ending.cancel()
    await asyncio.wait([ending])
    assert refuses() is not leaves  # a member that leaves has given up its partitions all the same
    told: list[bool] = []
    stage.told = lambda what: told.append(refuses())
    ending = asyncio.create_task(ends())
    clean.set()
    await ending
    assert told == [True]
    assert task.cancelled()
    assert not refuses()


async def deaf() -> None:
    """Ignore a first cancellation."""
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    await asyncio.Event().wait()


@pytest.mark.parametrize("lost", [False, True])
async def test_reading_calls_that_are_cut_off_wait_for_a_deaf_task_no_longer_than_one_call(
    lost: bool,
) -> None:
    stage = Stage()
    stage.own(T0)
    task = stage.scopes.of(T0).create_task(deaf())
    await asyncio.sleep(0)
    stage.group.gives(set(), {T0})
    if lost:
        stage.group.lost = True
        stage.rebalancing.lost()
    async with asyncio.timeout(LONG_S):
        while stage.group.rejoin_needed:
            with suppress(TimeoutError):
                await asyncio.wait_for(stage.rebalancing.go_on(deadline(LONG_S)), 0.3)
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])


async def test_a_lost_partitions_deaf_task_is_waited_for_once() -> None:
    stage = Stage(grace_s=10 * LONG_S)
    stage.own(T0)
    task = stage.scopes.of(T0).create_task(deaf())
    await asyncio.sleep(0)
    stage.group.gives(set(), {T1})
    stage.group.lost = True
    stage.rebalancing.lost()
    await stage.go_on()
    assert not task.done()
    assert not stage.scopes.has(task)
    stage.group.rejoin_needed = True
    stage.group.gives(set(), {T1})
    async with asyncio.timeout(LONG_S):
        assert ("assigned", "t-1") in await stage.go_on()
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])


async def test_a_loss_during_a_commit_before_the_join_leaves_no_scope_that_refuses_for_ever() -> None:
    stage = Stage()
    stage.own(T0)

    async def refuse() -> bool:
        stage.group.lost = True
        stage.rebalancing.lost()
        raise RequestTimedOut("late")

    stage.may_commit = refuse
    stage.group.gives(set(), {T0})
    assert ("assigned", "t-0") in await stage.go_on()
    await stage.scopes.of(T0).create_task(asyncio.sleep(0))


async def test_work_that_begins_while_the_listener_is_told_of_the_end_goes_with_the_partition() -> None:
    stage = Stage()
    stage.own(T0)
    tasks: list[asyncio.Task[Any]] = []

    def told(what: str) -> None:
        if what == "revoked":
            tasks.append(stage.scopes.of(T0).create_task(asyncio.Event().wait()))

    stage.told = told
    stage.group.gives(set(), {T0})
    assert ("assigned", "t-0") in await stage.go_on()
    (task,) = tasks
    await until(task.done)
    assert task.cancelled()
    assert not stage.scopes.of(T0).ended


@pytest.mark.parametrize("protocol", [RebalanceProtocol.EAGER, RebalanceProtocol.COOPERATIVE])
async def test_the_first_of_two_failures_is_raised_and_everything_is_done(
    protocol: RebalanceProtocol,
) -> None:
    stage = Stage(protocol, raises="revoked assigned")
    stage.own(T0, T1)
    stage.group.gives({T0, T1}, {T0})
    with pytest.raises(RuntimeError, match="revoked"):
        await stage.go_on()
    if protocol is RebalanceProtocol.EAGER:
        assert stage.rebalancing.owned == set()
        with pytest.raises(RuntimeError, match="assigned"):
            await stage.go_on()
    assert stage.rebalancing.owned == {T0}


async def test_a_cancellation_is_not_lost_behind_a_failure() -> None:
    stage = Stage(RebalanceProtocol.COOPERATIVE, raises="revoked")
    stage.own(T0, T1)
    stage.group.gives({T0, T1}, {T0})
    called, never = asyncio.Event(), asyncio.Event()

    async def assigned(consumer: Any, partitions: Any) -> None:
        called.set()
        await never.wait()

    stage.rebalancing._calls.listener.on_partitions_assigned = assigned  # type: ignore[method-assign]
    going = asyncio.create_task(stage.go_on())
    await called.wait()
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going


def consumer_protocol() -> Stage:
    stage = Stage(RebalanceProtocol.COOPERATIVE)
    stage.group.revokes_first = False
    stage.own(T0, U0)
    return stage


async def test_in_the_consumer_protocol_each_assignment_is_done_before_it_is_acknowledged() -> None:
    stage = consumer_protocol()
    stage.group.gives({T0, U0}, {T0})
    stage.group.gives({T0}, {T0, T1})
    assert await stage.go_on() == [
        ("hold", "u-0"),
        ("commit", "u-0"),
        ("revoked", "u-0"),
        ("read", "t-0"),
        ("read", "t-0"),
        ("assigned",),
        ("read", "t-0", "t-1"),
        ("assigned", "t-1"),
    ]
    assert [each.assigned for each in stage.group.done] == [{T0}, {T0, T1}]
    assert await stage.go_on() == []


async def test_it_is_acknowledged_even_if_a_callback_raises() -> None:
    stage = Stage(RebalanceProtocol.COOPERATIVE, raises="assigned")
    stage.group.revokes_first = False
    stage.group.gives(set(), {T0})
    with pytest.raises(RuntimeError, match="assigned"):
        await stage.go_on()
    assert len(stage.group.done) == 1


async def test_a_membership_that_is_lost_while_partitions_are_given_up() -> None:
    stage = consumer_protocol()
    stage.group.gives({T0, U0}, {T1})

    async def fenced() -> bool:
        stage.group.lost = stage.group.rejoin_needed = True
        return True

    stage.may_commit = fenced
    story = await stage.go_on()
    assert ("lost", "t-0", "u-0") in story
    assert "revoked" not in [what for what, *_ in story]
    assert ("read", "t-1") not in story
    assert stage.rebalancing.owned == set()
    assert stage.group.done == []


@pytest.mark.parametrize("state", State)
async def test_leaving(state: State) -> None:
    stage = Stage()
    stage.own(T0)
    stage.group.state = state
    if state in (State.UNJOINED, State.JOINING):
        stage.group.generation_id = -1
    await stage.rebalancing.leave(deadline(LONG_S), 0)
    there = state in (State.STABLE, State.RECONCILING, State.ACKNOWLEDGING)
    told = "revoked" if there else "lost"
    assert stage.story == [("hold", "t-0"), ("commit", "t-0"), (told, "t-0"), ("read",)]
    stage.story.clear()
    await stage.rebalancing.leave(deadline(LONG_S), 0)
    assert stage.story == [("read",)]


async def test_scopes_end_within_their_grace_and_one_that_ignores_it_is_left() -> None:
    failures: list[BaseException] = []
    scopes = Scopes(failures.append)
    deaf = asyncio.Event()

    async def stubborn() -> None:
        while not deaf.is_set():
            try:
                await deaf.wait()
            except asyncio.CancelledError:
                continue

    async def failing() -> None:
        raise RuntimeError("in the scope")

    task = scopes.of(T0).create_task(stubborn())
    quick = scopes.of(T0).create_task(asyncio.sleep(0), name="quick")
    bad = scopes.of(T1).create_task(failing())
    await scopes.end([T0], 0.01)
    assert quick.done()
    assert not task.done()
    await until(bad.done)
    await until(lambda: failures)
    assert "in the scope" in str(failures[0])
    deaf.set()
    await asyncio.wait([task])
    assert "open" in repr(scopes.of(T0))


async def test_a_periodic_commit_begins_with_what_is_handled_by_then() -> None:
    """What was handled may be of a topic whose name another takes before the task runs."""
    stage = Stage()
    stage.own(T0, T1)
    stage.auto_commit._due = True
    stage.auto_commit.tick()
    stage.own(T1)
    await until(lambda: stage.story)
    assert stage.story == [("commit", "t-1")]
    await stage.auto_commit.close()


async def test_offsets_of_assigned_partitions_are_committed_again_before_they_expire(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()
    stage.own(T0, T1)
    later_s = 0.0
    monkeypatch.setattr(auto_commit, "deadline", lambda seconds: deadline(seconds + later_s))

    async def ticks() -> list[Any]:
        stage.auto_commit._due = True
        stage.auto_commit.tick()
        await until(lambda: stage.auto_commit._periodic is None and stage.auto_commit._again is None)
        story, stage.story[:] = list(stage.story), []
        return story

    stage.auto_commit.known({T0: 7}, now=False)
    assert await ticks() == [("commit", "t-1")]
    later_s += auto_commit.AGAIN_S + 1
    assert await ticks() == []  # a member's do not expire
    stage.is_member = False
    stage.auto_commit.known({T1: 7})
    assert await ticks() == [("commit", "t-0")]
    later_s += auto_commit.AGAIN_S - 1
    assert await ticks() == []
    later_s += 2
    assert await ticks() == [("commit", "t-0", "t-1")]
    assert await ticks() == []
    later_s += auto_commit.AGAIN_S + 1
    stage.moved_to = 9  # by somebody else
    assert await ticks() == []
    stage.moved_to = None
    assert await ticks() == []  # looked at a moment ago
    later_s += auto_commit.AGAIN_S + 1

    async def refuse() -> bool:
        raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "not for you")

    stage.may_commit = refuse
    assert await ticks() == [("commit", "t-0", "t-1")]
    stage.auto_commit.raise_failure()  # of no concern to the reader

    async def breaks() -> bool:
        raise RuntimeError("a mistake")

    stage.may_commit = breaks
    later_s += auto_commit.AGAIN_S + 1
    assert await ticks() == [("commit", "t-0", "t-1")]
    with pytest.raises(RuntimeError, match="a mistake"):
        stage.auto_commit.raise_failure()
    await stage.auto_commit.close()


async def test_a_reader_hears_at_once_that_a_commit_of_partitions_let_go_is_refused() -> None:
    async def refuse() -> bool:
        raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "not for you")

    stage = Stage()
    stage.own(T0)
    stage.may_commit = refuse
    stage.auto_commit.let_go(frozenset({T0}))
    await stage.auto_commit.until_let_go()
    assert stage.woken.is_set()
    with pytest.raises(KafkaError, match="not for you"):
        stage.auto_commit.raise_failure()
