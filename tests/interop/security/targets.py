"""The brokers that clients log in to: Apache Kafka and muster."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.algorithms import OKPAlgorithm

from muster.client import Admin
from muster.coordinator.testing import Broker
from tests.interop.security.conftest import CLIENT, PASSWORD, STRANGER, USER, Secured
from tests.interop.security.logins import Login
from tests.interop.security.test_client import token as unsigned_token
from tests.interop.story.clients.base import DOORS
from tests.support.certificates import Authority, Pem
from tests.support.ports import free_ports
from tests.support.wire_blocking import WireConnection
from tests.support.wire_topics import create_topics

MTLS: Final = "mTLS"
SCRAM: Final = "SCRAM-SHA-256"
_ISSUER: Final = "https://issuer"
_AUDIENCE: Final = "muster"
_TOKEN_S: Final = 3_600
_ITERATIONS: Final = 4_096


@dataclass(frozen=True)
class Target:
    """A broker, and what is needed to log in."""

    addresses: Mapping[str, str]
    """By security protocol."""
    ca: Path
    stranger_ca: Path
    """Signs for others."""
    certificate: Pem
    """The certificate of `CLIENT`."""
    make_topic: Callable[[str], object]
    """Creates a topic with one partition."""
    token: str
    token_file: Path | None
    timeline: Callable[[str], object] = lambda group: "a broker without a journal"
    """What happened to a group, for the message of a test that fails."""

    def login(self, door: str, user: str = USER) -> Login:
        """Log in through one of `DOORS`, as `USER`, who may do everything, or `STRANGER`; by mTLS as
        `CLIENT`."""
        if door == MTLS:
            return Login(self.addresses["SSL"], self.ca, self.certificate)
        address = self.addresses["SASL_SSL"]
        if door == "OAUTHBEARER":
            tokens = {"token": self.token, "token_file": self.token_file}
            return Login(address, self.ca, mechanism=door, user=user, **tokens)
        return Login(address, self.ca, mechanism=door, user=user, password=PASSWORD)


def kafka(secured: Secured) -> Target:
    broker = secured.kafka

    def make_topic(name: str) -> None:
        with WireConnection(broker.host, broker.port, "topics") as connection:
            create_topics(connection, {name: 1})

    return Target(
        {protocol: broker.bootstrap_of(protocol) for protocol in ("SSL", "SASL_SSL")},
        secured.ca,
        secured.stranger_ca,
        secured.client,
        make_topic,
        unsigned_token(),
        None,
    )


@contextmanager
def muster(folder: Path, **settings: Any) -> Iterator[Target]:
    """A broker in this process, with these `settings`; its files are in `folder`."""
    authority, other = Authority(folder), Authority(folder, "stranger")
    first = free_ports(2)
    addresses = {"SSL": f"127.0.0.1:{first}", "SASL_SSL": f"127.0.0.1:{first + 1}"}
    key = Ed25519PrivateKey.generate()
    token = folder / "token"
    token.write_text(_signed_token(key))
    broker = Broker(
        listeners=",".join(f"{protocol}://{address}" for protocol, address in addresses.items()),
        ssl_keystore_location=str(authority.issue("localhost", "127.0.0.1").both),
        ssl_truststore_location=str(authority.certificate),
        ssl_client_auth="required",
        ssl_principal_mapping_rules=r"RULE:^CN=(\w+),.*$/$1/,DEFAULT",
        sasl_enabled_mechanisms=tuple(door for door in DOORS if door != MTLS),
        sasl_oauthbearer_jwks_endpoint_url=_keys(key, folder).as_uri(),
        sasl_oauthbearer_expected_issuer=_ISSUER,
        sasl_oauthbearer_expected_audience=(_AUDIENCE,),
        super_users=f"User:{USER};User:{CLIENT}",
        **settings,
    )
    with broker:
        made = Target(
            addresses,
            authority.certificate,
            other.certificate,
            authority.issue("client", common_name=CLIENT),
            broker.create_topic,
            token.read_text(),
            token,
            lambda group: broker.group(group).timeline(),
        )
        asyncio.run(_make_users(made))
        yield made


async def _make_users(target: Target) -> None:
    admin = Admin(
        target.addresses["SSL"],
        security_protocol="SSL",
        ssl_cafile=str(target.ca),
        ssl_certfile=str(target.certificate.both),
    )
    async with admin:
        for user in (USER, STRANGER):
            await admin.upsert_user_scram_credentials(user, PASSWORD, iterations=_ITERATIONS)


def _signed_token(key: Ed25519PrivateKey) -> str:
    now = int(time.time())
    claims = {"sub": USER, "iss": _ISSUER, "aud": _AUDIENCE, "iat": now, "exp": now + _TOKEN_S}
    return jwt.encode(claims, key, "EdDSA", headers={"kid": "one"})


def _keys(key: Ed25519PrivateKey, folder: Path) -> Path:
    file = folder / "keys.json"
    public = OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    file.write_text(json.dumps({"keys": [{"kid": "one", **public}]}))
    return file
