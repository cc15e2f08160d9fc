"""A transactional id in a test: its facts, waits, and fencing as by another producer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from muster.coordinator.cluster.coordinators import TRANSACTIONS
from muster.coordinator.testing.arguments import check_text
from muster.coordinator.testing.faces import Async, Blocking, Calls, waits
from muster.coordinator.testing.waiting import TIMEOUT_S, Duration, Seen, seconds, wait_until
from muster.coordinator.transactions.shard import TransactionShard
from muster.coordinator.transactions.states import BY_WIRE_NAME
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.transactions import (
    DescribeTransactionsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

if TYPE_CHECKING:
    from muster.coordinator.testing.core import Core

TopicPartition = tuple[str, int]

DEAD: Final = "Dead"
"""Kafka's name for the state of an unknown id."""
_STATES: Final = (*BY_WIRE_NAME, DEAD)
_WITHOUT_TRANSACTION: Final = {DEAD, *(name for name, state in BY_WIRE_NAME.items() if state.is_idle)}


class TransactionFacts(NamedTuple):
    """A transactional id as its coordinator sees it. `state` is Kafka's name: Empty, Ongoing, PrepareCommit,
    PrepareAbort, CompleteCommit, CompleteAbort, Dead (if it does not exist)."""

    id: str
    state: str
    producer_id: int = -1
    producer_epoch: int = -1
    partitions: tuple[TopicPartition, ...] = ()
    """Partitions in the open transaction, sorted; once it is decided, those still without their marker.
    Offsets count as partitions of `__consumer_offsets`."""
    started_ms: int | None = None
    """When the transaction got its first partition, in epoch milliseconds of the brokers' clock; None if no
    transaction is open."""
    timeout_ms: int = -1
    """transaction.timeout.ms of its producer."""

    @property
    def is_open(self) -> bool:
        """Whether it has a transaction that is not over: undecided, or some markers are still missing."""
        return self.state not in _WITHOUT_TRANSACTION

    def __str__(self) -> str:
        if self.state == DEAD:
            return f"{self.id}: Dead, no such transactional id"
        parts = ", ".join(f"{topic}-{number}" for topic, number in self.partitions)
        where = f", in {parts}" if parts else ""
        return f"{self.id}: {self.state}, producer {self.producer_id} in epoch {self.producer_epoch}{where}"


