"""Tables as the page shows them: each figure with its unit and, for programs, its exact value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from muster.pipeline.report import words

if TYPE_CHECKING:
    import pandas as pd

_NAME_MAX: Final = 120
_TITLE_MAX: Final = 1_000


class Kind(NamedTuple):
    """How a column's values are written."""

    html: Callable[[Any], str]
    is_number: bool = True


def name(text: object) -> str:
    """A name that a user chose, as HTML: escaped, and no wider than a page."""
    full = words.shown(str(text))
    short = words.shortened(full, _NAME_MAX)
    title = "" if short == full else f' title="{escape(full[:_TITLE_MAX])}"'
    return f"<bdi{title}>{escape(short)}</bdi>"


def figure(value: Any, say: Callable[[Any], str]) -> str:
    """A number: the text that people read, and the exact value."""
    if not words.known(value):
        return '<span class="none">–</span>'
    plain = float(value)
    exact = int(plain) if plain.is_integer() else plain
    return f'<data value="{exact}">{escape(say(value))}</data>'


def moment(ms: Any) -> str:
    """A time."""
    if not words.known(ms):
        return '<span class="none">–</span>'
    at = datetime.fromtimestamp(int(ms) / 1_000, UTC).isoformat(timespec="milliseconds")
    return f'<time datetime="{at.replace("+00:00", "Z")}">{escape(words.moment(ms))}</time>'


def _text(value: Any) -> str:
    return escape(str(value)) if words.known(value) else '<span class="none">–</span>'


NAME: Final = Kind(lambda value: name(value) if words.known(value) else _text(value), is_number=False)
TEXT: Final = Kind(_text, is_number=False)
COUNT: Final = Kind(lambda value: figure(value, words.count))
MS: Final = Kind(lambda value: figure(value, words.duration))
SHARE: Final = Kind(lambda value: figure(value, words.share))
RATE: Final = Kind(lambda value: figure(value, words.rate))
MOMENT: Final = Kind(moment, is_number=False)


class Shown(NamedTuple):
    """A table on the page; `id` is that of its element."""

    id: str
    caption: str
    columns: Sequence[tuple[str, str, Kind]]
    """The heading, meaning and format of each column."""
    rows: Sequence[Sequence[Any]]
    of: int
    """The total number of rows."""

    def html(self) -> str:
        """The table, with a sentence about rows left out. A rate that no row has is not shown."""
        told = [
            number
            for number, (_, _, kind) in enumerate(self.columns)
            if kind is not RATE or any(words.known(row[number]) for row in self.rows)
        ]
        heads = "".join(
            f'<th scope="col"{_class(kind)} title="{escape(about)}">{escape(heading)}</th>'
            for heading, about, kind in (self.columns[each] for each in told)
        )
        rows = "".join(f"<tr>{self._cells(row, told)}</tr>" for row in self.rows)
        more = self.of - len(self.rows)
        rest = f'<p class="more">{words.counted(more, "row")} more: --top shows more.</p>' if more > 0 else ""
        return (
            f'<div class="wide" tabindex="0" role="region" aria-label="{escape(self.caption)}">'
            f'<table id="{escape(self.id)}"><caption>{escape(self.caption)}</caption>'
            f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>{rest}"
        )

    def _cells(self, row: Sequence[Any], told: Sequence[int]) -> str:
        cells = []
        for number in told:
            value, kind = row[number], self.columns[number][2]
            tag = 'th scope="row"' if number == 0 else "td"
            cells.append(f"<{tag}{_class(kind)}>{kind.html(value)}</{tag.split()[0]}>")
        return "".join(cells)


def rows(frame: pd.DataFrame, names: str) -> list[tuple[Any, ...]]:
    """Columns of a frame, as the rows of a table."""
    return list(zip(*(frame[each] for each in names.split()), strict=True))


def _class(kind: Kind) -> str:
    return ' class="number"' if kind.is_number else ""
