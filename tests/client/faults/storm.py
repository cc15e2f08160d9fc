"""A group and a producer in a storm: random faults, at any frame, for a while.

What is checked while it blows and after it:

- every record posted is acknowledged, and is in the log once, at the offset acknowledged, in the order in
  which it was posted;
- every record is handed out; what a member hands out of a partition it owns goes up by one offset at a
  time, and begins no earlier than what was committed when it was assigned, so that only the uncommitted tail
  comes twice;
- a member that only loses connections stays the member it is, in the same generation;
- no call outlasts its timeout by more than a stall of the machine, and everything can be closed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from muster.client.consumer import Consumer, RebalanceListener
from muster.client.network.connection import deadline
from muster.client.partitions import TopicPartition
from muster.client.producer import Producer
from tests.client.faults.network import (
    LONG_S,
    REQUEST_TIMEOUT_MS,
    Network,
    logs,
    network,
    once_and_in_order,
)
from tests.support.fault_proxy import Do, Weather

PARTITIONS: Final = 4
MEMBERS: Final = 3
SLACK_S: Final = 20.0
GET_S: Final = 0.2
LEASE_TERM_MS: Final = 4_000
RATE: Final = 0.02
# Faults that only a timeout reveals take seconds each, so there are fewer of them.
KINDS: Final = (*[do for do in Do if do is not Do.HOLD] * 3, Do.HOLD)

SETTINGS: Final[dict[str, Any]] = {
    "group_id": "g",
    "topics": ["t"],
    "auto_offset_reset": "earliest",
    "enable_auto_commit": False,
    "session_timeout_ms": 60_000,
    "heartbeat_interval_ms": 300,
    "request_timeout_ms": REQUEST_TIMEOUT_MS,
    "metadata_max_age_ms": 3_000,
}


class Ledger:
    """What is known about the group as a whole."""

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, int] = {}
        """Offsets whose commit was acknowledged to a member."""
        self.read: dict[TopicPartition, dict[int, bytes]] = {}
        self.again = 0
        """Number of records that had been handed out before."""


class Member(RebalanceListener):
    """One member, read in its own task; commits now and then."""

    def __init__(self, net: Network, ledger: Ledger, dice: random.Random, **settings: Any) -> None:
        self.consumer = Consumer(net.bootstrap, listener=self, **{**SETTINGS, **settings})
        self.rebalances = 0
        self._ledger = ledger
        self._dice = dice
        self._next: dict[TopicPartition, int] = {}
        self._floor: dict[TopicPartition, int] = {}
        self._stopped = False
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.consumer.start()
        self._reading = asyncio.create_task(self._read())

    async def stop(self) -> None:
        self._stopped = True
        assert self._reading is not None
        await self._reading

    def look(self) -> None:
        """Raise the reader's exception, if any."""
        assert self._reading is not None
        if self._reading.done():
            self._reading.result()

    @property
    def identity(self) -> tuple[str, int]:
        health = self.consumer.health()
        return health.member_id, health.generation_id

    @property
    def rejoins(self) -> bool:
        """Whether it has yet to join, or to take in the result of joining."""
        group = self.consumer._core.group
        return group is None or group.rejoin_needed

    def on_partitions_assigned(self, consumer: Any, partitions: Iterable[TopicPartition]) -> None:
        self.rebalances += 1
        for where in partitions:
            self._floor[where] = self._ledger.committed.get(where, 0)
            self._next.pop(where, None)

    def on_partitions_revoked(self, consumer: Any, partitions: Iterable[TopicPartition]) -> None:
        for where in partitions:
            self._next.pop(where, None)

    async def _read(self) -> None:
        try:
            while not self._stopped:
                began = deadline(0)
                records = await self.consumer.get_many(timeout=GET_S)
                # A rebalance in progress is seen through to its end.
                assert deadline(0) - began < GET_S + SLACK_S + 60, "get_many"
                for record in records:
                    self._take(
                        TopicPartition(record.topic, record.partition), record.offset, record.value or b""
                    )
                if self._dice.random() < 0.3:
                    await self._commit()
        finally:
            began = deadline(0)
            await self.consumer.close(timeout=10)
            assert deadline(0) - began < 10 + SLACK_S, "close"

    def _take(self, where: TopicPartition, offset: int, value: bytes) -> None:
        due = self._next.get(where)
        if due is None:
            assert offset >= self._floor[where], f"{where}: {offset} was committed ({self._floor[where]})"
        else:
            assert offset == due, f"{where}: {offset} in place of {due}"
        self._next[where] = offset + 1
        read = self._ledger.read.setdefault(where, {})
        if offset in read:
            self._ledger.again += 1
            assert read[offset] == value
        read[offset] = value

    async def _commit(self) -> None:
        began = deadline(0)
        result = await self.consumer.commit(timeout=5)
        assert deadline(0) - began < 5 + SLACK_S, "commit"
        for where, told in result.committed.items():
            before = self._ledger.committed.get(where, 0)
            self._ledger.committed[where] = max(before, told.offset)


