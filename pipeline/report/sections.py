"""The questions that the report answers, in order."""

from __future__ import annotations

from muster.pipeline.report import events, overall
from muster.pipeline.report.facts import Facts
from muster.pipeline.report.telling import Section, Telling


def sections(facts: Facts) -> list[Section]:
    """Each with its answers, tables and pictures, which are drawn here; empty if there is nothing to
    report."""
    if not (len(facts.rebalances) or len(facts.failovers) or len(facts.lag)):
        return []
    telling = Telling(facts)
    return [
        overall.groups(telling),
        overall.stood_still(telling),
        overall.costs(telling),
        *([] if facts.worst is None else [events.worst(telling)]),
        events.flapping(telling),
        events.deploys(telling),
        events.failovers(telling),
        events.lag(telling),
        events.still_open(telling),
    ]
