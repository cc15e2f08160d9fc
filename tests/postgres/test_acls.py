"""ACLs over PostgreSQL: created on one broker, they apply on the others, and after a restart."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import pytest

from muster.coordinator.config import Settings
from muster.coordinator.server.broker import Broker
from muster.coordinator.server.brokers import Brokers
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.acls import (
    DeleteAclsRequest,
    DescribeAclsRequest,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from muster.protocol.messages.metadata import MetadataRequest
from tests.server.test_authorize import as_user, creation, give, take_all
from tests.support.facts import DEADLINE_S
from tests.support.principals import know_users
from tests.support.wire import Wire

READ_T: Final = creation(Operation.READ, ResourceType.TOPIC, "t")
DENY_T: Final = creation(
    Operation.DESCRIBE,
    ResourceType.TOPIC,
    "t",
    principal="User:*",
    permission=Permission.DENY,
    pattern=PatternType.PREFIXED,
)
ALLOWED, DENIED = ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    know_users(monkeypatch)


@asynccontextmanager
async def started(store: str, node_id: int) -> AsyncIterator[Broker]:
    """A broker with its own connections to the database, as if it were alone in its process."""
    brokers = Brokers(Settings(port=0, store=store, node_id=node_id, super_users="User:admin"))
    await brokers.start()
    try:
        yield brokers.brokers[0]
    finally:
        await brokers.stop()


@asynccontextmanager
async def two(store: str) -> AsyncIterator[tuple[Broker, Broker]]:
    async with AsyncExitStack() as stack:
        yield (
            await stack.enter_async_context(started(store, 1)),
            await stack.enter_async_context(started(store, 2)),
        )


async def asked(wire: Wire) -> int:
    request = MetadataRequest(topics=[MetadataRequest.Topic(name="t")], allow_auto_topic_creation=False)
    (topic,) = (await wire.call(request, 9)).topics
    return int(topic.error_code)


async def becomes(wire: Wire, code: ErrorCode) -> None:
    """Wait for the code, on an open connection that got another answer before."""
    deadline = time.monotonic() + DEADLINE_S
    while (heard := await asked(wire)) != code:
        assert time.monotonic() < deadline, ErrorCode(heard)


def selected(principal: str) -> DeleteAclsRequest.DeleteAclsFilter:
    return DeleteAclsRequest.DeleteAclsFilter(
        resource_type_filter=ResourceType.ANY,
        resource_name_filter=None,
        pattern_type_filter=PatternType.ANY,
        principal_filter=principal,
        host_filter=None,
        operation=Operation.ANY,
        permission_type=Permission.ANY,
    )


async def kept(broker: Broker) -> set[tuple[str, str, int]]:
    """Principal, resource and permission of all ACLs, as a broker reports them."""
    everything = DescribeAclsRequest(
        resource_type_filter=ResourceType.ANY,
        resource_name_filter=None,
        pattern_type_filter=PatternType.ANY,
        principal_filter=None,
        host_filter=None,
        operation=Operation.ANY,
        permission_type=Permission.ANY,
    )
    async with await as_user(broker, "admin") as wire:
        answer = await wire.call(everything, 3)
    return {
        (each.principal, resource.resource_name, each.permission_type)
        for resource in answer.resources
        for each in resource.acls
    }


async def test_what_one_broker_is_told_holds_on_the_other(store: str) -> None:
    async with two(store) as (here, there), await as_user(there) as wire:
        await here.catalogue.create("t", partitions=1)
        assert await asked(wire) == DENIED
        await give(here, READ_T)
        await becomes(wire, ALLOWED)
        assert await kept(there) == await kept(here) == {("User:alice", "t", Permission.ALLOW)}
        await give(here, DENY_T)  # takes precedence over ALLOW
        await becomes(wire, DENIED)
        assert len(await kept(there)) == 2


async def test_what_is_deleted_counts_no_more(store: str) -> None:
    async with two(store) as (here, there), await as_user(here) as wire:
        await here.catalogue.create("t", partitions=1)
        await give(here, READ_T, DENY_T)
        async with await as_user(there, "admin") as admin:  # through the broker that did not create them
            answer = await admin.call(DeleteAclsRequest(filters=[selected("User:*")]), 3)
        assert [each.principal for each in answer.filter_results[0].matching_acls] == ["User:*"]
        await becomes(wire, ALLOWED)
        await take_all(there)
        await becomes(wire, DENIED)
        assert await kept(here) == await kept(there) == set()


async def test_they_survive_all_brokers(store: str) -> None:
    async with two(store) as (here, _):
        await here.catalogue.create("t", partitions=1)
        await give(here, READ_T, creation(Operation.ALL, ResourceType.GROUP, "g", principal="User:bob"))
    for node_id in (1, 3):  # one that ran before and one that did not
        async with started(store, node_id) as broker, await as_user(broker) as wire:
            assert await asked(wire) == ALLOWED  # from the first request
            assert len(await kept(broker)) == 2
            async with await as_user(broker, "bob") as other:
                assert await asked(other) == DENIED
