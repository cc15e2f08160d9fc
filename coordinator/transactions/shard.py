"""A shard: the transactional ids of one partition of `__transaction_state`, and a method for each request
about them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from muster.coordinator.base.deadlines import Deadlines
from muster.coordinator.base.step import BrokenInvariant, Step
from muster.coordinator.transactions import adding, ending, starting
from muster.coordinator.transactions.adding import AddPartitions, Verified, VerifyPartitions
from muster.coordinator.transactions.config import NEVER_MS, TransactionConfig
from muster.coordinator.transactions.ending import End, Ended
from muster.coordinator.transactions.events import IdExpired, MarkersDue, StateChanged
from muster.coordinator.transactions.refusals import concurrent, unknown_id
from muster.coordinator.transactions.starting import Had
from muster.coordinator.transactions.states import (
    BY_WIRE_NAME,
    TRANSITIONS,
    TransactionState,
    Trigger,
)
from muster.coordinator.transactions.transaction import (
    NO_EPOCH,
    TopicPartition,
    Transaction,
    from_row,
    to_row,
)
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.transactions import (
    DescribeTransactionsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

_PASSING_IN_KAFKA: Final = frozenset({"Dead", "PrepareEpochFence"})
"""Kafka's states of ids whose record is being written; here no id is ever in them."""
_TRY_AGAIN_MS: Final = 1_000
"""How long an overdue abort waits when there is no producer id for it."""


class _TimerKind(StrEnum):
    TIMEOUT = "timeout"
    """A transaction has been open for its timeout."""
    EXPIRATION = "expiration"
    """An id has had no transaction for so long that it is forgotten."""


class _TimerKey(NamedTuple):
    kind: _TimerKind
    transactional_id: str


