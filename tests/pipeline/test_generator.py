"""The journal generator: it does what it reports, and repeats it for the same seed."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.pipeline.driven import COMPLETED, Journal
from tests.pipeline.generator import PATIENT_MS, driven, generate


def story(journal: Journal) -> list[tuple[Any, ...]]:
    """What was done, without anything that depends on the clock."""
    return [
        (
            each.group,
            each.what,
            each.client_id,
            each.host,
            each.outcome,
            each.generation,
            each.members,
            each.moved,
        )
        for each in journal.did
    ]


def test_a_seed_gives_the_same_story_again() -> None:
    once, again, other = (asyncio.run(generate(groups=3, steps=6, seed=seed)) for seed in (5, 5, 6))
    assert story(once) == story(again)
    assert story(once) != story(other)
    for journal in (once, again, other):
        meant = {
            (each.group, each.generation): each.what for each in journal.did if each.outcome == COMPLETED
        }
        assert journal.whys == meant  # as the brokers themselves say


async def test_patient_members_are_there_after_any_wait() -> None:
    """No member counts as alive while the clock is advanced, so time passes as if it was waited for."""
    async with driven(3, 5, session_ms=PATIENT_MS) as (cluster, groups, _):
        for group in groups:
            await group.start(2)
        await cluster.clock.advance("20m", expire_all=True)
        for group in groups:
            await group.start(1)
            await group.close(group.members[0])
        told = [each for group in groups for each in group.facts.timeline()]
    assert "session expired" not in {each.trigger for each in told}
