"""The life of a group of several clients.

The first member is alone, so the coordinator makes it the group's leader: its assignor assigns the partitions
when the others join. While records arrive it leaves, and one of the others leads. When all are delivered,
everybody leaves. The story's checker then judges the members' output (`story/clients/base.py` describes its
lines).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tests.interop.story import checker
from tests.interop.story.checker import Part
from tests.interop.story.clients.java import JAVA
from tests.interop.story.clients.python import CONFLUENT, KAFKA_PYTHON, MUSTER, PythonClient
from tests.interop.story.oracle import Oracle
from tests.interop.story.processes import Members, StoryFailed, run_to_the_end
from tests.interop.story.targets import Target

PARTITIONS: Final = 6
RECORDS: Final = 2_000
SESSION_TIMEOUT_MS: Final = 6_000
_PRODUCER_SECONDS_MAX: Final = 60.0

# A member's command line, built from the bootstrap servers, the group, the topic and the assignor.
Command = Callable[[str, str, str, str], list[str]]


def _python(client: PythonClient) -> Command:
    return lambda bootstrap, group, topic, assignor: [
        *client.member(bootstrap, group, topic, SESSION_TIMEOUT_MS),
        assignor,
    ]


_JAVA_ASSIGNORS: Final = {
    "range": "RangeAssignor",
    "roundrobin": "RoundRobinAssignor",
    "sticky": "StickyAssignor",
    "cooperative-sticky": "CooperativeStickyAssignor",
}


def _java(bootstrap: str, group: str, topic: str, assignor: str) -> list[str]:
    client = replace(JAVA, assignor=_JAVA_ASSIGNORS[assignor])
    return client.member(bootstrap, group, topic, SESSION_TIMEOUT_MS)


COMMANDS: Final[dict[str, Command]] = {
    "muster": _python(MUSTER),
    "confluent-kafka": _python(CONFLUENT),
    "java-client": _java,
    "kafka-python": _python(KAFKA_PYTHON),
}
"""By client name."""

MEMBERS: Final = {
    "range": tuple(COMMANDS),
    "roundrobin": tuple(COMMANDS),
    "sticky": ("muster", "java-client", "kafka-python"),
    "cooperative-sticky": tuple(COMMANDS),
}
"""By assignor: the clients that have it. (librdkafka has no eager sticky assignor.)"""


@dataclass(frozen=True)
class Plan:
    """A group to be watched: its assignor, and its first leader."""

    target: str
    assignor: str
    leader: str

    @property
    def name(self) -> str:
        return f"{self.target}-{self.assignor}-{self.leader}"

    @property
    def members(self) -> list[str]:
        """The leader first."""
        return sorted(MEMBERS[self.assignor], key=lambda name: name != self.leader)


@dataclass
class Outcome:
    problems: list[str]
    details: str = ""


def live(plan: Plan, target: Target) -> Outcome:
    """Watch one group from its first member to its last. Brokers and clients cannot make it raise."""
    with tempfile.TemporaryDirectory(prefix="mixed-") as directory:
        members = Members(Path(directory))
        try:
            try:
                problems = _Life(plan, target, members, Path(directory)).live()
            except StoryFailed as failure:
                problems = [str(failure)]
            if not problems:
                return Outcome([])
            return Outcome(problems, f"{_said(members)}\n{target.name}'s log:\n{target.last_log_lines()}")
        finally:
            members.close()


class _Life:
    def __init__(self, plan: Plan, target: Target, members: Members, folder: Path) -> None:
        self._plan = plan
        self._bootstrap = target.bootstrap
        self._topic = self._group = f"mixed-{plan.name}"
        self._members = members
        self._folder = folder
        self._produced: list[Part] = []

    def live(self) -> list[str]:
        oracle = Oracle(self._bootstrap)
        oracle.create_topic(self._topic, PARTITIONS)
        leader, *others = self._plan.members
        self._start(leader)
        self._members.wait_until_shared(leader, partitions=PARTITIONS)
        for other in others:
            self._start(other)
        self._members.wait_until_shared(leader, *others, partitions=PARTITIONS)
        self._produce(RECORDS)
        self._members.wait_until(lambda: self._members.delivered_to[leader], f"a record for {leader}")
        self._leave(leader)
        self._produce(RECORDS)
        self._members.wait_until_shared(*others, partitions=PARTITIONS)
        wanted = {value for part in self._produced for value in part.values()}
        self._members.wait_until_delivered(wanted, "all records to be delivered")
        ends = oracle.ends(self._topic, PARTITIONS)
        # Before anybody leaves: during a rebalance, a member's last commit may be refused.
        oracle.wait_for_commits(self._group, ends)
        self._leave(*others)

        problems = checker.check(self._members.heard, self._produced, SESSION_TIMEOUT_MS / 1_000)
        committed = oracle.committed(self._group)
        if committed != ends:
            problems.append(f"the topic ends at {ends}, the group committed {committed}")
        return problems

    def _start(self, name: str) -> None:
        command = COMMANDS[name](self._bootstrap, self._group, self._topic, self._plan.assignor)
        self._members.start(name, command)

    def _leave(self, *names: str) -> None:
        for name in names:
            self._members.ask_to_leave(name)
        for name in names:
            self._members.wait_until(
                lambda name=name: self._members.has_left(name), f"{name} to leave and exit 0"
            )

    def _produce(self, count: int) -> None:
        part = Part("none", sum(each.count for each in self._produced), count)
        command = MUSTER.produce(self._bootstrap, self._topic, part.codec, part.first, part.count)
        run_to_the_end(f"producer-{part.first}", command, self._folder, _PRODUCER_SECONDS_MAX)
        self._produced.append(part)


def _said(members: Members, lines_max: int = 30) -> str:
    """The rebalances that all members printed, and their errors."""
    said: list[str] = []
    for name, program in members.programs.items():
        lines = [f"    {each.at_s:7.2f} s {each.event}" for each in members.heard if each.member == name]
        rebalances = [line for line in lines if "Record(" not in line and "Committed(" not in line]
        said += [f"{name}:", *rebalances[-lines_max:], "  on standard error:", program.last_complaints()]
    return "\n".join(said)


def plans(targets: Sequence[str]) -> list[Plan]:
    """Plans in which every client leads once with every assignor that it has."""
    return [
        Plan(target, assignor, leader)
        for target in targets
        for assignor, clients in MEMBERS.items()
        for leader in clients
    ]