class Source:
    """Posts numbered records until it is stopped."""

    def __init__(self, net: Network) -> None:
        self.acknowledged: dict[TopicPartition, list[tuple[int, bytes]]] = {}
        self.posted = 0
        self._producer = Producer(net.bootstrap, linger_ms=2, request_timeout_ms=REQUEST_TIMEOUT_MS)
        self._futures: list[tuple[bytes, asyncio.Future[Any]]] = []
        self._stopped = False

    async def run(self) -> None:
        async with asyncio.timeout(LONG_S * 2), self._producer:
            while not self._stopped:
                value = b"%d" % self.posted
                where = self.posted % PARTITIONS
                self._futures.append((value, await self._producer.post("t", value, partition=where)))
                self.posted += 1
                if self.posted % 20 == 0:
                    await asyncio.sleep(0.01)
            for value, future in self._futures:
                where = await future
                here = TopicPartition(where.topic, where.partition)
                self.acknowledged.setdefault(here, []).append((where.offset, value))

    def stop(self) -> None:
        self._stopped = True


async def blow(net: Network, dice: random.Random, seconds: float) -> None:
    """The storm: random faults at any frame, and now and then a cut or a moment of silence for all."""
    net.proxy.weather = Weather(dice.randrange(2**32), RATE, KINDS)
    ends = deadline(seconds)
    while deadline(0) < ends:
        await asyncio.sleep(dice.uniform(0.5, 2.0))
        event = dice.random()
        if event < 0.2:
            net.proxy.cut()
        elif event < 0.4:
            weather = net.proxy.weather
            net.proxy.black()
            await asyncio.sleep(dice.uniform(0.1, 2.0))
            net.proxy.mend()
            net.proxy.weather = weather
    net.proxy.mend()


async def come_and_go(
    members: list[Member], make: Callable[[], Member], dice: random.Random, seconds: float
) -> None:
    """Members leave, others join."""
    for _ in range(4):
        await asyncio.sleep(dice.uniform(1.0, seconds / 4))
        await members.pop(dice.randrange(len(members))).stop()
        members.append(make())
        await members[-1].start()


async def die_and_return(net: Network, brokers: int, dice: random.Random, ended: asyncio.Event) -> None:
    """Kill brokers, one at a time, and restart them."""
    while not ended.is_set():
        index = dice.randrange(brokers)
        await asyncio.to_thread(net.brokers.kill, index)
        with suppress(TimeoutError):
            async with asyncio.timeout(dice.uniform(1.0, 2 * LEASE_TERM_MS / 1000)):
                await ended.wait()
        await asyncio.to_thread(net.brokers.restart, index)
        with suppress(TimeoutError):
            async with asyncio.timeout(dice.uniform(1.0, 4.0)):
                await ended.wait()


