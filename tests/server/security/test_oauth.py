"""muster's client logs in with tokens, whose keys are in a file."""

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
from muster.coordinator.server.broker import Broker
from tests.server.conftest import StartBrokers
from tests.server.test_unserved import Lines

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


async def cluster_id(broker: Broker, bearer: str) -> str | None:
    async with Admin(
        f"127.0.0.1:{broker.port}",
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
    broker = brokers.brokers[0]
    assert await cluster_id(broker, token())
    lines = Lines()
    monkeypatch.setattr(unserved, "_log", lines)
    for refused in (token(left_s=-60), token(key=NEW), "no-token"):
        with pytest.raises(AuthenticationFailed, match="invalid_token"):
            await cluster_id(broker, refused)
        assert refused not in str(lines.fields)
    assert "OAUTHBEARER: ExpiredSignatureError" in lines.why[0]
    file.write_text(keys(new=NEW))
    monkeypatch.setattr(jwks, "_APART_S", 0)
    assert await cluster_id(broker, token("new", NEW))
