"""The tools for a group's life: members of one client and either protocol, a continuous load, and the
coordinator's view of the group."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from muster.client import Admin, ClientError, ConfigResource, KafkaError
from muster.client.admin.groups import GroupDescription
from tests.interop.protocols.load import Load
from tests.interop.story import checker
from tests.interop.story.clients.base import StockClient
from tests.interop.story.lines import Assigned, Heard, Record, Revoked
from tests.interop.story.oracle import Oracle
from tests.interop.story.processes import Members, StoryFailed
from tests.interop.story.targets import Target

SESSION_TIMEOUT_MS: Final = 15_000
"""For classic members: longer than it takes another broker to take over the groups of a dead one."""
CONSUMER_SESSION_TIMEOUT_MS: Final = 45_000
"""For the others: also longer than a static member takes to restart. A JVM beside a dozen others needs 15 s
on a slow machine."""
_DEADLINE_S: Final = 60.0
_PAUSE_S: Final = 0.1
_LINES_SHOWN: Final = 30


class Playing:
    """`topic` is the group's first topic; others have the same name up to the dot, and another number."""

    def __init__(self, client: StockClient, target: Target, life: str, folder: Path) -> None:
        self.target = target
        self.group = f"{life}-{client.name}"
        self.topic = f"{self.group}.0"
        self.oracle = Oracle(target.bootstrap)
        self.members = Members(folder)
        self.steps: list[str] = []
        self.took_s: dict[str, float] = {}
        """Durations worth reporting, by name."""
        self.client = client
        self._load: Load | None = None
        self._session_timeout_ms = SESSION_TIMEOUT_MS  # of killed members

    def close(self) -> None:
        if self._load is not None:
            self._load.__exit__(None, None, None)
        self.members.close()

    def step(self, what: str) -> None:
        self.steps.append(f"  {self.members.elapsed_s():7.2f} s {what}")

    # --- members --------------------------------------------------------------------------------------------

    def start(
        self,
        name: str,
        protocol: str,
        *configs: str,
        pattern: str | None = None,
        client: StockClient | None = None,
    ) -> None:
        """Start a member of the group, with its own client unless another is given."""
        command = (client or self.client).member(
            self.target.bootstrap,
            self.group,
            pattern or self.topic,
            SESSION_TIMEOUT_MS,
            f"group.protocol={protocol}",
            *configs,
        )
        self.members.start(name, command)
        self.step(f"{name} starts ({protocol})")

    def leave(self, *names: str) -> None:
        for name in names:
            self.members.ask_to_leave(name)
        for name in names:
            self.until(lambda name=name: self.members.has_left(name), f"{name} to leave and exit 0")
            self.step(f"{name} has left")

    def until(self, fact: Callable[[], object], what: str) -> None:
        self.members.wait_until(fact, what, _DEADLINE_S)

    def until_shared(self, partitions: Collection[int], *names: str, figure: str = "") -> None:
        """Wait until every one of these members owns something, and together they own each partition once.
        `figure`: the name under which to keep how long it took."""
        since_s, wanted = time.monotonic(), sorted(partitions)

        def shared() -> bool:
            mine = [self.members.owned[name] for name in names]
            return all(mine) and sorted(each for owned in mine for each in owned) == wanted

        try:
            self.until(shared, f"partitions shared by {', '.join(names)}")
        except StoryFailed as failure:
            owned = {name: sorted(self.members.owned[name]) for name in names}
            raise StoryFailed(f"{failure}; they own {owned}") from None
        if figure:
            self.took_s[figure] = time.monotonic() - since_s
        self.step(f"{', '.join(names)} share {len(wanted)} partitions")

    def until_read(self, *names: str, more: int = 20) -> None:
        """Wait until each of these members has received `more` more records."""
        before = {name: len(self.members.delivered_to[name]) for name in names}
        self.until(
            lambda: all(len(self.members.delivered_to[name]) >= before[name] + more for name in names),
            f"{more} more records for {', '.join(names)}",
        )

    def rebalances(self, *names: str) -> list[Heard]:
        """These members' reports of assigned and revoked partitions."""
        heard = self.members.heard
        return [each for each in heard if each.member in names and isinstance(each.event, Assigned | Revoked)]

    # --- records --------------------------------------------------------------------------------------------

    def begin_load(self) -> Load:
        assert self._load is None
        self._load = Load(self.target.bootstrap, self.topic).__enter__()
        return self._load

    def finish(self, *names: str, partitions: dict[str, int]) -> list[str]:
        """These members, the only ones left, read everything and leave. Returns what is wrong.

        `partitions`: partition count of each topic.
        """
        assert self._load is not None
        part = self._load.stop()
        self.members.wait_until_delivered(set(part.values()), f"all of {part.count} records")
        self.leave(*names)
        heard = self.members.heard
        problems = checker.check(heard, [part], self._session_timeout_ms / 1_000)
        oracle = Oracle(self.target.bootstrap)  # a connection from before a broker died knows old epochs
        ends: dict[int, int] = {}
        for topic, count in partitions.items():
            ends |= oracle.ends(topic, count)
        committed, told = oracle.committed(self.group), checker.last_commits(heard)
        if committed != told:
            problems.append(f"members committed {told}, the broker has {committed}")
        if committed != {partition: end for partition, end in ends.items() if end}:
            problems.append(f"the topics end at {ends}, the group committed {committed}")
        records = [each.event for each in heard if isinstance(each.event, Record)]
        again = len(records) - len({(each.partition, each.offset) for each in records})
        self.step(f"{part.count} records, {again} of them read again")
        return problems

    # --- the coordinator's view -----------------------------------------------------------------------------

    def described(self, members: int, group_type: str) -> GroupDescription:
        """The group, once it is of that type and stable with that many members."""
        found: GroupDescription | None = None

        async def describe() -> GroupDescription:
            async with Admin(self.target.bootstrap) as admin:
                return await admin.describe_group(self.group)

        deadline = time.monotonic() + _DEADLINE_S
        while time.monotonic() < deadline:
            with suppress(ClientError, KafkaError):
                found = asyncio.run(describe())
                if (found.state, found.group_type, len(found.members)) == ("Stable", group_type, members):
                    return found
            time.sleep(_PAUSE_S)
        raise StoryFailed(f"no stable {group_type} group of {members} members: {found}")

    def set_session_timeout(self, timeout_ms: int) -> None:
        """Set the session timeout of consumer protocol members, a group config."""

        async def alter() -> None:
            async with Admin(self.target.bootstrap) as admin:
                changes = {
                    ConfigResource.of_group(self.group): {"consumer.session.timeout.ms": str(timeout_ms)}
                }
                (await admin.alter_configs(changes)).raise_for_failures()

        asyncio.run(alter())
        self._session_timeout_ms = timeout_ms

    def said(self) -> str:
        """What happened, for a person looking for the cause of a failure."""
        lines = ["what happened:", *self.steps, ""]
        for name, program in self.members.programs.items():
            mine = [f"    {each.at_s:7.2f} s {each.event}" for each in self.rebalances(name)]
            lines += [f"{name}:", *mine[-_LINES_SHOWN:], "  on standard error:", program.last_complaints()]
        return "\n".join([*lines, f"{self.target.name}'s log:", self.target.last_log_lines()])


def epochs(group: GroupDescription) -> dict[str, int | None]:
    """Epochs by member id."""
    return {member.member_id: member.epoch for member in group.members}


def unchanged(before: Sequence[Heard], after: Sequence[Heard], what: str) -> None:
    """Raises StoryFailed if members were notified of partitions in the meantime."""
    if news := after[len(before) :]:
        raise StoryFailed(f"{what}, and members were told {[each.event for each in news]}")
