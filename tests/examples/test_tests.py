"""The examples that are tests themselves, run the way readers run them: in their own pytest process."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
OF_OTHER_CLIENTS = {"test_rebalance_confluent"}
"""Run by tests/interop, which has these clients."""
LONG_S = 300.0
# Not this project's settings, which pytest would find from the examples' folder.
INI = "[pytest]\nfilterwarnings = error\nasyncio_default_fixture_loop_scope = function\n"


def run(example: str, folder: Path) -> None:
    """Copy the example there and run it; it has tests, and all pass."""
    program = folder / f"{example}.py"
    program.write_text((EXAMPLES / f"{example}.py").read_text())
    (folder / "pytest.ini").write_text(INI)
    without = ("-pno:cacheprovider", "-pno:hypothesispytest")  # hypothesispytest takes long to import
    command = [sys.executable, "-m", "pytest", "-q", *without, program.name]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LONG_S, check=False)
    assert re.search(r"^\d+ passed in", ended.stdout, re.MULTILINE), ended.stdout + ended.stderr
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize(
    "example", sorted({each.stem for each in EXAMPLES.glob("test_*.py")} - OF_OTHER_CLIENTS)
)
def test_the_example_passes(example: str, tmp_path: Path) -> None:
    run(example, tmp_path)


def test_no_example_is_forgotten() -> None:
    assert {each.stem for each in EXAMPLES.glob("test_*.py")} == {
        "test_rebalance",
        "test_transactions",
    } | OF_OTHER_CLIENTS
