"""`python -m tests.bench [--write] [NAME ...]`: the benchmarks `bench_<name>.py` of this folder, by default
all.

A benchmark is a module with `measure() -> list[Figure]`, whose figures come out as one table and, with
`--write`, into FIGURES.md; or with `main()`, which prints what it finds by itself.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Sequence
from types import ModuleType

import tests.bench
from tests.bench import figures

PREFIX = "bench_"


def names_in(folder: ModuleType) -> list[str]:
    """Its benchmarks."""
    modules = [module.name for module in pkgutil.iter_modules(folder.__path__)]
    return [name.removeprefix(PREFIX) for name in modules if name.startswith(PREFIX)]


def main(
    arguments: Sequence[str], folder: ModuleType = tests.bench, page: figures.Page = figures.FIGURES
) -> int:
    """Run the benchmarks of a folder, a package."""
    known = names_in(folder)
    parser = argparse.ArgumentParser(prog=f"python -m {folder.__name__}", description="speed, as ratios")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(known)}; default all")
    parser.add_argument("--write", action="store_true", help=f"put the figures into {page.path.name}")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.names) - set(known)):
        parser.error(f"no benchmark named {', '.join(unknown)}; there are {', '.join(known)}")
    if options.write and options.names and page.of_all:
        parser.error("--write replaces the whole file, so it goes with all benchmarks: leave out the names")
    facts = figures.machine()
    print(facts, flush=True)
    found: list[tuple[str, list[figures.Figure]]] = []
    for name in options.names or known:
        module = importlib.import_module(f"{folder.__name__}.{PREFIX}{name}")
        print(f"== {name}", flush=True)
        if not hasattr(module, "measure"):
            module.main()
            continue
        measured = module.measure()
        print(figures.table(measured), flush=True)
        for each in measured:
            if each.note:
                print(f"   {each.name}: {each.note}", flush=True)
        found.append((name, measured))
    everything = [figure for _, measured in found for figure in measured]
    if len(found) > 1:
        print(f"\n{figures.table(everything)}")
    if options.write:
        figures.write(found, facts, page)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
