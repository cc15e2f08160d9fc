"""Commits and fetches a group's offsets. Commit requests are sent one at a time; several callers, and
retries, share a request, in which a partition's later offset replaces an earlier one. So retrying an old
commit after a newer one never moves offsets back.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from muster.client.errors import (
    NEVER_PASSES,
    AuthenticationFailed,
    ClientError,
    Closed,
    NotKafka,
    RequestTimedOut,
    may_pass,
    refusal,
)
from muster.client.group.answers import Action, action_of
from muster.client.group.driver import Driver
from muster.client.group.heartbeat import Backoff
from muster.client.group.member import Member
from muster.client.group.membership_types import NO_GENERATION, Generation, State
from muster.client.group.outcomes import CommitResult, Committed, Outcome, Retry, StaleOwner
from muster.client.group.requests import offset_topics
from muster.client.network.cluster import left_out
from muster.client.network.connection import Versioned, deadline
from muster.client.partitions import OffsetAndMetadata, TopicPartition, grouped
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.message import VERSION_MAX, Message
from muster.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
)

_REQUIRE_STABLE: Final = 7  # the first OffsetFetch version that supports it (KIP-447)
_MEMBER_IN_FETCH: Final = 9  # the first version that names the member (KIP-848)
_TOPIC_IDS: Final = 10  # the first OffsetCommit version with topics by id
_OF_PLACES: Final = frozenset({ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE})
"""Refusals of what is committed, not of who commits it."""


class _Wanted(NamedTuple):
    """What to commit for a partition."""

    place: OffsetAndMetadata
    topic_id: uuid.UUID | None


class _Call:
    """One call of `commit`, and the outcomes of its partitions so far."""

    __slots__ = (
        "done",
        "left",
        "of_member",
        "offsets",
        "outcomes",
        "own",
        "until",
        "waits_for_topics",
        "wanted",
        "why",
    )

    def __init__(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        until: float,
        topic_ids: Mapping[TopicPartition, uuid.UUID],
        *,
        of_member: bool,
        waits_for_topics: bool,
    ) -> None:
        self.of_member = of_member
        self.waits_for_topics = waits_for_topics
        self.offsets = dict(offsets)
        self.own = {where: _Wanted(place, topic_ids.get(where)) for where, place in offsets.items()}
        self.wanted = dict(self.own)
        """What to send: its own places or, once sent with a newer call's, that one's."""
        self.left = set(self.offsets)
        self.outcomes: dict[TopicPartition, Outcome] = {}
        self.until = until
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.why: KafkaError | ClientError | None = None
        """Why the rest is not committed yet."""

    def settle(self, where: TopicPartition, outcome: Outcome) -> None:
        self.outcomes[where] = outcome
        self.left.discard(where)
        if not self.left and not self.done.done():
            self.done.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # mark it as retrieved, in case its caller is gone


class _As(NamedTuple):
    """The identity that commits."""

    generation: Generation
    state: State | None
    """None: not a member, only committing for the group."""
    owned: frozenset[TopicPartition]


class _Left(Enum):
    """What to do next for a partition."""

    NOTHING = auto()
    AGAIN = auto()
    """Retry after a pause."""
    WAITS = auto()
    """Retry when the member's state changes."""
    TO_THE_CALLER = auto()
    """Only a reading call can advance the member: return Retry."""
    STALE = auto()
    FAILED = auto()


