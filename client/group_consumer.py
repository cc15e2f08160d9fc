"""Reading topics as a member of a classic group.

`poll` does what is due: join, commit, fetch. Beside it one task sends heartbeats, so that slow handling of
records is no death; when nobody polls for max.poll.interval.ms it leaves the group. All partitions are given
up before the group is joined again (eager rebalancing), after what was handled is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final

from muster.client.admin import committed_offsets, list_offsets
from muster.client.cluster import Cluster, backoff_s
from muster.client.connection import deadline
from muster.client.errors import ClientError
from muster.client.fetcher import MAX_WAIT_MS, Fetched, Fetcher
from muster.client.membership import Action, Membership, State
from muster.client.partitions import TopicPartition, grouped
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.offsets import OffsetCommitRequest

AUTO_COMMIT_INTERVAL_S: Final = 5.0
METADATA_MAX_AGE_S: Final = 300.0
_LANE: Final = "group"
_JOIN_EXTRA_S: Final = 5.0  # what Kafka's clients give a JoinGroup beyond the rebalance timeout
_LEAVE_S: Final = 5.0


class GroupConsumer:
    """Records of some topics, shared with the other members of a group.

    `reset` is where to begin in a partition without a committed offset, EARLIEST or LATEST. What `poll` has
    returned counts as handled when it is called again, or when `handled` says so; offsets of handled records
    are committed every `commit_interval_s`, before a rebalance and in `close`. `on_assigned` is told each new
    assignment.
    """

    def __init__(
        self,
        cluster: Cluster,
        membership: Membership,
        *,
        reset: int,
        patience_s: float,
        commit_interval_s: float = AUTO_COMMIT_INTERVAL_S,
        metadata_max_age_s: float = METADATA_MAX_AGE_S,
        on_assigned: Callable[[frozenset[TopicPartition]], None] = lambda _: None,
    ) -> None:
        self._cluster = cluster
        self._membership = membership
        self._reset = reset
        self._patience_s = patience_s
        self._commit_interval_s = commit_interval_s
        self._metadata_max_age_s = metadata_max_age_s
        self._on_assigned = on_assigned
        self._fetcher = Fetcher(cluster, patience_s=patience_s, reset=reset)
        self._handled: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._commit_at = 0.0
        self._look_at = 0.0
        self._counts: dict[str, int] = {}
        self._heartbeats: asyncio.Task[None] | None = None

    async def poll(self, wait_s: float = MAX_WAIT_MS / 1000) -> list[Fetched]:
        """Records as they come, none when there are none for `wait_s`. Joins the group when that is due,
        which takes as long as the group does. Raises ClientError or KafkaError when it cannot go on."""
        if self._heartbeats is not None and self._heartbeats.done():
            self._heartbeats.result()  # raises what ended them, unless it was the end of the generation
        self._handled |= self._fetcher.positions
        if self._membership.state is State.STABLE:
            self._membership.polled(_now_ms())
            await self._look_at_topics()
            if deadline(0) >= self._commit_at:
                await self._commit()
        if self._membership.state is not State.STABLE:
            await self._rejoin()
        return await self._fetcher.poll(wait_s)

    def handled(self, records: Iterable[Fetched]) -> None:
        """These are done with, though perhaps not all that the last `poll` returned."""
        for each in records:
            if each.where in self._handled:
                self._handled[each.where] = each.offset + 1

    async def close(self) -> bool:
        """Commit what was handled and leave the group; without an answer from it, after a few seconds.
        Whether all is committed: what is not, somebody reads again."""
        await self._stop_heartbeats()
        await self._fetcher.close()
        # A JoinGroup that is still waiting would hold up what follows it on its connection.
        joining = self._membership.state in (State.JOINING, State.SYNCING)
        if not joining:
            await _within(_LEAVE_S, self._commit_at_last)
        lane = "leave" if joining else _LANE
        await _within(_LEAVE_S, lambda: self._leave("the consumer is closed", lane=lane))
        return all(self._committed.get(where) == offset for where, offset in self._handled.items())

    # --- joining --------------------------------------------------------------------------------------------

    async def _rejoin(self) -> None:
        await self._stop_heartbeats()
        await self._commit()
        self._fetcher.assign({})
        self._handled.clear()
        tries = 0
        began = deadline(0)
        while self._membership.state is not State.STABLE:
            try:
                action = await self._join_once()
                failed = _unless_done(action, self._membership.group_id)
            except (ClientError, KafkaError) as error:
                if self._cluster.is_final(error):
                    raise
                failed = error
                self._membership.rejoin()
            if failed is None:
                began = deadline(0)
                if action is Action.REJOIN_ANEW:  # which a confused broker might answer for ever
                    await asyncio.sleep(backoff_s(0))
                continue
            if deadline(0) - began >= self._patience_s:
                raise failed
            self._cluster.forget()
            await asyncio.sleep(backoff_s(tries))
            tries += 1
        try:
            await self._begin()
        except BaseException:
            self._membership.rejoin()  # A member that does not know where to read is not in the generation.
            raise

    async def _join_once(self) -> Action:
        """One JoinGroup and, in the new generation, one SyncGroup."""
        until = deadline(self._patience_s)
        for topic in self._membership.topics:
            await self._cluster.topic(topic, until)
        node = await self._cluster.coordinator(self._membership.group_id, until)
        may_take_s = self._membership.max_poll_interval_ms / 1000 + _JOIN_EXTRA_S
        joining = self._membership.join()
        joined = await self._cluster.call(joining, deadline(may_take_s), node=node, lane=_LANE)
        action = self._membership.joined(joined)
        if action is not Action.GO_ON:
            return action
        if self._membership.is_leader:
            self._counts = await self._count_partitions()
        syncing = self._membership.sync(self._counts)
        synced = await self._cluster.call(syncing, deadline(may_take_s), node=node, lane=_LANE)
        return self._membership.synced(synced, _now_ms())

    async def _begin(self) -> None:
        """Heartbeats first, then the positions: looking those up may take a while."""
        self._heartbeats = asyncio.create_task(
            self._keep_alive(), name=f"heartbeats to {self._membership.group_id}"
        )
        assignment = self._membership.assignment
        until = deadline(self._patience_s)
        committed = await committed_offsets(self._cluster, self._membership.group_id, until, lane=_LANE)
        self._committed = {where: committed[where].offset for where in assignment & committed.keys()}
        missing = dict.fromkeys(assignment - committed.keys(), self._reset)
        begin_at = self._committed | await list_offsets(self._cluster, missing, until)
        self._handled = {where: begin_at[where] for where in sorted(assignment)}
        self._fetcher.assign(self._handled)
        self._commit_at = deadline(self._commit_interval_s)
        self._look_at = deadline(self._metadata_max_age_s)
        self._on_assigned(assignment)

    async def _count_partitions(self) -> dict[str, int]:
        until = deadline(self._patience_s)
        response = await self._cluster.metadata(sorted(self._membership.topics_to_assign), until)
        return {
            each.name: len(each.partitions) for each in response.topics if each.name and not each.error_code
        }

    async def _look_at_topics(self) -> None:
        """The leader rejoins when a topic has got other partitions than it assigned."""
        if self._membership.is_leader and deadline(0) >= self._look_at:
            self._look_at = deadline(self._metadata_max_age_s)
            try:
                changed = await self._count_partitions() != self._counts
            except (ClientError, KafkaError):
                return
            if changed:
                self._membership.rejoin()

    # --- staying --------------------------------------------------------------------------------------------

    async def _keep_alive(self) -> None:
        """Heartbeats until the generation is over; then `poll` joins the next one."""
        membership = self._membership
        while membership.state is State.STABLE:
            await asyncio.sleep((membership.next_deadline() - _now_ms()) / 1000)
            now_ms = _now_ms()
            try:
                if membership.overdue(now_ms):
                    async with asyncio.timeout(_LEAVE_S):
                        await self._leave("nobody asked for records for max.poll.interval.ms", lane=_LANE)
                elif now_ms >= membership.next_deadline():
                    await self._beat(now_ms)
            except (TimeoutError, ClientError):
                await self._pause()
            except KafkaError as error:
                if self._cluster.is_final(error):
                    raise
                await self._pause()

    async def _beat(self, now_ms: int) -> None:
        membership = self._membership
        until = deadline(membership.session_timeout_ms / 1000)
        node = await self._cluster.coordinator(membership.group_id, until)
        response = await self._cluster.call(membership.beat(now_ms), until, node=node, lane=_LANE)
        if membership.answered(ApiKey.HEARTBEAT, response.error_code) is Action.FIND_COORDINATOR:
            self._cluster.forget()

    async def _pause(self) -> None:
        self._cluster.forget()
        await asyncio.sleep(backoff_s(0))

    async def _stop_heartbeats(self) -> None:
        if self._heartbeats is not None:
            self._heartbeats.cancel()
            await asyncio.gather(self._heartbeats, return_exceptions=True)
            self._heartbeats = None

    async def _leave(self, reason: str, *, lane: str) -> None:
        request = self._membership.leave(reason)
        if request is not None:
            until = deadline(_LEAVE_S)
            node = await self._cluster.coordinator(self._membership.group_id, until)
            await self._cluster.call(request, until, node=node, lane=lane)

    # --- offsets --------------------------------------------------------------------------------------------

    def _uncommitted(self) -> dict[TopicPartition, int]:
        """What was handled since the last commit, by a member that may commit it."""
        if self._membership.generation_id < 0:
            return {}
        return {
            where: offset for where, offset in self._handled.items() if self._committed.get(where) != offset
        }

    async def _commit_at_last(self) -> None:
        """Commit, again and again while the coordinator moves or loads."""
        tries = 0
        while self._uncommitted():
            if await self._commit() not in (Action.AGAIN, Action.FIND_COORDINATOR):
                return
            await asyncio.sleep(backoff_s(tries))
            tries += 1

    async def _commit(self) -> Action:
        """Commit what was handled since the last time; what is left to do where that did not work. A
        rebalance in between is not an error: whoever gets the partitions reads a few records again."""
        self._commit_at = deadline(self._commit_interval_s)
        wanted = self._uncommitted()
        if not wanted:
            return Action.GO_ON
        membership = self._membership
        request = OffsetCommitRequest(
            group_id=membership.group_id,
            generation_id_or_member_epoch=membership.generation_id,
            member_id=membership.member_id,
            topics=[
                OffsetCommitRequest.Topic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequest.Partition(
                            partition_index=index, committed_offset=offset, committed_metadata=""
                        )
                        for index, offset in parts
                    ],
                )
                for topic, parts in grouped(wanted.items()).items()
            ],
        )
        until = deadline(self._patience_s)
        try:
            node = await self._cluster.coordinator(membership.group_id, until)
            response = await self._cluster.call(request, until, node=node, lane=_LANE)
        except (ClientError, KafkaError) as error:
            if self._cluster.is_final(error):
                raise
            self._cluster.forget()
            return Action.FIND_COORDINATOR
        left = Action.GO_ON
        for topic in response.topics:
            for each in topic.partitions:
                where = TopicPartition(topic.name, each.partition_index)
                if each.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or where not in wanted:
                    continue  # The topic is being deleted; fetching from it will say so.
                action = membership.answered(ApiKey.OFFSET_COMMIT, each.error_code)
                if action is Action.GO_ON:
                    self._committed[where] = wanted[where]
                    continue
                left = action
                if action is Action.FIND_COORDINATOR:
                    self._cluster.forget()
        return left


async def _within(seconds: float, last: Callable[[], Awaitable[None]]) -> None:
    """Try something that is not worth more than so many seconds: the group misses a member that is gone when
    its session times out."""
    with suppress(TimeoutError, ClientError, KafkaError):
        async with asyncio.timeout(seconds):
            await last()


def _unless_done(action: Action, group_id: str) -> Exception | None:
    """What a join that has to be tried again is given up with."""
    if action in (Action.GO_ON, Action.REJOIN, Action.REJOIN_ANEW):
        return None
    why = f"group {group_id} cannot be joined: its coordinator moves or is loading"
    return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, why)


def _now_ms() -> int:
    return int(deadline(0) * 1000)
