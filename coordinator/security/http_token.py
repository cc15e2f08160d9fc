"""The token that lets a client in over HTTP: its file, and how a request presents it (RFC 6750, RFC 7617)."""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from pathlib import Path
from typing import Final

_BYTES_MAX: Final = 4_096
_TOKEN: Final = rb"[!-~]+"


class TokenError(Exception):
    """A file holds no usable token; the text says why."""


class Token:
    """A secret: never shown."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        """Visible ASCII characters without spaces. Raises TokenError."""
        if not secret:
            raise TokenError("it is empty")
        if len(secret) > _BYTES_MAX:
            raise TokenError(f"longer than {_BYTES_MAX} bytes")
        if re.fullmatch(_TOKEN, secret) is None:
            raise TokenError("a token is one line of visible ASCII characters without spaces")
        self._secret = secret

    def __repr__(self) -> str:
        return "<Token>"

    @classmethod
    def read(cls, path: str) -> Token:
        """Read the token: the only line of a file. Raises TokenError."""
        try:
            with Path(path).open("rb") as file:
                text = file.read(_BYTES_MAX + len(b"\r\n") + 1)
        except OSError as error:
            raise TokenError((error.strerror or str(error)).lower()) from None
        return cls(text.removesuffix(b"\n").removesuffix(b"\r"))

    @property
    def authorization(self) -> str:
        """The value of the header `Authorization` that presents it."""
        return f"Bearer {self._secret.decode('ascii')}"

    def why_not(self, authorization: str) -> str | None:
        """Why a header `Authorization` does not present it, without revealing it; None if it does, as Bearer,
        or as Basic with any user and the token as the password. Takes the same time for every wrong token of
        the right length."""
        scheme, _, credentials = authorization.partition(" ")
        match scheme.lower():
            case "bearer":
                shown = credentials.strip().encode("utf-8", "surrogateescape")
            case "basic":
                try:
                    shown = base64.b64decode(credentials.strip(), validate=True).partition(b":")[2]
                except (binascii.Error, ValueError):
                    return "Basic without base64"
            case _:
                return "Authorization that is neither Bearer nor Basic"
        return None if hmac.compare_digest(shown, self._secret) else f"wrong token, as {scheme.capitalize()}"
