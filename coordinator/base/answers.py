"""How a request is answered: at once, or later through a callback."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

Answered = Callable[[object], None]
"""Called once with the answer to one request: a response, or a KafkaError. Must be quick, must not raise, and
must not make another request."""


class Later(Enum):
    """The type of LATER."""

    LATER = "later"
    IN_LINE = "in line"


LATER: Final = Later.LATER
"""Returned in place of an answer that comes later."""
IN_LINE: Final = Later.IN_LINE
"""Like LATER, for a request in a queue that is served in order of arrival: its client's next request need not
wait for the answer."""
