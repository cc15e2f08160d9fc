"""What `make run` starts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.running import DEADLINE_S

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("variables", "extra", "options"),
    [
        ((), "base", "--data ./data"),
        (("HTTP=8080",), "http", "--data ./data --http 127.0.0.1:8080"),
        (("HTTP=0.0.0.0:81", "DATA=/tmp/d"), "http", "--data /tmp/d --http 0.0.0.0:81"),
    ],
)
def test_http_says_whether_and_where_there_is_a_page(
    tmp_path: Path, variables: tuple[str, ...], extra: str, options: str
) -> None:
    told = subprocess.run(
        ["make", "--dry-run", "-C", str(ROOT), "run", f"VENV={tmp_path}/venv", *variables],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    ).stdout
    assert f"touch {tmp_path}/venv/.installed-{extra}\n" in told
    (line,) = [each for each in told.splitlines() if "/muster serve " in each]
    assert line.split(" serve ")[1].rstrip() == f"--host 127.0.0.1 --port 9092 {options}"
