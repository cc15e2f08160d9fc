"""The commands in docs/cli.md print what the page shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from muster.coordinator.testing import Broker

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
DEADLINE_S = 120


def examples() -> list[tuple[str, str]]:
    """(command, output) pairs of the first console block."""
    block = PAGE.read_text().split("```console\n")[1].split("```")[0]
    shown: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            shown.append((line[2:], []))
        else:
            shown[-1][1].append(line)
    return [(command, "".join(f"{line}\n" for line in lines)) for command, lines in shown]


def test_the_examples_are_true(tmp_path: Path) -> None:
    command = tmp_path / "muster"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m muster "$@"\n')
    command.chmod(0o755)
    shown = examples()
    assert len(shown) > 5
    with Broker() as broker:
        environment = os.environ | {
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            "MUSTER_BOOTSTRAP_SERVERS": broker.bootstrap,
        }
        for line, printed in shown:
            ended = subprocess.run(
                ["bash", "-c", line],
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                env=environment,
                check=False,
            )
            assert (ended.returncode, ended.stdout) == (0, printed), f"{line}\n{ended.stdout}{ended.stderr}"
