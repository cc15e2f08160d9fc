"""TLS on accepted connections: the protocol of the socket, and the transport of the connection above it.

asyncio and uvloop have their own TLS, but drop the alert that tells a client why its handshake failed; here
every failure is reported on both sides. Handshakes are bounded in time and number: a connection reaches
`Connections` when its handshake is done, and until then costs a socket, a TLS state, and one of
`UNDER_WAY_MAX` places. If all are taken, a new connection gets the place of the oldest handshake: an honest
one takes milliseconds, so only those that never finish lose theirs.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, cast

from muster.coordinator.base.clock import Clock, Timer
from muster.coordinator.server.admission import Admission
from muster.coordinator.server.certificates import Certificates
from muster.coordinator.server.hanging_up import hang_up
from muster.coordinator.server.turned_away import (
    SPOKEN_KAFKA,
    Spoken,
    failed_handshake,
    handshake_given_up,
    slow_handshake,
)
from muster.coordinator.server.unserved import Cause, Unserved

UNDER_WAY_MAX: Final = 512
HANDSHAKE_MS: Final = 10_000
_READ_BYTES: Final = 256 * 1024


class Handshakes:
    """The TLS connections of one listener, until their handshakes are done."""

    def __init__(
        self,
        certificates: Certificates,
        clock: Clock,
        connect: Callable[[], asyncio.BaseProtocol],
        unserved: Unserved,
        *,
        spoken: Spoken = SPOKEN_KAFKA,
        admission: Admission | None = None,
    ) -> None:
        """`connect` makes the protocol above TLS, which `spoken` describes. `clock` is real time. `admission`
        counts connections by address."""
        self.admission = admission
        self.connect = connect
        self.clock = clock
        self.spoken = spoken
        self.failed = 0
        """Number of handshakes that failed, took too long or lost their place."""
        self._certificates = certificates
        self._unserved = unserved
        self._under_way: dict[Secured, None] = {}  # in the order they began

    def __repr__(self) -> str:
        return f"<Handshakes under_way={len(self._under_way)} failed={self.failed}>"

    def __len__(self) -> int:
        return len(self._under_way)

    def accept(self) -> Secured:
        """The protocol of a connection being accepted."""
        return Secured(self)

    def began(self, secured: Secured) -> ssl.SSLContext:
        """Count a handshake that begins; returns its context."""
        if len(self._under_way) >= UNDER_WAY_MAX:
            next(iter(self._under_way)).fail()
        self._under_way[secured] = None
        return self._certificates.context()

    def ended(self, secured: Secured, *, failed: bool) -> None:
        """A handshake is over. Harmless when repeated."""
        if secured in self._under_way:
            del self._under_way[secured]
            self.failed += failed

    def tell(self, host: str, cause: Cause) -> None:
        self._unserved.tell(host, cause)

    def close(self) -> None:
        """End the handshakes under way."""
        for each in list(self._under_way):
            each.fail()


class Secured(asyncio.Protocol):
    """One TLS connection: the protocol of the socket, and the transport of the connection above it."""

    __slots__ = (
        "_above",
        "_admitted",
        "_arrived",
        "_handshakes",
        "_heard",
        "_host",
        "_leaving",
        "_paused",
        "_timer",
        "_tls",
        "_transport",
    )

    def __init__(self, handshakes: Handshakes) -> None:
        self._handshakes = handshakes
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        self._transport: asyncio.Transport | None = None
        self._above: asyncio.Protocol | None = None
        """None until the handshake is done."""
        self._host = "/unknown"
        self._timer: Timer | None = None
        self._admitted = False
        self._heard = False
        self._paused = False

    # --- the socket's protocol ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._host = f"/{peer[0]}" if peer else "/unknown"
        admission = self._handshakes.admission
        if admission is not None:
            if not admission.let_in(self._transport, self._host[1:]):
                return
            self._admitted = True
        context = self._handshakes.began(self)
        self._tls = context.wrap_bio(self._arrived, self._leaving, server_side=True)
        clock = self._handshakes.clock
        self._timer = clock.at(clock.now_ms() + HANDSHAKE_MS, self._too_slow)

    def data_received(self, data: bytes) -> None:
        self._arrived.write(data)
        if self._above is None:
            self._heard = True
            self._shake_hands()
        else:
            self._read()

    def eof_received(self) -> bool:
        if self._above is None:
            self._given_up()
            return False
        self._above.eof_received()
        return False

    def pause_writing(self) -> None:
        if self._above is not None:
            self._above.pause_writing()

    def resume_writing(self) -> None:
        if self._above is not None:
            self._above.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        if self._above is None and error is not None and self._timer is not None:
            self._given_up()
        self._handshake_ended(failed=True)
        if self._admitted and self._handshakes.admission is not None:
            self._admitted = False
            self._handshakes.admission.left(self._host[1:])
        if self._transport is not None:
            hang_up(self._transport)
        above, self._above = self._above, None
        self._transport = self._tls = None
        if above is not None:
            above.connection_lost(error)

    # --- the handshake --------------------------------------------------------------------------------------

    def _shake_hands(self) -> None:
        if self._tls is None or self._transport is None or self._transport.is_closing():
            return
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            self._flush()  # the alert
            self._handshakes.tell(self._host, failed_handshake(error, self._handshakes.spoken))
            self.fail()
            return
        self._flush()
        self._handshake_ended(failed=False)
        self._above = cast(asyncio.Protocol, self._handshakes.connect())
        self._above.connection_made(cast(asyncio.Transport, self))
        self._read()

    def _given_up(self) -> None:
        if self._heard:  # a mere probe of the port is not reported
            self._handshakes.tell(self._host, handshake_given_up())
        self.fail()

    def _handshake_ended(self, *, failed: bool) -> None:
        self._handshakes.ended(self, failed=failed)
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _too_slow(self) -> None:
        self._handshakes.tell(self._host, slow_handshake(HANDSHAKE_MS, self._handshakes.spoken))
        self.fail()

    def fail(self) -> None:
        """End a handshake. Unsent bytes are dropped unless the client takes them at once."""
        self._handshake_ended(failed=True)
        if self._transport is not None:
            if self._transport.get_write_buffer_size():
                self._transport.abort()
            else:
                self._transport.close()

    # --- after it -------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Pass decrypted bytes to the connection above, unless it has paused reading."""
        while self._above is not None and self._tls is not None and not self._paused:
            try:
                data = self._tls.read(_READ_BYTES)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLError:
                self.abort()
                return
            if not data:  # the client has closed its side of TLS and sends nothing more
                self._above.eof_received()
                self.close()
                return
            self._above.data_received(data)
        self._flush()  # TLS itself may answer, such as to a new key

    def _flush(self) -> None:
        if self._leaving.pending and self._transport is not None:
            self._transport.write(self._leaving.read())

    # --- the transport of the connection above --------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As on the socket's transport; `ssl_object` is the TLS state, `sslcontext` its context."""
        if name == "ssl_object":
            return self._tls
        if name == "sslcontext":
            return None if self._tls is None else self._tls.context
        return default if self._transport is None else self._transport.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        if not data or self._tls is None or self._transport is None:  # OpenSSL takes empty data for a mistake
            return
        self._tls.write(data)
        self._transport.write(self._leaving.read())

    def writelines(self, pieces: Iterable[bytes]) -> None:
        if self._tls is None or self._transport is None:
            return
        for each in pieces:
            if each:
                self._tls.write(each)
        self._transport.write(self._leaving.read())

    def pause_reading(self) -> None:
        self._paused = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._paused = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            asyncio.get_running_loop().call_soon(self._read)  # what is already decrypted may be all there is

    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def close(self) -> None:
        """Send close_notify, and close once everything is sent."""
        if self._tls is None or self._transport is None or self._transport.is_closing():
            return
        with suppress(ssl.SSLError):  # it would wait for the client's close_notify
            self._tls.unwrap()
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
