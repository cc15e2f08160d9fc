"""One member of a classic group, as a pure state machine, driven by responses and times alone.

    UNJOINED --JoinGroup--> PREPARING_REBALANCE --in--> COMPLETING_REBALANCE --assigned--> STABLE
       ^                            |                          |                             |
       +----------------------------+--------------------------+-----------------------------+

`due` returns the requests to make now, `answered` and `failed` take their outcomes, and `next_deadline_ms`
says when to call `due` again. The consumer gives up the partitions that `prepare` returns, calls `join`, and
gets the result with `take`; it calls `polled` whenever the reader asks for records. Modelled on Kafka's
AbstractCoordinator and ConsumerCoordinator.

The meaning of an error code depends on the request; `ACTIONS` lists it in one place. Other retriable codes
are retried, the rest are raised.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, Final

from muster.client.assignors import (
    RebalanceProtocol,
    TopicPartitions,
    common_protocol,
    read_assignment,
)
from muster.client.errors import ClientError, refusal
from muster.client.group.answers import Action, action_of, reason_of
from muster.client.group.assignor_calls import AssignorFailed, calling
from muster.client.group.leadership import Leadership
from muster.client.group.member import Member
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
"""How far the request timeout of a JoinGroup exceeds the rebalance timeout, as in Kafka's clients."""
PROMPT_REJOINS: Final = 8
"""How many times in a row to rejoin at once; later attempts follow a pause, whatever the responses."""

_EAGER: Final = RebalanceProtocol.EAGER


