"""Fetch sessions (KIP-227): a broker remembers a client's Fetch, so that the next one names only the
partitions that changed, and its response contains only those with news.

The rules are those of Apache Kafka's FetchSession. A session belongs to no connection: a client continues it
by its id and its epoch, which counts the requests. Every partition of the session is read each time; those
that had records go to the end of the line, so that no partition keeps the others out of the response.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias
from uuid import UUID

from muster.coordinator.base.clock import Clock
from muster.coordinator.topics.catalogue import Topic
from muster.coordinator.topics.sources import FetchedPartition, FetchPartition
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.data import FetchRequest, FetchResponse
from muster.protocol.types import ZERO_UUID

NO_SESSION: Final = 0
_OPEN: Final = 0
_CLOSE: Final = -1
"""Epochs of full requests, with a new session or without one."""
_ID_MAX: Final = 2**31 - 1
_EPOCH_MAX: Final = 2**31 - 1
_NEVER: Final = -2
EVICTION_MS: Final = 120_000
"""How long a session is safe from eviction. A constant in Kafka, too."""
_PARTITIONS_MAX: Final = 200_000
"""Of all sessions together, some 90 MB. A client without a session names all partitions each time."""

Key: TypeAlias = tuple[str | UUID, int]
"""A topic, as the session's requests name it, and a partition."""


def fetch_partition(
    topic: Topic, asked: FetchRequest.FetchPartition | KeptPartition, read_committed: bool
) -> FetchPartition:
    """The read of a partition of `topic` that a request asks for."""
    return FetchPartition(
        topic,
        asked.partition,
        asked.fetch_offset,
        asked.partition_max_bytes,
        asked.current_leader_epoch,
        asked.last_fetched_epoch,
        read_committed,
    )


class KeptPartition:
    """What a session's requests say about a partition, in the fields of FetchRequest.FetchPartition; and what
    the client was last told about it."""

    __slots__ = (
        "_asked",
        "_high_watermark",
        "_log_start_offset",
        "_told",
        "current_leader_epoch",
        "fetch_offset",
        "key",
        "last_fetched_epoch",
        "partition",
        "partition_max_bytes",
    )

    def __init__(self, key: Key, asked: FetchRequest.FetchPartition) -> None:
        self.key = key
        self.partition = asked.partition
        self.fetch_offset = asked.fetch_offset
        self.partition_max_bytes = asked.partition_max_bytes
        self.current_leader_epoch = asked.current_leader_epoch
        self.last_fetched_epoch = asked.last_fetched_epoch
        self._asked: FetchPartition | None = None
        self._told = _NEVER
        """Epoch of the last request whose response had the values below, or left them out as known."""
        self._high_watermark = -1
        self._log_start_offset = -1

    def asked_of(self, topic: Topic, read_committed: bool) -> FetchPartition:
        """`fetch_partition`, kept for the next request."""
        known = self._asked
        if known is None or known.topic is not topic or known.read_committed != read_committed:
            known = self._asked = fetch_partition(topic, self, read_committed)
        return known

    def replace(self, before: KeptPartition) -> None:
        """Take over what the client was told about `before`, the same partition."""
        self._told = before._told
        self._high_watermark = before._high_watermark
        self._log_start_offset = before._log_start_offset

    def forget_told(self) -> None:
        """Forget what it was last told: the client did not get it."""
        self._told = _NEVER

    def news(self, epoch: int, answer: FetchedPartition) -> bool:
        """Whether the response to the request of this epoch must include the partition; if not, it is
        unchanged since the last response."""
        if answer.error is not None or answer.diverging_epoch is not None:
            self._told = _NEVER
            return True
        known = (
            self._told == epoch - 1
            and not answer.records
            and self._high_watermark == answer.high_watermark
            and self._log_start_offset == answer.log_start_offset
        )
        self._told = epoch
        self._high_watermark = answer.high_watermark
        self._log_start_offset = answer.log_start_offset
        return not known


class KeptTopic:
    """Partitions of a topic, in the fields of FetchRequest.FetchTopic."""

    __slots__ = ("partitions", "topic", "topic_id")

    def __init__(self, named: str | UUID) -> None:
        self.topic, self.topic_id = (named, ZERO_UUID) if isinstance(named, str) else ("", named)
        self.partitions: list[KeptPartition] = []


class FetchSession:
    """The partitions that one client reads."""

    def __init__(self, session_id: int, now_ms: int, *, by_id: bool) -> None:
        """`by_id`: its requests name topics by id."""
        self.session_id = session_id
        self.by_id = by_id
        self.epoch = 1
        """Epoch of the next request."""
        self.created_ms = self.used_ms = now_ms
        self._partitions: dict[Key, KeptPartition] = {}
        self._topics: list[KeptTopic] | None = None

    def __repr__(self) -> str:
        return f"<FetchSession {self.session_id} at epoch {self.epoch}, {len(self)} partitions>"

    def __len__(self) -> int:
        """Number of its partitions."""
        return len(self._partitions)

    def overtaken(self, epoch: int) -> bool:
        """Whether the session has gone on since its request of this epoch."""
        return epoch > _OPEN and self.epoch != _next_epoch(epoch)

    def update(self, request: FetchRequest) -> None:
        """Apply what a request adds, changes and forgets."""
        by_id, partitions = self.by_id, self._partitions
        for topic in request.topics:
            named = topic.topic_id if by_id else topic.topic
            for asked in topic.partitions:
                key = named, asked.partition
                kept, before = KeptPartition(key, asked), partitions.get(key)
                if before is not None:
                    kept.replace(before)
                partitions[key] = kept
        for forgotten in request.forgotten_topics_data:
            named = forgotten.topic_id if by_id else forgotten.topic
            for partition in forgotten.partitions:
                partitions.pop((named, partition), None)
        if request.topics or request.forgotten_topics_data:
            self._topics = None

    def topics(self) -> list[KeptTopic]:
        """All its partitions, in line order; do not modify the list."""
        if self._topics is None:
            self._topics = topics = []
            of_topic: KeptTopic | None = None
            last: object = None
            for (named, _), kept in self._partitions.items():
                if of_topic is None or named != last:
                    last, of_topic = named, KeptTopic(named)
                    topics.append(of_topic)
                of_topic.partitions.append(kept)
        return self._topics

    def forget_told(self, response: FetchResponse) -> None:
        """Forget what was told of the partitions in this response: the client does not get it."""
        for topic in response.responses:
            named = topic.topic_id if self.by_id else topic.topic
            for part in topic.partitions:
                kept = self._partitions.get((named, part.partition_index))
                if kept is not None:
                    kept.forget_told()

    def had_records(self, these: Iterable[KeptPartition]) -> None:
        """Move these partitions to the end of the line."""
        for kept in these:
            latest = self._partitions.pop(kept.key, None)
            if latest is not None:
                self._partitions[kept.key] = latest
                self._topics = None


