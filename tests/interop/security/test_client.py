"""muster.client against Apache Kafka: every security protocol and mechanism, and the errors for strangers."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from pathlib import Path
from typing import Any, Final

import pytest

from muster.client import Admin, AuthenticationFailed, Consumer, NotKafka, Producer, Unreachable
from tests.interop.security.conftest import PASSWORD, SESSION_MS, USER, Secured
from tests.support.issuer import Issuer

pytestmark = pytest.mark.interop

_SOON_S: Final = 20.0
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


def token(lifetime_s: float = 3600) -> str:
    """An unsigned token, which Kafka accepts unless configured otherwise."""
    now = int(time.time())  # a fraction ahead of Kafka's clock would make the token one of the future
    parts = ({"alg": "none"}, {"sub": USER, "iat": now, "exp": now + lifetime_s})
    return (
        ".".join(base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=") for each in parts)
        + "."
    )


async def later_token() -> str:
    await asyncio.sleep(0)
    return token()


def credentials(mechanism: str, *, password: str = PASSWORD) -> dict[str, Any]:
    if mechanism == "OAUTHBEARER":
        return {"sasl_mechanism": mechanism, "sasl_oauth_token_provider": token}
    return {
        "sasl_mechanism": mechanism,
        "sasl_plain_username": USER,
        "sasl_plain_password": password,
    }


def settings(secured: Secured, protocol: str, **more: Any) -> dict[str, Any]:
    tls = {"ssl_cafile": str(secured.ca)} if protocol.endswith("SSL") else {}
    return {"security_protocol": protocol, **tls, **more}


def mtls(secured: Secured) -> dict[str, Any]:
    return {"ssl_certfile": str(secured.client.certificate), "ssl_keyfile": str(secured.client.key)}


async def round_trip(bootstrap: str, topic: str, **security: Any) -> None:
    """Create a topic, send a record, and read it with a group."""
    async with Admin(bootstrap, **security) as admin:
        await admin.create_topic(topic)
    async with Producer(bootstrap, **security) as producer:
        await producer.send(topic, value=b"hello")
    options: dict[str, Any] = {"group_id": topic, "topics": topic, "auto_offset_reset": "earliest"}
    async with Consumer(bootstrap, **options, **security) as consumer:
        record = await consumer.get(_SOON_S)
        assert record is not None
        assert record.value == b"hello"
        assert (await consumer.commit()).ok


@pytest.mark.parametrize("protocol", ["SASL_SSL", "SASL_PLAINTEXT"])
@pytest.mark.parametrize("mechanism", _MECHANISMS)
async def test_every_mechanism(secured: Secured, protocol: str, mechanism: str) -> None:
    security = settings(secured, protocol, **credentials(mechanism))
    await round_trip(secured.kafka.bootstrap_of(protocol), f"t-{protocol}-{mechanism}", **security)


async def test_a_token_from_a_coroutine(secured: Secured) -> None:
    security = settings(
        secured, "SASL_SSL", sasl_mechanism="OAUTHBEARER", sasl_oauth_token_provider=later_token
    )
    await round_trip(secured.kafka.bootstrap_of("SASL_SSL"), "t-later", **security)


async def test_a_client_certificate(secured: Secured) -> None:
    security = settings(secured, "SSL", **mtls(secured))
    await round_trip(secured.kafka.bootstrap_of("SSL"), "t-mtls", **security)


async def test_an_encrypted_key_in_one_file_with_its_certificate(secured: Secured) -> None:
    security = settings(secured, "SSL", ssl_certfile=str(secured.encrypted.both), ssl_password="open sesame")
    await round_trip(secured.kafka.bootstrap_of("SSL"), "t-encrypted", **security)


@pytest.mark.parametrize("mechanism", _MECHANISMS)
async def test_it_authenticates_again_before_the_session_ends(secured: Secured, mechanism: str) -> None:
    """Kafka closes a connection that is used after its session: the client would then log in on another."""
    bootstrap = secured.kafka.bootstrap_of("SASL_PLAINTEXT")
    tokens = 0

    def counted() -> str:
        nonlocal tokens
        tokens += 1
        return token()

    security = settings(secured, "SASL_PLAINTEXT", **credentials(mechanism))
    if mechanism == "OAUTHBEARER":
        security["sasl_oauth_token_provider"] = counted
    async with Admin(bootstrap, **security) as admin:
        await admin.list_topics()
        (lane,) = [each for each in admin._cluster._pool._lanes.values() if each.connection is not None]
        connection = lane.connection
        assert connection is not None
        first = connection._renew_at
        async with asyncio.timeout(_SOON_S):
            while connection._renew_at < first + 2 * SESSION_MS / 1000:
                await asyncio.gather(*(admin.list_topics() for _ in range(3)))
        assert connection.is_open
        assert [each.connection for each in admin._cluster._pool._lanes.values() if each.connection] == [
            connection
        ]
    assert tokens == 0 or tokens >= 3


async def refused(bootstrap: str, kind: type[Exception], **security: Any) -> str:
    """The error that each of the clients gets, at once."""
    texts = set()
    began = time.monotonic()
    async with Admin(bootstrap, **security) as admin:
        with pytest.raises(kind) as raised:
            await admin.list_topics()
        texts.add(str(raised.value))
    consumer = Consumer(bootstrap, group_id="g", topics="t", **security)
    with pytest.raises(kind) as raised:
        async with consumer:
            await consumer.get(_SOON_S)
    texts.add(str(raised.value))
    producer = await Producer(bootstrap, **security).start()
    with pytest.raises(kind) as raised:
        await producer.send("t", value=b"")
    await producer.close(0)
    texts.add(str(raised.value))
    assert time.monotonic() - began < _SOON_S / 2, "it was retried"
    print("\n".join(texts))
    return sorted(texts)[0]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_wrong_password(secured: Secured, mechanism: str) -> None:
    security = settings(secured, "SASL_SSL", **credentials(mechanism, password="wrong"))
    said = await refused(secured.kafka.bootstrap_of("SASL_SSL"), AuthenticationFailed, **security)
    assert f"the broker refused {mechanism}" in said
    assert "wrong" not in said


async def test_a_token_that_has_expired(secured: Secured) -> None:
    security = settings(
        secured,
        "SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=lambda: token(-600),
    )
    said = await refused(secured.kafka.bootstrap_of("SASL_SSL"), AuthenticationFailed, **security)
    assert "the broker refused OAUTHBEARER" in said


async def test_a_ca_that_the_client_does_not_know(secured: Secured) -> None:
    security = settings(secured, "SASL_SSL", **credentials("PLAIN")) | {
        "ssl_cafile": str(secured.stranger_ca)
    }
    said = await refused(secured.kafka.bootstrap_of("SASL_SSL"), AuthenticationFailed, **security)
    assert "its certificate is not accepted" in said
    assert "ssl_cafile" in said


async def test_a_certificate_for_another_name(secured: Secured) -> None:
    bootstrap = secured.kafka.bootstrap_of("SASL_SSL").replace("localhost", "127.0.0.1")
    security = settings(secured, "SASL_SSL", **credentials("PLAIN"))
    said = await refused(bootstrap, AuthenticationFailed, **security)
    assert "ssl_check_hostname" in said


async def test_no_client_certificate(secured: Secured) -> None:
    said = await refused(secured.kafka.bootstrap_of("SSL"), AuthenticationFailed, **settings(secured, "SSL"))
    assert "ssl_certfile" in said


async def test_a_client_certificate_of_an_unknown_ca(secured: Secured) -> None:
    security = settings(secured, "SSL", ssl_certfile=str(secured.stranger.both))
    said = await refused(secured.kafka.bootstrap_of("SSL"), AuthenticationFailed, **security)
    assert "ssl_certfile" in said


async def test_tls_to_a_plain_listener(secured: Secured) -> None:
    with pytest.raises(Unreachable, match=r"during the TLS handshake; .*security_protocol"):
        async with Admin(secured.kafka.bootstrap, **settings(secured, "SSL")) as admin:
            await admin.list_topics()


async def test_sasl_to_a_listener_without(secured: Secured) -> None:
    security = settings(secured, "SASL_PLAINTEXT", **credentials("PLAIN"))
    said = await refused(secured.kafka.bootstrap, AuthenticationFailed, **security)
    assert "set security_protocol to PLAINTEXT or SSL" in said


async def test_plain_to_a_tls_listener(secured: Secured) -> None:
    with pytest.raises(NotKafka, match="security_protocol to SSL"):
        async with Admin(secured.kafka.bootstrap_of("SASL_SSL")) as admin:
            await admin.list_topics()


async def test_a_token_from_an_issuer(secured: Secured, tmp_path: Path) -> None:
    with Issuer(tmp_path) as issuer:
        issuer.answer = lambda: {"access_token": token(), "expires_in": 3600}
        security = settings(
            secured, "SASL_SSL", sasl_mechanism="OAUTHBEARER", sasl_oauth_token_provider=issuer.provider()
        )
        await round_trip(secured.kafka.bootstrap_of("SASL_SSL"), "t-issuer", **security)
        assert len(issuer.requests) == 1, "for all connections of three clients"
        issuer.answer = lambda: {"access_token": token(-600), "expires_in": 3600}
        security["sasl_oauth_token_provider"] = issuer.provider()
        said = await refused(secured.kafka.bootstrap_of("SASL_SSL"), AuthenticationFailed, **security)
        assert "the broker refused OAUTHBEARER" in said
        assert len(issuer.requests) == 4, "a token that was refused is not used again"


async def test_pem_text(secured: Secured) -> None:
    security = {
        "security_protocol": "SSL",
        "ssl_cadata": secured.ca.read_text(),
        "ssl_certdata": secured.client.certificate.read_text(),
        "ssl_keydata": secured.client.key.read_text(),
    }
    await round_trip(secured.kafka.bootstrap_of("SSL"), "t-pem", **security)
