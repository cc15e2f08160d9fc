"""A chart for each figure, as PNG: curves over the sizes, or bars where there is one size."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tests.bench.peers import table
from tests.bench.peers.measure import Measure, Quantity
from tests.bench.peers.results import Results, Value
from tests.bench.peers.servers import KINDS

# Distinct without colour too: each kind has its own mark.
_LOOKS: Final = {
    "muster": ("#0072b2", "o"),
    "muster-pure": ("#0072b2", "."),
    "muster-3": ("#56b4e9", "s"),
    "muster-postgres": ("#009e73", "D"),
    "kafka": ("#d55e00", "v"),
    "kafka-flush": ("#e69f00", "^"),
    "kafka-3": ("#d55e00", "v"),
    "mock": ("#999999", "x"),
    "kfake": ("#cc79a7", "P"),
    "echo": ("#999999", "."),
    "sink": ("#999999", "."),
}
_DOTS_AN_INCH: Final = 110


def draw(measure: Measure, results: Results, folder: Path) -> list[Path]:
    """The files that were written."""
    values = results.values(measure.name)
    written = []
    for quantity in measure.quantities:
        found = {key: value for key, value in values.items() if key[0] == quantity.key}
        if found and (quantity.chart or len(table.sizes(quantity, results, measure)) == 1):
            path = folder / f"{measure.name}-{quantity.key}.png"
            _draw(quantity, found, path)
            written.append(path)
    return written


def _draw(quantity: Quantity, found: dict[tuple[str, int | None, str], Value], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.5, 4.2), dpi=_DOTS_AN_INCH)
    kinds = [name for name in KINDS if any(kind == name for _, _, kind in found)]
    if len({at for _, at, _ in found}) > 1:
        _curves(axes, quantity, found, kinds)
    else:
        _bars(axes, quantity, found, kinds)
    better = "higher is better" if quantity.better == "more" else "lower is better"
    axes.set_title(f"{quantity.title} ({better})", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without a date inside: the same figures make the same file.
    figure.savefig(path, bbox_inches="tight", metadata={"Software": None})
    pyplot.close(figure)


def _curves(
    axes: Any, quantity: Quantity, found: dict[tuple[str, int | None, str], Value], kinds: list[str]
) -> None:
    sizes: set[int] = set()
    for kind in kinds:
        points = sorted((at or 0, value) for (_, at, name), value in found.items() if name == kind)
        colour, mark = _LOOKS[kind]
        middles = [value.median for _, value in points]
        spread = [
            [value.median - value.least for _, value in points],
            [value.most - value.median for _, value in points],
        ]
        at = [size for size, _ in points]
        sizes.update(at)
        axes.errorbar(
            at, middles, yerr=spread, color=colour, marker=mark, capsize=2, lw=1.5, label=KINDS[kind].title
        )
    # Sizes may begin at none.
    axes.set_xscale(
        "symlog", linthresh=min(size for size in sizes if size)
    ) if 0 in sizes else axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(sorted(sizes), [f"{size:,}" for size in sorted(sizes)])
    axes.minorticks_off()
    axes.set_xlabel(quantity.axis)
    axes.set_ylabel(quantity.unit)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1))


def _bars(
    axes: Any, quantity: Quantity, found: dict[tuple[str, int | None, str], Value], kinds: list[str]
) -> None:
    values = {kind: value for (_, _, kind), value in found.items()}
    medians = [values[kind].median for kind in kinds]
    bars = axes.barh(
        [KINDS[kind].title for kind in kinds], medians, color=[_LOOKS[kind][0] for kind in kinds]
    )
    axes.bar_label(bars, [table.cell(values[kind]) for kind in kinds], padding=3, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, max(medians) * 1.35)
    axes.set_xlabel(quantity.unit)
