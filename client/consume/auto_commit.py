"""Commits handled records on the reader's behalf: every interval, before a rebalance, and on close. Periodic
commits run in their own task, and nobody waits for them. Commits before a rebalance do too, so a reading call
may end before they do, and the next one finds them further along. If the generation has ended, a commit is
dropped: the partition's new owner reads those records again.

The offsets of a group without members expire, by the time of their last commit. So a reader of assigned
partitions commits one again, though it has not changed, once its last commit is `AGAIN_S` old: as it finds
it, unless somebody else, such as an administrator, has moved it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

from muster.client.errors import NEVER_PASSES, AuthenticationFailed, ClientError, TimedOut
from muster.client.group.outcomes import CommitResult
from muster.client.network.connection import deadline
from muster.client.partitions import OffsetAndMetadata, TopicPartition
from muster.protocol.errors import KafkaError

_LOG: Final = logging.getLogger("muster.client.consumer")

AGAIN_S: Final = 600.0
_TRIES_S: Final = 1.0
"""How long it tries to commit offsets again. Closing waits for that, and somebody may move them meanwhile."""


class _Known(NamedTuple):
    """What is committed, and at what time of the loop; -inf if that is unknown."""

    offset: int
    at: float


class AutoCommit:
    """Commits what `handled()` returns and is not committed yet, by calling `commit` with a deadline; each
    periodic attempt gets `attempt_s`. `wake` is called when `tick` has something to do. `are_gone` returns,
    by a deadline, whether none of these partitions exists: a coordinator may not know a new topic yet.
    `committed` looks up, by a deadline, what the group has committed.
    `is_member`: whether the consumer is a member of the group, not a reader of assigned partitions."""

    def __init__(
        self,
        commit: Callable[[dict[TopicPartition, OffsetAndMetadata], float], Awaitable[CommitResult]],
        handled: Callable[[], Mapping[TopicPartition, OffsetAndMetadata]],
        wake: Callable[[], None],
        are_gone: Callable[[Iterable[TopicPartition], float], Awaitable[bool]],
        committed: Callable[
            [Collection[TopicPartition], float], Awaitable[Mapping[TopicPartition, OffsetAndMetadata | None]]
        ],
        is_member: Callable[[], bool],
        *,
        interval_s: float,
        attempt_s: float,
        retry_backoff_s: float,
    ) -> None:
        self._commit = commit
        self._handled = handled
        self._wake = wake
        self._are_gone = are_gone
        self._committed = committed
        self._is_member = is_member
        self._interval_s = interval_s
        self._attempt_s = attempt_s
        self._retry_backoff_s = retry_backoff_s
        self._timer: asyncio.TimerHandle | None = None
        self._due = False
        self._periodic: asyncio.Task[None] | None = None
        self._last: asyncio.Task[None] | None = None
        self._last_step: tuple[frozenset[TopicPartition], float] | None = None
        self._let_go: set[asyncio.Task[None]] = set()
        self._again: asyncio.Task[None] | None = None
        self._is_looking = False  # `_again` has not sent a commit yet
        self._known: dict[TopicPartition, _Known] = {}
        self._failure: Exception | None = None
        self._off = False
        self._warned = False  # of the refusals since the last commit that succeeded

    async def hand_over(self, until: float) -> None:
        """Commit nothing from now on: transactions do. Returns when the commit in progress is done, so that
        it does not overtake them. Raises TimedOut."""
        self._off = True
        self._stop_looking()
        if under_way := self._under_way():
            _, left = await asyncio.wait(under_way, timeout=max(0.0, until - deadline(0)))
            if left:
                raise TimedOut("the automatic commit before the first transaction is still under way")

    def known(self, offsets: Mapping[TopicPartition, int], *, now: bool = True) -> None:
        """These offsets are committed: `now`, or nobody knows since when."""
        at = deadline(0) if now else -math.inf
        self._known.update((where, _Known(offset, at)) for where, offset in offsets.items())

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """These partitions are no longer ours, and others may commit for them."""
        for where in partitions:
            self._known.pop(where, None)

    def raise_failure(self) -> None:
        """Raise the permanent failure of an earlier commit, if any."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    # --- every interval -------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Start a commit if the interval has passed. Raises as `raise_failure` does."""
        self.raise_failure()
        if self._off:
            return
        if self._timer is None:
            self._count(self._interval_s)
        if self._due and self._periodic is None and (self._last is None or self._last.done()):
            self._due = False
            if self._again is None and self._old():
                self._is_looking = True
                self._again = asyncio.create_task(self._go_again(), name="auto-commit of old offsets")
            if self._uncommitted():
                self._periodic = asyncio.create_task(self._once(), name="auto-commit")
            else:
                self._count(self._interval_s)

    async def _once(self) -> None:
        again_s, is_member = self._interval_s, self._is_member()
        try:
            # Not what was handled at the time of `tick`: another topic may have taken the name since.
            result = await self._commit(self._uncommitted(), deadline(self._attempt_s))
            self._note(result, is_member)
            if not all(_is_unknown(each.why) for each in result.retry.values()):
                again_s = min(self._retry_backoff_s, self._interval_s)
        except Exception as error:
            if _may_pass(error):
                _LOG.info("auto-commit failed and will be retried: %s", error)
            else:
                self._failure = error
                self._wake()
        finally:
            self._periodic = None
        self._count(again_s)

    async def _go_again(self) -> None:
        try:
            await self._commit_again(deadline(self._attempt_s))
        except Exception as error:
            self._failure = error
            self._wake()
        finally:
            self._again = None

    # --- before a rebalance and on close --------------------------------------------------------------------

    async def catch_up(self, partitions: frozenset[TopicPartition], until: float, give_up: float) -> bool:
        """Commit the handled records of these partitions. Returns True when that is done, impossible or
        abandoned; False if `until` came first: the commit continues, and a call with the same partitions and
        `give_up` waits for it again. Permanent failures are left to `raise_failure`: the rebalance continues
        anyway."""
        step = partitions, give_up
        if self._last is not None and self._last_step != step:
            self._last.cancel()  # of a step that did not get to its end
            self._last = None
        if self._last is None:
            self._last_step = step
            self._last = asyncio.create_task(self._catch_up(partitions, give_up), name="last auto-commit")
            self._last.add_done_callback(lambda _: self._wake())
        await asyncio.wait([self._last], timeout=max(0.0, until - deadline(0)))
        if not self._last.done():
            return False
        self._last = None
        return True

    async def _catch_up(self, partitions: frozenset[TopicPartition], give_up: float) -> None:
        self._stop_looking()
        if before := [task for task in (self._periodic, self._again, *self._let_go) if task is not None]:
            await asyncio.wait(before)
        is_member = self._is_member()
        while offsets := self._uncommitted(partitions):
            try:
                result = await self._commit(offsets, give_up)
            except Exception as error:
                self._lost(error)
                return
            self._note(result, is_member)
            unknown = all(_is_unknown(each.why) for each in result.retry.values())
            if unknown and await self._are_gone(result.retry, give_up):
                return
            if deadline(self._retry_backoff_s) >= give_up:
                _LOG.warning(
                    "processed records could not be committed in time and may be read again: %s", result
                )
                return
            await asyncio.sleep(self._retry_backoff_s)
        await self._commit_again(min(give_up, deadline(_TRIES_S)))

    async def close(self) -> None:
        """Cancel the commit in progress."""
        if self._timer is not None:
            self._timer.cancel()
        tasks = self._under_way()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._periodic = self._last = None

    # --- partitions let go ----------------------------------------------------------------------------------

    def let_go(self, partitions: frozenset[TopicPartition]) -> None:
        """Commit the handled records of these partitions, which will not be read any more."""
        if offsets := self._uncommitted(partitions):
            commit = self._commit(offsets, deadline(self._attempt_s))
            task = asyncio.create_task(
                self._until_committed(commit, self._is_member()), name="auto-commit of partitions let go"
            )
            self._let_go.add(task)
            task.add_done_callback(self._let_go.discard)

    async def until_let_go(self) -> None:
        """Return when these commits are done: who reads such a partition again continues there."""
        if self._let_go:
            await asyncio.wait(self._let_go)

    async def _until_committed(self, commit: Awaitable[CommitResult], is_member: bool) -> None:
        try:
            result = await commit
        except Exception as error:
            self._lost(error)
            return
        self._note(result, is_member)
        if result.retry:
            _LOG.warning("processed records could not be committed in time and may be read again: %s", result)

    # --- inside ---------------------------------------------------------------------------------------------

    def _uncommitted(
        self, partitions: frozenset[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        if self._off:
            return {}
        return {
            where: place
            for where, place in self._handled().items()
            if (partitions is None or where in partitions) and not self._is_known(where, place.offset)
        }

    def _is_known(self, where: TopicPartition, offset: int, before: float = math.inf) -> bool:
        known = self._known.get(where)
        return known is not None and known.offset == offset and known.at < before

    def _old(self) -> dict[TopicPartition, int]:
        """The committed offsets that would expire one day if nothing more is read."""
        if self._off or self._is_member():
            return {}
        before = deadline(-AGAIN_S)
        handled = self._handled().items()
        return {
            where: place.offset for where, place in handled if self._is_known(where, place.offset, before)
        }

    async def _commit_again(self, until: float) -> None:
        """Commit again what was committed long ago. Nothing is lost if that fails: it is tried again."""
        old = self._old()
        if not old:
            return
        try:
            found = await self._committed(old, until)
            self._is_looking = False
            left = self._old()  # without those that have been committed meanwhile
            self.known({where: old[where] for where in left if where in old})
            as_it_is = {
                where: place
                for where, place in found.items()
                if place is not None and left.get(where) == place.offset
            }
            if as_it_is:
                await self._commit(as_it_is, min(until, deadline(_TRIES_S)))
        except (ClientError, KafkaError) as error:
            _LOG.info("offsets could not be committed again, to keep them from expiring: %s", error)

    def _stop_looking(self) -> None:
        """Nobody waits for a look-up. A commit that is under way must not overtake later ones."""
        if self._again is not None and self._is_looking:
            self._again.cancel()

    def _under_way(self) -> list[asyncio.Task[None]]:
        tasks = (self._periodic, self._last, self._again, *self._let_go)
        return [task for task in tasks if task is not None]

    def _lost(self, error: Exception) -> None:
        """A commit that is not repeated has failed."""
        if _may_pass(error):
            _LOG.warning("processed records could not be committed and may be read again: %s", error)
        else:
            self._failure = error
            self._wake()

    def _note(self, result: CommitResult, is_member: bool) -> None:
        if result.committed:
            self._warned = False
        if not result.stale:
            return
        places = ", ".join(f"{where} at {outcome.offset}" for where, outcome in sorted(result.stale.items()))
        if is_member:
            _LOG.info(
                "the group moved on before %s could be committed: "
                "the last processed records may be read again",
                places,
            )
        else:  # Nobody else commits these, and the next attempt fails as well.
            _LOG.log(
                logging.INFO if self._warned else logging.WARNING,
                "%s cannot be committed, and what was processed is read again after a restart: %s",
                places,
                next(iter(result.stale.values())).why,
            )
            self._warned = True

    def _count(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._over)

    def _over(self) -> None:
        self._due = True
        self._wake()


def _may_pass(error: Exception) -> bool:
    """Whether the reader need not hear of it: a later commit may succeed."""
    return isinstance(error, ClientError) and not isinstance(error, AuthenticationFailed)


def _is_unknown(why: Exception) -> bool:
    """Whether a commit failed because the coordinator does not know the topic."""
    return isinstance(why, KafkaError) and why.code in NEVER_PASSES
