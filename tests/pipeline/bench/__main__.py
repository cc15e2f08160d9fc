"""`python -m tests.pipeline.bench [--write] [NAME ...]`: the benchmarks `bench_<name>.py` of this folder, all
by default, run like those of `tests.bench`. They take long, so each has its own page: FIGURES-<name>.md.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import tests.pipeline.bench
from tests.bench.__main__ import main, names_in
from tests.bench.figures import Page


def run(arguments: Sequence[str]) -> int:
    flags = [each for each in arguments if each.startswith("-")]
    names = [each for each in arguments if each not in flags] or names_in(tests.pipeline.bench)
    return max(main([name, *flags], tests.pipeline.bench, _page(name)) for name in names)


def _page(name: str) -> Page:
    return Page(
        Path(__file__).with_name(f"FIGURES-{name}.md"),
        f"make bench-spark NAME={name}",
        (
            "The ratio is what counts, since machines differ: broker, Spark and its Python workers share the",
            "cores, and so does whatever else runs there.",
        ),
        of_all=False,
    )


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
