"""SCRAM users: described, set, deleted."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from muster.client.admin import users
from muster.client.admin.client import Admin
from muster.client.errors import AuthenticationFailed, ConnectionLost
from muster.coordinator.testing import Broker
from muster.protocol.errors import ErrorCode, KafkaError

BOTH = {"SCRAM-SHA-256": 16_384, "SCRAM-SHA-512": 16_384}


async def test_a_user_is_set_described_and_deleted(admin: Admin) -> None:
    assert await admin.describe_user_scram_credentials() == {}
    await admin.upsert_user_scram_credentials("bob", "secret")
    await admin.upsert_user_scram_credentials(
        "alice", "secret", mechanisms=["SCRAM-SHA-512"], iterations=4096
    )
    everyone = await admin.describe_user_scram_credentials()
    assert list(everyone.items()) == [("alice", {"SCRAM-SHA-512": 4_096}), ("bob", BOTH)]
    found = await admin.describe_user_scram_credentials(["bob", "nobody", "alice"])
    assert list(found) == ["bob", "nobody", "alice"]
    assert found.succeeded == {"bob": BOTH, "alice": {"SCRAM-SHA-512": 4_096}}
    assert found.failed["nobody"].code == ErrorCode.RESOURCE_NOT_FOUND
    await admin.delete_user_scram_credentials("bob", mechanisms=["SCRAM-SHA-256"])
    assert (await admin.describe_user_scram_credentials(["bob"]))["bob"] == {"SCRAM-SHA-512": 16_384}
    await admin.delete_user_scram_credentials("bob")
    await admin.delete_user_scram_credentials("alice")
    assert await admin.describe_user_scram_credentials() == {}


async def test_what_brokers_refuse(admin: Admin) -> None:
    with pytest.raises(KafkaError, match="nobody") as refused:
        await admin.delete_user_scram_credentials("nobody")
    assert refused.value.code == ErrorCode.RESOURCE_NOT_FOUND
    with pytest.raises(KafkaError, match="SCRAM-SHA-256: iterations must be 4096") as refused:
        await admin.upsert_user_scram_credentials("alice", "secret", iterations=4095)
    assert refused.value.code == ErrorCode.UNACCEPTABLE_CREDENTIAL
    await admin.upsert_user_scram_credentials("alice", "secret", mechanisms=["SCRAM-SHA-512"])
    with pytest.raises(KafkaError, match=r"SCRAM-SHA-256: .*; SCRAM-SHA-512 was deleted before") as refused:
        await admin.delete_user_scram_credentials("alice", mechanisms=["SCRAM-SHA-512", "SCRAM-SHA-256"])
    assert refused.value.code == ErrorCode.RESOURCE_NOT_FOUND


async def test_a_lost_answer_does_not_hide_what_was_set_before(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_nodes, calls = users.of_nodes, count()

    async def lost(*given: Any, **more: Any) -> Any:
        outcomes = await of_nodes(*given, **more)
        if next(calls) % 2:
            raise ConnectionLost("gone")
        return outcomes

    monkeypatch.setattr(users, "of_nodes", lost)
    with pytest.raises(KafkaError, match="SCRAM-SHA-512: gone; SCRAM-SHA-256 was set before"):
        await admin.upsert_user_scram_credentials("alice", "secret")
    with pytest.raises(KafkaError, match="SCRAM-SHA-512: gone; SCRAM-SHA-256 was deleted before"):
        await admin.delete_user_scram_credentials("alice")


async def test_what_is_refused_before_it_is_sent(admin: Admin) -> None:
    with pytest.raises(ValueError, match="mechanisms: it takes SCRAM-SHA-256, SCRAM-SHA-512, not 'PLAIN'"):
        await admin.upsert_user_scram_credentials("alice", "secret", mechanisms=["PLAIN"])
    with pytest.raises(ValueError, match="mechanisms: it takes at least one of"):
        await admin.delete_user_scram_credentials("alice", mechanisms=[])
    with pytest.raises(TypeError, match="mechanisms: it takes several names"):
        await admin.upsert_user_scram_credentials("alice", "secret", mechanisms="SCRAM-SHA-256")
    with pytest.raises(ValueError, match="password: it must not be empty"):
        await admin.upsert_user_scram_credentials("alice", "")
    with pytest.raises(ValueError, match="password: it is no Unicode text"):
        await admin.upsert_user_scram_credentials("alice", "secret\udcff")
    with pytest.raises(ValueError, match="iterations: it takes a number above 0, not 0"):
        await admin.upsert_user_scram_credentials("alice", "secret", iterations=0)


@pytest.mark.parametrize("mechanism", list(BOTH))
async def test_whom_it_lets_in(mechanism: str) -> None:
    with Broker(security="SASL_PLAINTEXT") as broker:
        settings = broker.client_settings("muster")

        async def topics(password: str) -> None:
            login = {"sasl_mechanism": mechanism, "sasl_plain_username": "zoë"}
            async with Admin(**{**settings, **login, "sasl_plain_password": password}) as admin:
                await admin.list_topics()

        async with Admin(**settings) as admin:
            await admin.upsert_user_scram_credentials("zoë", "pässword,=")
            await topics("pässword,=")
            await admin.upsert_user_scram_credentials("zoë", "another")
            await topics("another")
            with pytest.raises(AuthenticationFailed):
                await topics("pässword,=")
