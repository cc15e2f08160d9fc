"""What all pictures share: two themes, colours that the colour-blind can tell apart, axes of times and
durations, and literal texts (matplotlib would read a $ in a group's name as a formula).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from muster.pipeline.report.words import duration, shortened, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_INCHES: Final = 9.2
_DPI: Final = 130
_NAME_CHARACTERS: Final = 30

# Okabe and Ito's palette, without black, and with a yellow that is visible on white as well.
PALETTE: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#C9BC00")
OTHER: Final = "#999999"
_HATCHES: Final = ("", "////", "....", "xxxx")
_LIKED: Final = {
    "new-member": "#56B4E9",
    "clean-shutdown": "#0072B2",
    "crashed": "#D55E00",
    "stalled": "#E69F00",
    "poll-deadline-missed": "#CC79A7",
    "rejoined-after-eviction": "#009E73",
}
"""Fixed, so that these look alike in every report."""

STEPS_MS: Final = tuple(
    step * unit
    for unit, steps in (
        (1_000, (1, 2, 5, 10, 15, 30)),
        (60_000, (1, 2, 5, 10, 15, 30)),
        (3_600_000, (1, 2, 3, 6, 12)),
        (86_400_000, (1, 2, 7, 14, 28, 91, 364, 3640)),
    )
    for step in steps
)


class Theme(NamedTuple):
    """The colours of the page that a picture is shown on."""

    name: str
    page: str
    text: str
    faint: str
    line: str
    gap: str
    """For times without an owner."""


LIGHT: Final = Theme("light", "#ffffff", "#1c1e21", "#62666d", "#dfe1e5", "#fbd5cd")
DARK: Final = Theme("dark", "#16181c", "#e7e9ec", "#a3a8b0", "#33373e", "#5c2a22")


class Picture(NamedTuple):
    """A drawn picture, as PNG in both themes."""

    name: str
    alt: str
    """What it shows, for those who cannot see it."""
    light: bytes
    dark: bytes


def picture(name: str, alt: str, draw: Callable[[Theme], Figure]) -> Picture:
    """Draw it in the light and the dark theme."""
    return Picture(name, alt, *(_png(draw, theme) for theme in (LIGHT, DARK)))


def _png(draw: Callable[[Theme], Figure], theme: Theme) -> bytes:
    with _styled(theme):
        made = draw(theme)
        out = io.BytesIO()
        # Without the date and matplotlib's version: the same tables give the same files.
        made.savefig(out, format="png", dpi=_DPI, metadata={"Software": None})
        return out.getvalue()


@contextmanager
def _styled(theme: Theme) -> Iterator[None]:
    import matplotlib

    style = {
        "figure.facecolor": theme.page,
        "axes.facecolor": theme.page,
        "savefig.facecolor": theme.page,
        "text.color": theme.text,
        "axes.labelcolor": theme.text,
        "axes.titlecolor": theme.text,
        "axes.edgecolor": theme.faint,
        "xtick.color": theme.faint,
        "ytick.color": theme.faint,
        "xtick.labelcolor": theme.text,
        "ytick.labelcolor": theme.text,
        "grid.color": theme.line,
        "hatch.color": theme.page,
        "hatch.linewidth": 0.8,
        "axes.grid": False,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 11,
        "axes.titlelocation": "left",
        "axes.titleweight": "bold",
        "axes.titlepad": 10,
        "axes.labelsize": 9.5,
        "xtick.labelsize": 9,
        "ytick.labelsize": 9,
        "legend.fontsize": 9,
        "legend.frameon": False,
        "font.family": ["DejaVu Sans"],
        "font.size": 9.5,
        "text.parse_math": False,
        "text.usetex": False,
        "axes.unicode_minus": True,
    }
    with matplotlib.rc_context(style):
        yield


def canvas(height_inches: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    """A figure and its axes, without a window or global state."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
    return made, made.subplots(rows, columns, **options)


def colours(diagnoses: Sequence[str]) -> dict[str, str]:
    """Colours by diagnosis, in the order given. Some diagnoses have fixed colours; of the others, the first
    get a colour of their own, the rest share one."""
    found = {each: _LIKED[each] for each in diagnoses if each in _LIKED}
    free = [each for each in PALETTE if each not in found.values()]
    for each in diagnoses:
        if each not in found and free:
            found[each] = free.pop(0)
    return {each: found.get(each, OTHER) for each in diagnoses}


