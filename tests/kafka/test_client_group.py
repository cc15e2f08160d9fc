"""Our members in groups of Apache Kafka: what tests/client/test_group.py shows with muster, where the choice
of coordinator matters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from muster.client.admin.topics import create_partitions
from muster.client.group.outcomes import StaleOwner
from muster.client.network.cluster import Cluster, parse_bootstrap
from muster.client.network.connection import deadline
from muster.client.partitions import OffsetAndMetadata
from muster.protocol.errors import ErrorCode, KafkaError
from tests.client.members import LONG_S, Event, member, partitions, reading, settled
from tests.kafka.conftest import KafkaOfConfigs
from tests.kafka.stories import KAFKA_CONFIGS
from tests.support.facts import until
from tests.support.wire_blocking import WireConnection
from tests.support.wire_topics import create_topics

pytestmark = pytest.mark.kafka

BOTH = pytest.mark.parametrize("apart", [False, True], ids=["loop", "thread"])


@pytest.fixture
async def cluster(kafka_of_configs: KafkaOfConfigs) -> AsyncIterator[Cluster]:
    async with Cluster(parse_bootstrap(kafka_of_configs(KAFKA_CONFIGS).bootstrap)) as connected:
        yield connected


@pytest.fixture
def names(kafka_of_configs: KafkaOfConfigs, request: pytest.FixtureRequest) -> tuple[str, str]:
    """Apache Kafka's address, and a name unique to the test, for a group and a topic with 4 partitions."""
    name = request.node.name.translate(str.maketrans("[]+", "--_"))
    kafka = kafka_of_configs(KAFKA_CONFIGS)
    with WireConnection(kafka.host, kafka.port, "names") as connection:
        create_topics(connection, {name: 4})  # and wait: a leader assigns the partitions that it is told of
    return kafka.bootstrap, name


@BOTH
@pytest.mark.parametrize(
    "assignors",
    [
        ("range",),
        ("roundrobin",),
        ("sticky",),
        ("cooperative-sticky",),
        ("range", "cooperative-sticky"),
    ],
    ids="+".join,
)
async def test_members_share_commit_and_hand_over(
    names: tuple[str, str], assignors: tuple[str, ...], apart: bool
) -> None:
    bootstrap, name = names
    async with member(bootstrap, name, (name,), assignors=assignors, apart=apart) as first:
        await settled(first)
        async with member(bootstrap, name, (name,), assignors=assignors, apart=apart) as second:
            await settled(first, second, owning=4)
            assert [len(each.owned) for each in (first, second)] == [2, 2]
            given_up = second.owned if assignors == ("cooperative-sticky",) else partitions(name, 4)
            assert first.events[1] == Event("revoked", given_up)
            assert (await first.commit(3)).ok
            assert {type(each) for each in (await first.commit(3, *second.owned)).values()} == {StaleOwner}
            told = await first.group.committed(partitions(name, 4), deadline(LONG_S))
            assert told == {
                where: OffsetAndMetadata(3) if where in first.owned else None for where in partitions(name, 4)
            }
        await reading(first, until=lambda: len(first.owned) == 4)


async def test_static_members_come_back_without_a_rebalance_and_leaders_watch_on(
    names: tuple[str, str], cluster: Cluster
) -> None:
    bootstrap, name = names
    options = {"metadata_max_age_ms": 300}
    async with member(bootstrap, name, (name,), group_instance_id="b", **options) as other:
        async with member(bootstrap, name, (name,), group_instance_id="a", **options) as first:
            await settled(first)
            await settled(first, other, owning=4)
            assert first.group.is_leader
            before = first.owned, first.group.generation_id
        async with member(bootstrap, name, (name,), group_instance_id="a", **options) as second:
            await reading(second, until=lambda: second.owned)
            assert (second.owned, second.group.generation_id) == before
            assert second.group.is_leader  # and need not assign (KIP-814)
            (await create_partitions(cluster, {name: 6}, deadline(LONG_S))).raise_for_failures()
            await settled(second, other, owning=6)


async def test_whose_instance_id_was_taken_over_is_told(names: tuple[str, str]) -> None:
    bootstrap, name = names
    async with member(bootstrap, name, (name,), group_instance_id="a") as first:
        await settled(first)
        async with member(bootstrap, name, (name,), group_instance_id="a") as second:
            await reading(second, until=lambda: second.owned)
            with pytest.raises(KafkaError, match="instance id a") as refused:
                await reading(first, until=lambda: False)
            assert refused.value.code is ErrorCode.FENCED_INSTANCE_ID


@BOTH
async def test_who_asks_for_no_records_leaves_and_comes_back(names: tuple[str, str], apart: bool) -> None:
    bootstrap, name = names
    async with member(bootstrap, name, (name,), apart=apart, max_poll_interval_ms=1_500) as alone:
        await settled(alone)
        await until(lambda: alone.group.lost)
        await settled(alone)
        assert [each.what for each in alone.events] == ["assigned", "lost", "assigned"]


async def test_commits_and_goodbyes_pass_a_join_that_is_parked(names: tuple[str, str]) -> None:
    bootstrap, name = names
    async with (
        member(bootstrap, name, (name,)) as first,
        member(bootstrap, name, (name,)) as second,
        member(bootstrap, name, (name,)) as third,
    ):
        await settled(first)
        await settled(first, second, owning=4)
        await reading(third, until=lambda: first.group.rejoin_needed and second.group.rejoin_needed)
        had = second.owned
        call = asyncio.create_task(second.read(LONG_S))  # waits for `first`
        await until(lambda: not second.owned)
        assert (await second.commit(5, *had)).ok
        await second.group.close(LONG_S)
        await asyncio.wait([call])
        call.exception()
        await settled(first, third, owning=4)


async def test_committing_for_a_group_without_being_a_member(names: tuple[str, str]) -> None:
    bootstrap, name = names
    async with member(bootstrap, name, ()) as outside:
        assert (await outside.commit(4, *partitions(name, 4))).ok
        async with member(bootstrap, name, (name,)) as inside:
            await settled(inside)
            refused = await outside.commit(5, *partitions(name, 4))
            assert {each.why.code for each in refused.stale.values()} == {ErrorCode.UNKNOWN_MEMBER_ID}
            assert len(refused.stale) == 4
