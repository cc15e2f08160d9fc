"""The members that a case drives: processes of real clients that take commands and report events."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tests.causes.programs.commands import Options
from tests.interop.story.clients.base import PROGRAMS
from tests.interop.story.clients.java import compiled
from tests.support.java import java
from tests.support.kafka_artifacts import clients_classpath

DEADLINE_S: Final = 90.0

PYTHON_CLIENTS: Final = ("confluent", "kafka_python", "aiokafka", "muster")
JAVA: Final = "java"
CLIENTS: Final = (JAVA, *PYTHON_CLIENTS)
SHOWN: Final = {
    "java": "Java client",
    "confluent": "confluent-kafka (librdkafka)",
    "kafka_python": "kafka-python",
    "aiokafka": "aiokafka",
    "muster": "muster.client",
}
"""Client names as the table shows them."""
_HERE: Final = Path(__file__).parent
_JAVA_ASSIGNORS: Final = {"range": "RangeAssignor", "roundrobin": "RoundRobinAssignor"}


@dataclass(frozen=True)
class Said:
    """A line that a member printed."""

    event: str
    fields: dict[str, Any]


class Member:
    """One process, in its own session so that the whole process group can be signalled."""

    def __init__(self, command: Sequence[str], complaints: Path) -> None:
        self.said: list[Said] = []
        self._changed = threading.Condition()
        self._complaints = complaints
        with complaints.open("ab") as stderr:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def owned(self) -> list[tuple[str, int]]:
        """Its latest assignment; with an eager assignor, that is everything it owns. In the consumer
        protocol, the partitions gained and not yet lost."""
        gained: set[tuple[str, int]] = set()
        for each in self.said:
            if each.event not in ("assigned", "gained", "lost"):
                continue
            named = {_partition(one) for one in each.fields["partitions"]}
            gained = {"assigned": named, "gained": gained | named, "lost": gained - named}[each.event]
        return sorted(gained)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            fields = json.loads(line)
            with self._changed:
                self.said.append(Said(fields.pop("event"), fields))
                self._changed.notify_all()
        with self._changed:
            self.said.append(Said("ended", {}))
            self._changed.notify_all()

    def tell(self, command: str) -> None:
        """Send it a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(command.encode() + b"\n")
        self.process.stdin.flush()

    def wait_for(self, event: str, *, after: int = 0) -> int:
        """Wait until it reports the event after its first `after` lines; return the number of lines so
        far."""

        def said() -> bool:
            return any(each.event == event for each in self.said[after:])

        with self._changed:
            if not self._changed.wait_for(said, DEADLINE_S):
                raise AssertionError(
                    f"{event!r} was not said, but {self.said[-5:]}\n{self._last_complaints()}"
                )
            return len(self.said)

    def close(self) -> None:
        """Close the member: it leaves the group the way users' consumers do."""
        self.tell("close")
        self.wait_for("ended")

    def kill(self) -> None:
        """SIGKILL."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stand_still(self) -> None:
        """SIGSTOP: to others, this looks like a long pause of the machine or the garbage collector."""
        os.killpg(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        os.killpg(self.process.pid, signal.SIGCONT)

    def end(self) -> None:
        """Kill it, whatever its state, and release its resources."""
        self.kill()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def _last_complaints(self) -> str:
        return "\n".join(self._complaints.read_text(errors="replace").splitlines()[-20:])


def _partition(named: str | list[Any]) -> tuple[str, int]:
    """Python members send a topic and a partition number; Java members send one string."""
    topic, number = named.rsplit("-", 1) if isinstance(named, str) else named
    return topic, int(number)


class Stage:
    """Holds the members of one case and ends them all on exit."""

    def __init__(self, bootstrap: str, group: str, folder: Path) -> None:
        self.bootstrap = bootstrap
        self.group = group
        self._folder = folder
        self._members: list[Member] = []

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self._members:
            member.end()

    def start(self, client: str, name: str, *, topics: Sequence[str] = ("orders",), **options: Any) -> Member:
        """Start a member with client id `name`; `options` are fields of `Options`."""
        wanted = Options(self.bootstrap, self.group, list(topics), name, **options)
        command = _java(wanted) if client == JAVA else _python(client, wanted)
        member = Member(command, self._folder / f"{name}.stderr")
        self._members.append(member)
        return member


def _python(client: str, options: Options) -> list[str]:
    # Ignore warnings, as the tests do: kafka-python uses deprecated Python features.
    return [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        f"tests.causes.programs.{client}",
        json.dumps(asdict(options)),
    ]


def _java(options: Options) -> list[str]:
    settings: dict[str, object] = {
        "bootstrap.servers": options.bootstrap,
        "group.id": options.group,
        "client.id": options.client_id,
        "group.protocol": options.protocol,
        "max.poll.interval.ms": options.max_poll_interval_ms,
        "metadata.max.age.ms": options.metadata_max_age_ms,
    }
    if options.protocol == "classic":
        settings["session.timeout.ms"] = options.session_timeout_ms
        settings["heartbeat.interval.ms"] = options.heartbeat_interval_ms
    if options.instance is not None:
        settings["group.instance.id"] = options.instance
    if options.assignors:
        settings["partition.assignment.strategy"] = ",".join(
            f"org.apache.kafka.clients.consumer.{_JAVA_ASSIGNORS[each]}" for each in options.assignors
        )
    return [
        *java(java_classpath()),
        *("Acting", ",".join(options.topics)),
        *(f"{name}={value}" for name, value in settings.items()),
    ]


def java_classpath() -> str:
    """The Java member, compiled once per machine."""
    sources = [_HERE / "programs" / "Acting.java", PROGRAMS / "java" / "Lines.java"]
    return compiled(sources, clients_classpath())


def wait_until(fact: Callable[[], object], what: str) -> None:
    """Wait until `fact` holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not fact():
        if time.monotonic() > deadline:
            raise AssertionError(f"not after {DEADLINE_S:g} s: {what}")
        time.sleep(0.02)  # poll interval
