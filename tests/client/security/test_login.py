"""Logging in on a connection, and again before the session ends (KIP-368), with a fake broker."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from muster.client.errors import AuthenticationFailed, ConnectionLost, Unreachable
from muster.client.network.connection import IN_FLIGHT_MAX, Address, Connection, deadline
from muster.client.security.login import log_in
from muster.client.security.mechanism import Mechanism
from muster.client.security.mechanisms import OAuthBearer, Plain, Scram
from muster.client.security.security import Security
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode
from muster.protocol.message import Message
from muster.protocol.messages.metadata import MetadataRequest, MetadataResponse
from muster.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tests.client.failing import failure
from tests.client.listeners import answer, listener, read_request, shake_hands
from tests.support.facts import until

LONG_S = 30.0
SHORT_S = 0.2
METADATA = MetadataRequest(topics=[])
SPOKEN = {18: (0, 4), 3: (0, 13), 17: (0, 1), 36: (0, 2)}


class SaslBroker:
    """Accepts every login unless `refuses` is set. `asked` lists the APIs of its requests after the first
    login."""

    def __init__(self) -> None:
        self.refuses = False
        self.logins = 0
        self.asked: list[ApiKey] = []
        self.may_answer = asyncio.Event()
        """Metadata is answered only while this is set."""
        self.may_answer.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await shake_hands(reader, writer, SPOKEN)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head, _ = await read_request(reader)
                if self.logins:
                    self.asked.append(ApiKey(head.api_key))
                if head.api_key == ApiKey.METADATA:
                    await self.may_answer.wait()
                answer(writer, head, self._response(head.api_key))
                if head.api_key == ApiKey.SASL_AUTHENTICATE and self.refuses:
                    writer.close()

    def _response(self, api_key: int) -> Message:
        if api_key == ApiKey.METADATA:
            return MetadataResponse(brokers=[], cluster_id="c", topics=[])
        if api_key == ApiKey.SASL_HANDSHAKE:
            return SaslHandshakeResponse(mechanisms=["PLAIN"])
        self.logins += 1
        if self.refuses:
            return SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message="go away", auth_bytes=b""
            )
        return SaslAuthenticateResponse(error_message=None, auth_bytes=b"", session_lifetime_ms=3_600_000)


class Provider:
    """Of tokens, as ClientCredentials is."""

    def __init__(self) -> None:
        self.forgotten: list[str] = []

    def __call__(self) -> str:
        return "token"

    def forget(self, token: str) -> None:
        self.forgotten.append(token)


@contextlib.asynccontextmanager
async def let_in(address: Address, mechanism: Mechanism | None = None) -> AsyncIterator[Connection]:
    security = Security(mechanism=mechanism or Plain("alice", "secret"))
    connection = await Connection.open(address, "test", deadline(LONG_S), security=security)
    try:
        yield connection
    finally:
        await connection.close()


async def test_nothing_comes_between_the_frames_of_a_login() -> None:
    broker = SaslBroker()
    async with listener(broker.serve) as address, let_in(address) as connection:
        broker.may_answer.clear()
        # Some are sent, some wait for a slot, and some arrive when the session is about to end.
        calls = [
            asyncio.create_task(connection.call(METADATA, deadline(LONG_S))) for _ in range(2 * IN_FLIGHT_MAX)
        ]
        await until(lambda: connection.in_flight == IN_FLIGHT_MAX)
        connection._renew_at = deadline(0)
        calls += [asyncio.create_task(connection.call(METADATA, deadline(LONG_S))) for _ in range(5)]
        await asyncio.sleep(0)
        broker.may_answer.set()
        async with asyncio.timeout(LONG_S):
            await asyncio.gather(*calls)
        before = [ApiKey.METADATA] * (2 * IN_FLIGHT_MAX)
        login = [ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE]
        assert broker.asked == before + login + [ApiKey.METADATA] * 5
        assert connection._renew_at > deadline(3_000)


async def test_a_refusal_ends_this_connection_and_the_next_one_logs_in_anew() -> None:
    broker = SaslBroker()
    async with listener(broker.serve) as address:
        async with let_in(address) as connection:
            broker.refuses = True
            connection._renew_at = deadline(0)
            results = await asyncio.gather(
                *(connection.call(METADATA, deadline(LONG_S)) for _ in range(3)), return_exceptions=True
            )
            for each in results:
                assert type(each) is ConnectionLost
                assert "authenticating again failed" in str(each)
                assert "go away" in str(each)
            assert not connection.is_open
            assert broker.logins == 2
            with pytest.raises(ConnectionLost):
                await connection.call(METADATA, deadline(LONG_S))
            assert broker.logins == 2
        with pytest.raises(AuthenticationFailed, match="go away"):
            async with let_in(address):
                pass
        broker.refuses = False
        async with let_in(address) as connection:
            await connection.call(METADATA, deadline(LONG_S))


async def test_a_token_that_does_not_come_ends_the_opening() -> None:
    asked = asyncio.Event()

    async def never() -> str:
        asked.set()
        await asyncio.Event().wait()
        return ""

    broker = SaslBroker()
    security = Security(mechanism=OAuthBearer(never))
    async with listener(broker.serve) as address:
        why = await failure(
            lambda: Connection.open(address, "test", deadline(SHORT_S), security=security),
            "has no token in time",
        )
    assert isinstance(why, Unreachable)
    assert asked.is_set()


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (Unreachable("the issuer is away"), Unreachable),
        (AuthenticationFailed("no"), AuthenticationFailed),
        (OSError("no"), AuthenticationFailed),
    ],
)
async def test_what_a_provider_raises(raised: Exception, kind: type[Exception]) -> None:
    def fails() -> str:
        raise raised

    async with listener(SaslBroker().serve) as address:
        with pytest.raises(kind, match=str(raised)) as caught:
            async with let_in(address, OAuthBearer(fails)):
                pass
        assert type(caught.value) is kind


@pytest.mark.parametrize("challenge", [b"", b'{"status":"invalid_token"}'])
async def test_a_refused_token_is_forgotten(challenge: bytes) -> None:
    """With the challenge of RFC 7628 first, or by an error code at once."""
    provider = Provider()
    answers = [SaslAuthenticateResponse(error_message=None, auth_bytes=challenge)] if challenge else []
    answers.append(
        SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message="go away", auth_bytes=b""
        )
    )

    async def ask(request: Message) -> Message:
        if isinstance(request, SaslHandshakeRequest):
            return SaslHandshakeResponse(mechanisms=["OAUTHBEARER"])
        return answers.pop(0)

    with pytest.raises(AuthenticationFailed, match="go away"):
        await log_in(OAuthBearer(provider), ask, deadline(LONG_S))
    assert not answers
    assert provider.forgotten == ["token"]


async def test_the_loop_does_not_wait_for_the_hash_of_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    real: Callable[..., bytes] = hashlib.pbkdf2_hmac

    def hashed(*arguments: Any) -> bytes:
        threads.append(threading.current_thread())
        return real(*arguments)

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", hashed)

    async def ask(request: Message) -> Message:
        if isinstance(request, SaslHandshakeRequest):
            return SaslHandshakeResponse(mechanisms=[])
        assert isinstance(request, SaslAuthenticateRequest)
        nonce = request.auth_bytes.decode().rpartition("r=")[2]
        return SaslAuthenticateResponse(error_message=None, auth_bytes=f"r={nonce}x,s=AAAA,i=4096".encode())

    with pytest.raises(AuthenticationFailed, match="cannot prove"):
        await log_in(Scram("SCRAM-SHA-256", "alice", "secret"), ask, deadline(LONG_S))
    assert threads
    assert threads[0] is not threading.main_thread()