class Offsets:
    """A group's committed offsets, for its member or, without a subscription, for manual assignment. Runs on
    the driver's loop."""

    def __init__(self, driver: Driver, membership: Member, lock: AbstractContextManager[Any]) -> None:
        self._driver = driver
        self._membership = membership
        self._lock = lock
        settings = membership.settings
        self._settings = settings
        self._backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms, membership.jitter)
        self._calls: dict[_Call, None] = {}  # in order of arrival
        self._pump: asyncio.Task[None] | None = None

    def serve(self, membership: Member) -> None:
        """Commit as this member from now on. Call with the lock held."""
        self._membership = membership

    # --- committing -----------------------------------------------------------------------------------------

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        until: float,
        topic_ids: Mapping[TopicPartition, uuid.UUID],
        *,
        waits_for_topics: bool = True,
    ) -> CommitResult:
        """Commit. Retriable failures are retried until `until`, unknown topics only if `waits_for_topics`.
        `topic_ids` are the ids, as far as known, of the topics that the offsets belong to. Raises KafkaError
        for permanent refusals: not authorized, metadata too long, group instance id taken over by another
        member. Raises AuthenticationFailed."""
        if not offsets:
            return CommitResult({})
        member = self._committer()
        call = _Call(
            offsets, until, topic_ids, of_member=member.state is not None, waits_for_topics=waits_for_topics
        )
        self._sort_out(call, member)
        if not call.left:
            return CommitResult(call.outcomes)
        self._calls[call] = None
        if self._pump is None:
            self._pump = asyncio.create_task(self._run(), name=f"commits of group {self._settings.group_id}")
        self._driver.announce()  # The pump may be waiting on behalf of other callers.
        try:
            await asyncio.wait([call.done], timeout=max(0.0, until - deadline(0)))
            if call.done.done():
                call.done.result()
        finally:
            self._calls.pop(call, None)
        for where in call.left:
            why = call.why or RequestTimedOut("the coordinator did not answer the commit in time")
            call.outcomes[where] = Retry(call.offsets[where].offset, why)
        return CommitResult({where: call.outcomes[where] for where in offsets})

    async def close(self) -> None:
        """Fail all calls in progress."""
        for call in self._calls:
            call.fail(Closed(f"group {self._settings.group_id}: the member was closed"))
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait([self._pump])

    async def _run(self) -> None:
        try:
            while self._calls:
                await self._attempt()
        except Exception as error:
            for call in self._calls:
                call.fail(error)
        finally:
            self._pump = None

    async def _attempt(self) -> None:
        """Commit what is left, once, and wait until a retry makes sense."""
        self._driver.raise_if_crashed()
        member = self._committer()
        for call in self._calls:
            self._sort_out(call, member)
        self._calls = {call: None for call in self._calls if not call.done.done()}
        if not self._calls:
            return
        calls = list(self._calls)
        until = max(call.until for call in calls)
        if member.state is State.COMPLETING_REBALANCE:
            # The coordinator accepts no commits until all members have an assignment.
            _note(calls, refusal(ErrorCode.REBALANCE_IN_PROGRESS, about=f"group {self._settings.group_id}"))
            await self._wait_for_change(member, until)
            return
        wanted = {where: each for call in calls for where, each in call.wanted.items() if where in call.left}
        attempt_until = deadline(2 * self._settings.request_timeout_ms / 1000)  # for look-up and commit
        try:
            node = await self._driver.coordinator(attempt_until)
            for call in calls:
                # Even if the newer call is given up, its places may be committed: an older one repeats them.
                call.wanted = {where: wanted[where] for where in call.left}
            codes = await self._ask(node, wanted, member, attempt_until)
        except AuthenticationFailed as error:
            for call in calls:
                call.fail(error)
            return
        except ClientError as error:
            _note(calls, error)
            await self._pause()
            return
        left = {self._take(calls, where, code, member, node) for where, code in codes.items()}
        if _Left.WAITS in left:
            await self._wait_for_change(member, until)
        elif _Left.AGAIN in left:
            await self._pause()
        else:
            self._backoff.reset()

    def _committer(self) -> _As:
        with self._lock:
            membership = self._membership
            if not membership.is_subscribed:
                return _As(NO_GENERATION, None, frozenset())
            return _As(membership.generation, membership.state, membership.owned)

    async def _pause(self) -> None:
        await asyncio.sleep(self._backoff.next_ms() / 1000)

    async def _wait_for_change(self, member: _As, until: float) -> None:
        """Wait until the member's state changes, or there are more calls."""
        calls = len(self._calls)
        while self._committer() == member and len(self._calls) == calls:
            if not await self._driver.changed(until):
                return

    def _sort_out(self, call: _Call, member: _As) -> None:
        """Settle partitions that a member may not commit. The coordinator only checks generations: it would
        let a member overwrite the commits of a partition's new owner."""
        if not call.of_member and member.state is None:
            return
        for where in call.left - member.owned:
            if member.generation.is_valid:
                code = ErrorCode.ILLEGAL_GENERATION
                why = f"{where} is not this member's in generation {member.generation.generation_id}"
            else:
                code = ErrorCode.UNKNOWN_MEMBER_ID
                why = f"{where} is not this member's: it is in no generation of {self._settings.group_id}"
            call.settle(where, StaleOwner(call.offsets[where].offset, KafkaError(code, why)))

    async def _ask(
        self, node: int, wanted: Mapping[TopicPartition, _Wanted], member: _As, until: float
    ) -> dict[TopicPartition, int]:
        """The coordinator's response: an error code for each partition. Topics are named by id if all ids are
        known, so that nothing is committed to another topic that has since taken the name."""
        ids = {where: each.topic_id for where, each in wanted.items() if each.topic_id is not None}
        names = {topic_id: where.topic for where, topic_id in ids.items()}
        request = OffsetCommitRequest(
            group_id=self._settings.group_id,
            generation_id_or_member_epoch=member.generation.generation_id,
            member_id=member.generation.member_id,
            group_instance_id=None if member.state is None else self._settings.group_instance_id,
            topics=offset_topics(((where, each.place) for where, each in wanted.items()), ids),
        )
        by_id = ids.keys() == wanted.keys()
        response: OffsetCommitResponse = await self._driver.call(
            node,
            Versioned(ApiKey.OFFSET_COMMIT, lambda _: request, VERSION_MAX if by_id else _TOPIC_IDS - 1),
            until,
        )
        codes = {
            TopicPartition(topic.name or names.get(topic.topic_id, ""), each.partition_index): each.error_code
            for topic in response.topics
            for each in topic.partitions
        }
        left_out(wanted.keys() - codes.keys(), "OffsetCommit")
        return codes

    def _take(
        self, calls: list[_Call], where: TopicPartition, error_code: int, member: _As, node: int
    ) -> _Left:
        """Apply the response for a partition to all calls."""
        concerned = [call for call in calls if where in call.left]
        if not error_code:
            with self._lock:
                self._membership.heard()
            for call in concerned:
                call.settle(where, Committed(call.offsets[where].offset))
            return _Left.NOTHING
        error = refusal(error_code, about=f"commit of {where} in group {self._settings.group_id}")
        with self._lock:
            action = self._membership.commit_action(error.code)
        left = self._what_is_left(action, member)
        if action is Action.FIND_COORDINATOR:
            self._driver.coordinator_lost(node)
        if member.state is not None:
            with self._lock:
                self._membership.commit_refused(error.code, member.generation)
            self._driver.kick()
        if left is _Left.STALE and member.state is None:
            error = KafkaError(
                error.code,
                f"commit of {where}: group {self._settings.group_id} has members, and only they may commit; "
                "give a consumer of assigned partitions a group_id of its own",
            )
        _note(concerned, error)
        for call in concerned:
            offset = call.offsets[where].offset
            match left:
                case _Left.STALE:
                    call.settle(where, StaleOwner(offset, error))
                case _Left.TO_THE_CALLER:
                    call.settle(where, Retry(offset, error))
                case _Left.FAILED if error.code in _OF_PLACES and call.wanted[where] != call.own[where]:
                    call.wanted[where] = call.own[where]  # the newer call's may be to blame
                case _Left.FAILED:
                    call.fail(error)
                case _Left.AGAIN if error.code in NEVER_PASSES and not call.waits_for_topics:
                    call.settle(where, Retry(offset, error))
        return left

    def _what_is_left(self, action: Action, member: _As) -> _Left:
        with self._lock:
            passed = self._membership.generation != member.generation
            state, is_joining = self._membership.state, self._membership.is_joining
        match action:
            case Action.AGAIN | Action.FIND_COORDINATOR:
                return _Left.AGAIN
            case Action.REJOIN:
                if member.state is None:
                    return _Left.AGAIN
                return _Left.WAITS if is_joining else _Left.TO_THE_CALLER
            case Action.NEXT_EPOCH if member.state is not None:
                return _Left.AGAIN if passed else _Left.WAITS
            case Action.FORGET_GENERATION | Action.FORGET_MEMBER | Action.NEXT_EPOCH:
                if member.state is None:
                    return _Left.STALE
                if passed:
                    return _Left.AGAIN
                # While a JoinGroup is in flight, the group may already be in its next generation.
                return _Left.WAITS if state is State.PREPARING_REBALANCE else _Left.STALE
            case Action.FENCED if passed and member.state is not None:
                return _Left.AGAIN
            case _:
                return _Left.FAILED

    # --- fetching -------------------------------------------------------------------------------------------

    async def fetch(
        self, partitions: Collection[TopicPartition], until: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offsets of these partitions; None for a partition without one. Waits for those that
        an open transaction may still change (KIP-447), as Java's client always does. Retries until `until`,
        then raises the last failure; raises permanent failures at once. Raises RequestTimedOut if the
        member's epoch changed on every attempt."""
        if not partitions:
            return {}
        backoff = Backoff(
            self._settings.retry_backoff_ms, self._settings.retry_backoff_max_ms, self._membership.jitter
        )
        refused: KafkaError | None = None
        while True:
            node: int | None = None
            try:
                node = await self._driver.coordinator(until)
                return await self._fetch_once(node, partitions, until)
            except KafkaError as error:
                action = action_of(ApiKey.OFFSET_FETCH, error.code)
                if action is Action.FATAL:
                    raise
                if action is Action.FIND_COORDINATOR and node is not None:
                    self._driver.coordinator_lost(node)
                failed: KafkaError | ClientError = error
                refused = error
            except (NotKafka, AuthenticationFailed):
                raise
            except ClientError as error:
                self._driver.raise_if_crashed()
                failed = error
            pause_s = backoff.next_ms() / 1000
            if deadline(pause_s) >= until:
                # A timeout says less than the failure that used up the time.
                last = refused if refused is not None and isinstance(failed, RequestTimedOut) else failed
                if isinstance(last, KafkaError) and not may_pass(last.code):
                    raise RequestTimedOut(str(last)) from last  # not permanent: another epoch would do
                raise last
            await self._driver.pause(pause_s)

    async def _fetch_once(
        self, node: int, partitions: Collection[TopicPartition], until: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        topics = grouped((where, None) for where in sorted(set(partitions)))
        with self._lock:
            member = self._membership.fetches_as

        def build(version: int) -> Message:
            if version >= _MEMBER_IN_FETCH and member is not None:
                return OffsetFetchRequest(
                    groups=[
                        OffsetFetchRequest.Group(
                            group_id=self._settings.group_id,
                            member_id=member.member_id,
                            member_epoch=member.generation_id,
                            topics=[
                                OffsetFetchRequest.Topics(
                                    name=topic, partition_indexes=[index for index, _ in parts]
                                )
                                for topic, parts in topics.items()
                            ],
                        )
                    ],
                    require_stable=True,
                )
            return OffsetFetchRequest(
                group_id=self._settings.group_id,
                topics=[
                    OffsetFetchRequest.Topic(name=topic, partition_indexes=[index for index, _ in parts])
                    for topic, parts in topics.items()
                ],
                require_stable=version >= _REQUIRE_STABLE,
            )

        last = _REQUIRE_STABLE if member is None else _MEMBER_IN_FETCH
        request = Versioned(ApiKey.OFFSET_FETCH, build, last)
        response = await self._driver.call(node, request, until)
        if response.groups:
            response = response.groups[0]
        about = f"offsets of group {self._settings.group_id}"
        if response.error_code:
            raise refusal(response.error_code, about=about)
        told: dict[TopicPartition, OffsetAndMetadata | None] = {}
        for topic in response.topics:
            for each in topic.partitions:
                where = TopicPartition(topic.name, each.partition_index)
                if each.error_code:
                    raise refusal(each.error_code, about=f"{about}: {where}")
                place = OffsetAndMetadata(
                    each.committed_offset, each.metadata or "", each.committed_leader_epoch
                )
                told[where] = place if place.offset >= 0 else None
        left_out(set(partitions) - told.keys(), "OffsetFetch")
        return {where: told[where] for where in partitions}


def _note(calls: list[_Call], why: KafkaError | ClientError) -> None:
    """Keep the reason, in case there is no time for a retry."""
    for call in calls:
        call.why = why
