"""Stock clients and our own in groups of the consumer protocol, and in groups that change their protocol."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Final, NamedTuple

import pytest

from tests.interop.protocols.clients import CLIENTS
from tests.interop.protocols.lives import Outcome, live
from tests.interop.story.clients.python import MUSTER
from tests.interop.story.targets import CLUSTER, Target, running

pytestmark = pytest.mark.interop

SERVE: Final = "serve"
_SIDE_BY_SIDE: Final = 2
# Every wait in a life has its own, shorter limit; a life also waits for those before it.
_SECONDS_MAX: Final = 600


class Plan(NamedTuple):
    client: str
    life: str
    target: str

    @property
    def name(self) -> str:
        return f"{self.client}-{self.life}-{self.target}"


# In this order, mostly one life per client runs at a time, since JVMs are heavy.
PLANS: Final = [
    *(
        Plan(client, life, target)
        for life, target in (("life", CLUSTER), ("life", SERVE), ("rolling", CLUSTER))
        for client in CLIENTS
    ),
    Plan(MUSTER.name, "together", SERVE),
]


@pytest.fixture(scope="module")
def lives(request: pytest.FixtureRequest) -> Iterator[Mapping[Plan, Future[Outcome]]]:
    """Groups live side by side, while the tests wait for each in turn."""
    chosen = [
        item.callspec.params["plan"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == test_group.__name__
    ]
    for name in {plan.client for plan in chosen}:
        CLIENTS[name].prepare()
    with ExitStack() as brokers, ThreadPoolExecutor(_SIDE_BY_SIDE, "lives") as pool:
        shared = (
            brokers.enter_context(running(SERVE)) if any(plan.target == SERVE for plan in chosen) else None
        )
        futures = {plan: pool.submit(_live, plan, shared) for plan in chosen}
        try:
            yield futures
        finally:
            pool.shutdown(cancel_futures=True)


def _live(plan: Plan, shared: Target | None) -> Outcome:
    if plan.target == SERVE:
        assert shared is not None
        return live(plan.life, CLIENTS[plan.client], shared)
    with running(plan.target) as own:  # brokers are killed there
        return live(plan.life, CLIENTS[plan.client], own)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_group(lives: Mapping[Plan, Future[Outcome]], plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = lives[plan].result(_SECONDS_MAX)
    with capsys.disabled():
        print(f"\n{plan.name}: {outcome.figures}", end=" ")
    if outcome.problems:
        pytest.fail("\n".join([*outcome.problems, "", outcome.details]), pytrace=False)
