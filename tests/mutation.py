"""`python -m tests.mutation`: mutation testing of a coordinator's core, `group` or `transactions`, with the
tests of its folder; with `--only consumer/heartbeats,migration` of some of its files.

mutmut rewrites the tree it works in and does not follow the symbolic links of `muster/`, so it gets a copy.
The folder's `MUTATION.md` says who survived last time, and why.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
CORES: Final = ("group", "transactions")

SETTINGS = """
[project]
name = "mutation"
version = "0"

[tool.pytest.ini_options]
addopts = "--import-mode=importlib -p no:cacheprovider -p no:asyncio -x -q"

[tool.mutmut]
source_paths = ["{source}"]
only_mutate = {files}
also_copy = ["muster", "tests"]
pytest_add_cli_args_test_selection = ["tests/{core}"]
"""


_KILLED: Final = (1, 3)
"""What pytest exits with; a mutant of an endless loop is stopped by a signal."""
_UNREACHED: Final = 33


def lay_out(copy: Path, core: str, files: Sequence[str]) -> None:
    """What the mutants need: the sources as plain folders, and their tests without the shared conftest."""
    for folder in ("coordinator", "protocol"):
        shutil.copytree(ROOT / folder, copy / "muster" / folder)
    for name in ("__init__.py", "durations.py", "realtime.py", "settings.py", "py.typed"):
        shutil.copy(ROOT / "muster" / name, copy / "muster" / name)
    for folder in (core, "support"):
        shutil.copytree(ROOT / "tests" / folder, copy / "tests" / folder)
    shutil.copy(ROOT / "tests" / "__init__.py", copy / "tests" / "__init__.py")
    source = _source(core)
    wanted = json.dumps([f"{source}/{name}.py" for name in files] or [f"{source}/*"])
    (copy / "pyproject.toml").write_text(SETTINGS.format(source=source, files=wanted, core=core))


def _source(core: str) -> str:
    return f"muster/coordinator/{core}"


def survivors(mutants: Path) -> list[str]:
    """Prints the figures of each file; the names of the mutants that no test killed."""
    left: list[str] = []
    total: Counter[str] = Counter()
    for meta in sorted(mutants.rglob("*.meta")):
        codes: dict[str, int | None] = json.loads(meta.read_text())["exit_code_by_key"]
        count = Counter(map(_outcome, codes.values()))
        total += count
        left += [name for name, code in codes.items() if _outcome(code) == "survived"]
        if codes:
            print(_figures(str(meta.relative_to(mutants))[: -len(".py.meta")], count))
    print(_figures("all", total))
    return left


def _outcome(code: int | None) -> str:
    if code == 0:
        return "survived"
    if code == _UNREACHED:
        return "unreached"
    return "killed" if code in _KILLED else "not run" if code is None else "stopped"


def _figures(name: str, count: Counter[str]) -> str:
    killed, size = count["killed"] + count["stopped"], count.total()
    rest = ", ".join(f"{number} {what}" for what, number in sorted(count.items()) if what != "killed")
    return f"{name}: {killed} of {size} killed, {killed / size:.1%}" + (f" ({rest})" if rest else "")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--core", choices=CORES, default="group")
    parser.add_argument("--only", default="", metavar="FILE,...", help="as consumer/heartbeats")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--show", action="store_true", help="the change that each survivor is")
    arguments = parser.parse_args()
    files = arguments.only.split(",") if arguments.only else []
    for name in files:
        if not (ROOT / "coordinator" / arguments.core / f"{name}.py").exists():
            parser.error(f"there is no coordinator/{arguments.core}/{name}.py")
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        copy = Path(folder)
        lay_out(copy, arguments.core, files)
        mutmut = [sys.executable, "-m", "mutmut"]
        environment = os.environ | {"PYTHONPATH": "."}
        ran = subprocess.run(
            [*mutmut, "run", "--max-children", str(arguments.processes)], cwd=copy, env=environment
        )
        for name in survivors(copy / "mutants" / _source(arguments.core)):
            print(name, flush=True)
            if arguments.show:
                subprocess.run([*mutmut, "show", name], cwd=copy, env=environment)
        return ran.returncode


if __name__ == "__main__":
    raise SystemExit(main())
