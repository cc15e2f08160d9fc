"""Authenticates an open connection (KIP-152), and again before its session ends (KIP-368)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from muster.client.errors import AuthenticationFailed, Unreachable, refusal
from muster.client.network.threads import in_thread
from muster.client.security.mechanism import Exchange, Mechanism
from muster.protocol.errors import ErrorCode
from muster.protocol.message import Message
from muster.protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

Ask: TypeAlias = Callable[[Message], Awaitable[Any]]

_ROUNDS_MAX: Final = 4


async def log_in(mechanism: Mechanism, ask: Ask, until: float) -> int:
    """Authenticate. Returns how long the session lasts, in milliseconds; 0: forever. `ask` sends a request
    and returns its response. Raises AuthenticationFailed, any ClientError of `ask` and the token provider,
    and Unreachable if there are no credentials by `until`."""
    try:
        async with asyncio.timeout_at(until):
            exchange = await mechanism.exchange()
    except TimeoutError:
        raise Unreachable("sasl_oauth_token_provider has no token in time") from None
    handshake = await ask(SaslHandshakeRequest(mechanism=mechanism.name))
    if handshake.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(sorted(handshake.mechanisms)) or "none"
        raise AuthenticationFailed(
            f"the broker does not offer sasl_mechanism {mechanism.name}; it offers {offered}"
        )
    if handshake.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise AuthenticationFailed(
            "this listener takes no SASL: set security_protocol to PLAINTEXT or SSL, or use another port"
        )
    if handshake.error_code:
        raise _refused(mechanism, handshake.error_code, None)
    message: bytes | None = next(exchange)
    for _ in range(_ROUNDS_MAX):
        assert message is not None
        answer = await ask(SaslAuthenticateRequest(auth_bytes=message))
        if answer.error_code:
            refused = _refused(mechanism, answer.error_code, answer.error_message)
            exchange.throw(refused)
            raise refused
        if mechanism.is_slow:
            message = await in_thread(_next, exchange, answer.auth_bytes)
        else:
            message = _next(exchange, answer.auth_bytes)
        if message is None:
            lifetime_ms: int = answer.session_lifetime_ms
            return lifetime_ms
    raise AuthenticationFailed(f"{mechanism.name}: the broker does not come to an end")


def _next(exchange: Exchange, answer: bytes) -> bytes | None:
    """What to send after this response; None if there is nothing more."""
    try:
        return exchange.send(answer)
    except StopIteration:
        return None


def _refused(mechanism: Mechanism, code: int, why: str | None) -> AuthenticationFailed:
    return AuthenticationFailed(f"the broker refused {mechanism.name}: {why or refusal(code)}")
