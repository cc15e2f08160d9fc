"""SASL on one connection: what a client may send until it has authenticated, and again when that expires.

    ApiVersions (once) → SaslHandshake v0 → tokens without headers
                       → SaslHandshake v1 → tokens in SaslAuthenticate

It is the first gate of a session: until a client is let in, every request but that ApiVersions ends here.
Once it is in, only requests that re-authenticate it (KIP-368) come here, and those after its authentication
has expired. What it takes passes no other gate but that of the faults.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Final, NamedTuple

from muster.coordinator.base.answers import LATER, Answered
from muster.coordinator.base.clock import Clock, Timer, wall_ms
from muster.coordinator.base.log import Logger
from muster.coordinator.base.step import RequestContext
from muster.coordinator.security.exchange import (
    Authenticated,
    AuthenticationRefused,
    Exchange,
    Mechanism,
)
from muster.coordinator.server.connection import Connection
from muster.coordinator.server.guessing import Guessing
from muster.coordinator.server.turned_away import (
    expired_authentication,
    failed_authentication,
    mechanism_not_enabled,
    not_authenticated,
    slow_authentication,
)
from muster.coordinator.server.unserved import (
    Cause,
    CloseConnection,
    Unserved,
)
from muster.protocol.api import ApiKey, versions
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

_log: Final = Logger(part="authentication")

AUTHENTICATE_MS: Final = 30_000
"""How long a client has to authenticate. Kafka waits for connections.max.idle.ms."""
_AGAIN_MS: Final = 1_000
"""Minimum time between re-authentications (KIP-368); the first may come at once."""
_API_VERSIONS, _HANDSHAKE, _AUTHENTICATE = (
    int(key).to_bytes(2, "big")
    for key in (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
)


class _State(Enum):
    HANDSHAKE = auto()
    FRAMED = auto()
    """Tokens come in SaslAuthenticate."""
    BARE = auto()
    """Tokens come without headers."""
    IN = auto()
    REFUSING = auto()
    """A request out of turn is refused, and the connection closed."""
    DOOMED = auto()
    """The next request closes the connection without a response."""


class Door(NamedTuple):
    """How the clients of a SASL listener are let in."""

    mechanisms: Mapping[str, Mechanism]
    """The enabled mechanisms, by name."""
    clock: Clock
    """Real time."""
    unserved: Unserved
    guessing: Guessing
    reauth_ms: int
    """How long a client stays authenticated; 0: forever."""
    wall_ms: Callable[[], int] = wall_ms
    """What the expiry of credentials is measured by: `clock` does not follow a wall clock that is set."""


class Authentication:
    """The authentication of one connection. `let_in` is called with the principal, also after it has
    re-authenticated."""

    __slots__ = (
        "_again_ms",
        "_asked_versions",
        "_connection",
        "_door",
        "_exchange",
        "_expires_ms",
        "_forget",
        "_let_in",
        "_mechanism",
        "_principal",
        "_state",
        "_timer",
    )

    def __init__(
        self, door: Door, connection: Connection, let_in: Callable[[str], None], forget: Callable[[], None]
    ) -> None:
        """`forget` is called when decisions about earlier requests must be made anew."""
        self._door = door
        self._connection: Connection | None = connection
        self._let_in = let_in
        self._forget = forget
        self._state = _State.HANDSHAKE
        self._asked_versions = False
        self._exchange: Exchange | None = None
        self._mechanism = ""
        self._principal: str | None = None
        self._again_ms = 0
        self._expires_ms: int | None = None
        self._timer: Timer | None = door.clock.at(door.clock.now_ms() + AUTHENTICATE_MS, self._too_slow)

    def __repr__(self) -> str:
        return f"<Authentication {self._state.name} {self._principal}>"

    def close(self) -> None:
        """The connection has ended."""
        self._connection = None
        self._stop_timer()

    @property
    def is_in(self) -> bool:
        """Whether a client has been let in; it may be re-authenticating."""
        return self._principal is not None

    # --- requests -------------------------------------------------------------------------------------------

    def takes(self, frame: bytes) -> bool:
        """Whether a request, or a token, is to be answered here, and not by its API."""
        key = frame[:2]
        if self._state is _State.IN:
            return key in (_HANDSHAKE, _AUTHENTICATE) or self._has_expired
        if self._state is _State.HANDSHAKE and key == _API_VERSIONS and not self._asked_versions:
            # A version that is not served is answered with those that are; another request may follow.
            self._asked_versions = int.from_bytes(frame[2:4], "big", signed=True) in versions(
                ApiKey.API_VERSIONS
            )
            return False
        if self._state is _State.FRAMED and key != _AUTHENTICATE:
            self._state = _State.REFUSING
            return False
        return True

    @property
    def refuses(self) -> bool:
        """Whether a request that was not taken must be refused, by `refuse`."""
        return self._state is _State.REFUSING

    def refuse(self, broker: object, request: object, context: RequestContext, answered: Answered) -> object:
        """Refuse a request that came in the middle of authenticating (an `Api.begin`)."""
        self._tell(not_authenticated("another request came in place of a token"))
        error = KafkaError(ErrorCode.ILLEGAL_SASL_STATE, "a SaslAuthenticate request was expected")
        self._end(lambda: answered(error))
        return LATER

    @property
    def takes_bare_tokens(self) -> bool:
        """Whether what is taken is a token without a header, for `step`, and not a request."""
        return self._state is _State.BARE

    def check(self, api_key: int) -> None:
        """Check a request that was taken, before it is read. Raises CloseConnection if it is out of turn."""
        if self._state is _State.DOOMED:
            raise CloseConnection("another mechanism than before, to authenticate anew")
        if self._state is _State.IN and api_key != ApiKey.SASL_HANDSHAKE and self._has_expired:
            raise CloseConnection(expired_authentication())
        waits = self._state in (_State.HANDSHAKE, _State.REFUSING)
        if waits and api_key != ApiKey.SASL_HANDSHAKE:
            raise CloseConnection(not_authenticated(f"{_name(api_key)} was asked for"))

    def begin(self, broker: object, request: object, context: RequestContext, answered: Answered) -> object:
        """Process a request that was taken (an `Api.begin`)."""
        if isinstance(request, SaslHandshakeRequest):
            if self._state is _State.IN and not self._may_begin_again:
                return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])
            return self._shake_hands(request, context.api_version, answered)
        assert isinstance(request, SaslAuthenticateRequest)
        if self._state is _State.IN:
            return SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE,
                error_message="SaslAuthenticate request received after successful authentication",
                auth_bytes=b"",
            )
        return self._stepping(request.auth_bytes, answered)

    def step(self, token: bytes) -> None:
        """Process a token without a header, and answer it."""
        connection = self._connection
        assert connection is not None

        def answered(answer: SaslAuthenticateResponse) -> None:
            reply = answer.auth_bytes
            connection.respond(b"" if answer.error_code else len(reply).to_bytes(4, "big") + reply)

        connection.under_way(self._stepping(token, answered), True)

    @property
    def _has_expired(self) -> bool:
        return self._expires_ms is not None and self._door.clock.now_ms() >= self._expires_ms

    @property
    def _may_begin_again(self) -> bool:
        return self._expires_ms is not None and self._door.clock.now_ms() >= self._again_ms

    def _shake_hands(self, request: SaslHandshakeRequest, version: int, answered: Answered) -> object:
        mechanism = self._door.mechanisms.get(request.mechanism)
        enabled = list(self._door.mechanisms)
        if mechanism is None:
            self._tell(mechanism_not_enabled(request.mechanism, ", ".join(enabled)))
            refusal = SaslHandshakeResponse(
                error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=enabled
            )
            self._end(lambda: answered(refusal))
            return LATER
        if self.is_in and request.mechanism != self._mechanism:
            self._state = _State.DOOMED
        else:
            self._state = _State.FRAMED if version else _State.BARE
        self._forget()
        if self.is_in:
            self._again_ms = self._door.clock.now_ms() + _AGAIN_MS
        self._mechanism = request.mechanism
        assert self._connection is not None
        self._exchange = mechanism.begin(self._connection.client_host)
        return SaslHandshakeResponse(error_code=ErrorCode.NONE, mechanisms=enabled)

    def _stepping(
        self, token: bytes, answered: Callable[[SaslAuthenticateResponse], None]
    ) -> asyncio.Task[None]:
        """A task, since a mechanism may take its time."""
        return asyncio.get_running_loop().create_task(self._step(token, answered), name="SASL")

    async def _step(self, token: bytes, answered: Callable[[SaslAuthenticateResponse], None]) -> None:
        assert self._exchange is not None
        refused: AuthenticationRefused | None = None
        reply, who = b"", None
        try:
            reply, who = await self._exchange.step(token)
            if who is not None:
                self._check_same(who)
        except AuthenticationRefused as error:
            refused = error
        except Exception as error:
            _log.error("a SASL mechanism failed", mechanism=self._mechanism, exc_info=error)
            refused = AuthenticationRefused("Authentication failed: the broker could not check it")
        if self._connection is None:
            return
        if refused is not None:
            self._tell(failed_authentication(f"{self._mechanism}: {refused.why}", refused.remedy))
            refusal = SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=str(refused), auth_bytes=b""
            )
            self._end(lambda: answered(refusal))
            return
        lifetime_ms = 0 if who is None else self._enter(who)
        answered(
            SaslAuthenticateResponse(
                error_code=ErrorCode.NONE,
                error_message=None,
                auth_bytes=reply,
                session_lifetime_ms=lifetime_ms,
            )
        )

    def _check_same(self, who: Authenticated) -> None:
        if self.is_in and f"User:{who.user}" != self._principal:
            raise AuthenticationRefused(
                "Cannot change principals during re-authentication",
                f"{self._principal} authenticated again as User:{who.user}",
            )

    def _enter(self, who: Authenticated) -> int:
        """Let the client in; returns for how many milliseconds (0: forever)."""
        now_ms = self._door.clock.now_ms()
        ends = [now_ms + self._door.reauth_ms] if self._door.reauth_ms else []
        if who.expires_ms is not None:
            ends.append(now_ms + who.expires_ms - self._door.wall_ms())
        self._stop_timer()
        self._expires_ms = min(ends, default=None)
        if self._expires_ms is not None:
            self._timer = self._door.clock.at(self._expires_ms, self._forget)
        self._state = _State.IN
        self._exchange = None
        self._principal = f"User:{who.user}"
        self._let_in(self._principal)
        return 0 if self._expires_ms is None else max(self._expires_ms - now_ms, 1)

    # --- refusals -------------------------------------------------------------------------------------------

    def _end(self, answer: Callable[[], None]) -> None:
        """Answer after a delay, and close (KIP-306): guessing takes time, and ties up only a socket."""
        assert self._connection is not None
        self._state = _State.DOOMED
        self._connection.end()
        self._stop_timer()
        delay_ms = self._door.guessing.delay_ms(self._connection.client_host)
        self._timer = self._door.clock.at(self._door.clock.now_ms() + delay_ms, answer)

    def _too_slow(self) -> None:
        self._timer = None
        if self._connection is not None:
            self._tell(slow_authentication(AUTHENTICATE_MS))
            self._connection.abort()

    def _stop_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _tell(self, cause: Cause) -> None:
        connection = self._connection
        if connection is not None:
            self._door.unserved.tell(connection.client_host, cause, connection.client_id)


def _name(api_key: int) -> str:
    try:
        return ApiKey(api_key).name
    except ValueError:
        return f"API key {api_key}"
