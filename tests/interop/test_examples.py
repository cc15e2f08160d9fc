"""The examples that are tests with other clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.test_tests import OF_OTHER_CLIENTS, run


@pytest.mark.parametrize("example", sorted(OF_OTHER_CLIENTS))
def test_the_example_passes(example: str, tmp_path: Path) -> None:
    run(example, tmp_path)
