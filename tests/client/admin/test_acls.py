"""ACLs: created, described, deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from muster.client.admin.acls import (
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
)
from muster.client.admin.client import Admin
from muster.coordinator import testing
from muster.protocol.errors import ErrorCode, KafkaError

TOPIC = AclResourceType.TOPIC
READ = Acl(TOPIC, "orders", "User:alice", AclOperation.READ)
PREFIXED = Acl(
    TOPIC, "ord", "User:*", AclOperation.WRITE, AclPermission.DENY, PatternType.PREFIXED, "10.0.0.0/8"
)
CLUSTER = Acl.of_cluster("User:bob", AclOperation.DESCRIBE)


@pytest.fixture
async def ruled() -> AsyncIterator[Admin]:
    """A super user's admin client for a broker with an authorizer."""
    async with testing.Broker(super_users="ANONYMOUS") as broker, Admin(broker.bootstrap) as admin:
        yield admin


async def test_they_come_and_go(ruled: Admin) -> None:
    everything = [READ, PREFIXED, CLUSTER]
    assert await ruled.create_acls(everything) == dict.fromkeys(everything)
    assert await ruled.create_acls([READ]) == {READ: None}
    assert await ruled.describe_acls() == sorted(everything)
    assert await ruled.describe_acls(AclFilter(TOPIC, "orders", PatternType.MATCH)) == sorted(
        [READ, PREFIXED]
    )
    assert await ruled.describe_acls(AclFilter(principal="User:*")) == [PREFIXED]
    by, none = AclFilter(TOPIC), AclFilter(principal="User:nobody")
    assert await ruled.delete_acls([by, none]) == {by: sorted([READ, PREFIXED]), none: []}
    assert await ruled.describe_acls() == [CLUSTER]


async def test_one_that_cannot_be_does_not_keep_the_others(ruled: Admin) -> None:
    bad = READ._replace(principal="alice")
    outcomes = await ruled.create_acls([bad, READ])
    assert outcomes.succeeded == {READ: None}
    assert outcomes.failed[bad].code is ErrorCode.INVALID_REQUEST


async def test_without_an_authorizer_all_are_refused(admin: Admin) -> None:
    with pytest.raises(KafkaError) as raised:
        await admin.describe_acls()
    assert raised.value.code is ErrorCode.SECURITY_DISABLED
    created = await admin.create_acls([READ])
    assert created.failed[READ].code is ErrorCode.SECURITY_DISABLED
    deleted = await admin.delete_acls([AclFilter()])
    assert deleted.failed[AclFilter()].code is ErrorCode.SECURITY_DISABLED


def test_they_read_as_sentences() -> None:
    assert str(READ) == "User:alice may read topic orders"
    assert str(PREFIXED) == "User:* may not write every topic that begins with ord from 10.0.0.0/8"
    assert str(CLUSTER) == "User:bob may describe the cluster"
    idempotent = CLUSTER._replace(operation=AclOperation.IDEMPOTENT_WRITE, host="10.0.0.0/8")
    assert str(idempotent) == "User:bob may write idempotently (cluster) from 10.0.0.0/8"
    assert str(READ._replace(resource_name="*")) == "User:alice may read every topic"
