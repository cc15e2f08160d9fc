"""What the broker itself reports, queried without the client under test."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, TypeVar

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from muster.protocol.errors import ErrorCode
from muster.protocol.messages.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from tests.interop.programs.python.lines import place
from tests.interop.story.processes import StoryFailed
from tests.support.wire_blocking import ConnectionClosed, WireConnection

T = TypeVar("T")

_SECONDS_MAX: Final = 60.0
_GROUP: Final = 0  # types of keys in FindCoordinator
_TRANSACTION: Final = 1
_PAUSE_S: Final = 0.05  # between two checks of a fact


class Oracle:
    """Every query is repeated until it is answered, for up to a minute. Raises StoryFailed then."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._admin = self._connect()

    def _connect(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 0})

    def create_topic(self, name: str, partitions: int) -> None:
        """Returns when every partition has a leader that knows it."""
        try:
            self._admin.create_topics([NewTopic(name, partitions, 1)])[name].result(_SECONDS_MAX)
        except KafkaException as error:
            raise StoryFailed(f"topic {name} could not be created: {error}") from None
        self.ends(name, partitions)

    def grow_topic(self, name: str, partitions: int) -> None:
        """Raise its partition count; returns when every partition has a leader that knows it."""
        try:
            self._admin.create_partitions([NewPartitions(name, partitions)])[name].result(_SECONDS_MAX)
        except KafkaException as error:
            raise StoryFailed(f"topic {name} could not be given {partitions} partitions: {error}") from None
        self._admin = self._connect()  # the old one knows the old number
        self.ends(name, partitions)

    def ends(self, topic: str, partitions: int) -> dict[int, int]:
        """By partition: the offset after its last record."""
        wanted = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(partitions)}

        def ask() -> dict[int, int]:
            found = self._admin.list_offsets(wanted, request_timeout=_SECONDS_MAX)
            ends = ((place(part.topic, part.partition), _result(end).offset) for part, end in found.items())
            return dict(sorted(ends))

        return self._answer(ask, f"the ends of {topic}")

    def committed(self, group: str) -> dict[int, int]:
        """By partition: the offset that the group has committed."""

        def ask() -> dict[int, int]:
            asked = [ConsumerGroupTopicPartitions(group)]
            (found,) = self._admin.list_consumer_group_offsets(asked, request_timeout=_SECONDS_MAX).values()
            committed = _result(found).topic_partitions
            return dict(sorted((place(part.topic, part.partition), part.offset) for part in committed))

        return self._answer(ask, f"the commits of {group}")

    def wait_for_commits(self, group: str, ends: Mapping[int, int]) -> None:
        """Returns when the group has committed these offsets, by partition."""
        deadline = time.monotonic() + _SECONDS_MAX
        while (committed := self.committed(group)) != ends:
            if time.monotonic() > deadline:
                raise StoryFailed(f"the topic ends at {ends}, the group committed {committed}")
            time.sleep(_PAUSE_S)

    def _answer(self, ask: Callable[[], T], what: str) -> T:
        deadline = time.monotonic() + _SECONDS_MAX
        while True:
            try:
                return ask()
            except KafkaException as error:
                if time.monotonic() > deadline:
                    raise StoryFailed(f"the broker does not tell {what}: {error}") from None
            self._admin = self._connect()  # the old one may keep using what it once learned
            time.sleep(_PAUSE_S)

    def wait_for_coordinator(
        self, key: str, is_it: Callable[[int], bool], *, of_transactions: bool = False
    ) -> int:
        """The node id of the coordinator of a group or of a transactional id, once `is_it` is true for it."""
        key_type = _TRANSACTION if of_transactions else _GROUP
        deadline = time.monotonic() + _SECONDS_MAX
        while (found := self._coordinator(key, key_type)) is None or not is_it(found):
            if time.monotonic() > deadline:
                raise StoryFailed(f"the coordinator of {key} is {found}")
            time.sleep(_PAUSE_S)
        return found

    def _coordinator(self, key: str, key_type: int) -> int | None:
        """As reported by a reachable broker. An AdminClient would keep using the one it found first."""
        for address in self._bootstrap.split(","):
            host, _, port = address.rpartition(":")
            with suppress(OSError, ConnectionClosed), WireConnection(host, int(port), "oracle") as connection:
                asked = FindCoordinatorRequest(key=key, key_type=key_type)
                answer = connection.call(asked, 2, FindCoordinatorResponse)
                return answer.node_id if answer.error_code == ErrorCode.NONE else None
        return None


def _result(future: Future[Any]) -> Any:
    return future.result(_SECONDS_MAX)
