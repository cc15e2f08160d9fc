"""Transactional producers on the wire: each transaction spans several partitions and groups' offsets, and is
ended at once, or cut off by another producer with the same transactional id, or by a kill."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Self

from muster.protocol.errors import ErrorCode
from muster.protocol.message import Message
from muster.protocol.messages.data import ProduceRequest
from muster.protocol.messages.transactions import TxnOffsetCommitRequest
from muster.protocol.record_batch import Record, build
from tests.faults.batches import Violation
from tests.faults.load import NOW_MS, REPLY_S, Pipe
from tests.faults.transactions import checker
from tests.faults.transactions.history import Batch, Place, Producer, Slot, Transaction, Transactional
from tests.support import wire_transactions

_NOBODY: Final = Producer(*wire_transactions.NOBODY)
_TIMEOUT_MS: Final = 900_000  # no transaction times out because the machine was slow
_COMMITTED_SHARE: Final = 0.7
_TAKEN_OVER_SHARE: Final = 0.15
"""The share that is cut off by another producer with the id while the broker lives."""
_AGAIN_S: Final = 0.002
_LATER: Final = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,  # instead of a coordinator's error
)
"""Answers after which a client tries again."""


class Protocol(NamedTuple):
    """The request versions, from which the broker derives the rules."""

    name: str
    produce: int
    commit_offsets: int
    end: int
    joins: bool
    """Whether partitions and groups join a transaction by separate requests."""


PROTOCOLS: Final = (
    Protocol("before KIP-890", produce=9, commit_offsets=3, end=3, joins=True),
    Protocol("KIP-890", produce=12, commit_offsets=5, end=5, joins=False),
)


class Counted(Pipe):
    """Reports the arrival of each answer."""

    answered: Callable[[], None]

    @classmethod
    async def to(cls, port: int, answered: Callable[[], None]) -> Self:
        wire = await cls.connect(port)
        wire.answered = answered
        return wire

    async def receive_bytes(self, deadline_s: float = REPLY_S) -> bytes:
        frame = await super().receive_bytes(deadline_s)
        self.answered()
        return frame


def _code(reply: Any) -> set[int]:
    return {reply.error_code}


def _added(reply: Any) -> set[int]:
    return set(wire_transactions.added(reply).values())


def _produced(reply: Any) -> set[int]:
    return {each.error_code for topic in reply.responses for each in topic.partition_responses}


def _committed(reply: Any) -> set[int]:
    return {each.error_code for topic in reply.topics for each in topic.partitions}


class Transactor:
    """One transactional id, and its current producer."""

    def __init__(
        self,
        history: Transactional,
        protocol: Protocol,
        places: Sequence[Place],
        groups: Sequence[Sequence[Slot]],
        producer_ids: list[int],
        dice: random.Random,
    ) -> None:
        """A transaction writes to some of the places, and commits to all slots of some groups. Producer ids
        that the coordinator allocates go into `producer_ids`."""
        self.history = history
        self._protocol = protocol
        self._places = places
        self._groups = groups
        self._producer_ids = producer_ids
        self._dice = dice
        self._producer = _NOBODY
        self._sequences: dict[Place, int] = {}

    async def run(self, port: int, answered: Callable[[], None]) -> None:
        """Run until the broker is gone."""
        wire = await Counted.to(port, answered)
        try:
            while True:
                transaction = self._begin()
                await self._write(wire, transaction)
                if self._dice.random() >= _TAKEN_OVER_SHARE:
                    await self._end(wire, transaction, commits=self._dice.random() < _COMMITTED_SHARE)
                    continue
                rival = await Counted.to(port, answered)
                old, wire = wire, rival
                try:
                    await self._take_over(old, rival, transaction)
                finally:
                    await old.close()
        finally:
            await wire.close()

    async def start(self, wire: Pipe) -> None:
        """Start as a new producer that knows nothing of earlier ones."""
        self._producer = _NOBODY  # until the answer arrives
        reply = await self._call(
            wire, wire_transactions.starting(self.history.name, timeout_ms=_TIMEOUT_MS), 4
        )
        if reply.error_code:
            raise Violation(f"{self.history.name}: InitProducerId is answered {reply.error_code}")
        self._named(Producer(reply.producer_id, reply.producer_epoch))

    async def come_back(self, wire: Pipe) -> None:
        """After a kill: return as the existing producer, which ends what it had begun, or as a new one."""
        transaction = self.history.open
        if self._producer == _NOBODY or self._dice.random() < 0.5:
            await self.start(wire)
        elif transaction is not None and transaction.producer == self._producer:
            commits = transaction.commits
            if commits is None:
                await self._write(wire, transaction)
                commits = self._dice.random() < _COMMITTED_SHARE
            await self._end(wire, transaction, commits=commits)

    # --- a transaction --------------------------------------------------------------------------------------

    def _begin(self) -> Transaction:
        """Begin a transaction and decide everything it should write."""
        dice, history = self._dice, self.history
        transaction = history.begin(self._producer)
        index = 0
        for place in dice.sample(self._places, dice.randint(2, 3)):
            for _ in range(dice.choice((1, 1, 2))):
                count = dice.choice((1, 1, 3))
                values = tuple(history.value(transaction, index + each) for each in range(count))
                transaction.batches.append(Batch(place, self._next_sequence(place, count), values))
                index += count
        for slots in dice.sample(self._groups, dice.randint(1, len(self._groups))):
            transaction.slots += slots
        return transaction

    async def _write(self, wire: Pipe, transaction: Transaction) -> None:
        """Write everything unacknowledged, and the offsets."""
        if self._protocol.joins:
            await self._join(wire, transaction)
        steps = [self._produce, self._commit]
        self._dice.shuffle(steps)
        for step in steps:
            await step(wire, transaction)

    async def _produce(self, wire: Pipe, transaction: Transaction) -> None:
        while ahead := _first_of_each_place(transaction.batches):
            for batch in ahead:
                await wire.send(self._producing(transaction, batch), self._protocol.produce)
            later = False
            for batch in ahead:
                (code,) = _produced(await wire.receive())
                if code not in (0, *_LATER):
                    raise Violation(f"{transaction.name}: {batch} is answered {code}")
                batch.acknowledged = code == 0
                later = later or code != 0
            if later:
                await asyncio.sleep(_AGAIN_S)

    async def _commit(self, wire: Pipe, transaction: Transaction) -> None:
        for group in transaction.groups:
            if codes := await self._ask_to_commit(wire, transaction, group) - {0}:
                raise Violation(f"{transaction.name}: its offsets of {group} are answered {codes}")

    async def _join(self, wire: Pipe, transaction: Transaction) -> None:
        topics: dict[str, list[int]] = {}
        for topic, partition in dict.fromkeys(batch.place for batch in transaction.batches):
            topics.setdefault(topic, []).append(partition)
        name, producer = self.history.name, transaction.producer
        adding = wire_transactions.adding(name, producer, topics)
        if codes := _added(await self._call(wire, adding, 3, _added)) - {0}:
            raise Violation(f"{transaction.name}: AddPartitionsToTxn is answered {codes}")
        for group in transaction.groups:
            reply = await self._call(wire, wire_transactions.adding_offsets(name, producer, group), 3)
            if reply.error_code:
                raise Violation(f"{transaction.name}: AddOffsetsToTxn is answered {reply.error_code}")

    async def _end(self, wire: Pipe, transaction: Transaction, *, commits: bool) -> None:
        transaction.commits = commits
        reply = await self._ask_to_end(wire, transaction, commits=commits)
        if reply.error_code:
            raise Violation(f"{transaction.name}: EndTxn, commit {commits}, is answered {reply.error_code}")
        transaction.ended = True
        if not self._protocol.joins:
            self._named(Producer(reply.producer_id, reply.producer_epoch))

    # --- two of one id --------------------------------------------------------------------------------------

    async def _take_over(self, old: Pipe, rival: Pipe, transaction: Transaction) -> None:
        """Another producer starts while the old one is about to commit, or after that has fallen silent; then
        the old one wakes up."""
        if self._dice.random() < 0.5:
            transaction.commits = True
            ending = self._ask_to_end(old, transaction, commits=True)
            ended, started = await asyncio.gather(ending, self.start(rival), return_exceptions=True)
            if not isinstance(ended, BaseException):
                transaction.ended = not ended.error_code
                if ended.error_code:
                    checker.check_fenced(transaction, ended.error_code)
                    transaction.fenced = True
            for each in (ended, started):
                if isinstance(each, BaseException):
                    raise each
        else:
            await self.start(rival)
            transaction.fenced = True
            await self._wake_up(old, transaction)

    async def _wake_up(self, old: Pipe, transaction: Transaction) -> None:
        last = transaction.batches[-1]
        value = self.history.value(transaction, sum(len(each.values) for each in transaction.batches))
        transaction.late.add(value)
        late = Batch(last.place, last.sequence + len(last.values), (value,))
        producing = self._producing(transaction, late)
        reply = await self._call(old, producing, self._protocol.produce, _produced)
        codes = _produced(reply)
        for group in transaction.groups:
            codes |= await self._ask_to_commit(old, transaction, group)
        for code in codes:
            checker.check_fenced(transaction, code)
        reply = await self._ask_to_end(old, transaction, commits=True)
        checker.check_fenced(transaction, reply.error_code)

    # --- requests -------------------------------------------------------------------------------------------

    def _named(self, producer: Producer) -> None:
        named = self.history.producers
        checker.check_producer(named, producer)
        if producer.id not in {each.id for each in named}:
            self._producer_ids.append(producer.id)
        named.append(producer)
        self._producer = producer
        self._sequences.clear()

    def _next_sequence(self, place: Place, count: int) -> int:
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = sequence + count
        return sequence

    def _producing(self, transaction: Transaction, batch: Batch) -> ProduceRequest:
        records = [Record(index, NOW_MS, None, value) for index, value in enumerate(batch.values)]
        stored = build(
            records,
            producer_id=transaction.producer.id,
            producer_epoch=transaction.producer.epoch,
            base_sequence=batch.sequence,
            transactional=True,
        )
        topic, partition = batch.place
        data = ProduceRequest.TopicProduceData(
            name=topic,
            partition_data=[ProduceRequest.PartitionProduceData(index=partition, records=stored)],
        )
        return ProduceRequest(
            transactional_id=self.history.name, acks=-1, timeout_ms=60_000, topic_data=[data]
        )

    def _committing(self, transaction: Transaction, group: str) -> TxnOffsetCommitRequest:
        topics: dict[str, list[Any]] = {}
        for slot in transaction.slots:
            if slot.group == group:
                topics.setdefault(slot.topic, []).append(
                    TxnOffsetCommitRequest.Partition(
                        partition_index=slot.partition,
                        committed_offset=transaction.number,
                        committed_metadata=transaction.metadata,
                    )
                )
        return TxnOffsetCommitRequest(
            transactional_id=self.history.name,
            group_id=group,
            producer_id=transaction.producer.id,
            producer_epoch=transaction.producer.epoch,
            topics=[
                TxnOffsetCommitRequest.Topic(name=name, partitions=each) for name, each in topics.items()
            ],
        )

    async def _ask_to_commit(self, wire: Pipe, transaction: Transaction, group: str) -> set[int]:
        committing = self._committing(transaction, group)
        return _committed(await self._call(wire, committing, self._protocol.commit_offsets, _committed))

    async def _ask_to_end(self, wire: Pipe, transaction: Transaction, *, commits: bool) -> Any:
        request = wire_transactions.ending(self.history.name, transaction.producer, commits=commits)
        return await self._call(wire, request, self._protocol.end)

    async def _call(
        self, wire: Pipe, request: Message, version: int, codes: Callable[[Any], set[int]] = _code
    ) -> Any:
        """Send a request, and repeat it while the broker says that it is too early."""
        async with asyncio.timeout(REPLY_S):
            while True:
                reply = await wire.call(request, version)
                if not codes(reply) & {*_LATER}:
                    return reply
                await asyncio.sleep(_AGAIN_S)


def _first_of_each_place(sent: Iterable[Batch]) -> list[Batch]:
    """The first unacknowledged batch of each place; the next one of a place has to wait for it."""
    first: dict[Place, Batch] = {}
    for each in sent:
        if not each.acknowledged:
            first.setdefault(each.place, each)
    return [*first.values()]
