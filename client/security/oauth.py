"""Tokens for OAUTHBEARER, from a function of the caller's."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from muster.client.network.threads import in_thread

TokenProvider: TypeAlias = Callable[[], str] | Callable[[], Awaitable[str]]
"""Returns a token as its issuer wrote it: for most, a JWT in compact form."""


async def token_of(provider: TokenProvider) -> str:
    """A fresh token. Raises what the provider raises, and TypeError for what is no token."""
    if inspect.iscoroutinefunction(provider) or inspect.iscoroutinefunction(
        getattr(provider, "__call__", None)  # noqa: B004
    ):
        token: object = await provider()  # type: ignore[misc]
    else:
        token = await in_thread(provider)
        if inspect.isawaitable(token):
            token = await token
    if not isinstance(token, str) or not token:
        raise TypeError(
            f"sasl_oauth_token_provider returned {type(token).__name__}; it takes text, the token"
        )
    return token
