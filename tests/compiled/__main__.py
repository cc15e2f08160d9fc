"""Install a compiled wheel in an environment of its own, and run the suites of what is compiled on it.

With `--run`, a module of the tests runs on it instead: `python -m tests.compiled dist/*-cp*.whl --run
tests.simulator --seeds 100`.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.compiled.environment import FOLDER, ROOT, installed

SUITES: Final = (
    "protocol",
    "group",
    "transactions",
    "storage",
    "runtime",
    "topics",
    "server",
    "client",
    "fuzz/test_codec_twins.py",
    "cli/test_serve.py",
    "packaging/test_beside_modules.py",
)
INTERPRETED: Final = ("client/admin", "client/faults", "client/security")
"""Parts of these suites that concern no compiled module beyond those the others test."""
NEEDED: Final = ("tests", "docs", "examples")
"""Folders of the checkout that the suites read. Without `muster`, they import the installed one."""
FUZZED: Final = 300_000
WHERE: Final = """
import muster.build, muster.coordinator.runtime.shard_host as hot, muster.coordinator.server.broker as other
assert muster.build.build() == "compiled"
assert not hot.__file__.endswith(".py") and other.__file__.endswith(".py"), (hot.__file__, other.__file__)
"""
"""Asserts that the wheel is tested, and that it is compiled."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compiled", description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("tests", nargs="*", help="in place of all, such as tests/group/test_shard.py")
    parser.add_argument(
        "--run",
        nargs=argparse.REMAINDER,
        metavar=("MODULE", "OPTION"),
        help="a module of the tests in place of all, such as tests.simulator --seeds 100",
    )
    given, options = parser.parse_known_args()
    extra = "test,interop" if given.run else "test"
    python = installed(given.wheel.resolve(), FOLDER / ("peers" if given.run else "venv"), extra)
    checkout = _checkout()
    run = _Run(python, checkout)
    run("-c", WHERE)
    if given.run:
        return run("-m", *given.run, check=False)
    if given.tests:
        return run("-m", "pytest", *given.tests, *options, check=False)
    side_by_side = ["--numprocesses", "6", "--dist", "worksteal"]
    passed_over = [f"--ignore=tests/{name}" for name in INTERPRETED]
    suites = [f"tests/{name}" for name in SUITES]
    run("-m", "pytest", *side_by_side, "-m", "not interpreted", *passed_over, *suites)
    run("-m", "tests.fuzz", "--inputs", str(FUZZED))
    return 0


class _Run:
    def __init__(self, python: Path, checkout: Path) -> None:
        self._python = python
        self._checkout = checkout

    def __call__(self, *arguments: str, check: bool = True) -> int:
        done = subprocess.run([self._python, *arguments], cwd=self._checkout, check=False)
        if check and done.returncode:
            raise SystemExit(done.returncode)
        return done.returncode


def _checkout() -> Path:
    """A copy of the checkout without its sources."""
    to = FOLDER / "checkout"
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    for name in NEEDED:
        shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, to)
    return to


if __name__ == "__main__":
    sys.exit(main())
