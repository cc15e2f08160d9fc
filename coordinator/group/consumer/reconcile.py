"""One step of a member from what it has to what it is to have.

A member revokes first and receives afterwards, and never gets a partition that another member still holds: so
a partition never has two owners, and only the members concerned stop (KIP-848, "Reconciliation").
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping

from muster.coordinator.group.consumer.assignors.assignor import Assignment
from muster.coordinator.group.consumer.state import (
    NOBODY,
    NOTHING_HELD,
    Current,
    Held,
    MemberState,
)


def may_own_any(owned: Assignment | None, held: Held) -> bool:
    """Whether a member that says it owns this may still own some of `held`; one that does not say may."""
    if owned is None:
        return True
    return any(not owned.get(topic_id, frozenset()).isdisjoint(epochs) for topic_id, epochs in held.items())


class Reconciler:
    """What a step depends on besides what the member has."""

    def __init__(
        self,
        *,
        target: Assignment,
        target_epoch: int,
        subscribed: Collection[uuid.UUID],
        owner_epoch: Callable[[uuid.UUID, int], int],
        owned: Assignment | None,
        subscription_changed: bool = False,
        subscribes: bool = True,
    ) -> None:
        """`target` is as of `target_epoch`. `subscribed`: the existing topics the member subscribes to.
        `owner_epoch` returns the epoch of a partition's holder, or NOBODY. `owned`: what the member says it
        owns; None: it does not say. `subscribes`: whether it subscribes to any topic, existing or not."""
        self.target = target
        self.target_epoch = target_epoch
        self.subscribed = subscribed
        self.owner_epoch = owner_epoch
        self.owned = owned
        self.subscription_changed = subscription_changed
        self.subscribes = subscribes

    def step(self, has: Current) -> Current:
        """What the member has afterwards; the same object if nothing changes."""
        match has.state:
            case MemberState.STABLE:
                if has.epoch != self.target_epoch:
                    return self._next(has)
                return self._trim(has) if self.subscription_changed else has
            case MemberState.UNREVOKED_PARTITIONS:
                if not may_own_any(self.owned, has.revoking):
                    return self._next(has)
                return self._trim(has) if self.subscription_changed else has
            case MemberState.UNRELEASED_PARTITIONS | MemberState.UNKNOWN:
                return self._next(has)

    def _trim(self, has: Current) -> Current:
        """Take away topics that the member no longer subscribes to, without waiting for a new target."""
        kept = {topic_id: epochs for topic_id, epochs in has.assigned.items() if topic_id in self.subscribed}
        if len(kept) == len(has.assigned):
            # As in Kafka: a member that subscribes to nothing known enters its epoch anew.
            return has if self.subscribes or has.revoking else has._replace(previous_epoch=has.epoch)
        revoking: dict[uuid.UUID, Mapping[int, int]] = dict(has.revoking)
        for topic_id, epochs in has.assigned.items():
            if topic_id not in kept:
                revoking[topic_id] = {**revoking.get(topic_id, {}), **epochs}
        if not may_own_any(self.owned, revoking):
            return has._replace(assigned=kept, previous_epoch=has.epoch)
        return has._replace(
            state=MemberState.UNREVOKED_PARTITIONS,
            previous_epoch=has.epoch,
            assigned=kept,
            revoking=revoking,
        )

    def _next(self, has: Current) -> Current:
        """Move towards the target: revoke what must go, or else take what is free."""
        kept: dict[uuid.UUID, dict[int, int]] = {}
        revoking: dict[uuid.UUID, dict[int, int]] = {}
        wanted: dict[uuid.UUID, list[int]] = {}
        waits = False
        for topic_id in self.target.keys() | has.assigned.keys():
            target = self.target.get(topic_id, frozenset()) if topic_id in self.subscribed else frozenset()
            epochs = has.assigned.get(topic_id, {})
            keep: dict[int, int] = {}
            revoke: dict[int, int] = {}
            for partition, epoch in epochs.items():
                (keep if partition in target else revoke)[partition] = epoch
            leaving = has.revoking.get(topic_id, {})
            free: list[int] = []
            for partition in sorted(target.difference(epochs)):
                if partition in leaving or self.owner_epoch(topic_id, partition) == NOBODY:
                    free.append(partition)
                else:
                    waits = True
            if keep:
                kept[topic_id] = keep
            if revoke:
                revoking[topic_id] = revoke
            if free:
                wanted[topic_id] = free
        if revoking and may_own_any(self.owned, revoking):
            return Current(has.epoch, has.epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
        for topic_id, free in wanted.items():
            kept.setdefault(topic_id, {}).update(dict.fromkeys(free, self.target_epoch))
        state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
        return Current(self.target_epoch, has.epoch, state, kept, NOTHING_HELD)
