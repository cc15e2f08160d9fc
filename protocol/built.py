"""Finds the codecs built into a compiled wheel (`muster.protocol.building`); other installations have none.

Codecs built from sources other than the installed ones are ignored: the module of each message family has a
fingerprint of its sources.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from importlib.util import source_hash
from types import ModuleType
from typing import Any, Final

from muster.protocol.message import Message

DECODE: Final = "decode"
ENCODE: Final = "encode"

_GENERATED: Final = "muster.protocol.generated"
_GENERATORS: Final = tuple(
    f"muster.protocol.{name}"
    for name in ("types", "message", "layout", "source", "decoder_source", "encoder_source", "elements")
)
"""The modules that determine a codec, besides the one that declares its message."""


def find(kind: str, cls: type[Message], version: int) -> Any:
    """The codec of this `kind`; None if it is not built in."""
    generated = _generated(cls.__module__)
    return None if generated is None else getattr(generated, function_name(kind, cls, version), None)


def function_name(kind: str, cls: type[Message], version: int) -> str:
    return f"{kind}_{cls.__name__}_{version}"


def family(declaring: str) -> str:
    """The name of the module generated for a module of declarations."""
    return declaring.rpartition(".")[2]


def fingerprint(declaring: str) -> str | None:
    """The fingerprint of all sources that determine the codecs of that module's messages; None if they are
    missing."""
    sources = []
    try:
        for name in (*_GENERATORS, declaring):
            with open(str(sys.modules[name].__file__), "rb") as source:  # a client imports no pathlib
                sources.append(source.read())
    except OSError:
        return None
    return source_hash(b"\0".join(sources)).hex()


@cache
def _generated(declaring: str) -> ModuleType | None:
    if not declaring.startswith("muster.protocol.messages."):
        return None
    try:
        generated = importlib.import_module(f"{_GENERATED}.{family(declaring)}")
    except ModuleNotFoundError:
        return None
    return generated if fingerprint(declaring) == generated.FINGERPRINT else None
