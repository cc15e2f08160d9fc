"""PLAIN on the server side, checked against what SCRAM stores of a password."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import threading
from collections import Counter

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


def test_the_password_of_either_mechanism() -> None:
    """The passwords differ if only one was altered. SCRAM accepts either, too."""
    kept = {
        name: ScramCredential.of_password(name, f"of {name}", 4096 + number)
        for number, name in enumerate(HASHES)
    }

    async def ask(password: str) -> Authenticated | None:
        mechanism = Plain(lambda user, name: kept.get(name), MadeUp(b"secret"), list(HASHES))
        return (await mechanism.begin().step(f"\0alice\0{password}".encode()))[1]

    for name in HASHES:
        assert asyncio.run(ask(f"of {name}")) == ("alice", None)
    with pytest.raises(AuthenticationRefused):
        asyncio.run(ask("of neither"))


def test_a_credential_with_few_iterations_lets_nobody_in() -> None:
    kept = ScramCredential.of_password("SCRAM-SHA-256", PASSWORD, 1)

    async def ask() -> None:
        await (
            Plain(lambda user, name: kept, MadeUp(b""), ["SCRAM-SHA-256"])
            .begin()
            .step(f"\0alice\0{PASSWORD}".encode())
        )

    with pytest.raises(AuthenticationRefused):
        asyncio.run(ask())


@pytest.mark.parametrize(
    "credentials",
    [{}, {"SCRAM-SHA-256": 4096}, {"SCRAM-SHA-512": 8192}, {"SCRAM-SHA-256": 16_384, "SCRAM-SHA-512": 4096}],
)
@pytest.mark.parametrize("password", [PASSWORD, "wrong"])
def test_a_check_takes_as_much_work_whoever_it_is(
    credentials: dict[str, int], password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {name: ScramCredential.of_password(name, PASSWORD, count) for name, count in credentials.items()}
    work: Counter[str] = Counter()
    hashed = hashlib.pbkdf2_hmac

    def counted(name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        work[name] += iterations
        return hashed(name, password, salt, iterations)

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", counted)

    async def ask() -> None:
        mechanism = Plain(lambda user, name: kept.get(name), MadeUp(b"secret"), list(HASHES))
        with contextlib.suppress(AuthenticationRefused):
            await mechanism.begin().step(f"\0alice\0{password}".encode())

    asyncio.run(ask())
    assert work == {"sha256": 16_384, "sha512": 16_384}


async def test_only_so_many_passwords_are_hashed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor any more if the clients disconnect before they are answered."""
    under_way = most = checks = 0
    lock, gate, full = threading.Lock(), threading.Event(), threading.Semaphore(0)

    def passed(credentials: object, password: str) -> set[str]:
        nonlocal under_way, most, checks
        with lock:
            under_way += 1
            checks += 1
            most = max(most, under_way)
        full.release()
        gate.wait(10)
        with lock:
            under_way -= 1
        return set()

    monkeypatch.setattr(plain, "_passed", passed)
    mechanism = server()
    try:
        tasks = [asyncio.create_task(mechanism.begin().step(b"\0alice\0guess")) for _ in range(20)]
        for _ in range(2):
            assert await asyncio.to_thread(full.acquire, timeout=10)
        for task in tasks[:15]:
            task.cancel()
        await asyncio.wait(tasks[:15])
        assert (checks, most) == (2, 2)
    finally:
        gate.set()
    outcomes = await asyncio.gather(*tasks[15:], return_exceptions=True)
    assert all(isinstance(each, AuthenticationRefused) for each in outcomes)
    assert (checks, most) == (7, 2)


async def test_who_guesses_keeps_nobody_elsewhere_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those at another address are checked as soon as the checks under way are done."""
    checked: list[str] = []
    gate, full = threading.Event(), threading.Semaphore(0)

    def passed(credentials: object, password: str) -> set[str]:
        checked.append(password)
        full.release()
        gate.wait(10)
        return set()

    monkeypatch.setattr(plain, "_passed", passed)
    mechanism = server()

    def asked(host: str, password: str) -> asyncio.Task[object]:
        return asyncio.create_task(mechanism.begin(host).step(f"\0alice\0{password}".encode()))

    try:
        tasks = [asked("/10.0.0.6", "guess") for _ in range(20)]
        for _ in range(2):
            assert await asyncio.to_thread(full.acquire, timeout=10)
        tasks.append(asked("/10.0.0.7", PASSWORD))
        await asyncio.sleep(0)  # it is in line
    finally:
        gate.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(each, AuthenticationRefused) for each in outcomes)
    assert (checked.index(PASSWORD), len(checked)) == (2, 21)
    del tasks, outcomes
    await asyncio.sleep(0)  # the loop lets go of them, too
    gc.collect()
    assert not mechanism._turns


@given(st.binary(max_size=100))
def test_whatever_comes_lets_nobody_in(token: bytes) -> None:
    with pytest.raises(AuthenticationRefused):
        step(token, ())
