"""Every client transforms a topic exactly once, while its workers are killed (`play.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from tests.interop.story.story import Outcome
from tests.interop.story.targets import Target
from tests.interop.transactions.clients import TRANSFORMERS, by_name
from tests.interop.transactions.play import Plan, play

pytestmark = pytest.mark.interop

RECORDS: Final = 2_000
KILLS: Final = 3


@pytest.mark.parametrize("client", [each.name for each in TRANSFORMERS])
def test_exactly_once(target: Target, client: str, seed: int, judge: Callable[[Outcome], None]) -> None:
    transformer = by_name(client)
    transformer.prepare()
    judge(play(transformer, target, Plan.of(seed, RECORDS, KILLS)))
