"""The story: a group of a stock client that grows, shrinks, loses a member and ends, with records arriving
all along.

A topic with six partitions. Three members start, each a process; a fourth joins, one leaves politely, one is
killed, each while a part of the records is being produced. When all are delivered, everybody leaves, more
records are produced, and a fresh member goes on. `checker` then judges everything that was heard. Before all
that come the client's admin calls.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.interop.story import checker
from tests.interop.story.admin_calls import Verdict, judge
from tests.interop.story.checker import Part
from tests.interop.story.clients.base import StockClient
from tests.interop.story.lines import AdminCall, Assigned, Committed, Heard, Revoked, parse_call
from tests.interop.story.oracle import Oracle
from tests.interop.story.processes import Members, StoryFailed, run_to_the_end
from tests.interop.story.targets import KAFKA, KAFKA_CUT, Target
from tests.support.proxy import Proxy

PARTITIONS: Final = 6
RECORDS_PER_CODEC: Final = 6_000
RECORDS_FOR_THE_FRESH_MEMBER: Final = 600
SESSION_TIMEOUT_MS: Final = 9_000
"""Some clients send no heartbeat while they handle a batch, which takes seconds on a busy machine."""
_EVENTS_OF_THE_GROUP: Final = 4
"""Each has at least a part of the records: the group forms, one joins, one leaves, one is killed."""
_CUT_SESSION_TIMEOUT_MS: Final = 30_000
"""Longer than any client waits before it reconnects: a cut costs no membership."""
_KILLED_SESSION_TIMEOUT_MS: Final = 15_000
"""Longer than it takes another broker to take over the groups of a dead one: two lease terms and more."""
_RECORDS_PER_KILL: Final = 3_000
_CUTS: Final = 3
_RECORDS_PER_CUT: Final = 1_000
_TURNED_AWAY: Final = 3
"""Connections: clients retry again and again, but some wait longer each time, up to ten seconds."""
_PROGRAM_SECONDS_MAX: Final = 120.0
_LINES_SHOWN: Final = 15


@dataclass
class Outcome:
    """The outcome of a story. It passed if there are no problems."""

    client: str
    target: str
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    calls: list[AdminCall] | None = None
    """None: the client has no admin API, or it was not tried."""
    verdict: Verdict | None = None
    """The verdict on these calls; Apache Kafka's own are the reference, and not judged."""
    steps: list[str] = field(default_factory=list)
    """What happened, and when."""
    details: str = ""
    """What a person needs to find out why it failed."""

    def headline(self) -> str:
        how = "FAILED" if self.problems else "passed"
        return f"{self.client} against {self.target}: {how} in {self.seconds:.1f} s"

    def report(self) -> str:
        lines = [self.headline(), *self.problems]
        if self.problems:
            lines += ["", "what happened:", *self.steps, "", self.details]
        return "\n".join(lines)


def tell(
    client: StockClient, target: Target, kafka: Outcome | None = None, *, admin_alone: bool = False
) -> Outcome:
    """Play the story of `client`, which is prepared, against `target`. Neither can make it raise.

    `kafka` is the outcome against Apache Kafka, which says how the admin calls should end. With `admin_alone`
    the story ends after them.
    """
    outcome = Outcome(client.name, target.name)
    began_s = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="story-"))
    try:
        if target.proxy is None:
            with _failures_in(outcome):
                _ask_admin(client, target, folder, outcome, kafka)
        if admin_alone:
            return outcome
        telling = _Telling(client, target, folder, outcome.steps)
        try:
            with _failures_in(outcome):
                if target.proxy is None:
                    telling.tell()
                else:
                    telling.tell_with_cuts(target.proxy)
                outcome.problems += telling.check()
            if outcome.problems:
                outcome.details = f"{telling.details()}\n{target.name}'s log:\n{target.last_log_lines()}"
        finally:
            telling.close()
    finally:
        shutil.rmtree(folder)
        outcome.seconds = time.monotonic() - began_s
    return outcome


