"""The parts of the examples and the README that use other clients."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from muster.coordinator.testing import Broker
from tests.examples.test_tests import LONG_S, OF_OTHER_CLIENTS, run

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.parametrize("example", sorted(OF_OTHER_CLIENTS))
def test_the_example_passes(example: str, tmp_path: Path) -> None:
    run(example, tmp_path)


def test_the_first_program_of_the_readme(tmp_path: Path) -> None:
    page = README.read_text().split("\n## Thirty seconds to a first group\n")[1]
    program = page.split("<<'PY'\n")[1].split("PY\n```")[0]
    with Broker() as broker:
        (tmp_path / "first.py").write_text(program.replace("127.0.0.1:9092", broker.bootstrap))
        ended = subprocess.run(
            [sys.executable, tmp_path / "first.py"],
            capture_output=True,
            text=True,
            timeout=LONG_S,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr
    assert sorted(line.split(maxsplit=3)[3] for line in ended.stdout.splitlines()) == [
        f"order {number}" for number in range(6)
    ]
