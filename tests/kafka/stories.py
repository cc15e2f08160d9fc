"""Stories played against Apache Kafka and muster, whose answers are compared field by field.

A story is a function of a `Side`, the broker it is played against. It sends what it wants compared with
`Side.ask`, each request under its own title. A difference needs a row in DIFFERENCES.md, whose first column
is the story's `module/name`, after its test module and function.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import google_crc32c

from muster.coordinator.testing import Broker
from muster.protocol.api import ApiKey
from muster.protocol.errors import DecodeError
from muster.protocol.message import Message, Struct
from muster.protocol.messages.connection import ApiVersionsRequest, ApiVersionsResponse
from muster.protocol.messages.metadata import MetadataRequest, MetadataResponse
from muster.protocol.messages.topics import CreateTopicsRequest, CreateTopicsResponse
from muster.protocol.record_batch import batches, records
from muster.protocol.types import ZERO_UUID
from tests.kafka.compared import STORIES
from tests.kafka.differences import Difference, assert_as_listed
from tests.support.apache_kafka import ApacheKafka
from tests.support.wire_blocking import ConnectionClosed, WireConnection
from tests.support.wire_topics import (
    await_coordinators,
    await_logs,
    await_published,
    create_topics,
    delete_topic,
)

Story = Callable[["Side"], None]

KAFKA_CONFIGS: Final = {"group.initial.rebalance.delay.ms": "0"}
"""The configs that stories need Apache Kafka to start with."""
_IDENTIFYING: Final = (
    "name",
    "topic",
    "topic_id",
    "index",
    "partition",
    "partition_index",
    "partition_id",
    "transactional_id",
    "producer_id",
    "batch_index",
    "group_id",
    "key",
    "node_id",
    "broker_id",
)
_PASSED_OVER: Final = {"throttle_time_ms", "total_bytes", "usable_bytes", "port", "cluster_id"}
_SHOWN_BYTES_MAX: Final = 64
_TIMES: Final = {"log_append_time_ms", "transaction_start_time_ms"}
_MESSAGES: Final = {"error_message", "batch_index_error_message"}
_NAMED: Final = {
    "producer_id": "producer",
    "leader_epoch": "epoch",
    "epoch": "epoch",
    "session_id": "session",
}
"""Numbers that a broker chooses: reported as the first, second ... that came up."""
_AS_THEY_ARE: Final = {"producer": {-1}, "epoch": {-1}, "session": {0}}
CHOSEN_BY_STORIES: Final = range(4_000_000_000, 5_000_000_000)
"""Producer ids that no young broker allocates."""

_numbers = itertools.count(1)


class Side:
    """One broker and its answers so far."""

    def __init__(self, port: int, *, host: str = "127.0.0.1", shared: bool) -> None:
        """`shared`: the broker has seen other stories and has their topics, so names get a suffix."""
        self.told: dict[tuple[str, str], dict[str, str]] = {}
        """(title, API) -> field -> value as text."""
        self._shared = shared
        self._suffix = f"-told-{next(_numbers)}" if shared else ""
        self._address = (host, port)
        self._connection = self._connect()
        self._known: dict[str, list[int]] = {}
        self._created: dict[uuid.UUID, str] = {}

    def close(self) -> None:
        self._connection.close()

    def _connect(self) -> WireConnection:
        return WireConnection(*self._address, "story")

    def name(self, topic: str) -> str:
        """The name of the story's topic on this broker."""
        return topic + self._suffix

    def create(self, **partitions: int) -> dict[str, uuid.UUID]:
        """Create topics with these partition counts, ready for use; returns their ids."""
        made = create_topics(self._connection, {self.name(name): count for name, count in partitions.items()})
        await_logs(self._connection, {self.name(name): count for name, count in partitions.items()})
        self._created.update((made[self.name(name)], name) for name in partitions)
        return {name: made[self.name(name)] for name in partitions}

    def configured(self, topic: str, **configs: str) -> uuid.UUID:
        """Create a topic with one partition and these topic configs; returns its id."""
        asked = CreateTopicsRequest.CreatableTopic(
            name=self.name(topic),
            num_partitions=1,
            replication_factor=1,
            assignments=[],
            configs=[
                CreateTopicsRequest.CreatableTopicConfig(name=name.replace("_", "."), value=value)
                for name, value in configs.items()
            ],
        )
        made = self._connection.call(CreateTopicsRequest(topics=[asked]), 7, CreateTopicsResponse)
        assert made.topics[0].error_code == 0, made.topics[0].error_message
        await_logs(self._connection, {self.name(topic): 1})
        self._created[made.topics[0].topic_id] = topic
        return made.topics[0].topic_id

    def delete(self, topic: str) -> None:
        """Delete a topic, and wait until the broker no longer knows it."""
        delete_topic(self._connection, self.name(topic))
        for topic_id in [each for each, name in self._created.items() if name == topic]:
            self._created[topic_id] = f"{topic} that was"

    def coordinate(self, *groups: str) -> None:
        """Wait until the coordinators of `groups` answer."""
        await_coordinators(self._connection, groups)

    def settle(self) -> None:
        """Wait until everything that was changed is in force."""
        await_published(self._connection)

    def leader_epoch(self, topic: str) -> int:
        """The leader epoch of the topic's first partition."""
        asked = MetadataRequest(topics=[MetadataRequest.Topic(name=self.name(topic))])
        (found,) = self._connection.call(asked, 12, MetadataResponse).topics
        return found.partitions[0].leader_epoch

    def quietly(self, request: Message, version: int) -> Any:
        """Send a request that is not compared, and return the answer."""
        self._connection.send(request, version)
        return self._connection.receive()

    def ask(
        self,
        title: str,
        request: Message,
        version: int,
        *,
        but: str = "",
        arranged: Callable[[Any], None] = lambda answer: None,
    ) -> Any:
        """Send a request and return its answer, which is kept for comparison, except (`but`) fields of that
        name, with unordered parts sorted by `arranged`; None if the connection was closed instead."""
        try:
            self._connection.send(request, version)
            answer = self._connection.receive()
        except (ConnectionClosed, ConnectionError):
            self._keep(title, request, {"connection": "closed"})
            self._connection.close()
            self._connection = self._connect()
            return None
        arranged(answer)
        self._keep_answer(title, request, version, answer, but=but)
        return answer

    def send_unanswered(self, title: str, request: Message, version: int) -> None:
        """Send a request that gets no answer; kept is whether the connection lives on."""
        try:
            self._connection.send(request, version, answered=False)
            self.quietly(MetadataRequest(topics=[]), 12)
            self._keep(title, request, {"connection": "open"})
        except (ConnectionClosed, ConnectionError):
            self._keep(title, request, {"connection": "closed"})
            self._connection.close()
            self._connection = self._connect()

    def ask_side_by_side(
        self, requests: Mapping[str, Message], version: int, between: Callable[[], None], *, but: str = ""
    ) -> dict[str, Any]:
        """The answers, by title, to requests that may have to wait; they are kept as by `ask`. Each has its
        own connection. `between` is called once all are sent, and has to ensure that they are answered in the
        end."""
        with ExitStack() as connections:
            sent = {
                title: connections.enter_context(WireConnection(*self._address, "story"))
                for title in requests
            }
            for connection in sent.values():
                # A broker accepts connections in parallel: before this answer, others could overtake it.
                connection.call(ApiVersionsRequest(), 0, ApiVersionsResponse)
            for title, connection in sent.items():
                connection.send(requests[title], version)
            between()
            answers = {title: connection.receive() for title, connection in sent.items()}
        for title, answer in answers.items():
            self._keep_answer(title, requests[title], version, answer, but=but)
        return answers

    def _keep_answer(self, title: str, request: Message, version: int, answer: Message, *, but: str) -> None:
        STORIES.side(kafka=self._shared).note(ApiKey(request.__schema__.api_key or 0), version, answer)
        fields = dict(self._fields(answer, ""))
        told = {name: told for name, told in fields.items() if name.rpartition(".")[2] != but}
        self._keep(title, request, told)

    def _keep(self, title: str, request: Message, told: dict[str, str]) -> None:
        key = (title, ApiKey(request.__schema__.api_key or 0).name)
        assert key not in self.told, f"{title} is asked twice"
        self.told[key] = told

    def note(self, title: str, fact: object, *, of: tuple[Message, int] | None = None) -> None:
        """Keep a fact that the story found out, for comparison; `of` is the answer and version it is from."""
        assert (title, "") not in self.told, f"{title} is noted twice"
        if of is not None:
            answer, version = of
            STORIES.side(kafka=self._shared).note(ApiKey(answer.__schema__.api_key or 0), version, answer)
        self.told[title, ""] = {"fact": str(fact)}

    # --- in words ---------------------------------------------------------------------------------

    def _fields(self, struct: Struct, path: str) -> Any:
        for declared in type(struct).__fields__:
            refused = getattr(struct, "error_code", 1) != 0
            if declared.name in _PASSED_OVER or (
                # For a refused partition Kafka sometimes reports the log start offset; no client looks at it.
                refused if declared.name == "log_start_offset" else declared.name in _MESSAGES and not refused
            ):
                continue
            value = getattr(struct, declared.name)
            name = f"{path}.{declared.name}" if path else declared.name
            if isinstance(value, list):
                yield f"{name}.count", str(len(value))
                yield from self._elements(name, declared.name, value)
            elif isinstance(value, Struct):
                yield from self._fields(value, name)
            elif declared.name == "producer_id" and getattr(struct, "error_code", 0) != 0:
                yield name, repr(value)  # not a producer's
            else:
                yield name, self._word(declared.name, value)

    def _elements(self, path: str, name: str, values: list[Any]) -> Any:
        """Structs with a name or number are keyed and sorted by it: Kafka's order follows its hash tables."""
        if not values or not isinstance(values[0], Struct):
            yield from ((f"{path}[{index}]", self._word(name, value)) for index, value in enumerate(values))
            return
        identities = [self._identity(value) for value in values]
        times: dict[str, int] = {}
        for identity, value in sorted(zip(identities, values, strict=True), key=itemgetter(0)):
            times[identity] = times.get(identity, 0) + 1
            again = "'" * (times[identity] - 1)
            yield from self._fields(value, f"{path}[{identity}{again}]")

    def _identity(self, struct: Struct) -> str:
        for name in _IDENTIFYING:
            identity = getattr(struct, name, None)
            if isinstance(identity, uuid.UUID) and identity in self._created:
                return self._created[identity]
            if identity not in (None, "", ZERO_UUID):
                return self._word(name, identity).strip("'")
        return ""

    def _word(self, name: str, value: Any) -> str:
        if name in _MESSAGES:
            return "none" if value is None else "a message"
        if name in _TIMES and value >= 0:
            return "a time"
        if name == "log_dir":
            return "a folder"
        kind = _NAMED.get(name)
        if kind is not None and value not in _AS_THEY_ARE[kind] and value not in CHOSEN_BY_STORIES:
            known = self._known.setdefault(kind, [])
            if value not in known:
                known.append(value)
            return f"{kind} {known.index(value) + 1}"
        if isinstance(value, uuid.UUID):
            return "no id" if value == ZERO_UUID else "an id"
        if isinstance(value, bytes):
            return _contents(value)
        if isinstance(value, str) and self._suffix:
            value = value.replace(self._suffix, "")
        return repr(value)


