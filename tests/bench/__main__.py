"""`python -m tests.bench [NAME ...]`: the benchmarks `bench_<name>.py` of this folder, by default all."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import tests.bench

PREFIX = "bench_"


def main(chosen: list[str]) -> int:
    known = [
        module.name.removeprefix(PREFIX)
        for module in pkgutil.iter_modules(tests.bench.__path__)
        if module.name.startswith(PREFIX)
    ]
    if unknown := sorted(set(chosen) - set(known)):
        print(f"no benchmark named {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    for name in chosen or known:
        print(f"== {name}", flush=True)
        importlib.import_module(f"tests.bench.{PREFIX}{name}").main()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
