"""Input number n of a seed: always the same bytes, without generating the inputs before it."""

from __future__ import annotations

import random
import struct as structs
from typing import Any, Final, NamedTuple

from muster.protocol import api, embedded
from muster.protocol.api import ApiKey
from muster.protocol.message import RECORDS, Message
from muster.protocol.messages.classic_group import JoinGroupRequest
from muster.protocol.messages.connection import ApiVersionsRequest
from muster.protocol.messages.data import ProduceRequest
from muster.protocol.source import uvarint
from muster.protocol.types import Array
from tests.fuzz.batches import Batches
from tests.fuzz.marked import VARINT, Mark, Marked, marked
from tests.fuzz.mutations import damaged, garbage, lying, regrouped, repeated
from tests.protocol.sampling import sample, versions_of

FAMILIAR: Final = "fuzz"
"""The single name that many requests use: a topic and a group that exist on the live broker."""

_SAMPLES: Final = 3
"""Valid messages per message type and version."""

_DEEP_BYTES_MAX: Final = 1 << 18
_REQUEST_HEADER: Final = structs.Struct(">hhih")


class Valid(NamedTuple):
    """A valid message. `data` is the whole of it: a frame without its size, or a stored record's bytes."""

    cls: type[Message]
    version: int
    marked: Marked
    body_at: int


class Input(NamedTuple):
    """The bytes to decode. `kind` is one of KINDS and says how to decode them."""

    kind: str
    cls: type[Message] | None
    version: int
    data: bytes

    def __str__(self) -> str:
        what = f" {self.cls.__name__} v{self.version}" if self.cls is not None else ""
        return f"{self.kind}{what}, {len(self.data)} bytes"


_WEIGHTS: Final = {
    "request": 1600,
    "response": 720,
    "record": 360,
    "batch": 800,
    "body": 240,
    "stream": 277,
    "deep": 2,
    "bomb": 1,
}
KINDS: Final = tuple(_WEIGHTS)
"""request, response: a frame; record: a coordinator record's key or value, or a member's blob; batch: record
batches; body: random bytes after a request header; stream: what a socket receives, sizes included; deep: a
request with as many elements as fit, in it or in a member's subscription; bomb: a batch that decompresses to
far more than allowed."""

LIVE_KINDS: Final = {"request": 500, "body": 60, "deep": 2, "stream": 60}


