"""Limits how many connections an address may have, and how many it may open per second."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from muster.coordinator.base.clock import Clock, Timer
from muster.coordinator.security.quotas import address_of
from muster.coordinator.security.rates import Rate
from muster.coordinator.server.hanging_up import hang_up
from muster.coordinator.server.unserved import Cause, Unserved
from muster.settings import INT32_MAX

_RATES_MAX: Final = 10_000
"""Addresses whose rates are kept: the most recent ones."""
_HELD_MAX: Final = 1_000
"""Refused connections held open, so that they do not come back at once; further ones are closed at once."""
_TOO_MANY: Final = Cause(
    "the address has max.connections.per.ip connections",
    "close some, or raise max.connections.per.ip or max.connections.per.ip.overrides",
)
_TOO_FAST: Final = Cause(
    "the address opens connections faster than its quota connection_creation_rate",
    "keep connections open, or raise the quota: muster quotas set --ip ADDRESS --connection-creation-rate N",
)


class Refusal(NamedTuple):
    """Why a connection is closed, and after how many milliseconds."""

    cause: Cause
    after_ms: int = 0


class Admission:
    """Counts the connections of one broker by address, including those in TLS handshakes."""

    def __init__(self, clock: Clock, unserved: Unserved, rate_of: Callable[[str], float | None]) -> None:
        """`rate_of` returns how many connections per second an address may open; None: any number."""
        self._clock = clock
        self._unserved = unserved
        self._rate_of = rate_of
        self._per_address = INT32_MAX
        self._overrides: Mapping[str, int] = {}
        self._open: Counter[str] = Counter()
        self._rates: dict[str, Rate] = {}
        self._held: dict[asyncio.Transport, Timer] = {}

    def __repr__(self) -> str:
        return f"<Admission {self._open.total()} from {len(self._open)} addresses, {len(self._held)} held>"

    def limit(self, per_address: int, overrides: Mapping[str, int]) -> None:
        """Set max.connections.per.ip, and what overrides it for single addresses. Open connections stay."""
        self._per_address = per_address
        self._overrides = overrides

    def let_in(self, transport: asyncio.Transport, address: str) -> bool:
        """Whether to serve a connection that was just accepted; it counts until `left`. One that is not
        served is closed: at once, or when its address may open another."""
        refusal = self.refused(address)
        if refusal is None:
            self._open[address] += 1
            return True
        self._unserved.tell(f"/{address}", refusal.cause)
        if refusal.after_ms and len(self._held) < _HELD_MAX:
            transport.set_protocol(_Held(transport, self._gone))
            transport.pause_reading()
            at_ms = self._clock.now_ms() + refusal.after_ms
            self._held[transport] = self._clock.at(at_ms, partial(self._close, transport))
        else:
            transport.abort()
        return False

    def left(self, address: str) -> None:
        """A connection that was let in has ended."""
        self._open[address] -= 1
        if self._open[address] <= 0:
            del self._open[address]

    def close(self) -> None:
        """Close the held connections."""
        for transport in list(self._held):
            self._close(transport)

    def refused(self, address: str) -> Refusal | None:
        """Why the address may not open another connection now; None if it may, which its rate then counts."""
        if self._open[address] >= self._overrides.get(address, self._per_address):
            return Refusal(_TOO_MANY)
        limit = self._rate_of(address)
        if limit is None:
            return None
        now_ms = self._clock.now_ms()
        rate = self._rates.pop(address, None) or Rate()
        self._rates[address] = rate  # now the most recent
        if len(self._rates) > _RATES_MAX:
            del self._rates[next(iter(self._rates))]
        rate.record(1, now_ms)
        throttle_ms = rate.throttle_ms(limit, now_ms)
        if not throttle_ms:
            return None
        rate.record(-1, now_ms)  # a refused connection does not count
        return Refusal(_TOO_FAST, throttle_ms)

    def _gone(self, transport: asyncio.Transport) -> None:
        timer = self._held.pop(transport, None)
        if timer is not None:
            timer.cancel()

    def _close(self, transport: asyncio.Transport) -> None:
        self._held.pop(transport).cancel()
        transport.abort()


class _Held(asyncio.Protocol):
    """The protocol of a held connection: it drops whatever arrives."""

    def __init__(self, transport: asyncio.Transport, gone: Callable[[asyncio.Transport], None]) -> None:
        self._transport = transport
        self._gone = gone

    def data_received(self, data: bytes) -> None:
        # uvloop starts to read after connection_made, even if that paused it.
        self._transport.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        hang_up(self._transport)
        self._gone(self._transport)


def overrides_of(text: str) -> dict[str, int]:
    """The limits by address in `max.connections.per.ip.overrides`."""
    pairs = (each.rpartition(":") for each in text.strip().split(",") if each)
    numbers = {address.strip("[]"): int(number) for address, _, number in pairs}
    return {address_of(address) or address: number for address, number in numbers.items()}
