"""Random sequences of what clients ask of partitions' logs: Apache Kafka and muster answer alike.

A life has two topics of its own, and asks for others that are not there. Most requests are sensible; the
others are at an edge, or wrong in one way. All that is stored is compared after each request that may write.

Left out is what FINDINGS.md lists under "Where random requests do not go", and transactions, which have lives
of their own.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, Final

import pytest

from muster.coordinator.testing import Broker
from muster.protocol.compression import Codec
from muster.protocol.message import Message
from muster.protocol.messages.data import FetchRequest, ListOffsetsRequest, ProduceRequest
from muster.protocol.messages.transactions import DescribeProducersRequest
from muster.protocol.record_batch import SEQUENCE_MAX, Record, advance_sequence, batches, build, records
from tests.kafka.compared import error_codes
from tests.kafka.conftest import KafkaOfConfigs, Lives
from tests.kafka.stories import CHOSEN_BY_STORIES, KAFKA_CONFIGS, Side, fields_apart
from tests.kafka.test_data_plane import DAY_MS, NOW_MS, altered, cutting, ending, fetching, listing, producing
from tests.kafka.test_fetch_sessions import Session

pytestmark = pytest.mark.kafka

_SEED, _SEQUENCES, _REQUESTS = 9012, 12, 50
_KINDS: Final[Mapping[str, Mapping[str, str]]] = {
    "plain": {},
    "compacted": {"cleanup_policy": "compact"},
    "small": {"max_message_bytes": "300"},
    "stamped": {"message_timestamp_type": "LogAppendTime"},
    "strict": {"message_timestamp_before_max_ms": "3600000", "message_timestamp_after_max_ms": "60000"},
    "packed": {"compression_type": "gzip"},
    "rolled": {"segment_ms": str(DAY_MS), "message_timestamp_after_max_ms": str(2**62)},
}
_PRODUCERS: Final = CHOSEN_BY_STORIES[500:504]
_IDS_FROM: Final = 13  # Produce and Fetch name topics by id
_FAR_MS: Final = (*(NOW_MS + days * DAY_MS for days in (-40, -1, 1, 3)), 2**62, 2**63 - 200)
_WRONG: Final = {  # fields of a batch's header: where, and what is written there
    "base offset": (0, ">q", (-1, 1, 5, 2**62)),
    "length": (8, ">i", (-1, 0, 10, 48)),
    "leader epoch": (12, ">i", (0, 1, 7, -2)),  # nothing wrong with that
    "control flag": (21, ">h", (0x20,)),
    "last offset": (23, ">i", (0, 1, 2, 7, 2**31 - 1)),
    "max timestamp": (35, ">q", (NOW_MS, -1, 5, 2**63 - 1)),
    "count": (57, ">i", (0, 1, 2, 3, 2**31 - 1)),
}
Part = tuple[str, int]


class Life:
    """Makes the same random requests on both sides and compares the answers."""

    def __init__(self, name: str, *sides: Side) -> None:
        self._choose = random.Random(name)
        self._name, self._sides = name.replace("/", "-"), sides
        self._ids = {side: {"none": uuid.UUID(int=7), "was": uuid.UUID(int=8)} for side in sides}
        self._ends: dict[str, int] = {}
        self._due: dict[tuple[Part, int], tuple[int, int]] = {}
        """The epoch and next sequence of each producer."""
        self._cut: set[str] = set()  # topics that have lost records
        self._log = [f"life {name}"]
        self._topics = [self._create(kind) for kind in self._choose.sample(sorted(_KINDS), 2)]
        by_id = self._maybe(0.5)
        self._sessions = [Session(side, self._ids[side] if by_id else None) for side in sides]

    def play(self) -> None:
        actions = [self._produce] * 8 + [self._fetch] * 3 + [self._fetch_in_session] * 2 + [self._list] * 3
        actions += [self._delete, self._ask_for_epochs]
        self._choose.choice(actions)() if self._maybe(0.98) else self._recreate()

    def _create(self, kind: str) -> str:
        topic = f"{kind}-{self._name}"
        for side in self._sides:
            self._ids[side][topic] = side.configured(topic, **_KINDS[kind])
        return topic

    def _note(self, what: str) -> str:
        self._log.append(f"{len(self._log)}: {what}")
        return str(len(self._log))

    def _ask(self, what: str, request: Callable[[Side], Message], version: int, **how: Any) -> Any:
        title = self._note(f"v{version} {what}")
        answers = [side.ask(title, request(side), version, **how) for side in self._sides]
        self._compare()
        return answers[0]

    def _compare(self) -> None:
        """Compare all that was told since the last time."""
        theirs, ours = (side.told for side in self._sides)
        for (title, api), fields in theirs.items():
            found = [f"{api}: {each}" for each in fields_apart(fields, ours[title, api])]
            assert not found, "\n".join(self._log + found)
        theirs.clear()
        ours.clear()

    def _look(self) -> None:
        """Compare what is stored."""
        for topic in self._topics:
            for side in self._sides:
                self._ends[topic], found = _stored(side, topic)
                side.note(topic, found)
                of = DescribeProducersRequest.TopicRequest(name=side.name(topic), partition_indexes=[0])
                timed = "last_timestamp" if topic.startswith("stamped") else ""
                side.ask(topic, DescribeProducersRequest(topics=[of]), 0, but=timed)
        self._compare()

    def _maybe(self, share: float) -> bool:
        return self._choose.random() < share

    def _parts(self, count: int = 1) -> list[Part]:
        """Partitions of so many topics."""
        absent = [("none", 0), ("was", 0), (self._topics[0], 1), (self._topics[0], -1)]
        found = [(topic, 0) for topic in self._choose.sample(self._topics, min(count, 2))]
        if self._maybe(0.1):
            found[0] = self._choose.choice(absent)
        return list(dict(found).items())

    def _offset(self, topic: str) -> int:
        end = self._ends.get(topic, 0)
        edges = [-(2**63), -2, -1, end + 1, 2**62, 2**63 - 1]
        return self._choose.choice(edges) if self._maybe(0.15) else self._choose.randint(0, end)

    def _epoch(self) -> int | None:
        """How far ahead of the leader's epoch; None for no epoch."""
        return self._choose.choice([None] * 8 + [0] * 4 + [1, 5])

    def _epoch_of(self, side: Side, topic: str, ahead: int | None) -> int:
        present = side.leader_epoch(topic) if topic in self._topics else 0
        return -1 if ahead is None else present + ahead

    def _records(self, topic: str) -> list[Record]:
        choose = self._choose
        start = NOW_MS - choose.choice([0, 0, 5, 10, 50, 100])
        if topic.startswith(("rolled", "strict")) and self._maybe(0.4):
            start = choose.choice([-1, 0, 1, *_FAR_MS])
        if topic.startswith("small") and self._maybe(0.3):  # about as large as may be
            return [Record(0, start, b"", b"x" * choose.choice([229, 230, 230, 231]))]
        found = []
        for index in range(choose.choice([1, 1, 2, 3, 4])):
            at = start if self._maybe(0.5) else max(start + choose.randint(-20, 20), -1)
            key = None if self._maybe(0.1) else choose.choice([b"k", b"", b"long" * 10])
            value = None if self._maybe(0.1) else b"%d" % index * choose.choice([0, 1, 5, 30, 70, 230])
            headers = (("h", None), ("h", b"x")) if self._maybe(0.1) else ()
            found.append(Record(index, at, key, value, headers))
        return found

    def _producer(self, part: Part) -> dict[str, Any]:
        """The fields of a batch, if it is a producer's: usually its next."""
        choose = self._choose
        if part[0].startswith("rolled") or self._maybe(0.5):
            return {}
        who = choose.choice(_PRODUCERS)
        begins = choose.choice([0, 0, 7, SEQUENCE_MAX - 1, SEQUENCE_MAX])
        epoch, sequence = self._due.get((part, who), (0, begins))
        if self._maybe(0.15):
            epoch = choose.choice([min(epoch + 1, 32767), max(epoch - 1, 0), 32767])
            sequence = choose.choice([0, 0, sequence])
        elif self._maybe(0.35):
            near = [advance_sequence(sequence, by) for by in (1, -1, -2, -3, -8)]
            sequence = choose.choice([0, -1, SEQUENCE_MAX, *near])
        return {"producer_id": who, "producer_epoch": epoch, "base_sequence": sequence}

    def _spoilt(self, data: bytes) -> tuple[str, bytes]:
        """What is wrong, and the batch that it is wrong with."""
        choose = self._choose
        ways = {
            "no bytes": b"",
            "cut short": data[: choose.randrange(len(data))],
            "twice": data + data,
            "checksum": data[:-1] + bytes([data[-1] ^ 1]),
            "magic": data[:16] + bytes([choose.choice([0, 1, 3, 255])]) + data[17:],
            "without records": build([], base_offset=0, last_offset=choose.choice([0, 1, 3])),
        }
        for name, (position, form, values) in _WRONG.items():
            ways[name] = altered(data, position, form, choose.choice(values))
        return choose.choice(list(ways.items()))

    def _produce(self) -> None:
        choose = self._choose
        parts = self._parts(choose.choice([1, 1, 2]))
        sent: list[tuple[str, int, bytes]] = []
        told, way, fields = [], "", {}
        # A large batch may be wrong in two ways; so may one packed with zstd.
        spoils = parts == [(self._topics[0], 0)] and not parts[0][0].startswith("small") and self._maybe(0.3)
        for part in parts:
            contents, fields = self._records(part[0]), self._producer(part) if part == parts[-1] else {}
            codec = choose.choice([Codec.NONE] * 6 + ([] if spoils else list(Codec)))
            data = build(contents, codec=codec, **fields)
            if spoils:
                way, data = self._spoilt(data)
            sent.append((*part, data))
            told.append((part, way, len(data), [each.timestamp - NOW_MS for each in contents], fields))
        acks = choose.choice([-1] * 8 + [1, 1, 0])
        version = choose.choice([3, 5, 7, 8, 9, 10, 11, 12, 12, 13, 13])

        def request(side: Side) -> ProduceRequest:
            asked = producing(side, *sent, acks=acks)
            if version >= _IDS_FROM:
                for each, (topic, _, _) in zip(asked.topic_data, sent, strict=True):
                    each.name, each.topic_id = "", self._ids[side][topic]
            return asked

        what = f"produce, acks {acks}, {told}"
        if acks == 0:
            title = self._note(f"v{version} {what}")
            for side in self._sides:
                side.send_unanswered(title, request(side), version)
        else:
            timed = all(topic.startswith("stamped") and topic not in self._cut for topic, _ in parts)
            answer = self._ask(what, request, version, but="" if timed else "log_append_time_ms")
            if fields and not any(error_codes(answer)):
                who, epoch = fields["producer_id"], fields["producer_epoch"]
                self._due[part, who] = epoch, max(advance_sequence(fields["base_sequence"], len(contents)), 0)
        self._look()

    def _fetch(self) -> None:
        choose = self._choose
        version = choose.choice([4, 5, 6, 7, 9, 10, 11, 12, 12, 13, 14, 15, 16, 17, 18])
        parts = self._parts(choose.choice([1, 2]))
        packed = any(topic.startswith("packed") for topic, _ in parts)  # to other sizes than in Kafka
        some = [1 << 20] + ([] if packed else [0, 1, 70, 200, 500])
        asked = [
            (*part, self._offset(part[0]), choose.choice(some), self._epoch(), self._epoch())
            for part in parts
        ]
        of_all = choose.choice(some) if len(parts) == 1 else 1 << 30
        fields = {"max_bytes": of_all, "min_bytes": choose.choice([0, 1, 1000, -1])}
        fields["max_wait_ms"] = choose.choice([0, -1])

        def request(side: Side) -> FetchRequest:
            whole = FetchRequest(topics=[], **fields)
            for topic, index, offset, bytes_max, epoch, fetched in asked:
                of = {"partition": index, "bytes_max": bytes_max, "epoch": self._epoch_of(side, topic, epoch)}
                of["fetched_epoch"] = self._epoch_of(side, topic, fetched if version >= 12 else None)
                topic_id = self._ids[side][topic] if version >= _IDS_FROM else None
                whole.topics += fetching(side, topic, offset, topic_id=topic_id, **of).topics
            return whole

        self._ask(f"fetch {asked} {fields}", request, version)

    def _fetch_in_session(self) -> None:
        choose = self._choose
        known = [*self._topics, "none"]
        added = choose.sample(known, choose.choice([0, 0, 1, 2, 3]))
        parts = [(topic, 0, self._offset(topic)) for topic in added]
        forgotten = tuple((topic, 0) for topic in choose.sample(known, choose.choice([0, 0, 0, 1])))
        version = choose.randrange(*((7, 13) if self._sessions[0].ids is None else (13, 19)))
        fields = {}
        if self._maybe(0.15):
            fields["session_epoch"] = choose.choice([0, 0, -1, 1, 2, 7, 2**31 - 1, -2])
        if fields.get("session_epoch", self._sessions[0].epoch) in (0, -1):
            forgotten = ()
        title = self._note(f"v{version} fetch in session {parts}, forgotten {forgotten}, {fields}")
        for each in self._sessions:
            each.ask(title, *parts, forgotten=forgotten, version=version, **fields)
        self._compare()

    def _list(self) -> None:
        choose = self._choose
        asked = []
        for topic, index in self._parts(choose.choice([1, 2])):
            times = [-1, -1, -2, -2, -4, -5, -6, -7, -(2**63)]
            if topic not in self._cut and not topic.startswith(("rolled", "stamped", "strict")):
                times += [-3] * 3
            if topic not in self._cut or not topic.startswith("rolled"):
                times += [0, 1, *_FAR_MS, *(NOW_MS + choose.randint(-120, 40) for _ in range(12))]
            asked.append((topic, index, choose.choice(times), self._epoch()))
        version, level = choose.randint(2, 11), choose.choice([0, 0, 1])

        def request(side: Side) -> ListOffsetsRequest:
            whole = ListOffsetsRequest(replica_id=-1, topics=[], isolation_level=level)
            for topic, index, time, epoch in asked:
                current = self._epoch_of(side, topic, epoch)
                whole.topics += listing(side, topic, (index, time), epoch=current).topics
            return whole

        but = "timestamp" if any(topic.startswith("stamped") for topic, *_ in asked) else ""
        self._ask(f"list {asked}, level {level}", request, version, but=but)

    def _delete(self) -> None:
        (part,) = self._parts()
        offset = self._offset(part[0])
        self._cut.add(part[0])
        what = f"delete {part} to {offset}"
        self._ask(what, lambda side: cutting(side, *part, offset), self._choose.choice([0, 1, 2]))
        self._look()

    def _ask_for_epochs(self) -> None:
        ((topic, index),) = self._parts()
        ahead = self._epoch(), self._epoch()

        def request(side: Side) -> Message:
            epoch, current = (self._epoch_of(side, topic, each) for each in ahead)
            return ending(side, topic, epoch, partition=index, current=current)

        self._ask(f"end of epochs {topic} {index} {ahead}", request, self._choose.choice([2, 3, 4]))

    def _recreate(self) -> None:
        topic = self._choose.choice(self._topics)
        self._note(f"{topic} is created again")
        for side in self._sides:
            side.delete(topic)
            self._ids[side]["was"] = self._ids[side][topic]
        self._ends.pop(topic, None)
        self._create(topic.partition("-")[0])
        self._due = {key: due for key, due in self._due.items() if key[0][0] != topic}
        self._cut.discard(topic)
        for session in self._sessions:
            session.id = session.epoch = 0


