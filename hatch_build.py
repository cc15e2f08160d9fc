"""Compiled wheels: with MUSTER_COMPILED=1, mypyc compiles the modules that pyproject.toml lists.

Without it nothing here runs, and the wheel is pure. Both have the same sources: a compiled module stands
beside its `.py` file, whose lines tracebacks quote. Codecs alone are written first, in modules of their own
(`muster.protocol.building`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SWITCH = "MUSTER_COMPILED"
GENERATED = Path("muster", "protocol", "generated")
NEEDS = ["mypy[mypyc]>=2.4,<3"]


class CompiledBuild(BuildHookInterface[Any]):
    """hatchling's hook for wheels."""

    _folder: TemporaryDirectory[str] | None = None

    def dependencies(self) -> list[str]:
        """What the environment of the build needs."""
        return NEEDS if _is_wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and add what came of it to the wheel."""
        if not _is_wanted():
            return
        if version == "editable":
            raise SystemExit(f"{SWITCH}=1 is for wheels; an editable install runs the sources: leave it out")
        self._folder = TemporaryDirectory(prefix="muster-compiled-")
        folder = Path(self._folder.name)
        shutil.copytree(
            Path(self.root, "muster"), folder / "muster", ignore=shutil.ignore_patterns("__pycache__")
        )
        libraries = json.dumps(self.config["compiled"])
        done = subprocess.run([sys.executable, __file__, libraries], cwd=folder, check=False)
        if done.returncode:
            raise SystemExit(
                "compiling failed. It takes a C compiler and Python's headers (Debian: gcc and python3-dev); "
                f"without {SWITCH}=1 the wheel is pure, and takes neither"
            )
        generated = folder / GENERATED
        for path in (*folder.iterdir(), *(folder / "muster").rglob("*")):  # setuptools keeps copies elsewhere
            if path.suffix in (".so", ".pyd") or (path.suffix == ".py" and path.parent == generated):
                build_data["force_include"][str(path)] = str(path.relative_to(folder))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled."""
        if self._folder is not None:
            self._folder.cleanup()


def _is_wanted() -> bool:
    return os.environ.get(SWITCH, "") not in ("", "0")


def _generate() -> None:
    """The codecs of the sources below the current folder."""
    sys.path.insert(0, os.getcwd())
    from muster.protocol import building

    building.write(GENERATED)


def _compile(libraries: dict[str, list[str]]) -> None:
    """The modules below the current folder that the libraries' glob patterns name, each beside its source."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    found = [
        ([each for pattern in named for each in _found(pattern)], name) for name, named in libraries.items()
    ]
    modules = [each for of_library, _ in found for each in of_library]
    # Modules that are not compiled are only looked at for their types.
    options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
    # gcc takes twice as long for -O2, and what comes of it is no faster.
    made = mypycify([*options, *modules], opt_level="1", debug_level="0", separate=found, target_dir="c")
    if os.name != "nt":
        # Python adds -Wall. Looking for what to warn about takes gcc twice as long as compiling.
        for each in made:
            each.extra_compile_args.append("-Wno-all")
    command = build_ext(Distribution({"name": "muster", "ext_modules": made}))
    command.inplace = True
    command.parallel = True
    command.build_temp = "objects"
    command.ensure_finalized()
    command.run()


def _found(pattern: str) -> list[str]:
    found = sorted(str(each) for each in Path().glob(pattern) if each.name != "__init__.py")
    if not found:
        raise SystemExit(f"pyproject.toml, compiled: {pattern!r} names no module")
    return found


if __name__ == "__main__":
    _generate()
    _compile(json.loads(sys.argv[1]))
