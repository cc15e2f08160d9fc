"""Runs one shard: an inbox, a timer, and the rule that nothing is visible before it is durable.

The machine is stepped one request at a time, in the order of arrival. A step's rows are handed to the
broker's appender and the machine steps on while they are in flight; what a step makes visible (replies,
events) is held back as promise 1 says:

- a step with rows waits for them;
- a step that read hard state waits for the rows of every step before it;
- any other step's replies go out at once (a heartbeat never waits for the disk), while its events still take
  their turn, since a journal is read in order.

A step's journal entries are stored with its records; those of a step without records follow soon, and nothing
waits for them.

A reply never overtakes another to the same caller: a caller has one ticket per request and each is answered
once, and the server takes a connection's requests one at a time.

A host stops for good when it fails (`FENCED`, a store that failed, an exception in the core): everything
unanswered gets NOT_COORDINATOR (COORDINATOR_NOT_AVAILABLE if the store was busy or full), nothing is rolled
back, and the host's owner makes a new one from the store.
While the store is full, requests that would write are refused: before they are stepped, or by the machine
before it has changed anything but timers (`Traits.allows_for_full`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, Protocol

from muster.coordinator.base.answers import LATER, Answered
from muster.coordinator.base.clock import Clock, Timer
from muster.coordinator.base.log import Logger
from muster.coordinator.base.step import Reply, RequestContext, Step, Ticket
from muster.coordinator.journal.entries import Entry
from muster.coordinator.runtime.appender import Appender
from muster.coordinator.runtime.machine import NO_TRAITS, M, MachineKind, Notice, Operation
from muster.coordinator.runtime.recorder import Recorder
from muster.coordinator.storage.store import (
    JournalRow,
    Lease,
    Outcome,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
)
from muster.protocol.errors import ErrorCode, KafkaError

UNWRITTEN: Final = (StoreBusy, StoreFull)
"""What the store raises when nothing was written: this is still the coordinator."""

_STEPS_MAX = 500  # per turn, so that other shards and the lease get a look in
_ANSWERS_MAX = 100
"""Per turn, of one step."""
_ADVANCES_MAX = 100  # per turn: a deadline still due after that many will never pass


class HostState(Enum):
    """The life of a host; it only moves forward."""

    LOADING = "loading"
    ACTIVE = "active"
    CLOSED = "closed"
    """Disowned: no more steps; what was stepped before is still written and answered."""
    FAILED = "failed"


# Looking up a member of an Enum runs Python code, and every request needs these.
_LOADING: Final = HostState.LOADING
_ACTIVE: Final = HostState.ACTIVE
_FAILED: Final = HostState.FAILED


class Limits(NamedTuple):
    """Bounds of one shard, and what happens at them."""

    backlog_max: int = 10_000
    """Requests not stepped yet plus steps waiting for the store; beyond that COORDINATOR_NOT_AVAILABLE."""
    write_timeout_ms: int = 5_000
    """offsets.commit.timeout.ms: a reply waits this long for the store, then becomes
    COORDINATOR_NOT_AVAILABLE (Kafka's 7 as clients see it). The step stands and is written anyway."""
    parked_max_ms: int = 3_600_000
    """A request the core has parked (JoinGroup, SyncGroup) is answered COORDINATOR_NOT_AVAILABLE after this
    time. The core has its own, shorter timers for them; this one catches what they do not cover."""


class HostOwner(Protocol):
    """The creator of the host, which reports to it."""

    def serving(self, lease: Lease) -> bool:
        """Whether the lease is certainly still this broker's."""

    def failed(self, host: Any, why: Exception | None) -> None:
        """The host has stopped. None: its lease is lost (a write was fenced, or the term has expired);
        StoreBusy and StoreFull: the store is unchanged.
        """

    def unloaded(self) -> None:
        """The host is giving up a non-empty shard."""

    def observe(self, lease: Lease, events: Sequence[Any]) -> None:
        """Take the events of durable steps, in step order."""


class _Call(NamedTuple):
    operation: Operation
    request: Any
    context: RequestContext
    ticket: Ticket


class _Held:
    """What a step makes visible once everything up to step `needs` is durable."""

    __slots__ = ("entries", "events", "needs", "replies", "since_ms")

    def __init__(
        self,
        needs: int,
        since_ms: int,
        replies: list[Reply],
        events: list[Any],
        entries: Sequence[Entry] = (),
    ) -> None:
        self.needs = needs
        self.since_ms = since_ms
        self.replies = replies
        self.events = events
        self.entries = entries


class ShardHost(Generic[M]):
    """Runs the machine of one shard under one grant of its lease. Create it, then `activate` it with what was
    loaded."""

    def __init__(
        self,
        lease: Lease,
        epoch: int,
        *,
        kind: MachineKind,
        owner: HostOwner,
        appender: Appender,
        clock: Clock,
        limits: Limits,
        recorder: Recorder | None = None,
    ) -> None:
        self.lease = lease
        self.epoch = epoch
        self.state = HostState.LOADING
        self.active_since_ms: int | None = None
        self.steps = 0
        self._unwritten = False
        self.unreadable = False
        """Whether it failed because its rows are damaged, or as soon as it was loaded: loading it again will
        hardly help."""
        self._begun = False  # its first turn has gone well
        self._log = Logger(part=kind.coordinator.part)
        self._operations = kind.operations
        self._owner = owner
        self._appender = appender
        self._clock = clock
        self._limits = limits
        self._recorder = recorder
        self._loop = asyncio.get_running_loop()
        self.machine: M | None = None
        self._spare = Step(0)  # for operations that return their answer
        self._inbox: deque[_Call | Notice[M]] = deque()
        self._ahead = 0  # items of the inbox to step before the deadlines are checked
        self._turn_scheduled = False
        self._last_ticket: Ticket = 0
        self._answers: dict[Ticket, Answered] = {}
        self._parked: dict[Ticket, int] = {}  # when each must be answered, in that order
        self._held: deque[_Held] = deque()
        self._delivering: deque[Reply] = deque()  # durable replies that take several turns to send
        self._overdue = 0  # how many at the head of _held have timed out for their callers
        self._handed_over = 0  # the last step with records
        self._durable = 0  # the last such step known to be in the store
        self._timer: Timer | None = None
        self._timer_ms = 0
        self._quiet: asyncio.Event | None = None

    def __repr__(self) -> str:
        return (
            f"<ShardHost {self.lease.number} {self.state.value} epoch={self.epoch} step={self.steps} durable="
            f"{self._durable} inbox={len(self._inbox)} held={len(self._held)} parked={len(self._parked)}>"
        )

    @property
    def has_waiting(self) -> bool:
        """Whether requests or notices wait to be stepped."""
        return bool(self._inbox)

    @property
    def comes_back(self) -> bool:
        """Whether it is loading, or waiting to be loaded again by this broker under the same epoch."""
        return self.state is _LOADING or (self.state is _FAILED and self._unwritten)

    # --- from outside ---------------------------------------------------------------------------------------

    async def call(self, operation: Operation, request: Any, context: RequestContext) -> Any:
        """Return the core's answer. Raises its KafkaError, NOT_COORDINATOR, or COORDINATOR_NOT_AVAILABLE at a
        bound.

        A cancelled caller leaves nothing behind: the step is taken, its reply is dropped.
        """
        refusal = self._refused(operation)
        if refusal is not None:
            raise refusal
        self._last_ticket += 1
        ticket = self._last_ticket
        answer: asyncio.Future[object] = self._loop.create_future()
        self._answers[ticket] = partial(_resolve, answer)
        self._enqueue(_Call(operation, request, context, ticket))
        try:
            response = await answer
        finally:
            self._answers.pop(ticket, None)
            self._parked.pop(ticket, None)
        if isinstance(response, KafkaError):
            raise response
        return response

    def call_at_once(
        self, operation: Operation, request: Any, context: RequestContext, answered: Answered
    ) -> object:
        """As `call`, but without a coroutine and without waiting for the next turn of the loop. Returns the
        answer, or LATER if `answered` has been or will be called with it. KafkaErrors are returned too.

        Never overtakes requests in the inbox: if there are any, this one waits behind them.
        """
        refusal = self._refused(operation)
        if refusal is not None:
            return refusal
        if not self._inbox:
            if not self._owner.serving(self.lease):
                self.fail(None)
                return self._not_coordinator()
            if (traits := self._operations.get(operation, NO_TRAITS)).returns:
                return self._answer(operation, request, context, answered if traits.also_writes else None)
        self._last_ticket += 1
        ticket = self._last_ticket
        self._answers[ticket] = answered
        if self._inbox:
            self._enqueue(_Call(operation, request, context, ticket))
            return LATER
        step = Step(self._clock.now_ms(), context, ticket)
        try:
            self._operate(operation, request, step)
            self._finish(step)
            self._note_parked(step)
            self._arm()
        except Exception as error:
            self.fail(error)
        return LATER

    def _answer(
        self, operation: Operation, request: Any, context: RequestContext, answered: Answered | None
    ) -> object:
        """Take a step of an operation that returns its answer, usually without using a ticket or a Step of
        its own. `answered` is given for one that may also write."""
        step = self._spare
        step.now_ms, step.context = self._clock.now_ms(), context
        if answered is not None:
            self._last_ticket += 1
            step.ticket = self._last_ticket
        try:
            answer = self._operated(operation, request, step)
            if answered is None and (step.rows or step.replies):
                raise AssertionError(f"{operation!r} returns its answer, and may do nothing else")
        except Exception as error:
            self.fail(error)
            return self._not_coordinator()
        if answered is not None:
            waits = step.reads_hard_state and self._durable != self._handed_over
            if waits or step.rows or step.replies:
                return self._answer_in_turn(step, answer, answered)
            step.reads_hard_state = False
        if step.events or step.jobs:
            self._spare = Step(0)
            try:
                self._finish(step)
            except Exception as error:
                self.fail(error)
        else:
            self.steps += 1
        self._arm()
        return answer

    def _answer_in_turn(self, step: Step, answer: object, answered: Answered) -> object:
        """Finish a step that did more than return its answer, which waits for what the step wrote."""
        self._spare = Step(0)
        self._answers[step.ticket] = answered
        if answer is not None:
            step.reply(answer)
        try:
            self._finish(step)
            self._note_parked(step)
            self._arm()
        except Exception as error:
            self.fail(error)
        return LATER

    def _refused(self, operation: Operation) -> KafkaError | None:
        """Why a request is refused without being stepped, if it is."""
        if self.state is not _ACTIVE:
            return self._not_coordinator()
        if len(self._inbox) + len(self._held) >= self._limits.backlog_max:
            return KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"shard {self.lease.number} has {self._limits.backlog_max} requests waiting",
            )
        if (full := self._appender.full) is not None:
            traits = self._operations.get(operation, NO_TRAITS)
            if not (traits.reads or traits.allows_for_full):
                return self._refusal(full)
        return None

    def tell(self, notice: Notice[M]) -> None:
        """Step the core with a notice that nobody waits for; it is lost if the host is not active."""
        if self.state is HostState.ACTIVE:
            self._enqueue(notice)

    def note(self, entry: Entry) -> None:
        """Store an entry of something that happened outside the core, and show it in turn."""
        assert self._recorder is not None
        if self.state is HostState.ACTIVE and (rows := self._recorder.rows([entry])):
            self._appender.note(self, rows)
        if self.state is not HostState.ACTIVE or self._durable == self._handed_over:
            self._recorder.show([entry])
        else:
            self._held.append(_Held(self._handed_over, self._clock.now_ms(), [], [], [entry]))

    def activate(self, machine: M, taken_over: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Begin to serve with a loaded machine; `taken_over` is what the journal records about the load."""
        self.machine = machine
        self.state = HostState.ACTIVE
        self.active_since_ms = self._clock.now_ms()
        if self._recorder is not None and (contents := machine.contents()):
            data = {"epoch": self.epoch, **contents, **taken_over}
            self.note(self._recorder.of("shard_loaded", self.active_since_ms, self.lease.number, data))
        self._inbox.append(lambda machine, step: machine.loaded(step))
        self._turn()
        self._begun = self.state is HostState.ACTIVE

    def close(self, why: str) -> None:
        """Stop stepping: parked requests get NOT_COORDINATOR, steps taken before are written and answered.
        `why` is for the journal."""
        if self.state is HostState.ACTIVE:
            assert self.machine is not None
            step = Step(self._clock.now_ms())
            try:
                self.machine.unload(step)
            except Exception as error:
                self.fail(error)
                return
            self.state = HostState.CLOSED
            self._deliver(step.replies)
            # What the unload did is not durable and need not be; it just comes last.
            entries = self._last_entries(why)
            self._held.append(_Held(self._handed_over, step.now_ms, [], step.events, entries))
            kept = {reply.ticket for held in self._held for reply in held.replies}
            kept.update(reply.ticket for reply in self._delivering)
            self._refuse(kept)
            self._release()
            self._disarm()
            self._arm()
        elif self.state is HostState.LOADING:
            self.state = HostState.CLOSED

    @property
    def at_rest(self) -> bool:
        """Whether nothing is left to step before the next request or deadline, and all steps so far are
        durable and answered."""
        return not self._inbox and not self._delivering and self._durable == self._handed_over

    def _last_entries(self, why: str) -> Sequence[Entry]:
        """Have the last journal entries written before the host is settled."""
        entries = self._unloaded(why)
        rows = self._recorder.rows(entries) if entries and self._recorder is not None else []
        if rows or self._appender.holds(self):
            self.steps += 1
            self._handed_over = self.steps
            self._appender.append(self, [], self.steps, rows)
        return entries

    def _unloaded(self, why: str) -> Sequence[Entry]:
        if self.machine is None or not self.machine.contents():
            return []
        self._owner.unloaded()
        if self._recorder is None:
            return []
        data = {"epoch": self.epoch, "why": why}
        return [self._recorder.of("shard_unloaded", self._clock.now_ms(), self.lease.number, data)]

    async def settled(self) -> None:
        """Return when this host has nothing in flight to the store."""
        if self._durable < self._handed_over and self.state is not HostState.FAILED:
            self._quiet = self._quiet or asyncio.Event()
            await self._quiet.wait()

    def abandon(self) -> None:
        """Stop like a process that died: nothing more is stepped or written; callers get NOT_COORDINATOR."""
        self._stop(HostState.CLOSED)

    def appended(self, sequence: int, outcome: Outcome) -> None:
        """Called by the appender."""
        if self.state is HostState.FAILED:
            return
        if outcome is Outcome.FENCED:
            self.fail(None)
            return
        self._durable = sequence
        try:
            self._release()
        except Exception as error:
            self.fail(error)
        if self._durable == self._handed_over and self._quiet is not None:
            self._quiet.set()

    # --- stepping -------------------------------------------------------------------------------------------

    def _enqueue(self, item: _Call | Notice[M]) -> None:
        self._inbox.append(item)
        self._schedule()

    def _schedule(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Step what is in the inbox, then what is due, and set the timer for what is next.

        Requests come first: a heartbeat that arrived while the loop was busy must not lose to the timer it
        was meant to stop.
        """
        self._turn_scheduled = False
        if self.state is not HostState.ACTIVE:
            return
        if not self._owner.serving(self.lease):
            # The lease may be another broker's by now, and the state here outdated.
            self.fail(None)
            return
        now_ms = self._clock.now_ms()
        try:
            self._ahead = self._ahead or len(self._inbox)
            count = min(self._ahead, _STEPS_MAX)
            self._ahead -= count
            for _ in range(count):
                self._step(self._inbox.popleft(), now_ms)
            if not self._ahead:
                self._advance(now_ms)
        except Exception as error:
            self.fail(error)
            return
        self._tell_overdue(now_ms)
        self._arm()
        if self._inbox:
            self._schedule()

    def _step(self, item: _Call | Notice[M], now_ms: int) -> None:
        assert self.machine is not None
        if not isinstance(item, _Call):
            step = Step(now_ms)
            item(self.machine, step)
            self._finish(step)
            return
        # The step is taken even if the caller is gone by now: a client that closes sends its LeaveGroup and
        # does not wait for the answer.
        operation, request, context, ticket = item
        step = Step(now_ms, context, ticket)
        self._operate(operation, request, step)
        self._finish(step)
        self._note_parked(step)

    def _operate(self, operation: Operation, request: Any, step: Step) -> None:
        """Have the machine process one request; a refusal becomes its reply."""
        answer = self._operated(operation, request, step)
        if answer is not None:
            step.reply(answer)

    def _operated(self, operation: Operation, request: Any, step: Step) -> object:
        """Have the machine process one request; return its answer, which may be a refusal."""
        assert self.machine is not None
        full = self._appender.full
        step.full = None if full is None else self._refusal(full)
        try:
            return operation(self.machine, request, step)
        except KafkaError as refusal:
            if step.rows or step.replies:
                raise AssertionError(f"refused after changes were made: {refusal!r}") from refusal
            return refusal

    def _note_parked(self, step: Step) -> None:
        ticket = step.ticket
        if ticket not in self._answers:
            return  # it was answered
        for reply in step.replies:
            if reply.ticket == ticket:
                return  # it will be, once the step is durable
        self._parked[ticket] = step.now_ms + self._limits.parked_max_ms

    def _advance(self, now_ms: int) -> None:
        assert self.machine is not None
        for _ in range(_ADVANCES_MAX):
            deadline_ms = self.machine.next_deadline()
            if deadline_ms is None or deadline_ms > now_ms:
                return
            step = Step(now_ms)
            self.machine.advance(step)
            self._finish(step)
        raise AssertionError(f"{deadline_ms} is still due after {_ADVANCES_MAX} advances to {now_ms}")

    def _finish(self, step: Step) -> None:
        """Hand the step's rows over, and send its replies or hold them back."""
        self.steps += 1
        for job in step.jobs:
            self._begin_job(job)
        entries: Sequence[Entry] = ()
        journal: Sequence[JournalRow] = ()
        if step.events and self._recorder is not None:
            entries = self._recorder.of_events(self.lease.number, step.events)
            journal = self._recorder.rows(entries)
        if step.rows:
            self._handed_over = self.steps
            self._appender.append(self, step.rows, self.steps, journal)
        elif journal:
            self._appender.note(self, journal)
        if self._durable == self._handed_over:
            self._show(step.replies, step.events, entries)
        elif step.rows or step.reads_hard_state:
            self._held.append(_Held(self._handed_over, step.now_ms, step.replies, step.events, entries))
        else:
            self._deliver(step.replies)
            if step.events:
                self._held.append(_Held(self._handed_over, step.now_ms, [], step.events, entries))

    def _begin_job(self, job: Callable[[], Any]) -> None:
        """Run a job in a thread, then notify the machine, unless the host has stopped by then."""
        running = self._loop.run_in_executor(None, job)

        def done(running: asyncio.Future[Any]) -> None:
            outcome = None
            if not running.cancelled():
                if running.exception() is None:
                    outcome = running.result()
                else:
                    self._log.warning("a job of a shard failed", job=repr(job), why=repr(running.exception()))
            self.tell(lambda machine, step: machine.job_done(job, outcome, step))

        running.add_done_callback(done)

    def _release(self) -> None:
        held = self._held
        while held and held[0].needs <= self._durable:
            step = held.popleft()
            if self._overdue:
                self._overdue -= 1
            self._show(step.replies, step.events, step.entries)

    def _show(self, replies: list[Reply], events: list[Any], entries: Sequence[Entry]) -> None:
        self._deliver(replies)
        if entries and self._recorder is not None:
            self._recorder.show(entries)
        if events:
            self._owner.observe(self.lease, events)

    def _deliver(self, replies: list[Reply]) -> None:
        """Send replies, or begin to: those that end a rebalance of thousands are sent over several turns of
        the loop, so that others get their answers in between."""
        if len(replies) <= _ANSWERS_MAX:
            self._hand_out(replies)
        else:
            if not self._delivering:
                self._loop.call_soon(self._deliver_some)
            self._delivering.extend(replies)

    def _deliver_some(self) -> None:
        some = [self._delivering.popleft() for _ in range(min(_ANSWERS_MAX, len(self._delivering)))]
        if self._delivering:
            self._loop.call_soon(self._deliver_some)
        self._hand_out(some)

    def _hand_out(self, replies: Sequence[Reply]) -> None:
        parked = self._parked
        for ticket, response in replies:
            answered = self._answers.pop(ticket, None)
            if parked:
                parked.pop(ticket, None)
            if answered is not None:
                answered(response)

    # --- deadlines ------------------------------------------------------------------------------------------

    def _tell_overdue(self, now_ms: int) -> None:
        """Answer requests that have waited too long, for the store or parked in the core."""
        unheard: list[object] = []
        for held in islice(self._held, self._overdue, None):
            if held.since_ms + self._limits.write_timeout_ms > now_ms:
                break
            self._overdue += 1
            for reply in held.replies:
                self._give_up(reply.ticket, "the store did not confirm the write in time")
                unheard.append(reply.response)
        if unheard:
            self.tell(lambda machine, step: machine.unheard(unheard, step))
        while self._parked:
            ticket, deadline_ms = next(iter(self._parked.items()))
            if deadline_ms > now_ms:
                break
            self._give_up(ticket, "the coordinator did not answer in time")

    def _give_up(self, ticket: Ticket, why: str) -> None:
        self._deliver([Reply(ticket, KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, why))])

    def _next_deadline(self, of_machine: int | None) -> int | None:
        deadline_ms = of_machine
        if len(self._held) > self._overdue:
            write_ms = self._held[self._overdue].since_ms + self._limits.write_timeout_ms
            deadline_ms = write_ms if deadline_ms is None or write_ms < deadline_ms else deadline_ms
        if self._parked:
            parked_ms = next(iter(self._parked.values()))
            deadline_ms = parked_ms if deadline_ms is None or parked_ms < deadline_ms else deadline_ms
        return deadline_ms

    def _arm(self) -> None:
        machine = self.machine if self.state is _ACTIVE else None
        if self._timer is not None:
            # A deadline that moved later, as with each heartbeat, leaves the timer where it is: it will fire
            # once too early and be armed again, which is cheaper than moving it with every request.
            bound_ms = self._next_deadline(None if machine is None else machine.deadline_bound())
            if bound_ms is None or self._timer_ms <= bound_ms:
                return
        deadline_ms = self._next_deadline(None if machine is None else machine.next_deadline())
        if deadline_ms is None or (self._timer is not None and self._timer_ms <= deadline_ms):
            return
        self._disarm()
        self._timer_ms = deadline_ms
        self._timer = self._clock.at(deadline_ms, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self.state is HostState.CLOSED:
            self._tell_overdue(self._clock.now_ms())
            self._arm()
        else:
            self._turn()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- the end --------------------------------------------------------------------------------------------

    def fail(self, why: Exception | None) -> None:
        """Promise 6: stop here, roll nothing back. `why` is None when the lease is lost."""
        if self.state is HostState.FAILED:
            return
        unloaded: Sequence[Entry] = ()
        if self.state is HostState.ACTIVE:
            unloaded = self._unloaded("its lease was lost" if why is None else f"{type(why).__name__}: {why}")
        self.unreadable = isinstance(why, StoreDamaged) or (
            not self._begun and why is not None and not isinstance(why, StoreError)
        )
        self._stop(HostState.FAILED, why)
        if unloaded and self._recorder is not None:
            self._recorder.show(unloaded)  # nothing can be written any more
        self._owner.failed(self, why)

    def _stop(self, state: HostState, why: Exception | None = None) -> None:
        self.state = state
        self._unwritten = isinstance(why, UNWRITTEN)
        self._appender.discard(self)
        self._disarm()
        self._inbox.clear()
        self._delivering.clear()
        self._held.clear()
        self._overdue = 0
        self._refuse((), why)
        if self._quiet is not None:
            self._quiet.set()

    def _refuse(self, kept: Sequence[Ticket] | set[Ticket], why: Exception | None = None) -> None:
        """Refuse every unanswered request but those `kept`."""
        for ticket in [ticket for ticket in self._answers if ticket not in kept]:
            self._deliver([Reply(ticket, self._refusal(why))])

    def _refusal(self, why: Exception | None) -> KafkaError:
        if isinstance(why, UNWRITTEN):
            # Clients may retry here.
            return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"shard {self.lease.number}: {why}")
        return self._not_coordinator()

    def _not_coordinator(self) -> KafkaError:
        return KafkaError(ErrorCode.NOT_COORDINATOR, f"shard {self.lease.number} is {self.state.value} here")


def _resolve(answer: asyncio.Future[object], response: object) -> None:
    if not answer.done():  # its caller was cancelled
        answer.set_result(response)
