"""Plays a sequence against two brokers step by step, and reports the first differing answer."""

from __future__ import annotations

import asyncio
import itertools
import re
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
from tests.kafka.differential.deliberate import RULES, Deliberate, Met, reason
from tests.kafka.differential.generator import MARGIN_MS
from tests.kafka.differential.player import Player
from tests.kafka.recording import Replies

_PATIENCE_S: Final = 15.0
"""How long to wait for an answer that the other broker has already given."""
_PATIENCE_BETWEEN_PAUSES_S: Final = 0.1
_LATE: Final = 0.7
"""The share of its margin that a sequence with pauses may use for everything else."""
_LOOK_UP_AGAIN_MS: Final = 10_000
"""The interval after which the topics of a group's regular expressions may be looked up again."""
_MOVING: Final = {
    str(code.value)
    for code in (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
}
_SYMBOL: Final = re.compile(r"\$\w+")
_run: Final = uuid.uuid4().hex[:8]  # an Apache Kafka may have seen other runs
_plays = itertools.count(1)


@dataclass
class Outcome:
    """The outcome of playing a sequence once against both."""

    steps: int = 0
    """How many steps were compared."""
    found: list[Difference] = field(default_factory=list)
    """The differences of the first step with one that is not deliberate; empty: there were none."""
    deliberate: Counter[str] = field(default_factory=Counter)
    """How many answers differ, by reason."""
    theirs: list[list[str]] = field(default_factory=list)
    """The transcript's lines for each compared step."""
    ours: list[list[str]] = field(default_factory=list)
    is_too_slow: bool = False
    """For a sequence with pauses or regular expressions: its steps took so long that it is uncertain which
    timeouts have expired. Without pauses, a missing answer is a difference however long it was awaited."""

    is_unready: bool = False
    """A coordinator was moving, or too slow to write: that is no answer to the request."""

    @property
    def is_luck(self) -> bool:
        """Apache Kafka orders members by hashes of their random ids, so chance picks the next leader when one
        has left; the same goes for the numbering of ids first seen in one answer."""
        return any(map(_differs_in_symbols, self.found)) or _are_other_numbers(self.found)


def _is_of_moving(difference: Difference) -> bool:
    return difference.field.endswith("error_code") and bool({difference.theirs, difference.ours} & _MOVING)


def _differs_in_symbols(difference: Difference) -> bool:
    return difference.theirs.startswith("$") and difference.ours.startswith("$")


def _are_other_numbers(found: Sequence[Difference]) -> bool:
    """Whether both say the same about the same members, with symbols swapped."""
    fields = [_SYMBOL.sub("", each.field) for each in found]
    return (
        bool(found)
        and all(_SYMBOL.search(each.field) for each in found)
        and Counter(zip(fields, [each.theirs for each in found], strict=True))
        == Counter(zip(fields, [each.ours for each in found], strict=True))
    )


def scenario_of(lines: Sequence[str], name: str = "sequence") -> Scenario:
    """Parse generated lines as a scenario."""
    return parse_lines(Path(f"{name}.txt"), list(lines))


async def duel(
    lines: Sequence[str],
    kafka: Connections,
    muster: Connections,
    rules: Sequence[Deliberate] = RULES,
) -> Outcome:
    """Play a sequence against both brokers, up to the first difference that these rules do not allow."""
    scenario = scenario_of(lines)
    suffix = f"-{_run}-{next(_plays)}"
    theirs, ours = Player(scenario, kafka, suffix), Player(scenario, muster, suffix)
    outcome = Outcome()
    clock = _Clock(scenario)
    try:
        for step in scenario.steps:
            await _take(step, theirs, ours, clock)
            agree = await _settle(theirs, ours, clock.patience_s)
            if clock.is_late and (agree or clock.has_pauses):
                outcome.is_too_slow = True
                return outcome
            their, their_lines = _replies(step, theirs)
            our, our_lines = _replies(step, ours)
            outcome.theirs.append(their_lines)
            outcome.ours.append(our_lines)
            outcome.steps += 1
            met: set[tuple[str, str]] = set()
            ends = False
            for difference in differences(scenario.name, [their], [our]):
                their_fields, our_fields = (side.fields.get(difference.reply, {}) for side in (their, our))
                rule = reason(
                    Met(
                        difference,
                        their_fields,
                        our_fields,
                        scenario.steps[: outcome.steps],
                        outcome.theirs,
                        muster.watched.of(suffix),
                    ),
                    rules,
                )
                if rule is None:
                    outcome.found.append(difference)
                else:
                    met.add((rule.what, difference.reply))
                    ends |= rule.ends
            outcome.deliberate.update(why for why, _ in met)
            if ends:
                outcome.found.clear()
                return outcome
            outcome.is_unready = any(map(_is_of_moving, outcome.found))
            if outcome.found:
                return outcome
        return outcome
    finally:
        await theirs.close()
        await ours.close()


async def _take(step: Step, theirs: Player, ours: Player, clock: _Clock) -> None:
    match step.verb:
        case "advance":
            await clock.pause(milliseconds(step.arguments[0]))
        case "join" | "beat":  # a broker may generate a member id for these
            await theirs.take(step)
            async with ours.ids.member(theirs.made_member_id(step)):
                await ours.take(step)
        case "create-topic":
            await theirs.take(step)
            async with ours.ids.topic(theirs.topic_id(step)):
                await ours.take(step)
        case _:
            await asyncio.gather(theirs.take(step), ours.take(step))


class _Clock:
    """How much longer a sequence with pauses has taken than its pauses alone."""

    def __init__(self, scenario: Scenario) -> None:
        self.has_pauses = any(step.verb == "advance" for step in scenario.steps)
        self._looks_up = any("regex" in step.options for step in scenario.steps)
        self._began = time.monotonic()
        self._paused_ms = 0

    async def pause(self, ms: int) -> None:
        await asyncio.sleep(ms / 1000)
        self._paused_ms += ms

    @property
    def patience_s(self) -> float:
        return _PATIENCE_BETWEEN_PAUSES_S if self.has_pauses else _PATIENCE_S

    @property
    def is_late(self) -> bool:
        """Whether it is uncertain which timeouts have expired."""
        late_ms = (time.monotonic() - self._began) * 1000 - self._paused_ms
        if self.has_pauses:
            return late_ms > MARGIN_MS * _LATE
        return self._looks_up and late_ms > _LOOK_UP_AGAIN_MS * _LATE


def _replies(step: Step, player: Player) -> tuple[Replies, list[str]]:
    fields, lines = player.harvest()
    return Replies(step, fields, lines), lines


async def _settle(theirs: Player, ours: Player, patience_s: float) -> bool:
    """Nothing says that a request is parked. If one broker has answered what the other has not, wait: it may
    just be slow. Returns whether both have answered the same requests in the end."""
    deadline = time.monotonic() + patience_s
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
            return False
    return True
