"""Every stock client lives through the story, against Apache Kafka and against muster (`story/`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from tests.interop.story.clients import CLIENTS, by_name
from tests.interop.story.run import Stories
from tests.interop.story.targets import KAFKA, TARGETS

pytestmark = pytest.mark.interop

# Every wait in a story has its own, shorter limit; a story also waits for those before it.
_SECONDS_MAX: Final = 900


@pytest.fixture(scope="module")
def whole_on_kafka(request: pytest.FixtureRequest) -> bool:
    """Whether the whole stories are played against Apache Kafka, or only the admin calls."""
    return bool(request.config.getoption("--kafka-stories", default=False))


@pytest.fixture(scope="module")
def stories(request: pytest.FixtureRequest, whole_on_kafka: bool) -> Iterator[Stories]:
    """Plays the selected stories, two clients at a time; the tests wait for each in turn."""
    chosen = [
        item.callspec.params
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == test_story.__name__
    ]
    clients = [client for client in CLIENTS if client.name in {each["client"] for each in chosen}]
    targets = [target for target in TARGETS if target in {each["target"] for each in chosen}]
    with Stories(clients, targets, whole_on_kafka=whole_on_kafka) as stories:
        yield stories


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("client", [client.name for client in CLIENTS])
def test_story(
    stories: Stories, client: str, target: str, whole_on_kafka: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = stories.outcomes[by_name(client).name, target].result(_SECONDS_MAX)
    if target == KAFKA and not whole_on_kafka and outcome.calls is None and not outcome.problems:
        pytest.skip("it has no admin calls; make interop KAFKA=1 tells its story to Apache Kafka")
    with capsys.disabled():
        print(f"\n{outcome.headline()}", end=" ")
    if outcome.problems:
        pytest.fail(outcome.report(), pytrace=False)
