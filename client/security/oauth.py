"""Tokens for OAUTHBEARER: from the caller's function, or from a file."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from muster.client.network.threads import in_thread
from muster.client.security.mechanism import TokenProvider

_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
_EXTENSION: Final = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+")


async def token_of(provider: TokenProvider) -> str:
    """A fresh token. Raises what the provider raises, and TypeError if the result is not a token."""
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
    if not _TOKEN.fullmatch(token):
        raise TypeError("sasl_oauth_token_provider returned text with characters that no token has")
    return token


def extensions_of(provider: object) -> Mapping[str, str]:
    """The extensions to send with a provider's tokens. Raises ValueError, naming the invalid extension."""
    extensions = getattr(provider, "extensions", None)
    return checked_extensions(extensions) if isinstance(extensions, Mapping) else {}


def checked_extensions(extensions: Mapping[str, str]) -> Mapping[str, str]:
    """Return the extensions. Raises ValueError, naming one that cannot be sent."""
    for name, value in extensions.items():
        if not _EXTENSION.fullmatch(name) or name.lower() == "auth":
            raise ValueError(f"SASL extension {name!r}: names are letters, and not auth")
        if not _EXTENSION_VALUE.fullmatch(value):
            raise ValueError(
                f"SASL extension {name}: its value is empty, or has characters that cannot be sent"
            )
    return extensions


class TokenFile:
    """The token in a file, read again for each login: something else keeps it fresh."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self.extensions: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return f"TokenFile({str(self._path)!r})"

    def __call__(self) -> str:
        return self._path.read_text(encoding="utf-8-sig").strip()
