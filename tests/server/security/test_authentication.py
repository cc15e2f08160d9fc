"""SASL on a connection: before a client is let in, when it fails, and when its login expires."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from muster.coordinator.base.clock import ManualClock
from muster.coordinator.security.exchange import Authenticated, AuthenticationRefused
from muster.coordinator.server import unserved
from muster.coordinator.server.authentication import AUTHENTICATE_MS
from muster.coordinator.server.broker import Broker
from muster.coordinator.server.guessing import SLOW_MS
from muster.coordinator.server.test_mode.faults import Rule
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.classic_group import HeartbeatRequest
from muster.protocol.messages.connection import ApiVersionsRequest
from muster.protocol.messages.metadata import MetadataRequest
from muster.protocol.messages.offsets import OffsetFetchRequest
from muster.protocol.messages.quotas import AlterClientQuotasRequest
from muster.protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.server.conftest import StartBrokers
from tests.server.test_quotas import producing, setting
from tests.server.test_unserved import Lines
from tests.support.facts import turns, until
from tests.support.wire import DEADLINE_S, Wire

METADATA = MetadataRequest(topics=[])
HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


class _Exchange:
    """`again` asks for another token, `as NAME` and `as NAME until MS` prove who it is, anything else proves
    nothing."""

    def __init__(self, gate: asyncio.Event) -> None:
        self._gate = gate

    async def step(self, token: bytes) -> tuple[bytes, Authenticated | None]:
        await self._gate.wait()
        words = token.decode().split()
        if words == ["again"]:
            return b"more", None
        if words == ["broken"]:
            raise RuntimeError("a mistake of ours")
        if words[:1] != ["as"]:
            raise AuthenticationRefused("wrong password", "alice: wrong password")
        return b"welcome", Authenticated(words[1], int(words[3]) if len(words) > 2 else None)


class _Mechanism:
    def __init__(self, name: str) -> None:
        self.name = name
        self.gate = asyncio.Event()
        self.gate.set()

    def begin(self, host: str = "") -> _Exchange:
        return _Exchange(self.gate)


class Server:
    """A broker whose SASL listener has two mechanisms for tests, and a clock of its own."""

    def __init__(self, broker: Broker, reauth_ms: int) -> None:
        self.broker = broker
        self.clock = ManualClock()
        self.wall_ahead_ms = 0
        self.one, self.two = _Mechanism("ONE"), _Mechanism("TWO")
        self.sessions: Any = broker.connections.open_session.__self__  # type: ignore[attr-defined]
        self.sessions.doors = {
            listener: door._replace(
                mechanisms={"ONE": self.one, "TWO": self.two},
                clock=self.clock,
                reauth_ms=reauth_ms,
                wall_ms=lambda: self.clock.now_ms() + self.wall_ahead_ms,
            )
            for listener, door in self.sessions.doors.items()
        }

    @property
    def principals(self) -> list[str]:
        return [each.session.principal for each in self.broker.connections.open.values()]  # type: ignore[union-attr]

    async def fails(self, wire: Wire) -> Any:
        """Return the delayed answer, after which the connection closes."""
        await self.delayed()
        answer = await wire.receive()
        await self.closes(wire)
        return answer

    async def delayed(self) -> None:
        """Let the delay of a failure's answer pass; nothing is closed before."""
        delay_ms = self.broker.settings.connection_failed_authentication_delay_ms
        await until(lambda: (self.clock.next_ms() or 0) == self.clock.now_ms() + delay_ms)
        self.clock.advance(delay_ms - 1)
        await turns(20)
        assert self.broker.connections.open
        self.clock.advance(1)

    async def closes(self, wire: Wire) -> None:
        async with asyncio.timeout(DEADLINE_S):
            with suppress(ConnectionResetError):
                assert await wire._reader.read() == b""


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    made = Lines()
    monkeypatch.setattr(unserved, "_log", made)
    return made


@pytest.fixture
def reauth_ms() -> int:
    return 0


@pytest.fixture
async def server(start_brokers: StartBrokers, reauth_ms: int) -> Server:
    brokers = await start_brokers(listeners="SASL_PLAINTEXT://127.0.0.1:0")
    return Server(brokers.brokers[0], reauth_ms)


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[Wire]:
    async with await Wire.connect(server.broker.port) as wire:
        yield wire


