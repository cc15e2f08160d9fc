"""A shard under test: stepped as its host would step it, and checked after every step."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from muster.coordinator.base.step import RequestContext, Row, Step, Ticket
from muster.coordinator.group.classic.group import ClassicGroup
from muster.coordinator.group.classic.states import TRANSITIONS, GroupState
from muster.coordinator.group.config import GroupConfig
from muster.coordinator.group.consumer.group import ConsumerGroup
from muster.coordinator.group.effects import Record, TopicsImage
from muster.coordinator.group.events import Event, StateChanged
from muster.coordinator.group.hard_state import HardState
from muster.coordinator.group.shard import Shard
from muster.protocol.elements import encode_element
from muster.protocol.errors import KafkaError
from muster.protocol.messages.group_admin import DESCRIBED_MEMBER
from tests.group.consumer.invariants import check_consumer_group, check_counted
from tests.group.reader import Reader

START_MS = 1_700_000_000_000
"""The time at which every test begins."""

Operation = Callable[[Shard, Any, Step], object]
E = TypeVar("E", bound=Event)


class Answer(NamedTuple):
    ticket: Ticket
    response: Any
    """The core's response or, for a refusal, the KafkaError."""


class Harness:
    """Owns a shard and its clock. Records are encoded to bytes, as in a store, and every step is checked."""

    def __init__(self, config: GroupConfig | None = None, *, shard_number: int = 0) -> None:
        # Tests that do not mention the initial delay run without it.
        self.config = config or GroupConfig(group_initial_rebalance_delay_ms=0)
        self.now_ms = START_MS
        self.log: list[Row] = []
        self.replica = HardState()
        self.records: list[Record] = []
        self.events: list[Event] = []
        self.answers: dict[Ticket, Any] = {}
        self.open: set[Ticket] = set()
        self.last = Step(0)
        self.full: KafkaError | None = None  # as `Step.full`, for requests
        self.reader = Reader()
        self._tickets = itertools.count(1)
        ids = itertools.count(1)
        self._ids = lambda: str(uuid.UUID(int=next(ids)))
        self.shard = self._new_shard(shard_number)
        self._step(self.shard.loaded)

    def _new_shard(self, number: int) -> Shard:
        return Shard(number, self.config, ids=self._ids)

    # --- steps ----------------------------------------------------------------------------------------------

    def send(self, operation: Operation, request: Any, context: RequestContext) -> Ticket:
        """Make one request, then run everything that is due. A refusal counts as an answer."""
        ticket = next(self._tickets)
        self.open.add(ticket)
        step = Step(self.now_ms, context, ticket)
        step.full = self.full
        before = self.shard.durable()
        refusal = None
        try:
            answer = operation(self.shard, request, step)
        except KafkaError as error:
            refusal = error
        if refusal is not None:
            assert _says_why(refusal), f"refused without a reason: {refusal!r}"
            assert not step.rows, f"refused after rows: {refusal!r}"
            assert not step.replies, f"refused after replies: {refusal!r}"
            assert self.shard.durable() == before, f"refused after changes: {refusal!r}"
            step.reply(refusal)
        elif answer is not None:
            assert all(reply.ticket != ticket for reply in step.replies)
            step.reply(answer)
        assert self.full is None or not (step.rows or step.jobs), "written, or about to be"
        self.last = step
        self._finish(step)
        self._due()
        return ticket

    def ask(self, operation: Operation, request: Any, context: RequestContext) -> Any:
        """Make a request that is answered at once; returns the answer or the KafkaError."""
        ticket = self.send(operation, request, context)
        assert ticket in self.answers, f"{operation.__name__} was parked"
        return self.answers[ticket]

    def advance(self, by_ms: int) -> None:
        """Let time pass, running each deadline in turn."""
        until_ms = self.now_ms + by_ms
        while (deadline_ms := self.shard.next_deadline()) is not None and deadline_ms <= until_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self._step(self.shard.advance)
        self.now_ms = until_ms

    def reload(self, config: GroupConfig | None = None) -> None:
        """The broker dies and another loads the shard. Parked requests are never answered."""
        self.check_replay()
        self.config = config or self.config
        self.open.clear()
        self.shard = self._new_shard(self.shard.number)
        for row in replayed(self.log):
            self.shard.apply(*row)
        self.reader.groups.clear()
        self._step(self.shard.loaded)

    def unload(self) -> None:
        self._step(self.shard.unload)
        assert not self.open, f"never answered: {self.open}"

    def disconnect(self, connection_id: int) -> None:
        self._step(lambda step: self.shard.connection_closed(connection_id, step))

    def unheard(self, *responses: object) -> None:
        self._step(lambda step: self.shard.unheard(responses, step))

    def topics_changed(self, image: TopicsImage) -> None:
        self._step(lambda step: self.shard.topics_changed(image, step))

    def presume_alive(
        self, until_ms: int, stalled: Collection[tuple[str, str]], clients: Collection[str] = ()
    ) -> None:
        self._step(lambda step: self.shard.presume_alive(until_ms, stalled, step, clients=clients))

    def _step(self, act: Callable[[Step], None]) -> None:
        step = Step(self.now_ms)
        act(step)
        self._finish(step)

    def _due(self) -> None:
        while (deadline_ms := self.shard.next_deadline()) is not None and deadline_ms <= self.now_ms:
            self._step(self.shard.advance)

    def _finish(self, step: Step) -> None:
        self._take(step)
        # Jobs that the host runs beside its loop run at once here.
        for job in step.jobs:
            self._step(partial(self.shard.job_done, job, job()))

    def _take(self, step: Step) -> None:
        for row in step.rows:
            self.log.append(row)
            self.records.append(_decoded(*row))
            self.replica.apply(self.records[-1])
        for ticket, response in step.replies:
            assert ticket in self.open, f"ticket {ticket} was answered twice, or never asked: {response!r}"
            if isinstance(response, KafkaError):
                assert _says_why(response), f"refused without a reason: {response!r}"
            self.open.remove(ticket)
            self.answers[ticket] = response
        self.events += step.events
        check_transitions(
            event
            for event in step.events
            if not isinstance(self.shard.groups.get(event.group_id), ConsumerGroup)
        )
        if not self.reader.groups:
            self.reader.adopt(self.shard)  # it may have been loaded
        else:
            self.reader.read(step.events)
        self.check()

    # --- what is seen ---------------------------------------------------------------------------------------

    def group(self, group_id: str = "orders") -> ClassicGroup:
        group = self.shard.groups[group_id]
        assert isinstance(group, ClassicGroup)
        return group

    def take_events(self) -> list[Event]:
        events, self.events = self.events, []
        return events

    def take_records(self) -> list[Record]:
        records, self.records = self.records, []
        return records

    # --- what must hold -------------------------------------------------------------------------------------

    def check_replay(self) -> None:
        """Check that the shard's state equals what a store returns: the last record of each key."""
        replica = HardState()
        for row in replayed(self.log):
            replica.apply(_decoded(*row))
        assert replica.durable() == self.shard.durable()
        for state in replica.consumers.values():
            check_counted(state)

    def check(self) -> None:
        self.reader.check(self.shard)
        assert self.replica.durable() == self.shard.durable(), "the records do not say what the shard holds"
        parked: list[Ticket] = []
        for group in self.shard.groups.values():
            if isinstance(group, ConsumerGroup):
                check_consumer_group(group)
                continue
            assert isinstance(group, ClassicGroup)
            check_group(group)
            for member in group.members.values():
                parked += [
                    ticket for ticket in (member.parked_join, member.parked_sync) if ticket is not None
                ]
        assert sorted(parked) == sorted(self.open), f"parked {parked}, unanswered {self.open}"