class TransactionCalls(Calls):
    """One transactional id and its transaction. It need not exist: until it does, its state is Dead."""

    __slots__ = ("transactional_id",)

    def __init__(self, core: Core, transactional_id: str) -> None:
        __tracebackhide__ = True
        check_text("transactional_id", transactional_id)
        super().__init__(core)
        self.transactional_id = transactional_id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.transactional_id}>"

    # --- facts, the same on both faces ----------------------------------------------------------------------
    # Each raises KafkaError if the id has no coordinator right now.

    @property
    def facts(self) -> TransactionFacts:
        """All facts, read together."""
        return self._look(lambda: facts_of(self._core, self.transactional_id))

    @property
    def state(self) -> str:
        """Kafka's name of its state; Dead if it does not exist."""
        return self.facts.state

    @property
    def coordinator(self) -> int | None:
        """Index of the broker that coordinates it; None if there is none right now."""

        async def index() -> int | None:
            node = self._core.coordinator(self.transactional_id, TRANSACTIONS)
            return None if node is None else self._core.brokers.brokers.index(node)

        return self._look(index)

    # --- waits ----------------------------------------------------------------------------------------------

    @waits
    async def in_state(self, state: str, *, timeout: Duration = TIMEOUT_S) -> TransactionFacts:
        """Wait until it is in `state`, Kafka's name such as PrepareCommit. Raises WaitFailed, and ValueError
        for an unknown state."""
        if state not in _STATES:
            raise ValueError(f"state: {state!r} is not one of {', '.join(_STATES)}")
        return await reached(
            self._core, self.transactional_id, f"to be {state}", lambda facts: facts.state == state, timeout
        )

    @waits
    async def ended(self, *, timeout: Duration = TIMEOUT_S) -> TransactionFacts:
        """Wait until it has no open transaction: the last one is committed or aborted, and all its partitions
        have their markers. Raises WaitFailed."""
        return await reached(
            self._core,
            self.transactional_id,
            "to have no open transaction",
            lambda facts: not facts.is_open,
            timeout,
        )

    # --- actions --------------------------------------------------------------------------------------------

    @waits
    async def fence(self, *, timeout: Duration = TIMEOUT_S) -> TransactionFacts:
        """Fence the id's producer, as a second producer does when it starts (InitProducerId): an open
        transaction is aborted, and the first producer's next request gets PRODUCER_FENCED. Returns when that
        is complete; waits for a transaction that is already decided. Raises WaitFailed, and LookupError if
        the id does not exist."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds(timeout)
        before = await reached(
            self._core, self.transactional_id, "to have a coordinator", lambda facts: True, timeout
        )
        if before.state == DEAD:
            there = ", ".join(each.id for each in await all_of(self._core)) or "none"
            raise LookupError(f"there is no transactional id {self.transactional_id!r}; there are: {there}")
        starting = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=before.timeout_ms
        )

        async def look() -> tuple[Seen, InitProducerIdResponse | None]:
            node = self._core.coordinator(self.transactional_id, TRANSACTIONS)
            if node is not None:
                await node.producer_ids.fetch()  # the shard may need one
            try:
                started: InitProducerIdResponse = await self._core.ask_transaction(
                    self.transactional_id, TransactionShard.start, starting
                )
            except KafkaError as error:
                if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                    raise
                return Seen(False, str(await facts_of(self._core, self.transactional_id))), None
            return Seen(True, ""), started

        wanted = f"transactional id {self.transactional_id} to be another producer's"
        left_s = round(max(until - loop.time(), 0), 3)  # less than a millisecond is no duration
        await wait_until(self._core.news, wanted, look, left_s)
        return await facts_of(self._core, self.transactional_id)


class Transaction(TransactionCalls, Blocking):
    """One transactional id, blocking API."""

    __slots__ = ()


class AsyncTransaction(TransactionCalls, Async):
    """One transactional id, async API. Facts are plain attributes here too."""

    __slots__ = ()


# --- on the brokers' loop -----------------------------------------------------------------------------------


async def facts_of(core: Core, transactional_id: str) -> TransactionFacts:
    """The facts of an id. Raises KafkaError if it has no coordinator right now."""
    try:
        told: DescribeTransactionsResponse.TransactionState = await core.ask_transaction(
            transactional_id, TransactionShard.describe, transactional_id
        )
    except KafkaError as error:
        if error.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return TransactionFacts(transactional_id, DEAD)
        raise
    is_open = told.transaction_state not in _WITHOUT_TRANSACTION
    return TransactionFacts(
        transactional_id,
        told.transaction_state,
        told.producer_id,
        told.producer_epoch,
        tuple((topic.topic, number) for topic in told.topics for number in topic.partitions),
        told.transaction_start_time_ms if is_open else None,
        told.transaction_timeout_ms,
    )


async def all_of(core: Core) -> list[TransactionFacts]:
    """The facts of all ids, sorted by id. Raises KafkaError while any has no coordinator."""
    found: list[list[ListTransactionsResponse.TransactionState]] = await core.ask_transaction_shards(
        TransactionShard.list_transactions, ListTransactionsRequest(state_filters=[], producer_id_filters=[])
    )
    ids = sorted(each.transactional_id for of_shard in found for each in of_shard)
    return [await facts_of(core, transactional_id) for transactional_id in ids]


async def reached(
    core: Core,
    transactional_id: str,
    wanted: str,
    met: Callable[[TransactionFacts], bool],
    timeout: Duration,
) -> TransactionFacts:
    """Wait until the facts of an id satisfy `met`."""

    async def look() -> tuple[Seen, TransactionFacts]:
        facts = await facts_of(core, transactional_id)
        return Seen(met(facts), str(facts)), facts

    return await wait_until(core.news, f"transactional id {transactional_id} {wanted}", look, timeout)


async def none_open(core: Core, timeout: Duration) -> None:
    """Wait until no transaction is open."""

    async def look() -> tuple[Seen, None]:
        open_ones = [str(each) for each in await all_of(core) if each.is_open]
        return Seen(not open_ones, "; ".join(open_ones)), None

    await wait_until(core.news, "no transaction to be open", look, timeout)


__all__ = [
    "AsyncTransaction",
    "Transaction",
    "TransactionFacts",
    "all_of",
    "facts_of",
    "none_open",
    "reached",
]
