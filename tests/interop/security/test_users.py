"""SCRAM users of Apache Kafka, through Admin and `muster users`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from muster.client import Admin, AuthenticationFailed, ErrorCode, KafkaError
from tests.interop.security.conftest import Secured
from tests.interop.security.test_commands import muster, properties
from tests.support.facts import DEADLINE_S

pytestmark = pytest.mark.interop

BOTH: Final = {"SCRAM-SHA-256": 16_384, "SCRAM-SHA-512": 16_384}


async def until(fact: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait: a broker learns of a change soon after its controller has made it."""
    deadline = time.monotonic() + DEADLINE_S
    while not await fact():
        assert time.monotonic() < deadline, f"timed out after {DEADLINE_S} s waiting for {what}"
        await asyncio.sleep(0.02)


async def lets_in(secured: Secured, mechanism: str, password: str, *, user: str = "zoe") -> bool:
    login = Admin(
        secured.kafka.bootstrap_of("SASL_PLAINTEXT"),
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_plain_username=user,
        sasl_plain_password=password,
    )
    async with login as admin:
        try:
            await admin.list_topics()
        except AuthenticationFailed:
            return False
        return True


async def test_admin(secured: Secured) -> None:
    async with Admin(secured.kafka.bootstrap) as admin:

        async def described() -> object:
            return (await admin.describe_user_scram_credentials()).get("zoe")

        async def told(what: object) -> None:
            async def fact() -> bool:
                return await described() == what

            await until(fact, f"the description {what}")

        await admin.upsert_user_scram_credentials("zoe", "pässword,=")
        await told(BOTH)
        for mechanism in BOTH:
            await until(partial(lets_in, secured, mechanism, "pässword,="), "the user to be let in")
            assert not await lets_in(secured, mechanism, "guess")
        await admin.upsert_user_scram_credentials(
            "zoe", "another", mechanisms=["SCRAM-SHA-512"], iterations=4_096
        )
        await told(BOTH | {"SCRAM-SHA-512": 4_096})
        await until(partial(lets_in, secured, "SCRAM-SHA-512", "another"), "the new password to be taken")
        await admin.delete_user_scram_credentials("zoe", mechanisms=["SCRAM-SHA-256"])
        await told({"SCRAM-SHA-512": 4_096})
        await admin.delete_user_scram_credentials("zoe")
        await told(None)
        missing = (await admin.describe_user_scram_credentials(["zoe"]))["zoe"]
        assert isinstance(missing, KafkaError)
        assert missing.code == ErrorCode.RESOURCE_NOT_FOUND

        async def shut_out() -> bool:
            return not await lets_in(secured, "SCRAM-SHA-512", "another")

        await until(shut_out, "the user to be refused")


async def test_what_kafka_refuses_is_what_muster_refuses(secured: Secured) -> None:
    async with Admin(secured.kafka.bootstrap) as admin:
        with pytest.raises(KafkaError) as refused:
            await admin.delete_user_scram_credentials("nobody")
        assert refused.value.code == ErrorCode.RESOURCE_NOT_FOUND
        with pytest.raises(KafkaError) as refused:
            await admin.delete_user_scram_credentials("nobody", mechanisms=["SCRAM-SHA-256"])
        assert refused.value.code == ErrorCode.RESOURCE_NOT_FOUND
        for iterations in (4_095, 16_385):
            with pytest.raises(KafkaError) as refused:
                await admin.upsert_user_scram_credentials("zoe", "secret", iterations=iterations)
            assert refused.value.code == ErrorCode.UNACCEPTABLE_CREDENTIAL
        with pytest.raises(KafkaError) as refused:
            await admin.upsert_user_scram_credentials("", "secret")
        assert refused.value.code == ErrorCode.UNACCEPTABLE_CREDENTIAL


async def test_commands(secured: Secured, tmp_path: Path) -> None:
    config = ("--command-config", properties(tmp_path, secured))
    pw = tmp_path / "pw"
    pw.write_text("secret\n")
    created = muster("users", "create", "carol", "--password-file", str(pw), *config)
    assert (created.returncode, created.stdout) == (0, "carol created: SCRAM-SHA-256, SCRAM-SHA-512\n"), (
        created.stderr
    )

    async def known(password: str) -> None:
        async def fact() -> bool:
            return await lets_in(secured, "SCRAM-SHA-256", password, user="carol")

        await until(fact, "the password to be known")

    await known("secret")
    again = muster("users", "create", "carol", *config, stdin="other\n")
    assert again.returncode == 1
    assert "user carol already exists" in again.stderr
    listed = muster("users", "list", *config)
    assert "carol  SCRAM-SHA-512       16384\n" in listed.stdout, listed.stderr
    changed = muster("users", "passwd", "carol", *config, stdin="other\n")
    assert changed.returncode == 0, changed.stderr
    await known("other")
    deleted = muster("users", "delete", "carol", *config)
    assert (deleted.returncode, deleted.stdout) == (0, "carol deleted\n"), deleted.stderr
    for action in ("passwd", "delete"):
        refused = muster("users", action, "nobody", *config, stdin="other\n")
        assert refused.returncode == 1
        assert "there is no user nobody" in refused.stderr
