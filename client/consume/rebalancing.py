"""The steps of a member around a rebalance, inside the reading calls.

    a rebalance is due -> commit what was handled -> end the scopes -> revoked or lost -> join
    joined             -> (cooperative: commit, end the scopes, revoked; join again) -> assigned

In the consumer protocol (KIP-848) only the second line remains: each assignment comes as one joined, and
after `assigned` the member acknowledges it to the group.

A long step pauses when the reading call times out or is cancelled, and the next reading call continues it.
Each callback is called once, and no cancellation can come between a callback and the change it announces.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from muster.client.assignors import RebalanceProtocol
from muster.client.consume.auto_commit import AutoCommit
from muster.client.consume.listener import Calls
from muster.client.consume.scope import Scopes
from muster.client.consume.subscription import Subscription
from muster.client.group.group import Group, Joined
from muster.client.group.membership_types import State
from muster.client.network.connection import deadline
from muster.client.partitions import TopicPartition

_LOG: Final = logging.getLogger("muster.client.consumer")

_NONE: Final[frozenset[TopicPartition]] = frozenset()


class Rebalancing:
    """Owns the set of assigned partitions. `hold` stops reading and returning records of some; `adopt` sets
    the partitions to read."""

    def __init__(
        self,
        group: Group,
        subscription: Subscription,
        calls: Calls,
        scopes: Scopes,
        auto_commit: AutoCommit | None,
        *,
        hold: Callable[[frozenset[TopicPartition]], None],
        adopt: Callable[..., None],
        grace_s: float,
        rebalance_s: float,
    ) -> None:
        self.owned: frozenset[TopicPartition] = _NONE
        self.count = 0
        self._group = group
        self._subscription = subscription
        self._calls = calls
        self._scopes = scopes
        self._auto_commit = auto_commit
        self._hold = hold
        self._adopt = adopt
        self._grace_s = grace_s
        self._rebalance_s = rebalance_s
        self._giving_up: frozenset[TopicPartition] | None = None
        self._give_up_by = 0.0
        self._grace_by = 0.0
        self._prepared = False
        self._told = False  # whether `prepare`'s callbacks were called since the last join
        self._joined: Joined | None = None

    async def go_on(self, until: float) -> None:
        """Advance the pending rebalance as far as possible by `until`. It does not wait for a join: the group
        wakes the reader when that is done. Raises what the callbacks raised, and permanent failures."""
        while self._joined is not None or self._group.rejoin_needed:
            if self._group.lost:
                self._joined = None  # It is void now.
            if self._joined is None:
                if not await self._prepare(until):
                    return
                self._told = False
                self._joined = await self._group.join(self.owned, deadline(0))
                if self._joined is None:
                    return
            if not await self._complete(self._joined, until):
                return

    def lost(self) -> None:
        """The membership was lost while partitions are owned: others may work on them now."""
        self._scopes.lose(self.owned)

    async def leave(self, until: float, grace_s: float) -> None:
        """Give up all partitions before leaving the group: commit, end the scopes, then call the listener.
        Raises what the callback raised."""
        owned = self.owned
        try:
            if owned:
                self._hold(owned)
                if self._group.lost:
                    await self._end_lost()
                else:
                    await self._scopes.end(owned, grace_s)
                if self._auto_commit is not None and not self._group.lost:
                    # Half of the time: the callback needs some, too.
                    await self._auto_commit.catch_up(owned, until, deadline((until - deadline(0)) / 2))
                if self._is_in_doubt:
                    await self._calls.lost(owned)
                else:
                    await self._calls.revoked(owned)
            self._let_go(owned)
        finally:
            # If it was cancelled, the member leaves all the same.
            self._scopes.drop(owned)
            self._prepared, self._told, self._giving_up, self._joined = False, False, None, None
        self._calls.raise_failure()

    @property
    def _is_in_doubt(self) -> bool:
        """Whether the owned partitions may have other owners already."""
        group = self._group
        joining = group.state in (State.PREPARING_REBALANCE, State.COMPLETING_REBALANCE)
        return group.lost or joining or group.generation_id < 0

    # --- before the join ------------------------------------------------------------------------------------

    async def _prepare(self, until: float) -> bool:
        """Give up what must be given up before the join. Returns False on timeout."""
        group = self._group
        if self._told and not group.lost:
            return True  # A callback raised, so the join did not happen.
        if group.lost:
            await self._end_lost()
        # Once per rebalance: with cooperative assignors reading goes on while the group is joined.
        if (
            group.revokes_first
            and not (self._prepared or group.lost)
            and not await self._finish(self._to_revoke(), until, commit=self.owned)
        ):
            return False
        preparation = group.prepare(self.owned)
        self._prepared, self._told, self._giving_up = True, True, None
        if preparation.lost is not None:
            await self._calls.lost(preparation.lost)
            self._let_go(preparation.lost)
        if preparation.revoked is not None:
            await self._calls.revoked(preparation.revoked)
            self._let_go(preparation.revoked)
        self._calls.raise_failure()
        return True

    def _to_revoke(self) -> frozenset[TopicPartition]:
        if self._group.protocol is RebalanceProtocol.EAGER:
            return self.owned
        return frozenset(where for where in self.owned if not self._subscription.covers(where))

    # --- after the join -------------------------------------------------------------------------------------

    async def _complete(self, joined: Joined, until: float) -> bool:
        """Take the new assignment. Returns False on timeout."""
        if joined.revoked and not await self._finish(joined.revoked, until, commit=joined.revoked):
            return False
        if self._group.lost:
            return True
        self._prepared, self._told, self._giving_up, self._joined = False, False, None, None
        self.count += 1
        if joined.revoked is not None:
            await self._calls.revoked(joined.revoked)
            self._let_go(joined.revoked)
        self._subscription.adopt(joined.assigned)
        self.owned = joined.assigned
        self._adopt(joined.assigned)
        _LOG.info(
            "generation %d by %s: %d partitions, %d of them new",
            joined.generation_id,
            joined.assignor,
            len(joined.assigned),
            len(joined.added),
        )
        await self._calls.assigned(joined.added)
        self._group.reconciled(joined)
        self._calls.raise_failure()
        return True

    # --- giving up ------------------------------------------------------------------------------------------

    async def _finish(
        self, partitions: frozenset[TopicPartition], until: float, *, commit: frozenset[TopicPartition]
    ) -> bool:
        """Let the work on these partitions finish, and commit. Returns False on timeout; may be called
        again."""
        if self._giving_up != partitions:
            self._giving_up = partitions
            self._give_up_by = deadline(self._rebalance_s)
            self._grace_by = min(deadline(self._grace_s), self._give_up_by)
            self._hold(partitions)
        # A reading call that ends early does not shorten the grace period.
        ended = await self._scopes.wait(partitions, min(until, self._grace_by) - deadline(0))
        if not ended and deadline(0) < self._grace_by:
            return False
        await self._scopes.end(partitions, 0.0, unwind_s=max(1.0, self._grace_s))
        if self._auto_commit is None or not commit:
            return True
        return await self._auto_commit.catch_up(commit, until, self._give_up_by)

    async def _end_lost(self) -> None:
        """Wait for the end of work on lost partitions; they take none until they are let go."""
        self.lost()
        await self._scopes.unwind()

    def _let_go(self, partitions: frozenset[TopicPartition]) -> None:
        self._scopes.drop(partitions)
        self.owned -= partitions
        self._adopt(self.owned, settled=False)
