"""Our client in groups with librdkafka, Kafka's Java client and kafka-python: whoever leads, ownership is
exclusive and everything is delivered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Final

import pytest

from tests.interop.mixed.group import Outcome, Plan, live, plans
from tests.interop.story.clients.java import JAVA
from tests.interop.story.targets import KAFKA, running

pytestmark = pytest.mark.interop

TARGETS: Final = ("serve", KAFKA)
_SIDE_BY_SIDE: Final = 3
# Every wait in a group's life has its own, shorter limit; a group also waits for those before it.
_SECONDS_MAX: Final = 600


@pytest.fixture(scope="module")
def lives(request: pytest.FixtureRequest) -> Iterator[Mapping[Plan, Future[Outcome]]]:
    """Groups live side by side, while the tests wait for each in turn."""
    chosen = [
        item.callspec.params["plan"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == test_mixed_group.__name__
    ]
    JAVA.prepare()
    with ExitStack() as brokers, ThreadPoolExecutor(_SIDE_BY_SIDE, "mixed") as pool:
        started = {
            name: brokers.enter_context(running(name))
            for name in TARGETS
            if any(plan.target == name for plan in chosen)
        }
        futures = {plan: pool.submit(live, plan, started[plan.target]) for plan in chosen}
        try:
            yield futures
        finally:
            pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("plan", plans(TARGETS), ids=lambda plan: plan.name)
def test_mixed_group(lives: Mapping[Plan, Future[Outcome]], plan: Plan) -> None:
    outcome = lives[plan].result(_SECONDS_MAX)
    if outcome.problems:
        pytest.fail("\n".join([*outcome.problems, "", outcome.details]), pytrace=False)