async def handshake(wire: Wire, mechanism: str = "ONE", version: int = 1) -> Any:
    return await wire.call(SaslHandshakeRequest(mechanism=mechanism), version)


async def token(wire: Wire, text: str, version: int = 2) -> Any:
    return await wire.call(SaslAuthenticateRequest(auth_bytes=text.encode()), version)


async def log_in(wire: Wire, text: str = "as alice", mechanism: str = "ONE") -> Any:
    assert (await handshake(wire, mechanism)).error_code == 0
    answer = await token(wire, text)
    assert (answer.error_code, answer.auth_bytes) == (0, b"welcome")
    return answer


# --- being let in -------------------------------------------------------------------------------------------


async def test_tokens_in_requests(server: Server) -> None:
    async with connected(server) as wire:
        assert (await wire.call(ApiVersionsRequest(), 0)).error_code == 0
        answer = await handshake(wire)
        assert (answer.error_code, answer.mechanisms) == (0, ["ONE", "TWO"])
        for version in (0, 1, 2):
            answer = await token(wire, "again", version)
            assert (answer.error_code, answer.auth_bytes) == (0, b"more")
            assert server.principals == ["User:ANONYMOUS"]
        answer = await token(wire, "as alice")
        assert (answer.error_code, answer.auth_bytes, answer.session_lifetime_ms) == (0, b"welcome", 0)
        assert server.principals == ["User:alice"]
        assert (await wire.call(METADATA, 9)).brokers
        (connection,) = server.broker.connections.open.values()
        assert connection.session._context_of(9, "wire").principal == "User:alice"  # type: ignore[union-attr]


async def test_tokens_without_headers(server: Server) -> None:
    """As after SaslHandshake v0: a size, then the token."""
    async with connected(server) as wire:
        await handshake(wire, version=0)
        for sent, received in ((b"again", b"more"), (b"as bob", b"welcome")):
            await wire.send_bytes(len(sent).to_bytes(4, "big") + sent)
            size = int.from_bytes(await wire._reader.readexactly(4), "big")
            assert await wire._reader.readexactly(size) == received
        assert server.principals == ["User:bob"]
        assert (await wire.call(METADATA, 9)).brokers


async def test_tokens_may_come_byte_by_byte(server: Server) -> None:
    async with connected(server) as wire:
        await handshake(wire, version=0)
        for byte in b"\0\0\0\x08as alice":
            await wire.send_bytes(bytes([byte]))
            await turns(3)
        assert await wire._reader.readexactly(11) == b"\0\0\0\x07welcome"


async def test_requests_may_be_pipelined(server: Server) -> None:
    async with connected(server) as wire:
        await wire.send(ApiVersionsRequest(), 0)
        await wire.send(SaslHandshakeRequest(mechanism="ONE"), 1)
        await wire.send(SaslAuthenticateRequest(auth_bytes=b"as alice"), 2)
        await wire.send(METADATA, 9)
        for _ in range(3):
            assert (await wire.receive()).error_code == 0
        assert (await wire.receive()).brokers


async def test_a_version_of_api_versions_that_is_not_served_may_be_followed_by_another(
    server: Server,
) -> None:
    async with connected(server) as wire:
        await wire.send_bytes(b"\0\0\0\x0b\0\x12\0\x63\0\0\0\1\xff\xff\0")
        size = int.from_bytes(await wire._reader.readexactly(4), "big")
        answer = await wire._reader.readexactly(size)
        assert int.from_bytes(answer[4:6], "big") == ErrorCode.UNSUPPORTED_VERSION
        await wire.call(ApiVersionsRequest(), 0)
        await log_in(wire)


async def test_plain_listeners_beside_it_need_no_login(start_brokers: StartBrokers) -> None:
    brokers = await start_brokers(listeners="SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0")
    plain = brokers.brokers[0].listening[1].bound.port
    async with await Wire.connect(plain) as wire:
        assert (await wire.call(METADATA, 9)).brokers
        answer = await handshake(wire)
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE


# --- not being let in ---------------------------------------------------------------------------------------


