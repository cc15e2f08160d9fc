"""Kafka Streams counts words exactly once, while its instances are killed (`words.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from tests.interop.story.story import Outcome
from tests.interop.story.targets import Target
from tests.interop.transactions.words import Plan, count_words

pytestmark = pytest.mark.interop

LINES: Final = 1_500
KILLS: Final = 2


def test_words_are_counted_exactly_once(target: Target, seed: int, judge: Callable[[Outcome], None]) -> None:
    judge(count_words(target, Plan.of(seed, LINES, KILLS)))
