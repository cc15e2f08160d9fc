"""`Transaction`: records and offsets that become visible together, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Final, Generic, Protocol, Self, TypeVar

from muster.client.errors import ClientError, ProducerFenced, TransactionAborted
from muster.client.group.group_metadata import GroupMetadata
from muster.client.partitions import OffsetAndMetadata, TopicPartition, checked_partition, place_of
from muster.client.produce.sender import RecordFuture, RecordMetadata
from muster.client.produce.transactions import Offsets, State, Transactions
from muster.protocol.errors import ErrorCode, KafkaError

K = TypeVar("K", contravariant=True)
V = TypeVar("V", contravariant=True)

_HURRIED_ABORT_S: Final = 5.0
"""How long a cancelled block waits for its transaction to be aborted."""


class Sends(Protocol[K, V]):
    """A producer, as far as its transactions need it."""

    async def send(
        self,
        topic: str,
        value: V | None = None,
        *,
        key: K | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> RecordMetadata: ...

    async def post(
        self,
        topic: str,
        value: V | None = None,
        *,
        key: K | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        urgent: bool = False,
    ) -> RecordFuture: ...


class Transaction(Generic[K, V]):
    """A transaction of a producer, made by `Producer.transaction`.

        async with producer.transaction() as transaction:
            await transaction.send("totals", b"...", key=b"alice")
            await transaction.commit_offsets(consumer)

    It begins with the block, is committed at its end, and aborted if the block is left by an exception or a
    cancellation. A block left by TransactionAborted raises ProducerFenced if the abort shows that this
    is why. `begin`, `commit` and `abort` do the same by hand; after `commit` or `abort` within the block, its
    end does nothing.
    """

    def __init__(self, producer: Sends[K, V], transactions: Transactions) -> None:
        self._producer = producer
        self._transactions = transactions
        self._told = False
        """The user has ended it by hand, and has been told the outcome."""
        self._aborted = False
        """The user has been told that it is aborted."""

    def __repr__(self) -> str:
        state = self._transactions.state.name.lower() if self._is_mine else "not open"
        return f"<Transaction of {self._transactions.transactional_id}, {state}>"

    @property
    def _is_mine(self) -> bool:
        return self._transactions.current is self

    async def begin(self) -> Self:
        """Begin. Waits up to max_block_ms for the previous transaction to end. Raises ConcurrentUse if that
        is still open, TimedOut, ProducerFenced, KafkaError; TransactionAborted, once, if the previous
        transaction, whose commit was cancelled or timed out, turned out to be aborted, and neither its
        `commit` nor its `abort` has said so since."""
        self._told = self._aborted = False
        await self._transactions.begin(self)
        return self

    async def commit(self) -> None:
        """Send all remaining records, and commit. When it returns, all of them are acknowledged, and the
        commit is certain. (Consumers see it once it has reached all partitions.)

        Raises TransactionAborted if it had to be aborted: a record failed, or the broker aborted it after
        transaction_timeout_ms. Raises TimedOut if the coordinator does not answer within max_block_ms: the
        transaction may or may not be committed; the producer keeps asking, and the next transaction waits for
        the answer. Raises ProducerFenced or KafkaError if the producer is no longer usable. It takes at most
        delivery_timeout_ms for the records, and max_block_ms for the coordinator. If cancelled while records
        are being sent, the transaction is aborted; if cancelled later, it is committed all the same."""
        self._told = True
        try:
            await self._transactions.commit(self)
        except TransactionAborted:
            self._aborted = True
            raise

    async def abort(self) -> None:
        """Drop unsent records (they raise TransactionAborted), and abort. Waits for responses to requests in
        flight (request_timeout_ms), then for the coordinator, both within max_block_ms; then it raises
        TimedOut, while the producer keeps asking. Does nothing if it is already aborted, for example by a
        commit that raised TransactionAborted or was cancelled. Raises NoTransaction if it is committed, or
        being committed: a commit that timed out, or was cancelled when all records had been sent, remains
        one."""
        self._told = True
        if self._aborted and not self._is_mine:
            return
        await self._transactions.abort(self)
        self._aborted = True

    async def send(
        self,
        topic: str,
        value: V | None = None,
        *,
        key: K | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> RecordMetadata:
        """As `Producer.send`, in this transaction. Raises TransactionAborted if it has failed or the broker
        has ended it, NoTransaction if it is over."""
        self._transactions.check(self)
        return await self._producer.send(
            topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
        )

    async def post(
        self,
        topic: str,
        value: V | None = None,
        *,
        key: K | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> RecordFuture:
        """As `Producer.post`, in this transaction. The futures need not be awaited: if a record fails, so
        does the commit. Raises TransactionAborted if the transaction has failed, NoTransaction if it is
        over."""
        self._transactions.check(self)
        return await self._producer.post(
            topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
        )

    async def commit_offsets(
        self,
        consumer: Offsets | GroupMetadata,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
    ) -> None:
        """Commit a group's offsets with this transaction (KIP-447): those of all records that the consumer
        has returned, as `Consumer.commit` does, or `offsets`. From the first call on, the consumer no longer
        commits by itself; with `enable_auto_commit=False` it does not before either, when what it commits may
        be aborted with this transaction. For a consumer that runs elsewhere, pass its `group_metadata()`;
        then `offsets` are required.

        Raises TransactionAborted if the group does not accept them: after a rebalance their records may be
        another member's. Waits up to max_block_ms for the coordinators. After any error but ValueError,
        TypeError and NoTransaction, or if it is cancelled, the transaction can only be aborted."""
        source: Offsets
        if isinstance(consumer, GroupMetadata):
            if offsets is None:
                raise ValueError("offsets: with group metadata, offsets are required")
            source = _Given(consumer)
        else:
            source = consumer
        if offsets is not None and not isinstance(offsets, Mapping):
            raise ValueError(f"offsets={offsets!r}: it takes a mapping of TopicPartition to offset, or None")
        if offsets is not None:
            offsets = {checked_partition(where): place_of(place) for where, place in offsets.items()}
        await self._transactions.commit_offsets(self, source, offsets)

    async def __aenter__(self) -> Self:
        return await self.begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            if self._told and self._transactions.state is State.ENDING:
                return
            # If it is over and the user was not told, closing the producer has aborted it.
            if self._is_mine or not self._told:
                await self.commit()
            return
        if not self._is_mine or self._transactions.state is State.ENDING:
            return
        hurried = isinstance(error, asyncio.CancelledError)
        try:
            await self._transactions.abort(self, _HURRIED_ABORT_S if hurried else None)
        except (ClientError, KafkaError) as failed:
            if isinstance(error, TransactionAborted) and isinstance(failed, ProducerFenced):
                raise
            # Otherwise the user's error says more, and the producer remembers this one.


class _Given:
    """Offsets that the user gives, for a member that the user names."""

    def __init__(self, group: GroupMetadata) -> None:
        self._group = group

    async def offsets_for_transaction(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None, until: float, since: float
    ) -> tuple[GroupMetadata, Mapping[TopicPartition, OffsetAndMetadata]]:
        return self._group, {where: place_of(place) for where, place in (offsets or {}).items()}

    def transaction_refused(self, code: ErrorCode, group: GroupMetadata) -> bool:
        """The given member does not change."""
        return False
