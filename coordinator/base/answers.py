"""How whoever is asked answers: at once, or later by a callback."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

Answered = Callable[[object], None]
"""Given the answer to one request, once: a response, or a KafkaError. Must be quick, must not raise, and must
not make another request."""


class Later(Enum):
    """The type of LATER."""

    LATER = "later"
    IN_LINE = "in line"


LATER: Final = Later.LATER
"""In place of an answer that is still to come."""
IN_LINE: Final = Later.IN_LINE
"""As LATER, of a request that stands where requests like it are done in the order they came: the next one of
its client need not wait for the answer."""
