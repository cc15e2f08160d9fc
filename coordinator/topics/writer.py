"""Takes a broker's appends to their logs: gathered into turns, in each partition in the order they came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from muster.coordinator.topics.guards import Guard
from muster.coordinator.topics.log import Appended, PartitionLog
from muster.coordinator.topics.validation import Laborious, Validated, validate
from muster.coordinator.transactions.marker import Marker
from muster.protocol.control_batch import CONTROL_BATCH_BYTES_MAX
from muster.protocol.errors import ErrorCode, KafkaError

_TURN_BYTES_MAX: Final = 16 << 20
"""Bytes that one turn takes on, so that a burst does not delay the first answers."""

_T = TypeVar("_T")
P = TypeVar("P", bound=Hashable)


class Run(Protocol):
    """Runs a call in an executor."""

    def __call__(self, call: Callable[..., _T], *args: object) -> asyncio.Future[_T]: ...


class _Write(NamedTuple, Generic[P]):
    """A waiting append."""

    partition: P
    records: bytes
    zstd_allowed: bool
    transactional: bool
    done: asyncio.Future[Appended]
    validated: Validated | None = None  # in advance, since it was laborious
    guard: Guard | None = None  # under which it may open a transaction
    marker: Marker | None = None  # in place of records

    @property
    def size(self) -> int:
        """Approximate size in bytes."""
        return len(self.records) or CONTROL_BATCH_BYTES_MAX


class Writer(Generic[P]):
    """Takes appends on the loop and writes them in an executor, one turn at a time: everything that came
    while the last turn ran goes into the next, and all logs of a turn are made durable at once.

    A batch that takes long to validate is held, and validated in another executor; so is whatever follows it
    in its partition, which must not overtake it. Other partitions do not wait for this.
    """

    def __init__(
        self,
        *,
        opened: Callable[[P], PartitionLog],
        commit: Callable[[Sequence[PartitionLog]], Sequence[KafkaError | None]],
        settled: Callable[[P, Appended | BaseException], None],
        refused: Callable[[P, bytes, KafkaError], None],
        date_ms: Callable[[], int],
        write: Run,
        validate: Run,
        queue_bytes_max: int,
    ) -> None:
        """`opened` gives a partition's log and `commit` makes what was written to several durable, both in an
        executor. `settled` is called with each append's outcome before its waiter gets it. `refused` is
        called for each refused append before any that follows is looked at, on the loop or in an executor.
        `write` and `validate` run the two kinds of work.
        """
        self._opened = opened
        self._commit = commit
        self._settled = settled
        self._refused = refused
        self._date_ms = date_ms
        self._write_in_executor = write
        self._validate_in_executor = validate
        self._queue_bytes_max = queue_bytes_max
        self._queue: list[_Write[P]] = []
        self._held: dict[P, list[_Write[P]]] = {}  # the first of each partition is being validated
        self._writing = False
        self._due = False  # a turn begins as soon as the loop comes round
        self._bytes = 0  # of all appends that are not done
        self._held_bytes = 0

    @property
    def busy(self) -> bool:
        """Whether any append is not done yet."""
        return self._bytes > 0

    def append(
        self, partition: P, records: bytes, *, zstd_allowed: bool, transactional: bool, guard: Guard | None
    ) -> asyncio.Future[Appended]:
        """See `Partitions.append`. Raises REQUEST_TIMED_OUT when `queue_bytes_max` bytes wait already."""
        done: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._take(_Write(partition, records, zstd_allowed, transactional, done, guard=guard))
        return done

    def append_marker(self, partition: P, marker: Marker) -> asyncio.Future[Appended]:
        """See `Partitions.append_marker`; raises as `append`."""
        done: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._take(_Write(partition, b"", False, True, done, marker=marker))
        return done

    def _take(self, write: _Write[P]) -> None:
        if self._bytes and self._bytes + write.size > self._queue_bytes_max:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, f"{self._bytes} bytes are already waiting to be written"
            )
        self._bytes += write.size
        self._enqueue(write)
        if not self._writing and not self._due:
            # Appends that other connections bring in this turn of the loop go along: a trip to a thread and
            # back costs as much as a small request.
            self._due = True
            write.done.get_loop().call_soon(self._begin_turn)

    def _enqueue(self, write: _Write[P]) -> None:
        if write.partition in self._held:
            self._hold(write)
        else:
            self._queue.append(write)

    # --- turns ------------------------------------------------------------------------------------

    def _begin_turn(self) -> None:
        self._due = False
        if self._writing or not self._queue:
            return
        taken, size = 0, 0
        while taken < len(self._queue) and (size < _TURN_BYTES_MAX or not taken):
            size += self._queue[taken].size
            taken += 1
        writes, self._queue = self._queue[:taken], self._queue[taken:]
        self._writing = True
        turn = self._write_in_executor(self._write, writes)
        turn.add_done_callback(lambda turn: self._end_turn(writes, turn))

    def _write(self, writes: Sequence[_Write[P]]) -> list[Appended | Exception]:
        """Append all, then make the logs durable (in the executor). A laborious batch is left out, like what
        follows it in its partition."""
        outcomes: list[Appended | Exception] = []
        left: set[P] = set()
        logs: dict[PartitionLog, list[int]] = {}
        log_of: dict[P, PartitionLog] = {}
        for number, write in enumerate(writes):
            try:
                if write.partition in left:
                    raise Laborious
                log = self._opened(write.partition)
                if log_of.setdefault(write.partition, log) is not log:
                    # What this turn appended to the partition so far is lost, and must come first.
                    raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log.name} was reopened meanwhile")
                if write.marker is not None:
                    outcomes.append(log.write_marker(write.marker))
                else:
                    validated = write.validated or self._validate(write, at_once=True)
                    outcomes.append(log.write(validated, write.guard))
                logs.setdefault(log, []).append(number)
            except Laborious as laborious:
                left.add(write.partition)
                outcomes.append(laborious)
            except Exception as error:
                if isinstance(error, KafkaError):
                    self._refused(write.partition, write.records, error)  # before what follows it here
                outcomes.append(error)
        refusals = self._commit(list(logs))
        for numbers, refusal in zip(logs.values(), refusals, strict=True):
            if refusal is not None:
                for number in numbers:
                    outcomes[number] = refusal
        return outcomes

    def _end_turn(
        self, writes: Sequence[_Write[P]], turn: asyncio.Future[list[Appended | Exception]]
    ) -> None:
        self._writing = False
        broken = asyncio.CancelledError() if turn.cancelled() else turn.exception()
        outcomes: Sequence[Appended | BaseException]
        outcomes = turn.result() if broken is None else [broken] * len(writes)
        for write, outcome in zip(writes, outcomes, strict=True):
            if isinstance(outcome, Laborious):
                self._hold(write)
            else:
                self._settle(write, outcome)
        if self._held:
            queued, self._queue = self._queue, []
            for write in queued:
                self._enqueue(write)
        self._begin_turn()

    def _settle(self, write: _Write[P], outcome: Appended | BaseException) -> None:
        self._bytes -= write.size
        self._settled(write.partition, outcome)
        if isinstance(outcome, KafkaError):
            self._refused(write.partition, write.records, outcome)
        if write.done.done():
            return  # the caller is gone
        if isinstance(outcome, Appended):
            write.done.set_result(outcome)
        else:
            refuse(write.done, outcome)

    # --- what takes long to validate --------------------------------------------------------------

    def _hold(self, write: _Write[P]) -> None:
        """Hold an append back until the held ones of its partition have been validated.

        Held appends may use half of the queue: the rest is for those that need not be held.
        """
        if write.marker is not None and write.partition not in self._held:
            self._queue.append(write)  # what it came behind was refused; there is nothing to validate
            return
        size = write.size
        if self._held_bytes and self._held_bytes + size > self._queue_bytes_max // 2:
            why = f"{self._held_bytes} bytes are already waiting to be validated"
            self._settle(write, KafkaError(ErrorCode.REQUEST_TIMED_OUT, why))
            return
        self._held_bytes += size
        held = self._held.setdefault(write.partition, [])
        held.append(write)
        if len(held) == 1:
            turn = self._validate_in_executor(self._validate, write)
            turn.add_done_callback(lambda turn: self._release(write.partition, turn))

    def _validate(self, write: _Write[P], *, at_once: bool = False) -> Validated:
        """In an executor."""
        config = self._opened(write.partition).config
        return validate(
            write.records,
            config,
            self._date_ms(),
            zstd_allowed=write.zstd_allowed,
            transactional=write.transactional,
            at_once=at_once,
        )

    def _release(self, partition: P, turn: asyncio.Future[Validated]) -> None:
        """The first held append was validated: it goes to its log, and those behind it may be tried."""
        held = self._held.pop(partition)
        self._held_bytes -= sum(write.size for write in held)
        broken = asyncio.CancelledError() if turn.cancelled() else turn.exception()
        if broken is None:
            self._queue.append(held[0]._replace(validated=turn.result()))
        else:
            self._settle(held[0], broken)
        self._queue += held[1:]
        self._begin_turn()


def refuse(done: asyncio.Future[Appended], refusal: BaseException) -> None:
    done.set_exception(refusal)
    done.exception()  # marked as retrieved: the caller may be gone
