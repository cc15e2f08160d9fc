"""SCRAM users altered and described: at one broker, in force at all, kept, and their secrets never told.
tests/kafka/test_switched_off.py compares the answers with Apache Kafka's."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from pathlib import Path

import pytest

from muster.coordinator.security.scram import ITERATIONS, ScramCredential, Shape
from muster.coordinator.server.broker import Broker
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from muster.protocol.messages.scram import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
)
from tests.server.conftest import StartBrokers
from tests.server.test_unheard_of import deafen, two
from tests.support.facts import until
from tests.support.failing_store import fail_from
from tests.support.wire import Wire

Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion

SHA_256, SHA_512 = 1, 2
SALT = b"a salt of the client"
NAMES = {SHA_256: "SCRAM-SHA-256", SHA_512: "SCRAM-SHA-512"}
HASHES = {SHA_256: "sha256", SHA_512: "sha512"}


def made(name: str, password: str = "pw", mechanism: int = SHA_256, iterations: int = 4096) -> Upsertion:
    """As clients send it: the password is salted already."""
    salted = hashlib.pbkdf2_hmac(HASHES.get(mechanism, "sha256"), password.encode(), SALT, iterations)
    return Upsertion(name=name, mechanism=mechanism, iterations=iterations, salt=SALT, salted_password=salted)


async def alter(broker: Broker, *changes: Upsertion | Deletion) -> dict[str, int]:
    """Alter users and return the error codes by user."""
    request = AlterUserScramCredentialsRequest(
        deletions=[each for each in changes if isinstance(each, Deletion)],
        upsertions=[each for each in changes if isinstance(each, Upsertion)],
    )
    async with await Wire.connect(broker.port) as wire:
        response = await wire.call(request, 0)
    assert len({each.user for each in response.results}) == len(response.results)
    return {each.user: each.error_code for each in response.results}


async def described(broker: Broker, *names: str) -> dict[str, tuple[int, list[tuple[int, int]]]]:
    """Error code, mechanisms and iterations by user; without names, of all users."""
    users = [DescribeUserScramCredentialsRequest.UserName(name=name) for name in names]
    async with await Wire.connect(broker.port) as wire:
        response = await wire.call(DescribeUserScramCredentialsRequest(users=users or None), 0)
    assert response.error_code == 0
    return {
        each.user: (
            each.error_code,
            [(info.mechanism, info.iterations) for info in each.credential_infos],
        )
        for each in response.results
    }


def contents(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]


async def test_users_come_and_go(start_brokers: StartBrokers) -> None:
    broker = (await start_brokers()).brokers[0]
    assert await described(broker) == {}
    assert await alter(broker, made("alice"), made("bob", mechanism=SHA_512)) == {"alice": 0, "bob": 0}
    assert await alter(broker, made("alice", mechanism=SHA_512, iterations=8192)) == {"alice": 0}
    assert await described(broker) == {
        "alice": (0, [(SHA_256, 4096), (SHA_512, 8192)]),
        "bob": (0, [(SHA_512, 4096)]),
    }
    assert await alter(broker, Deletion(name="bob", mechanism=SHA_512)) == {"bob": 0}
    assert await alter(broker, Deletion(name="bob", mechanism=SHA_512)) == {
        "bob": ErrorCode.RESOURCE_NOT_FOUND
    }
    assert list(await described(broker)) == ["alice"]
    assert await described(broker, "bob") == {"bob": (ErrorCode.RESOURCE_NOT_FOUND, [])}


async def test_what_a_client_salted_is_the_password_here(start_brokers: StartBrokers) -> None:
    broker = (await start_brokers()).brokers[0]
    for mechanism, name in NAMES.items():
        await alter(broker, made("alice", "one", mechanism))
        await alter(broker, made("alice", "other", mechanism, 4097))
        kept = broker.users.credential("alice", name)
        assert kept == ScramCredential.of_password(name, "other", 4097, SALT)


async def test_the_shapes_that_there_are(start_brokers: StartBrokers) -> None:
    """Users that do not exist are given one of them, too."""
    broker = (await start_brokers()).brokers[0]
    await alter(broker, made("alice"), made("bob", iterations=5000), made("carol"))
    await broker.users.alter("weak", {NAMES[SHA_256]: ScramCredential.of_password(NAMES[SHA_256], "pw", 1)})
    shapes = {Shape(4096, len(SALT)), Shape(5000, len(SALT))}
    assert broker.users.shapes(NAMES[SHA_256]) == shapes
    assert not broker.users.shapes(NAMES[SHA_512])
    made_up = broker._made_up.of("nobody", NAMES[SHA_256])
    assert (made_up.iterations, len(made_up.salt)) in shapes


async def test_a_user_that_is_refused_keeps_no_other_from_it(start_brokers: StartBrokers) -> None:
    broker = (await start_brokers()).brokers[0]
    await alter(broker, made("twice"), made("gone"))
    empty = made("empty")
    empty.salted_password = b""
    salty, saltiest = made("salty"), made("saltiest")
    salty.salt, saltiest.salt = bytes(1_024), bytes(1_025)
    answer = await alter(
        broker,
        Deletion(name="twice", mechanism=SHA_256),
        Deletion(name="gone", mechanism=SHA_256),
        Deletion(name="never", mechanism=SHA_256),
        made("twice", mechanism=SHA_512, iterations=1),
        made(""),
        made("weak", iterations=ITERATIONS[0] - 1),
        made("slow", iterations=ITERATIONS[-1] + 1),
        made("strange", mechanism=9),
        empty,
        salty,
        saltiest,
        made("good", iterations=ITERATIONS[0]),
        made("better", iterations=ITERATIONS[-1]),
    )
    assert answer == {
        "twice": ErrorCode.DUPLICATE_RESOURCE,
        "gone": 0,
        "never": ErrorCode.RESOURCE_NOT_FOUND,
        "": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "weak": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "slow": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "strange": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        "salty": 0,
        "saltiest": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "empty": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "good": 0,
        "better": 0,
    }
    assert await described(broker) == {
        "twice": (0, [(SHA_256, 4096)]),
        "salty": (0, [(SHA_256, 4096)]),
        "good": (0, [(SHA_256, 4096)]),
        "better": (0, [(SHA_256, 16_384)]),
    }


async def test_a_user_whose_name_is_strange_is_nobody_else(start_brokers: StartBrokers) -> None:
    """Names serve as names of rows, and of principals in ACLs."""
    broker = (await start_brokers()).brokers[0]
    names = [
        "*",
        "user:x",
        "x",
        "a,b=c",
        "\u0430lice",
        "alice",
        " alice",
        "ALICE",
        "0",
        "n" * 2_048,
    ]
    for name in names:
        assert await alter(broker, made(name)) == {name: 0}
    assert sorted(await described(broker)) == sorted(names)
    for name in ("nul\0", "n" * 2_049):
        assert await alter(broker, made(name)) == {name: ErrorCode.UNACCEPTABLE_CREDENTIAL}
    for number, name in enumerate(names, start=1):
        assert await alter(broker, Deletion(name=name, mechanism=SHA_256)) == {name: 0}
        assert sorted(await described(broker)) == sorted(names[number:])


async def test_users_are_in_force_at_all_brokers(start_brokers: StartBrokers) -> None:
    one, other = (await start_brokers(brokers=2)).brokers
    await alter(one, made("alice"))
    await until(lambda: "alice" in other.users)
    assert other.users.of("alice") == one.users.of("alice")
    await alter(other, made("alice", mechanism=SHA_512))
    await alter(one, Deletion(name="alice", mechanism=SHA_256))  # it may not have heard of the other yet
    await until(lambda: list(one.users.of("alice")) == ["SCRAM-SHA-512"] == list(other.users.of("alice")))
    await alter(one, Deletion(name="alice", mechanism=SHA_512))
    await until(lambda: "alice" not in other.users)
    assert await one.users.secret() == await other.users.secret()


async def test_a_user_that_another_broker_has_just_made_can_be_deleted(start_brokers: StartBrokers) -> None:
    one, other = await two(start_brokers)
    await alter(one, made("alice"), made("bob"))
    assert list(other.users) == []
    assert await alter(other, Deletion(name="alice", mechanism=SHA_256), made("carol")) == {
        "alice": 0,
        "carol": 0,
    }
    await one.users.refresh()
    assert list(one.users) == list(other.users) == ["bob", "carol"]


async def test_nobody_is_unknown_to_a_store_that_cannot_be_read(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    (broker,) = (await start_brokers()).brokers
    deafen(broker)
    reads = fail_from(1, broker, "broker_configs", monkeypatch)
    failed = ErrorCode.KAFKA_STORAGE_ERROR
    deletions = [Deletion(name=name, mechanism=SHA_256) for name in ("a", "b")]
    assert await alter(broker, *deletions) == {"a": failed, "b": failed}
    assert len(reads) == 1


async def test_what_is_altered_before_the_store_fails_is_reported(
    start_brokers: StartBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    (broker,) = (await start_brokers()).brokers
    tried = fail_from(2, broker, "update_broker_configs", monkeypatch)
    failed = ErrorCode.KAFKA_STORAGE_ERROR
    assert await alter(broker, made("a"), made("b"), made("c")) == {"a": 0, "b": failed, "c": failed}
    assert len(tried) == 2, "the last is not tried"
    assert list(broker.users) == ["a"]


async def test_users_are_kept_and_nothing_that_lets_their_owner_in(
    start_brokers: StartBrokers, tmp_path: Path
) -> None:
    """A salted password is enough to log in; what is derived from it is not."""
    change = made("alice")
    first = await start_brokers(ephemeral=False, data=str(tmp_path))
    await alter(first.brokers[0], change)
    kept, secret = first.brokers[0].users.of("alice"), await first.brokers[0].users.secret()
    await first.stop()
    files = contents(tmp_path)
    salted = change.salted_password
    assert any(b64encode(kept["SCRAM-SHA-256"].stored_key) in each for each in files)
    for form in (salted, b64encode(salted), salted.hex().encode()):
        assert not any(form in each for each in files)
    again = (await start_brokers(ephemeral=False, data=str(tmp_path))).brokers[0]
    assert again.users.of("alice") == kept
    assert await again.users.secret() == secret


@pytest.mark.parametrize(
    ("enabled", "let_in"),
    [
        (("PLAIN",), ["old", "new"]),
        (("PLAIN", "SCRAM-SHA-512"), ["new"]),
        (("PLAIN", "SCRAM-SHA-256"), ["old"]),
        (("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"), ["old", "new"]),
    ],
)
async def test_plain_counts_credentials_of_enabled_mechanisms(
    start_brokers: StartBrokers, enabled: tuple[str, ...], let_in: list[str]
) -> None:
    brokers = await start_brokers(
        listeners="SASL_PLAINTEXT://127.0.0.1:0",
        sasl_enabled_mechanisms=enabled,
        connection_failed_authentication_delay_ms=0,
    )
    (broker,) = brokers.brokers
    credentials = {NAMES[each]: ScramCredential.of_password(NAMES[each], "old", 4096) for each in NAMES}
    await broker.users.alter("alice", credentials)
    changed = ScramCredential.of_password("SCRAM-SHA-512", "new", 4096)
    await broker.users.alter("alice", {"SCRAM-SHA-512": changed})
    passed = []
    for password in ("old", "new"):
        async with await Wire.connect(broker.port) as wire:
            await wire.call(SaslHandshakeRequest(mechanism="PLAIN"), 1)
            request = SaslAuthenticateRequest(auth_bytes=f"\0alice\0{password}".encode())
            answer = await wire.call(request, 2)
            assert answer.error_code in (0, ErrorCode.SASL_AUTHENTICATION_FAILED)
            passed += [] if answer.error_code else [password]
    assert passed == let_in