class Membership(Member):
    """See above and `Member`."""

    def __init__(
        self, settings: GroupSettings, *, jitter: Callable[[], float] = lambda: random.uniform(0.8, 1.2)
    ) -> None:
        super().__init__(settings, jitter, State.UNJOINED)
        self._protocol = common_protocol(settings.assignors)
        self.assignment: frozenset[TopicPartition] = frozenset()
        """This member's partitions in the current generation."""
        backoff = self._backoff
        self._by_name = {each.name: each for each in settings.assignors}
        if len(self._by_name) < len(settings.assignors):
            raise ValueError("assignors: two of them have the same name")
        self._joined_topics: frozenset[str] = frozenset()
        self._accepted_topics: frozenset[str] = frozenset()
        self._prepared = False
        self._rejoin_reason: str | None = None
        # In flight.
        self._exchange: Ask | None = None
        self._watch: Ask | None = None
        self._probe: Ask | None = None
        # When each is due.
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
    def is_leader(self) -> bool:
        return self._lead is not None

    @property
    def protocol(self) -> RebalanceProtocol:
        """The highest protocol that all assignors support."""
        return self._protocol

    @property
    def revokes_first(self) -> bool:
        return True

    @property
    def rejoin_needed(self) -> bool:
        return self.is_subscribed and (
            self.state is not State.STABLE or self._rejoin_reason is not None or self.result is not None
        )

    @property
    def is_joining(self) -> bool:
        return self._wants_join

    @property
    def awaited(self) -> list[Ask]:
        """Requests neither answered nor abandoned."""
        asked = self._exchange, self._find, self._beat, self._watch, self._probe, self._leaving
        return [each for each in asked if each is not None]

    # --- called by the consumer -----------------------------------------------------------------------------

    def subscribe(
        self,
        topics: frozenset[str],
        accepts: Callable[[str], bool] | None = None,
        *,
        regex: str | None = None,
    ) -> None:
        assert regex is None, "the broker does not find topics for a classic member"
        self._accepts = accepts
        self.topics = topics
        self.is_subscribed = True
        if (topics ^ self._joined_topics) - self._accepted_topics:
            self.request_rejoin("the subscription has changed")

    def request_rejoin(self, reason: str) -> None:
        if self.state is State.STABLE and self._rejoin_reason is None:
            self._rejoin_reason = reason

    def prepare(self, owned: frozenset[TopicPartition]) -> Preparation:
        if self._prepared or self.result is not None:
            return Preparation(None, None, owned)
        if not self.generation.is_valid:
            return Preparation(None, owned or None, frozenset())
        if self.protocol is _EAGER:
            return Preparation(owned, None, frozenset())
        revoked = frozenset(each for each in owned if not self._wanted(each.topic))
        return Preparation(revoked or None, None, owned - revoked)

    def join(self, owned: frozenset[TopicPartition], now_ms: int) -> None:
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
        if self.result is not result:
            return False
        self.result = None
        self._held |= result.assigned
        self._prepared = False
        return True

    def reconciled(self, result: Joined, now_ms: int) -> None:
        """Nothing to do: the next join reports it to the group."""

    def leave(self, reason: str, *, static_too: bool = False) -> LeaveGroupRequest | None:
        """As in `Member`; unless `static_too`, a static member sends nothing, and stays until its session
        expires."""
        request = self._leave_request(reason, static_too=static_too)
        self._forget("the group was left", member_too=True)
        self.is_subscribed = self.lost = self._wants_join = False
        self._rejoin_reason = None
        self._held = frozenset()
        self._joined_topics = self._accepted_topics = frozenset()
        return request

    # --- requests -------------------------------------------------------------------------------------------

    def due(self, now_ms: int) -> list[Ask]:
        asks: list[Ask] = []
        self._expire(now_ms, asks)
        asks += self._find_if_due(now_ms)
        if self._can_go_on() and now_ms >= self._join_at_ms:
            try:
                asks.append(self._go_on(now_ms))
            except AssignorFailed as error:
                self._give_up(error)
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
        match ask.kind:
            case Kind.FIND_COORDINATOR if ask is self._find:
                self._found(answer, now_ms)
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
        self.last_error = error
        if ask.node != NO_NODE:
            self.coordinator_lost(ask.node, now_ms)
        match ask.kind:
            case Kind.FIND_COORDINATOR if ask is self._find:
                self._not_found(now_ms)
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

    def commit_refused(self, code: ErrorCode, generation: Generation) -> None:
        action = self.commit_action(code)
        if action is Action.REJOIN:
            self.request_rejoin(reason_of(ErrorCode.REBALANCE_IN_PROGRESS))
        elif generation != self.generation or self.state is State.PREPARING_REBALANCE:
            return  # The response to the JoinGroup in flight says more.
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
            reason = self._silence()
            request = self._leave_request(reason)
            if request is not None and self.coordinator is not None:
                self._leaving = self._ask(Kind.LEAVE, self.settings.request_timeout_ms, request)
                asks.append(self._leaving)
            self._forget(reason, member_too=True)
            self._wants_join = False  # The next `join` counts as the missing poll.
        elif self.heartbeat.session_is_over(now_ms):
            # The generation stays: only the coordinator can end it.
            self.heartbeat.restart_session(now_ms)
            if self.coordinator is not None:
                self.coordinator_lost(self.coordinator, now_ms)

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
        """The leader's next request before it sends the assignments."""
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
            # The leader used an earlier subscription.
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
        assignor = self._by_name[self.generation.protocol_name or ""]
        try:
            with calling(assignor, self.settings.group_id):
                assignor.on_assignment(assigned, self.generation_id)
        except AssignorFailed as error:  # The member has its assignment all the same.
            self._error = self.last_error = error

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

    # --- failures -------------------------------------------------------------------------------------------

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
        """Rejoin at once, but not forever: a broker might repeat the same response."""
        if self._prompt_left:
            self._prompt_left -= 1
            self._join_at_ms = now_ms
        else:
            self._join_at_ms = now_ms + self._join_backoff.next_ms()

    def _stand_back(self) -> None:
        """Abandon a failed exchange; the generation is unchanged."""
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
        """Another process has taken over this group instance id; carrying on would take it back."""
        self._fenced = self._taken_over(code)
        self._forget("the group instance id was taken over", member_too=True)
        self._give_up(self._fenced)

    def _give_up(self, error: Exception) -> None:
        """The join failed; `join` may start over."""
        if self.state is not State.STABLE:
            self._stand_back()
            self._exchange = None
        self._wants_join = False
        self._error = self.last_error = error

    def _leave_request(self, reason: str, *, static_too: bool = False) -> LeaveGroupRequest | None:
        if not self.member_id or (self.is_static and not static_too):
            return None
        return leave_request(self.settings, self.generation, reason)
