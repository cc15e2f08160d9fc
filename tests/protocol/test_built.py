"""The built-in codecs of a compiled wheel: which ones there are, and that they do the same as those made on
first use.

The compiled build tests the machine code; other builds run the same source as Python.
"""

from __future__ import annotations

import random
import struct as structs
import sys
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

import pytest

from muster.build import build
from muster.client.assignors.sticky import StickyAssignorUserData
from muster.coordinator.server.apis import APIS
from muster.protocol import api, building, built, codec
from muster.protocol.building import OLDER, WRITTEN_AS_FAST, Codec
from muster.protocol.built import DECODE, ENCODE
from muster.protocol.decoder_source import decoder_source
from muster.protocol.encoder_source import encoder_source
from muster.protocol.errors import DecodeError, EncodeError, TooLargeError
from muster.protocol.message import RECORDS, Message, Struct
from muster.protocol.messages.classic_group import HeartbeatRequest
from muster.protocol.messages.connection import ApiVersionsResponse
from muster.protocol.messages.offsets import OffsetCommitRequest
from tests.protocol.sampling import sample, sampler
from tests.support.each import each

CODECS = list(building.codecs())
COMPILED = build() == "compiled"
OFFSETS = "muster.protocol.generated.offsets"
STRANGER = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
WRONG = (None, -1, 2**70, "text", b"bytes", [None], object(), STRANGER, 0.5)
"""Values that most fields do not accept."""
REFUSALS = (DecodeError, structs.error, IndexError, UnicodeDecodeError)
"""What a `compiler.Decoder` may raise."""

of_each_codec = each(
    "kind, cls, version", CODECS, ids=lambda value: value.__name__ if isinstance(value, type) else value
)


@cache
def generated(declaring: str) -> dict[str, Any]:
    """The functions of a built module, run as Python."""
    of_family = [listed for listed in CODECS if listed.cls.__module__ == declaring]
    module: dict[str, Any] = {}
    exec(compile(building.module_text(declaring, of_family), declaring, "exec"), module)
    return module


def function(kind: str, cls: type[Message], version: int) -> Any:
    if COMPILED:
        return built.find(kind, cls, version)
    return generated(cls.__module__)[built.function_name(kind, cls, version)]


def made_on_first_use(kind: str, cls: type[Message], version: int) -> Any:
    if kind == DECODE:
        return decoder_source(cls, version).function("decode", "decode")
    return encoder_source(cls, version).function("encode", "encode")


def test_no_codec_is_listed_twice_and_each_is_of_a_version_that_there_is() -> None:
    assert len(CODECS) == len(set(CODECS))
    assert all(version in cls.__schema__.versions for _, cls, version in CODECS)


def test_what_others_declare_is_not_listed() -> None:
    assert RECORDS[StickyAssignorUserData.__name__] is StickyAssignorUserData
    assert not [each for each in building.codecs() if each.cls is StickyAssignorUserData]


@pytest.mark.parametrize("key", sorted(APIS))
def test_the_newest_version_of_each_api_and_the_older_ones_are_listed(key: api.ApiKey) -> None:
    newest = api.versions(key).last
    assert newest not in OLDER.get(key, ())
    for version in (newest, *OLDER.get(key, ())):
        assert Codec(DECODE, api.request_class(key), version) in CODECS
        written = Codec(ENCODE, api.response_class(key), version)
        assert (written in CODECS) == (key not in WRITTEN_AS_FAST)
    assert not APIS[key].pieces or key in WRITTEN_AS_FAST  # no encoder of pieces is built


@of_each_codec
def test_a_compiled_build_has_each_of_them_and_another_none(
    kind: str, cls: type[Message], version: int
) -> None:
    found = built.find(kind, cls, version)
    assert (found is not None) == COMPILED
    assert type(found).__name__ == ("builtin_function_or_method" if COMPILED else "NoneType")


@of_each_codec
def test_it_is_the_same_codec(kind: str, cls: type[Message], version: int) -> None:
    ours, twin = function(kind, cls, version), made_on_first_use(kind, cls, version)
    rng = sampler("built", kind, cls.__name__, version)
    for _ in range(30):
        message = sample(cls, version, rng)
        if kind == DECODE:
            data = codec.encode(message, version)
            end, elements = len(data), rng.choice((3, 2**63 - 1))
            assert decoded(ours, data, end, 2**63 - 1) == (repr(message), end)
            for given in (data, *damaged(data, rng)):
                assert decoded(ours, given, len(given), elements) == decoded(
                    twin, given, len(given), elements
                )
        else:
            assert ours(message) == twin(message)
            damage(message, rng)
            assert encoded(ours, message) == encoded(twin, message)


def decoded(decode: Any, data: bytes, end: int, elements: int) -> object:
    """The outcome of decoding the bytes; the repr distinguishes True from 1, and NaN equals NaN in it."""
    try:
        message, position = decode(data, 0, end, elements)
    except REFUSALS as error:
        return type(error), str(error)
    return repr(message), position


def encoded(encode: Any, message: Message) -> object:
    try:
        return encode(message)
    except codec._ENCODE_FAILURES as error:
        return str(error) if isinstance(error, EncodeError) else "refused"


def damaged(data: bytes, rng: random.Random) -> Iterator[bytes]:
    """The bytes cut off somewhere, and with a few bytes changed."""
    yield data[: rng.randrange(len(data) + 1)]
    for _ in range(3):
        other = bytearray(data)
        for _ in range(rng.randrange(1, 3) if other else 0):
            other[rng.randrange(len(other))] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        yield bytes(other)


def damage(message: Any, rng: random.Random) -> None:
    """Give a field, at any depth, a value that it may not accept."""
    chosen = rng.choice(list(inside(message)))
    field = rng.choice(type(chosen).__fields__)
    setattr(chosen, field.name, rng.choice(WRONG))


def inside(message: Any) -> Iterator[Any]:
    if type(message).__fields__:
        yield message
    for field in type(message).__fields__:
        value = getattr(message, field.name)
        for inner in value if isinstance(value, list) else (value,):
            if isinstance(inner, Struct):
                yield from inside(inner)


def test_too_many_elements_are_refused_before_they_are_made() -> None:
    decode = function(DECODE, ApiVersionsResponse, 5)
    version = ApiVersionsResponse.ApiVersion(api_key=1, min_version=0, max_version=1)
    data = codec.encode(ApiVersionsResponse(api_keys=[version] * 5), 5)
    with pytest.raises(TooLargeError):
        decode(data, 0, len(data), 4)


def test_a_codec_that_was_built_from_other_sources_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(OFFSETS)
    module.decode_OffsetCommitRequest_9 = len  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, OFFSETS.rpartition(".")[0], ModuleType("generated"))
    monkeypatch.setitem(sys.modules, OFFSETS, module)
    own = built.fingerprint(OffsetCommitRequest.__module__)
    assert own is not None
    assert own != built.fingerprint(HeartbeatRequest.__module__)
    try:
        for fingerprint, found in ((own, len), ("another", None)):
            module.FINGERPRINT = fingerprint  # type: ignore[attr-defined]
            built._generated.cache_clear()
            assert built.find(DECODE, OffsetCommitRequest, 9) is found
            assert built.find(DECODE, OffsetCommitRequest, 2) is None
    finally:
        built._generated.cache_clear()