def parts_of(codecs: Sequence[str]) -> list[Part]:
    """`RECORDS_PER_CODEC` of each codec, in at least four parts. No two records have the same number."""
    pieces = -(-_EVENTS_OF_THE_GROUP // len(codecs))
    count = RECORDS_PER_CODEC // pieces
    return [
        Part(codec, index * RECORDS_PER_CODEC + piece * count, count)
        for piece in range(pieces)
        for index, codec in enumerate(codecs)
    ]


def _resource_name(client: StockClient) -> str:
    """Its name as a part of a topic's name."""
    return re.sub("[^a-z0-9]+", "-", client.name.lower())


@contextmanager
def _failures_in(outcome: Outcome) -> Iterator[None]:
    try:
        yield
    except StoryFailed as failure:
        outcome.problems.append(str(failure))


def _ask_admin(
    client: StockClient, target: Target, folder: Path, outcome: Outcome, kafka: Outcome | None
) -> None:
    command = client.admin(target.bootstrap, f"admin-{_resource_name(client)}")
    if command is None:
        return
    printed = run_to_the_end("admin", command, folder, _PROGRAM_SECONDS_MAX)
    try:
        outcome.calls = [parse_call(line) for line in printed.lines]
    except ValueError as error:
        raise StoryFailed(str(error)) from None
    if not outcome.calls:
        raise StoryFailed("the admin program tried no call")
    if target.name != KAFKA:
        outcome.verdict = judge(outcome.calls, kafka.calls if kafka else None)
        if outcome.verdict.problems:
            problems = "\n".join(outcome.verdict.problems)
            raise StoryFailed(f"{problems}\n  the admin program complained:\n{printed.complaints}")


class _Telling:
    """The part of the story that is about a group."""

    def __init__(self, client: StockClient, target: Target, folder: Path, steps: list[str]) -> None:
        self._client = client
        self._target = target
        self._folder = folder
        self._steps = steps
        self._topic = f"story-{_resource_name(client)}"
        self._group = f"story-group-{_resource_name(client)}"
        self._session_timeout_ms = SESSION_TIMEOUT_MS
        self._produced: list[Part] = []
        self._members = Members(folder)
        self._producing = ThreadPoolExecutor(1, thread_name_prefix="producing")

    def close(self) -> None:
        self._producing.shutdown(cancel_futures=True)
        self._members.close()

    def tell(self) -> None:
        Oracle(self._target.bootstrap).create_topic(self._topic, PARTITIONS)
        if self._target.nodes:
            self._session_timeout_ms = _KILLED_SESSION_TIMEOUT_MS
        parts = parts_of(self._client.codecs)
        for_each_event = [parts[index::_EVENTS_OF_THE_GROUP] for index in range(_EVENTS_OF_THE_GROUP)]

        for name in ("first", "second", "third"):
            self._start(name)
        self._wait_until_shared("first", "second", "third")
        with self._records_meanwhile(for_each_event[0]):
            pass
        with self._records_meanwhile(for_each_event[1]):
            self._start("fourth")
            self._wait_until_shared("first", "second", "third", "fourth")
        if self._target.nodes and not self._client.looks_only_when_joining:
            self._kill_a_broker("first", "second", "third", "fourth")
        with self._records_meanwhile(for_each_event[2]):
            self._wait_for_a_record_of(for_each_event[2], "first")
            self._leave("first")
            self._wait_until_shared("second", "third", "fourth")
        with self._records_meanwhile(for_each_event[3]):
            self._wait_for_a_record_of(for_each_event[3], "second")
            self._members.kill("second")
            self._step("second is killed")
            self._wait_until_shared("third", "fourth")
        self._wait_until_delivered("third", "fourth")
        self._leave("third", "fourth")

        fresh = Part("none", len(self._client.codecs) * RECORDS_PER_CODEC, RECORDS_FOR_THE_FRESH_MEMBER)
        with self._records_meanwhile([fresh]):
            pass
        self._start("fresh")
        self._wait_until_delivered("fresh")
        self._leave("fresh")
        self._ask_the_broker()

    def _kill_a_broker(self, *names: str) -> None:
        """The group's coordinator dies while records are produced, and comes back. The members keep reading
        in their generation."""
        oracle = Oracle(self._target.bootstrap)
        node_id = oracle.wait_for_coordinator(self._group, lambda _: True)
        first = 2 * len(self._client.codecs) * RECORDS_PER_CODEC
        while_gone = Part("none", first, _RECORDS_PER_KILL)
        before_it = Part("none", first + 2 * _RECORDS_PER_KILL, _RECORDS_PER_KILL)
        with self._records_meanwhile([before_it]):
            # Each keeps reading: some clients start over when their requests right after an assignment fail.
            for name in names:
                self._wait_for_a_record_of([before_it], name)
        before = list(self._rebalances())
        with self._records_meanwhile([while_gone]):
            self._wait_for_a_record_of([while_gone], names[0])
            self._target.nodes[node_id].kill()
            self._step(f"the coordinator, node {node_id}, is killed")
            oracle.wait_for_coordinator(self._group, lambda found: found != node_id)
            self._step("it has a successor")
        succeeded_at = len(self._members.heard)
        # Members may have committed all earlier records before the broker died.
        with self._records_meanwhile([Part("none", first + 3 * _RECORDS_PER_KILL, _RECORDS_PER_KILL)]):
            pass
        self._wait_until_delivered(*names)
        self._wait_for_a_commit(succeeded_at)
        self._target.nodes[node_id].start()
        oracle.wait_for_coordinator(self._group, lambda found: found == node_id)
        self._step(f"node {node_id} coordinates it again")
        with self._records_meanwhile([Part("none", first + _RECORDS_PER_KILL, _RECORDS_PER_KILL)]):
            pass
        self._wait_until_delivered(*names)
        self._wait_until_shared(*names)
        rebalances = checker.later_rebalances(before, self._rebalances())
        if rebalances and not self._client.may_rejoin:
            raise StoryFailed(f"members rejoined because their coordinator moved: {rebalances}")

    def _rebalances(self) -> list[Heard]:
        return [each for each in self._members.heard if isinstance(each.event, Assigned | Revoked)]

    def tell_with_cuts(self, proxy: Proxy) -> None:
        """Two members, whose connections break three times: all are reset, and so are new ones until some
        have been. Then the broker is killed."""
        Oracle(self._target.bootstrap).create_topic(self._topic, PARTITIONS)
        self._session_timeout_ms = _CUT_SESSION_TIMEOUT_MS
        self._start("first")
        self._start("second")
        self._wait_until_shared("first", "second")
        for time_ in range(_CUTS):
            with self._records_meanwhile([Part("none", time_ * _RECORDS_PER_CUT, _RECORDS_PER_CUT)]):
                pass
            before = proxy.turned_away
            proxy.cut()
            try:
                self._members.wait_until(
                    lambda before=before: proxy.turned_away >= before + _TURNED_AWAY,
                    f"{_TURNED_AWAY} connections that come again",
                )
            finally:
                proxy.mend()
            self._step(f"all connections were cut, {proxy.turned_away - before} were turned away")
            self._wait_until_delivered("first", "second")
        if self._target.name != KAFKA_CUT:
            self._target.kill_and_start()
            self._step("the broker was killed and started again")
        with self._records_meanwhile([Part("none", _CUTS * _RECORDS_PER_CUT, _RECORDS_PER_CUT)]):
            pass
        self._wait_until_delivered("first", "second")
        # A member cut off from its coordinator cannot leave politely: both must be back.
        self._wait_until_shared("first", "second")
        self._wait_until_committed()
        self._leave("first", "second")
        self._ask_the_broker()

    def check(self) -> list[str]:
        heard = self._members.heard
        problems = checker.check(heard, self._produced, self._session_timeout_ms / 1_000)
        told = checker.last_commits(heard)
        if self._committed != told:
            problems.append(f"members committed {told}, the broker has {self._committed}")
        if self._committed != self._ends:
            problems.append(f"the topic ends at {self._ends}, the group committed {self._committed}")
        return problems

    def _ask_the_broker(self) -> None:
        # A new one: an AdminClient from before the broker was killed knows an old leader epoch.
        oracle = Oracle(self._target.bootstrap)
        self._ends = oracle.ends(self._topic, PARTITIONS)
        self._committed = oracle.committed(self._group)

    def details(self) -> str:
        said = []
        for name, program in self._members.programs.items():
            code = program.process.poll()
            how = "still there" if code is None else f"exit code {code}"
            lines = [
                f"    {each.at_s:7.2f} s {each.event}" for each in self._members.heard if each.member == name
            ]
            rebalances = [line for line in lines if "Record(" not in line and "Committed(" not in line]
            said += [
                f"{name} ({how}), its group life:",
                *rebalances[-_LINES_SHOWN:],
                "  its last lines:",
                *lines[-_LINES_SHOWN:],
                "  on standard error:",
                program.last_complaints(),
            ]
        return "\n".join(said)

    def _step(self, what: str) -> None:
        self._steps.append(f"  {self._members.elapsed_s():7.2f} s {what}")

    def _start(self, name: str) -> None:
        command = self._client.member(
            self._target.bootstrap, self._group, self._topic, self._session_timeout_ms
        )
        self._members.start(name, command)
        self._step(f"{name} starts")

    def _leave(self, *names: str) -> None:
        for name in names:
            self._members.ask_to_leave(name)
            self._step(f"{name} is asked to leave")
        for name in names:
            self._members.wait_until(
                lambda name=name: self._members.has_left(name), f"{name} to leave and exit 0"
            )
            self._step(f"{name} has left")

    def _wait_until_shared(self, *names: str) -> None:
        self._members.wait_until_shared(*names, partitions=PARTITIONS)
        self._step(f"{', '.join(names)} share the partitions")

    def _wait_until_delivered(self, *names: str) -> None:
        """Wait until everything produced so far was delivered to some member."""
        wanted = {value for part in self._produced for value in part.values()}
        what = f"{len(wanted)} records delivered to {', '.join(names)}"
        self._members.wait_until_delivered(wanted, what)
        self._step(what)

    def _wait_until_committed(self) -> None:
        """Wait until everything delivered so far is committed."""
        members, what = self._members, "all that was delivered to be committed"
        try:
            members.wait_until(lambda: members.committed == members.delivered_to_offset, what)
        except StoryFailed as failure:
            raise StoryFailed(f"{failure}; {members.committed} of {members.delivered_to_offset}") from None
        self._step("all that was delivered is committed")

    def _wait_for_a_commit(self, since: int) -> None:
        """Wait for a later commit. Not for all: kcat repeats a failed commit only when it has more."""
        heard = self._members.heard
        self._members.wait_until(
            lambda: any(isinstance(each.event, Committed) for each in heard[since:]), "a commit"
        )
        self._step("the group commits")

    def _wait_for_a_record_of(self, parts: Sequence[Part], name: str) -> None:
        """Wait until this member has records to handle, so that what happens next interrupts it."""
        values = {value for part in parts for value in part.values()}
        delivered = self._members.delivered_to[name]
        self._members.wait_until(lambda: not values.isdisjoint(delivered), f"a record for {name}")

    @contextmanager
    def _records_meanwhile(self, parts: Sequence[Part]) -> Iterator[None]:
        """Produce these records while the block runs; they are acknowledged when it ends."""
        producing = self._producing.submit(self._produce, parts)
        yield
        producing.result()
        self._produced += parts

    def _produce(self, parts: Sequence[Part]) -> None:
        for part in parts:
            command = self._client.produce(
                self._target.bootstrap, self._topic, part.codec, part.first, part.count
            )
            name = f"producer-{part.codec}-{part.first}"
            run_to_the_end(name, command, self._folder, _PROGRAM_SECONDS_MAX)
            self._step(f"{part.count} records produced with {part.codec}")
