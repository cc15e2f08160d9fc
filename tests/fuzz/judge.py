"""Every input must give a message or a DecodeError, and soon. Anything else is a Wrong.

Runs the decoders as the broker, a client and the store do. For every TWIN_EVERY-th input, the compiled
codec's result is compared with that of the plain constructs, and an accepted message with itself after
encoding and decoding it again.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress
from math import isnan
from typing import Any, Final

from muster.coordinator.config import Settings
from muster.coordinator.group.classic.member import LISTED_MAX
from muster.coordinator.server.apis import check_request_size
from muster.coordinator.topics.config import TopicConfig
from muster.coordinator.topics.validation import validate
from muster.protocol import api, codec, embedded, reference
from muster.protocol.api import ApiKey
from muster.protocol.errors import DecodeError, KafkaError
from muster.protocol.frame import FrameSplitter
from muster.protocol.header import decode_request_header, decode_response_header
from muster.protocol.message import Message, Struct
from muster.protocol.messages import coordinator_records as stored
from muster.protocol.messages.classic_group import JoinGroupRequest, SyncGroupRequest
from muster.protocol.messages.data import ProduceRequest
from muster.protocol.record_batch import batches, check_records, crc_matches, payload, records
from tests.fuzz.inputs import Input

TWIN_EVERY: Final = 100
EXPLAINED_EVERY: Final = 10
"""One refused input in so many is read again by the plain constructs to name the field at fault, which takes
ten times as long as refusing it."""

CPU_SECONDS_MAX: Final = 10.0
"""CPU time of the process, so that a busy machine makes no difference. The slowest inputs need a tenth."""

ELEMENTS_MAX: Final = Settings().request_elements_max
_UNPACKED_BYTES_MAX: Final = 1 << 18
_TWIN_BYTES_MAX: Final = 1 << 14
_NOW_MS: Final = 1_700_000_000_000
_EXPLAINED_BYTES: Final = codec.EXPLAINED_BYTES_MAX

_KEYS: Final = {0: stored.OffsetCommitKey, 1: stored.OffsetCommitKey, 2: stored.GroupMetadataKey}
_VALUES: Final = (stored.OffsetCommitValue, stored.GroupMetadataValue)
_SOME_KEY: Final = {
    stored.OffsetCommitValue: stored.encode_key(stored.OffsetCommitKey(group="g", topic="t", partition=0)),
    stored.GroupMetadataValue: stored.encode_key(stored.GroupMetadataKey(group="g")),
}
_BLOBS: Final[dict[type[Message], Any]] = {
    embedded.ConsumerProtocolSubscription: embedded.decode_subscription,
    embedded.ConsumerProtocolAssignment: embedded.decode_assignment,
}


class Wrong(AssertionError):
    """An input gave something other than a message or a DecodeError. The text says what."""


def judge(given: Input, number: int) -> bool:
    """Decode the input and return whether it was accepted. Raises Wrong."""
    codec.EXPLAINED_BYTES_MAX = _EXPLAINED_BYTES if number % EXPLAINED_EVERY == 0 else 0  # type: ignore[misc]
    began = time.process_time()
    try:
        accepted = _accepted(given, number)
        if number % TWIN_EVERY == 0:
            _hold_against_the_twin(given)
    except Wrong:
        raise
    except Exception as error:
        raise Wrong(f"{type(error).__name__}: {error}") from error
    finally:
        codec.EXPLAINED_BYTES_MAX = _EXPLAINED_BYTES  # type: ignore[misc]
    took = time.process_time() - began
    if took > CPU_SECONDS_MAX:
        raise Wrong(f"took {took:.1f} s of the processor")
    return accepted


def _accepted(given: Input, number: int) -> bool:
    try:
        match given.kind:
            case "stream":
                _receive(given.data, number)
            case "response":
                _respond(given)
            case "record":
                _recover(given, number)
            case "batch" | "bomb":
                return _unpack(given, number)
            case _:
                _receive(len(given.data).to_bytes(4, "big") + given.data, number)
    except DecodeError:
        return False
    return True


def _receive(stream: bytes, number: int) -> None:
    """What a broker does with the bytes of a connection, up to the request handlers."""
    splitter = FrameSplitter(admit=check_request_size)
    pieces = [stream]
    if number % 8 == 0:
        rng = random.Random(number)
        cuts = sorted(rng.randrange(len(stream) + 1) for _ in range(rng.randint(1, 5)))
        pieces = [stream[at:end] for at, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    for piece in pieces:
        for frame in splitter.feed(piece):
            _request(frame, number)
    if splitter.pending_bytes > len(stream):
        raise Wrong(f"{splitter.pending_bytes} bytes pending of {len(stream)}")


def _request(frame: bytes, number: int) -> None:
    (api_key, version, _, _), offset = decode_request_header(frame)
    if version not in api.versions(api_key):
        if api_key == ApiKey.API_VERSIONS:
            codec.encode(*api.answer_api_versions(version, [ApiKey.API_VERSIONS]))
        raise DecodeError("a version not served")
    message, _ = codec.decode_prefix(api.request_class(api_key), version, frame, offset, ELEMENTS_MAX)
    if number % 16 == 0:
        repr(message)
    if isinstance(message, JoinGroupRequest):
        for protocol in message.protocols:
            _quietly(embedded.subscribed_topics, protocol.metadata)
    elif isinstance(message, SyncGroupRequest):
        for member in message.assignments:
            _quietly(embedded.decode_assignment, member.assignment)
    elif isinstance(message, ProduceRequest):
        for topic in message.topic_data:
            for partition in topic.partition_data:
                _produced(partition.records or b"", number)


def _quietly(decode: Any, blob: bytes) -> None:
    """As the group does: members may send any blob."""
    with suppress(DecodeError):
        decode(blob, LISTED_MAX)


def _respond(given: Input) -> None:
    """What a client does with the response to its request."""
    assert given.cls is not None
    api_key = given.cls.__schema__.api_key
    assert api_key is not None
    _, offset = decode_response_header(api_key, given.version, given.data)
    if api_key == ApiKey.API_VERSIONS:
        answer = api.decode_api_versions(given.version, memoryview(given.data)[offset:])
        with suppress(KafkaError):
            api.retry_version(answer)
    codec.decode(given.cls, given.version, given.data, offset)


def _recover(given: Input, number: int) -> None:
    """What the store does with a record, and a member with a blob."""
    if given.cls in _BLOBS:
        _BLOBS[given.cls](given.data)
    elif given.cls in _VALUES:
        stored.decode_record(_SOME_KEY[given.cls], given.data)
    else:
        stored.decode_record(given.data, None if number % 2 else b"\x00\x00")


def _unpack(given: Input, number: int) -> bool:
    """What a broker does with produced batches, and what a reader of the log does with them."""
    produced = _produced(given.data, number)
    for position, header in batches(given.data):
        crc_matches(given.data, position, header)
        unpacked = payload(given.data, position, header, bytes_max=_UNPACKED_BYTES_MAX)
        whole = _walked(unpacked, header)
        read = _read(given.data, position, header)
        # Whatever is accepted into a log must be readable by whoever fetches it.
        if whole and read is None:
            raise Wrong("check_records accepts what records refuses")
        if whole and read != list(range(header.base_offset, header.next_offset)):
            raise Wrong("check_records accepts offsets that records reads as others")
    return produced


def _walked(unpacked: bytes, header: Any) -> bool:
    try:
        check_records(unpacked, header)
    except DecodeError:
        return False
    return True


def _read(data: bytes, position: int, header: Any) -> list[int] | None:
    try:
        return [each.offset for each in records(data, position, header, bytes_max=_UNPACKED_BYTES_MAX)]
    except DecodeError:
        return None


_TOPICS: Final = tuple(
    TopicConfig(compression_type=name)
    for name in ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
)
_REPACKED_EVERY: Final = 16
"""One batch in so many is for a topic with another compression type, which mostly tests the codecs."""


def _produced(data: bytes, number: int) -> bool:
    """Return whether the batch may enter a log."""
    topic = _TOPICS[number // _REPACKED_EVERY % len(_TOPICS)] if number % _REPACKED_EVERY == 0 else _TOPICS[0]
    try:
        validate(data, topic, _NOW_MS, zstd_allowed=number % 5 != 0)
    except KafkaError:
        return False
    return True


# --- twins ---


def _hold_against_the_twin(given: Input) -> None:
    """Both codecs must give the same message or refuse alike, and an accepted message must survive encoding
    and decoding."""
    if given.cls is None or len(given.data) > _TWIN_BYTES_MAX:
        return
    cls, version, data = given.cls, given.version, given.data
    offset = _body_at(given)
    if offset is None:
        return
    for elements_max in (ELEMENTS_MAX, 3):
        compiled = _outcome(codec, cls, version, data, offset, elements_max)
        if not same(compiled, _outcome(reference, cls, version, data, offset, elements_max)):
            raise Wrong(f"codec and reference disagree with elements_max={elements_max}: {compiled!r}")
    message = _outcome(codec, cls, version, data, offset, ELEMENTS_MAX)[0]
    if isinstance(message, Message):
        again = codec.decode(cls, version, codec.encode(message, version))
        if not same(again, message):
            raise Wrong(f"{message!r} reads as {again!r} when written again")


def same(one: Any, other: Any) -> bool:
    """Whether two outcomes are equal, counting NaN as equal to NaN, unlike `==`."""
    if one == other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, Struct):
        return same(type(one).__values__(one), type(other).__values__(other))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return isinstance(one, float) and isnan(one) and isnan(other)


def _body_at(given: Input) -> int | None:
    if given.kind == "record":
        return 2 if len(given.data) >= 2 else None
    try:
        if given.kind == "response":
            assert given.cls is not None
            assert given.cls.__schema__.api_key is not None
            return decode_response_header(given.cls.__schema__.api_key, given.version, given.data)[1]
        (api_key, version, _, _), offset = decode_request_header(given.data)
    except DecodeError:
        return None
    assert given.cls is not None
    return offset if (api_key, version) == (given.cls.__schema__.api_key, given.version) else None


def _outcome(
    twin: Any, cls: type[Message], version: int, data: bytes, offset: int, elements_max: int
) -> tuple[Any, Any, Any]:
    """The message, its repr (which distinguishes True from 1) and where it ends; or DecodeError if it was
    refused."""
    try:
        message, end = twin.decode_prefix(cls, version, data, offset, elements_max)
    except DecodeError:  # bytes may be both invalid and too many, and each twin may find either first
        return DecodeError, None, None
    return message, repr(message), end
