"""Client quotas: set, described, removed."""

from __future__ import annotations

import pytest

from muster.client.admin.client import Admin
from muster.client.admin.quotas import QuotaEntity, QuotaName
from muster.protocol.errors import ErrorCode

ALICE = QuotaEntity(user="alice")
BOTH = QuotaEntity(user="alice", client_id=QuotaName.DEFAULT)
ADDRESS = QuotaEntity(ip=QuotaName.DEFAULT)


async def test_they_come_and_go(admin: Admin) -> None:
    assert await admin.describe_client_quotas() == {}
    changes = {
        ALICE: {"producer_byte_rate": 1024.0, "request_percentage": 12.5},
        BOTH: {"consumer_byte_rate": 2048.0},
        ADDRESS: {"connection_creation_rate": 3.0},
    }
    assert await admin.alter_client_quotas(changes) == dict.fromkeys(changes)
    assert await admin.describe_client_quotas() == changes
    assert set(await admin.describe_client_quotas(ALICE)) == {ALICE, BOTH}
    assert set(await admin.describe_client_quotas(ALICE, strict=True)) == {ALICE}
    assert set(await admin.describe_client_quotas(QuotaEntity(client_id=QuotaName.DEFAULT))) == {BOTH}
    assert set(await admin.describe_client_quotas(QuotaEntity(ip=QuotaName.ANY))) == {ADDRESS}
    await admin.alter_client_quotas({ALICE: {"producer_byte_rate": None}})
    assert await admin.describe_client_quotas(ALICE, strict=True) == {ALICE: {"request_percentage": 12.5}}


async def test_one_that_cannot_be_does_not_keep_the_others(admin: Admin) -> None:
    outcomes = await admin.alter_client_quotas(
        {ALICE: {"producer_byte_rate": -1.0}, BOTH: {"consumer_byte_rate": 1.0}}
    )
    assert outcomes.succeeded == {BOTH: None}
    assert outcomes.failed[ALICE].code is ErrorCode.INVALID_REQUEST
    checked = await admin.alter_client_quotas({ALICE: {"producer_byte_rate": 1.0}}, validate_only=True)
    assert checked == {ALICE: None}
    assert set(await admin.describe_client_quotas()) == {BOTH}


async def test_many_cannot_be_set_at_once(admin: Admin) -> None:
    with pytest.raises(ValueError, match="changes: any user stands for many"):
        await admin.alter_client_quotas({QuotaEntity(user=QuotaName.ANY): {"producer_byte_rate": 1.0}})


def test_entities_in_words() -> None:
    assert str(BOTH) == "user alice with the default client id"
    assert str(QuotaEntity(ip="10.0.0.1")) == "address 10.0.0.1"
    assert str(QuotaEntity(client_id=QuotaName.ANY)) == "any client id"
    assert str(QuotaEntity()) == "nobody"
