"""Fetches records of the assigned partitions in the background, ahead of the reader. A task per broker keeps
one Fetch in flight (`broker_reader`) while the user works through earlier records (`reading`). This module is
the consumer's interface, and distributes partitions to brokers: it looks up leaders and missing positions. A
partition that has no leader, or fails, holds up no other.
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, NamedTuple

from muster.client.errors import ClientError, Closed, NotKafka, refusal
from muster.client.fetch.broker_reader import BrokerReader, leader_epoch
from muster.client.fetch.positions import EARLIEST, LATEST, Cause, PartitionState, Position, ResetStrategy
from muster.client.fetch.reading import RawBatch, Reading, Reset
from muster.client.fetch.requests import FetchSettings, by_partition, list_offsets_request
from muster.client.network.cluster import Cluster, all_of
from muster.client.network.connection import deadline
from muster.client.network.metadata import MetadataImage
from muster.client.partitions import TopicPartition
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.data import ListOffsetsResponse

__all__ = ["SESSION_CLOSE_S", "FetchSettings", "Fetcher", "Position", "RawBatch", "Reset", "Trouble"]

SESSION_CLOSE_S: Final = 1.0
"""How long closing the sessions at the brokers may take."""

_MISSING_S: Final = 1.0
"""How long brokers must say that a partition does not exist: one may not know a new topic yet."""


class Trouble(NamedTuple):
    """Why a partition cannot be read at the moment, and since when, by the loop's clock."""

    error: Exception
    since: float