class FetchSessions:
    """The fetch sessions of one broker. Lives on its event loop."""

    def __init__(self, clock: Clock, *, slots: int, partitions_max: int = _PARTITIONS_MAX) -> None:
        """Keeps at most `slots` sessions, with `partitions_max` partitions in all. A new session evicts the
        least recently used one, if that was used more than two minutes ago; otherwise the smallest of those
        in use for longer than that, if it is smaller than the new one."""
        self._clock = clock
        self._slots = slots
        self._partitions_max = partitions_max
        self._kept: dict[int, FetchSession] = {}
        """By id, the least recently used first."""
        self.partitions = 0
        """Of all sessions together."""
        self.evicted = 0
        """Number of evicted sessions."""

    def __repr__(self) -> str:
        return f"<FetchSessions {len(self)}>"

    def __len__(self) -> int:
        return len(self._kept)

    def complete(self, request: FetchRequest, *, by_id: bool) -> KafkaError | None:
        """Make the request list all partitions of its session, which it may open or close, and set its
        session id to the one for its response, or 0. Returns why it is refused, if it is: 70, 71, 106.
        `by_id`: it names topics by id."""
        session_id, epoch = request.session_id, request.session_epoch
        if epoch in (_OPEN, _CLOSE):
            self._remove(session_id)
            request.session_id = NO_SESSION if epoch == _CLOSE else self._open(request, by_id)
            return None
        session = self._kept.get(session_id)
        if session is None:
            return KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"there is no session {session_id}")
        if epoch != session.epoch:
            why = f"the next request of session {session_id} has epoch {session.epoch}, not {epoch}"
            return KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH, why)
        if by_id != session.by_id:
            why = f"session {session_id} names topics by {'id' if session.by_id else 'name'}"
            return KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, why)
        self._remove(session_id)
        session.update(request)
        if not len(session):
            request.session_id = NO_SESSION
            return None
        if self.partitions + len(session) > self._partitions_max:
            self.evicted += 1
            return KafkaError(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"session {session_id} has grown too large"
            )
        self._keep(session)
        session.used_ms = self._clock.now_ms()
        session.epoch = _next_epoch(epoch)
        request.topics = _listed(session)
        return None

    def get(self, session_id: int) -> FetchSession | None:
        """The session of a completed request; None if it has none."""
        return self._kept.get(session_id)

    def withheld(self, request: FetchRequest, response: FetchResponse) -> FetchResponse:
        """What the client of a completed request gets in place of the response: nothing yet. As in Kafka, its
        session goes on, but one that it has just opened is not kept."""
        session = self.get(request.session_id)
        session_id = NO_SESSION
        if session is not None and request.session_epoch == _OPEN:
            self._remove(session.session_id)
        elif session is not None:
            session.forget_told(response)
            session_id = session.session_id
        return FetchResponse(error_code=response.error_code, session_id=session_id, responses=[])

    def _keep(self, session: FetchSession) -> None:
        self._kept[session.session_id] = session
        self.partitions += len(session)

    def _remove(self, session_id: int) -> None:
        session = self._kept.pop(session_id, None)
        if session is not None:
            self.partitions -= len(session)

    def _open(self, request: FetchRequest, by_id: bool) -> int:
        now_ms = self._clock.now_ms()
        session_id = secrets.randbelow(_ID_MAX) + 1
        while session_id in self._kept:
            session_id = secrets.randbelow(_ID_MAX) + 1
        session = FetchSession(session_id, now_ms, by_id=by_id)
        session.update(request)
        if len(self._kept) >= self._slots and not self._evict(len(session), now_ms):
            return NO_SESSION
        if self.partitions + len(session) > self._partitions_max:
            return NO_SESSION
        self._keep(session)
        request.topics = _listed(session)
        return session_id

    def _evict(self, size: int, now_ms: int) -> bool:
        """Make room for a session of `size` partitions; whether a session could be evicted."""
        if not self._kept:
            return False
        goes = next(iter(self._kept.values()))
        if now_ms - goes.used_ms <= EVICTION_MS:
            old = [each for each in self._kept.values() if each.used_ms - each.created_ms > EVICTION_MS]
            if not old:
                return False
            goes = min(old, key=len)
            if len(goes) >= size:
                return False
        self._remove(goes.session_id)
        self.evicted += 1
        return True


def _next_epoch(epoch: int) -> int:
    return 1 if epoch == _EPOCH_MAX else epoch + 1


def _listed(session: FetchSession) -> list[Any]:
    """The session's topics, which have the same fields as those of a request."""
    topics: Sequence[Any] = session.topics()
    return list(topics)
