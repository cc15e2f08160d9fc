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


LATER: Final = Later.LATER
"""In place of an answer that is still to come."""
