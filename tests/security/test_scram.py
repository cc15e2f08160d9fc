"""SCRAM on the server side: the RFC's example, logins by muster's client, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.client.errors import AuthenticationFailed
from muster.client.security.mechanisms import Scram as ClientScram
from muster.coordinator.security import scram
from muster.coordinator.security.exchange import AuthenticationRefused
from muster.coordinator.security.scram import (
    HASHES,
    ITERATIONS,
    MadeUp,
    Scram,
    ScramCredential,
    ScramExchange,
    Shape,
    invalid_credentials,
)

PASSWORD = 'p,a=s"s wörd'
NAMES = list(HASHES)


def server(name: str, users: dict[str, str] | None = None, iterations: int = 4096) -> Scram:
    kept = {
        user: ScramCredential.of_password(name, password, iterations)
        for user, password in ({"alice": PASSWORD} if users is None else users).items()
    }
    return Scram(name, lambda user, mechanism: kept.get(user), MadeUp(b"of the cluster"))


def step(exchange: ScramExchange, token: bytes) -> tuple[bytes, Any]:
    return asyncio.run(exchange.step(token))


def refused(exchange: ScramExchange, token: bytes) -> AuthenticationRefused:
    with pytest.raises(AuthenticationRefused) as raised:
        step(exchange, token)
    return raised.value


def log_in(mechanism: Scram, user: str, password: str) -> str:
    """Log in as muster's client does, which also verifies the server."""
    rounds = ClientScram(mechanism.name, user, password)._rounds("a nonce of the client".replace(" ", "-"))
    exchange = mechanism.begin()
    reply, who = step(exchange, next(rounds))
    assert who is None
    reply, who = step(exchange, rounds.send(reply))
    with pytest.raises(StopIteration):
        rounds.send(reply)
    assert who is not None
    name: str = who.user
    return name


def test_the_example_of_rfc_7677(monkeypatch: pytest.MonkeyPatch) -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    kept = ScramCredential.of_password("SCRAM-SHA-256", "pencil", 4096, salt)
    monkeypatch.setattr(scram.secrets, "token_urlsafe", lambda size: "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    exchange = Scram("SCRAM-SHA-256", lambda user, mechanism: kept, MadeUp(b"")).begin()
    first, _ = step(exchange, b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final, who = step(
        exchange,
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    )
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert who == ("user", None)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("user", ["alice", "a,b=c", "=2C", "zoë"])
def test_a_client_logs_in(name: str, user: str) -> None:
    assert log_in(server(name, {user: PASSWORD}), user, PASSWORD) == user


@pytest.mark.parametrize("name", NAMES)
def test_what_is_kept_of_a_password(name: str) -> None:
    made = ScramCredential.of_password(name, PASSWORD)
    assert made.iterations == ITERATIONS[-1]
    assert ScramCredential.decode(made.encode()) == made
    assert made.has_password(name, PASSWORD)
    assert not made.has_password(name, PASSWORD + " ")
    assert PASSWORD not in made.encode()
    assert made.salt != ScramCredential.of_password(name, PASSWORD).salt
    assert repr(made) == "<ScramCredential iterations=16384>"


@pytest.mark.parametrize("text", ["", "4096", "x:AA==:AA==:AA==", "4096:AA==:AA==", "4096:?:AA==:AA=="])
def test_what_is_no_credential(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any does
        ScramCredential.decode(text)


@pytest.mark.parametrize("name", NAMES)
def test_unknown_users_and_wrong_passwords_are_alike_for_the_client(name: str) -> None:
    told = []
    for user, password in (("alice", "wrong"), ("nobody", PASSWORD)):
        exchange = server(name, iterations=ITERATIONS[-1]).begin()
        rounds = ClientScram(name, user, password)._rounds("nonce")
        first, _ = step(exchange, next(rounds))
        error = refused(exchange, rounds.send(first))
        told.append((str(error), len(first)))
    assert told[0] == told[1]
    assert told[0][0] == invalid_credentials(name)
    assert error.why == "nobody: there is no such user"


def test_the_salt_of_an_unknown_user_is_always_the_same_and_nobody_elses() -> None:
    def salt(user: str, made_up: MadeUp, name: str = "SCRAM-SHA-256") -> bytes:
        return made_up.of(user, name).salt

    one, same, other = MadeUp(b"a"), MadeUp(b"a"), MadeUp(b"b")
    assert salt("x", one) == salt("x", same)
    salts = {salt("x", one), salt("y", one), salt("x", other), salt("x", one, "SCRAM-SHA-512")}
    assert len(salts) == 4
    assert len(salt("x", one)) == len(ScramCredential.of_password("SCRAM-SHA-256", "p", 4096).salt)


def test_made_up_credentials_look_like_those_that_there_are() -> None:
    shapes = [Shape(4096, 18), Shape(8192, 26)]
    made_up = MadeUp(b"secret", lambda mechanism: shapes)
    names = [f"user {number}" for number in range(200)]

    def all_shapes() -> dict[str, Shape]:
        made = {name: made_up.of(name, "SCRAM-SHA-512") for name in names}
        return {name: Shape(each.iterations, len(each.salt)) for name, each in made.items()}

    before = all_shapes()
    assert set(before.values()) == set(shapes)
    salt = made_up.of("x", "SCRAM-SHA-256").salt
    shapes.reverse()
    assert all_shapes() == before
    assert made_up.of("x", "SCRAM-SHA-256").salt == salt
    shapes.append(Shape(16_384, 100))
    after = all_shapes()
    assert {after[name] for name in names if after[name] != before[name]} == {Shape(16_384, 100)}


def test_nobody_knows_the_password_of_a_user_that_there_is_not() -> None:
    """Not even someone who knows the made-up keys: they hold the client key only as a hash, and unknown users
    are refused anyway."""
    mechanism = server("SCRAM-SHA-256", {})
    stored = ScramCredential.of_password("SCRAM-SHA-256", "guessed", ITERATIONS[-1])
    mechanism.made_up.of = lambda user, name: stored  # type: ignore[method-assign]
    exchange = mechanism.begin()
    rounds = ClientScram("SCRAM-SHA-256", "nobody", "guessed")._rounds("nonce")
    first, _ = step(exchange, next(rounds))
    assert refused(exchange, rounds.send(first)).why == "nobody: there is no such user"


def test_a_credential_with_few_iterations_lets_nobody_in() -> None:
    mechanism = server("SCRAM-SHA-256", iterations=1)
    exchange = mechanism.begin()
    with pytest.raises((AuthenticationRefused, AuthenticationFailed)):
        log_in(mechanism, "alice", PASSWORD)
    assert b"i=16384" in step(exchange, b"n,,n=alice,r=x")[0]


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n",
        b"y,,n=alice,r=x",  # the client supports channel binding
        b"p=tls-unique,,n=alice,r=x",
        b"n,,n=,r=x",
        b"n,,n=alice",
        b"n,,n=alice,r=",
        b"n,,n=al=ice,r=x",
        b"n,,n=alice,r=x y",
        b"n,,r=x,n=alice",
        b"n,,n=alice,r=x,",
        b"n,,n=ali\0ce,r=x",
        b"n,,n=\xff,r=x",
        b"n,,n=alice,r=x\n",
    ],
)
def test_what_is_no_first_message(first: bytes) -> None:
    error = refused(server("SCRAM-SHA-256").begin(), first)
    assert str(error) == invalid_credentials("SCRAM-SHA-256")


def test_extensions_are_signed_and_otherwise_ignored() -> None:
    reply, _ = step(server("SCRAM-SHA-256").begin(), b"n,a=alice,m=ext,n=alice,r=x,t=1,u=2")
    assert reply.startswith(b"r=x")


def test_another_authorization_id() -> None:
    error = refused(server("SCRAM-SHA-256").begin(), b"n,a=root,n=alice,r=x")
    assert str(error) == (
        "Authentication failed: Client requested an authorization id that is different from username"
    )


def proved(first: bytes, *, nonce: str | None = None, cut: int = 0, extra: str = "") -> bytes:
    """The final message of a client that knows the password, correct or slightly altered."""
    fields = {part[:1]: part[2:] for part in first.decode().split(",")}
    unproved = f"c=biws,r={nonce or fields['r']}{extra}"
    salted = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), base64.b64decode(fields["s"]), int(fields["i"]))
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    signed = f"n=alice,r=x,{first.decode()},{unproved}".encode()
    signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
    proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
    return f"{unproved},p={base64.b64encode(proof[: len(proof) - cut]).decode()}".encode()