async def test_whatever_else_comes_first_closes_the_connection(server: Server, lines: Lines) -> None:
    async with connected(server) as wire:
        await wire.send(METADATA, 9)
        await server.closes(wire)
    assert lines.why == [
        "no SASL authentication on a listener that requires it: METADATA was asked for",
    ]


async def test_api_versions_twice_closes_the_connection(server: Server) -> None:
    async with connected(server) as wire:
        await wire.call(ApiVersionsRequest(), 0)
        await wire.send(ApiVersionsRequest(), 0)
        await server.closes(wire)


async def test_a_token_without_a_handshake_closes_the_connection(server: Server) -> None:
    async with connected(server) as wire:
        await wire.send(SaslAuthenticateRequest(auth_bytes=b"as alice"), 2)
        await server.closes(wire)


async def test_a_mechanism_that_is_not_enabled(server: Server, lines: Lines) -> None:
    async with connected(server) as wire:
        await wire.send(SaslHandshakeRequest(mechanism="GSSAPI"), 1)
        answer = await server.fails(wire)
    assert (answer.error_code, answer.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, ["ONE", "TWO"])
    assert lines.why == ["SASL mechanism not enabled: GSSAPI"]
    assert "ONE, TWO" in lines.fields[0]["remedy"]


async def test_a_failure_is_answered_after_a_while_and_nothing_behind_it(
    server: Server, lines: Lines
) -> None:
    async with connected(server) as wire:
        await handshake(wire)
        await wire.send(SaslAuthenticateRequest(auth_bytes=b"let me in"), 2)
        await wire.send(METADATA, 9)
        answer = await server.fails(wire)
    assert (answer.error_code, answer.error_message, answer.auth_bytes) == (
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        "wrong password",
        b"",
    )
    assert lines.why == ["authentication failed: ONE: alice: wrong password"]


async def test_a_bare_token_that_fails_closes_without_a_word(server: Server) -> None:
    async with connected(server) as wire:
        await handshake(wire, version=0)
        await wire.send_bytes(b"\0\0\0\x01?")
        await server.delayed()
        await server.closes(wire)


async def test_who_guesses_waits_longer_and_keeps_nobody_else_out(server: Server) -> None:
    for _ in range(10):
        async with connected(server) as wire:
            await handshake(wire)
            await wire.send(SaslAuthenticateRequest(auth_bytes=b"guess"), 2)
            await server.fails(wire)
    async with connected(server) as wire, connected(server) as another:
        await handshake(wire)
        await wire.send(SaslAuthenticateRequest(auth_bytes=b"guess"), 2)
        await until(lambda: server.clock.next_ms() == server.clock.now_ms() + SLOW_MS)
        await log_in(another)
        server.clock.advance(SLOW_MS)
        assert (await wire.receive()).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    async with await Wire.connect(server.broker.port, from_host="127.0.0.2") as elsewhere:
        await handshake(elsewhere)
        await elsewhere.send(SaslAuthenticateRequest(auth_bytes=b"guess"), 2)
        await server.fails(elsewhere)


async def test_a_mechanism_that_breaks_lets_nobody_in(server: Server) -> None:
    async with connected(server) as wire:
        await handshake(wire)
        await wire.send(SaslAuthenticateRequest(auth_bytes=b"broken"), 2)
        answer = await server.fails(wire)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "mistake" not in answer.error_message


async def test_another_request_in_place_of_a_token_is_refused_as_its_api_does(server: Server) -> None:
    async with connected(server) as wire:
        await handshake(wire)
        await wire.send(HEARTBEAT, 4)
        answer = await server.fails(wire)
    assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE


async def test_a_version_that_is_not_served_in_place_of_a_token_leaves_only_a_handshake(
    server: Server, lines: Lines
) -> None:
    async with connected(server) as wire:
        await handshake(wire)
        await wire.send_bytes(b"\0\0\0\x0b\0\x12\0\x63\0\0\0\1\xff\xff\0")
        size = int.from_bytes(await wire._reader.readexactly(4), "big")
        await wire._reader.readexactly(size)
        await wire.send(METADATA, 9)
        await server.closes(wire)
    assert lines.why == [
        "no SASL authentication on a listener that requires it: METADATA was asked for",
    ]


