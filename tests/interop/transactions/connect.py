"""Kafka Connect with `exactly.once.source.support`: two workers copy files to topics, line by line, while one
is killed, or paused and resumed once the other has its tasks: a zombie, which must be fenced.

There are two connectors with `exactly.once.support=required`. One is Kafka's FileStreamSource, which makes a
transaction of each poll; the other has a task for each of two files (`programs/connect/Files.java`), and
makes one of what arrives within some milliseconds (`transaction.boundary`). A line of a file begins with its
number.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
import urllib.error
import urllib.request
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from muster.client import Admin, ConfigResource
from tests.interop.story.clients.base import PROGRAMS
from tests.interop.story.clients.java import compiled
from tests.interop.story.oracle import Oracle
from tests.interop.story.processes import StoryFailed
from tests.interop.story.story import Outcome
from tests.interop.story.targets import Target
from tests.interop.transactions import checker
from tests.interop.transactions.clients import PARTITIONS
from tests.interop.transactions.play import SESSION_TIMEOUT_MS
from tests.interop.transactions.stage import WORKERS, Stage, perform
from tests.support.java import java
from tests.support.kafka_artifacts import connect_classpath
from tests.support.ports import free_ports

FILES: Final = {"poll": 1, "interval": 2}
"""By the connectors' names, which are their transaction boundaries."""
KILL: Final = "killed"
STOP: Final = "stopped"
_INTERVAL_MS: Final = 50
_LINES_OF_A_POLL: Final = 5
_LINE_CHARACTERS: Final = 1_024
"""Including its end. A task that has as many lines as it returns at once leaves the rest of its buffer, which
has room for this many characters, until its file grows."""
_DELAY_MS_MAX: Final = 20.0
"""About as long as a transaction takes."""
_READY_S: Final = 120.0
_DONE_S: Final = 120.0
_ANSWER_S: Final = 5.0
_LOOK_AGAIN_S: Final = 0.1
_FENCING: Final = "Fencing out"
"""What a leader logs before it calls Admin.fenceProducers."""
_SAY_FENCING: Final = "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.connect.runtime.Worker=debug"


class Event(NamedTuple):
    """What happens to the worker with a connector's task, once a part has produced `after` records."""

    what: str
    boundary: str
    after: int
    delay_ms: float


