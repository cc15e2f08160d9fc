"""Fetches from one broker, ahead of the reader, one Fetch at a time. Memory is bounded: a partition is
fetched while less than max.partition.fetch.bytes of it is buffered, and a broker is queried while less than
fetch.max.bytes from it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from muster.client.errors import ClientError, NotKafka, refusal
from muster.client.fetch.fetched import AbortedTransaction, Part
from muster.client.fetch.positions import PartitionState, Position
from muster.client.fetch.reading import Reading
from muster.client.fetch.requests import epoch_request, fetch_request
from muster.client.fetch.session import CLOSE, NO_SESSION, Asked, FetchSession, Plan
from muster.client.network.cluster import Cluster
from muster.client.network.connection import Versioned, deadline
from muster.client.network.metadata import MetadataImage
from muster.client.partitions import NO_LEADER_EPOCH, TopicPartition
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.message import VERSION_MAX
from muster.protocol.messages.data import FetchRequest, FetchResponse, OffsetForLeaderEpochResponse

_LANES: Final = ("fetch", "fetch anew")
"""Two connections: a Fetch that waits at the broker is left there if something else is needed at once."""
_CHECKS_EPOCHS: Final = 12  # the first Fetch version that detects truncation by itself (KIP-595)
_TOPIC_IDS: Final = 13
_SOON_S: Final = 0.05
"""How long a Fetch is delayed for partitions that will be needed in a moment; if some are still missing then,
it does not wait at the broker, so that they are never held up for long."""
_OLDER_LEADER_TRIES: Final = 10
"""How often a refusal is put down to a leader older than the position: a commit may hold any epoch."""
_SESSION_ERRORS: Final = frozenset(
    {ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH}
)


class _Choice(NamedTuple):
    """What to fetch from a broker now, and how long it may wait for records."""

    wanted: dict[TopicPartition, PartitionState]
    max_wait_ms: int
    look_again_at: float | None
    """If nothing is wanted: when that may change by itself."""


class BrokerReader:
    """Reads its partitions from one broker, until cancelled. `on_moved` is called when some of them must be
    read elsewhere, or cannot be read at the moment."""

    def __init__(self, cluster: Cluster, reading: Reading, node: int, on_moved: Callable[[], None]) -> None:
        self.partitions: dict[TopicPartition, PartitionState] = {}
        """In fetch order: partitions that just returned records go to the end."""
        self._changed = asyncio.Event()
        self._cluster = cluster
        self._reading = reading
        self._settings = reading.settings
        self._node = node
        self._on_moved = on_moved
        self._session = FetchSession()
        self._lane = _LANES[0]
        self._asked: dict[PartitionState, int] = {}  # what is in flight, with the eras
        self._waiting: asyncio.Timeout | None = None  # the Fetch that may wait at the broker
        self._left_until = 0.0  # until when an abandoned one may wait there
        self._sent_at = 0.0
        self._not_before = 0.0
        self._failures = 0

    def look_at(self, state: PartitionState) -> None:
        """The partition may have something to fetch. A Fetch in flight is abandoned for it, if that may take
        a while and does not fetch this partition from its current position."""
        self._changed.set()
        if (
            self._waiting is not None
            and self._asked.get(state) != state.era
            and state.is_delivering
            and state.fetch_position is not None
            and not state.has_buffered
            and (now := deadline(0)) >= max(state.backoff_until, self._left_until)
        ):
            self._waiting.reschedule(now)
            self._waiting = None

    async def run(self) -> None:
        """Keep one Fetch in flight at this broker, as long as anything is wanted from it."""
        while True:
            self._changed.clear()
            choice = self._choose()
            if choice.wanted:
                await self._fetch(choice)
                continue
            if choice.look_again_at is None:
                await self._changed.wait()
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(choice.look_again_at):
                        await self._changed.wait()

    async def close(self, until: float) -> None:
        """Close the fetch session, whose slot others may need. Takes no longer than `until`, and bypasses a
        Fetch that still waits at the broker."""
        if self._session.session_id == NO_SESSION:
            return
        self._change_lane()
        request = fetch_request(Plan(self._session.session_id, CLOSE, {}, {}), self._settings, max_wait_ms=0)
        with suppress(ClientError, KafkaError):
            await self._cluster.call(request, until, node=self._node, lane=self._lane)

    def _change_lane(self) -> None:
        self._lane = _LANES[self._lane == _LANES[0]]

    # --- asking ---------------------------------------------------------------------------------------------

    def _choose(self) -> _Choice:
        now, settings, image = deadline(0), self._settings, self._cluster.image
        wanted: dict[TopicPartition, PartitionState] = {}
        buffered_bytes = 0
        soon = False  # whether some will be needed in a moment
        look_again_at: float | None = None if self._not_before <= now else self._not_before
        for where, state in list(self.partitions.items()):
            if not state.is_delivering:
                continue
            buffered_bytes += state.buffered_bytes
            if state.backoff_until > now:
                look_again_at = min(look_again_at or state.backoff_until, state.backoff_until)
            elif (
                state.fetch_position is None
                or (state.drain_first and state.has_buffered)
                or state.buffered_bytes >= settings.partition_max_bytes
            ):
                soon = True
            elif self._is_same_topic(state, image):
                wanted[where] = state
            elif state.backoff_until > now:  # It has just failed, and is being retried.
                look_again_at = min(look_again_at or state.backoff_until, state.backoff_until)
        if not wanted or self._not_before > now:
            return _Choice({}, 0, look_again_at)
        if buffered_bytes >= settings.max_bytes:
            return _Choice({}, 0, None)
        if not soon:
            return _Choice(wanted, settings.max_wait_ms, None)
        if now < self._sent_at + _SOON_S:
            return _Choice({}, 0, self._sent_at + _SOON_S)
        return _Choice(wanted, 0, None)

    def _is_same_topic(self, state: PartitionState, image: MetadataImage) -> bool:
        """Whether the position belongs to the topic that now has the name. A re-created topic counts as
        truncated at its beginning."""
        topic = image.topic(state.where.topic)
        topic_id = None if topic is None else topic.topic_id
        if state.topic_id is not None and topic_id is not None and topic_id != state.topic_id:
            if state.has_buffered:
                return False  # The buffered records are returned first.
            why = f"topic {state.where.topic} was deleted and created again"
            self._reading.cut(state, why, Position(0), former_topic=state.topic_id)
            if state.topic_id is not None:
                return False  # There is no reset policy; it raises.
        state.topic_id = topic_id or state.topic_id
        return True

    async def _fetch(self, choice: _Choice) -> None:
        eras = self._asked = {state: state.era for state in choice.wanted.values()}
        positions = {where: state.fetch_position or Position(0) for where, state in choice.wanted.items()}
        asked: dict[TopicPartition, Asked] = {}

        def build(version: int) -> FetchRequest:
            image = self._cluster.image
            for where, position in positions.items():
                state = choice.wanted[where]
                # A follower may not know the epoch yet, and then refuses the offset; leaders know it.
                checks = version >= _CHECKS_EPOCHS and state.replica != self._node
                asked[where] = Asked(
                    position.offset,
                    leader_epoch(image, where),
                    position.leader_epoch if checks else NO_LEADER_EPOCH,
                    self._settings.partition_max_bytes,
                    state.topic_id,
                )
            plan = self._session.plan(asked, by_id=version >= _TOPIC_IDS)
            return fetch_request(plan, self._settings, choice.max_wait_ms)

        have_ids = all(state.topic_id is not None for state in choice.wanted.values())
        self._sent_at = deadline(0)
        until = self._sent_at + (self._settings.request_timeout_ms + choice.max_wait_ms) / 1000
        try:
            if await self._validate(choice.wanted, until):
                return
            async with asyncio.timeout(None) as waiting:
                self._waiting = waiting if choice.max_wait_ms else None
                try:
                    response: FetchResponse = await self._cluster.call(
                        Versioned(ApiKey.FETCH, build, VERSION_MAX if have_ids else _TOPIC_IDS - 1),
                        until,
                        node=self._node,
                        lane=self._lane,
                    )
                finally:
                    self._waiting = None  # A timeout that was exited can no longer be rescheduled.
        except TimeoutError:
            # Abandoned for something else; its response is dropped when it arrives.
            self._session.failed()
            self._change_lane()
            self._left_until = self._sent_at + choice.max_wait_ms / 1000
            return
        except (ClientError, KafkaError) as error:
            self._session.failed()
            self._unanswered(choice.wanted, eras, error)
            return
        finally:
            self._asked = {}
        self._session.answered(response.error_code, response.session_id)
        if response.throttle_time_ms > 0:
            self._not_before = deadline(response.throttle_time_ms / 1000)
        if response.error_code:
            self._unanswered(choice.wanted, eras, refusal(response.error_code))
            return
        self._failures = 0
        self._accept(response, choice.wanted, asked, eras)

    # --- answers --------------------------------------------------------------------------------------------

    def _accept(
        self,
        response: FetchResponse,
        wanted: Mapping[TopicPartition, PartitionState],
        asked: Mapping[TopicPartition, Asked],
        eras: Mapping[PartitionState, int],
    ) -> None:
        names = {each.topic_id: where.topic for where, each in asked.items() if each.topic_id is not None}
        listed: set[TopicPartition] = set()
        refused = False
        for topic in response.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            for each in topic.partitions:
                where = TopicPartition(name, each.partition_index)
                listed.add(where)
                state = wanted.get(where)
                if state is None or not self._reading.is_current(state, eras[state]):
                    continue  # It was not requested, or no longer is.
                position = state.fetch_position
                if position is None or position.offset != asked[where].offset:
                    continue  # Another broker was faster while the partition moved.
                if each.error_code:
                    refused = True
                    self._refused(state, asked[where], each, response)
                else:
                    refused |= self._received(state, position, each)
        withheld = response.throttle_time_ms > 0 and not listed  # by a quota: it says nothing
        if self._session.session_id != NO_SESSION and not withheld:
            self._nothing_new(wanted.keys() - listed, wanted, eras)
        if refused:
            self._on_moved()

    def _nothing_new(
        self,
        unlisted: Iterable[TopicPartition],
        wanted: Mapping[TopicPartition, PartitionState],
        eras: Mapping[PartitionState, int],
    ) -> None:
        """A session's response leaves out the partitions that can be read, but have nothing new."""
        for where in unlisted:
            state = wanted[where]
            if (
                state.trouble is not None
                and self.partitions.get(where) is state  # not if it has moved to another broker meanwhile
                and self._reading.is_current(state, eras[state])
            ):
                state.settled()

    def _received(self, state: PartitionState, position: Position, each: FetchResponse.PartitionData) -> bool:
        """Take a partition's response. Returns whether the partition must be read elsewhere from now on."""
        preferred = each.preferred_read_replica
        if preferred >= 0 and preferred not in self._cluster.image.nodes:
            # Without a backoff, the leader would be asked again and again meanwhile.
            why = f"broker {self._node} leaves {state.where} to broker {preferred}, which is not known yet"
            self._reading.try_again(state, KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, why))
            return True
        state.settled()
        state.high_watermark = each.high_watermark
        state.last_stable_offset = each.last_stable_offset if each.last_stable_offset >= 0 else None
        state.log_start = each.log_start_offset if each.log_start_offset >= 0 else None
        diverging = each.diverging_epoch
        if diverging.epoch >= 0 or diverging.end_offset >= 0:
            state.drain_first = state.has_buffered
            if not state.has_buffered:
                self._reading.diverges(state, diverging.epoch, diverging.end_offset)
            return True
        if each.records:
            self._buffer(state, position, each)
        if preferred >= 0 and preferred != self._node:
            state.replica = preferred
            state.replica_until = deadline(self._settings.metadata_max_age_ms / 1000)
            return True
        return False

    def _buffer(self, state: PartitionState, position: Position, each: FetchResponse.PartitionData) -> None:
        aborted = None
        if self._settings.reads_committed:
            aborted = [
                AbortedTransaction(one.producer_id, one.first_offset)
                for one in each.aborted_transactions or ()
            ]
        assert each.records is not None
        part = Part(
            state.where,
            each.records,
            position.offset,
            position.leader_epoch,
            aborted,
            check_crcs=self._settings.check_crcs,
        )
        state.add(part)
        if part.is_damaged:
            state.drain_first = True  # The same data would be fetched again, until the error is raised.
        if state.has_buffered:
            self._reading.buffer(state)
        if part.next_offset > position.offset:
            if state.where in self.partitions:  # not if it has moved to another broker meanwhile
                self.partitions[state.where] = self.partitions.pop(state.where)
        elif not state.has_buffered:
            # Not one complete batch. Other partitions may have taken the room; it comes first next time.
            why = (
                f"broker {self._node} sends less than one batch of {state.where} at offset {position.offset}"
            )
            state.fails(NotKafka(why), deadline(0), self._cluster.backoff_s(state.failures))

    def _refused(
        self,
        state: PartitionState,
        asked: Asked,
        each: FetchResponse.PartitionData,
        response: FetchResponse,
    ) -> None:
        error = refusal(each.error_code, about=str(state.where))
        leader = each.current_leader
        if leader.leader_id >= 0 and self._cluster.new_leader(
            state.where, leader.leader_id, leader.leader_epoch, response.node_endpoints
        ):
            return  # The response names the new leader (KIP-951).
        if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
            self._reading.try_again(state, error)
        elif state.replica is not None:
            # A follower may not have the offset yet, or no longer: the leader decides.
            state.replica = None
        elif state.has_buffered:
            state.drain_first = True
        elif self._is_older(state, asked.leader_epoch) and state.failures < _OLDER_LEADER_TRIES:
            why = f"broker {self._node} leads {state.where} no more: its epoch is older than the position's"
            self._reading.try_again(state, KafkaError(ErrorCode.FENCED_LEADER_EPOCH, why))
        else:
            self._reading.out_of_range(state, each.log_start_offset)

    def _is_older(self, state: PartitionState, epoch: int) -> bool:
        """Whether the leader of this epoch is older than the record before the position (KIP-320)."""
        position = state.fetch_position
        return position is not None and NO_LEADER_EPOCH < epoch < position.leader_epoch

    def _unanswered(
        self,
        wanted: Mapping[TopicPartition, PartitionState],
        eras: Mapping[PartitionState, int],
        error: ClientError | KafkaError,
    ) -> None:
        """The whole Fetch failed."""
        backoff_s = self._cluster.backoff_s(self._failures)
        self._failures += 1
        if isinstance(error, KafkaError) and error.code in _SESSION_ERRORS:
            if self._failures > 1:  # The next Fetch opens another session; that should suffice.
                self._not_before = deadline(backoff_s)
            return
        self._not_before = deadline(backoff_s)
        if self._reading.cannot_pass(error):
            self._reading.fail_all(error)
        for where, state in wanted.items():
            if self._reading.is_current(state, eras[state]):
                state.replica = None
                state.fails(error, deadline(0), backoff_s)
                self._reading.doubtful.add(where.topic)
                self._cluster.stale(where.topic)
        self._on_moved()

    # --- older brokers --------------------------------------------------------------------------------------

    async def _validate(self, wanted: Mapping[TopicPartition, PartitionState], until: float) -> bool:
        """If Fetch does not detect truncation by itself, ask before it, once per new leader epoch (KIP-320).
        Returns whether the choice must be made again."""
        image = self._cluster.image
        unchecked = {
            where: (leader_epoch(image, where), state.fetch_position.leader_epoch)
            for where, state in wanted.items()
            if state.fetch_position is not None
            and state.fetch_position.leader_epoch > NO_LEADER_EPOCH
            and state.validated_epoch != leader_epoch(image, where)
        }
        if not unchecked:
            return False
        connection = await self._cluster.connection(self._node, until, self._lane)
        if connection.version_of(ApiKey.FETCH, VERSION_MAX) >= _CHECKS_EPOCHS:
            for where, (epoch, _) in unchecked.items():
                wanted[where].validated_epoch = epoch
            return False
        buffered = [where for where in unchecked if wanted[where].has_buffered]
        for where in buffered:
            wanted[where].drain_first = True
            del unchecked[where]
        eras = {where: wanted[where].era for where in unchecked}
        if unchecked:
            response: OffsetForLeaderEpochResponse = await self._cluster.call(
                epoch_request(unchecked), until, node=self._node, lane=self._lane
            )
            answers = {
                TopicPartition(topic.topic, each.partition): each
                for topic in response.topics
                for each in topic.partitions
            }
            for where, (epoch, _) in unchecked.items():
                if self._reading.is_current(wanted[where], eras[where]):
                    self._checked(wanted[where], epoch, answers.get(where))
            self._on_moved()
        return True

    def _checked(
        self,
        state: PartitionState,
        epoch: int,
        answer: OffsetForLeaderEpochResponse.EpochEndOffset | None,
    ) -> None:
        position = state.fetch_position
        assert position is not None
        if answer is None:
            why = f"broker {self._node} leaves {state.where} out of its answer to OffsetForLeaderEpoch"
            self._reading.try_again(state, NotKafka(why))
        elif answer.error_code:
            self._reading.try_again(state, refusal(answer.error_code, about=str(state.where)))
        elif answer.leader_epoch != position.leader_epoch or answer.end_offset < position.offset:
            self._reading.diverges(state, answer.leader_epoch, answer.end_offset)
        else:
            state.validated_epoch = epoch


def leader_epoch(image: MetadataImage, where: TopicPartition) -> int:
    """The epoch of the current leader, -1 if unknown."""
    partition = image.partition(where)
    return NO_LEADER_EPOCH if partition is None else partition.leader_epoch