def fills(count: int) -> list[tuple[str, str]]:
    """`count` pairs of colour and hatch, which repeat only when all are used."""
    pairs = [(colour, hatch) for hatch in _HATCHES for colour in PALETTE]
    return [pairs[number % len(pairs)] for number in range(count)]


def named(name: object, most: int = _NAME_CHARACTERS) -> str:
    """A name for a picture: shortened, and only with characters that the font has."""
    return "".join(each if ord(each) in _in_font() else "�" for each in shortened(shown(str(name)), most))


@cache
def _in_font() -> frozenset[int]:
    from matplotlib import font_manager

    font = font_manager.get_font(font_manager.findfont("DejaVu Sans"))
    return frozenset(font.get_charmap())


def step_ms(span_ms: float, most: int) -> int:
    """The smallest round step of time that divides the span into at most `most` parts."""
    return next((each for each in STEPS_MS if span_ms / each <= most), STEPS_MS[-1])


def when(ms: float) -> datetime:
    """The datetime for a time axis."""
    return datetime.fromtimestamp(ms / 1_000, UTC)


def time_axis(axes: Axes, from_ms: float, until_ms: float, label: str = "time (UTC)") -> None:
    """Ticks at round times, with the date at the end of the axis and where it changes."""
    from matplotlib import dates

    if until_ms <= from_ms:
        until_ms = from_ms + 1_000
    axes.set_xlim(when(from_ms), when(until_ms))
    locator = dates.AutoDateLocator(tz=UTC, minticks=3, maxticks=8)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(
        dates.ConciseDateFormatter(
            locator,
            tz=UTC,
            formats=["%Y", "%Y-%m", "%m-%d", "%H:%M", "%H:%M", "%H:%M:%S"],
            zero_formats=["", "%Y", "%Y-%m", "%m-%d", "%H:%M", "%H:%M"],
            offset_formats=["", "", "%Y", "%Y-%m-%d", "%Y-%m-%d", "%Y-%m-%d"],
        )
    )
    axes.set_xlabel(label)


def duration_axis(axis: Any) -> None:
    """Ticks that name their units; values are milliseconds."""
    from matplotlib import ticker

    class Ticks(ticker.Locator):
        def __call__(self) -> list[float]:
            return self.tick_values(*axis.get_view_interval())

        def tick_values(self, vmin: float, vmax: float) -> list[float]:
            each_ms = next(
                (e for e in (1, 2, 5, 10, 20, 50, 100, 200, 500, *STEPS_MS) if (vmax - vmin) / e <= 8),
                STEPS_MS[-1] * 10,
            )
            first = int(-(-vmin // each_ms))
            return [float(n * each_ms) for n in range(first, int(vmax // each_ms) + 1)]

    axis.set_major_locator(Ticks())
    axis.set_minor_locator(ticker.NullLocator())
    axis.set_major_formatter(ticker.FuncFormatter(lambda ms, _: duration(ms) if ms else "0"))


def count_axis(axis: Any) -> None:
    """Ticks at whole numbers, with commas."""
    from matplotlib import ticker

    axis.set_major_locator(ticker.MaxNLocator(nbins=6, integer=True))
    axis.set_major_formatter(ticker.FuncFormatter(lambda number, _: f"{number:,.0f}"))


def rows_axis(axes: Axes, names: Iterable[str]) -> None:
    """One row for each name, the first on top."""
    labels = list(names)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def causes_legend(where: Any, colour: dict[str, str], there: Iterable[str], **more: Any) -> None:
    """The causes that occur, by colour; those without their own as "other causes"."""
    from matplotlib.patches import Patch

    present = set(there)
    handles = [
        Patch(color=value, label=name) for name, value in colour.items() if name in present and value != OTHER
    ]
    if any(colour.get(each) == OTHER for each in present):
        handles.append(Patch(color=OTHER, label="other causes"))
    where.legend(
        handles=handles,
        **{"loc": "outside lower center", "ncols": 4, "handlelength": 1, "handleheight": 1, **more},
    )
