"""Every client transforms a topic exactly once, while its workers are killed (`play.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import pytest

from tests.interop.story.story import Outcome
from tests.interop.story.targets import Target
from tests.interop.transactions.clients import TRANSFORMERS, by_name
from tests.interop.transactions.play import Plan, play

pytestmark = pytest.mark.interop

RECORDS: Final = 1_000
"""Some hundred transactions; `make exactly-once` is the long drill."""
KILLS: Final = 3
_SIDE_BY_SIDE: Final = 3
# Every wait in a play has its own, shorter limit; a play also waits for those before it.
_SECONDS_MAX: Final = 900


@pytest.fixture(scope="module")
def plays(
    request: pytest.FixtureRequest, target: Target, new_seed: Callable[[], int]
) -> Iterator[Mapping[str, Future[Outcome]]]:
    """Plays on one target run side by side, since they mostly wait, while the tests wait for each in turn."""
    chosen = {
        item.callspec.params["client"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.originalname == test_exactly_once.__name__
        and item.callspec.params["target"] == target.name
    }
    transformers = [each for each in TRANSFORMERS if each.name in chosen]
    for each in transformers:
        each.prepare()
    with ThreadPoolExecutor(_SIDE_BY_SIDE, "plays") as pool:
        try:
            yield {
                each.name: pool.submit(play, each, target, Plan.of(new_seed(), RECORDS, KILLS))
                for each in transformers
            }
        finally:
            pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("client", [each.name for each in TRANSFORMERS])
def test_exactly_once(
    plays: Mapping[str, Future[Outcome]], client: str, judge: Callable[[Outcome], None]
) -> None:
    judge(plays[by_name(client).name].result(_SECONDS_MAX))
