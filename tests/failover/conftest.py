"""Where the brokers of these tests keep their state. With --postgres, all of them use PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.failover.brokers import ThreeBrokers

if TYPE_CHECKING:
    from tests.support.postgres import Postgres

Start = Callable[..., ThreeBrokers]
STORES: Final = ("memory", "sqlite")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    in_turn = metafunc.definition.get_closest_marker("stores_in_turn")
    if "kept_in" in metafunc.fixturenames and not in_turn and not metafunc.config.getoption("--postgres"):
        metafunc.parametrize("kept_in", STORES, indirect=True)


@pytest.fixture
def kept_in(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """The settings that select the store. With the marker `stores_in_turn`, neighbouring cases use different
    stores."""
    if request.config.getoption("--postgres"):
        server: Postgres = request.getfixturevalue("postgres_server")
        return {"ephemeral": False, "store": server.new_database()}
    if hasattr(request, "param"):
        name = request.param
    else:
        name = STORES[sum(request.node.callspec.indices.values()) % len(STORES)]
    return {"data": tmp_path / "data"} if name == "sqlite" else {}


@pytest.fixture
def start(kept_in: dict[str, Any]) -> Iterator[Start]:
    """Starts three brokers with the given settings; they end with the test."""
    clusters: list[ThreeBrokers] = []

    def start(**settings: Any) -> ThreeBrokers:
        clusters.append(ThreeBrokers(**{**kept_in, **settings}).start())
        return clusters[-1]

    yield start
    for cluster in clusters:
        cluster.close()
