"""muster's client logs in with tokens whose keys are in a file."""

from __future__ import annotations

import json
import time
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from jwt.algorithms import OKPAlgorithm

from muster.client import Admin
from muster.client.errors import AuthenticationFailed
from muster.coordinator.server import jwks, unserved
from tests.server.conftest import StartBrokers
from tests.server.test_unserved import Lines
from tests.support.ports import free_ports

OLD, NEW = ed25519.Ed25519PrivateKey.generate(), ed25519.Ed25519PrivateKey.generate()


def keys(**kept: ed25519.Ed25519PrivateKey) -> str:
    return json.dumps(
        {
            "keys": [
                {"kid": kid, **OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)}
                for kid, key in kept.items()
            ]
        }
    )


def token(kid: str = "old", key: ed25519.Ed25519PrivateKey = OLD, left_s: int = 300) -> str:
    now = int(time.time())
    claims = {"sub": "alice", "iss": "https://issuer", "aud": "muster", "iat": now, "exp": now + left_s}
    return jwt.encode(claims, key, "EdDSA", headers={"kid": kid})


async def cluster_id(port: int, bearer: str) -> str | None:
    async with Admin(
        f"127.0.0.1:{port}",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=lambda: bearer,
    ) as admin:
        return (await admin.describe_cluster()).cluster_id


async def test_tokens_and_their_keys(
    start_brokers: StartBrokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys.json"
    file.write_text(keys(old=OLD))
    brokers = await start_brokers(
        listeners="SASL_PLAINTEXT://127.0.0.1:0",
        sasl_enabled_mechanisms=("OAUTHBEARER",),
        sasl_oauthbearer_jwks_endpoint_url=file.as_uri(),
        sasl_oauthbearer_expected_audience=("muster",),
        sasl_oauthbearer_expected_issuer="https://issuer",
    )
    port = brokers.brokers[0].port
    assert await cluster_id(port, token())
    lines = Lines()
    monkeypatch.setattr(unserved, "_log", lines)
    for refused in (token(left_s=-60), token(key=NEW), "no-token"):
        with pytest.raises(AuthenticationFailed, match="invalid_token"):
            await cluster_id(port, refused)
        assert refused not in str(lines.fields)
    assert "OAUTHBEARER: ExpiredSignatureError" in lines.why[0]
    file.write_text(keys(new=NEW))
    monkeypatch.setattr(jwks, "_APART_S", 0)
    assert await cluster_id(port, token("new", NEW))


async def test_a_client_is_not_blamed_for_keys_that_were_never_read(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"https://127.0.0.1:{free_ports(1)}/keys"
    brokers = await start_brokers(
        listeners="SASL_PLAINTEXT://127.0.0.1:0",
        sasl_enabled_mechanisms=("OAUTHBEARER",),
        sasl_oauthbearer_jwks_endpoint_url=url,
        sasl_oauthbearer_expected_audience=("muster",),
        sasl_oauthbearer_expected_issuer="https://issuer",
    )
    lines = Lines()
    monkeypatch.setattr(unserved, "_log", lines)
    with pytest.raises(AuthenticationFailed, match="invalid_token"):
        await cluster_id(brokers.brokers[0].port, token())
    (told,) = lines.fields
    assert f"OAUTHBEARER: no keys have been read yet from {url}" in told["why"]
    assert told["remedy"].startswith("make the keys readable there, or correct sasl.oauthbearer.jwks.endp")


async def test_unsigned_tokens(start_brokers: StartBrokers, tmp_path: Path) -> None:
    """They are accepted only where this is enabled by name, and signed ones are not accepted there."""
    file = tmp_path / "keys.json"
    file.write_text(keys())
    brokers = await start_brokers(
        listeners="OPEN://127.0.0.1:0,CLOSED://127.0.0.1:0",
        listener_security_protocol_map="OPEN:SASL_PLAINTEXT,CLOSED:SASL_PLAINTEXT",
        sasl_enabled_mechanisms=("OAUTHBEARER",),
        listener_name={
            "open": {"sasl_oauthbearer_allow_unsecured": True},
            "closed": {
                "sasl_oauthbearer_jwks_endpoint_url": file.as_uri(),
                "sasl_oauthbearer_allow_unverified_audience": True,
                "sasl_oauthbearer_allow_unverified_issuer": True,
            },
        },
    )
    open_port, closed_port = (each.bound.port for each in brokers.brokers[0].listening)
    now = int(time.time())
    unsigned = jwt.encode({"sub": "alice", "iat": now, "exp": now + 60}, None, "none")
    assert await cluster_id(open_port, unsigned)
    for port, bearer in ((closed_port, unsigned), (open_port, token())):
        with pytest.raises(AuthenticationFailed, match="invalid_token"):
            await cluster_id(port, bearer)
