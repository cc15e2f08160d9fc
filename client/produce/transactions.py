"""What a transactional producer and its coordinator agree on (KIP-98): the producer's identity, the
partitions and groups of a transaction, and how it ends. `Transaction` is the public interface.

A transaction ends in its own task, whatever becomes of the call that waits for it: the same EndTxn is sent
until a coordinator answers, so that nothing is committed twice, and the next transaction waits for the
answer. Before an abort is sent, everything in flight to the partitions is answered or given up: a record that
arrived after the abort would begin a transaction that nobody ends.

Both protocols are supported. If the cluster has finalized transaction.version 2 (KIP-890), partitions and
groups join by being written to, and every end brings a new epoch; otherwise they are announced first, and
after a failure InitProducerId raises the epoch (KIP-360).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import Enum, auto
from functools import partial
from typing import Final, Protocol

from muster.client.errors import (
    ClientError,
    Closed,
    ConcurrentUse,
    NoTransaction,
    ProducerFenced,
    TimedOut,
    TransactionAborted,
    again,
)
from muster.client.group.group_metadata import GroupMetadata
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.client.partitions import OffsetAndMetadata, TopicPartition
from muster.client.produce.accumulator import Accumulator, Batch, PartitionQueue
from muster.client.produce.sender import STILL_ENDING_S, Sender
from muster.client.produce.settings import ProducerSettings
from muster.client.produce.transaction_coordinator import Refused, TransactionCoordinator
from muster.client.produce.transaction_errors import ENDED_BY_OTHERS, MEMBER_IS_BEHIND, Fate, fate_of
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError

log = logging.getLogger(__name__)

_EPOCH_S: Final = 5.0
"""How long a member whose offsets were refused for its epoch may take to learn the next one (KIP-848)."""


class Offsets(Protocol):
    """Offsets to commit, and who commits them."""

    async def offsets_for_transaction(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None, until: float, since: float
    ) -> tuple[GroupMetadata, Mapping[TopicPartition, OffsetAndMetadata]]:
        """The current values, for a transaction of what was returned since this time of the loop's. Raises
        TransactionAborted if they must not be committed."""

    def transaction_refused(self, code: ErrorCode, group: GroupMetadata) -> bool:
        """The group refused the offsets because it has changed. Returns whether it may soon accept them from
        the member."""


class State(Enum):
    """The state of the producer's transaction."""

    NONE = auto()
    BEGINNING = auto()
    OPEN = auto()
    FAILED = auto()
    """It can only be aborted."""
    COMMITTING = auto()
    """Its last records are in flight."""
    ENDING = auto()
    """The coordinator is being asked to end it."""
    DEAD = auto()
    """No further transaction is possible."""


class _UnderWay:
    """The calls of commit_offsets under way in one transaction. They may outlive it."""

    def __init__(self) -> None:
        self.count = 0


