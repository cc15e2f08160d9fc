"""What all sections of the report are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from muster.pipeline.report import drawing, words
from muster.pipeline.report.drawing import Picture, Theme, picture
from muster.pipeline.report.facts import Facts, costs
from muster.pipeline.report.html_tables import Shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Figured(NamedTuple):
    """A picture on the page, and how to read it, as HTML."""

    picture: Picture
    how: str


@dataclass
class Section:
    """A question, and its answers. Texts are HTML."""

    id: str
    question: str
    answers: list[str]
    """The first one also appears at the head of the report."""
    shown: list[Shown | Figured] = field(default_factory=list)


class Telling:
    """The facts, and the causes with their colours: the same in all pictures."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.top = facts.asked.top
        self.causes = costs(facts.rebalances, ["diagnosis"])
        self._colours = drawing.colours([str(each) for each in self.causes.diagnosis])

    def coloured(
        self, id: str, alt: str, draw: Callable[[Facts, dict[str, str], Theme], Figure], how: str
    ) -> Figured:
        """A picture with colours by cause."""
        return Figured(picture(id, alt, lambda theme: draw(self.facts, self._colours, theme)), how)

    def plain(self, id: str, alt: str, draw: Callable[[Facts, Theme], Figure], how: str) -> Figured:
        """A picture without causes."""
        return Figured(picture(id, alt, lambda theme: draw(self.facts, theme)), how)


def word(diagnosis: object) -> str:
    """A diagnosis, with a link to what it means."""
    return f'<a href="#words">{escape(str(diagnosis))}</a>'


def happened(diagnosis: object) -> str:
    """What was behind a rebalance, as a clause, with that link."""
    return f"{escape(words.event(str(diagnosis)))} ({word(diagnosis)})"
