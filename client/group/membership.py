"""One member of a classic group, as a pure state machine: what to do next, from responses and times alone.

    UNJOINED --JoinGroup--> PREPARING_REBALANCE --in--> COMPLETING_REBALANCE --assigned--> STABLE
       ^                            |                          |                             |
       +----------------------------+--------------------------+-----------------------------+

`due` returns the requests to make now, `answered` and `failed` take their outcomes, `next_deadline_ms` tells
when to call `due` again. The consumer gives up partitions as `prepare` says, calls `join`, and gets the
result with `take`; it calls `polled` whenever the reader asks for records. Modelled on Kafka's
AbstractCoordinator and ConsumerCoordinator.

What an error code means depends on the request; `ACTIONS` lists that in one place. Other retriable codes are
retried, the rest are raised.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from muster.client.assignors import (
    RebalanceProtocol,
    TopicPartitions,
    common_protocol,
    read_assignment,
)
from muster.client.errors import ClientError, refusal
from muster.client.group.answers import Action, action_of, reason_of
from muster.client.group.heartbeat import Backoff, Heartbeat
from muster.client.group.leadership import Leadership
from muster.client.group.membership_types import (
    NO_GENERATION,
    NO_NODE,
    Ask,
    Generation,
    GroupSettings,
    Joined,
    Kind,
    Preparation,
    State,
)
from muster.client.group.requests import (
    PROTOCOL_TYPE,
    heartbeat_request,
    join_request,
    leave_request,
    sync_request,
)
from muster.client.partitions import TopicPartition
from muster.protocol.api import ApiKey
from muster.protocol.errors import DecodeError, ErrorCode, KafkaError
from muster.protocol.message import Message
from muster.protocol.messages.classic_group import JoinGroupResponse, LeaveGroupRequest, SyncGroupResponse

JOIN_EXTRA_MS: Final = 5_000
"""The request timeout of a JoinGroup beyond the rebalance timeout, as in Kafka's clients."""
PROMPT_REJOINS: Final = 8
"""How many times in a row to rejoin at once; after that, with a pause, whatever the responses."""

_EAGER: Final = RebalanceProtocol.EAGER