async def test_who_has_not_logged_in_uses_up_nobodys_quota(server: Server) -> None:
    everybody = setting({"client-id": None}, producer_byte_rate=1_000)
    async with connected(server) as wire:
        await log_in(wire)
        altered = await wire.call(AlterClientQuotasRequest(entries=[everybody], validate_only=False), 1)
        assert [each.error_code for each in altered.entries] == [ErrorCode.NONE]
    async with connected(server) as stranger:
        await handshake(stranger)
        await stranger.send(producing(50_000), 9)
        refused = await server.fails(stranger)
        (partition,) = refused.responses[0].partition_responses
        assert partition.error_code == ErrorCode.ILLEGAL_SASL_STATE
    async with connected(server) as wire:
        await log_in(wire)
        assert (await wire.call(producing(100), 9)).throttle_time_ms == 0
        assert (await wire.call(producing(50_000), 9)).throttle_time_ms > 0


async def test_it_asks_again_within_a_login(server: Server) -> None:
    """A second handshake is not a token."""
    async with connected(server) as wire:
        await handshake(wire)
        await wire.send(SaslHandshakeRequest(mechanism="ONE"), 1)
        assert (await server.fails(wire)).error_code == ErrorCode.ILLEGAL_SASL_STATE


async def test_what_is_too_large_for_a_stranger(server: Server) -> None:
    async with connected(server) as wire:
        await handshake(wire)
        await wire.send(SaslAuthenticateRequest(auth_bytes=bytes(600 * 1024)), 2)
        await server.closes(wire)
    async with connected(server) as wire:
        await log_in(wire)
        groups = OffsetFetchRequest(group_id="g" * 32_000, topics=[])
        assert (await wire.call(groups, 1)) is not None


async def test_who_does_not_log_in_has_to_go(server: Server, lines: Lines) -> None:
    async with connected(server) as wire:
        await wire.call(ApiVersionsRequest(), 0)
        server.clock.advance(AUTHENTICATE_MS - 1)
        await handshake(wire)
        server.clock.advance(1)
        await server.closes(wire)
    assert lines.why == [f"no authentication within {AUTHENTICATE_MS} ms"]


async def test_a_client_that_leaves_while_it_is_checked(server: Server) -> None:
    async with connected(server) as wire:
        await handshake(wire)
        server.one.gate.clear()
        await wire.send(SaslAuthenticateRequest(auth_bytes=b"as alice"), 2)
        await turns()
        wire.abort()
    await until(lambda: not server.broker.connections.alive)


# --- behind the login ---------------------------------------------------------------------------------------


