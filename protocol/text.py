"""How strings that are not UTF-8 are decoded: as in Kafka, with U+FFFD where they are not.

A replacement takes three bytes, perhaps for one. If a string would be longer with them than strings may be,
UnicodeDecodeError is raised: nothing that repeats it could be encoded.
"""

from __future__ import annotations

import codecs
from typing import Final

from muster.protocol.types import STRING_BYTES_MAX

LENIENT: Final = "muster.lenient"
"""For the `errors` of `bytes.decode`. The decoders' source names it too."""


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """The rest of the string at once: called once for a string, not for each of its bytes."""
    assert isinstance(error, UnicodeDecodeError)
    rest = error.object[error.start :].decode("utf-8", "replace")
    if error.start + len(rest.encode()) > STRING_BYTES_MAX:
        error.reason = "too long with replacements for what is not UTF-8"
        raise error
    return rest, len(error.object)


codecs.register_error(LENIENT, _replaced)