class Inputs:
    """The inputs of one seed."""

    def __init__(self, seed: int) -> None:
        api.load_messages()
        self.seed = seed
        self._batches = Batches(seed)
        rng = random.Random(f"{seed} corpus")
        self.requests: list[Valid] = []
        self.responses: list[Valid] = []
        self.records: list[Valid] = []
        for key in api.declared_apis():
            for version in versions_of(api.versions(key)):
                for _ in range(_SAMPLES):
                    self.requests.append(self._request(key, version, rng))
                    self.responses.append(_response(key, version, rng))
        assert embedded.ConsumerProtocolSubscription.__name__ in RECORDS
        for cls in RECORDS.values():
            if cls.__module__.startswith("muster."):
                for version in versions_of(cls.__schema__.versions):
                    self.records += [_record(cls, version, rng) for _ in range(10 * _SAMPLES)]

    def make(self, number: int, weights: dict[str, int] = _WEIGHTS) -> Input:
        """Input `number`."""
        rng = random.Random((self.seed << 40) + number)
        (kind,) = rng.choices(list(weights), list(weights.values()))
        match kind:
            case "request":
                return self._mutated(kind, rng.choice(self.requests), rng)
            case "response":
                return self._mutated(kind, rng.choice(self.responses), rng)
            case "record":
                return self._mutated(kind, rng.choice(self.records), rng)
            case "batch":
                return Input(kind, None, 0, self._batches.make(rng))
            case "bomb":
                return Input(kind, None, 0, self._batches.bomb(rng))
            case "body":
                valid = rng.choice(self.requests)
                frame = valid.marked.data[: valid.body_at] + garbage(rng, 300)
                return Input(kind, valid.cls, valid.version, frame)
            case "deep":
                return self._deep(rng)
        return Input(kind, None, 0, self._stream(rng))

    def prepare(self) -> None:
        """Build in advance what would otherwise be built on first use and takes memory of its own."""
        self._batches.bombs()

    # --- kinds ---

    def _mutated(self, kind: str, valid: Valid, rng: random.Random) -> Input:
        match rng.randrange(12):
            case 0:
                data = valid.marked.data
            case 1 | 2 | 3 | 4 | 5:
                data = lying(rng, valid.marked)
            case 6 | 7:
                data = regrouped(rng, valid.marked)
            case 8:
                data = damaged(rng, lying(rng, valid.marked), 2)
            case 9:
                data = valid.marked.data[: rng.randrange(len(valid.marked.data) + 1)]
            case _:
                data = damaged(rng, valid.marked.data)
        return Input(kind, valid.cls, valid.version, data)

    def _deep(self, rng: random.Random) -> Input:
        """As many elements as fit, in an array nested as deep in the message as possible, or in a member's
        subscription."""
        if rng.random() < 0.2:
            return self._deep_join(rng)
        while True:
            valid = rng.choice(self.requests)
            if valid.marked.elements:
                element = rng.choice(valid.marked.elements)
                width = max(element.end - element.begin, 1)
                times = max(_DEEP_BYTES_MAX // width, 2)
                wrong_by = rng.choice((0, 0, 1, -1))
                data = repeated(valid.marked, element, rng.randint(2, times), wrong_by)
                return Input("deep", valid.cls, valid.version, data)

    def _deep_join(self, rng: random.Random) -> Input:
        """A JoinGroup whose member subscribes to as many topics without a name."""
        count = rng.randint(2, _DEEP_BYTES_MAX // 2)
        said = structs.pack(">hi", rng.randrange(4), count) + bytes(2 * count) + bytes(rng.choice((0, 16)))
        version = rng.choice(versions_of(api.versions(ApiKey.JOIN_GROUP)))
        join = JoinGroupRequest(
            group_id=FAMILIAR,
            session_timeout_ms=10_000,
            member_id="",
            protocol_type="consumer",
            protocols=[JoinGroupRequest.Protocol(name="range", metadata=said)],
        )
        return Input("deep", JoinGroupRequest, version, _framed(join, version, rng).marked.data)

    def _stream(self, rng: random.Random) -> bytes:
        """Frames with right and wrong sizes, concatenated or cut off, or plain garbage."""
        if rng.random() < 0.3:
            return garbage(rng, 300)
        stream = b""
        for _ in range(rng.randint(1, 3)):
            frame = rng.choice(self.requests).marked.data
            size = len(frame)
            if rng.random() < 0.3:
                size = rng.choice((0, 1, 2, -1, size - 1, size + 1, 1 << 22, 100 << 20, 2**31 - 1, -(2**31)))
            stream += structs.pack(">i", size) + frame
        return stream[: rng.randrange(len(stream) + 1)] if rng.random() < 0.4 else stream

    # --- the corpus ---

    def _request(self, key: int, version: int, rng: random.Random) -> Valid:
        message = _familiar(sample(api.request_class(key), version, rng), rng)
        if isinstance(message, ProduceRequest):
            for topic in message.topic_data:
                for partition in topic.partition_data:
                    partition.records = self._batches.make(rng)
        return _framed(message, version, rng)


def _framed(message: Message, version: int, rng: random.Random) -> Valid:
    """A request behind its header."""
    key = type(message).__schema__.api_key
    assert key is not None
    client_id = rng.choice((b"fuzz", b"", "é".encode()))
    head = _REQUEST_HEADER.pack(key, version, 7, len(client_id)) + client_id
    marks = [Mark(0, 2, "h", "value", key), Mark(2, 2, "h", "value", version)]
    marks.append(Mark(8, 2, "h", "length", len(client_id)))
    if api.request_header_version(key, version) == 2:
        marks.append(Mark(len(head), 1, VARINT, "tags", 0))
        head += uvarint(0)
    return _behind(head, tuple(marks), message, version)


def _response(key: int, version: int, rng: random.Random) -> Valid:
    message = sample(api.response_class(key), version, rng)
    head = structs.pack(">i", 7)
    marks: tuple[Mark, ...] = ()
    if api.response_header_version(key, version) == 1:
        marks = (Mark(4, 1, VARINT, "tags", 0),)
        head += uvarint(0)
    return _behind(head, marks, message, version)


def _record(cls: type[Message], version: int, rng: random.Random) -> Valid:
    """A key after its record type, a value or blob after its version."""
    first = version if cls.__schema__.api_key is None else cls.__schema__.api_key
    mark = Mark(0, 2, "h", "value", first)
    return _behind(structs.pack(">h", first), (mark,), sample(cls, version, rng), version)


def _behind(head: bytes, marks: tuple[Mark, ...], message: Message, version: int) -> Valid:
    body, at = marked(message, version), len(head)
    moved = Marked(
        head + body.data,
        (*marks, *(mark._replace(at=mark.at + at) for mark in body.marks)),
        tuple(
            each._replace(counter=each.counter + len(marks), begin=each.begin + at, end=each.end + at)
            for each in body.elements
        ),
    )
    return Valid(type(message), version, moved, at)


def _familiar(message: Any, rng: random.Random) -> Any:
    """The message with some of its names set to FAMILIAR and its partitions small, so that it means something
    to a broker."""
    if isinstance(message, ApiVersionsRequest):
        return message
    for field in type(message).__fields__:
        value = getattr(message, field.name)
        if isinstance(value, str) and value and rng.random() < 0.4:
            setattr(message, field.name, FAMILIAR)
        elif field.name in ("index", "partition", "partition_index") and rng.random() < 0.7:
            setattr(message, field.name, rng.randrange(4))
        elif isinstance(value, list) and isinstance(field.type, Array):
            for element in value:
                if hasattr(element, "__fields__"):
                    _familiar(element, rng)
    return message
