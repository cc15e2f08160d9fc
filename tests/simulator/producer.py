"""A simulated transactional producer of either generation: it begins, writes to several partitions, and
commits or aborts, over the wire.

A producer that moves offsets takes those of a partition from the committed one on, writes a record for each
and commits its offset in the same transaction. It enters what it requests and is told in a `ledger.Book`.

It repeats whatever is not answered, as stock clients do, and never changes its mind: once it has asked for a
commit it asks for nothing else until it knows the outcome.

Of an older generation, which keeps its epoch until it asks for another, a Produce that went unanswered may
have been held up on the way: it arrives once its transaction is aborted, and the leader must find out that no
transaction has it any more (KIP-890).
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from typing import Any, Final, NamedTuple

from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode
from muster.protocol.message import Message
from muster.protocol.messages.data import ProduceRequest
from muster.protocol.messages.offsets import OffsetFetchRequest
from muster.protocol.messages.transactions import TxnOffsetCommitRequest
from muster.protocol.record_batch import Record, build
from tests.simulator.ledger import LEDGER, LEDGER_PARTITIONS, Book, Grant, Source, Told, leaders
from tests.simulator.member import Client
from tests.simulator.network import Address, Disconnected, Link
from tests.simulator.node import EPOCH_MS
from tests.support import wire_transactions

PRODUCE_TIMEOUT_MS: Final = 5_000
_WRITTEN_MS: Final = EPOCH_MS - 10_800_000
"""The timestamp of its records: so long ago that it is past by every broker's clock."""
_AGAIN_S: Final = 0.05
_AGAIN_MAX_S: Final = 1.0
_HELD_UP_S: Final = 1.0
"""How long after the abort a Produce arrives that was held up."""
KEY_TYPE: Final = 1
"""FindCoordinator's key type for a transactional id."""


class Generation(NamedTuple):
    """The API versions of one generation of clients."""

    init: int
    add: int | None
    """None: brokers add partitions (KIP-890)."""
    add_offsets: int
    produce: int
    commit: int
    end: int


GENERATIONS: Final = (
    Generation(4, 0, 0, 10, 3, 1),
    Generation(4, 3, 3, 11, 4, 4),
    Generation(5, None, 0, 12, 5, 5),
    Generation(5, None, 0, 12, 5, 5),
)


class Membership(NamedTuple):
    """The membership under which offsets are committed."""

    member_id: str = ""
    generation_id: int = -1
    instance_id: str | None = None


class Fenced(Exception):
    """Another producer has the id, or the coordinator gave this one up: nothing more can be done."""


class Broken(Exception):
    """The transaction can no longer be committed and has to be aborted."""


_LOOK_AGAIN: Final = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}
_FATAL: Final = {
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE,
}
_BREAKING: Final = {
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.STALE_MEMBER_EPOCH,
}
"""Errors of Produce and TxnOffsetCommit. EndTxn will show whether they are the producer's end too."""


