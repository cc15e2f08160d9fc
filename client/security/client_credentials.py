"""OAUTHBEARER tokens from an issuer, for a client's id and secret (RFC 6749 section 4.4, KIP-768)."""

from __future__ import annotations

import base64
import json
import logging
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException, HTTPMessage
from typing import IO, Any, Final
from urllib.parse import quote_plus, urlencode, urlsplit

from muster.client.errors import AuthenticationFailed, Unreachable
from muster.client.security.mechanism import check_unicode
from muster.client.security.oauth import checked_extensions
from muster.client.security.tls import client_context, what_failed

log = logging.getLogger(__name__)

_DUE: Final = 0.8
"""The fraction of its lifetime after which a token is replaced: Kafka's sasl.login.refresh.window.factor."""
_TIMEOUT_MS: Final = 10_000
_ANSWER_BYTES_MAX: Final = 1024 * 1024
_SHOWN_MAX: Final = 200
_MAY_PASS: Final = frozenset({408, 425, 429})


class ClientCredentials:
    """A `sasl_oauth_token_provider` that gets tokens from an issuer's token endpoint.

        provider = ClientCredentials("https://issuer/oauth/token", "billing", secret, scope="kafka")
        Consumer(..., sasl_mechanism="OAUTHBEARER", sasl_oauth_token_provider=provider)

    The provider keeps a token until 80 % of its lifetime has passed, for all clients that share it, and is
    thread-safe. `scope` and `extensions` (KIP-342) are what the issuer and the broker ask for. The issuer is
    verified with `cafile`, a PEM file, or `ssl_context`; without them, with the system's CAs.
    `urlencode_header` encodes id and secret as RFC 6749 says and some issuers require (Kafka's
    sasl.oauthbearer.header.urlencode). `timeout_ms` bounds connecting, and each wait for the response.

    Raises ValueError for unusable arguments. A call raises AuthenticationFailed if the issuer refuses, and
    Unreachable, which clients retry, if it cannot be reached or fails temporarily.
    """

    def __init__(
        self,
        token_url: str,
        client_id: str,
        client_secret: str,
        *,
        scope: str | None = None,
        extensions: Mapping[str, str] | None = None,
        cafile: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        urlencode_header: bool = False,
        timeout_ms: int = _TIMEOUT_MS,
    ) -> None:
        parts = _checked_url(token_url)
        for name, value in (("client_id", client_id), ("client_secret", client_secret), ("scope", scope)):
            check_unicode(name, str(value))
        for name, value in (("client_id", client_id), ("client_secret", client_secret)):
            if not isinstance(value, str) or not value:
                raise ValueError(f"{name} is missing: it takes what the issuer gave to this client")
        if cafile is not None and ssl_context is not None:
            raise ValueError("cafile is given with ssl_context, which has its own: leave one out")
        self._shown = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"
        if parts.scheme == "http":
            log.warning("token endpoint %s: the client secret is sent without TLS", self._shown)
        elif ssl_context is None:
            ssl_context = client_context(cafile=cafile, cafile_name="cafile")
        self.extensions: Mapping[str, str] = checked_extensions(dict(extensions or {}))
        self._url = token_url
        self._client_id = client_id
        self._secret = client_secret
        quoted = (quote_plus(each) if urlencode_header else each for each in (client_id, client_secret))
        self._authorization = f"Basic {base64.b64encode(':'.join(quoted).encode()).decode()}"
        self._body = urlencode({"grant_type": "client_credentials", **({"scope": scope} if scope else {})})
        self._timeout_s = timeout_ms / 1000
        handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
        if ssl_context is not None:
            handlers.append(urllib.request.HTTPSHandler(context=ssl_context))
        self._opener = urllib.request.build_opener(*handlers)
        self._asking = threading.Lock()  # held while the issuer is asked
        self._lock = threading.Lock()  # for the token; never held for long, since event loops wait for it
        self._token: str | None = None
        self._due_at = self._ends_at = 0.0  # wall-clock time: it passes while a computer sleeps

    def __repr__(self) -> str:
        return f"<ClientCredentials {self._client_id} at {self._shown}>"

    def __call__(self) -> str:
        """A token with at least a fifth of its life left; the last one, while the issuer is down. Blocks."""
        if not self._asking.acquire(timeout=2 * self._timeout_s):
            raise Unreachable(f"token endpoint {self._shown}: no answer in time")
        try:
            now, token = time.time(), self._token
            if token is not None and now < self._due_at:
                return token
            try:
                token, lifetime_s = self._fetched()
            except Unreachable as error:
                token = self._token  # again: it may have been refused meanwhile
                if token is None or now >= self._ends_at:
                    raise
                log.warning("%s; the last token still serves for %.0f s", error, self._ends_at - now)
                return token
            now = time.time()
            self._due_at, self._ends_at = now + _DUE * lifetime_s, now + lifetime_s
            with self._lock:
                self._token = token
            return token
        finally:
            self._asking.release()

    def forget(self, token: str) -> None:
        """A broker refused this token: do not use it again. Does not wait for the issuer."""
        with self._lock:
            if token == self._token:
                self._token = None

    def _fetched(self) -> tuple[str, float]:
        """A new token, and its lifetime in seconds."""
        request = urllib.request.Request(
            self._url,
            self._body.encode(),
            {
                "Accept": "application/json",
                "Authorization": self._authorization,
                "Cache-Control": "no-cache",
                "Content-Type": "application/x-www-form-urlencoded",
            },
        )
        try:
            with self._opener.open(request, timeout=self._timeout_s) as response:
                answer = response.read(_ANSWER_BYTES_MAX)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error) from None
        except (OSError, HTTPException) as error:
            raise self._unreachable(error) from None
        return self._read(answer)

    def _read(self, answer: bytes) -> tuple[str, float]:
        told = _json(answer)
        token = told.get("access_token") or told.get("id_token")
        if not isinstance(token, str) or not token:
            raise AuthenticationFailed(
                f"token endpoint {self._shown}: there is no access_token in its answer; is it the issuer's "
                "token endpoint?"
            )
        lifetime = told.get("expires_in")
        try:
            return token, max(0.0, float(lifetime if lifetime is not None else _left(token)))
        except (TypeError, ValueError):
            return token, 0.0

    def _refused(self, error: urllib.error.HTTPError) -> Exception:
        where = f"token endpoint {self._shown}"
        try:
            told = _json(error.read(_ANSWER_BYTES_MAX))
        except (OSError, HTTPException):
            told = {}
        code, description = (self._harmless(told.get(name)) for name in ("error", "error_description"))
        said = ": ".join(each for each in (code, description) if each)
        answered = f"it answered {error.code}{f' ({said})' if said else ''}"
        if error.code >= 500 or error.code in _MAY_PASS:
            return Unreachable(f"{where}: {answered}")
        hint = "check its URL"
        if 300 <= error.code < 400:
            hint = "redirects are not followed, since the secret would go along: give the URL they lead to"
        elif code in ("invalid_client", "unauthorized_client") or error.code in (401, 403):
            hint = f"check the id ({self._client_id}) and the secret of the client"
        elif code == "invalid_scope" or error.code == 400:
            hint = "check the scope, and what the issuer lets this client ask for"
        return AuthenticationFailed(f"{where} gives no token: {answered}; {hint}")

    def _harmless(self, said: object) -> str:
        """What the issuer says about a failure, without any secrets that it repeats."""
        if not isinstance(said, str):
            return ""
        secrets = (self._secret, self._authorization.removeprefix("Basic "), quote_plus(self._secret))
        for secret in secrets:
            said = said.replace(secret, "...")
        return "".join(each if each.isprintable() else " " for each in said)[:_SHOWN_MAX]

    def _unreachable(self, error: Exception) -> Exception:
        where = f"token endpoint {self._shown}"
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(cause, ssl.SSLCertVerificationError):
            # The hints of `what_failed` are for brokers.
            why = f"its certificate is not accepted: {cause.verify_message}"
            return AuthenticationFailed(f"{where}: {why} (name the issuer's CA in a file of its own)")
        if isinstance(cause, ssl.SSLError):
            return Unreachable(f"{where}: {what_failed(cause)}")
        if isinstance(cause, TimeoutError):
            return Unreachable(f"{where}: no answer in time")
        why = cause.strerror if isinstance(cause, OSError) and cause.strerror else type(cause).__name__
        return Unreachable(f"{where}: {why.lower()}")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: they would take the secret elsewhere."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> None:
        return None


