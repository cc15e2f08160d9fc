"""Plays a sequence to two brokers step by step, and says where the first of them answers otherwise."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from muster.protocol.errors import ErrorCode
from tests.group.scenario import Scenario, Step, milliseconds, parse_lines
from tests.kafka.differences import Difference, differences
from tests.kafka.differential.connections import Connections
from tests.kafka.differential.deliberate import reason
from tests.kafka.differential.generator import MARGIN_MS
from tests.kafka.differential.player import Player
from tests.kafka.recording import Replies

_FOR_THE_OTHER_S: Final = 4.0
"""How long to wait for an answer that the other broker has given."""
_MOVING: Final = {
    str(code.value)
    for code in (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
}
_run: Final = uuid.uuid4().hex[:8]  # an Apache Kafka may have seen other runs
_plays = itertools.count(1)


@dataclass
class Outcome:
    """What came of one play of a sequence to both."""

    steps: int = 0
    """How many were compared."""
    found: list[Difference] = field(default_factory=list)
    """Those of the first step with a difference that is not deliberate; empty: all was alike."""
    deliberate: Counter[str] = field(default_factory=Counter)
    """How often which reason was met."""
    theirs: list[list[str]] = field(default_factory=list)
    """The transcript's lines for each step compared."""
    ours: list[list[str]] = field(default_factory=list)
    is_too_slow: bool = False
    """Of a sequence with pauses: the steps between them took so long that it is not certain which timeouts
    have run out."""

    is_unready: bool = False
    """A coordinator was moving, or too slow to write: that is no answer to what was asked."""

    @property
    def is_luck(self) -> bool:
        """Apache Kafka orders members by hashes of their random ids, so when a leader has gone chance picks
        the next; likewise the numbers of ids that are first seen in one answer."""
        return any(each.is_other_leader or _differs_in_symbols(each) for each in self.found)


def _is_of_moving(difference: Difference) -> bool:
    return difference.field.endswith("error_code") and bool({difference.theirs, difference.ours} & _MOVING)


def _differs_in_symbols(difference: Difference) -> bool:
    return difference.theirs.startswith("$") and difference.ours.startswith("$")


def scenario_of(lines: Sequence[str], name: str = "sequence") -> Scenario:
    """What generated lines say."""
    return parse_lines(Path(f"{name}.txt"), list(lines))


async def duel(lines: Sequence[str], kafka: Connections, muster: Connections) -> Outcome:
    """Play a sequence to both brokers, up to the first difference that is not deliberate."""
    scenario = scenario_of(lines)
    suffix = f"-{_run}-{next(_plays)}"
    theirs, ours = Player(scenario, kafka, suffix), Player(scenario, muster, suffix)
    outcome = Outcome()
    is_timed = any(step.verb == "advance" for step in scenario.steps)
    busy_s, began = 0.0, time.monotonic()
    try:
        for step in scenario.steps:
            if step.verb == "advance":
                busy_s += time.monotonic() - began
                await asyncio.sleep(milliseconds(step.arguments[0]) / 1000)
                began = time.monotonic()
            else:
                await asyncio.gather(theirs.take(step), ours.take(step))
            await _settle(theirs, ours)
            if is_timed and (busy_s + time.monotonic() - began) * 1000 > MARGIN_MS / 2:
                outcome.is_too_slow = True
                return outcome
            their, their_lines = _replies(step, theirs)
            our, our_lines = _replies(step, ours)
            outcome.theirs.append(their_lines)
            outcome.ours.append(our_lines)
            outcome.steps += 1
            for difference in differences(scenario, [their], [our]):
                why = reason(
                    difference, our.fields.get(difference.reply, {}), scenario.steps[: outcome.steps]
                )
                if why is None:
                    outcome.found.append(difference)
                else:
                    outcome.deliberate[why] += 1
            outcome.is_unready = any(map(_is_of_moving, outcome.found))
            if outcome.found:
                return outcome
        return outcome
    finally:
        theirs.close()
        ours.close()


def _replies(step: Step, player: Player) -> tuple[Replies, list[str]]:
    fields, lines = player.harvest()
    return Replies(step, fields, lines), lines


async def _settle(theirs: Player, ours: Player) -> None:
    """Nothing says that a request is parked. If one broker has answered what the other has not, wait: it may
    have been slow."""
    deadline = time.monotonic() + _FOR_THE_OTHER_S
    while (their := Counter(theirs.who())) != (our := Counter(ours.who())):
        waiting = [
            player.more() for player, missing in ((theirs, our - their), (ours, their - our)) if missing
        ]
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                tasks = [asyncio.ensure_future(each) for each in waiting]
                try:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
        except TimeoutError:
            return