class Producer:
    """One process with a transactional id, until it has ended, was fenced, or crashed."""

    def __init__(
        self,
        client: Client,
        transactional_id: str,
        rng: random.Random,
        brokers: list[Address],
        book: Book,
        *,
        timeout_ms: int,
        source: Source | None,
        membership: Callable[[str], Membership],
        rests: Callable[[], bool],
    ) -> None:
        """`timeout_ms` is its transaction.timeout.ms. `membership` picks that of some member of a group;
        `rests` says whether it may begin no transaction at present."""
        self.name = client.name
        self.transactional_id = transactional_id
        self.over = False
        self.idle = False
        """Whether it has no transaction."""
        self.generation = rng.choice(GENERATIONS)
        self._client = client
        self._rng = rng
        self._brokers = brokers
        self._book = book
        self._timeout_ms = timeout_ms
        self._source = source
        self._membership = membership
        self._rests = rests
        self._who = wire_transactions.NOBODY
        self._position = 0
        self._sequences: dict[int, int] = defaultdict(int)
        self._numbers = count(1)
        self._transaction = Told("", transactional_id, self._who)
        self._unanswered: dict[int, bytes] = {}
        """This transaction's last batch of each partition whose Produce went unanswered."""
        self._link: dict[str, Link] = {}  # by purpose
        self._stalled_until_s = 0.0
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Producer {self.name} {self._who} {self._transaction!r}>"

    # --- what happens to it ---------------------------------------------------------------------------------

    def start(self, failed: Callable[[BaseException], None]) -> None:
        """`failed` is called with exceptions that it may not raise."""

        def done(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                failed(error)

        self._task = asyncio.get_running_loop().create_task(self._run(), name=self.name)
        self._task.add_done_callback(done)

    def stall(self, seconds: float) -> None:
        """Do nothing for a while, like a process in a long garbage collection."""
        self._stalled_until_s = asyncio.get_running_loop().time() + seconds

    def crash(self, *, silently: bool) -> None:
        """Die; `silently`: brokers do not even notice that its connections are gone."""
        self.over = True
        self.cut(silently=silently)
        if self._task is not None:
            self._task.cancel()

    def cut(self, *, silently: bool) -> None:
        """Break its connections."""
        links, self._link = self._link, {}
        for link in links.values():
            if silently:
                link.vanish()
            else:
                link.close()

    # --- its life -------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._begin_anew()
            while True:
                self.idle = True
                await asyncio.sleep(self._rng.uniform(0.1, 3.0))
                if not self._rests():
                    self.idle = False
                    await self._transact()
        except Fenced:
            self.over = True
            self.cut(silently=False)

    async def _begin_anew(self) -> None:
        """InitProducerId, and find out where to continue."""
        await self._initialize(wire_transactions.NOBODY)
        if self._source is not None:
            self._position = await self._committed(self._source)

    async def _initialize(self, had: tuple[int, int]) -> None:
        request = wire_transactions.starting(self.transactional_id, had=had, timeout_ms=self._timeout_ms)
        response = await self._ask_coordinator(ApiKey.INIT_PRODUCER_ID, self.generation.init, request)
        self._go_on_as(response.producer_id, response.producer_epoch)

    def _go_on_as(self, producer_id: int, producer_epoch: int) -> None:
        self._who = producer_id, producer_epoch
        self._sequences.clear()
        now_s = asyncio.get_running_loop().time()
        self._book.granted(self.transactional_id, Grant(self.name, self._who, now_s))

    async def _transact(self) -> None:
        name = f"{self.name}#{next(self._numbers)}"
        self._transaction = Told(name, self.transactional_id, self._who, self._source)
        self._book.begun(self._transaction)
        self._unanswered.clear()
        records = self._records()
        moved = sum(map(len, records.values()))
        try:
            if self.generation.add is not None:
                await self._add({LEDGER: sorted(records)}, self.generation.add)
                await self._dawdle()
            for part in self._parts(records):
                await self._produce(part)
                await self._dawdle()
            if self._source is not None:
                await self._commit_offset(self._source, self._position + moved)
                await self._dawdle()
        except Broken:
            await self._end(commits=False)
            if self.generation.add is not None:
                await self._held_up_arrives()
                # What is still in flight must not be taken for part of the next transaction.
                await self._initialize(self._who)
            return
        commits = self._rng.random() < 0.75
        await self._end(commits=commits)
        if commits:
            self._position += moved

    async def _dawdle(self) -> None:
        await asyncio.sleep(self._rng.choice([0.0, 0.05, 0.3]) * self._rng.random())

    def _records(self) -> dict[int, list[str]]:
        """The values for each ledger partition."""
        records: dict[int, list[str]] = defaultdict(list)
        for number in range(self._rng.randint(1, 4)):
            what = f"in{self._position + number}" if self._source is not None else str(number)
            records[self._rng.randrange(LEDGER_PARTITIONS)].append(f"{self._transaction.name}|{what}")
        return records

    def _parts(self, records: dict[int, list[str]]) -> list[dict[int, list[str]]]:
        """The records of each request."""
        if self._rng.random() < 0.5:
            return [records]
        return [{partition: [value]} for partition, values in records.items() for value in values]

    # --- the coordinator ------------------------------------------------------------------------------------

    async def _ask_coordinator(self, api_key: ApiKey, version: int, request: Message) -> Any:
        """The answer, once it reports success. Raises Fenced."""

        async def find() -> Address | None:
            return await self._client.find_coordinator(
                self.transactional_id, self._shuffled(), key_type=KEY_TYPE
            )

        again_s = _AGAIN_S
        while True:
            response = await self._ask(self.transactional_id, find, api_key, version, request)
            codes = _codes_of(response)
            if codes & _LOOK_AGAIN:
                await self._forget(self.transactional_id)
            elif ErrorCode.CONCURRENT_TRANSACTIONS in codes:
                await asyncio.sleep(again_s)
                again_s = min(1.5 * again_s, _AGAIN_MAX_S)
            elif codes & _FATAL:
                raise Fenced
            elif not codes:
                return response
            else:
                await asyncio.sleep(0.1)  # unexpected answers are left to the checkers

    async def _add(self, topics: Mapping[str, list[int]], version: int) -> None:
        request = wire_transactions.adding(self.transactional_id, self._who, topics)
        await self._ask_coordinator(ApiKey.ADD_PARTITIONS_TO_TXN, version, request)

    async def _end(self, *, commits: bool) -> None:
        self._transaction.commits = commits
        self._transaction.ends_s = asyncio.get_running_loop().time()
        request = wire_transactions.ending(self.transactional_id, self._who, commits=commits)
        ended = await self._ask_coordinator(ApiKey.END_TXN, self.generation.end, request)
        self._transaction.done = True
        if self.generation.add is None:
            self._go_on_as(ended.producer_id, ended.producer_epoch)

    # --- the ledger -----------------------------------------------------------------------------------------

    async def _produce(self, records: dict[int, list[str]]) -> None:
        """Returns once every batch is acknowledged. Raises Broken."""
        left = {partition: self._batch(partition, values) for partition, values in records.items()}
        until_s = asyncio.get_running_loop().time() + self._rng.choice([2.0, 8.0, 30.0])
        while left:
            if asyncio.get_running_loop().time() > until_s:
                raise Broken
            for leader, partitions in (await self._leaders(left)).items():
                for partition in await self._produce_to(leader, {each: left[each] for each in partitions}):
                    del left[partition]
                    self._book.acknowledged(self._transaction, partition, records[partition])
            if left:
                await asyncio.sleep(self._rng.uniform(0.02, 0.2))

    def _batch(self, partition: int, values: list[str]) -> bytes:
        first = self._sequences[partition]
        self._sequences[partition] += len(values)
        contents = [Record(number, _WRITTEN_MS, None, value.encode()) for number, value in enumerate(values)]
        producer_id, producer_epoch = self._who
        return build(
            contents,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=first,
            transactional=True,
        )

    async def _produce_to(self, leader: Address, batches: dict[int, bytes]) -> list[int]:
        """The partitions that acknowledged."""
        Topic = ProduceRequest.TopicProduceData
        data = [
            Topic.PartitionProduceData(index=partition, records=batch) for partition, batch in batches.items()
        ]
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=PRODUCE_TIMEOUT_MS,
            topic_data=[Topic(name=LEDGER, partition_data=data)],
        )

        async def find() -> Address | None:
            return leader

        place = f"{leader[0]}:{leader[1]}"
        response = await self._ask(place, find, ApiKey.PRODUCE, self.generation.produce, request, once=True)
        if response is None:
            self._unanswered |= batches
            return []
        answers = {
            each.index: each.error_code for topic in response.responses for each in topic.partition_responses
        }
        if _BREAKING & set(answers.values()):
            raise Broken
        return [partition for partition, code in answers.items() if not code]

    async def _held_up_arrives(self) -> None:
        """What went unanswered in the transaction arrives after its abort, in the same epoch."""
        if not self._unanswered:
            return
        await asyncio.sleep(_HELD_UP_S)
        late = dict(self._unanswered)
        for leader, partitions in (await self._leaders(late)).items():
            with suppress(Broken):
                await self._produce_to(leader, {each: late[each] for each in partitions})

    async def _leaders(self, partitions: Mapping[int, bytes]) -> dict[Address, list[int]]:
        """Which partitions to send to which leader; partitions without one are left out."""
        found = await leaders(self._client, self._shuffled())
        wanted: dict[Address, list[int]] = defaultdict(list)
        for partition in partitions:
            if partition in found:
                wanted[found[partition]].append(partition)
        return wanted

    # --- offsets --------------------------------------------------------------------------------------------

    async def _committed(self, source: Source) -> int:
        """The committed offset of the partition, once no transaction has one pending."""
        topic, number = source.partition
        group = OffsetFetchRequest.Group(
            group_id=source.group_id,
            topics=[OffsetFetchRequest.Topics(name=topic, partition_indexes=[number])],
        )
        request = OffsetFetchRequest(groups=[group], require_stable=True)
        again_s = _AGAIN_S
        while True:
            response = await self._ask_group(source.group_id, ApiKey.OFFSET_FETCH, 8, request)
            (fetched,) = response.groups
            if fetched.error_code in _LOOK_AGAIN:
                await self._forget(source.group_id)
                continue
            ((answer,),) = (each.partitions for each in fetched.topics)
            if answer.error_code == 0:
                return max(int(answer.committed_offset), 0)
            await asyncio.sleep(again_s)
            again_s = min(1.5 * again_s, _AGAIN_MAX_S)

    async def _commit_offset(self, source: Source, offset: int) -> None:
        """Raises Broken."""
        if self.generation.add is not None:
            request: Message = wire_transactions.adding_offsets(
                self.transactional_id, self._who, source.group_id
            )
            await self._ask_coordinator(ApiKey.ADD_OFFSETS_TO_TXN, self.generation.add_offsets, request)
            await self._dawdle()
        name = self._membership(source.group_id)
        topic, number = source.partition
        partition = TxnOffsetCommitRequest.Partition(
            partition_index=number, committed_offset=offset, committed_metadata=self._transaction.name
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=source.group_id,
            producer_id=self._who[0],
            producer_epoch=self._who[1],
            generation_id_or_member_epoch=name.generation_id,
            member_id=name.member_id,
            group_instance_id=name.instance_id,
            topics=[TxnOffsetCommitRequest.Topic(name=topic, partitions=[partition])],
        )
        until_s = asyncio.get_running_loop().time() + 30.0
        while asyncio.get_running_loop().time() < until_s:
            response = await self._ask_group(
                source.group_id, ApiKey.TXN_OFFSET_COMMIT, self.generation.commit, request
            )
            codes = _codes_of(response)
            if not codes:
                self._transaction.offset = offset
                return
            if codes & _BREAKING:
                raise Broken
            if codes & _LOOK_AGAIN:
                await self._forget(source.group_id)
            await asyncio.sleep(0.05)
        raise Broken

    async def _ask_group(self, group_id: str, api_key: ApiKey, version: int, request: Message) -> Any:
        async def find() -> Address | None:
            return await self._client.find_coordinator(group_id, self._shuffled())

        return await self._ask(group_id, find, api_key, version, request)

    # --- connections ----------------------------------------------------------------------------------------

    def _shuffled(self) -> list[Address]:
        return self._rng.sample(self._brokers, len(self._brokers))

    async def _ask(
        self,
        place: str,
        find: Callable[[], Any],
        api_key: ApiKey,
        version: int,
        request: Message,
        *,
        once: bool = False,
    ) -> Any:
        """The response of the broker found, over the connection kept for `place`; repeated until there is
        one. With `once`, None if there is none."""
        while True:
            try:
                await self._wait_out_stall()
                link = self._link.get(place)
                if link is None or not link.open:
                    address = await find()
                    if address is None:
                        raise Disconnected
                    link = self._link[place] = await self._client.connect(address)
                response = await self._client.ask(link, api_key, version, request)
                await self._wait_out_stall()
                return response
            except Disconnected:
                await self._forget(place)
                if once:
                    return None

    async def _forget(self, place: str) -> None:
        """Forget the connection, so that it is looked up again in a moment."""
        link = self._link.pop(place, None)
        if link is not None:
            link.close()
        await asyncio.sleep(self._rng.uniform(0.05, 0.3))

    async def _wait_out_stall(self) -> None:
        left_s = self._stalled_until_s - asyncio.get_running_loop().time()
        if left_s > 0:
            await asyncio.sleep(left_s)


def _codes_of(response: Any) -> set[int]:
    """Every error code in a coordinator's answer."""
    topics = getattr(response, "results_by_topic_v3_and_below", None) or getattr(response, "topics", ())
    found = {getattr(response, "error_code", 0)}
    for topic in topics:
        for each in getattr(topic, "results_by_partition", None) or topic.partitions:
            found.add(getattr(each, "partition_error_code", None) or getattr(each, "error_code", 0))
    return found - {ErrorCode.NONE}