def test_final_messages() -> None:
    def begun() -> tuple[ScramExchange, bytes]:
        exchange = server("SCRAM-SHA-256").begin()
        return exchange, step(exchange, b"n,,n=alice,r=x")[0]

    exchange, first = begun()
    assert step(exchange, proved(first))[1] == ("alice", None)
    assert "behind the last one" in refused(exchange, proved(first)).why
    exchange, first = begun()
    assert step(exchange, proved(first, extra=",z=1"))[1] == ("alice", None)
    for change, why in (
        ({"nonce": "x"}, "the nonce is not the one"),
        ({"cut": 1}, "the proof has another length"),
    ):
        exchange, first = begun()
        assert why in refused(exchange, proved(first, **change)).why  # type: ignore[arg-type]
    exchange, first = begun()
    final = proved(first)
    for broken in (final.rpartition(b",p=")[0], final + b",", final.replace(b"c=", b"d="), b"", b"\xff"):
        exchange, _ = begun()
        refused(exchange, broken)
    exchange, _ = begun()
    assert "nonce" in refused(exchange, final).why  # of another exchange: a replay


@given(tokens=st.lists(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)), max_size=3))
def test_whatever_comes_is_refused_in_one_way(tokens: list[bytes]) -> None:
    exchange = server("SCRAM-SHA-512", {}).begin()
    for token in tokens:
        try:
            assert step(exchange, token)[1] is None
        except AuthenticationRefused:
            return


@given(
    head=st.sampled_from(["n,,", "n,a=alice,", "y,,", ""]),
    parts=st.lists(
        st.sampled_from(["n=alice", "r=x", "m=y", "a=b", "=", ",", "p=AAAA", "c=biws"]), max_size=5
    ),
)
def test_messages_that_are_nearly_right(head: str, parts: list[str]) -> None:
    exchange = server("SCRAM-SHA-256").begin()
    try:
        step(exchange, (head + ",".join(parts)).encode())
        refused(exchange, ",".join(parts).encode())
    except AuthenticationRefused:
        pass
