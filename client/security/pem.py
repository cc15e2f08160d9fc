"""PEM text from settings: tidied up for OpenSSL, and kept off the disk where the system allows it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_LINE: Final = 64


def tidied(text: str) -> str:
    """The PEM blocks in a text. Like Kafka, it accepts them on one line too, as in a properties file. Raises
    a ValueError that does not show the text."""
    found = _BLOCK.findall(text)
    if not found:
        raise ValueError("no PEM in it; it takes text that begins with -----BEGIN")
    return "".join(_block(label, body) for label, body in found)


def _block(label: str, body: str) -> str:
    if ":" in body:  # headers of an encrypted key in the old format, which need their own lines
        return f"-----BEGIN {label}-----\n{body.strip()}\n-----END {label}-----\n"
    packed = "".join(body.split())
    lines = "\n".join(packed[at : at + _LINE] for at in range(0, len(packed), _LINE))
    return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n"


@contextmanager
def path_of(secret: str) -> Iterator[str]:
    """A path to read a secret from, for an API that accepts nothing else: in memory on Linux, elsewhere a
    temporary file that only the user can read. It is gone when the block ends."""
    data = secret.encode()
    in_memory = _in_memory(data)
    if in_memory is not None:
        try:
            yield f"/proc/self/fd/{in_memory}"
        finally:
            os.close(in_memory)
        return
    import tempfile  # imports all archive formats of the standard library; needed on few systems

    descriptor, path = tempfile.mkstemp(prefix="muster-")  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        yield path
    finally:
        with suppress(FileNotFoundError):
            os.unlink(path)


def _in_memory(data: bytes) -> int | None:
    """A descriptor of anonymous memory; None if that is unavailable or has no path."""
    if sys.platform != "linux" or not os.path.isdir("/proc/self/fd"):
        return None
    try:
        descriptor = os.memfd_create("muster")  # closed on exec
    except OSError:  # forbidden, as in some sandboxes
        return None
    try:
        os.write(descriptor, data)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
