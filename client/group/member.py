"""The parts common to members of both protocols: their state as the rest of the client sees it, the
coordinator look-up, and errors waiting to be raised. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

from muster.client.assignors import RebalanceProtocol
from muster.client.errors import refusal
from muster.client.group.answers import Action, action_of
from muster.client.group.heartbeat import Backoff, Heartbeat
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
from muster.client.partitions import TopicPartition
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.message import Message


class Member(ABC):
    """A member that subscribes to topics. Times are milliseconds of one monotonic clock; `jitter` returns a
    factor of about 1 for pauses.

    `due` returns the requests to make now, `answered` and `failed` take their outcomes, and
    `next_deadline_ms` says when to call `due` again. The consumer gives up the partitions that `prepare`
    returns, calls `join`, gets the result with `take`, and calls `reconciled` once it has applied the result;
    it calls `polled` whenever the reader asks for records.
    """

    def __init__(self, settings: GroupSettings, jitter: Callable[[], float], state: State) -> None:
        self.settings = settings
        self.jitter = jitter
        self.state = state
        self.generation = NO_GENERATION
        self.topics: frozenset[str] = frozenset()
        self.is_subscribed = False
        self.owned: frozenset[TopicPartition] = frozenset()
        """The partitions the member may commit in the current generation."""
        self.lost = False
        """Whether the membership was lost while the consumer owned partitions; reset once it has given them
        up."""
        self.result: Joined | None = None
        """The result of a join, until taken."""
        self.coordinator: int | None = None
        self.coordinator_users = 0
        """Number of callers, besides the member itself, that wait for the coordinator."""
        self.readers = 0
        """Number of callers that wait for the join; while there is one, the poll deadline is paused."""
        self.poll_expirations = 0
        self.last_error: Exception | None = None
        """The last error; it may have passed."""
        self._backoff = partial(Backoff, settings.retry_backoff_ms, settings.retry_backoff_max_ms, jitter)
        self.heartbeat = Heartbeat(
            session_timeout_ms=settings.session_timeout_ms,
            interval_ms=settings.heartbeat_interval_ms,
            max_poll_interval_ms=settings.max_poll_interval_ms,
            request_timeout_ms=settings.request_timeout_ms,
            backoff=self._backoff(),
        )
        self._accepts: Callable[[str], bool] | None = None
        self._held: frozenset[TopicPartition] = frozenset()  # what the consumer holds
        self._wants_join = False
        self._fenced: KafkaError | None = None
        self._error: Exception | None = None
        self._find: Ask | None = None
        self._find_at_ms = 0
        self._find_backoff = self._backoff()
        self._beat: Ask | None = None
        self._leaving: Ask | None = None

    # --- state ----------------------------------------------------------------------------------------------

    @property
    def member_id(self) -> str:
        return self.generation.member_id

    @property
    def generation_id(self) -> int:
        return self.generation.generation_id

    @property
    def is_static(self) -> bool:
        return self.settings.group_instance_id is not None

    @property
    def is_leader(self) -> bool:
        return False

    @property
    def is_by_pattern(self) -> bool:
        """Whether the subscription only matches existing topics, so that none are created for it."""
        return self._accepts is not None

    @property
    @abstractmethod
    def protocol(self) -> RebalanceProtocol:
        """The current rebalance protocol."""

    @property
    @abstractmethod
    def revokes_first(self) -> bool:
        """Whether `prepare` may have the consumer revoke partitions before it joins."""

    @property
    @abstractmethod
    def rejoin_needed(self) -> bool:
        """Whether the consumer must call `join`, or take its result."""

    @property
    @abstractmethod
    def is_joining(self) -> bool:
        """Whether a join is in progress."""

    def calls_for_reader(self) -> tuple[object, ...] | None:
        """What a reading call must act on; None if there is nothing."""
        joins = self.rejoin_needed and not self._wants_join
        if self._error is None and self.result is None and not joins:
            return None
        return self._error, self.result, joins, self.lost

    def stand_in_for(self, other: Member) -> None:
        """Replace another member, taking over its subscription and those waiting for it."""
        self.lost, self._held = other.lost, other._held
        self.coordinator, self.coordinator_users = other.coordinator, other.coordinator_users
        self.readers, self.poll_expirations = other.readers, other.poll_expirations
        self.last_error = other.last_error
        if other.is_subscribed:
            self.subscribe(other.topics, other._accepts)

    # --- called by the consumer -----------------------------------------------------------------------------

    @abstractmethod
    def subscribe(
        self,
        topics: frozenset[str],
        accepts: Callable[[str], bool] | None = None,
        *,
        regex: str | None = None,
    ) -> None:
        """Set the subscribed topics. `accepts` says whether an assignment may contain another topic: a leader
        may know more topics that match a pattern. `regex`: the broker finds the topics (KIP-848)."""

    @abstractmethod
    def request_rejoin(self, reason: str) -> None:
        """Trigger a rebalance, at the next `join`."""

    @abstractmethod
    def prepare(self, owned: frozenset[TopicPartition]) -> Preparation:
        """Which of `owned` to give up before `join`; never repeated."""

    @abstractmethod
    def join(self, owned: frozenset[TopicPartition], now_ms: int) -> None:
        """Join the group, keeping these partitions; counts as a poll. Does nothing else while a result waits
        to be taken, or while the consumer still owns lost partitions. Raises ClientError without a
        subscription, and always KafkaError once another member has taken over the group instance id."""

    @abstractmethod
    def take(self, result: Joined) -> bool:
        """Take this result. Returns False if it is void because the membership was lost meanwhile."""

    @abstractmethod
    def reconciled(self, result: Joined, now_ms: int) -> None:
        """The consumer has applied the result."""

    @abstractmethod
    def leave(self, reason: str, *, static_too: bool = False) -> Message | None:
        """Leave the group and drop the subscription. Returns the leave request to send, if one is needed."""

    def polled(self, now_ms: int) -> None:
        """The reader polled."""
        self.heartbeat.polled(now_ms)

    def has_rejoined(self, leaving: Message) -> bool:
        """Whether the group may have this member again, under the id that `leaving` would remove."""
        return False

    @property
    def error(self) -> Exception | None:
        """What `take_error` would return."""
        return self._error

    def take_error(self) -> Exception | None:
        """Return a permanent error not reported yet, and clear it."""
        error, self._error = self._error, None
        return error

    # --- requests -------------------------------------------------------------------------------------------

    @abstractmethod
    def due(self, now_ms: int) -> list[Ask]:
        """The requests to make now. Each must be answered or failed exactly once."""

    @abstractmethod
    def next_deadline_ms(self) -> int | None:
        """When to call `due` again, unless a response comes first; None if only a response or a call can
        change anything."""

    @abstractmethod
    def answered(self, ask: Ask, answer: Any, now_ms: int) -> None:
        """The response, as `Kind` defines it. Responses to outdated requests change nothing."""

    @abstractmethod
    def failed(self, ask: Ask, error: Exception, now_ms: int, *, final: bool = False) -> None:
        """There was no response. `final`: retrying cannot help."""

    def commit_action(self, code: ErrorCode) -> Action:
        """The action for an error code in the response to a commit."""
        return action_of(ApiKey.OFFSET_COMMIT, code)

    @property
    def fetches_as(self) -> Generation | None:
        """The identity to fetch committed offsets as, if the coordinator checks it."""
        return None

    @abstractmethod
    def commit_refused(self, code: ErrorCode, generation: Generation) -> None:
        """A commit of `generation` was refused with this code."""

    # --- the coordinator ------------------------------------------------------------------------------------

    def coordinator_lost(self, node: int, now_ms: int) -> None:
        """This node is not the coordinator, or is unreachable: look it up, at once the first time."""
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

    def _find_is_wanted(self) -> bool:
        return (
            self.coordinator is None
            and self._find is None
            and (self._wants_join or self.heartbeat.is_on or self.coordinator_users > 0)
        )

    def _find_if_due(self, now_ms: int) -> list[Ask]:
        if not self._find_is_wanted() or now_ms < self._find_at_ms:
            return []
        self._find = Ask(Kind.FIND_COORDINATOR, self.settings.request_timeout_ms)
        return [self._find]

    def _found(self, node: int, now_ms: int) -> None:
        self._find = None
        self.coordinator = node
        self.heartbeat.restart_session(now_ms)

    def _not_found(self, now_ms: int) -> None:
        self._find = None
        self._find_at_ms = now_ms + self._find_backoff.next_ms()

    # --- helpers --------------------------------------------------------------------------------------------

    def _wanted(self, topic: str) -> bool:
        return topic in self.topics or (self._accepts is not None and self._accepts(topic))

    def _silence(self) -> str:
        """Why the member leaves: nobody reads with it."""
        return f"nobody asked for records for {self.settings.max_poll_interval_ms} ms (max.poll.interval.ms)"

    def _taken_over(self, code: ErrorCode) -> KafkaError:
        """Another process has taken over the group instance id."""
        return refusal(
            code,
            f"group {self.settings.group_id}: another member has taken over the group instance id "
            f"{self.settings.group_instance_id}; each consumer needs its own",
        )

    def _refusal(self, error_code: int, why: str | None = None) -> KafkaError:
        return refusal(error_code, why, about=f"group {self.settings.group_id}")

    def _ask(self, kind: Kind, timeout_ms: int, request: Message | None = None) -> Ask:
        node = NO_NODE if self.coordinator is None else self.coordinator
        return Ask(kind, timeout_ms, node, request)