def told(harness: Harness, kind: type[E]) -> list[E]:
    """The events of this kind since events were last taken."""
    return [event for event in harness.take_events() if isinstance(event, kind)]


def who(event: Event) -> str | None:
    """The id of the member that an event is about."""
    return event.member and event.member.member_id


def _says_why(refusal: KafkaError) -> bool:
    """Whether a refusal says more than its error code does."""
    return bool(refusal.why) and refusal.why != refusal.code.text


def replayed(log: Iterable[Row]) -> Iterable[Row]:
    """The rows as a store returns them: the last one of each key, without tombstones, in the order
    written."""
    last: dict[bytes, bytes] = {}
    for key, value in log:
        last.pop(key, None)
        if value is not None:
            last[key] = value
    yield from last.items()


def _decoded(key: bytes, value: bytes | None) -> Record:
    record = Record.from_row(key, value)
    assert record is not None
    return record


def check_transitions(events: Iterable[Event]) -> None:
    """Check that every state change is in the table, with a trigger that may cause it."""
    for event in events:
        if isinstance(event, StateChanged):
            way = GroupState(event.from_state), GroupState(event.to_state)
            assert event.trigger in TRANSITIONS[way], f"{way}: {event.trigger}"


def check_group(group: ClassicGroup) -> None:
    """Check what holds for a group between steps."""
    members = list(group.members.values())
    deadlines = group.deadlines
    assert all(
        member_id == member.member_id == member.identity.member_id
        for member_id, member in group.members.items()
    )
    assert group.joins_parked == sum(member.parked_join is not None for member in members)
    assert group.syncs_parked == sum(member.parked_sync is not None for member in members)
    assert group.static_members == {
        member.group_instance_id: member.member_id
        for member in members
        if member.group_instance_id is not None
    }
    assert (group.leader in group.members) if members else group.leader is None
    assert group.pending_syncs <= group.members.keys()
    assert not group.pending_members.keys() & group.members.keys()
    if group.state is GroupState.DEAD:
        assert group.join_timer not in deadlines
        assert group.sync_timer not in deadlines
        return
    for member in members:
        timed = group.session_timer(member.member_id) in deadlines
        assert timed or member.waits, f"{member!r} would stay for ever"
    for member_id in group.pending_members:
        assert group.session_timer(member_id) in deadlines, f"{member_id!r} would be waited for for ever"
    told_of = group.protocol_name if group.state is GroupState.STABLE else None
    for member in members:
        as_declared = encode_element(DESCRIBED_MEMBER, member.described(told_of))
        assert member.encoded(told_of) == as_declared, f"{member!r} is described as it was before"
    may_park_join = group.state is GroupState.PREPARING_REBALANCE
    may_park_sync = group.state is GroupState.COMPLETING_REBALANCE
    for member in members:
        assert member.parked_join is None or may_park_join, f"{member!r} in {group!r}"
        assert member.parked_sync is None or may_park_sync, f"{member!r} in {group!r}"
        assert member.parked_join is None or member.parked_sync is None
        assert not member.is_new or may_park_join, f"{member!r} in {group!r}"
    assert (group.join_timer in deadlines) == may_park_join, f"{group!r}"
    assert (group.sync_timer in deadlines) == bool(group.pending_syncs), f"{group!r}"
    assert (group.rebalance is not None) == (may_park_join or may_park_sync), f"{group!r}"
    assert group.initial_delay is None or may_park_join
    stored = group.hard.groups.get(group.group_id)
    match group.state:
        case GroupState.EMPTY:
            assert not members
            assert group.protocol_name is None
            if group.generation_id > 0:
                assert stored == group.stored()
            else:
                assert stored is None or stored == ("", 0, None, None, group.state_timestamp, ())
        case GroupState.STABLE:
            assert members
            assert stored == group.stored(), f"{group!r} is not what its record says"
        case GroupState.COMPLETING_REBALANCE:
            assert members
            assert group.leader in group.pending_syncs, (
                "without its leader's SyncGroup, a group is not Stable"
            )
    if group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
        assert all(member.metadata(cast(str, group.protocol_name)) is not None for member in members)