@dataclass(frozen=True)
class Plan:
    seed: int
    lines: int
    """Lines per file."""
    events: tuple[Event, ...]

    @classmethod
    def of(cls, seed: int, lines: int, kills: int) -> Plan:
        """After the kills, one worker is paused."""
        dice = random.Random(seed)
        part = lines // (kills + 2)
        first = dice.randrange(2)
        return cls(
            seed,
            lines,
            tuple(
                Event(
                    KILL if number < kills else STOP,
                    tuple(FILES)[(first + number) % 2],
                    dice.randint(1, max(1, part // 4)),
                    dice.uniform(0, _DELAY_MS_MAX),
                )
                for number in range(kills + 1)
            ),
        )


def copy_lines(target: Target, plan: Plan) -> Outcome:
    """Kafka Connect and the broker cannot make it raise."""
    return perform(
        "kafka-connect", target, plan.seed, lambda folder, steps: _Copying(target, plan, folder, steps)
    )


def line(number: int) -> str:
    """A line of a file, without its end."""
    return f"{number} ".ljust(_LINE_CHARACTERS - 1, ".")


def check(lines: int, files: int, committed: Sequence[checker.Seen]) -> list[str]:
    """What is wrong with a topic to which this many lines, dealt to the files in turn, were copied."""
    numbers = {line(number): number for number in range(lines)}
    times = Counter(seen.value for seen in committed)
    problems = []
    if lacking := [number for text, number in numbers.items() if not times[text]]:
        problems.append(f"{len(lacking)} of {lines} lines were lost: {checker.some(lacking)}")
    if repeated := [number for text, number in numbers.items() if times[text] > 1]:
        problems.append(f"{len(repeated)} lines were committed more than once: {checker.some(repeated)}")
    if strange := [text for text in times if text not in numbers]:
        problems.append(f"{len(strange)} lines were never written: {checker.some(strange)}")
    ways: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for seen in committed:
        number = numbers.get(seen.value, 0)
        ways[number % files, seen.partition].append(number)
    problems += [
        f"lines of file {file} are in another order in partition {partition}"
        for (file, partition), found in sorted(ways.items())
        if found != sorted(found)
    ]
    return problems


class _Copying(Stage):
    def __init__(self, target: Target, plan: Plan, folder: Path, steps: list[str]) -> None:
        super().__init__(target, folder, steps)
        self._plan = plan
        self._oracle = Oracle(target.bootstrap)
        self._cluster = f"connect-{uuid.uuid4().hex[:8]}"
        self._ports = dict.fromkeys(WORKERS, 0)
        self._fed = 0
        self._lines_of_a_poll = _LINES_OF_A_POLL

    def play(self) -> list[str]:
        first = free_ports(len(WORKERS))
        self._ports = {name: first + number for number, name in enumerate(WORKERS)}
        for boundary in FILES:
            self._oracle.create_topic(self._topic(boundary), PARTITIONS)
            for file in self._files(boundary):
                file.touch()
        for name in WORKERS:
            self._start(name)
        for boundary in FILES:
            self._configure(boundary)
        self._wait_until_running()
        self._note("the connectors run")
        part = self._plan.lines // (len(self._plan.events) + 1)
        for event in self._plan.events:
            self._let_happen(event, part)
        self._feed(self._plan.lines - self._fed)
        self._wait_until_copied(WORKERS[0])
        self._wait_until_running()
        return self._check()

    def _let_happen(self, event: Event, part: int) -> None:
        wanted = self._records(event.boundary) + event.after
        self._feed(part // 2)
        self._wait_until(
            lambda: self._records(event.boundary) >= wanted, f"{wanted} records of {event.boundary}"
        )
        time.sleep(event.delay_ms / 1_000)  # into whatever comes next
        name = self._worker_of(event.boundary)
        self._note(f"{name} is {event.what}, which has the task of {event.boundary}")
        if event.what == KILL:
            self._members.kill(name)
            self._start(name)
            self._feed(part - part // 2)
            self._wait_until_running()
            self._note("both are there again")
            return
        program = self._members.programs[name]
        program.pause()
        other = next(each for each in WORKERS if each != name)
        fenced = self._fenced(other)
        self._lines_of_a_poll += 1  # new tasks, before which the old ones are fenced
        for boundary in FILES:
            self._configure(boundary, at=other)
        self._wait_until(lambda: self._fenced(other) > fenced, f"{other} that fences", _READY_S)
        self._feed(part - part // 2)
        self._wait_until_copied(other)
        program.resume()
        self._wait_until_running()
        self._note(f"{other} has fenced the tasks of old and taken over; {name} is back")

    def _fenced(self, name: str) -> int:
        """How often this worker has logged that it fences tasks."""
        return self._members.programs[name].stderr_path.read_text(errors="replace").count(_FENCING)

    def _start(self, name: str) -> None:
        configs = {
            "bootstrap.servers": self._target.bootstrap,
            "group.id": self._cluster,
            "exactly.once.source.support": "enabled",
            "listeners": f"http://127.0.0.1:{self._ports[name]}",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "plugin.discovery": "service_load",
            "offset.storage.topic": self._offsets,
            "offset.storage.partitions": PARTITIONS,
            "config.storage.topic": f"{self._cluster}-configs",
            "status.storage.topic": f"{self._cluster}-status",
            "status.storage.partitions": 1,
            **{f"{kind}.storage.replication.factor": 1 for kind in ("offset", "config", "status")},
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": SESSION_TIMEOUT_MS // 10,
            "scheduled.rebalance.max.delay.ms": 0,
        }
        properties = self._folder / f"{name}.properties"
        properties.write_text("".join(f"{config}={value}\n" for config, value in configs.items()))
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        self._members.start(name, [*java(self._classpath(), _SAY_FENCING), main, str(properties)])

    def _classpath(self) -> str:
        """Includes our connector, and the file that registers it."""
        services = self._folder / "META-INF" / "services"
        services.mkdir(parents=True, exist_ok=True)
        (services / "org.apache.kafka.connect.source.SourceConnector").write_text("Files\n")
        programs = compiled([PROGRAMS / "connect" / "Files.java"], connect_classpath())
        return f"{self._folder}{os.pathsep}{programs}"

    def _configure(self, boundary: str, at: str = WORKERS[0]) -> None:
        """Create the connector, or update its tasks' configs."""
        configs = {
            **self._source(boundary),
            "topic": self._topic(boundary),
            "batch.size": str(self._lines_of_a_poll),
            "exactly.once.support": "required",
            "transaction.boundary": boundary,
            **({"transaction.boundary.interval.ms": str(_INTERVAL_MS)} if boundary == "interval" else {}),
        }
        path = f"connectors/{boundary}/config"
        self._wait_until(
            lambda: self._ask(at, path, configs, "PUT") is not None, f"connector {boundary}", _READY_S
        )

    def _source(self, boundary: str) -> dict[str, str]:
        files = self._files(boundary)
        if len(files) == 1:
            return {"connector.class": "FileStreamSource", "tasks.max": "1", "file": str(files[0])}
        named = ",".join(map(str, files))
        return {"connector.class": "Files", "tasks.max": str(len(files)), "files": named}

    def _ask(self, name: str, path: str, body: object = None, method: str = "GET") -> Any:
        """A worker's answer; None if there is none, or not now."""
        url = f"http://127.0.0.1:{self._ports[name]}/{path}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refused:
            with refused:
                if refused.code < 500 and refused.code not in (404, 409):  # not yet, or rebalancing
                    raise StoryFailed(f"{name} refused {path}: {refused.read().decode()}") from None
        except OSError:
            pass
        return None

    def _worker_of(self, boundary: str) -> str:
        """The worker that runs the connector's first task."""
        found: list[str] = []

        def is_known() -> bool:
            status = self._ask(WORKERS[0], f"connectors/{boundary}/status")
            found[:] = [task["worker_id"] for task in status["tasks"]] if status else []
            return bool(found)

        self._wait_until(is_known, f"the worker of {boundary}")
        return next(name for name, port in self._ports.items() if found[0].endswith(f":{port}"))

    def _wait_until_running(self) -> None:
        """Wait until every connector and task runs, according to both workers."""
        self._wait_until(lambda: all(map(self._is_running, WORKERS)), "connectors that run", _READY_S)

    def _is_running(self, name: str) -> bool:
        """Whether everything runs, according to this worker. Whatever has failed is restarted: a task fails
        for good if it cannot ask the leader to fence its predecessors because the leader was killed."""
        running = True
        for boundary, files in FILES.items():
            status = self._ask(name, f"connectors/{boundary}/status")
            states = [status["connector"], *status["tasks"]] if status else []
            for failed in [each for each in states if each["state"] == "FAILED"]:
                path = f"connectors/{boundary}/restart?includeTasks=true&onlyFailed=true"
                if self._ask(name, path, method="POST") is not None:
                    self._note(f"{boundary} is started again: {failed['trace'].splitlines()[0]}")
            running &= len(states) == 1 + files and all(each["state"] == "RUNNING" for each in states)
        return running

    def _feed(self, count: int) -> None:
        """Append the next lines to the files of both connectors."""
        for boundary, files in FILES.items():
            dealt = ["" for _ in range(files)]
            for number in range(self._fed, self._fed + count):
                dealt[number % files] += f"{line(number)}\n"
            for path, lines in zip(self._files(boundary), dealt, strict=True):
                with path.open("a") as file:
                    file.write(lines)
        self._fed += count

    def _records(self, boundary: str) -> int:
        """The number of records in the topic, including markers and aborted records."""
        return sum(self._oracle.ends(self._topic(boundary), PARTITIONS).values())

    def _wait_until_copied(self, name: str) -> None:
        """Wait until everything is copied, with this worker running."""

        def is_copied() -> bool:
            self._is_running(name)
            positions = self._positions()
            files = (file for boundary in FILES for file in self._files(boundary))
            return all(positions.get(str(file)) == file.stat().st_size for file in files)

        self._wait_until(is_copied, "offsets at the ends of the files", _DONE_S)

    def _wait_until(self, fact: Callable[[], bool], what: str, seconds_max: float = 60.0) -> None:
        deadline = time.monotonic() + seconds_max
        while not fact():
            if time.monotonic() > deadline:
                raise StoryFailed(f"{what}: not within {seconds_max:g} s")
            self._members.raise_if_ended()
            time.sleep(_LOOK_AGAIN_S)

    def _check(self) -> list[str]:
        """What is wrong with the final state."""
        problems = []
        positions = self._positions()
        for boundary in FILES:
            committed = self._read(self._topic(boundary))
            uncommitted, _ = checker.read(self._target.bootstrap, self._topic(boundary), "read_uncommitted")
            found = check(self._plan.lines, FILES[boundary], committed)
            problems += [f"{boundary}: {each}" for each in found]
            for file in self._files(boundary):
                if (position := positions.get(str(file))) != (size := file.stat().st_size):
                    problems.append(f"{file.name} has offset {position}, and {size} bytes")
            self._note(f"{boundary}: {len(committed)} lines, {len(uncommitted)} with read_uncommitted")
        if (policy := asyncio.run(self._cleanup_policy())) != "compact":
            problems.append(f"the topic of offsets has cleanup.policy {policy}")
        return problems

    def _positions(self) -> dict[str, int]:
        """By file: the committed offset in bytes."""
        committed = self._read(self._offsets)
        return {json.loads(seen.key)[1]["filename"]: json.loads(seen.value)["position"] for seen in committed}

    async def _cleanup_policy(self) -> str | None:
        async with Admin(self._target.bootstrap) as admin:
            resource = ConfigResource.of_topic(self._offsets)
            described = (await admin.describe_configs([resource])).raise_for_failures()
            return described[resource]["cleanup.policy"].value

    def _read(self, topic: str) -> list[checker.Seen]:
        return checker.read(self._target.bootstrap, topic, "read_committed")[0]

    @property
    def _offsets(self) -> str:
        return f"{self._cluster}-offsets"

    def _topic(self, boundary: str) -> str:
        return f"{self._cluster}-{boundary}"

    def _files(self, boundary: str) -> list[Path]:
        return [self._folder / f"{boundary}-{number}.txt" for number in range(FILES[boundary])]
