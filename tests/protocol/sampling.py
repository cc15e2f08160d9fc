"""Random messages: any value that a version of a message can carry, from a seeded generator."""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Callable
from typing import Any, Final

from muster.protocol.message import Field, StructType, Versions
from muster.protocol.types import ZERO_UUID, Array

SEED: Final = int(os.environ.get("MUSTER_TEST_SEED", random.SystemRandom().randrange(2**32)))
"""A different seed in every run; set MUSTER_TEST_SEED to repeat one."""

_ELEMENTS_MAX = 3
_ALPHABET = "abcXYZ059._- é猫😀"


def sample(cls: Any, version: int, rng: random.Random, *, own: bool = True) -> Any:
    """A message or struct of type `cls` that encodes in `version`. Fields that the version lacks hold their
    defaults, and so do muster's own fields unless `own`."""
    values = {
        field.name: _value(field, version, rng, own) if own or not field.own else field.make_default()
        for field in cls.__fields__
        if version in field.versions
    }
    absent = {
        field.name: field.make_default()
        for field in cls.__fields__
        if version not in field.versions and field.required
    }
    return cls(**values, **absent)


def sampler(*key: object) -> random.Random:
    """A separate generator for a test case, so that cases do not depend on their order."""
    return random.Random(f"{SEED} {' '.join(map(str, key))}")


def versions_of(versions: Versions) -> range:
    return range(versions.first, versions.last + 1)


def _value(field: Field, version: int, rng: random.Random, own: bool) -> Any:
    # Defaults matter most in tag blocks, which leave them out.
    if not field.required and rng.random() < (0.5 if version in field.tagged else 0.1):
        return field.make_default()
    if version in field.nullable and rng.random() < 0.25:
        return None
    if isinstance(field.type, Array):
        length = rng.randrange(_ELEMENTS_MAX + 1)
        return [_single(field.type.element, field.name, version, rng, own) for _ in range(length)]
    return _single(field.type, field.name, version, rng, own)


def _single(wire_type: Any, name: str, version: int, rng: random.Random, own: bool) -> Any:
    if isinstance(wire_type, StructType):
        return sample(wire_type, version, rng, own=own)
    if name == "error_code" or name.endswith("_error_code"):
        return rng.randint(-1, 133)
    if name.endswith("_ms"):
        # Realistic durations and times: other codecs read them into types that hold no more.
        return rng.choice((0, 1, 300_000, 2**31 - 1 if wire_type.name == "Int32" else 2**41 - 1))
    return _PRIMITIVES[wire_type.name](rng)


def _integer(bits: int) -> Callable[[random.Random], int]:
    edges = (0, 1, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)))

    def draw(rng: random.Random) -> int:
        return rng.choice(edges) if rng.random() < 0.3 else rng.randrange(-(2 ** (bits - 1)), 2 ** (bits - 1))

    return draw


def _string(rng: random.Random) -> str:
    # 127 and 128 are where a compact length takes its second byte.
    length = rng.choice((0, 1, 5, 17, 126, 127, 128)) if rng.random() < 0.2 else rng.randrange(9)
    return "".join(rng.choices(_ALPHABET, k=length))


def _bytes(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((0, 1, 126, 127, 300)) if rng.random() < 0.3 else rng.randrange(20))


def _uuid(rng: random.Random) -> uuid.UUID:
    return ZERO_UUID if rng.random() < 0.1 else uuid.UUID(int=rng.getrandbits(128))


_PRIMITIVES: Final[dict[str, Callable[[random.Random], Any]]] = {
    "Boolean": lambda rng: rng.random() < 0.5,
    "Int8": _integer(8),
    "Int16": _integer(16),
    "Int32": _integer(32),
    "Int64": _integer(64),
    "Float64": lambda rng: rng.choice((0.0, -1.0, 1024.5, 1e300)),
    "String": _string,
    "Bytes": _bytes,
    "Records": _bytes,
    "Uuid": _uuid,
}
