"""What a benchmark finds, one line of `make bench`'s table each, and the file that keeps them."""

from __future__ import annotations

import os
import platform
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class Page:
    """A file of figures, the command that writes it, and the lines at its top that say how to read it."""

    path: Path
    command: str
    words: Sequence[str]
    of_all: bool = True
    """Whether it is written for all benchmarks of a folder together, or for one."""


FIGURES: Final = Page(
    Path(__file__).with_name("FIGURES.md"),
    "make bench",
    (
        "Every figure stands beside a peer or floor that was measured first in the same run; the ratio is",
        "what counts, since machines differ. CPU is that of the server process, user and system.",
    ),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement of muster, against a peer or floor measured first in the same run.

    `target` is what is wanted, in words, and `reached` whether it is; both are left out by what is shown for
    comparison alone. `note` says where the rest goes when a target is missed, or how to read the line.
    """

    name: str
    unit: str
    muster: float
    peer: float | None = None
    peer_name: str = ""
    target: str = ""
    reached: bool | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        return self.muster / self.peer if self.peer else None


def table(figures: Sequence[Figure]) -> str:
    """A compact table for the terminal."""
    rows = [("", "muster", "peer or floor", "ratio", "target", "")]
    rows += [_cells(figure) for figure in figures]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        name, *numbers, target, reached = row
        middle = "  ".join(cell.rjust(width) for cell, width in zip(numbers, widths[1:4], strict=True))
        lines.append(f"{name:{widths[0]}}  {middle}  {target:{widths[4]}}  {reached}".rstrip())
    return "\n".join(lines)


def markdown(figures: Sequence[Figure]) -> str:
    """The same for FIGURES.md, with the notes."""
    lines = ["| figure | muster | peer or floor | ratio | target | |", "|---|---:|---:|---:|---|---|"]
    lines += [f"| {' | '.join(_cells(figure))} |" for figure in figures]
    notes = [f"- {figure.name}: {figure.note}" for figure in figures if figure.note]
    return "\n".join([*lines, "", *notes] if notes else lines)


def _cells(figure: Figure) -> tuple[str, str, str, str, str, str]:
    ratio = figure.ratio
    reached = "" if figure.reached is None else "reached" if figure.reached else "MISSED"
    peer = "" if figure.peer is None else f"{_number(figure.peer)} ({figure.peer_name})"
    return (
        figure.name,
        f"{_number(figure.muster)} {figure.unit}",
        peer,
        "" if ratio is None else f"{ratio:.2f}",
        figure.target,
        reached,
    )


def _number(value: float) -> str:
    if value >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def machine() -> str:
    """What the figures were measured on, in a line."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return (
        f"{cores} cores ({platform.machine()}), {platform.system()}, "
        f"{platform.python_implementation()} {platform.python_version()}, sqlite {sqlite3.sqlite_version}, "
        f"load {load:.1f} at the start"
    )


def write(sections: Sequence[tuple[str, Sequence[Figure]]], facts: str, page: Page) -> None:
    """Replace a page. Each section is a benchmark's title and what it found."""
    day = time.strftime("%Y-%m-%d", time.gmtime())
    parts = ["# Figures", "", f"Written by `{page.command} WRITE=1` on {day}: {facts}.", *page.words]
    for title, figures in sections:
        parts += ["", f"## {title}", "", markdown(figures)]
    page.path.write_text("\n".join(parts) + "\n")
