"""Authenticates an open connection (KIP-152), again where its session ends (KIP-368)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from muster.client.errors import AuthenticationFailed, refusal
from muster.client.security.mechanisms import Mechanism
from muster.protocol.errors import ErrorCode
from muster.protocol.message import Message
from muster.protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

Ask: TypeAlias = Callable[[Message], Awaitable[Any]]

_ROUNDS_MAX: Final = 4


async def log_in(mechanism: Mechanism, ask: Ask) -> int:
    """How long the session lasts, in milliseconds; 0: for ever. `ask` sends a request and returns its
    response. Raises AuthenticationFailed."""
    exchange = await mechanism.exchange()
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
    _require_accepted(mechanism, handshake.error_code, None)
    message = next(exchange)
    for _ in range(_ROUNDS_MAX):
        answer = await ask(SaslAuthenticateRequest(auth_bytes=message))
        _require_accepted(mechanism, answer.error_code, answer.error_message)
        try:
            message = exchange.send(answer.auth_bytes)
        except StopIteration:
            lifetime_ms: int = answer.session_lifetime_ms
            return lifetime_ms
    raise AuthenticationFailed(f"{mechanism.name}: the broker does not come to an end")


def _require_accepted(mechanism: Mechanism, code: int, why: str | None) -> None:
    if code:
        raise AuthenticationFailed(f"the broker refused {mechanism.name}: {why or refusal(code)}")
