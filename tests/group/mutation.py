"""`python -m tests.group.mutation`: mutation testing of coordinator/group with the tests of this folder.

mutmut rewrites the tree it works in and does not follow the symbolic links of `muster/`, so it gets a copy.
Ten minutes on two cores; `MUTATION.md` says who survived last time, and why.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]

SETTINGS = """
[project]
name = "mutation"
version = "0"

[tool.pytest.ini_options]
addopts = "--import-mode=importlib -p no:cacheprovider -p no:asyncio -x -q"

[tool.mutmut]
source_paths = ["muster/coordinator/group"]
also_copy = ["muster", "tests"]
pytest_add_cli_args_test_selection = ["tests/group"]
"""


def lay_out(copy: Path) -> None:
    """What the mutants need: the sources as plain folders, and their tests without the shared conftest."""
    for folder in ("coordinator", "protocol"):
        shutil.copytree(ROOT / folder, copy / "muster" / folder)
    for name in ("__init__.py", "durations.py", "settings.py", "py.typed"):
        shutil.copy(ROOT / "muster" / name, copy / "muster" / name)
    for folder in ("group", "support"):
        shutil.copytree(ROOT / "tests" / folder, copy / "tests" / folder)
    shutil.copy(ROOT / "tests" / "__init__.py", copy / "tests" / "__init__.py")
    (copy / "pyproject.toml").write_text(SETTINGS)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        copy = Path(folder)
        lay_out(copy)
        mutmut = [sys.executable, "-m", "mutmut"]
        environment = os.environ | {"PYTHONPATH": "."}
        ran = subprocess.run(
            [*mutmut, "run", "--max-children", str(os.cpu_count() or 1)], cwd=copy, env=environment
        )
        subprocess.run([*mutmut, "results"], cwd=copy, env=environment)
        return ran.returncode


if __name__ == "__main__":
    raise SystemExit(main())
