"""Facts about transactions: the ids coordinated here, and what open transactions hold back on the partitions
led and in the groups coordinated here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from aiohttp import web

from muster.coordinator.cluster.coordinators import TRANSACTIONS
from muster.coordinator.cluster.placement import OFFSETS_TOPIC
from muster.coordinator.server.broker import Broker
from muster.coordinator.server.brokers import Brokers
from muster.coordinator.storage.store import LeaseKind
from muster.coordinator.topics.undecided import HeldBack
from muster.coordinator.transactions.shard import TransactionShard
from muster.coordinator.transactions.transaction import TopicPartition, Transaction
from muster.coordinator.web import facts
from muster.coordinator.web.guard import refusal

GRACE_MS: Final = 300_000
"""What Kafka's tools add to transaction.max.timeout.ms: markers may take a while."""
_GROUPS_SHOWN: Final = 20
_LOOK_S: Final = 2.0
"""How long to wait for what a broker's partitions hold back."""


# --- transactional ids --------------------------------------------------------------------------------------


class Known(NamedTuple):
    """A transactional id, and the broker of this process that coordinates it."""

    broker: Broker
    shard: TransactionShard
    transactional_id: str
    transaction: Transaction

    @property
    def is_open(self) -> bool:
        """Whether there is a transaction that is not over."""
        return not self.transaction.state.is_idle

    @property
    def owed(self) -> frozenset[TopicPartition]:
        """Its partitions that have no marker yet, whether it is decided or not."""
        if self.transaction.state.is_prepared:
            return self.shard.unmarked(self.transactional_id)
        return self.transaction.partitions


async def known(brokers: Brokers) -> AsyncIterator[Known]:
    """The ids that brokers of this process coordinate, unordered. Concurrent changes may or may not be
    seen."""
    turns = facts.Turns()
    for broker in brokers.running:
        for _, shard in list(facts.served(broker.transaction_runtime)):
            for transactional_id, transaction in list(shard.transactions.items()):
                await turns.next()
                yield Known(broker, shard, transactional_id, transaction)


def find(brokers: Brokers, transactional_id: str) -> Known:
    """An id coordinated here. Raises HTTPNotFound, and like `facts.shard_of`."""
    broker, shard = facts.shard_of(
        brokers,
        TRANSACTIONS,
        lambda broker: broker.transaction_runtime,
        transactional_id,
        "transactional id",
    )
    transaction = shard.transactions.get(transactional_id)
    if transaction is None:
        raise refusal(web.HTTPNotFound, f"there is no transactional id {transactional_id!r}")
    return Known(broker, shard, transactional_id, transaction)


def groups_of(brokers: Brokers, producer_id: int) -> list[str]:
    """The groups coordinated here whose offsets the producer's open transaction commits."""
    found = {
        group_id
        for broker in brokers.running
        for _, shard in facts.served(broker.runtime)
        for group_id, _ in shard.hard.pending.of_producer(producer_id)
    }
    return sorted(found)


# --- what is held back --------------------------------------------------------------------------------------


class Verdict(StrEnum):
    """What will become of a transaction that is open on a partition."""

    UNDER_WAY = "under way"
    """Its coordinator has it, and ends it after its timeout at the latest."""
    ELSEWHERE = "coordinated elsewhere"
    """No coordinator of this process knows its producer; one of another process may."""
    HANGING = "hanging"
    """No coordinator will end it."""


class Waiting(NamedTuple):
    """A group that cannot get past an open transaction if it reads only committed records, which only its
    members know."""

    group: str
    offset: int | None
    """Committed offset in the partition; None if the offset itself is undecided."""
    before: int | None
    """Offsets from there to the transaction; 0 if the group has reached it."""
    lag: int | None
    """Offsets from there to the end."""


@dataclass(slots=True)
class Held:
    """A partition that an open transaction holds back; or a partition of `__consumer_offsets` where groups'
    offsets wait for it, whose bounds are of no interest."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    start_offset: int | None
    """The first offset of the transaction in the partition."""
    since_ms: int | None
    """The time of its first record, as its producer has set it, or when its first offset was committed."""
    open_since_ms: int
    """Since when it has been open at least, by the broker's clock."""
    broker: Broker
    last_stable_offset: int | None = None
    end: int | None = None
    others: int = 0
    """Number of other transactions open on the partition."""
    verdict: Verdict = Verdict.UNDER_WAY
    why: str | None = None
    """How it is known to hang, in words."""
    transactional_id: str | None = None
    groups: list[Waiting] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "partition": self.partition,
            "since_ms": self.since_ms,
            "verdict": self.verdict,
            "why": self.why,
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
            "start_offset": self.start_offset,
            "other_transactions": self.others,
            "last_stable_offset": self.last_stable_offset,
            "end": self.end,
            "groups": [each._asdict() for each in self.groups[:_GROUPS_SHOWN]],
            "more_groups": max(len(self.groups) - _GROUPS_SHOWN, 0),
            "broker": self.broker.node_id,
        }


