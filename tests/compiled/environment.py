"""Separate environments with the compiled wheel that `make wheel` left in dist/."""

from __future__ import annotations

import os
import shutil
import subprocess
import venv
from functools import cache
from pathlib import Path
from typing import Final

from tests.support.cache import digest

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "build" / "compiled"


def wheel() -> Path:
    """The newest wheel. RuntimeError if there is none."""
    found = sorted((ROOT / "dist").glob("*-cp*.whl"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise RuntimeError("there is no compiled wheel in dist/: run make wheel first")
    return found[-1]


def installed(wheel: Path, home: Path, extra: str = "") -> Path:
    """A Python with the wheel and the requirements of its `extra`, in a new environment at `home`; an
    environment that already has this very wheel is kept."""
    python = home / ("Scripts" if os.name == "nt" else "bin") / "python"
    named = digest(wheel.read_bytes(), extra)
    stamp = home / ".installed"
    if stamp.exists() and stamp.read_text() == named:
        return python
    shutil.rmtree(home, ignore_errors=True)
    venv.create(home, with_pip=True)
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, f"{wheel}[{extra}]" if extra else str(wheel)], check=True)
    stamp.write_text(named)
    return python


@cache
def server_python() -> Path:
    """A Python with the compiled wheel and its PostgreSQL requirements, for servers beside this process."""
    return installed(wheel(), FOLDER / "server", "postgres")
