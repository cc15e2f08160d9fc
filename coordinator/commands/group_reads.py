"""Reads about several groups and partitions, some of which nobody may be able to tell about: these may not
take all of the time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from typing import Final, TypeVar

from muster.client.admin.answers import Outcomes, failure_of
from muster.client.admin.offsets import LATEST, list_offsets
from muster.client.errors import ClientError
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.client.partitions import TopicPartition
from muster.protocol.errors import KafkaError

_SHARE: Final = 1 / 3
"""How much of the remaining time one look-up may take while it holds up what else is to be shown."""

V = TypeVar("V")


async def of_groups(
    ask: Callable[[Cluster, Collection[str], float], Awaitable[Outcomes[str, V]]],
    cluster: Cluster,
    groups: Collection[str],
    until: float,
) -> Outcomes[str, V]:
    """What `ask` finds out about groups in a third of the time or, if that is nothing, in all of it: a group
    without a coordinator takes all it may. Raises what `ask` raises."""
    if len(groups) > 1:
        with suppress(ClientError, KafkaError):
            found = await ask(cluster, groups, _share_of(until))
            if found.succeeded:
                return found
    return await ask(cluster, groups, until)


async def log_ends(
    cluster: Cluster, partitions: Iterable[TopicPartition], until: float
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, KafkaError]]:
    """The log end offsets that are found in a third of the time, and why others are unknown: a partition
    without a leader takes all it may."""
    wanted = sorted(partitions)
    try:
        found = await list_offsets(cluster, dict.fromkeys(wanted, LATEST), _share_of(until))
    except (ClientError, KafkaError) as error:
        return {}, dict.fromkeys(wanted, failure_of(error))
    return {where: end.offset for where, end in found.succeeded.items() if end is not None}, found.failed


def _share_of(until: float) -> float:
    return deadline((until - deadline(0)) * _SHARE)