def _checked_url(url: str) -> Any:
    try:
        parts = urlsplit(url)
    except ValueError:  # an IPv6 address; the URL may hold a password
        raise ValueError("token_url: it takes https://host/path") from None
    try:
        (parts.hostname or "").encode("idna")  # UnicodeError, a ValueError: a label is empty or too long
        there = parts.scheme in ("https", "http") and parts.hostname and (parts.port or True)
    except ValueError:  # the port
        there = False
    if parts.username is not None or parts.password is not None:
        raise ValueError("token_url has a user in it: give client_id and client_secret instead")
    shown = url.partition("?")[0].partition("#")[0]  # the rest may hold a key
    if not there:
        raise ValueError(f"token_url={shown!r}: it takes https://host/path")
    beyond_host = f"{parts.path}?{parts.query}"
    if not beyond_host.isascii() or any(each <= " " or each == "\x7f" for each in url.strip()):
        raise ValueError(f"token_url={shown!r}: write a blank as %20, and what is not ASCII likewise")
    return parts


def _json(text: bytes) -> dict[str, Any]:
    try:
        told = json.loads(text)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _left(token: str) -> float:
    """The time a JWT has left, in seconds; 0 if it is not one. (Brokers check its signature; we need not.)"""
    try:
        claims = token.split(".")[1]
        told = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
        return float(told["exp"]) - time.time()
    except (IndexError, KeyError, TypeError, ValueError):
        return 0.0