def _contents(data: bytes) -> str:
    """Offsets and values of records; for long values, their lengths and checksums."""
    found = []
    with suppress(DecodeError):
        for position, header in batches(data):
            found.append([(each.offset, _short(each.value)) for each in records(data, position, header)])
    return repr(found)


def _short(value: bytes | None) -> object:
    if value is None or len(value) <= _SHOWN_BYTES_MAX:
        return value
    return f"{len(value)} bytes {google_crc32c.value(value):08x}"


def differences(story: Story, kafka: ApacheKafka, broker: Broker) -> list[Difference]:
    """Play `story` against both and return the differences. A message that Kafka omits is allowed."""
    return told_apart(story, Side(kafka.port, host=kafka.host, shared=True), Side(broker.port, shared=False))


def told_apart(story: Callable[[Any], None], kafka: Side, muster: Side) -> list[Difference]:
    """Play `story` against both sides and return the differences."""
    theirs, ours = _told(story, kafka), _told(story, muster)
    assert theirs.keys() == ours.keys(), "the story went another way"
    found: list[Difference] = []
    for (title, api), fields in theirs.items():
        apart = fields_apart(fields, ours[title, api])
        found += [Difference(name_of(story), title, api, *each) for each in apart]
    return found


def fields_apart(theirs: Mapping[str, str], ours: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """The fields of an answer that differ: name, Kafka's value, muster's. A message that Kafka omits is
    allowed."""
    for field in sorted(theirs.keys() | ours.keys()):
        said, our_words = theirs.get(field, "absent"), ours.get(field, "absent")
        more_said = field.rpartition(".")[2] in _MESSAGES and said in ("none", "absent")
        if said != our_words and not more_said:
            yield field, said, our_words


def _told(story: Callable[[Any], None], side: Side) -> Mapping[tuple[str, str], Mapping[str, str]]:
    try:
        story(side)
    finally:
        side.close()
    return side.told


def name_of(story: Callable[[Any], None]) -> str:
    return f"{Path(story.__code__.co_filename).stem}/{story.__name__}"


def assert_told_alike(story: Story, kafka: ApacheKafka, broker: Broker) -> None:
    """Fail for a difference that DIFFERENCES.md does not list, and for a listed one that is gone."""
    assert_as_listed(name_of(story), differences(story, kafka, broker))


def is_told(name: str) -> bool:
    """Whether `name`, from the first column of DIFFERENCES.md, is a story's."""
    module, slash, function = name.partition("/")
    path = Path(__file__).with_name(f"{module}.py")
    return bool(slash) and path.exists() and f"def {function}(side: " in path.read_text(encoding="utf-8")
