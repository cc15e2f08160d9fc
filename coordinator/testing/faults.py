"""Fault injection from tests."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from muster.coordinator.server.test_mode.faults import FaultError, Firing, Rule, RuleStatus, read_count
from muster.coordinator.testing.faces import Async, Blocking, Calls, both, waits
from muster.coordinator.testing.waiting import TIMEOUT_S, Duration, WaitFailed, seconds

if TYPE_CHECKING:
    from muster.coordinator.testing.core import Core

__all__ = ["AsyncFaultRule", "AsyncFaults", "FaultError", "FaultRule", "Faults", "Firing", "RuleStatus"]


class RuleFields(TypedDict, total=False):
    """The fields of a rule; see `Faults`."""

    api: str | int | None
    group: str | None
    topic: str | None
    member: str | None
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


class FaultRuleCalls(Calls):
    """A rule in force. As a context manager it is removed at the end."""

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
        """How often it was applied. Raises FaultError once it is removed."""

        async def look() -> int:
            return self._core.brokers.faults.fired(self.id)

        return self._look(look)

    @property
    def matched(self) -> int:
        """How many requests it matched, applied or not."""

        async def look() -> int:
            return self._core.brokers.faults.status(self.id).matched

        return self._look(look)

    # --- waits and changes ----------------------------------------------------------------------------------

    @waits
    async def hit(self, times: int = 1, timeout: Duration = TIMEOUT_S) -> None:
        """Wait until it has been applied this many times in total: the error was returned, the delay began,
        the request whose response is lost was applied. Raises WaitFailed."""
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

    @both
    async def remove(self) -> None:
        """Remove the rule: delayed requests proceed. Idempotent."""
        faults = self._core.brokers.faults
        if any(each.id == self.id for each in faults.rules()):
            faults.remove(self.id)


class FaultRule(FaultRuleCalls, Blocking):
    """A rule, blocking API."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


class AsyncFaultRule(FaultRuleCalls, Async):
    """A rule, async API."""

    __slots__ = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.remove()


class FaultCalls(Calls):
    """Faults injected into client requests.

        with broker.faults.add(api="OffsetCommit", group="billing", error="NOT_COORDINATOR", nth=2) as rule:
            ...
            rule.hit()

    A rule matches requests by `api` (Kafka's name or key), `group`, `topic`, `member` (member id or
    group.instance.id), `client_id` and `broker` (node id); fields not given match everything. It first
    applies to the `nth` request that it matches, and applies `times` times (None: forever). It does exactly
    one of:

    - `error`: respond with this Kafka error where the API's response has its error field, and apply nothing;
    - `delay`: hold the request, by the brokers' clock, before anything else happens to it;
    - `drop_response`: apply it and never respond, nor to anything after it on its connection;
    - `close_before`, `close_after`: close the connection instead of applying the request, or of responding;
    - `truncate`: apply it, send this many bytes of the response, and close the connection.
    """

    __slots__ = ()

    async def _add(self, fields: RuleFields) -> tuple[int, Rule]:
        rule = Rule.read(fields)
        return self._core.brokers.add_fault(rule), rule

    # --- facts, the same on both faces ----------------------------------------------------------------------

    def rules(self) -> list[RuleStatus]:
        """All rules not removed, with their counts."""

        async def look() -> list[RuleStatus]:
            return self._core.brokers.faults.rules()

        return self._look(look)

    def history(self) -> list[Firing]:
        """Faults applied, oldest first; the last thousand."""

        async def look() -> list[Firing]:
            return list(self._core.brokers.faults.history)

        return self._look(look)

    # --- changes --------------------------------------------------------------------------------------------

    @both
    async def clear(self) -> None:
        """Remove all rules and clear the history."""
        self._core.brokers.faults.clear()


class Faults(FaultCalls, Blocking):
    """The blocking API of faults."""

    __slots__ = ()

    def add(self, **fields: Unpack[RuleFields]) -> FaultRule:
        """Add a rule after the existing ones. Raises FaultError, which names the field."""
        __tracebackhide__ = True
        return FaultRule(self._core, *self._look(lambda: self._add(fields)))


class AsyncFaults(FaultCalls, Async):
    """The async API of faults."""

    __slots__ = ()

    def add(self, **fields: Unpack[RuleFields]) -> Adding:
        """Add a rule after the existing ones: `rule = await faults.add(...)`, or `async with faults.add(...)
        as rule`. Raises FaultError, which names the field."""
        return Adding(self, fields)

    @both
    async def _added(self, fields: RuleFields) -> tuple[int, Rule]:
        return await self._add(fields)


class Adding:
    """A rule to await or enter."""

    def __init__(self, faults: AsyncFaults, fields: RuleFields) -> None:
        self._faults = faults
        self._fields = fields
        self._rule: AsyncFaultRule | None = None

    async def _add(self) -> AsyncFaultRule:
        __tracebackhide__ = True
        return AsyncFaultRule(self._faults._core, *await self._faults._added(self._fields))

    def __await__(self) -> Generator[Any, None, AsyncFaultRule]:
        __tracebackhide__ = True
        return self._add().__await__()

    async def __aenter__(self) -> AsyncFaultRule:
        __tracebackhide__ = True
        self._rule = await self._add()
        return self._rule

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._rule is not None:
            await self._rule.remove()
