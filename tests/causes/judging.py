"""Comparing muster's explanation with what really happened."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from muster.coordinator.journal.explain import Explanation, explain_all
from muster.coordinator.testing import Cluster
from tests.causes.acting import Stage
from tests.causes.cases import GROUP, OTHER_TOPIC, PARTITIONS, TOPIC, Case, Scene, Truth

_PLAYS_MAX: Final = 3


@dataclass(frozen=True)
class Judged:
    """One case with one client."""

    case: Case
    client: str
    truth: Truth
    said: Any
    """muster's `Explanation`, or None."""
    timeline: str
    disturbed: bool
    """A kafka-python did more than the script asked: it rejoined with nothing changed, as its leader does
    when metadata arrives late, or sent no heartbeats during a slow handler and expired before it could leave.
    """

    @property
    def wrong(self) -> list[str]:
        """The claims of the explanation that are wrong."""
        if self.said is None:
            return ["muster has nothing to say"]
        found = []
        if self.truth.cause is not None and self.said.cause != self.truth.cause:
            found.append(f"the cause is {self.truth.cause!r}, not {self.said.cause!r}")
        if self.said.diagnosis != self.truth.diagnosis:
            found.append(f"it is {self.truth.diagnosis}, not {self.said.diagnosis}")
        who = self.said.member
        if self.truth.member is not None and (who is None or not _is(who.client_id, self.truth.member)):
            found.append(f"it was {self.truth.member}, not {who}")
        return found


def _is(client_id: str, name: str) -> bool:
    return client_id == name or client_id.startswith(f"{name}-")  # kafkajs and others add to it


def judge(case: Case, client: str, folder: Path) -> Judged:
    """Play the case and ask muster. Play it again if the client did something of its own accord: then the
    script does not know the truth."""
    for _ in range(_PLAYS_MAX - 1):
        try:
            judged = _play(case, client, folder)
        except _Disturbed:
            continue
        if not (judged.wrong and judged.disturbed):
            return judged
    return _play(case, client, folder)


class _Disturbed(AssertionError):
    """The client did something of its own accord, so the script could not finish."""


def _play(case: Case, client: str, folder: Path) -> Judged:
    # kafka-python can miss an assignment that arrives within 100 ms.
    settings = {"group_initial_rebalance_delay_ms": 500, **case.settings}
    with Cluster(case.brokers, **settings) as cluster, Stage(cluster.bootstrap, GROUP, folder) as stage:
        cluster.create_topic(TOPIC, PARTITIONS)
        cluster.create_topic(OTHER_TOPIC, 1)
        group = cluster.group(GROUP)
        try:
            truth = case.act(Scene(cluster, stage, client, case.protocol))
        except AssertionError as error:
            if client == "kafka_python" and _rejoined(explain_all(group.timeline())):
                raise _Disturbed(str(error)) from error
            raise
        try:
            said = group.why(generation=truth.generation)
        except LookupError:
            said = None
        timeline = group.timeline()
        silent = truth.cause == "member left" and said is not None and said.cause == "session expired"
        disturbed = client == "kafka_python" and (_rejoined(explain_all(timeline)) or silent)
        return Judged(case, client, truth, said, str(timeline), disturbed)


def _rejoined(explained: Iterable[Explanation]) -> bool:
    """Whether a leader rejoined with nothing changed."""
    return any(each.diagnosis == "leader-rejoined" for each in explained)