def _stored(side: Side, topic: str) -> tuple[int, object]:
    """The end of the log, and every batch in it, without what is the broker's own."""
    (part,) = side.quietly(listing(side, topic, (0, -2)), 6).topics[0].partitions
    offset, found = part.offset, []
    while True:
        (part,) = side.quietly(fetching(side, topic, offset), 12).responses[0].partitions
        data = bytes(part.records or b"")
        if not data:
            return part.high_watermark, (part.error_code, part.last_stable_offset, found)
        for position, header in batches(data):
            offset = header.next_offset
            whole, inside = header._replace(length=0, crc=0, leader_epoch=0), records(data, position, header)
            if header.is_log_append_time:
                whole = whole._replace(base_timestamp=0, max_timestamp=0)
                inside = (each._replace(timestamp=0) for each in inside)
            found.append((tuple(whole), list(inside)))


def test_random_requests_to_logs(kafka_of_configs: KafkaOfConfigs, lives: Lives) -> None:
    running = kafka_of_configs(KAFKA_CONFIGS)
    with Broker(auto_create_topics_enable=False, lease_term_ms=600_000) as broker:
        for each in lives(_SEED, _SEQUENCES):
            with (
                closing(Side(running.port, host=running.host, shared=True)) as kafka,
                closing(Side(broker.port, shared=False)) as muster,
            ):
                life = Life(each, kafka, muster)
                for _ in range(_REQUESTS):
                    life.play()
