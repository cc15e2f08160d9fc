"""Kafka's console consumer: its command line, and its output."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from tests.interop.programs.python.lines import (
    complain,
    say,
    say_assigned,
    say_committed,
    say_record,
    say_revoked,
)

_CONSUMER: Final = "org.apache.kafka.tools.consumer.ConsoleConsumer"
_INTERNALS: Final = "org.apache.kafka.clients.consumer.internals"
_LOGGING: Final = (
    "-Dorg.slf4j.simpleLogger.logFile=System.out",
    f"-Dorg.slf4j.simpleLogger.log.{_INTERNALS}.ConsumerCoordinator=debug",
    f"-Dorg.slf4j.simpleLogger.log.{_INTERNALS}.ConsumerRebalanceListenerInvoker=info",
)
_ENDED_BY_SIGTERM: Final = 143  # the exit code of a JVM that ran its shutdown hooks

_RECORD: Final = re.compile(r"Partition:(\d+)\tOffset:(\d+)\t([^\t]+)\t([\w-]+)")
_LOG: Final = re.compile(r"\[[^\[\]]*\] ([A-Z]+) (org\.apache\.kafka\.[\w.$]+) - (?:\[.*?\] )?(.*)")
_SYNCED: Final = re.compile(r"Successfully synced group in generation Generation\{generationId=(\d+),")
_ADDED: Final = re.compile(r"Adding newly assigned partitions: \[(.*)\]")
_GIVEN_UP: Final = re.compile(r"(Revoke|Lost) previously assigned partitions")
_COMMITTED: Final = re.compile(r"Committed offset (\d+) for partition \S+-(\d+)$")
_COMMIT_FAILED: Final = re.compile(r"\w+ronous auto-commit of offsets \{(.*)\} failed")
_OFFSET: Final = re.compile(r"-(\d+)=OffsetAndMetadata\{offset=(\d+),")
_LEFT: Final = re.compile(r"LeaveGroup response with .* returned successfully")


class ConsoleConsumer:
    """What it has printed so far. Its assignor is range: it gives up everything it owns at once."""

    def __init__(self) -> None:
        self._left = False
        self._generation: int | None = None
        self._committed: dict[int, int] = {}
        """Its last commits: it commits all positions, even unchanged ones."""
        self._begun = ""
        """The start of a record, written in pieces: other threads may log in between, or end the line."""

    def hear(self, line: str) -> None:
        whole = self._begun + line
        if log := _LOG.search(whole):
            self._begun = whole[: log.start()]
            self._hear_log(log[1], log[2], log[3])
        elif record := _RECORD.fullmatch(whole):
            self._begun = ""
            say_record(int(record[1]), int(record[2]), record[3].encode(), record[4].encode())
        elif line.startswith("Partition:"):
            self._begun = line
        else:
            complain(line)  # of an exception, perhaps, which was logged in the middle of a record

    def may_leave(self) -> bool:
        return True

    def leave(self, code: int) -> None:
        if code not in (0, _ENDED_BY_SIGTERM) or not self._left:
            has = "has" if self._left else "has not"
            raise SystemExit(f"the consumer exited {code} and {has} left the group")
        say("left")

    def _hear_log(self, level: str, logger: str, text: str) -> None:
        if not logger.startswith(_INTERNALS):
            complain(f"{level} {logger}: {text}")
        elif found := _SYNCED.match(text):
            self._generation = int(found[1])
        elif found := _ADDED.match(text):
            self._committed = {}
            say_assigned(
                self._generation, [int(name.rpartition("-")[2]) for name in found[1].split(", ") if name]
            )
        elif _GIVEN_UP.match(text):
            say_revoked()
        elif found := _COMMITTED.match(text):
            offset, partition = int(found[1]), int(found[2])
            if self._committed.get(partition) != offset:
                self._committed[partition] = offset
                say_committed({partition: offset})
        elif found := _COMMIT_FAILED.match(text):
            offsets = {int(each[1]): int(each[2]) for each in _OFFSET.finditer(found[1])}
            say_committed(offsets, certain=False)
        elif _LEFT.match(text):
            self._left = True
        elif level in ("WARN", "ERROR"):
            complain(text)


def consumer_command(
    java: Sequence[str], bootstrap: str, group: str, topic: str, properties: Mapping[str, object]
) -> list[str]:
    """The command line. `java` calls Java, with the class path at its end."""
    *options, classpath_option, classpath = java
    command = [*options, *_LOGGING, classpath_option, classpath, _CONSUMER, "--bootstrap-server", bootstrap]
    command += ["--group", group, "--topic", topic, "--from-beginning"]
    for name, value in properties.items():
        command += ["--command-property", f"{name}={value}"]
    for name in ("partition", "offset", "key"):
        command += ["--formatter-property", f"print.{name}=true"]
    return command
