"""All clients of a drill: steady groups on every broker, groups that change all the time, and producers, some
of them transactional."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final, TypeAlias

from tests.faults.batches import Violation
from tests.faults.cluster import checker, stock, transactor
from tests.faults.cluster.audit import Noted
from tests.faults.cluster.history import GroupHistory
from tests.faults.cluster.ours import OurMember, OurProducer
from tests.faults.cluster.setting import PARTITIONS, REPEATED_AFTER_S, Kind
from tests.faults.cluster.stock import StockMember, StockProducer
from tests.faults.cluster.transactor import OurTransactor

Member: TypeAlias = OurMember | StockMember

KINDS: Final = [Kind(cooperative, static) for cooperative in (False, True) for static in (False, True)]
TRANSACTORS: Final = 3
RESTLESS_S: Final = (1.0, 4.0)
"""How long a restless member stays, or stays away."""


class ClientStoodStill(Exception):
    """A stock client has stopped of its own accord; the text says which one."""


@dataclass
class Group:
    """A group's current members, and everything they ever did."""

    history: GroupHistory
    ours: bool
    kind: Kind
    members: list[Member] = field(default_factory=list)

    @property
    def served_at(self) -> float:
        """The time since which every member has had a commit acknowledged."""
        return min(each.committed_at for each in self.members)

    @property
    def settled(self) -> bool:
        """Whether every member has partitions and every partition has an owner."""
        held = [each.partitions for each in self.members]
        return all(held) and sum(map(len, held)) == PARTITIONS == len(frozenset().union(*held))


