"""What a stranger can send before it is let in, damaged: tokens of every mechanism, and TLS handshakes.

`python -m tests.fuzz.strangers --help`. Each input is made of a seed and its number. A token is answered or
refused with AuthenticationRefused, and lets nobody in; a handshake goes on or ends, and raises nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import random
import ssl
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Final

from muster.coordinator.base.clock import ManualClock
from muster.coordinator.config import Settings
from muster.coordinator.security.exchange import AuthenticationRefused, Exchange
from muster.coordinator.security.oauth import Claims, OAuthBearer
from muster.coordinator.security.plain import Plain, PlainExchange
from muster.coordinator.security.scram import HASHES, MadeUp, Scram, ScramCredential
from muster.coordinator.server.certificates import Certificates, Pem
from muster.coordinator.server.tls import HANDSHAKE_MS, Handshakes, Secured
from muster.coordinator.server.unserved import Unserved
from muster.coordinator.testing.security import Security
from tests.fuzz.mutations import damaged, garbage

INPUTS: Final = 10_000_000
_HANDSHAKE_EVERY: Final = 20
"""One input in so many is a handshake, which takes as long as all the others together."""

_ALICE: Final = {name: ScramCredential.of_password(name, "pencil", 4096) for name in HASHES}
_TOKEN: Final = "eyJhbGciOiJSUzI1NiIsImtpZCI6ImEifQ.eyJzdWIiOiJhIiwiZXhwIjo5OTk5OTk5OTk5fQ.AAAA"


class _PlainExchange(PlainExchange):
    """Skips the hashing, which takes milliseconds whatever was sent."""

    async def _check(self, user: str, password: str) -> tuple[bool, bool]:
        return user == "alice", False


class _NoKeys:
    async def of(self, kid: str) -> None:
        return None


def _lookup(user: str, name: str) -> ScramCredential | None:
    return _ALICE[name] if user == "alice" else None


_PLAIN: Final = Plain(lambda user, name: None, MadeUp(b"secret"), list(HASHES))
_MECHANISMS: Final[dict[str, Callable[[], Exchange]]] = {
    **{name: Scram(name, _lookup, MadeUp(b"secret")).begin for name in HASHES},
    "PLAIN": lambda: _PlainExchange(_PLAIN, asyncio.Semaphore()),
    "OAUTHBEARER": OAuthBearer(_NoKeys(), Claims()).begin,
}
_FIRST: Final = {
    **dict.fromkeys(HASHES, b"n,a=alice,n=alice,r=rOprNGfwEbeRWgbNEkqO,t=1"),
    "PLAIN": b"alice\0alice\0pencil",
    "OAUTHBEARER": f"n,a=alice,\x01auth=Bearer {_TOKEN}\x01traceid=x\x01\x01".encode(),
}
_SECOND: Final = {
    **dict.fromkeys(HASHES, b"c=biws,r=%s,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="),
    "PLAIN": b"",
    "OAUTHBEARER": b"\x01",
}


class LetIn(AssertionError):
    """A damaged token let a client in."""


def _token(rng: random.Random, valid: bytes) -> bytes:
    match rng.randrange(4):
        case 0:
            return valid
        case 1:
            return garbage(rng, 64)
    return damaged(rng, valid)


def try_tokens(rng: random.Random) -> str:
    """Run one exchange and return how far it came."""
    name = rng.choice(list(_MECHANISMS))
    exchange = _MECHANISMS[name]()
    reached = "first"
    try:
        reply = _step(exchange, _token(rng, _FIRST[name]))
        reached = "last"
        nonce = reply[2:].partition(b",")[0]
        second = _SECOND[name]
        _step(exchange, _token(rng, second % nonce if b"%s" in second else second))
    except AuthenticationRefused as error:
        refused = error
    else:
        return f"{name} answered"
    assert "secret" not in f"{refused} {refused.why}"
    return f"{name} refused, {reached} token"


def _step(exchange: Exchange, token: bytes) -> bytes:
    stepping = exchange.step(token)
    try:
        while True:
            stepping.send(None)  # nothing here waits
    except StopIteration as answered:
        reply, who = answered.value
    if who is not None:
        raise LetIn(f"{token!r} let {who.user} in")
    return reply


class _Socket(asyncio.Transport):
    """Accepts everything written to it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.7", 50_000)})
        self.closed = False

    def write(self, data: Any) -> None:
        assert not self.closed

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0


class Shaking:
    """A TLS listener without a socket."""

    def __init__(self, security: Security) -> None:
        settings = Settings(ephemeral=True, **security.broker_settings("127.0.0.1", 0))
        self._clock = clock = ManualClock()
        certificates = Certificates(Pem.on_listener(settings.on(security.protocol)), clock)
        self._handshakes = Handshakes(certificates, clock, self._connected, Unserved(clock))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        leaving = ssl.MemoryBIO()
        client = context.wrap_bio(ssl.MemoryBIO(), leaving, server_hostname="localhost")
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            self._hello = leaving.read()

    def _connected(self) -> asyncio.BaseProtocol:
        raise LetIn("a handshake without a certificate was finished")

    def try_one(self, rng: random.Random) -> str:
        """Run one handshake, fed in pieces, and return how it ended."""
        secured: Secured = self._handshakes.accept()
        socket = _Socket()
        secured.connection_made(socket)
        data = damaged(rng, self._hello) if rng.randrange(8) else garbage(rng, 600)
        while data and not socket.closed:
            size = rng.randint(1, len(data))
            secured.data_received(data[:size])
            data = data[size:]
        ended = "ended" if socket.closed else "goes on"
        if not socket.closed:
            if rng.randrange(2):
                secured.eof_received()
            else:
                self._clock.advance(HANDSHAKE_MS)
                assert socket.closed
        secured.connection_lost(None)
        assert not len(self._handshakes)
        return f"TLS {ended}"


def _work(seed: int, first: int, count: int, step: int) -> Counter[str]:
    from muster.coordinator.base import log

    log.configure("error", stream=io.StringIO())
    tally: Counter[str] = Counter()
    shaking = Shaking(Security("SSL"))
    for number in range(first, count, step):
        rng = random.Random(f"{seed} {number}")
        try:
            tally[shaking.try_one(rng) if number % _HANDSHAKE_EVERY == 0 else try_tokens(rng)] += 1
        except Exception as error:
            raise AssertionError(
                f"--seed {seed} --input {number}: {type(error).__name__}: {error}"
            ) from error
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.strangers", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--inputs", type=int, default=INPUTS)
    parser.add_argument("--processes", type=int, default=min(os.cpu_count() or 1, 4))
    parser.add_argument("--input", type=int, help="repeat this one input alone")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    began = time.monotonic()
    whole: Counter[str] = Counter()
    if given.input is not None:
        whole = _work(given.seed, given.input, given.input + 1, 1)
    else:
        with ProcessPoolExecutor(given.processes) as pool:
            for tally in pool.map(
                _work,
                *zip(
                    *((given.seed, n, given.inputs, given.processes) for n in range(given.processes)),
                    strict=True,
                ),
            ):
                whole += tally
    for what, count in sorted(whole.items()):
        print(f"{what:36}{count:12,}")
    print(
        f"{sum(whole.values()):,} inputs in {time.monotonic() - began:.0f} s: "
        "nobody was let in, and nothing raised"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
