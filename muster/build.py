"""Which build of muster this is: the same sources run as Python, or compiled by mypyc."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final, Literal

from muster import __version__

_COMPILED: Final = "muster.protocol.codec"
"""One of the modules that a compiled build compiles; pyproject.toml lists them."""


def build() -> Literal["compiled", "pure"]:
    """What a compiled module is loaded from says it."""
    found = find_spec(_COMPILED)
    return "pure" if found is None or str(found.origin).endswith(".py") else "compiled"


def version() -> str:
    """With the build: `0.1.0 (pure)`."""
    return f"{__version__} ({build()})"