class Fetcher:
    """Reads the assigned partitions from given positions. `on_reset` is called whenever a partition continues
    from an offset other than the reader expects, `on_failure` when the next poll is to raise why one cannot
    be read, `on_missing` once when one does not exist, and again only after it did. Methods that are not
    coroutines return at once, and must be called on the loop; tasks start when needed, and `close` ends them
    all.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: FetchSettings | None = None,
        *,
        on_reset: Callable[[Reset], None] = lambda _: None,
        on_failure: Callable[[], None] = lambda: None,
        on_missing: Callable[[TopicPartition, Exception], None] = lambda _where, _why: None,
    ) -> None:
        self._cluster = cluster
        self._settings = settings or FetchSettings()
        self._reading = Reading(cluster, self._settings, on_reset, on_failure)
        self._readers: dict[int, BrokerReader] = {}
        self._on_missing = on_missing
        self._unknown: dict[TopicPartition, float] = {}
        """Partitions that brokers say do not exist, and since when; inf once that is reported."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._looking_up: set[int] = set()  # nodes being asked for offsets
        self._asking = False
        self._tries = cluster.tries()
        self._ask_tries = 0
        self._ask_after = 0.0
        self._arranging: asyncio.Handle | None = None
        self._arrange_at = math.inf
        self._woken = False
        self._overdue = False  # whether a failure must be raised, even if there are records
        self._broken: BaseException | None = None
        self._closed = False

    # --- what is read ---------------------------------------------------------------------------------------

    def set_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these. Partitions that stay keep their state, and none is held any more; new ones have
        no position yet."""
        self._usable()
        wanted = set(partitions)
        for where in self._reading.assigned.keys() - wanted:
            self._drop(self._reading.assigned.pop(where))
            self._unknown.pop(where, None)
        for where in sorted(wanted - self._reading.assigned.keys()):
            self._reading.assigned[where] = PartitionState(where)
        self.hold(())
        self._arrange()

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        return frozenset(self._reading.assigned)

    @property
    def unpositioned(self) -> frozenset[TopicPartition]:
        """Assigned partitions without a position and without a look-up in progress: they wait for `seek` or
        `reset`."""
        return frozenset(
            where
            for where, state in self._reading.assigned.items()
            if state.position is None and state.strategy is None
        )

    def seek(self, where: TopicPartition, position: Position) -> None:
        """Continue from this position. Raises KeyError if not assigned."""
        self._usable()
        state = self._reading.assigned[where]
        state.seek(position)
        self._reading.forget(state)
        self._arrange()

    def reset(
        self,
        where: TopicPartition,
        strategy: ResetStrategy | None = None,
        why: str = "there is no committed offset",
    ) -> None:
        """Continue from where the strategy says (default: that of the settings). Raises KeyError if not
        assigned, and ValueError without any strategy."""
        self._usable()
        chosen = strategy or self._settings.reset
        if chosen is None:
            raise ValueError(f"{where}: no strategy to reset by")
        state = self._reading.assigned[where]
        state.reset(chosen, Cause(why, state.position))
        self._reading.forget(state)
        self._arrange()

    def position(self, where: TopicPartition) -> Position | None:
        """The reader's position; None while unknown. Raises KeyError if not assigned."""
        return self._reading.assigned[where].position

    def topic_ids(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, uuid.UUID]:
        """The ids of the topics that these partitions' positions belong to, as far as known."""
        assigned = self._reading.assigned
        return {
            where: topic_id
            for where in partitions
            if where in assigned and (topic_id := assigned[where].topic_id) is not None
        }

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return and fetch nothing of these until `resume`; fetched records are kept. Raises KeyError, and
        pauses none, if one is not assigned."""
        for state in [self._reading.assigned[where] for where in partitions]:
            state.paused = True
            self._changed(state)  # Its buffered records no longer block anything.

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """The opposite of `pause`. Raises KeyError if one is not assigned."""
        for state in [self._reading.assigned[where] for where in partitions]:
            state.paused = False
            self._changed(state)
        self._reading.news.set()

    @property
    def paused(self) -> frozenset[TopicPartition]:
        return frozenset(where for where, state in self._reading.assigned.items() if state.paused)

    def hold(self, partitions: Iterable[TopicPartition]) -> None:
        """Return and fetch nothing of these, which are about to be revoked, until the next assignment or the
        next `hold`; fetched records are kept."""
        held = set(partitions)
        for where, state in self._reading.assigned.items():
            if state.held is not (where in held):
                state.held = not state.held
                self._changed(state)
                self._reading.news.set()

    def lag(self, where: TopicPartition) -> int | None:
        """Records between the position and the end visible to this reader; None before the first fetch.
        Raises KeyError if not assigned."""
        state = self._reading.assigned[where]
        end = state.last_stable_offset if self._settings.reads_committed else state.high_watermark
        return None if end is None or state.position is None else max(0, end - state.position.offset)

    def high_watermark(self, where: TopicPartition) -> int | None:
        """The high watermark; None before the first fetch."""
        return self._reading.assigned[where].high_watermark

    def last_stable_offset(self, where: TopicPartition) -> int | None:
        """The last stable offset; None before the first fetch."""
        return self._reading.assigned[where].last_stable_offset

    def log_start(self, where: TopicPartition) -> int | None:
        """The log start offset; None before the first fetch."""
        return self._reading.assigned[where].log_start

    @property
    def troubles(self) -> dict[TopicPartition, Trouble]:
        """The partitions that cannot be read at the moment; they are retried."""
        return {
            where: Trouble(state.trouble, state.troubled_since)
            for where, state in self._reading.assigned.items()
            if state.trouble is not None
        }

    # --- reading --------------------------------------------------------------------------------------------

    async def poll(self, max_records: int, wait_s: float) -> list[RawBatch]:
        """The next records, at most this many, in order within each partition; partitions take turns. Returns
        an empty list if none arrive within `wait_s` seconds, or after `wake`.

        Raises OffsetOutOfRange or TruncationDetected without a reset policy, and KafkaError for permanent
        refusals and damaged records: after the records fetched before, but in the next poll at the latest.
        Other partitions continue; the failed one is retried, and raises again, until it works. Cancelling
        loses nothing.
        """
        until = deadline(wait_s)
        if self._reading.has_buffered:
            # Let fetching proceed beside a reader that never awaits anything else.
            await asyncio.sleep(0)
        while True:
            self._usable()
            self._reading.news.clear()
            if self._overdue:
                self._overdue = False
                self._reading.raise_failure()
            taken, with_room = self._reading.take(max_records)
            for state in with_room:
                self._changed(state)
            if taken:
                self._overdue = self._reading.has_failures
                return taken
            self._reading.raise_failure()
            if self._woken:
                self._woken = False
                return []
            try:
                async with asyncio.timeout_at(until):
                    await self._reading.news.wait()
            except TimeoutError:
                return []

    def wake(self) -> None:
        """Make the current poll, or the next one, return at once."""
        self._woken = True
        self._reading.news.set()

    async def close(self, timeout_s: float = SESSION_CLOSE_S) -> None:
        """End all tasks, and close the sessions at the brokers, which takes `timeout_s` at most. A poll in
        progress raises Closed. Safe to call again."""
        self._closed = True
        self._reading.news.set()
        if self._arranging is not None:
            self._arranging.cancel()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        readers, self._readers = list(self._readers.values()), {}
        until = deadline(timeout_s)
        await all_of(reader.close(until) for reader in readers)

    def _usable(self) -> None:
        if self._closed:
            raise Closed("the fetcher is closed")
        if self._broken is not None:
            raise self._broken

    # --- which broker is asked for what ---------------------------------------------------------------------

    def _arrange(self, at: float = 0.0) -> None:
        """Redistribute the partitions to brokers: once in the next turn of the loop, however many changes
        require it, or at time `at`."""
        if self._closed or (self._arranging is not None and self._arrange_at <= at):
            return
        if self._arranging is not None:
            self._arranging.cancel()
        loop = asyncio.get_running_loop()
        self._arrange_at = at
        self._arranging = loop.call_at(at, self._arrange_now) if at else loop.call_soon(self._arrange_now)

    def _arrange_now(self) -> None:
        if self._arranging is not None:
            self._arranging.cancel()
            self._arranging = None
        try:
            again_at = self._share_out()
        except Exception as error:
            self._break(error)
        else:
            if again_at < math.inf:
                self._arrange(again_at)

    def _share_out(self) -> float:
        """Give every partition to the reader of its broker, and look up missing leaders and positions.
        Returns when to do so again at the latest."""
        now, image = deadline(0), self._cluster.image
        topics = set(self._reading.doubtful)
        look_ups: dict[int, list[PartitionState]] = {}
        again_at = math.inf
        for where, state in self._reading.assigned.items():
            node = _node_of(state, image, now)
            self._give_to(state, node)
            if node is not None and node == state.replica:
                again_at = min(again_at, state.replica_until)
            if node is None:
                topics.add(where.topic)
                continue
            self._unknown.pop(where, None)
            if state.strategy is not None and node not in self._looking_up:
                if state.backoff_until > now:
                    again_at = min(again_at, state.backoff_until)
                else:
                    look_ups.setdefault(node, []).append(state)
        for node, states in look_ups.items():
            self._looking_up.add(node)
            self._start(self._look_up(node, states), f"offsets from broker {node}")
        if not topics:
            self._tries, self._ask_tries = self._cluster.tries(), 0
        elif not self._asking:
            if self._ask_after > now:
                again_at = min(again_at, self._ask_after)
            else:
                self._asking = True
                self._start(self._ask_metadata(topics), "metadata for fetching")
        return again_at

    def _give_to(self, state: PartitionState, node: int | None) -> None:
        if node is not None and node not in self._readers:
            reader = BrokerReader(self._cluster, self._reading, node, self._arrange_now)
            self._readers[node] = reader
            self._start(reader.run(), f"fetch from broker {node}")
        if state.node != node:
            if state.node is not None:
                self._readers[state.node].partitions.pop(state.where, None)
            state.node = node
            if node is not None:
                self._readers[node].partitions[state.where] = state
                state.backoff_until = -math.inf  # That was for another broker.
        self._changed(state)

    def _changed(self, state: PartitionState) -> None:
        """Make the partition's reader check it again."""
        if state.node is not None:
            self._readers[state.node].look_at(state)

    def _drop(self, state: PartitionState) -> None:
        self._reading.forget(state)
        if state.node is not None:
            self._readers[state.node].partitions.pop(state.where, None)

    def _start(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """An unexpected failure of a task is raised by the next poll."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._break(error)

    def _break(self, error: BaseException) -> None:
        """Stop: every call raises this from now on."""
        if self._broken is None:
            self._broken = error
        self._reading.news.set()

    async def _ask_metadata(self, topics: set[str]) -> None:
        """Look up the leaders of these topics, once per backoff."""
        self._reading.doubtful -= topics
        failures: dict[str, Exception] = {}
        try:
            with self._tries:
                response = await self._cluster.refresh(
                    sorted(topics), deadline(self._settings.request_timeout_ms / 1000)
                )
            for told in response.topics:
                if told.error_code and told.name in topics:
                    failures[told.name] = refusal(told.error_code, about=f"topic {told.name}")
        except (ClientError, KafkaError) as error:
            failures = dict.fromkeys(topics, error)
        now, image = deadline(0), self._cluster.image
        self._ask_after = now + self._cluster.backoff_s(self._ask_tries)
        self._ask_tries += 1
        waiting = [
            state
            for state in self._reading.assigned.values()
            if state.where.topic in topics and _node_of(state, image, now) is None
        ]
        if waiting:
            self._tries.again()
        for state in waiting:
            failure = failures.get(state.where.topic) or image.no_leader(state.where)
            self._note_missing(state.where, failure, now)
            state.fails(failure, now, 0.0)
            if self._reading.cannot_pass(failure):
                self._reading.fail(state, failure)
        self._asking = False
        self._arrange()

    def _note_missing(self, where: TopicPartition, failure: Exception, now: float) -> None:
        """Report a partition that brokers have not known for a while: one may not know a new topic yet."""
        if isinstance(failure, KafkaError) and failure.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            if now - self._unknown.setdefault(where, now) >= _MISSING_S:
                self._unknown[where] = math.inf
                self._on_missing(where, failure)
        elif self._unknown.get(where) != math.inf:
            self._unknown.pop(where, None)

    # --- positions ------------------------------------------------------------------------------------------

    async def _look_up(self, node: int, states: list[PartitionState]) -> None:
        """Look up positions for these partitions, which this broker leads."""
        eras = {state.where: state.era for state in states}
        strategies = {state.where: state.strategy for state in states}
        now_ms = int(time.time() * 1000)
        image = self._cluster.image
        asked = {
            where: (leader_epoch(image, where), strategy.timestamp(now_ms))
            for where, strategy in strategies.items()
            if strategy is not None
        }
        answers: dict[TopicPartition, ListOffsetsResponse.ListOffsetsPartitionResponse] = {}
        failed: Exception = NotKafka(f"broker {node} leaves partitions out of its answer to ListOffsets")
        try:
            request = list_offsets_request(asked, self._settings)
            response: ListOffsetsResponse = await self._cluster.call(
                request, deadline(self._settings.request_timeout_ms / 1000), node=node
            )
            answers = by_partition(response)
        except (ClientError, KafkaError) as error:
            failed = error
        for state in states:
            where, strategy = state.where, strategies[state.where]
            if not self._reading.is_current(state, eras[where]) or strategy is None:
                continue
            answer = answers.get(where)
            if answer is None or answer.error_code:
                refused = failed if answer is None else refusal(answer.error_code, about=str(where))
                self._reading.try_again(state, refused)
            elif answer.offset >= 0:
                self._reading.settle_at(state, Position(answer.offset, answer.leader_epoch), strategy)
            elif strategy not in (EARLIEST, LATEST):
                state.strategy = LATEST  # No record is that recent.
            else:
                self._reading.try_again(
                    state, NotKafka(f"broker {node} knows no {strategy} offset of {where}")
                )
        self._looking_up.discard(node)
        self._arrange()


def _node_of(state: PartitionState, image: MetadataImage, now: float) -> int | None:
    """The node to fetch the partition from; None while unknown."""
    if state.replica is not None and state.replica in image.nodes and now < state.replica_until:
        return state.replica
    partition = image.partition(state.where)
    return None if partition is None or partition.leader not in image.nodes else partition.leader
