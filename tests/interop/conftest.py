"""Stock clients as they are: kafka-python uses what Python 3.11 has deprecated, and leaves sockets to the
collector when it connects again."""

from __future__ import annotations

import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka  # noqa: F401


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # They take as long as all others together, and mostly wait: one process tells them meanwhile.
    items.sort(key=lambda item: item.path.name != "test_story.py")


def pytest_configure(config: pytest.Config) -> None:
    for expected in ("read_text is deprecated:DeprecationWarning", "unclosed:ResourceWarning"):
        config.addinivalue_line("filterwarnings", f"ignore:{expected}")
    # Some are collected only when the session ends, where the lines above no longer count.
    warnings.filterwarnings("ignore", "unclosed", ResourceWarning)