class Transactions:
    """The transactions of one producer, one at a time; each is named by any object, its `token`. `on_stop` is
    called when no more records may be added, `on_death` when no further transaction is possible."""

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        sender: Sender,
        settings: ProducerSettings,
        *,
        on_stop: Callable[[], None],
        on_death: Callable[[ClientError | KafkaError], None],
    ) -> None:
        assert settings.transactional_id is not None
        self.transactional_id = settings.transactional_id
        self.state = State.NONE
        self.current: object = None
        """The token of the current transaction, if any."""
        self._failure: Exception | None = None  # why it must be aborted
        self._coordinator = TransactionCoordinator(cluster, settings.transactional_id, settings)
        self._accumulator = accumulator
        self._sender = sender
        self._settings = settings
        self._on_stop = on_stop
        self._on_death = on_death
        self._loop = asyncio.get_running_loop()
        self._aborted_at = -math.inf
        """When the last abort began, by the loop's clock: what was returned before went with it."""
        self._begun = False
        """Whether the coordinator may know of the transaction."""
        self._renew = False
        """Whether a new epoch must be requested before the next transaction."""
        self._groups: set[str] = set()
        self._offsets = _UnderWay()
        """Those of the current transaction."""
        self._to_join: set[PartitionQueue] = set()
        """The partitions to announce, including those whose announcement is not answered yet."""
        self._joining: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._commits = False
        """Whether it is being ended with a commit."""
        self._waiters = 0
        self._ended_token: object = None
        """The token of the transaction that `_ending` ends."""
        self._unheard: tuple[object, TransactionAborted] | None = None
        """The last transaction that was aborted though its commit, whose caller had gone away, did not say
        so: its token, and why."""
        self._is_news = False
        """Whether nobody was told of it yet."""
        self._fatal: ClientError | KafkaError | None = None
        self._limit_s = settings.max_block_ms / 1000

    @property
    def produce_version_max(self) -> int:
        return self._coordinator.produce_version_max

    # --- life cycle -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take the transactional id: its previous owner is fenced, and what it left open is aborted. Raises
        TimedOut after max_block_ms, ProducerFenced if another producer takes it meanwhile, KafkaError."""
        try:
            await self._coordinator.identify(deadline(self._limit_s), "its producer was not started")
        except Refused as refused:
            if refused.fate is not Fate.FENCED:
                raise refused.error from None
            raise ProducerFenced(
                f"another producer has started with transactional_id {self.transactional_id} meanwhile"
            ) from refused.error
        self._accumulator.identified(self._coordinator.identity)

    async def begin(self, token: object) -> None:
        """Begin a transaction, once the previous one has ended. Raises ConcurrentUse, TimedOut after
        max_block_ms, TransactionAborted if the previous commit, whose caller did not wait for the outcome,
        has failed."""
        until = deadline(self._limit_s)
        while self._ending is not None and self.state is State.ENDING:
            await self._until_ended(self._ending, until, mine=False)
        self._raise_if_dead()
        if self.state is not State.NONE:
            raise ConcurrentUse(
                f"a transaction of {self.transactional_id} is open already: a producer has one at a time"
            )
        if self._unheard is not None and self._is_news:
            self._is_news = False
            raise again(self._unheard[1]) from self._unheard[1].__cause__
        if self._unheard is not None and self._unheard[0] is token:
            self._unheard = None  # it is another one now
        self.current, self.state = token, State.BEGINNING
        try:
            joins_by_writing = self._coordinator.supports_joining_by_writing
            if joins_by_writing and not self._coordinator.joins_by_writing and self._numbered:
                # The two protocols do not share epochs.
                await self._coordinator.identify(until, "the transaction did not begin")
        except Refused as refused:
            raise self._die(refused) from refused.error
        except BaseException:
            self.current, self.state = None, State.NONE
            raise
        self._coordinator.joins_by_writing = joins_by_writing
        self._accumulator.identified(self._coordinator.identity)
        self._accumulator.joined = None if joins_by_writing else set()
        self.state, self._offsets = State.OPEN, _UnderWay()

    @property
    def _numbered(self) -> bool:
        """Whether batches were numbered with this identity."""
        return any(
            queue.identity == self._coordinator.identity
            for topic in self._accumulator.topics.values()
            for queue in topic.queues
        )

    def check(self, token: object) -> None:
        """Raise TransactionAborted or NoTransaction unless records and offsets may be added to this
        transaction (None: to any)."""
        if self.state is State.OPEN and (token is None or token is self.current):
            return
        self._raise_if_dead()
        if self._failure is not None and (token is None or token is self.current):
            raise TransactionAborted(
                f"the transaction has failed and can only be aborted: {self._failure}"
            ) from self._failure
        if token is self.current and self.state is State.COMMITTING:
            raise NoTransaction("the transaction is being committed already")
        if token is not None:
            raise NoTransaction("the transaction is over, or has not begun; begin another")
        raise NoTransaction(
            "a record of a producer with a transactional_id is part of a transaction:"
            " `async with producer.transaction() as transaction`, and send it within"
        )

    async def commit(self, token: object) -> None:
        """Send all remaining records, and commit. Raises TransactionAborted if a record is not written or the
        coordinator does not commit; TimedOut if it does not answer within max_block_ms. If cancelled while
        records are sent, the transaction is aborted; later, the coordinator is still asked to commit."""
        if token is self.current and self.state is State.OPEN:
            if self._offsets.count:
                self._fail(ClientError("it was to be committed while a commit_offsets was under way"))
            else:
                self.state = State.COMMITTING
                self._on_stop()
                try:
                    await self._sender.flush(deadline(self._settings.delivery_timeout_ms / 1000))
                except (ClientError, KafkaError) as error:
                    self._fail(error)
                except BaseException:
                    if self.state is State.COMMITTING:
                        self._fail(ClientError("its commit was cancelled while records were being sent"))
                        self._has_news(token, self._aborted_by_failure())
                        self._end(commit=False)
                    raise
                if self.state is State.COMMITTING and self._failure is None:
                    self._end(commit=True)
        elif token is not self.current or self.state not in (State.FAILED, State.ENDING):
            if token is not self.current and (unheard := self._heard(token)) is not None:
                raise again(unheard) from unheard.__cause__
            self.check(token)  # raises
        self._raise_if_dead()
        if self.state is State.ENDING and self._commits and self._ending is not None:
            await self._until_ended(self._ending, deadline(self._limit_s))
            return
        aborted = self._aborted_by_failure()
        try:
            with suppress(TimedOut, NoTransaction):
                await self.abort(token)
        except asyncio.CancelledError:
            self._has_news(token, aborted)
            raise
        raise aborted

    def _aborted_by_failure(self) -> TransactionAborted:
        failure = self._failure or ClientError("it was aborted meanwhile")
        aborted = TransactionAborted(f"the transaction was aborted: {failure}")
        aborted.__cause__ = failure
        return aborted

    def _has_news(self, token: object, aborted: TransactionAborted) -> None:
        """This transaction is aborted, and the caller of its commit has gone away."""
        self._unheard, self._is_news = (token, aborted), True

    def _heard(self, token: object) -> TransactionAborted | None:
        """Why this transaction was aborted, if its commit did not say so. It is no news any more."""
        if self._unheard is None or self._unheard[0] is not token:
            return None
        self._is_news = False
        return self._unheard[1]

    async def abort(self, token: object, limit_s: float | None = None) -> None:
        """Drop unsent records, and abort. Raises TimedOut if the coordinator does not confirm it within
        max_block_ms, or `limit_s`; the producer keeps asking, and the next transaction waits for the answer.
        Raises NoTransaction if the coordinator has already been asked to commit; does nothing if it is known
        to be aborted instead."""
        self._raise_if_dead()
        if self._heard(token) is not None and token is not self.current:
            return
        if token is not self.current or self.state in (State.NONE, State.BEGINNING):
            raise NoTransaction("the transaction is over, or has not begun")
        if self.state is State.ENDING and self._commits:
            raise NoTransaction(
                "the transaction is being committed and cannot be aborted any more; the next one waits for"
                " the outcome"
            )
        ending = self._ending if self.state is State.ENDING else None
        if ending is None:
            ending = self._end(commit=False)
        await self._until_ended(ending, deadline(self._limit_s if limit_s is None else limit_s))

    async def close(self, limit_s: float) -> None:
        """Abort an open transaction, or wait for one that is ending, for up to `limit_s`. No further
        transaction is possible."""
        if self.state in (State.OPEN, State.FAILED, State.COMMITTING):
            self._end(commit=False)
        ending = self._ending
        try:
            if ending is not None and self.state is State.ENDING:
                await asyncio.wait([ending], timeout=max(0.0, limit_s))
        finally:
            if self._fatal is None:
                self._fatal = Closed(f"the producer of {self.transactional_id} is closed")
                self.state = State.DEAD
            tasks = [task for task in (ending, self._joining) if task is not None and not task.done()]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    # --- failures -------------------------------------------------------------------------------------------

    def record_failed(self, error: Exception) -> Exception:
        """See `sender.Transactional`."""
        told = error
        if isinstance(error, KafkaError) and error.code in ENDED_BY_OTHERS:
            error = self._ended_by_others(error)
            told = TransactionAborted(f"the transaction can only be aborted: {error}")
            told.__cause__ = error
        if self.state in (State.OPEN, State.COMMITTING, State.FAILED):
            fate = fate_of(ApiKey.PRODUCE, error.code) if isinstance(error, KafkaError) else Fate.ABORT
            if isinstance(error, KafkaError) and fate in (Fate.FENCED, Fate.FATAL):
                self._die(Refused(fate, error))
            else:
                self._fail(error)
        return told

    def _ended_by_others(self, error: KafkaError) -> KafkaError:
        """The refusal of records or offsets after the transaction's end, with what that means."""
        return KafkaError(
            error.code,
            "the transaction took longer than transaction_timeout_ms"
            f" ({self._settings.transaction_timeout_ms}), or another producer has started with"
            f" transactional_id {self.transactional_id}: {error.why}",
        )

    def _fail(self, error: BaseException) -> None:
        """Mark the transaction as failed: it can only be aborted."""
        if self._failure is not None or self.state not in (State.OPEN, State.COMMITTING):
            return
        self._failure = error if isinstance(error, Exception) else ClientError(str(error))
        if self.state is State.OPEN:
            self.state = State.FAILED
        self._on_stop()
        # Nothing more is sent, not even in a new epoch.
        self._accumulator.forget_identity(self._coordinator.identity)
        self._loop.call_soon(self._drop)  # the reporter may be in the middle of its batches

    def _drop(self) -> None:
        why = self._fatal or self._failure
        if why is not None and self.state is not State.NONE:
            self._sender.drop(lambda batch: _dropped(batch, why))

    def _die(self, why: Refused | ClientError | KafkaError) -> ClientError | KafkaError:
        """No further transaction is possible. Returns the error that says so."""
        if self._fatal is not None:
            return self._fatal
        error: ClientError | KafkaError
        if not isinstance(why, Refused):
            error = why
        elif why.fate is Fate.FENCED:
            error = ProducerFenced(
                f"another producer has started with transactional_id {self.transactional_id}, or the"
                " transaction took longer than transaction_timeout_ms"
                f" ({self._settings.transaction_timeout_ms}): {why.error.why}; close this producer, and start"
                " another if it is to take over"
            )
            error.__cause__ = why.error
        else:
            error = KafkaError(why.error.code, f"{why.error.why}; close this producer, and start another")
        self._fatal, self.state = error, State.DEAD
        self._on_death(error)
        self._accumulator.forget_identity(self._coordinator.identity)
        self._loop.call_soon(self._drop)
        return error

    def _raise_if_dead(self) -> None:
        if self._fatal is not None:
            raise again(self._fatal) from self._fatal.__cause__

    # --- ending ---------------------------------------------------------------------------------------------

    def _end(self, *, commit: bool) -> asyncio.Task[None]:
        self.state, self._commits, self._ended_token = State.ENDING, commit, self.current
        if not commit:  # what a commit takes, its source has been told
            self._aborted_at = deadline(0)
        self._on_stop()
        self._ending = asyncio.create_task(
            self._run_end(commit=commit), name=f"end of a transaction of {self.transactional_id}"
        )
        self._ending.add_done_callback(self._ended)
        return self._ending

    async def _run_end(self, *, commit: bool) -> None:
        aborted: Exception | None = None
        cut_off = False
        try:
            if not commit:
                why = self._failure or ClientError("it was aborted")
                self._sender.drop(lambda batch: _dropped(batch, why))
                cut_off = await self._end_joining()
                await self._sender.quiet()
            if cut_off or self._failure is not None or self._offsets.count or self._accumulator.has_gaps:
                self._renew = not self._coordinator.joins_by_writing
            if self._begun:
                aborted = await self._end_at_coordinator(commit=commit)
            if self._renew:
                await self._coordinator.identify(math.inf, "")
        except Refused as refused:
            raise self._die(refused) from refused.error
        except (ClientError, KafkaError) as error:  # permanent: others are retried until they pass
            raise self._die(error) from error.__cause__
        self._accumulator.identified(self._coordinator.identity)
        self._groups.clear()
        self._to_join.clear()
        self._begun = self._renew = False
        self._failure = self.current = None
        self.state = State.NONE
        if aborted is not None:
            told = TransactionAborted(f"the transaction was aborted: {aborted}")
            told.__cause__ = aborted
            if not self._waiters:
                self._ended_unheard(told)
            raise told

    async def _end_at_coordinator(self, *, commit: bool) -> Exception | None:
        """Ask the coordinator to end it. Returns why it was aborted instead of committed, if so."""
        try:
            await self._coordinator.end(commit=commit)
        except Refused as refused:
            if refused.fate is Fate.GONE:
                if commit and self._coordinator.joins_by_writing:
                    # A new coordinator gives the next epoch, too.
                    await self._end_at_coordinator(commit=False)
                else:
                    self._renew = True
                return _timed_out(refused.error, self._settings) if commit else None
            if refused.fate is Fate.ABORT and commit:
                await self._end_at_coordinator(commit=False)
                return refused.error
            raise
        return None

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        if not isinstance(error, TransactionAborted) and error is not self._fatal:
            log.error("the end of a transaction failed; this is a defect of the client", exc_info=error)
            self._die(ClientError(f"the end of a transaction failed with {type(error).__name__}: {error}"))

    def _ended_unheard(self, aborted: TransactionAborted) -> None:
        """It was to be committed, but is aborted, and nobody waits for the outcome any more."""
        log.warning("%s: %s", self.transactional_id, aborted)
        self._has_news(self._ended_token, aborted)

    async def _until_ended(self, ending: asyncio.Task[None], until: float, *, mine: bool = True) -> None:
        """Wait for the transaction to end. Raises TimedOut, Closed if the producer was closed first, and, if
        `mine`, whatever ending it raised."""
        self._waiters += mine
        try:
            await asyncio.wait([ending], timeout=max(0.0, until - deadline(0)))
            if not ending.done():
                why = _because(self._coordinator.last_error)
                raise TimedOut(
                    f"whether the transaction of {self.transactional_id} has ended, its coordinator did not"
                    f" say within max_block_ms ({self._settings.max_block_ms}){why}; the producer goes on"
                    " asking, and the next transaction waits for the answer"
                )
        except asyncio.CancelledError:
            if mine and self._waiters == 1 and ending.done() and not ending.cancelled():
                told = ending.exception()
                if isinstance(told, TransactionAborted):  # this caller was to raise it
                    self._ended_unheard(told)
            raise
        finally:
            self._waiters -= mine
        if ending.cancelled():
            what = "it may be committed or not" if self._commits else "the broker aborts it in time"
            raise Closed(
                f"the producer was closed before the coordinator said that the transaction of"
                f" {self.transactional_id} has ended: {what}"
            )
        if mine:
            ending.result()

    # --- contents -------------------------------------------------------------------------------------------

    def sends(self) -> None:
        """Records are being sent."""
        self._begun = True

    def join(self, partitions: Iterable[PartitionQueue]) -> None:
        """Announce these partitions, which have records to send."""
        self._to_join.update(partitions)
        if self._joining is None or self._joining.done():
            self._joining = asyncio.create_task(
                self._join(), name=f"partitions of a transaction of {self.transactional_id}"
            )
            self._joining.add_done_callback(self._joined)

    async def _join(self) -> None:
        while self._to_join and self.state in (State.OPEN, State.COMMITTING):
            queues = self._to_join.copy()
            self._begun = True
            try:  # waiting records have their own timeout, which ends the transaction
                await self._coordinator.add_partitions(queue.where for queue in queues)
            except Refused as refused:
                if refused.fate in (Fate.FENCED, Fate.FATAL):
                    self._die(refused)
                else:
                    self._fail(refused.error)
                return
            except (ClientError, KafkaError) as error:
                self._fail(error)
                return
            if self._accumulator.joined is not None:
                self._accumulator.joined |= queues
            self._to_join -= queues
            self._sender.wake()

    def _joined(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("announcing partitions failed; this is a defect of the client", exc_info=error)
            self._die(ClientError(f"announcing partitions failed with {type(error).__name__}: {error}"))

    async def _end_joining(self) -> bool:
        """Stop announcing partitions. Returns whether an announcement was cut off: it may still arrive after
        the abort."""
        if self._joining is None:
            return False
        cut_off = self._joining.cancel()
        await asyncio.wait([self._joining])
        return cut_off

    def _check_same(self, token: object, among: _UnderWay) -> None:
        """Like `check`, for one of these calls: also raise NoTransaction if theirs is over, and another one
        with the same token is open."""
        if among is not self._offsets:
            self._raise_if_dead()
            raise NoTransaction("the transaction is over; its offsets are not committed with another")
        self.check(token)

    async def commit_offsets(
        self,
        token: object,
        source: Offsets,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None,
    ) -> None:
        """Commit these offsets with the transaction. Raises TransactionAborted if the group refuses them, or
        does not answer within max_block_ms. After any error but NoTransaction, or if it is cancelled, the
        transaction can only be aborted: it may or may not contain the offsets."""
        self.check(token)
        until = deadline(self._limit_s)
        mine = self._offsets
        mine.count += 1
        try:
            await self._commit_offsets(token, mine, source, offsets, until)
        except Refused as refused:
            is_open = mine is self._offsets and self.state in (State.OPEN, State.FAILED)
            if is_open and refused.fate in (Fate.FENCED, Fate.FATAL):
                raise self._die(refused) from refused.error
            why = refused.error
            if why.code in ENDED_BY_OTHERS:
                why = self._ended_by_others(why)
            raise self._offsets_failed(mine, why) from why
        except TransactionAborted as error:
            self._offsets_failed(mine, error)
            raise
        except (ClientError, KafkaError) as error:
            self._raise_if_dead()
            raise self._offsets_failed(mine, error) from error
        except BaseException as error:
            self._offsets_failed(
                mine, ClientError("a commit_offsets was cancelled") if _is_exit(error) else error
            )
            raise
        finally:
            mine.count -= 1

    def _offsets_failed(self, among: _UnderWay, error: BaseException) -> TransactionAborted:
        """Fail the transaction of these calls, unless it is over. Returns the error that says so."""
        if among is self._offsets:
            self._fail(error)
        return TransactionAborted(f"the transaction can only be aborted: {error}")

    async def _commit_offsets(
        self,
        token: object,
        among: _UnderWay,
        source: Offsets,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None,
        until: float,
    ) -> None:
        behind_until = math.inf
        before: GroupMetadata | None = None
        refused: Refused | None = None
        while True:
            group, places = await source.offsets_for_transaction(offsets, until, self._aborted_at)
            offsets = places  # what is returned while the group is asked belongs to another call
            self._check_same(token, among)
            if not places:
                return
            if refused is None or group != before:
                try:
                    await self._tell_offsets(token, among, group, places, until)
                    return
                except Refused as error:
                    if error.error.code not in MEMBER_IS_BEHIND:
                        raise
                    before, refused = group, error
                if not source.transaction_refused(refused.error.code, group):
                    raise refused
                behind_until = min(until, behind_until, deadline(_EPOCH_S))
            elif deadline(0) >= behind_until:
                raise refused
            await asyncio.sleep(STILL_ENDING_S)

    async def _tell_offsets(
        self,
        token: object,
        among: _UnderWay,
        group: GroupMetadata,
        places: Mapping[TopicPartition, OffsetAndMetadata],
        until: float,
    ) -> None:
        what = f"the offsets of group {group.group_id} did not become part of the transaction"
        check = partial(self.check, token)
        self._begun = True
        if not self._coordinator.joins_by_writing and group.group_id not in self._groups:
            await self._coordinator.add_group(group.group_id, until, what, check)
            self._check_same(token, among)
            self._groups.add(group.group_id)
        await self._coordinator.commit_offsets(group, places, until, what, check)


def _dropped(batch: Batch, why: Exception) -> Exception:
    return TransactionAborted(f"{batch.where}: the record's transaction is aborted: {why}")


def _timed_out(error: KafkaError, settings: ProducerSettings) -> KafkaError:
    return KafkaError(
        error.code,
        f"the coordinator has no such transaction to commit any more: it takes none that is longer than"
        f" transaction_timeout_ms ({settings.transaction_timeout_ms})",
    )


def _because(error: Exception | None) -> str:
    return "" if error is None else f" ({error})"


def _is_exit(error: BaseException) -> bool:
    return not isinstance(error, Exception)