class TransactionShard:
    """The transactional ids of one coordinator partition.

    Life cycle: `apply` what the store holds, `loaded`, then requests, `advance` whenever `next_deadline` has
    come, and `unload` at the end. Requests have one signature, `(request, step)`; they raise KafkaError
    before they have changed anything, or are answered in their step.

    Kafka refuses nearly everything with CONCURRENT_TRANSACTIONS while a record of an id is being written.
    Here a step changes the id at once and its answer waits for the record, so that only requests between a
    transaction's decision and its last marker are refused.
    """

    def __init__(
        self,
        number: int,
        config: TransactionConfig,
        *,
        new_id: Callable[[], int],
        version: Callable[[], int] = lambda: 2,
    ) -> None:
        """`new_id` gives a producer id that nobody has had. It raises
        KafkaError(COORDINATOR_LOAD_IN_PROGRESS) if none is at hand: clients then retry. `version` is the
        level in force of the feature transaction.version, whose rules apply to aborting transactions that
        no client ends."""
        self.number = number
        self.config = config
        self.transactions: dict[str, Transaction] = {}
        """By transactional id; changed only by records."""
        self.deadlines: Deadlines[_TimerKey] = Deadlines()
        self._last_epochs: dict[str, int] = {}
        """The previous epoch of ids whose InitProducerId may be repeated. As in Kafka, a coordinator that
        takes over does not know it."""
        self._unmarked: dict[str, set[TopicPartition]] = {}
        """The partitions of prepared transactions that have yet to be marked."""
        self._new_id = new_id
        self._version = version

    def __repr__(self) -> str:
        return f"<TransactionShard {self.number} ids={len(self.transactions)} ending={len(self._unmarked)}>"

    # --- its life -------------------------------------------------------------------------------------------

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply a row of the store. Rows of unknown types are skipped. Raises DecodeError for a damaged
        row."""
        found = from_row(key, value)
        if found is not None:
            self._put(*found)

    def unmarked(self, transactional_id: str) -> frozenset[TopicPartition]:
        """The partitions of a transaction with a decided outcome that have yet to be marked."""
        return frozenset(self._unmarked.get(transactional_id, ()))

    def durable(self) -> dict[str, Transaction]:
        """The state according to the rows so far, in a comparable form."""
        return dict(self.transactions)

    def contents(self) -> dict[str, int]:
        """How many ids there are, if any."""
        return {"transactional_ids": len(self.transactions)} if self.transactions else {}

    def loaded(self, step: Step) -> None:
        """Every row of the store has been applied: prepared transactions are owed their markers once more."""
        for transactional_id, transaction in sorted(self.transactions.items()):
            self._schedule(transactional_id, transaction, step.now_ms)
            if transaction.state.is_prepared:
                self._tell_markers(transactional_id, transaction, step)

    def unload(self, step: Step) -> None:
        """Another coordinator takes over. No request is ever parked here."""

    def next_deadline(self) -> int | None:
        """When `advance` has something to do, in epoch milliseconds."""
        return self.deadlines.next()

    def deadline_bound(self) -> int | None:
        """A lower bound of `next_deadline` that costs less; None when there is none."""
        return self.deadlines.bound()

    def advance(self, step: Step) -> None:
        """Abort transactions whose timeout has passed, and forget ids that nobody uses any more."""
        for key in self.deadlines.due(step.now_ms):
            transaction = self.transactions[key.transactional_id]
            if key.kind is _TimerKind.TIMEOUT:
                try:
                    self._abort(key.transactional_id, transaction, Trigger.TIMED_OUT, step)
                except KafkaError:  # there is no producer id for the rotation
                    self.deadlines.set(key, step.now_ms + _TRY_AGAIN_MS)
            else:
                self._forget(key.transactional_id, transaction, step)

    def job_done(self, job: Any, outcome: Any, step: Step) -> None:
        raise BrokenInvariant(f"nobody here began {job!r}")

    def unheard(self, responses: Sequence[object], step: Step) -> None:
        """Clients did not get these responses. They retry, and are recognized."""

    # --- what producers ask ---------------------------------------------------------------------------------

    def start(self, request: InitProducerIdRequest, step: Step) -> None:
        """Give the id to this producer; answers InitProducerIdResponse with its producer id and epoch.

        Raises INVALID_REQUEST, INVALID_TRANSACTION_TIMEOUT, PRODUCER_FENCED, and CONCURRENT_TRANSACTIONS
        until the previous producer's transaction is over. An open one is aborted, and the request is
        answered CONCURRENT_TRANSACTIONS in this step.
        """
        transactional_id = request.transactional_id
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        if (request.producer_id == -1) != (request.producer_epoch == -1):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "producer id and epoch must be given together")
        timeout_ms = request.transaction_timeout_ms
        if not 0 < timeout_ms <= self.config.max_timeout_ms:
            raise KafkaError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"transaction.timeout.ms is {timeout_ms}; transaction.max.timeout.ms allows 1 to "
                f"{self.config.max_timeout_ms}",
            )
        had = Had(request.producer_id, request.producer_epoch)
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            transaction = starting.unused(self._new_id(), timeout_ms, step.now_ms)
        starting.check(transactional_id, transaction, had)
        if transaction.state is TransactionState.ONGOING:
            self._abort(transactional_id, transaction, Trigger.FENCED, step)
            step.reply(concurrent(transactional_id, transaction))
            return
        last_epoch = self._last_epochs.get(transactional_id, NO_EPOCH)
        after, last_epoch = starting.started(
            transactional_id, transaction, last_epoch, had, timeout_ms, step.now_ms, self._new_id
        )
        self._change(transactional_id, transaction, after, Trigger.PRODUCER_STARTED, step)
        self._keep_last_epoch(transactional_id, last_epoch)
        step.reply(InitProducerIdResponse(producer_id=after.producer_id, producer_epoch=after.producer_epoch))

    def add_partitions(self, request: AddPartitions, step: Step) -> None:
        """Add partitions to the id's transaction, and begin it with the first; answers None when they are in
        it. Raises what `adding.added` does."""
        transaction = self._known(request.transactional_id)
        after = adding.added(transaction, request, step.now_ms)
        if after is None:
            step.reads_hard_state = True
        else:
            self._change(request.transactional_id, transaction, after, Trigger.PARTITIONS_ADDED, step)
        step.reply(None)

    def verify_partitions(self, request: VerifyPartitions, step: Step) -> None:
        """Check whether the id's transaction has these partitions; answers `Verified`. Raises what
        `adding.verified` does."""
        found: Verified = adding.verified(self._known(request.transactional_id), request)
        step.reads_hard_state = True
        step.reply(found)

    def end(self, request: End, step: Step) -> None:
        """Decide the outcome of the id's transaction; answers `Ended`. The markers follow. Raises what
        `ending.to_prepare` does."""
        transactional_id = request.transactional_id
        transaction = self._known(transactional_id)
        if not ending.to_prepare(transaction, request):
            step.reads_hard_state = True
            step.reply(Ended.of(transaction))
            return
        trigger = Trigger.COMMITTED if request.commits else Trigger.ABORTED
        version = 2 if request.raises_epoch else 0
        after = self._prepare(transactional_id, transaction, transaction, version, trigger, step)
        step.reply(Ended.of(after))

    # --- markers --------------------------------------------------------------------------------------------

    def marked(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
        step: Step,
    ) -> None:
        """These partitions have the marker of `MarkersDue`, or are gone. With the last one the transaction is
        complete. Does nothing if the id is no longer ending that transaction."""
        transaction = self.transactions.get(transactional_id)
        unmarked = self._unmarked.get(transactional_id)
        if (
            transaction is None
            or unmarked is None
            or (transaction.producer_id, transaction.producer_epoch) != (producer_id, producer_epoch)
        ):
            return
        unmarked.difference_update(partitions)
        if not unmarked:
            self._complete(transactional_id, transaction, step)

    # --- what admins ask ------------------------------------------------------------------------------------

    def describe(self, transactional_id: str, step: Step) -> None:
        """Describe the id; answers DescribeTransactionsResponse.TransactionState, with the partitions that
        have no marker yet. Raises INVALID_REQUEST for an empty id, TRANSACTIONAL_ID_NOT_FOUND."""
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            raise KafkaError(
                ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"there is no transactional id {transactional_id}"
            )
        step.reads_hard_state = True
        topics: dict[str, list[int]] = {}
        for topic, number in sorted(self._unmarked.get(transactional_id, transaction.partitions)):
            topics.setdefault(topic, []).append(number)
        Told = DescribeTransactionsResponse.TransactionState
        step.reply(
            Told(
                transactional_id=transactional_id,
                transaction_state=transaction.state.wire_name,
                transaction_timeout_ms=transaction.timeout_ms,
                transaction_start_time_ms=transaction.started_ms,
                producer_id=transaction.producer_id,
                producer_epoch=transaction.producer_epoch,
                topics=[Told.TopicData(topic=topic, partitions=numbers) for topic, numbers in topics.items()],
            )
        )

    def list_transactions(self, request: ListTransactionsRequest, step: Step) -> None:
        """List the ids that pass the filters by state, producer id and duration; answers a list of
        ListTransactionsResponse.TransactionState, by id. The caller applies the pattern: it may take long."""
        step.reads_hard_state = True
        step.reply(
            [
                ListTransactionsResponse.TransactionState(
                    transactional_id=transactional_id,
                    producer_id=transaction.producer_id,
                    transaction_state=transaction.state.wire_name,
                )
                for transactional_id, transaction in sorted(self.transactions.items())
                if _passes(transaction, request, step.now_ms)
            ]
        )

    # --- inside ---------------------------------------------------------------------------------------------

    def _known(self, transactional_id: str) -> Transaction:
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            raise unknown_id(transactional_id)
        return transaction

    def _abort(self, transactional_id: str, transaction: Transaction, trigger: Trigger, step: Step) -> None:
        """Abort a transaction that its producer does not end, and thereby fence the producer."""
        version = self._version()
        ended = transaction if version >= 2 else ending.fenced_off(transaction)
        self._prepare(transactional_id, transaction, ended, version, trigger, step)

    def _prepare(
        self,
        transactional_id: str,
        before: Transaction,
        ended: Transaction,
        version: int,
        trigger: Trigger,
        step: Step,
    ) -> Transaction:
        """Decide the outcome of `before`, which ends as `ended`. Returns the result, already complete if no
        partition needs a marker."""
        after = ending.prepared(
            ended,
            commits=trigger is Trigger.COMMITTED,
            version=version,
            now_ms=step.now_ms,
            new_id=self._new_id,
        )
        if after.producer_epoch != before.producer_epoch:
            # As in Kafka, whoever is fenced under the rules of version 0 or 1 cannot come back.
            self._keep_last_epoch(transactional_id, before.producer_epoch if version >= 2 else NO_EPOCH)
        self._change(transactional_id, before, after, trigger, step)
        if not after.partitions:
            return self._complete(transactional_id, after, step)
        self._tell_markers(transactional_id, after, step)
        return after

    def _complete(self, transactional_id: str, transaction: Transaction, step: Step) -> Transaction:
        after = ending.completed(transaction, step.now_ms)
        self._change(transactional_id, transaction, after, Trigger.MARKED, step)
        return after

    def _forget(self, transactional_id: str, transaction: Transaction, step: Step) -> None:
        step.rows.append(to_row(transactional_id, None))
        self._put(transactional_id, None)
        step.events.append(IdExpired(transactional_id, transaction.producer_id, transaction.last_update_ms))

    def _change(
        self, transactional_id: str, before: Transaction, after: Transaction, trigger: Trigger, step: Step
    ) -> None:
        """The only way from one state to another: persist and apply."""
        if trigger not in TRANSITIONS.get((before.state, after.state), ()):
            raise BrokenInvariant(
                f"{transactional_id}: {before.state.wire_name} to {after.state.wire_name}: {trigger}"
            )
        step.rows.append(to_row(transactional_id, after))
        self._put(transactional_id, after)
        self._schedule(transactional_id, after, step.now_ms)
        step.events.append(
            StateChanged(
                transactional_id,
                before.state,
                after.state,
                trigger,
                after.producer_id,
                after.producer_epoch,
                len(after.partitions),
                after.started_ms,
            )
        )

    def _put(self, transactional_id: str, transaction: Transaction | None) -> None:
        """Apply what a record says; also used to replay the store."""
        self._unmarked.pop(transactional_id, None)
        if transaction is None:
            self.transactions.pop(transactional_id, None)
            self._last_epochs.pop(transactional_id, None)
            return
        self.transactions[transactional_id] = transaction
        if transaction.state.is_prepared:
            self._unmarked[transactional_id] = set(transaction.partitions)

    def _keep_last_epoch(self, transactional_id: str, epoch: int) -> None:
        if epoch == NO_EPOCH:
            self._last_epochs.pop(transactional_id, None)
        else:
            self._last_epochs[transactional_id] = epoch

    def _schedule(self, transactional_id: str, transaction: Transaction, now_ms: int) -> None:
        timeout = _TimerKey(_TimerKind.TIMEOUT, transactional_id)
        expiration = _TimerKey(_TimerKind.EXPIRATION, transactional_id)
        if transaction.state is TransactionState.ONGOING and transaction.timeout_ms != NEVER_MS:
            # The clock by which it began may have been ahead of this one: another broker's, or not set yet.
            started_ms = min(transaction.started_ms, now_ms)
            self.deadlines.set(timeout, started_ms + transaction.timeout_ms + 1)
        else:
            self.deadlines.cancel(timeout)
        if transaction.state.is_idle:
            self.deadlines.set(expiration, transaction.last_update_ms + self.config.id_expiration_ms)
        else:
            self.deadlines.cancel(expiration)

    def _tell_markers(self, transactional_id: str, transaction: Transaction, step: Step) -> None:
        step.events.append(
            MarkersDue(
                transactional_id,
                transaction.producer_id,
                transaction.producer_epoch,
                transaction.state is TransactionState.PREPARE_COMMIT,
                frozenset(self._unmarked[transactional_id]),
                transaction.client_version,
            )
        )


def unknown_states(names: Collection[str]) -> list[str]:
    """The names in a filter that are not states, which ListTransactions returns in its answer. A filter with
    only such names lets nothing pass."""
    return [name for name in names if name not in BY_WIRE_NAME and name not in _PASSING_IN_KAFKA]


def _passes(transaction: Transaction, request: ListTransactionsRequest, now_ms: int) -> bool:
    return (
        (not request.state_filters or transaction.state.wire_name in request.state_filters)
        and (not request.producer_id_filters or transaction.producer_id in request.producer_id_filters)
        and (request.duration_filter < 0 or now_ms - transaction.started_ms > request.duration_filter)
    )