async def held_back(brokers: Brokers) -> list[Held]:
    """What open transactions hold back here, with the waiting groups: hanging ones first, then by age."""
    found = await judged(brokers)
    await _add_groups(brokers, found)
    return found


async def judged(brokers: Brokers) -> list[Held]:
    """Like `held_back`, without the groups that have committed offsets."""
    found, _ = await _open(brokers)
    await _judge(brokers, found)
    if any(each.verdict is Verdict.HANGING for each in found):
        # Markers may have arrived while the coordinators were checked.
        again, unread = await _open(brokers)
        still = {_identity(each) for each in again}
        found = [
            each
            for each in found
            if each.verdict is not Verdict.HANGING
            or _identity(each) in still
            or (each.end is not None and each.broker.node_id in unread)
        ]
    return sorted(found, key=lambda each: (each.verdict is not Verdict.HANGING, each.since_ms or 0))


def _identity(held: Held) -> tuple[str, int, int, int | None]:
    return held.topic, held.partition, held.producer_id, held.since_ms


async def _open(brokers: Brokers) -> tuple[list[Held], set[int]]:
    """The open transactions, and the brokers whose partitions could not be read in time."""
    found: list[Held] = []
    unread: set[int] = set()
    running = brokers.running
    looks = await asyncio.gather(*(_look(broker) for broker in running))
    for broker, of_partitions in zip(running, looks, strict=True):
        if of_partitions is None:
            unread.add(broker.node_id)
        for (topic, partition), each in (of_partitions or {}).items():
            oldest = each.oldest
            found.append(
                Held(
                    topic,
                    partition,
                    oldest.producer_id,
                    oldest.producer_epoch,
                    oldest.first_offset,
                    oldest.began_ms,
                    oldest.open_since_ms,
                    broker,
                    each.last_stable_offset,
                    each.high_watermark,
                    each.others,
                )
            )
        for lease, shard in facts.served(broker.runtime):
            pending = shard.hard.pending
            for producer_id, producer in pending.producers.items():
                if not producer.in_transaction:
                    continue
                groups = {group_id for group_id, _ in pending.of_producer(producer_id)}
                if not groups:
                    continue
                waiting = [Waiting(group_id, None, None, None) for group_id in sorted(groups)]
                where, at_ms = (OFFSETS_TOPIC, lease.number), producer.last_ms
                held = Held(*where, producer_id, producer.epoch, None, at_ms, at_ms, broker, groups=waiting)
                found.append(held)
    return found, unread


async def _look(broker: Broker) -> Mapping[tuple[str, int], HeldBack] | None:
    """What is held back on a broker's partitions; None if its disk does not answer in time."""
    try:
        async with asyncio.timeout(_LOOK_S):
            return await broker.partitions.held_back()
    except TimeoutError:
        return None


async def _judge(brokers: Brokers, found: Iterable[Held]) -> None:
    wanted = {each.producer_id for each in found}
    if not wanted:
        return
    coordinated = {
        each.transaction.producer_id: each
        async for each in known(brokers)
        if each.transaction.producer_id in wanted
    }
    here = sum(1 for broker in brokers.running for _ in facts.served(broker.transaction_runtime))
    all_here = here == facts.any_broker(brokers).topology.counts[LeaseKind.TRANSACTION]
    for each in found:
        its = coordinated.get(each.producer_id)
        if its is not None:
            each.transactional_id = its.transactional_id
            if (each.topic, each.partition) not in its.owed:
                state = its.transaction.state.wire_name
                each.verdict = Verdict.HANGING
                each.why = f"{its.transactional_id} is {state} at its coordinator, without this partition"
        elif all_here:
            each.verdict, each.why = Verdict.HANGING, f"no coordinator knows producer id {each.producer_id}"
        else:
            longest_ms = each.broker.settings.transaction_max_timeout_ms
            now_ms = each.broker.clock.now_ms()
            each.verdict = Verdict.ELSEWHERE
            if now_ms - each.open_since_ms > longest_ms + GRACE_MS:
                each.verdict = Verdict.HANGING
                each.why = "it is open for longer than transaction.max.timeout.ms allows"


async def _add_groups(brokers: Brokers, found: Iterable[Held]) -> None:
    held = {(each.topic, each.partition): each for each in found if each.last_stable_offset is not None}
    if not held:
        return
    turns = facts.Turns()
    for _, group, offsets in list(facts.held(brokers)):
        await turns.next()
        for where in offsets.keys() & held.keys():
            each, offset = held[where], offsets[where].offset
            assert each.last_stable_offset is not None
            assert each.end is not None
            if offset <= each.last_stable_offset:
                before, lag = each.last_stable_offset - offset, each.end - offset
                each.groups.append(Waiting(group.group_id, offset, before, lag))
    for each in held.values():
        each.groups.sort(key=lambda group: (group.before, group.group))