async def test_sasl_behind_the_login_is_out_of_place(server: Server) -> None:
    async with connected(server) as wire:
        await log_in(wire)
        assert (await handshake(wire)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert (await token(wire, "as mallory")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert (await wire.call(METADATA, 9)).brokers
        assert server.principals == ["User:alice"]


class TestAuthenticatingAnew:
    """KIP-368."""

    @pytest.fixture
    def reauth_ms(self) -> int:
        return 5_000

    async def test_in_time(self, server: Server) -> None:
        async with connected(server) as wire:
            for _ in range(3):
                answer = await log_in(wire)
                assert answer.session_lifetime_ms == 5_000
                server.clock.advance(4_000)
                assert (await wire.call(METADATA, 9)).brokers
            assert server.principals == ["User:alice"]

    async def test_a_credential_may_end_sooner(self, server: Server) -> None:
        async with connected(server) as wire:
            ends_ms = server.clock.now_ms() + 2_000
            assert (await log_in(wire, f"as alice until {ends_ms}")).session_lifetime_ms == 2_000
            server.clock.advance(2_000)
            await wire.send(METADATA, 9)
            await server.closes(wire)

    @pytest.mark.parametrize("hours", [8, -8])
    async def test_a_credential_ends_by_the_wall_clock(self, server: Server, hours: int) -> None:
        """Which is ahead after the machine has slept, or has been set."""
        server.wall_ahead_ms = hours * 3_600_000
        ends_ms = server.clock.now_ms() + server.wall_ahead_ms + 2_000
        async with connected(server) as wire:
            assert (await log_in(wire, f"as alice until {ends_ms}")).session_lifetime_ms == 2_000
            server.clock.advance(1_999)
            assert (await wire.call(METADATA, 9)).brokers
            server.clock.advance(1)
            await wire.send(METADATA, 9)
            await server.closes(wire)

    async def test_too_late(self, server: Server, lines: Lines) -> None:
        async with connected(server) as wire:
            await log_in(wire)
            server.clock.advance(5_000)
            await turns()
            assert server.broker.connections.open  # no timer closes it, the next request does
            await wire.send(ApiVersionsRequest(), 0)
            await server.closes(wire)
        (why,) = lines.why
        assert why.startswith("authentication has expired")

    async def test_a_handshake_comes_never_too_late(self, server: Server) -> None:
        async with connected(server) as wire:
            await log_in(wire)
            server.clock.advance(60_000)
            await log_in(wire)
            assert (await wire.call(METADATA, 9)).brokers

    async def test_a_heartbeat_that_is_repeated_expires_too(self, server: Server) -> None:
        async with connected(server) as wire:
            await log_in(wire)
            for _ in range(3):
                assert (await wire.call(HEARTBEAT, 4)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
            server.clock.advance(5_000)
            await wire.send(HEARTBEAT, 4)
            await server.closes(wire)

    async def test_requests_between_handshake_and_token(self, server: Server) -> None:
        async with connected(server) as wire:
            await log_in(wire)
            await wire.call(HEARTBEAT, 4)
            server.clock.advance(1_000)
            await handshake(wire)
            await wire.send(HEARTBEAT, 4)
            assert (await server.fails(wire)).error_code == ErrorCode.ILLEGAL_SASL_STATE

    async def test_as_somebody_else(self, server: Server, lines: Lines) -> None:
        async with connected(server) as wire:
            await log_in(wire)
            server.clock.advance(1_000)
            await handshake(wire)
            await wire.send(SaslAuthenticateRequest(auth_bytes=b"as mallory"), 2)
            answer = await server.fails(wire)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert lines.why == [
            "authentication failed: ONE: User:alice authenticated again as User:mallory",
        ]

    async def test_as_somebody_else_than_a_user_called_anonymous(self, server: Server) -> None:
        async with connected(server) as wire:
            await log_in(wire, "as ANONYMOUS")
            server.clock.advance(1_000)
            await handshake(wire)
            await wire.send(SaslAuthenticateRequest(auth_bytes=b"as mallory"), 2)
            answer = await server.fails(wire)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED

    async def test_by_another_mechanism(self, server: Server) -> None:
        async with connected(server) as wire:
            await log_in(wire)
            server.clock.advance(1_000)
            assert (await handshake(wire, "TWO")).error_code == 0
            await wire.send(SaslAuthenticateRequest(auth_bytes=b"as alice"), 2)
            await server.closes(wire)

    async def test_sooner_than_a_second(self, server: Server) -> None:
        """The first re-authentication may come at once."""
        async with connected(server) as wire:
            await log_in(wire)
            await log_in(wire)
            server.clock.advance(999)
            assert (await handshake(wire)).error_code == ErrorCode.ILLEGAL_SASL_STATE
            assert (await wire.call(METADATA, 9)).brokers

    async def test_a_failure_ends_it(self, server: Server) -> None:
        async with connected(server) as wire:
            await log_in(wire)
            server.clock.advance(1_000)
            await handshake(wire)
            await wire.send(SaslAuthenticateRequest(auth_bytes=b"wrong"), 2)
            await wire.send(METADATA, 9)
            answer = await server.fails(wire)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


# --- faults -------------------------------------------------------------------------------------------------


class TestFaults:
    """Rules of test mode concern the requests of a login too."""

    def add(self, server: Server, **fields: Any) -> int:
        return server.broker.faults.add(Rule.read(fields))

    async def hit(self, server: Server, rule: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await server.broker.faults.hit(rule)

    async def test_an_error_is_only_a_response(self, server: Server) -> None:
        async with connected(server) as wire:
            self.add(server, api="SaslHandshake", error="UNSUPPORTED_SASL_MECHANISM")
            answer = await handshake(wire)
            assert (answer.error_code, answer.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, [])
            assert (await handshake(wire)).error_code == 0
            rule = self.add(server, api="SaslAuthenticate", nth=2, error="SASL_AUTHENTICATION_FAILED")
            assert (await token(wire, "again")).auth_bytes == b"more"
            answer = await token(wire, "as alice")
            assert (answer.error_code, answer.auth_bytes) == (ErrorCode.SASL_AUTHENTICATION_FAILED, b"")
            assert answer.error_message == f"fault {rule}: {ErrorCode.SASL_AUTHENTICATION_FAILED.text}"
            assert server.principals == ["User:ANONYMOUS"]
            await token(wire, "as alice")
            assert server.principals == ["User:alice"]
        assert [(each.api, each.client_id) for each in server.broker.faults.history] == [
            ("SaslHandshake", "wire"),
            ("SaslAuthenticate", "wire"),
        ]

    @pytest.mark.parametrize("api", ["SaslHandshake", "SaslAuthenticate"])
    async def test_a_delay_holds_the_login_up(self, server: Server, api: str) -> None:
        rule = self.add(server, api=api, delay="1 day")
        async with connected(server) as wire:
            logging_in = asyncio.create_task(log_in(wire))
            await self.hit(server, rule)
            await turns()
            assert server.principals == ["User:ANONYMOUS"]
            server.broker.faults.remove(rule)
            await logging_in
            assert server.principals == ["User:alice"]

    @pytest.mark.parametrize("api", ["SaslHandshake", "SaslAuthenticate"])
    async def test_a_login_that_is_held_up_has_no_more_time(self, server: Server, api: str) -> None:
        rule = self.add(server, api=api, delay="1 day")
        async with connected(server) as wire:
            logging_in = asyncio.create_task(log_in(wire))
            await self.hit(server, rule)
            server.clock.advance(AUTHENTICATE_MS)
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await logging_in
        await until(lambda: not server.broker.connections.open)
        await until(lambda: not server.broker._fault_gate._held)

    @pytest.mark.parametrize("api", ["SaslHandshake", "SaslAuthenticate"])
    async def test_a_connection_is_closed_before_or_after(self, server: Server, api: str) -> None:
        for what in ({"close_before": True}, {"close_after": True}, {"truncate": 6}):
            self.add(server, api=api, **what)
            async with connected(server) as wire:
                with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                    await log_in(wire)
            await until(lambda: not server.broker.connections.open)

    async def test_a_response_is_dropped_though_its_client_is_let_in(self, server: Server) -> None:
        rule = self.add(server, api="SaslAuthenticate", drop_response=True)
        async with connected(server) as wire:
            await handshake(wire)
            await wire.send(SaslAuthenticateRequest(auth_bytes=b"as alice"), 2)
            await wire.send(METADATA, 9)
            await self.hit(server, rule)
            await turns()
            assert not wire._reader._buffer  # type: ignore[attr-defined]
            assert server.principals == ["User:alice"]
        await until(lambda: not server.broker.connections.open)

    async def test_the_dropped_response_may_be_that_of_a_failure(self, server: Server) -> None:
        rule = self.add(server, api="SaslHandshake", drop_response=True)
        async with connected(server) as wire:
            await wire.send(SaslHandshakeRequest(mechanism="THREE"), 1)
            await server.delayed()
            await self.hit(server, rule)
            await turns()
            assert not wire._reader._buffer  # type: ignore[attr-defined]
        await until(lambda: not server.broker.connections.open)

    async def test_a_rule_for_a_client_concerns_its_login(self, server: Server) -> None:
        rule = self.add(server, client_id="wire", delay="0ms", times=None)
        async with connected(server) as wire:
            await log_in(wire)
            assert (await wire.call(METADATA, 9)).brokers
        faults = server.broker.faults
        assert [each.api for each in faults.history] == ["SaslHandshake", "SaslAuthenticate", "Metadata"]
        assert faults.fired(rule) == 3

    async def test_a_token_without_a_header_meets_none(self, server: Server) -> None:
        rule = self.add(server, api="SaslAuthenticate", close_before=True)
        async with connected(server) as wire:
            await handshake(wire, version=0)
            await wire.send_bytes(b"\0\0\0\x06as bob")
            assert await wire._reader.readexactly(11) == b"\0\0\0\x07welcome"
        assert server.broker.faults.status(rule).matched == 0
