"""Fault injection from tests: faults in client requests, and transaction markers held back."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypedDict, TypeVar, Unpack

from muster.coordinator.peers.marker_holds import MarkerHold as Hold
from muster.coordinator.server.test_mode.faults import FaultError, Firing, Rule, RuleStatus, read_count
from muster.coordinator.testing.arguments import check_text
from muster.coordinator.testing.faces import Async, Blocking, Calls, both, waits
from muster.coordinator.testing.transactions import TransactionFacts, reached
from muster.coordinator.testing.waiting import TIMEOUT_S, Duration, WaitFailed, seconds

if TYPE_CHECKING:
    from muster.coordinator.testing.core import Core

__all__ = [
    "AsyncFaultRule",
    "AsyncFaults",
    "AsyncMarkerHold",
    "FaultError",
    "FaultRule",
    "Faults",
    "Firing",
    "MarkerHold",
    "RuleStatus",
]


class RuleFields(TypedDict, total=False):
    """The fields of a rule; see `Faults`."""

    api: str | int | None
    group: str | None
    topic: str | None
    member: str | None
    transactional_id: str | None
    client_id: str | None
    broker: int | None
    nth: int
    times: int | None
    error: str | int | None
    delay: Duration | None
    drop_response: bool
    close_before: bool
    close_after: bool
    truncate: int | None


class InForceCalls(Calls):
    """A fault in force until it is removed, or, as a context manager, until the end of the block."""

    __slots__ = ()

    @both
    async def remove(self) -> None:
        """Remove it: delayed requests proceed, held markers are released. Idempotent."""
        self._remove()

    def _remove(self) -> None:
        raise NotImplementedError


class _InForce(InForceCalls, Blocking):
    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


class _AsyncInForce(InForceCalls, Async):
    __slots__ = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.remove()


class FaultRuleCalls(InForceCalls):
    """A rule in force."""

    __slots__ = ("id", "rule")

    def __init__(self, core: Core, rule_id: int, rule: Rule) -> None:
        super().__init__(core)
        self.id = rule_id
        self.rule = rule

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.rule.to_json()}>"

    # --- facts, the same on both faces ----------------------------------------------------------------------

    @property
    def fired(self) -> int:
        """Number of times it was applied. Raises FaultError once it is removed."""

        async def look() -> int:
            return self._core.brokers.faults.fired(self.id)

        return self._look(look)

    @property
    def matched(self) -> int:
        """Number of requests it matched until it had its last turn, whether or not it was applied to them."""

        async def look() -> int:
            return self._core.brokers.faults.status(self.id).matched

        return self._look(look)

    # --- waits and changes ----------------------------------------------------------------------------------

    @waits
    async def hit(self, times: int = 1, timeout: Duration = TIMEOUT_S) -> None:
        """Wait until it has been applied this many times in total: the error was returned, the delay began,
        or the request whose response is lost was applied. Raises WaitFailed, and FaultError if the rule has
        fewer turns."""
        read_count("times", times)
        limit_s, faults = seconds(timeout), self._core.brokers.faults
        try:
            async with asyncio.timeout(limit_s):
                await faults.hit(self.id, times)
        except TimeoutError:
            status = faults.status(self.id)
            raise WaitFailed(
                f"timed out after {limit_s:g} s waiting for rule {self.id} {self.rule.to_json()} to be "
                f"applied {times} times\n  now: applied {status.fired} times, matched {status.matched} "
                "requests"
            ) from None

    def _remove(self) -> None:
        faults = self._core.brokers.faults
        if any(each.id == self.id for each in faults.rules()):
            faults.remove(self.id)


class FaultRule(FaultRuleCalls, _InForce):
    """A rule, blocking API."""

    __slots__ = ()


class AsyncFaultRule(FaultRuleCalls, _AsyncInForce):
    """A rule, async API."""

    __slots__ = ()


class MarkerHoldCalls(InForceCalls):
    """Markers held back."""

    __slots__ = ("_number", "topic", "transactional_id")

    def __init__(self, core: Core, number: int, hold: Hold) -> None:
        super().__init__(core)
        self._number = number
        self.transactional_id, self.topic = hold

    def __repr__(self) -> str:
        of_topic = "" if self.topic is None else f" in {self.topic}"
        return f"<{type(self).__name__} of {self.transactional_id}{of_topic}>"

    @waits
    async def hit(self, timeout: Duration = TIMEOUT_S) -> TransactionFacts:
        """Wait until a transaction is decided and only held markers are missing: until they are released,
        what readers see no longer changes. Raises WaitFailed."""
        hold, holds = Hold(self.transactional_id, self.topic), self._core.brokers.faults.marker_holds

        def met(facts: TransactionFacts) -> bool:
            topics = {topic for topic, _ in facts.partitions}
            return (
                facts.is_open
                and facts.state != "Ongoing"
                and any(hold.covers(facts.id, topic) for topic in topics)
                and all(holds.cover(facts.id, topic) for topic in topics)
            )

        wanted = "to be decided, with its markers held"
        return await reached(self._core, self.transactional_id, wanted, met, timeout)

    def _remove(self) -> None:
        self._core.brokers.faults.marker_holds.release(self._number)


class MarkerHold(MarkerHoldCalls, _InForce):
    """Markers held back, blocking API."""

    __slots__ = ()


class AsyncMarkerHold(MarkerHoldCalls, _AsyncInForce):
    """Markers held back, async API."""

    __slots__ = ()


class FaultCalls(Calls):
    """Faults injected into client requests.

        with broker.faults.add(api="OffsetCommit", group="billing", error="NOT_COORDINATOR", nth=2) as rule:
            ...
            rule.hit()

    A rule matches requests by `api` (Kafka's name or key), `group`, `topic`, `member` (member id or
    group.instance.id), `transactional_id`, `client_id` and `broker` (node id); fields not given match
    everything. It first applies to the `nth` request that it matches, and applies `times` times (None:
    forever). It does exactly one of:

    - `error`: respond with this Kafka error, in the error field of the API's response, and apply nothing;
    - `delay`: hold the request for this long on the brokers' clock before doing anything else with it;
    - `drop_response`: apply it, but never respond to it or to anything after it on its connection;
    - `close_before`, `close_after`: close the connection instead of applying the request, or of responding;
    - `truncate`: apply it, send this many bytes of the response, and close the connection.

    `hold_markers` holds back the markers that make the outcome of a transaction visible to readers.
    """

    __slots__ = ()

    async def _hold_markers(self, transactional_id: str, topic: str | None) -> tuple[int, Hold]:
        check_text("transactional_id", transactional_id)
        if topic is not None:
            check_text("topic", topic)
        hold = Hold(transactional_id, topic)
        return self._core.brokers.faults.marker_holds.hold(hold), hold

    async def _add(self, fields: RuleFields) -> tuple[int, Rule]:
        rule = Rule.read(fields)
        return self._core.brokers.add_fault(rule), rule

    # --- facts, the same on both faces ----------------------------------------------------------------------

    def rules(self) -> list[RuleStatus]:
        """All rules that have not been removed, with their counts."""

        async def look() -> list[RuleStatus]:
            return self._core.brokers.faults.rules()

        return self._look(look)

    def history(self) -> list[Firing]:
        """The last thousand faults applied, oldest first."""

        async def look() -> list[Firing]:
            return list(self._core.brokers.faults.history)

        return self._look(look)

    # --- changes --------------------------------------------------------------------------------------------

    @both
    async def clear(self) -> None:
        """Remove all rules, clear the history, and release all held markers."""
        self._core.brokers.faults.clear()


class Faults(FaultCalls, Blocking):
    """The blocking API of faults."""

    __slots__ = ()

    def add(self, **fields: Unpack[RuleFields]) -> FaultRule:
        """Add a rule after the existing ones. Raises FaultError, which names the field."""
        __tracebackhide__ = True
        return FaultRule(self._core, *self._look(lambda: self._add(fields)))

    def hold_markers(self, transactional_id: str, *, topic: str | None = None) -> MarkerHold:
        """Hold back the markers of this id's transactions, only those for `topic` if given
        ("__consumer_offsets" for offsets), until `remove`: transactions are decided, but readers do not see
        the outcome. Markers stay held when brokers die or shards move. Raises TypeError."""
        __tracebackhide__ = True
        return MarkerHold(self._core, *self._look(lambda: self._hold_markers(transactional_id, topic)))


class AsyncFaults(FaultCalls, Async):
    """The async API of faults."""

    __slots__ = ()

    def add(self, **fields: Unpack[RuleFields]) -> Adding[AsyncFaultRule]:
        """Add a rule after the existing ones: `rule = await faults.add(...)`, or `async with faults.add(...)
        as rule`. Raises FaultError, which names the field."""

        async def add() -> AsyncFaultRule:
            __tracebackhide__ = True
            return AsyncFaultRule(self._core, *await self._added(fields))

        return Adding("faults.add", add)

    @both
    async def _added(self, fields: RuleFields) -> tuple[int, Rule]:
        return await self._add(fields)

    def hold_markers(self, transactional_id: str, *, topic: str | None = None) -> Adding[AsyncMarkerHold]:
        """See `Faults.hold_markers`: `held = await faults.hold_markers(...)`, or `async with
        faults.hold_markers(...) as held`."""

        async def hold() -> AsyncMarkerHold:
            __tracebackhide__ = True
            return AsyncMarkerHold(self._core, *await self._holding(transactional_id, topic))

        return Adding("faults.hold_markers", hold)

    @both
    async def _holding(self, transactional_id: str, topic: str | None) -> tuple[int, Hold]:
        return await self._hold_markers(transactional_id, topic)


F = TypeVar("F", bound=AsyncFaultRule | AsyncMarkerHold)


class Adding(Generic[F]):
    """A fault to await or enter; like a coroutine, it warns if neither is done."""

    def __init__(self, call: str, add: Callable[[], Coroutine[Any, Any, F]]) -> None:
        self._call = call
        self._add = add
        self._begun = False
        self._fault: F | None = None

    def __del__(self) -> None:
        if not self._begun:
            text = f"{self._call}(...) was neither awaited nor entered: nothing is in force"
            warnings.warn(text, RuntimeWarning, stacklevel=2, source=self)

    def __await__(self) -> Generator[Any, None, F]:
        __tracebackhide__ = True
        self._begun = True
        return self._add().__await__()

    async def __aenter__(self) -> F:
        __tracebackhide__ = True
        self._begun = True
        self._fault = await self._add()
        return self._fault

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fault is not None:
            await self._fault.remove()