class Membership:
    """A member that subscribes to topics. Times are milliseconds of one monotonic clock; `jitter` returns a
    factor of about 1 for pauses."""

    def __init__(
        self, settings: GroupSettings, *, jitter: Callable[[], float] = lambda: random.uniform(0.8, 1.2)
    ) -> None:
        self.settings = settings
        self.jitter = jitter
        self.protocol = common_protocol(settings.assignors)
        """The current rebalance protocol: the highest that all assignors support."""
        self.state = State.UNJOINED
        self.generation = NO_GENERATION
        self.topics: frozenset[str] = frozenset()
        self.is_subscribed = False
        self.assignment: frozenset[TopicPartition] = frozenset()
        """This member's partitions in the current generation."""
        self.owned: frozenset[TopicPartition] = frozenset()
        """The partitions it may commit in the current generation."""
        self.lost = False
        """Whether the membership was lost while the consumer owned partitions; reset once it has given them
        up."""
        self.result: Joined | None = None
        """The result of a join, until taken."""
        self.coordinator: int | None = None
        self.coordinator_users = 0
        """How many callers besides the member itself wait for the coordinator."""
        self.readers = 0
        """How many callers wait for the join: while there is one, the poll deadline is paused."""
        self.poll_expirations = 0
        self.last_error: Exception | None = None
        """The last error; it may have passed."""
        backoff = partial(Backoff, settings.retry_backoff_ms, settings.retry_backoff_max_ms, jitter)
        self.heartbeat = Heartbeat(
            session_timeout_ms=settings.session_timeout_ms,
            interval_ms=settings.heartbeat_interval_ms,
            max_poll_interval_ms=settings.max_poll_interval_ms,
            request_timeout_ms=settings.request_timeout_ms,
            backoff=backoff(),
        )
        self._by_name = {each.name: each for each in settings.assignors}
        if len(self._by_name) < len(settings.assignors):
            raise ValueError("assignors: two of them have the same name")
        self._accepts: Callable[[str], bool] | None = None
        self._joined_topics: frozenset[str] = frozenset()
        self._accepted_topics: frozenset[str] = frozenset()
        self._held: frozenset[TopicPartition] = frozenset()  # what the consumer has
        self._prepared = False
        self._wants_join = False
        self._rejoin_reason: str | None = None
        self._fenced: KafkaError | None = None
        self._error: Exception | None = None
        # In flight.
        self._exchange: Ask | None = None
        self._find: Ask | None = None
        self._beat: Ask | None = None
        self._watch: Ask | None = None
        self._probe: Ask | None = None
        self._leaving: Ask | None = None
        # When what is due.
        self._find_at_ms = 0
        self._find_backoff = backoff()
        self._join_at_ms = 0
        self._join_backoff = backoff()
        self._prompt_left = PROMPT_REJOINS
        self._watch_at_ms = 0
        self._watch_backoff = backoff()
        self._probe_at_ms = 0
        self._lead: Leadership | None = None
        self._synced_generation_id = NO_GENERATION.generation_id

    def __repr__(self) -> str:
        return (
            f"<Membership {self.settings.group_id} {self.member_id!r} {self.state.name} "
            f"generation={self.generation_id} assigned={len(self.assignment)}>"
        )

    @property
    def member_id(self) -> str:
        return self.generation.member_id

    @property
    def generation_id(self) -> int:
        return self.generation.generation_id

    @property
    def is_leader(self) -> bool:
        return self._lead is not None

    @property
    def is_static(self) -> bool:
        return self.settings.group_instance_id is not None

    @property
    def rejoin_needed(self) -> bool:
        """Whether the consumer must call `join`, or take its result."""
        return self.is_subscribed and (
            self.state is not State.STABLE or self._rejoin_reason is not None or self.result is not None
        )

    @property
    def is_by_pattern(self) -> bool:
        """Whether the subscription only matches existing topics, so that none must be created for it."""
        return self._accepts is not None

    @property
    def is_joining(self) -> bool:
        """Whether a join is in progress."""
        return self._wants_join

    @property
    def awaited(self) -> list[Ask]:
        """Requests neither answered nor abandoned."""
        asked = self._exchange, self._find, self._beat, self._watch, self._probe, self._leaving
        return [each for each in asked if each is not None]

    def calls_for_reader(self) -> tuple[object, ...] | None:
        """What is new for a reading call; None for nothing."""
        joins = self.rejoin_needed and not self._wants_join
        if self._error is None and self.result is None and not joins:
            return None
        return self._error, self.result, joins

    # --- the consumer's part --------------------------------------------------------------------------------

    def subscribe(self, topics: frozenset[str], accepts: Callable[[str], bool] | None = None) -> None:
        """Set the subscribed topics. `accepts` tells whether an assignment may have another topic: a leader
        may know more topics that match a pattern."""
        self._accepts = accepts
        self.topics = topics
        self.is_subscribed = True
        if (topics ^ self._joined_topics) - self._accepted_topics:
            self.request_rejoin("the subscription has changed")

    def request_rejoin(self, reason: str) -> None:
        """Trigger a rebalance, at the next `join`."""
        if self.state is State.STABLE and self._rejoin_reason is None:
            self._rejoin_reason = reason

    def prepare(self, owned: frozenset[TopicPartition]) -> Preparation:
        """What of `owned` to give up before `join`; never repeated."""
        if self._prepared or self.result is not None:
            return Preparation(None, None, owned)
        if not self.generation.is_valid:
            return Preparation(None, owned or None, frozenset())
        if self.protocol is _EAGER:
            return Preparation(owned, None, frozenset())
        revoked = frozenset(each for each in owned if not self._wanted(each.topic))
        return Preparation(revoked or None, None, owned - revoked)

    def join(self, owned: frozenset[TopicPartition], now_ms: int) -> None:
        """Join the group, keeping these partitions; counts as a poll. Nothing happens while a result waits to
        be taken, or while the consumer still owns lost partitions. Raises ClientError without a subscription,
        and always KafkaError once another member has taken over the group instance id."""
        if not self.is_subscribed:
            raise ClientError(f"group {self.settings.group_id}: there is no subscription to join with")
        if self._fenced is not None:
            raise KafkaError(self._fenced.code, self._fenced.why)
        self.polled(now_ms)
        if self.result is not None or (self.lost and owned):
            return
        self.lost = False
        self._held = owned
        self._prepared = True
        if self.rejoin_needed:
            self._wants_join = True

    def take(self, result: Joined) -> bool:
        """The consumer takes this result. False if it is void: the membership was lost meanwhile."""
        if self.result is not result:
            return False
        self.result = None
        self._held |= result.assigned
        self._prepared = False
        return True

    def polled(self, now_ms: int) -> None:
        """The reader polled."""
        self.heartbeat.polled(now_ms)

    @property
    def has_error(self) -> bool:
        """Whether `take_error` has an error."""
        return self._error is not None

    def take_error(self) -> Exception | None:
        """A permanent error not reported yet."""
        error, self._error = self._error, None
        return error

    def leave(self, reason: str, *, static_too: bool = False) -> LeaveGroupRequest | None:
        """Leave the group and drop the subscription. Returns the LeaveGroup request, if one is needed: a
        static member stays until its session expires."""
        request = self._leave_request(reason, static_too=static_too)
        self._forget("the group was left", member_too=True)
        self.is_subscribed = self.lost = self._wants_join = False
        self._rejoin_reason = None
        self._held = frozenset()
        self._joined_topics = self._accepted_topics = frozenset()
        return request

    # --- what to do -----------------------------------------------------------------------------------------

    def due(self, now_ms: int) -> list[Ask]:
        """The requests to make now. Each must be answered or failed, once."""
        asks: list[Ask] = []
        self._expire(now_ms, asks)
        if self._find_is_wanted() and now_ms >= self._find_at_ms:
            self._find = Ask(Kind.FIND_COORDINATOR, self.settings.request_timeout_ms)
            asks.append(self._find)
        if self._can_go_on() and now_ms >= self._join_at_ms:
            asks.append(self._go_on(now_ms))
        elif self._probe_is_wanted() and now_ms >= self._probe_at_ms:
            self._probe = self._ask(Kind.PROBE, self.settings.request_timeout_ms)
            asks.append(self._probe)
        if self.coordinator is not None and self.heartbeat.is_due(now_ms):
            self.heartbeat.sent(now_ms)
            request = heartbeat_request(self.settings, self.generation)
            self._beat = self._ask(Kind.HEARTBEAT, self.heartbeat.timeout_ms, request)
            asks.append(self._beat)
        if now_ms >= self._watch_at_ms and (watch := self._watch_if_wanted()) is not None:
            self._watch = watch
            asks.append(watch)
        return asks

    def next_deadline_ms(self) -> int | None:
        """When to call `due` again, unless a response comes first; None: only a response or a call changes
        anything."""
        deadlines = []
        if self._find_is_wanted():
            deadlines.append(self._find_at_ms)
        if self._can_go_on():
            deadlines.append(self._join_at_ms)
        elif self._probe_is_wanted():
            deadlines.append(self._probe_at_ms)
        if self._watch_if_wanted() is not None:
            deadlines.append(self._watch_at_ms)
        beat_ms = self.heartbeat.next_deadline_ms(can_send=self.coordinator is not None)
        if beat_ms is not None:
            deadlines.append(beat_ms)
        return min(deadlines, default=None)

    def answered(self, ask: Ask, answer: Any, now_ms: int) -> None:
        """The response, as `Kind` defines it. Responses to outdated requests change nothing."""
        match ask.kind:
            case Kind.FIND_COORDINATOR if ask is self._find:
                self._find = None
                self.coordinator = answer
                self.heartbeat.restart_session(now_ms)
            case Kind.JOIN if ask is self._exchange:
                self._exchange = None
                self._joined(answer, now_ms)
            case Kind.TOPICS if ask is self._exchange and self._lead is not None:
                self._exchange = None
                self._lead.told_topics(answer)
            case Kind.ASSIGN if ask is self._exchange and self._lead is not None:
                self._exchange = None
                self._lead.has_assigned(answer)
            case Kind.SYNC if ask is self._exchange:
                self._exchange = None
                self._synced(answer, now_ms)
            case Kind.HEARTBEAT if ask is self._beat:
                self._beat = None
                self._beaten(ask, answer.error_code, now_ms)
            case Kind.WATCH if ask is self._watch:
                self._watch = None
                self._watched(answer, now_ms)
            case Kind.ASSIGNED if ask is self._watch:
                self._watch = None
                if self._lead is not None and not self._lead.told_who_has_what(answer):
                    self._watch_at_ms = now_ms + self._watch_backoff.next_ms()
            case Kind.PROBE if ask is self._probe:
                self._probe = None
                self._probe_at_ms = now_ms + self.settings.request_timeout_ms
            case Kind.LEAVE if ask is self._leaving:
                self._leaving = None

    def failed(self, ask: Ask, error: Exception, now_ms: int, *, final: bool = False) -> None:
        """There was no response. `final`: retrying cannot help."""
        self.last_error = error
        if ask.node != NO_NODE:
            self.coordinator_lost(ask.node, now_ms)
        match ask.kind:
            case Kind.FIND_COORDINATOR if ask is self._find:
                self._find = None
                self._find_at_ms = now_ms + self._find_backoff.next_ms()
            case Kind.JOIN | Kind.SYNC if ask is self._exchange:
                self._exchange = None
                self._stand_back()
                self._join_at_ms = now_ms + self._join_backoff.next_ms()
            case Kind.TOPICS | Kind.ASSIGN if ask is self._exchange:
                self._exchange = None
                self._join_at_ms = now_ms + self._join_backoff.next_ms()
            case Kind.HEARTBEAT if ask is self._beat:
                self._beat = None
                self.heartbeat.failed(now_ms)
            case Kind.WATCH | Kind.ASSIGNED if ask is self._watch:
                self._watch = None
                self._watch_at_ms = now_ms + self._watch_backoff.next_ms()
            case Kind.PROBE if ask is self._probe:
                self._probe = None
            case Kind.LEAVE if ask is self._leaving:
                self._leaving = None
                return
            case _:
                return
        if final:
            self._give_up(error)

    def coordinator_lost(self, node: int, now_ms: int) -> None:
        """This node is not the coordinator, or cannot be reached: look it up, the first time at once."""
        if node != self.coordinator:
            return
        self.coordinator = None
        if self._find_backoff.failures:
            self._find_at_ms = now_ms + self._find_backoff.next_ms()
        else:
            self._find_at_ms = now_ms
            self._find_backoff.failures = 1

    def heard(self) -> None:
        """The coordinator responded."""
        self._find_backoff.reset()

    def commit_refused(self, code: ErrorCode, generation: Generation) -> None:
        """A commit of `generation` was answered so."""
        action = action_of(ApiKey.OFFSET_COMMIT, code)
        if action is Action.REJOIN:
            self.request_rejoin(reason_of(ErrorCode.REBALANCE_IN_PROGRESS))
        elif generation != self.generation or self.state is State.PREPARING_REBALANCE:
            return  # While a JoinGroup is in flight, its response tells more.
        elif action is Action.FENCED:
            self._fence(code)
        elif action in (Action.FORGET_GENERATION, Action.FORGET_MEMBER):
            self._forget(reason_of(code), member_too=action is Action.FORGET_MEMBER)

    # --- deadlines ------------------------------------------------------------------------------------------

    def _expire(self, now_ms: int, asks: list[Ask]) -> None:
        if self.readers:
            self.polled(now_ms)
        if self.heartbeat.poll_is_over(now_ms):
            self.poll_expirations += 1
            reason = (
                f"nobody asked for records for {self.settings.max_poll_interval_ms} ms (max.poll.interval.ms)"
            )
            request = self._leave_request(reason)
            if request is not None and self.coordinator is not None:
                self._leaving = self._ask(Kind.LEAVE, self.settings.request_timeout_ms, request)
                asks.append(self._leaving)
            self._forget(reason, member_too=True)
            self._wants_join = False  # The next `join` is the missing poll.
        elif self.heartbeat.session_is_over(now_ms):
            # The generation stays: only the coordinator can end it.
            self.heartbeat.restart_session(now_ms)
            if self.coordinator is not None:
                self.coordinator_lost(self.coordinator, now_ms)

    def _find_is_wanted(self) -> bool:
        return (
            self.coordinator is None
            and self._find is None
            and (self._wants_join or self.heartbeat.is_on or self.coordinator_users > 0)
        )

    def _probe_is_wanted(self) -> bool:
        return (
            self._exchange is not None
            and self._exchange.kind in (Kind.JOIN, Kind.SYNC)
            and self._probe is None
            and self._exchange.node == self.coordinator
        )

    def _watch_if_wanted(self) -> Ask | None:
        if self.state is not State.STABLE or self._lead is None:
            return None
        if self._watch is not None or self._rejoin_reason is not None:
            return None
        return self._lead.watch(self.coordinator)

    # --- joining --------------------------------------------------------------------------------------------

    def _can_go_on(self) -> bool:
        """Whether the next step of joining can be taken."""
        if not self._wants_join or self._exchange is not None:
            return False
        return self.coordinator is not None or self._leads_on() is not None

    def _leads_on(self) -> Ask | None:
        """What a leader does before it sends the assignments."""
        if self.state is not State.COMPLETING_REBALANCE or self._lead is None:
            return None
        return self._lead.next_ask()

    def _go_on(self, now_ms: int) -> Ask:
        ask = self._leads_on()
        if ask is None:
            if self.state is State.COMPLETING_REBALANCE:
                assignments = [] if self._lead is None else self._lead.assignments()
                request: Message = sync_request(self.settings, self.generation, assignments)
                ask = self._ask(Kind.SYNC, self._patience_ms(), request)
            else:
                reason = self._rejoin_reason or ""
                request = join_request(self.settings, self.generation, self.topics, self._held, reason)
                ask = self._ask(Kind.JOIN, self._patience_ms(), request)
                self._joined_topics, self._accepted_topics = self.topics, frozenset()
                self.state = State.PREPARING_REBALANCE
                self.heartbeat.end()
                self._beat = None  # Responses to heartbeats of an earlier generation do not count.
                self._rejoin_reason = None
                self._lead = self._watch = None
            self._probe_at_ms = now_ms + self.settings.request_timeout_ms
        self._exchange = ask
        return ask

    def _patience_ms(self) -> int:
        return max(self.settings.request_timeout_ms, self.settings.max_poll_interval_ms + JOIN_EXTRA_MS)

    def _joined(self, response: JoinGroupResponse, now_ms: int) -> None:
        if response.error_code:
            self._exchange_refused(ApiKey.JOIN_GROUP, response.error_code, now_ms)
            if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                if self.generation.is_valid:
                    self._forget(reason_of(ErrorCode.UNKNOWN_MEMBER_ID), member_too=True)
                self.generation = Generation(member_id=response.member_id)
                self._synced_generation_id = NO_GENERATION.generation_id
            return
        self.heard()
        name = response.protocol_name
        if response.protocol_type not in (None, PROTOCOL_TYPE) or name not in self._by_name:
            self._give_up(
                refusal(
                    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                    f"group {self.settings.group_id} uses the protocol {name!r} of type "
                    f"{response.protocol_type!r}, which this member did not offer",
                )
            )
            return
        generation = Generation(response.generation_id, response.member_id, name)
        if generation.member_id == self.member_id and generation.generation_id < self._synced_generation_id:
            # The coordinator has lost generations: the member's partitions may be owned by others.
            self._forget("the coordinator has gone back to an earlier generation", member_too=True)
            self._rejoin_promptly(now_ms)
            return
        if generation.member_id != self.member_id:
            self._synced_generation_id = NO_GENERATION.generation_id
        self.generation = generation
        self.state = State.COMPLETING_REBALANCE
        self.owned = self._held
        self.heartbeat.begin(now_ms)
        if response.leader == response.member_id:
            self._lead = Leadership(
                self.settings, self._by_name[name], response.members, skips=response.skip_assignment
            )

    def _synced(self, response: SyncGroupResponse, now_ms: int) -> None:
        group_id, generation = self.settings.group_id, self.generation
        if response.error_code:
            self._exchange_refused(ApiKey.SYNC_GROUP, response.error_code, now_ms)
            return
        self.heard()
        if response.protocol_type not in (None, PROTOCOL_TYPE) or response.protocol_name not in (
            None,
            generation.protocol_name,
        ):
            why = f"group {group_id} answers for {response.protocol_name!r}, not {generation.protocol_name!r}"
            self._give_up(refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, why))
            return
        try:
            assigned = frozenset(read_assignment(response.assignment))
        except DecodeError as error:
            self._give_up(ClientError(f"group {group_id}: what its leader assigned cannot be read: {error}"))
            return
        if not all(self._wanted(each.topic) for each in assigned):
            # The leader knew an earlier subscription.
            self._stand_back()
            self._rejoin_reason = "the assignment does not fit the subscription"
            self._rejoin_promptly(now_ms)
            return
        self._adopt(assigned, now_ms)

    def _adopt(self, assigned: frozenset[TopicPartition], now_ms: int) -> None:
        kept = self._held
        self.state = State.STABLE
        self._synced_generation_id = self.generation_id
        self.assignment = assigned
        self.owned = kept | assigned
        self._wants_join = False
        self._prompt_left = PROMPT_REJOINS
        self._join_backoff.reset()
        self._accepted_topics = frozenset(each.topic for each in assigned) - self._joined_topics
        revoked: frozenset[TopicPartition] | None = None
        if self.protocol is not _EAGER:
            revoked = kept - assigned or None
        self.result = Joined(
            assigned,
            revoked,
            assigned if self.protocol is _EAGER else assigned - kept,
            self.generation_id,
            self.member_id,
            self.generation.protocol_name or "",
        )
        if revoked:
            self.request_rejoin("partitions were given up for other members")
        if self.topics != self._joined_topics:
            self.subscribe(self.topics, self._accepts)
        if self._lead is not None:
            self._watch_at_ms = now_ms + self._lead.watch_interval_ms()
        self._by_name[self.generation.protocol_name or ""].on_assignment(assigned, self.generation_id)

    def _wanted(self, topic: str) -> bool:
        return topic in self.topics or (self._accepts is not None and self._accepts(topic))

    # --- staying --------------------------------------------------------------------------------------------

    def _beaten(self, ask: Ask, error_code: int, now_ms: int) -> None:
        code = refusal(error_code).code if error_code else ErrorCode.NONE
        if code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self.heard()
            self.heartbeat.answered(now_ms)
            if code:
                self.request_rejoin(reason_of(code))
            return
        self.last_error = self._refusal(error_code)
        match action_of(ApiKey.HEARTBEAT, code):
            case Action.FORGET_GENERATION:
                self._forget(reason_of(code), member_too=False)
            case Action.FORGET_MEMBER:
                self._forget(reason_of(code), member_too=True)
            case Action.FENCED:
                self._fence(code)
            case Action.FIND_COORDINATOR:
                self.coordinator_lost(ask.node, now_ms)
                self.heartbeat.failed(now_ms)
            case Action.FATAL:
                self.heartbeat.failed(now_ms)
                self._error = self.last_error
            case _:
                self.heartbeat.failed(now_ms)

    def _watched(self, topics: Mapping[str, TopicPartitions], now_ms: int) -> None:
        if self._lead is None:
            return
        self._watch_backoff.reset()
        changed = self._lead.changed(topics)
        self._watch_at_ms = now_ms + self._lead.watch_interval_ms()
        if changed:
            self.request_rejoin(f"topics or their partitions have changed: {', '.join(changed)}")

    # --- going wrong ----------------------------------------------------------------------------------------

    def _exchange_refused(self, api_key: ApiKey, error_code: int, now_ms: int) -> None:
        error = self._refusal(error_code)
        if error.code is not ErrorCode.MEMBER_ID_REQUIRED:  # which is how joining begins
            self.last_error = error
        node = self.coordinator
        self._stand_back()
        match action_of(api_key, error.code):
            case Action.REJOIN:
                self._rejoin_reason = reason_of(error.code)
                self._rejoin_promptly(now_ms)
            case Action.FORGET_GENERATION:
                self._forget(reason_of(error.code), member_too=False)
                self._rejoin_promptly(now_ms)
            case Action.FORGET_MEMBER:
                self._forget(reason_of(error.code), member_too=True)
                self._rejoin_promptly(now_ms)
            case Action.FENCED:
                self._fence(error.code)
            case Action.FATAL:
                self._give_up(error)
            case action:
                if action is Action.FIND_COORDINATOR and node is not None:
                    self.coordinator_lost(node, now_ms)
                self._join_at_ms = now_ms + self._join_backoff.next_ms()

    def _rejoin_promptly(self, now_ms: int) -> None:
        """At once, but not forever: a broker might repeat the same response."""
        if self._prompt_left:
            self._prompt_left -= 1
            self._join_at_ms = now_ms
        else:
            self._join_at_ms = now_ms + self._join_backoff.next_ms()

    def _stand_back(self) -> None:
        """Abandon a failed exchange; the generation stays as it is."""
        self.state = State.UNJOINED
        self.heartbeat.end()
        self._beat = None
        self._lead = self._watch = None

    def _forget(self, reason: str, *, member_too: bool) -> None:
        """The generation has ended, at least for this member."""
        self._stand_back()
        self.generation = Generation(member_id="" if member_too else self.member_id)
        self._exchange = None
        self.result = None
        self.assignment = self.owned = frozenset()
        self._rejoin_reason = reason
        self._prepared = False
        if member_too:
            self._synced_generation_id = NO_GENERATION.generation_id
        if self._held:
            self.lost = True
            self._wants_join = False  # The consumer must first give up its partitions.

    def _fence(self, code: ErrorCode) -> None:
        """Another process has this group instance id now; going on would take it back."""
        self._fenced = refusal(
            code,
            f"group {self.settings.group_id}: another member has taken over the group instance id "
            f"{self.settings.group_instance_id}; each consumer needs its own",
        )
        self._forget("the group instance id was taken over", member_too=True)
        self._give_up(self._fenced)

    def _give_up(self, error: Exception) -> None:
        """The join failed; `join` may start over."""
        if self.state is not State.STABLE:
            self._stand_back()
            self._exchange = None
        self._wants_join = False
        self._error = self.last_error = error

    def _refusal(self, error_code: int) -> KafkaError:
        return refusal(error_code, about=f"group {self.settings.group_id}")

    def _ask(self, kind: Kind, timeout_ms: int, request: Message | None = None) -> Ask:
        node = NO_NODE if self.coordinator is None else self.coordinator
        return Ask(kind, timeout_ms, node, request)

    def _leave_request(self, reason: str, *, static_too: bool = False) -> LeaveGroupRequest | None:
        if not self.member_id or (self.is_static and not static_too):
            return None
        return leave_request(self.settings, self.generation, reason)
