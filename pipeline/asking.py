"""What the driver asks a cluster: which partitions exist, where their logs end, and where to begin.

Spark calls a reader's methods one at a time, from a thread without an event loop. `BlockingCluster` keeps one
loop and its connections between calls; the loop does not run in between.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from muster.client.admin.answers import Outcomes, of_leaders
from muster.client.admin.offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    list_group_offsets,
    list_offsets,
)
from muster.client.errors import ClientError, refusal
from muster.client.fetch.requests import epoch_request
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.client.network.servers import parse_servers
from muster.client.partitions import NO_LEADER_EPOCH, OffsetAndTimestamp, TopicPartition
from muster.pipeline.errors import PipelineError, data_lost
from muster.pipeline.offsets import Offsets, Place
from muster.pipeline.options import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AtTime,
    Bound,
    Edge,
    Exactly,
    SourceOptions,
)
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.types import ZERO_UUID

T = TypeVar("T")

_FIRST_ANSWER_S: Final = 10.0
"""How long to wait for a cluster that has never answered; a refused connection is reported at once."""
_ANSWER_S: Final = 60.0
"""How long a cluster that has answered before may be unavailable, for example while a broker restarts."""
APPEARS_S: Final = 2.0
"""How long a new topic may take to appear on every broker, once one has answered without it."""


class BlockingCluster:
    """A cluster queried with blocking calls. Not thread-safe."""

    def __init__(self, options: SourceOptions) -> None:
        """Raises OptionError if the TLS or SASL settings cannot be read."""
        self._access = options.access
        security = options.access.security
        self._loop = asyncio.new_event_loop()
        self._cluster = Cluster(
            parse_servers(options.bootstrap_servers), client_id=options.client_id, security=security
        )
        self._reached = False

    def ask(self, question: Callable[[Cluster, float], Awaitable[T]], timeout_s: float | None = None) -> T:
        """The answer to `question(cluster, deadline)`. Raises PipelineError if it fails or times out."""

        async def asked() -> T:
            limit_s = timeout_s or (_ANSWER_S if self._reached else _FIRST_ANSWER_S)
            return await question(self._cluster, deadline(limit_s))

        try:
            answer = self._loop.run_until_complete(asked())
        except (ClientError, KafkaError) as error:
            raise PipelineError(self._access.in_options(str(error))) from error
        self._reached = True
        return answer

    def close(self) -> None:
        """Close the connections and the loop; harmless when repeated."""
        if not self._loop.is_closed():
            self._loop.run_until_complete(self._cluster.close())
            self._loop.close()


# --- what there is ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Look:
    """What there is to read, as reported by brokers."""

    ends: Mapping[TopicPartition, Place]
    """Where the logs end (for read_committed, the last stable offsets), and the leader epochs of these
    answers."""
    topic_ids: Mapping[str, uuid.UUID]
    missing: tuple[str, ...] = ()
    """Topics and partitions named in the options that do not exist."""

    def offsets(self) -> Offsets:
        """The ends, as offsets of a stream."""
        return Offsets(self.ends, self.topic_ids)


async def look(
    cluster: Cluster,
    options: SourceOptions,
    until: float,
    known: Iterable[TopicPartition] = (),
    *,
    await_named: bool = False,
) -> Look:
    """Look up everything that the options name. If its leader does not know a partition that Metadata lists,
    it is about to appear or to disappear; it is left out if it does not appear soon. So is one that was
    `known` and is not listed, and with `await_named` what the options name: one broker alone may have old
    metadata. A leader that does not know one that was `known` is behind, and waited for."""
    patience: float | None = None
    topics = options.topics
    names = set(topics.names) | {where.topic for where in topics.partitions}

    async def ask() -> Look:
        nonlocal patience
        response = await cluster.metadata(sorted(names) if topics.pattern is None else None, until)
        found: dict[str, list[int]] = {}
        topic_ids: dict[str, uuid.UUID] = {}
        for told in response.topics:
            name = told.name or ""
            if topics.pattern is not None and (told.is_internal or not re.search(topics.pattern, name)):
                continue
            if told.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue
            if told.error_code:
                raise refusal(told.error_code, about=f"topic {name}")
            found[name] = [each.partition_index for each in told.partitions]
            if told.topic_id != ZERO_UUID:
                topic_ids[name] = told.topic_id
        there = {TopicPartition(name, index) for name, indexes in found.items() for index in indexes}
        missing = sorted(name for name in names if name not in found)
        if topics.partitions:
            missing += [str(each) for each in topics.partitions if each not in there and each.topic in found]
            there &= set(topics.partitions)
        listed = await _listed(cluster, options, dict.fromkeys(there, LATEST), until)
        ends = _present(listed)
        unknown = sorted(listed.keys() - ends.keys())
        if behind := sorted(set(known).intersection(unknown)):
            raise refusal(ErrorCode.LEADER_NOT_AVAILABLE, f"the leader of {behind[0]} does not know it")
        absent = [str(each) for each in sorted({*unknown, *known} - ends.keys())]
        if await_named:
            absent += missing
        if absent:
            if patience is None:
                patience = deadline(APPEARS_S)
            if deadline(0) < patience:
                raise refusal(ErrorCode.LEADER_NOT_AVAILABLE, about=absent[0])
        missing += [str(each) for each in unknown if each.topic in names]
        return Look(
            {where: Place(end.offset, end.leader_epoch) for where, end in ends.items() if end is not None},
            topic_ids,
            tuple(missing),
        )

    return await cluster.retrying(ask, until)


async def first_look(cluster: Cluster, options: SourceOptions, until: float) -> Look:
    """Like `look`, for a reader that has seen nothing yet: raises PipelineError if anything is missing."""
    found = await look(cluster, options, until, await_named=True)
    if found.missing:
        missing = ", ".join(found.missing)
        raise PipelineError(f"{options.bootstrap_servers} has no topic or partition {missing}")
    return found


async def _listed(
    cluster: Cluster, options: SourceOptions, wanted: Mapping[TopicPartition, int], until: float
) -> Outcomes[TopicPartition, OffsetAndTimestamp | None]:
    isolation = READ_COMMITTED if options.read_committed else READ_UNCOMMITTED
    return await list_offsets(cluster, wanted, until, isolation_level=isolation)


def _present(outcomes: Outcomes[TopicPartition, T]) -> dict[TopicPartition, T]:
    """The results of the partitions that their leaders know. Raises the first other failure, if any."""
    for failure in outcomes.failed.values():
        if failure.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise failure
    return outcomes.succeeded


async def earliest(
    cluster: Cluster, options: SourceOptions, partitions: Iterable[TopicPartition], until: float
) -> dict[TopicPartition, int]:
    """Where the logs begin."""
    listed = await _listed(cluster, options, dict.fromkeys(partitions, EARLIEST), until)
    return _offsets(listed.raise_for_failures())


async def earliest_of_present(
    cluster: Cluster, options: SourceOptions, partitions: Iterable[TopicPartition], until: float
) -> dict[TopicPartition, int]:
    """Where the logs begin, without those that were deleted meanwhile."""
    return _offsets(_present(await _listed(cluster, options, dict.fromkeys(partitions, EARLIEST), until)))


def _offsets(listed: Mapping[TopicPartition, OffsetAndTimestamp | None]) -> dict[TopicPartition, int]:
    return {where: 0 if start is None else start.offset for where, start in listed.items()}


async def ends_of_logs(
    cluster: Cluster, partitions: Iterable[TopicPartition], until: float
) -> dict[TopicPartition, int]:
    """Where the logs end, open transactions included, without those that were deleted meanwhile."""
    listed = _present(await list_offsets(cluster, dict.fromkeys(partitions, LATEST), until))
    return {where: end.offset for where, end in listed.items() if end is not None}


async def is_local(cluster: Cluster, where: TopicPartition, offset: int, until: float) -> bool:
    """Whether the leader has the records from `offset` on itself, none of them only in remote storage
    (KIP-405). Brokers that cannot say where their own log begins have no remote storage."""
    try:
        listed = (await list_offsets(cluster, {where: EARLIEST_LOCAL}, until)).raise_for_failures()
    except KafkaError as error:
        if error.code is ErrorCode.UNSUPPORTED_VERSION:
            return True
        raise
    start = listed[where]
    return start is None or offset >= start.offset


async def ends_of_epochs(
    cluster: Cluster, epochs: Mapping[TopicPartition, int], until: float
) -> dict[TopicPartition, int]:
    """The end offset of each leader epoch in its leader's log (KIP-320), -1 if unknown to the leader; without
    logs that were deleted meanwhile."""

    async def ask(node: int, partitions: list[TopicPartition]) -> dict[TopicPartition, int | KafkaError]:
        asked = {where: (NO_LEADER_EPOCH, epochs[where]) for where in partitions}
        response = await cluster.call(epoch_request(asked), until, node=node)
        return {
            (where := TopicPartition(topic.topic, each.partition)): refusal(each.error_code, about=str(where))
            if each.error_code
            else each.end_offset
            for topic in response.topics
            for each in topic.partitions
        }

    if not epochs:
        return {}
    return _present(await of_leaders(cluster, epochs, ask, until, api="OffsetForLeaderEpoch"))


# --- where to begin and to end ------------------------------------------------------------------------------


class Unresolved(PipelineError):
    """A bound stands for no offset in some partitions; `offsets` are those in the others."""

    def __init__(self, message: str, offsets: Mapping[TopicPartition, int]) -> None:
        super().__init__(message)
        self.offsets = offsets


async def resolved(
    cluster: Cluster, options: SourceOptions, bound: Bound, side: str, found: Look, until: float
) -> dict[TopicPartition, int]:
    """The offset that `bound` stands for in each partition found. `side`, "starting" or "ending", selects the
    option that errors name. Raises Unresolved if there is none in some of them, and PipelineError for
    positions that the logs do not have."""
    ends = {where: end.offset for where, end in found.ends.items()}
    if bound is Edge.LATEST:
        return ends
    if bound is Edge.EARLIEST:
        return await earliest(cluster, options, ends, until)
    if bound is Edge.GROUP:
        return await _of_group(cluster, options, ends, until)
    if isinstance(bound, Exactly):
        return await _exact(cluster, options, bound.offsets, side, ends, until)
    assert isinstance(bound, AtTime)
    return await _at_time(cluster, options, bound, side, ends, until)


async def _of_group(
    cluster: Cluster, options: SourceOptions, ends: Mapping[TopicPartition, int], until: float
) -> dict[TopicPartition, int]:
    """The group's committed offsets; without one, the start of the log, so that nothing is skipped. If the
    log ends before the committed offset, it was recreated or truncated: raises DataLost, or begins at its
    start. Who committed may have read an open transaction: read_committed begins before it."""
    group_id = options.group_id
    assert group_id is not None, "checked with the options"
    offsets = (await list_group_offsets(cluster, [group_id], until)).raise_for_failures()[group_id]
    committed = {where: offsets[where].offset for where in ends if where in offsets}
    beyond = [where for where, offset in sorted(committed.items()) if offset > ends[where]]
    found = await ends_of_logs(cluster, beyond, until)
    for where in beyond:
        end = found.get(where, ends[where])
        if committed[where] <= end:
            committed[where] = ends[where]
            continue
        data_lost(
            options,
            f"group {group_id} has committed offset {committed[where]} of {where}, whose log ends at {end}",
        )
        del committed[where]
    return await earliest(cluster, options, ends.keys() - committed.keys(), until) | committed


async def _exact(
    cluster: Cluster,
    options: SourceOptions,
    given: Mapping[TopicPartition, int],
    side: str,
    ends: Mapping[TopicPartition, int],
    until: float,
) -> dict[TopicPartition, int]:
    """The offsets given. With read_committed one may be in an open transaction, to start there once it has
    ended, but not to end there."""
    name = f"{side}Offsets"
    _check_there(given, name, ends)
    from_start = [where for where, offset in given.items() if offset == EARLIEST_OFFSET]
    starts = await earliest(cluster, options, from_start, until)
    beyond = [where for where, offset in given.items() if offset > ends[where]]
    found = await ends_of_logs(cluster, beyond, until) if options.read_committed else {}
    chosen = {}
    for where, offset in given.items():
        if offset > (end := found.get(where, ends[where])):
            raise PipelineError(f"option {name}: {where} has no offset {offset}, its log ends at {end}")
        if offset > ends[where] and side == "ending":
            raise PipelineError(
                f"option {name}: {where} can be read up to offset {ends[where]}, not {offset}: a transaction"
                " is open there"
            )
        chosen[where] = (
            starts[where] if offset == EARLIEST_OFFSET else ends[where] if offset == LATEST_OFFSET else offset
        )
    _check_none_forgotten(given, name, ends, chosen)
    return chosen


async def _at_time(
    cluster: Cluster,
    options: SourceOptions,
    bound: AtTime,
    side: str,
    ends: Mapping[TopicPartition, int],
    until: float,
) -> dict[TopicPartition, int]:
    name = f"{side}Timestamp"
    timestamps = bound.timestamps_ms
    if isinstance(timestamps, int):
        timestamps = dict.fromkeys(ends, timestamps)
    else:
        name = f"{side}OffsetsByTimestamp"
        _check_there(timestamps, name, ends)
    chosen = {}
    without = []
    listed = await _listed(cluster, options, timestamps, until)
    for where, record in listed.raise_for_failures().items():
        if record is None and not bound.else_latest:
            without.append(where)
        else:
            chosen[where] = ends[where] if record is None else min(record.offset, ends[where])
    _check_none_forgotten(timestamps, name, ends, chosen)
    if without:
        raise Unresolved(
            f"option {name}: {without[0]} has no record at or after {timestamps[without[0]]};"
            " startingOffsetsByTimestampStrategy=latest takes the end of the log then",
            chosen,
        )
    return chosen


def _check_there(given: Iterable[TopicPartition], name: str, ends: Mapping[TopicPartition, int]) -> None:
    if strange := sorted(set(given) - ends.keys()):
        raise PipelineError(f"option {name}: {', '.join(map(str, strange[:5]))}: not what is read here")


def _check_none_forgotten(
    given: Iterable[TopicPartition],
    name: str,
    ends: Mapping[TopicPartition, int],
    chosen: Mapping[TopicPartition, int],
) -> None:
    """As in Spark's source, every partition must be named, so that none is forgotten by accident."""
    if forgotten := sorted(ends.keys() - set(given)):
        raise Unresolved(f"option {name}: it says nothing of {', '.join(map(str, forgotten[:5]))}", chosen)
