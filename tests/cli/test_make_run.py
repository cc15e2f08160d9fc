"""What `make run` starts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.running import DEADLINE_S

ROOT = Path(__file__).parents[2]


def dry_run(tmp_path: Path, *arguments: str) -> str:
    return subprocess.run(
        ["make", "--dry-run", "-C", str(ROOT), f"VENV={tmp_path}/venv", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    ).stdout


def serve_options(told: str) -> str:
    (line,) = [each for each in told.splitlines() if "/muster serve " in each]
    return line.split(" serve ")[1].rstrip()


def test_the_environment_does_not_say_where_to_listen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOST", "PORT", "DATA"):
        monkeypatch.setenv(name, "another")
    assert serve_options(dry_run(tmp_path, "run")) == "--host 127.0.0.1 --port 9092 --data ./data"


def test_the_environment_does_not_say_what_to_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAME", "the-machine")
    assert "the-machine" not in dry_run(tmp_path, "bench")


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
    told = dry_run(tmp_path, "run", *variables)
    assert f"touch {tmp_path}/venv/.installed-{extra}\n" in told
    assert serve_options(told) == f"--host 127.0.0.1 --port 9092 {options}"