class Load:
    """`start`, and `stop` at the end; `look` raises what went wrong with any client. Steady groups do not
    change by themselves."""

    def __init__(self, bootstrap: str, directory: Path, dice: random.Random) -> None:
        self.steady: list[Group] = []
        self.restless: list[Group] = []
        self.producers = [
            OurProducer("our-producer", PARTITIONS, bootstrap),
            StockProducer("stock-producer", bootstrap, directory / "stock-producer.log"),
        ]
        self.transactors = [
            OurTransactor(f"transactional-{number}", bootstrap, dice) for number in range(TRANSACTORS)
        ]
        self._bootstrap = bootstrap
        self._directory = directory
        self._dice = dice
        self._names = count(1)
        self._changing: list[asyncio.Task[None]] = []
        self._stopped = asyncio.Event()
        self._log: list[list[bytes]] = [[] for _ in range(PARTITIONS)]

    @property
    def groups(self) -> list[Group]:
        return [*self.steady, *self.restless]

    @property
    def records(self) -> int:
        """Records read back so far."""
        return sum(map(len, self._log))

    @property
    def commits(self) -> int:
        """Acknowledged commits, partition by partition."""
        return sum(
            each.acknowledged_at is not None
            for group in self.groups
            for sent in group.history.commits.values()
            for each in sent
        )

    @property
    def transactions(self) -> int:
        """Transactions that have ended as intended."""
        return sum(each.ended for of in self.transactors for each in of.history.transactions)

    def repeated(self) -> dict[tuple[str, int], set[int]]:
        """By group and partition, the offsets that librdkafka may have given up on and sent again."""
        return {
            (group.history.group, partition): {
                each.offset for each in list(sent) if each.took_long(REPEATED_AFTER_S)
            }
            for group in self.groups
            if not group.ours
            for partition, sent in list(group.history.commits.items())
        }

    def start(self, names: Sequence[str]) -> None:
        """Start steady groups of these names, half of them ours, of all kinds; and a restless group of each
        client."""
        for producer in (*self.producers, *self.transactors):
            producer.start()
        kinds = self._dice.sample(KINDS, len(KINDS))
        for number, name in enumerate(names):
            group = Group(GroupHistory(name), number % 2 == 0, kinds[number % len(kinds)])
            self.steady.append(group)
            for _ in range(2):
                self._join(group)
        for ours in (True, False):
            kind = Kind(cooperative=self._dice.random() < 0.5, static=False)
            group = Group(GroupHistory(f"restless-{'ours' if ours else 'stock'}"), ours, kind)
            self.restless.append(group)
            for _ in range(2):
                self._join(group)
            self._changing.append(asyncio.create_task(self._come_and_go(group), name=group.history.group))

    def look(self) -> None:
        working = (*self.producers, *self.transactors)
        for each in (*working, *(member for group in self.groups for member in group.members)):
            each.look()
        for task in self._changing:
            if task.done():
                task.result()

    async def stop(self) -> None:
        self._stopped.set()
        ends = [
            *self._changing,
            *(producer.stop() for producer in (*self.producers, *self.transactors)),
            *(member.stop() for group in self.groups for member in group.members),
        ]
        for ended in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(ended, BaseException):
                raise ended

    async def served(self, since: float, seconds: float) -> float:
        """Wait until every steady group's members have had commits acknowledged that were sent after `since`,
        and every producer a record in each partition or a transaction; returns how long after `since` that
        was. Raises AssertionError if it takes more than `seconds` from now."""
        ends = time.monotonic() + seconds
        while True:
            self.look()
            waiting = [group.history.group for group in self.steady if group.served_at <= since]
            silent = [
                f"{each.produced[0].producer}, partition {partition}"
                for each in self.producers
                for partition, at in enumerate(each.served_at)
                if at <= since
            ]
            stuck = [each for each in self.transactors if each.served_at <= since]
            silent += [each.history.name for each in stuck]
            if not waiting and not silent:
                return time.monotonic() - since
            if time.monotonic() > ends:
                told = f"not served within {seconds:.0f} s: {waiting}, {silent[:9]}\n{self._says(waiting)}"
                told += "".join(f"\n{each.history.name}: {each.says()}" for each in stuck)
                if not silent and all(map(self._stands_still, waiting)):
                    raise ClientStoodStill(told)
                raise AssertionError(told)
            await asyncio.sleep(0.02)

    def rebalances(self, noted: Noted) -> dict[str, tuple[int, int]]:
        """For steady groups: the last written generation, and how many assignments their members received."""
        return {
            group.history.group: (noted.generation(group.history.group), group.history.rebalances)
            for group in self.steady
        }

    async def settled(self, seconds: float) -> None:
        """Wait until every steady group has assigned all partitions."""
        ends = time.monotonic() + seconds
        while waiting := [group.history.group for group in self.steady if not group.settled]:
            self.look()
            if time.monotonic() > ends:
                raise AssertionError(f"not settled within {seconds:.0f} s: {waiting}\n{self._says(waiting)}")
            await asyncio.sleep(0.05)

    async def check(self) -> None:
        """Read what has been written since the last time, and judge everything seen. Raises Violation."""
        since = [len(each) for each in self._log]
        for whole, more in zip(
            self._log, await asyncio.to_thread(stock.logs, self._bootstrap, since), strict=True
        ):
            whole += more
        found = await asyncio.gather(
            *(
                asyncio.to_thread(stock.committed, group.history.group, self._bootstrap)
                for group in self.groups
            )
        )
        self._judge(found)
        known = {each.history.name: each.history for each in self.transactors}
        await asyncio.to_thread(transactor.check_shown, self._bootstrap, known)

    async def check_whole(self) -> None:
        """After everybody has stopped, read all logs from the beginning: they must still hold what was read
        before, and everything ever acknowledged."""
        again = await asyncio.to_thread(stock.logs, self._bootstrap, [0] * PARTITIONS)
        for partition, (before, now) in enumerate(zip(self._log, again, strict=True)):
            if now[: len(before)] != before:
                raise Violation(f"partition {partition} does not say what it said before")
            checker.check_log(
                f"partition {partition}", now, [each.produced[partition] for each in self.producers]
            )
        self._log = again
        await self.check()
        known = {each.slot: each.history for each in self.transactors}
        await transactor.check_whole(self._bootstrap, known)
        for group in self.groups:
            for partition, reads in group.history.reads.items():
                if reads and max(reads) >= len(again[partition]):
                    place = f"group {group.history.group}, partition {partition}"
                    raise Violation(
                        f"{place}: {max(reads)} was read, and the log has {len(again[partition])}"
                    )

    def _judge(self, found: Sequence[dict[int, stock.Seen]]) -> None:
        for partition, values in enumerate(self._log):
            # What has been acknowledged since the log was read is judged next time.
            acknowledged = [each.produced[partition].up_to(len(values)) for each in self.producers]
            checker.check_log(f"partition {partition}", values, acknowledged)
        repeated = self.repeated()
        for group, seen in zip(self.groups, found, strict=True):
            history = group.history
            checker.check_stints(history, repeated)
            for partition, each in seen.items():
                place = f"group {history.group}, partition {partition}"
                commits = list(history.commits.get(partition, []))
                checker.check_commits(place, commits, [each], repeated.get((history.group, partition), ()))
                committed = min(max(each.offset, 0), len(self._log[partition]))
                checker.check_reads(history, partition, self._log[partition], committed)

    def _stands_still(self, name: str) -> bool:
        """Whether the group waits for nothing but a librdkafka that no longer runs."""
        members = [each for group in self.steady if group.history.group == name for each in group.members]
        return any(isinstance(each, StockMember) and each.stands_still() for each in members)

    def _says(self, groups: Sequence[str]) -> str:
        return "\n".join(
            f"{member.name}: {member.says()}"
            for group in self.steady
            if group.history.group in groups
            for member in group.members
        )

    def _join(self, group: Group) -> Member:
        name = f"{group.history.group}-{next(self._names)}"
        member: Member
        if group.ours:
            member = OurMember(name, group.kind, group.history, self._bootstrap)
        else:
            log = self._directory / f"{name}.log"
            member = StockMember(name, group.kind, group.history, self._bootstrap, log)
        group.members.append(member)
        member.start()
        return member

    async def _come_and_go(self, group: Group) -> None:
        """Two members stay, a third comes and goes."""
        while not await self._stopped_within(self._dice.uniform(*RESTLESS_S)):
            third = self._join(group)
            await self._stopped_within(self._dice.uniform(*RESTLESS_S))
            group.members.remove(third)
            await third.stop()

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._stopped.wait()
        except TimeoutError:
            return False