async def storm(
    seed: int, *, brokers: int = 1, seconds: float = 15.0, changing: bool = False, dying: bool = False
) -> None:
    """One storm. `changing`: members come and go, so that the group rebalances. `dying`: so do brokers."""
    and_more = ", members come and go" * changing + ", brokers as well" * dying
    print(f"storm: seed {seed}, {brokers} brokers{and_more}")
    dice = random.Random(seed)
    with network(brokers, lease_term_ms=LEASE_TERM_MS) as net:
        net.brokers.create_topic("t", PARTITIONS)
        ledger = Ledger()

        def member() -> Member:
            settings: dict[str, Any] = {"heartbeat": dice.choice(["loop", "thread"])}
            return Member(net, ledger, random.Random(dice.randrange(2**32)), assignors=[assignor], **settings)

        assignor = dice.choice(["range", "cooperative-sticky", "sticky", "roundrobin"])
        members = [member() for _ in range(MEMBERS)]
        source = Source(net)
        sending = asyncio.create_task(source.run())
        try:
            for each in members:
                await each.start()
            await _settled(net, members)
            before = [each.identity for each in members]
            ended = asyncio.Event()
            async with asyncio.TaskGroup() as events:
                blowing = events.create_task(blow(net, dice, seconds))
                blowing.add_done_callback(lambda _: ended.set())
                if changing:
                    events.create_task(come_and_go(members, member, dice, seconds))
                if dying:
                    events.create_task(die_and_return(net, brokers, dice, ended))
            source.stop()
            await sending
            await _read_all(ledger, source, members)
            if not changing:
                after = [each.identity for each in members]
                health = [each.consumer.health() for each in members]
                assert after == before, f"a membership was lost: {before} became {after}; {health}"
            await _settled(net, members)
        finally:
            source.stop()
            net.proxy.mend()
            await asyncio.gather(*(each.stop() for each in members))
            await asyncio.wait([sending])
        await _check(net, ledger, source)
        print(f"  {source.posted} records, {ledger.again} twice, {len(net.proxy.struck)} faults")


async def _settled(net: Network, members: list[Member]) -> None:
    """Wait until all members are in one stable generation and own all partitions."""
    async with asyncio.timeout(LONG_S):
        while True:
            for each in members:
                each.look()
            owned = [where for each in members for where in each.consumer.assignment]
            generations = {each.identity[1] for each in members}
            if (
                len(owned) == PARTITIONS == len(set(owned))
                and len(generations) == 1
                and not any(each.rejoins for each in members)
                and net.brokers.group("g").facts == ("Stable", len(members))
            ):
                return
            await asyncio.sleep(0.05)


async def _read_all(ledger: Ledger, source: Source, members: list[Member]) -> None:
    try:
        async with asyncio.timeout(LONG_S):
            while any(
                len(ledger.read.get(where, {})) < len(sent) for where, sent in source.acknowledged.items()
            ):
                for each in members:
                    each.look()
                await asyncio.sleep(0.05)
    except TimeoutError:
        missing = {
            where: sorted({offset for offset, _ in sent} - ledger.read.get(where, {}).keys())[:10]
            for where, sent in source.acknowledged.items()
        }
        health = [each.consumer.health() for each in members]
        raise AssertionError(f"not read: {missing}; members: {health}") from None


async def _check(net: Network, ledger: Ledger, source: Source) -> None:
    written = await logs(net.bootstrap, "t", PARTITIONS)
    assert sum(map(len, source.acknowledged.values())) == source.posted
    for index, values in enumerate(written):
        where = TopicPartition("t", index)
        try:
            once_and_in_order(values)
        except AssertionError as disorder:
            raise AssertionError(f"{where} has records {disorder}") from None
        assert source.acknowledged[where] == list(enumerate(values)), f"{where}: acknowledged is not written"
        assert [ledger.read[where][offset] for offset in range(len(values))] == values
