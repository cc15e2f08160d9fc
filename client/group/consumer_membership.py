"""One member of a consumer group (KIP-848), as a pure state machine.

    UNJOINED --heartbeat, epoch 0--> JOINING --in--> RECONCILING --done--> ACKNOWLEDGING --told--> STABLE
       ^                                |                ^                                            |
       +---------- fenced, left --------+                +------------- another assignment -----------+

There is no group-wide rebalance and no leader: the coordinator assigns partitions to each member, and each
member reconciles on its own. The two communicate by heartbeats alone. The first carries everything, later
ones only what has changed; after a failed one everything is sent again, since its response may have carried
an assignment. Modelled on Kafka's consumer membership manager.

Assignments name topics by id. Ids without a known name are looked up, and what is known is taken meanwhile.
Assignments are taken one at a time: one that arrives while the consumer is working on another waits.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import Any, Final

from muster.client.assignors import RebalanceProtocol
from muster.client.errors import ClientError
from muster.client.group.answers import Action, action_of, reason_of
from muster.client.group.consumer_answers import refused, turned_away
from muster.client.group.consumer_requests import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_FOR_A_WHILE_EPOCH,
    Assignment,
    Told,
    heartbeat_request,
    leave_request,
)
from muster.client.group.member import Member
from muster.client.group.membership_types import (
    Ask,
    Generation,
    GroupSettings,
    Joined,
    Kind,
    Preparation,
    State,
)
from muster.client.partitions import TopicPartition
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.message import Message
from muster.protocol.messages.consumer_group import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

_NOTHING: Final[Assignment] = frozenset()


class ConsumerMembership(Member):
    """See above and `Member`. The member chooses its own `member_id`, and keeps it for good (KIP-1082)."""

    def __init__(
        self,
        settings: GroupSettings,
        *,
        member_id: str | None = None,
        jitter: Callable[[], float] = lambda: random.uniform(0.8, 1.2),
    ) -> None:
        super().__init__(settings, jitter, State.UNJOINED)
        self.generation = Generation(member_id=str(uuid.uuid4()) if member_id is None else member_id)
        self.not_offered: KafkaError | None = None
        """Why a classic member must replace this one (group_protocol "auto")."""
        self._regex: str | None = None
        self._is_known = False  # the coordinator may know the member
        self._telling = Told()  # in the heartbeat in flight
        self._told: Told | None = None  # None: everything must be sent
        self._current = _NOTHING  # what the consumer holds
        self._target: Assignment | None = None
        self._taken_any = False
        self._taking: tuple[Joined, Assignment] | None = None
        self._rejoin_at_ms = 0
        self._rejoin_backoff = self._backoff()
        self._names: dict[uuid.UUID, str] = {}
        self._nameless: frozenset[uuid.UUID] = frozenset()  # according to the last look-up for this target
        self._look_up: Ask | None = None
        self._look_up_at_ms = 0
        self._look_up_backoff = self._backoff()
        self._to_create: frozenset[str] = frozenset()
        self._create: Ask | None = None
        self._create_at_ms = 0
        self._create_backoff = self._backoff()

    def __repr__(self) -> str:
        return (
            f"<ConsumerMembership {self.settings.group_id} {self.member_id!r} {self.state.name} "
            f"epoch={self.generation_id} assigned={len(self._current)}>"
        )

    @property
    def protocol(self) -> RebalanceProtocol:
        return RebalanceProtocol.COOPERATIVE

    @property
    def revokes_first(self) -> bool:
        return False

    @property
    def is_by_pattern(self) -> bool:
        return super().is_by_pattern or self._regex is not None

    @property
    def regex(self) -> str | None:
        """The pattern by which the coordinator finds topics."""
        return self._regex

    @property
    def rejoin_needed(self) -> bool:
        return self.is_subscribed and (not self._wants_join or self.result is not None)

    @property
    def is_joining(self) -> bool:
        return self._wants_join and self._taking is None and self.state in (State.JOINING, State.RECONCILING)

    @property
    def awaited(self) -> list[Ask]:
        """Requests neither answered nor abandoned."""
        asked = self._find, self._beat, self._look_up, self._create, self._leaving
        return [each for each in asked if each is not None]

    # --- called by the consumer -----------------------------------------------------------------------------

    def subscribe(
        self,
        topics: frozenset[str],
        accepts: Callable[[str], bool] | None = None,
        *,
        regex: str | None = None,
    ) -> None:
        if topics != self.topics or not self.is_subscribed:
            may_create = self.settings.allow_auto_create_topics and accepts is None and regex is None
            self._to_create = topics if may_create else frozenset()
            self._create = None
        self._accepts, self.topics, self._regex = accepts, topics, regex
        self.is_subscribed = True
        told = self._telling if self._beat is not None else self._told
        if told is None or (told.topics, told.regex) != (topics, regex):
            self.heartbeat.hasten()

    def request_rejoin(self, reason: str) -> None:
        """Members cannot trigger a rebalance; Kafka's consumer does nothing either."""

    def prepare(self, owned: frozenset[TopicPartition]) -> Preparation:
        if owned and (self.lost or not self._wants_join):
            return Preparation(None, owned, frozenset())
        return Preparation(None, None, owned)

    def join(self, owned: frozenset[TopicPartition], now_ms: int) -> None:
        if not self.is_subscribed:
            raise ClientError(f"group {self.settings.group_id}: there is no subscription to join with")
        if self._fenced is not None:
            raise KafkaError(self._fenced.code, self._fenced.why)
        self.polled(now_ms)
        if self._wants_join or (self.lost and owned):
            return
        self.lost = False
        self._held = owned
        self._begin(now_ms)

    def take(self, result: Joined) -> bool:
        if self.result is not result:
            return False
        self.result = None
        self.owned = self._held | result.assigned
        self._held = self.owned
        return True

    def reconciled(self, result: Joined, now_ms: int) -> None:
        """Acknowledge at once: others may be waiting for the partitions given up."""
        if self._taking is None or self._taking[0] is not result:
            return
        self._current = self._taking[1]
        self._taking = None
        self.owned = self._held = result.assigned
        self.state = State.ACKNOWLEDGING
        self.heartbeat.hasten()
        self._reconcile()

    def has_rejoined(self, leaving: Message) -> bool:
        return (
            isinstance(leaving, ConsumerGroupHeartbeatRequest)
            and self._is_known
            and leaving.member_id == self.member_id
        )

    def leave(self, reason: str, *, static_too: bool = False) -> ConsumerGroupHeartbeatRequest | None:
        """As in `Member`; a static member keeps its partitions until its session ends, unless
        `static_too`."""
        epoch = LEAVE_FOR_A_WHILE_EPOCH if self.is_static and not static_too else LEAVE_EPOCH
        request = leave_request(self.settings, self.member_id, epoch) if self._is_known else None
        self._forget()
        self.is_subscribed = self.lost = self._wants_join = self._is_known = False
        self._held = frozenset()
        self._to_create, self._create = frozenset(), None
        return request

    # --- requests -------------------------------------------------------------------------------------------

    def due(self, now_ms: int) -> list[Ask]:
        asks: list[Ask] = []
        if self.readers:
            self.polled(now_ms)
        if self.heartbeat.poll_is_over(now_ms):
            asks += self._give_place(now_ms)
        elif self.heartbeat.session_is_over(now_ms):
            # The broker decides how long sessions last; a coordinator silent this long is looked up again.
            self.heartbeat.restart_session(now_ms)
            if self.coordinator is not None:
                self.coordinator_lost(self.coordinator, now_ms)
        asks += self._find_if_due(now_ms)
        if self.coordinator is not None and self.heartbeat.is_due(now_ms):
            asks.append(self._heartbeat(now_ms))
        if self._look_up_is_wanted() and now_ms >= self._look_up_at_ms:
            self._look_up = Ask(Kind.NAMES, self.settings.request_timeout_ms, topic_ids=self._without_names())
            asks.append(self._look_up)
        if self._create_is_wanted() and now_ms >= self._create_at_ms:
            self._create = Ask(Kind.TOPICS, self.settings.request_timeout_ms, topics=self._to_create)
            asks.append(self._create)
        return asks

    def next_deadline_ms(self) -> int | None:
        deadlines = []
        if self._find_is_wanted():
            deadlines.append(self._find_at_ms)
        beat_ms = self.heartbeat.next_deadline_ms(can_send=self.coordinator is not None)
        if beat_ms is not None:
            deadlines.append(beat_ms)
        if self._look_up_is_wanted():
            deadlines.append(self._look_up_at_ms)
        if self._create_is_wanted():
            deadlines.append(self._create_at_ms)
        return min(deadlines, default=None)

    def answered(self, ask: Ask, answer: Any, now_ms: int) -> None:
        match ask.kind:
            case Kind.FIND_COORDINATOR if ask is self._find:
                self._found(answer, now_ms)
            case Kind.HEARTBEAT if ask is self._beat:
                self._beat = None
                if answer.error_code:
                    self._refused(ask, answer, now_ms)
                else:
                    self._beaten(answer, now_ms)
            case Kind.NAMES if ask is self._look_up:
                self._look_up = None
                self._names |= answer
                self._nameless = ask.topic_ids - answer.keys()
                if self._nameless:
                    self._look_up_at_ms = now_ms + self._look_up_backoff.next_ms()
                else:
                    self._look_up_backoff.reset()
                self._reconcile()
            case Kind.TOPICS if ask is self._create:
                self._create, self._to_create = None, frozenset()
                self._create_backoff.reset()
            case Kind.LEAVE if ask is self._leaving:
                self._leaving = None

    def failed(self, ask: Ask, error: Exception, now_ms: int, *, final: bool = False) -> None:
        self.last_error = error
        if ask.node == self.coordinator and not isinstance(error, KafkaError):
            self.coordinator_lost(ask.node, now_ms)
        match ask.kind:
            case Kind.FIND_COORDINATOR if ask is self._find:
                self._not_found(now_ms)
            case Kind.HEARTBEAT if ask is self._beat:
                self._beat = self._told = None
                self.heartbeat.failed(now_ms)
                if isinstance(error, KafkaError) and error.code is ErrorCode.UNSUPPORTED_VERSION:
                    self._turn_away(error)
                    return
            case Kind.NAMES if ask is self._look_up:
                self._look_up = None
                self._look_up_at_ms = now_ms + self._look_up_backoff.next_ms()
            case Kind.TOPICS if ask is self._create:
                # Join even if some cannot be created: the coordinator says what exists.
                self._create = None
                self._create_at_ms = now_ms + self._create_backoff.next_ms()
                if final:
                    self._to_create = frozenset()
                return
            case Kind.LEAVE if ask is self._leaving:
                self._leaving = None
                return
            case _:
                return
        if final:
            self._forget()
            self._give_up(error)

    # --- commits --------------------------------------------------------------------------------------------

    def commit_action(self, code: ErrorCode) -> Action:
        if code is ErrorCode.STALE_MEMBER_EPOCH:
            return Action.NEXT_EPOCH
        return super().commit_action(code)

    @property
    def fetches_as(self) -> Generation | None:
        return self.generation if self.generation.is_valid else None

    def commit_refused(self, code: ErrorCode, generation: Generation) -> None:
        """The next heartbeat shows better why a commit was refused."""
        told_by_heartbeats = Action.NEXT_EPOCH, Action.FORGET_GENERATION, Action.FORGET_MEMBER, Action.FENCED
        if generation == self.generation and self.commit_action(code) in told_by_heartbeats:
            self.heartbeat.hasten()

    # --- heartbeats -----------------------------------------------------------------------------------------

    def _begin(self, now_ms: int) -> None:
        """Join as a member that holds nothing."""
        self._wants_join = True
        self.state = State.JOINING
        self.heartbeat.begin(now_ms)
        self.heartbeat.hasten(max(now_ms, self._rejoin_at_ms))

    def _heartbeat(self, now_ms: int) -> Ask:
        self.heartbeat.sent(now_ms)
        self._telling = Told(self.topics, self._regex, self._current)
        is_in = self.generation.is_valid
        request = heartbeat_request(
            self.settings,
            self.member_id,
            self.generation_id if is_in else JOIN_EPOCH,
            self._telling,
            self._told if is_in else None,
        )
        self._beat = self._ask(Kind.HEARTBEAT, self.heartbeat.timeout_ms, request)
        self._is_known = True
        if self.state is State.ACKNOWLEDGING:
            self.state = State.STABLE if self._current == self._target else State.RECONCILING
        return self._beat

    def _beaten(self, response: ConsumerGroupHeartbeatResponse, now_ms: int) -> None:
        self.heard()
        self.heartbeat.answered(now_ms)
        if response.heartbeat_interval_ms > 0:
            self.heartbeat.set_interval(response.heartbeat_interval_ms)
        self._told = self._telling
        if self.generation.is_valid:
            self._rejoin_backoff.reset()  # It admitted the member, and still knows it.
        if response.member_epoch <= JOIN_EPOCH:
            return  # The coordinator has no epoch for the member yet.
        self.generation = Generation(response.member_epoch, response.member_id or self.member_id)
        if response.assignment is not None:
            self._target = frozenset(
                (topic.topic_id, partition)
                for topic in response.assignment.topic_partitions
                for partition in topic.partitions
            )
            used = {topic_id for topic_id, _ in self._target}
            self._names = {each: name for each, name in self._names.items() if each in used}
            self._nameless = frozenset()
            self._look_up_at_ms = now_ms
        if self.state is State.JOINING:
            self.state = State.RECONCILING
        self._reconcile()

    def _refused(self, ask: Ask, response: ConsumerGroupHeartbeatResponse, now_ms: int) -> None:
        why = response.error_message
        error = self._refusal(response.error_code, f"group {self.settings.group_id}: {why}" if why else None)
        self.last_error = error
        self._told = None
        self.heartbeat.failed(now_ms)
        match action_of(ApiKey.CONSUMER_GROUP_HEARTBEAT, error.code):
            case Action.FORGET_MEMBER if (
                error.code is ErrorCode.GROUP_ID_NOT_FOUND and not self.generation.is_valid
            ):
                self._turn_away(error)
            case Action.FORGET_GENERATION | Action.FORGET_MEMBER as action:
                self.last_error = self._refusal(response.error_code, reason_of(error.code))
                self._is_known = action is Action.FORGET_GENERATION
                self._forget()
                self._rejoin(now_ms)
            case Action.FENCED:
                self._fenced = self._taken_over(error.code)
                self._is_known = False
                self._forget()
                self._give_up(self._fenced)
            case Action.RAISED:
                self._error = error
                self.heartbeat.wait(now_ms)
            case Action.FIND_COORDINATOR:
                self.coordinator_lost(ask.node, now_ms)
            case Action.AGAIN:
                pass
            case _:
                self._is_known = self.generation.is_valid
                self._forget()
                self._give_up(refused(self.settings, self._regex, error))

    def _give_place(self, now_ms: int) -> list[Ask]:
        """Leave: nobody reads with this member. The next `join` counts as the missing poll."""
        self.poll_expirations += 1
        epoch = LEAVE_FOR_A_WHILE_EPOCH if self.is_static else LEAVE_EPOCH
        tells = self._is_known and self.coordinator is not None
        if tells:
            request = leave_request(self.settings, self.member_id, epoch)
            self._leaving = self._ask(Kind.LEAVE, self.settings.request_timeout_ms, request)
            self._is_known = False
        self.last_error = ClientError(f"group {self.settings.group_id}: {self._silence()}")
        self._forget()
        self._wants_join = False
        return [self._leaving] if tells and self._leaving is not None else []

    # --- reconciling ----------------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        """Give the consumer its assignment, as far as topic names are known."""
        target = self._target
        if target is None or (self._taking is not None and self.result is None):
            return
        nameless = self._without_names()
        if nameless - self._nameless:
            return  # Their names are looked up first.
        part = frozenset(each for each in target if each[0] not in nameless)
        if self._taking is None and self._taken_any and part == self._current:
            if self.state is not State.ACKNOWLEDGING:
                self.state = State.RECONCILING if nameless else State.STABLE
            return
        assigned = frozenset(TopicPartition(self._names[topic_id], index) for topic_id, index in part)
        self.result = Joined(
            assigned,
            self._held - assigned or None,
            assigned - self._held,
            self.generation_id,
            self.member_id,
            self.settings.group_remote_assignor or "the coordinator's assignor",
        )
        self._taking = self.result, part
        self._taken_any = True
        if self.state is not State.ACKNOWLEDGING:
            self.state = State.RECONCILING

    def _without_names(self) -> frozenset[uuid.UUID]:
        return frozenset(topic_id for topic_id, _ in self._target or () if topic_id not in self._names)

    def _look_up_is_wanted(self) -> bool:
        return self._look_up is None and bool(self._without_names())

    def _create_is_wanted(self) -> bool:
        return self._wants_join and self._create is None and bool(self._to_create)

    # --- failures -------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        """The member is no longer in the group."""
        self.state = State.UNJOINED
        self.generation = Generation(member_id=self.member_id)
        self.heartbeat.end()
        self._beat = self._told = self._look_up = None
        self._target, self._current = None, _NOTHING
        self._taken_any, self._taking, self.result = False, None, None
        self.owned = frozenset()
        self._names, self._nameless = {}, frozenset()
        if self._held:
            self.lost = True
            self._wants_join = False  # The consumer must first give up its partitions.

    def _rejoin(self, now_ms: int) -> None:
        """At once the first time, then after a backoff: a broker might keep giving the same response."""
        if self._rejoin_backoff.failures:
            self._rejoin_at_ms = now_ms + self._rejoin_backoff.next_ms()
        else:
            self._rejoin_at_ms = now_ms
            self._rejoin_backoff.failures = 1
        if self._wants_join:
            self._begin(now_ms)

    def _turn_away(self, error: KafkaError) -> None:
        """The coordinator does not accept members of this protocol."""
        self._is_known = False
        self._forget()
        if self.settings.group_protocol == "auto" and self._regex is None:
            self._wants_join = False
            self.not_offered = self.last_error = error
        else:
            self._give_up(turned_away(self._regex, error))

    def _give_up(self, error: Exception) -> None:
        """Joining failed; `join` may start over."""
        self._wants_join = False
        self._error = self.last_error = error
