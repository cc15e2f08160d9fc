"""The partitions that a consumer reads: whose records may be returned, and the position in each. Records
fetched but not returned yet are in two places: still in the fetcher, or handed over to the delivery. The
delivery's records come first, so they determine the position.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from muster.client.consume.delivery import Delivery
from muster.client.consume.subscription import Subscription
from muster.client.errors import ClientError
from muster.client.fetch.fetcher import Fetcher
from muster.client.fetch.positions import Position, ResetStrategy
from muster.client.network.connection import deadline
from muster.client.partitions import OffsetAndMetadata, TopicPartition


class Assigned:
    """The assigned partitions. Only this class reports them to the fetcher and the delivery."""

    def __init__(self, subscription: Subscription, delivery: Delivery[Any, Any]) -> None:
        self.partitions: frozenset[TopicPartition] = frozenset()
        self._given_up: tuple[TopicPartition, float] | None = None
        """A partition given up after records of it had been returned, and when: the last one."""
        self._subscription = subscription
        self._delivery = delivery
        self._paused: set[TopicPartition] = set()
        self._held: frozenset[TopicPartition] = frozenset()

    def open(self, fetcher: Fetcher) -> None:
        """Must be called before any other method."""
        self._fetcher = fetcher

    def check(self, *partitions: TopicPartition) -> None:
        """Raise ClientError unless all of these are assigned, ValueError for what is no partition."""
        for where in partitions:
            if not isinstance(where, tuple):
                raise ValueError(
                    f"partitions: {where!r} is not allowed; it takes TopicPartition(topic, partition)"
                )
            if where not in self.partitions:
                raise ClientError(f"{where} is not assigned to this consumer: {self._subscription}")

    def adopt(self, partitions: frozenset[TopicPartition], *, settled: bool = True) -> None:
        """Read exactly these. Unless `settled`, paused partitions may come back, so they stay paused."""
        gone = self.partitions - partitions
        if returned := gone & self._delivery.returned():
            self._given_up = min(returned), deadline(0)
        self._delivery.drop(gone)
        self._fetcher.set_assigned(partitions)
        self.partitions, self._held = partitions, frozenset()
        if settled:
            self._paused &= partitions
        self._fetcher.pause(self._paused & partitions)
        self._block()

    def end(self) -> None:
        """Read nothing more: the fetcher is closed."""
        self._delivery.drop(self.partitions)
        self.partitions = frozenset()

    # --- for transactions -----------------------------------------------------------------------------------

    def take(self, since: float) -> TopicPartition | None:
        """A transaction takes the records returned so far. None, or a partition that was given up since that
        time of the loop's after records of it had been returned that no transaction has taken: then this one
        must be aborted. No other is told of that partition."""
        given_up, self._given_up = self._given_up, None
        self._delivery.count_anew()
        if given_up is None:
            return None
        where, at = given_up
        return where if at > since else None

    # --- what may be returned -------------------------------------------------------------------------------

    def hold(self, partitions: frozenset[TopicPartition]) -> None:
        """Read and return nothing more of these, which are about to be revoked, until the next `adopt`."""
        self._held = partitions
        self._fetcher.hold(partitions)
        self._block()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Read and return nothing of these until `resume`."""
        chosen = set(partitions)
        self._fetcher.pause(chosen)
        self._paused |= chosen
        self._block()

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo `pause` for these."""
        chosen = set(partitions)
        self._fetcher.resume(chosen & self.partitions)
        self._paused -= chosen
        self._block()

    @property
    def paused(self) -> frozenset[TopicPartition]:
        return self.partitions & self._paused

    def _block(self) -> None:
        self._delivery.block(self._paused | self._held)

    # --- positions ------------------------------------------------------------------------------------------

    def place(self, where: TopicPartition) -> OffsetAndMetadata | None:
        """The position of the next record to return; None while unknown."""
        return self._delivery.places().get(where) or self._fetched(where)

    def given_out(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The positions after the records returned, where known."""
        return self._places(self._delivery.places())

    def handled(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The positions up to which the reader has handled records."""
        return self._places(self._delivery.places() | self._delivery.in_hand())

    def _places(
        self, here: dict[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        # Of a topic that took the name of the one in hand, nothing was returned yet.
        partitions = self.partitions - self._delivery.former_topics.keys()
        places = ((where, here.get(where) or self._fetched(where)) for where in partitions)
        return {where: place for where, place in places if place is not None}

    def _fetched(self, where: TopicPartition) -> OffsetAndMetadata | None:
        position = self._fetcher.position(where)
        if position is None:
            return None
        return OffsetAndMetadata(position.offset, leader_epoch=position.leader_epoch)

    def topic_ids(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, uuid.UUID]:
        """The ids, as far as known, of the topics that the reader's offsets of these partitions belong to."""
        partitions = set(partitions)
        former = self._delivery.former_topics
        return self._fetcher.topic_ids(partitions) | {
            where: former[where] for where in former.keys() & partitions
        }

    def replaced(self, where: TopicPartition, former_topic: uuid.UUID) -> None:
        """Another topic has taken the name of this partition's topic, and is read from its beginning."""
        self._delivery.replaced(where, former_topic)

    def lag(self, where: TopicPartition) -> int | None:
        """Records left to return, as of the last fetch."""
        of_fetcher, here, fetched = self._fetcher.lag(where), self.place(where), self._fetcher.position(where)
        if of_fetcher is None or here is None or fetched is None:
            return None
        return of_fetcher + fetched.offset - here.offset

    def seek(self, where: TopicPartition, place: OffsetAndMetadata) -> None:
        """Continue from this position."""
        self._delivery.drop([where])
        self._fetcher.seek(where, Position(place.offset, place.leader_epoch))

    def reset(self, partitions: Iterable[TopicPartition], strategy: ResetStrategy, why: str) -> None:
        """Continue from where the strategy says."""
        partitions = list(partitions)
        self._delivery.drop(partitions)
        for where in partitions:
            self._fetcher.reset(where, strategy, why)
