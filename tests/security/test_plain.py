"""PLAIN on the server's side, against what SCRAM keeps of a password."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.coordinator.security import plain
from muster.coordinator.security.exchange import Authenticated, AuthenticationRefused
from muster.coordinator.security.plain import Plain
from muster.coordinator.security.scram import HASHES, MadeUp, ScramCredential

PASSWORD = "pässword"


def server(mechanisms: tuple[str, ...] = tuple(HASHES)) -> Plain:
    kept = {("alice", name): ScramCredential.of_password(name, PASSWORD, 4096) for name in mechanisms}
    return Plain(lambda user, name: kept.get((user, name)), MadeUp(b"secret"), list(HASHES))


def step(token: bytes, mechanisms: tuple[str, ...] = tuple(HASHES)) -> tuple[bytes, Authenticated | None]:
    async def ask() -> tuple[bytes, Authenticated | None]:
        return await server(mechanisms).begin().step(token)

    return asyncio.run(ask())


@pytest.mark.parametrize("mechanisms", [tuple(HASHES), *((name,) for name in HASHES)])
@pytest.mark.parametrize("authzid", ["", "alice"])
def test_who_knows_the_password(mechanisms: tuple[str, ...], authzid: str) -> None:
    assert step(f"{authzid}\0alice\0{PASSWORD}".encode(), mechanisms) == (b"", Authenticated("alice"))


@pytest.mark.parametrize(
    ("token", "told", "why"),
    [
        ("\0alice\0wrong", "Authentication failed: Invalid username or password", "alice: wrong password"),
        (
            f"\0nobody\0{PASSWORD}",
            "Authentication failed: Invalid username or password",
            "nobody: there is no such user",
        ),
        (f"\0\0{PASSWORD}", "Authentication failed: username not specified", ""),
        ("\0alice\0", "Authentication failed: password not specified", ""),
        (
            f"root\0alice\0{PASSWORD}",
            "Authentication failed: Client requested an authorization id that is different from username",
            "alice asked to be root",
        ),
        (
            "root\0alice\0wrong",
            "Authentication failed: Invalid username or password",
            "alice: wrong password",
        ),
        ("", "Invalid SASL/PLAIN response: expected 3 tokens, got 1", ""),
        (f"\0alice\0{PASSWORD}\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4", ""),
    ],
)
def test_who_is_not_let_in(token: str, told: str, why: str) -> None:
    with pytest.raises(AuthenticationRefused) as raised:
        step(token.encode())
    assert str(raised.value) == told
    assert raised.value.why == (why or told)
    assert PASSWORD not in raised.value.why


def test_what_is_no_utf_8() -> None:
    with pytest.raises(AuthenticationRefused, match="Invalid username or password"):
        step(b"\0alice\0\xff")


async def test_only_so_many_passwords_are_hashed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    under_way = most = 0
    gate = asyncio.Event()

    async def to_thread(check: object, *arguments: object) -> bool:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await gate.wait()
        under_way -= 1
        return False

    monkeypatch.setattr(plain.asyncio, "to_thread", to_thread)
    mechanism = server()
    tasks = [asyncio.create_task(mechanism.begin().step(b"\0alice\0guess")) for _ in range(20)]
    for _ in range(100):
        await asyncio.sleep(0)
    assert under_way == 2
    gate.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(each, AuthenticationRefused) for each in outcomes)
    assert most == 2


@given(st.binary(max_size=100))
def test_whatever_comes_lets_nobody_in(token: bytes) -> None:
    with pytest.raises(AuthenticationRefused):
        step(token, ())
