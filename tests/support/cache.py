"""Things fetched or built once per machine and kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def filled_once(name: str, fill: Callable[[Path], None]) -> Path:
    """The folder of this name (a relative path) in the cache; if it is missing, `fill` gets an empty one.

    Whatever determines its contents belongs in the name (`digest`): a folder is never filled again.
    """
    folder = _root() / name
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Filled under another name first, so that the folder is complete once it exists, even when two runs race.
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        new = Path(scratch) / "new"
        new.mkdir()
        fill(new)
        try:
            new.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    return folder


def digest(*parts: str | bytes) -> str:
    """A short name for these contents."""
    hashed = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hashed.update(len(data).to_bytes(8, "big") + data)
    return hashed.hexdigest()[:12]


def _root() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "muster-tests"
