"""Allows for stock clients as they are: kafka-python uses what Python 3.11 has deprecated, and leaves sockets
to the garbage collector when it reconnects."""

from __future__ import annotations

import warnings
from typing import Final

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka  # noqa: F401


_LONGEST: Final = (
    "test_story.py",
    "test_exactly_once.py",
    "test_protocols.py",
    "test_failover.py",
    "test_words.py",
    "test_frameworks.py",
    "test_transactions.py",
)
"""They mostly wait, so they start first: otherwise idle processes would wait for one that started last. Those
in `behaviour` stand last, next to the others that share its brokers."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kafka-stories",
        action="store_true",
        help="tell Apache Kafka the whole story of each client; otherwise it is asked the admin calls alone",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


def pytest_configure(config: pytest.Config) -> None:
    for expected in ("read_text is deprecated:DeprecationWarning", "unclosed:ResourceWarning"):
        config.addinivalue_line("filterwarnings", f"ignore:{expected}")
    # Some are garbage-collected only when the session ends, where the lines above no longer apply.
    warnings.filterwarnings("ignore", "unclosed", ResourceWarning)
