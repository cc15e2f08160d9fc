"""The frameworks that promise exactly once, and how each is played."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from tests.interop.story.story import Outcome
from tests.interop.story.targets import Target
from tests.interop.transactions import connect, flink, words
from tests.interop.transactions.clients import SPRING
from tests.interop.transactions.play import Plan, play

Played: TypeAlias = Callable[[Target, int, int, int], Outcome]
"""Takes a target, a seed, and the number of records and kills."""


def _spring(target: Target, seed: int, records: int, kills: int) -> Outcome:
    SPRING.prepare()
    return play(SPRING, target, Plan.of(seed, records, kills))


FRAMEWORKS: Final[Mapping[str, Played]] = {
    "kafka-streams": lambda target, seed, records, kills: words.count_words(
        target, words.Plan.of(seed, records, kills)
    ),
    "kafka-connect": lambda target, seed, records, kills: connect.copy_lines(
        target, connect.Plan.of(seed, records, kills)
    ),
    "flink": lambda target, seed, records, kills: flink.transfer(target, flink.Plan.of(seed, records, kills)),
    SPRING.name: _spring,
}
"""By their names on the command line."""
