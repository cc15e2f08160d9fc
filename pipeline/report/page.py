"""The page: one HTML file that loads nothing from elsewhere."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

from muster.pipeline.report import words
from muster.pipeline.report.facts import Facts
from muster.pipeline.report.html_tables import Shown, figure, moment, name
from muster.pipeline.report.telling import Figured, Section

# Users choose names: whatever these contain, nothing on the page runs, and nothing is fetched.
_POLICY: Final = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'"

_STYLE: Final = Path(__file__).with_name("page.css").read_text(encoding="utf-8")


def page(facts: Facts, told: Sequence[Section], lake: str) -> str:
    """The whole document."""
    body = _head(facts, lake)
    if not told:
        body += f"<p><strong>{_nothing(facts)}</strong></p>"
    else:
        body += _tiles(facts)
        answers = "".join(
            f'<li>{each.answers[0]} <a href="#{each.id}">More</a></li>' for each in told if each.answers
        )
        body += f'<h2 id="short">In short</h2><ul class="short">{answers}</ul>'
        body += _contents(facts, told)
        body += "".join(_section(each) for each in told)
        body += _words(facts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>Rebalances of consumer groups</title><style>{_STYLE}</style></head>"
        f"<body>{body}</body></html>\n"
    )


def _head(facts: Facts, lake: str) -> str:
    said = "<h1>Rebalances of consumer groups</h1>"
    if facts.journal is None:
        return said + f'<p class="faint">From the tables in {name(lake)}.</p>'
    asked = facts.asked
    whom = ""
    if asked.groups:
        shown = ", ".join(name(each) for each in asked.groups[:5])
        more = f" and {words.count(len(asked.groups) - 5)} more" if len(asked.groups) > 5 else ""
        whom = f" Only of {shown}{more}."
    part = (
        ""
        if facts.is_whole
        else f" The journal has {moment(facts.journal.from_ms)} to {moment(facts.journal.until_ms)}."
    )
    return said + (
        f'<p class="faint">{moment(facts.span.from_ms)} to {moment(facts.span.until_ms)} '
        f"({words.duration(facts.span.ms)}), from the tables in {name(lake)}.{part}{whom} "
        "All times are UTC.</p>"
        "<p>A consumer group <em>rebalances</em> when its members or its topics change: partitions are "
        "handed "
        "out anew, and meanwhile some of them stand still. This report says which groups did, why, and what "
        "it cost. Headings of tables say more when pointed at.</p>"
    )


def _nothing(facts: Facts) -> str:
    if facts.journal is None:
        return "The journal is empty: it tells of no group, so there is nothing to report."
    return "There was no rebalance, no failover and no sample of lag in that time."


def _tiles(facts: Facts) -> str:
    given = facts.rebalances
    took = given.duration_ms.dropna().astype("float64")
    tiles = [
        ("rebalances", figure(len(given), words.count)),
        ("groups that rebalanced", figure(len(facts.groups), words.count)),
        ("a rebalance took, median", figure(took.quantile(0.5) if len(took) else None, words.duration)),
        ("95 % took at most", figure(took.quantile(0.95) if len(took) else None, words.duration)),
        ("partition-time without owner", figure(facts.groups.unowned_partition_ms.sum(), words.duration)),
        ("rebalances still open", figure(len(facts.open), words.count)),
    ]
    return (
        '<ul class="tiles">'
        + "".join(f"<li>{value}<span>{label}</span></li>" for label, value in tiles)
        + "</ul>"
    )


def _contents(facts: Facts, told: Sequence[Section]) -> str:
    links = [(each.id, each.question) for each in told]
    if facts.rebalances.diagnosis.notna().any():
        links.append(("words", "What the words mean"))
    listed = "".join(f'<li><a href="#{id}">{escape(question)}</a></li>' for id, question in links)
    return f'<nav aria-labelledby="contents"><h2 id="contents">Contents</h2><ol>{listed}</ol></nav>'


def _section(section: Section) -> str:
    shown = "".join(each.html() if isinstance(each, Shown) else _figure(each) for each in section.shown)
    answers = "".join(f"<p>{each}</p>" for each in section.answers)
    return f'<section><h2 id="{section.id}">{escape(section.question)}</h2>{answers}{shown}</section>'


def _figure(figured: Figured) -> str:
    picture, how = figured
    light, dark = (b64encode(each).decode() for each in (picture.light, picture.dark))
    return (
        f'<figure><figcaption>{how}</figcaption><div class="wide" tabindex="0" role="region" '
        f'aria-label="{escape(picture.alt)}"><picture>'
        f'<source media="screen and (prefers-color-scheme: dark)" srcset="data:image/png;base64,{dark}">'
        f'<img alt="{escape(picture.alt)}" src="data:image/png;base64,{light}"></picture></div></figure>'
    )


def _words(facts: Facts) -> str:
    there = sorted({str(each) for each in facts.rebalances.diagnosis.dropna().unique()})
    if not there:
        return ""
    said = "".join(
        f"<dt>{escape(each)}</dt><dd>{escape(words.event(each))}: {escape(words.meaning(each))}</dd>"
        for each in there
    )
    return (
        '<section><h2 id="words">What the words mean</h2><p>What was behind a rebalance is inferred from '
        "what "
        "the coordinator recorded; how surely is said beside the single one.</p>"
        f"<dl>{said}<dt>partition-time</dt><dd>for how long partitions had no owner, summed over them</dd>"
        "<dt>lag</dt><dd>records that a group has yet to process</dd>"
        "<dt>bounced</dt><dd>a partition was taken from a member that was still there</dd></dl></section>"
    )
