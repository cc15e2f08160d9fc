"""One cluster in containers, started once, and clients that run through every fault."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

import pytest

from muster.client import Admin
from tests.compose.clients import ConfluentMember, Member, OwnMember, Writer
from tests.compose.project import COMMAND_S, Project, eventually

TOPIC: Final = "orders"
GROUP: Final = "billing"
PARTITIONS: Final = 6
_ANSWER_S: Final = 30.0


class Load:
    """A producer and a group of two members, librdkafka and muster's own client, that share a topic.

    They run until `end`."""

    def __init__(self, bootstrap: str) -> None:
        self.writer = Writer(bootstrap, TOPIC, PARTITIONS)
        self.own = OwnMember(bootstrap, TOPIC, GROUP)
        self.members: list[Member] = [ConfluentMember(bootstrap, TOPIC, GROUP), self.own]
        self._running = ExitStack()

    def start(self) -> None:
        """Start the clients; return when the group has shared the partitions."""
        for client in (self.writer, *self.members):
            self._running.enter_context(client)
        eventually(self._shared, "both members have partitions and commit")

    def end(self) -> None:
        """Let the clients finish their work and leave. Raises the error that ended one early. Safe to call
        repeatedly."""
        self._running.close()

    def _shared(self) -> bool:
        self.check()
        shares = [member.partitions for member in self.members]
        whole = sorted(partition for share in shares for partition in share) == list(range(PARTITIONS))
        return whole and all(shares) and all(member.commits for member in self.members)

    def rebalances(self) -> tuple[int, ...]:
        """Everything that would change with a rebalance, or if a member had to join again."""
        return (self.own.generation, *(member.rebalances for member in self.members))

    def committed(self) -> dict[int, int]:
        """The furthest acknowledged commit of each partition. The final owner is not enough: a member that
        outlives the other may be given partitions that it never commits."""
        furthest: dict[int, int] = {}
        for member in self.members:
            for partition, offset in member.committed.items():
                furthest[partition] = max(offset, furthest.get(partition, 0))
        return furthest

    def go_on(self, what: str) -> None:
        """Wait until every partition has taken new records and both members have committed again."""
        before = [member.commits for member in self.members]
        ends = self._ends()

        def moved() -> bool:
            self.check()
            now = self._ends()
            # Two commits: the first may have been in flight.
            commits = zip(self.members, before, strict=True)
            return all(now[each] > ends[each] + 1 for each in ends) and all(
                member.commits > count + 1 for member, count in commits
            )

        eventually(moved, f"{what}: records and commits go on")

    def _ends(self) -> dict[int, int]:
        acknowledged = list(self.writer.acknowledged)
        return {
            partition: max((offset for each, offset in acknowledged if each == partition), default=-1)
            for partition in range(PARTITIONS)
        }

    def check(self) -> None:
        """Raise the error that ended a client, if any."""
        for client in (self.writer, *self.members):
            client.check()
        assert self.writer.refused == []


def ask(bootstrap: str, question: str, *arguments: object) -> Any:
    """Make one call of the admin client and return its result."""

    async def answer() -> Any:
        async with Admin(bootstrap, request_timeout_ms=6_000) as admin:
            return await getattr(admin, question)(*arguments, timeout=_ANSWER_S)

    return asyncio.run(answer())


@pytest.fixture(scope="session")
def project(request: pytest.FixtureRequest) -> Iterator[Project]:
    """PostgreSQL and three brokers, healthy; removed at the end with their data. Their logs are shown if a
    test failed."""
    for command in (["docker", "info"], ["docker", "compose", "version"]):
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=COMMAND_S)
        except (OSError, subprocess.SubprocessError) as error:
            why = (getattr(error, "stderr", None) or str(error).encode()).decode().strip()
            pytest.exit(
                f"the tests of the compose file need Docker with Compose: `{' '.join(command)}` fails: {why}",
                2,
            )
    project = Project()
    try:
        # Build once; then every step is in the cache for the other services.
        project.compose("build", "migrate")
        project.compose("up", "--detach", "--build", "--wait")
        yield project
    finally:
        if request.session.testsfailed:
            print(project.compose("--profile", "*", "logs", "--no-color", "--timestamps", "--tail", "300"))
        project.remove()


@pytest.fixture(scope="session")
def load(project: Project) -> Iterator[Load]:
    """Started by the first test that needs it; runs until the last."""
    ask(project.bootstrap, "create_topic", TOPIC, PARTITIONS)
    load = Load(project.bootstrap)
    try:
        load.start()
        yield load
    finally:
        load.end()
