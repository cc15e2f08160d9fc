"""The quota gate: measures what requests use, tells clients how long to wait, and makes sure that they do.

Sessions have the gate only while a quota is set, so quotas cost nothing otherwise. As in Kafka since KIP-219,
the response is sent at once, with the time to wait in it, and nothing is read from the connection for that
time.

The share of a thread that a request uses is that of the loop's thread (`spent`): what executors do for it is
not counted.
"""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import Any, Final, Protocol, cast

from muster.coordinator.base.answers import Answered, Later
from muster.coordinator.base.clock import Clock, Timer
from muster.coordinator.base.step import RequestContext
from muster.coordinator.security.quotas import CONSUMED, PERCENTAGE, PRODUCED, Limit
from muster.coordinator.security.rates import SAMPLE_MS, SAMPLES
from muster.coordinator.server.api import Begin
from muster.coordinator.server.connection import Connection
from muster.coordinator.server.kept_quotas import KeptQuotas
from muster.coordinator.server.metering import Meters
from muster.coordinator.server.serving import Broker
from muster.coordinator.server.session import Asked, Sessions
from muster.coordinator.server.spent import Spent, counting
from muster.coordinator.server.unserved import CloseConnection
from muster.coordinator.server.wire import Response
from muster.protocol.message import Message
from muster.protocol.messages.data import FetchRequest, FetchResponse, ProduceRequest

_PERCENT_A_NANOSECOND: Final = 100 / 1_000_000_000
_HEADER_BYTES: Final = 4
"""Of a response's header, which Kafka does not count; it does count the size in front of it."""
_SWEEP_MIN: Final = 100
"""Number of throttled connections from which on closed ones are swept out."""


class Remembering(Protocol):
    """The connections of the broker."""

    def forget(self) -> None:
        """Make all sessions forget earlier requests."""


class QuotaGate:
    """The quota gate of one broker. Call `close` before its connections are ended."""

    def __init__(
        self, quotas: KeptQuotas, meters: Meters, clock: Clock, sessions: Sessions, connections: Remembering
    ) -> None:
        self._quotas = quotas
        self._meters = meters
        self._clock = clock
        self._sessions = sessions
        self._connections = connections
        self._throttled: dict[Connection, Timer] = {}
        self._sweep_at = _SWEEP_MIN
        quotas.listeners.append(self._changed)

    def __repr__(self) -> str:
        return f"<QuotaGate throttling={len(self._throttled)}>"

    def close(self) -> None:
        """Let all throttled connections go on."""
        self._sessions.quotas = None
        for connection in list(self._throttled):
            self._over(connection)

    def _changed(self) -> None:
        self._sessions.quotas = self if len(self._quotas.in_force) else None
        self._connections.forget()

    # --- requests -------------------------------------------------------------------------------------------

    def metered(self, asked: Asked, size_bytes: int) -> Begin:
        """See session.QuotaGate."""
        inner = asked.begin
        if isinstance(asked.request, FetchRequest):
            self._bound(asked.request, asked.context)

        def begin(broker: Broker, request: Any, context: RequestContext, answered: Answered) -> object:
            spent = Spent()

            def later(answer: object) -> None:
                try:
                    settled = self._settled(asked, size_bytes, answer, spent)
                except Exception as error:  # or the request would never be answered
                    settled = error
                answered(settled)

            token = counting.set(spent)
            try:
                with spent:
                    answer = inner(broker, request, context, later)
            except Exception as error:
                answer = error
            finally:
                counting.reset(token)
            if isinstance(answer, Later) or hasattr(answer, "cancel"):
                return answer
            with spent:
                return self._settled(asked, size_bytes, answer, spent)

        return begin

    def _bound(self, request: FetchRequest, context: RequestContext) -> None:
        """Read no more than the quota allows over all of its windows: more would never be let through."""
        limit = self._meters.limit(CONSUMED, context)
        if limit is not None:
            request.max_bytes = int(min(request.max_bytes, _most(limit)))

    def _settled(self, asked: Asked, size_bytes: int, answer: object, spent: Spent) -> object:
        """The answer, with the time to wait in it; the connection is throttled for that time."""
        meters, context, request = self._meters, asked.context, asked.request
        if isinstance(answer, Exception):
            try:
                answer = asked.refusal(answer, request)
            except CloseConnection as error:
                return error
        frame: Response | None = None
        throttle_ms = consumed_bytes = 0
        comes_alone = False
        if isinstance(request, ProduceRequest):
            throttle_ms = meters.record(PRODUCED, size_bytes, context)
        elif isinstance(answer, FetchResponse):
            frame = asked.framed(answer)
            consumed_bytes = len(frame) if isinstance(frame, bytes) else sum(map(len, frame))
            consumed_bytes -= _HEADER_BYTES
            # A batch is never split, so one may be larger than the quota ever allows: it is sent alone, once
            # the quota is not exceeded, and the client waits afterwards. Kafka never lets it through.
            limit = meters.limit(CONSUMED, context)
            oversize = limit is not None and consumed_bytes > _most(limit)
            comes_alone = oversize and not meters.throttle_ms(CONSUMED, context)
            throttle_ms = meters.record(CONSUMED, consumed_bytes, context)
        else:
            throttle_ms = getattr(answer, "throttle_time_ms", 0)  # for mutations, which handlers count
        share_ms = meters.record(PERCENTAGE, spent.ns * _PERCENT_A_NANOSECOND, context)
        if answer is not None:  # as in Kafka: without an answer, only bytes count
            throttle_ms = max(throttle_ms, min(share_ms, SAMPLE_MS))
        if not throttle_ms:
            return answer if frame is None else frame
        if isinstance(answer, FetchResponse) and not comes_alone:
            # The client will read again what it does not get now.
            meters.record(CONSUMED, -consumed_bytes, context)
            answer = self._sessions.broker.fetch_sessions.withheld(cast(FetchRequest, request), answer)
        self._throttle(asked, throttle_ms)
        return _telling(answer, throttle_ms, asked.header.api_version)

    # --- waiting --------------------------------------------------------------------------------------------

    def _throttle(self, asked: Asked, throttle_ms: int) -> None:
        connection = asked.session.connection
        if connection is None:
            return
        self._forget_gone()
        if (earlier := self._throttled.pop(connection, None)) is not None:
            earlier.cancel()
        connection.throttle()
        self._throttled[connection] = self._clock.at(
            self._clock.now_ms() + throttle_ms, partial(self._over, connection)
        )

    def _forget_gone(self) -> None:
        """Waits may last for weeks while clients disconnect: bound what is kept of them."""
        if len(self._throttled) < self._sweep_at:
            return
        gone = [each for each in self._throttled if not each.is_open]
        for each in gone:
            self._throttled.pop(each).cancel()
        self._sweep_at = max(_SWEEP_MIN, 2 * len(self._throttled))

    def _over(self, connection: Connection) -> None:
        self._throttled.pop(connection).cancel()
        connection.unthrottle()


def _most(limit: Limit) -> float:
    """What a quota allows over all of its windows, in bytes."""
    return limit.value * (SAMPLES - 1) * SAMPLE_MS / 1000


def _telling(answer: object, throttle_ms: int, version: int) -> object:
    """The answer with the time to wait, if it has a field for that. A copy, since answers may be shared."""
    if not isinstance(answer, Message):
        return answer
    declared = next((each for each in type(answer).__fields__ if each.name == "throttle_time_ms"), None)
    if declared is None or version not in declared.versions:
        return answer
    told = copy(answer)
    cast(Any, told).throttle_time_ms = min(throttle_ms, 2**31 - 1)
    return told
