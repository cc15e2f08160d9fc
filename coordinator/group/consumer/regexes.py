"""The regular expressions that members subscribe by, in RE2's syntax, and the topics they match.

The time of a look-up grows with the number of topics, so the host does it beside the loop: a `Look` is the
job, and its result comes back as a step of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from muster.coordinator.base.regexes import BadRegex, compiled
from muster.protocol.errors import ErrorCode, KafkaError

REFRESH_MIN_MS: Final = 10_000
"""Minimum time between two look-ups of a group. Not configurable in Kafka either."""


@dataclass(frozen=True, slots=True)
class Look:
    """A look-up to be made."""

    group_id: str
    expressions: frozenset[str]
    topics: Collection[str]
    """The names of all topics."""
    version: int
    """The version of the topics."""
    at_ms: int
    sees: Callable[[str], bool] | None = None
    """Whether the member that caused the look-up may see a topic; None: it may see all."""

    def __call__(self) -> Mapping[str, frozenset[str]]:
        """The topics of each expression: those whose whole name it matches, and that may be seen."""
        found: dict[str, frozenset[str]] = {}
        names = self.topics if self.sees is None else list(filter(self.sees, self.topics))
        for expression in self.expressions:
            matches = compiled(expression).fullmatch
            found[expression] = frozenset(name for name in names if matches(name))
        return found


def require_valid(expression: str) -> None:
    """Raises INVALID_REGULAR_EXPRESSION."""
    try:
        compiled(expression)
    except BadRegex as error:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{expression}` is not a valid regular expression: {error}.",
        ) from None
