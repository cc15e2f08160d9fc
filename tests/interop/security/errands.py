"""Clients' short lives: each produces one record, or joins a group, reads one record, commits it and leaves.

Where a client is a separate program, one process runs all its errands: it reads one per line,

    produce TAB topic TAB value TAB file of settings
    consume TAB topic TAB group TAB file of settings

and answers with a line of JSON: {"value": ...}, the value of the record, or {"error": ..., "message": ...},
with the error's name.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from threading import Timer
from types import TracebackType
from typing import Any, Final, Protocol, Self

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from kafka import KafkaConsumer, KafkaProducer

from muster import client
from tests.interop.security.logins import Settings, write_json, write_properties
from tests.interop.story.clients.built import FRANZ_GO, KAFKAJS, KCAT
from tests.interop.story.clients.java import CONSOLE, JAVA
from tests.support.java import java
from tests.support.kafka_artifacts import broker_classpath

SOON_S: Final = 20.0
_LIFE_S: Final = 300.0
# Its threads may go on for a moment after the tool has ended, and would log into the output of the next.
_LOGGING: Final = "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.clients.NetworkClient=off"


class Failed(Exception):
    """A failed errand, with the client's name for the error and its message."""

    def __init__(self, error: str, message: str) -> None:
        super().__init__(f"{error}: {message}")
        self.error = error
        self.message = message


class Client(Protocol):
    """Both raise Failed."""

    def produce(self, settings: Settings, topic: str, value: str) -> None: ...

    def consume(self, settings: Settings, topic: str, group: str) -> str:
        """The value of the record."""


# --- clients in Python --------------------------------------------------------------------------------------


class Confluent:
    def produce(self, settings: Settings, topic: str, value: str) -> None:
        errors: list[KafkaError] = []
        delivered: list[KafkaError | None] = []
        producer = Producer(settings | {"error_cb": errors.append})
        producer.produce(topic, value, on_delivery=lambda error, _: delivered.append(error))
        deadline = time.monotonic() + SOON_S
        while not delivered and not errors and time.monotonic() < deadline:
            producer.poll(0.1)
        _raise_first([*errors, *filter(None, delivered)])
        assert delivered, "the record is under way"

    def consume(self, settings: Settings, topic: str, group: str) -> str:
        errors: list[KafkaError] = []
        config = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        with closing(Consumer(settings | config | {"error_cb": errors.append})) as consumer:
            consumer.subscribe([topic])
            deadline = time.monotonic() + SOON_S
            record = None
            while record is None and not errors and time.monotonic() < deadline:
                record = consumer.poll(0.1)
            _raise_first(errors)
            assert record is not None, "no record"
            error = record.error()
            _raise_first([] if error is None else [error])
            try:
                consumer.commit(record, asynchronous=False)
            except KafkaException as failed:
                _raise_first([failed.args[0]])
            value = record.value()
            assert isinstance(value, bytes)
            return value.decode()


def _raise_first(errors: Sequence[KafkaError]) -> None:
    if errors:
        raise Failed(errors[0].name(), errors[0].str())


class KafkaPython:
    def produce(self, settings: Settings, topic: str, value: str) -> None:
        with _told(), closing(KafkaProducer(**settings)) as producer:
            producer.send(topic, value.encode()).get(SOON_S)

    def consume(self, settings: Settings, topic: str, group: str) -> str:
        config = {"group_id": group, "auto_offset_reset": "earliest", "enable_auto_commit": False}
        with _told(), closing(KafkaConsumer(topic, **config, **settings)) as consumer:
            (records,) = consumer.poll(SOON_S * 1000, max_records=1).values()
            consumer.commit()
            value: bytes = records[0].value
            return value.decode()


class Aiokafka:
    def produce(self, settings: Settings, topic: str, value: str) -> None:
        async def run() -> None:
            producer = AIOKafkaProducer(**settings)
            try:
                await producer.start()
                await producer.send_and_wait(topic, value.encode())
            finally:  # also if it could not log in, unlike `async with`
                await producer.stop()

        with _told():
            asyncio.run(run())

    def consume(self, settings: Settings, topic: str, group: str) -> str:
        config = {"group_id": group, "auto_offset_reset": "earliest", "enable_auto_commit": False}

        async def run() -> str:
            consumer = AIOKafkaConsumer(topic, **config, **settings)
            try:
                await consumer.start()
                record = await asyncio.wait_for(consumer.getone(), SOON_S)
                await consumer.commit()
                value: bytes = record.value
                return value.decode()
            finally:
                await consumer.stop()

        with _told():
            return asyncio.run(run())


class Muster:
    def produce(self, settings: Settings, topic: str, value: str) -> None:
        async def run() -> None:
            async with client.Producer(**settings) as producer:
                await producer.send(topic, value.encode())

        with _told():
            asyncio.run(run())

    def consume(self, settings: Settings, topic: str, group: str) -> str:
        config = {"group_id": group, "topics": topic, "auto_offset_reset": "earliest"}

        async def run() -> str:
            async with client.Consumer(**config, **settings) as consumer:
                record = await consumer.get(SOON_S)
                assert record is not None, "no record"
                assert (await consumer.commit()).ok
                return bytes(record.value).decode()

        with _told():
            return asyncio.run(run())


class _told:
    """Turns its own errors into what the client reports."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            raise Failed(type(error).__name__, str(error)) from error


# --- clients that are programs ------------------------------------------------------------------------------


class Asked:
    """A process that answers each line with a line of JSON. It lives as long as all errands may take."""

    def __init__(self, command: Sequence[str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, encoding="utf-8"
        )
        self._end = Timer(_LIFE_S, self._process.kill)
        self._end.start()

    def ask(self, *fields: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join(fields) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise AssertionError(f"the program ended:\n{self._errors.read().decode()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._end.cancel()
        self._process.kill()
        self._process.communicate()
        self._errors.close()


class Program:
    """A client with a program for errands."""

    def __init__(self, asked: Asked, folder: Path, write: Callable[[Settings, Path], Path]) -> None:
        self._asked = asked
        self._folder = folder
        self._write = write
        self._numbers = count()

    def produce(self, settings: Settings, topic: str, value: str) -> None:
        self._run("produce", topic, value, settings)

    def consume(self, settings: Settings, topic: str, group: str) -> str:
        return self._run("consume", topic, group, settings)

    def _run(self, verb: str, topic: str, what: str, settings: Settings) -> str:
        file = self._write(settings, self._folder / f"settings-{next(self._numbers)}")
        answer = self._asked.ask(verb, topic, what, str(file))
        if "error" in answer:
            raise Failed(answer["error"], answer["message"])
        value: str = answer["value"]
        return value


class Tools:
    """Kafka's own tools, run one after the other in one JVM."""

    def __init__(self, folder: Path, classpath: str) -> None:
        self._asked = Asked([*java(classpath, _LOGGING), "Tools"])
        self._folder = folder
        self._numbers = count()

    def close(self) -> None:
        self._asked.close()

    def produce(self, settings: Settings, topic: str, value: str) -> None:
        self.call(settings, "org.apache.kafka.tools.ConsoleProducer", "--topic", topic, "--sync", reads=value)

    def consume(self, settings: Settings, topic: str, group: str) -> str:
        options = ("--topic", topic, "--group", group, "--from-beginning", "--max-messages", "1")
        shown = ("--formatter-property", "print.partition=true", "--timeout-ms", str(int(SOON_S * 1000)))
        printed = self.call(settings, "org.apache.kafka.tools.consumer.ConsoleConsumer", *options, *shown)
        value = re.search(r"(?m)^Partition:0\t(.*)$", printed)
        if value is None:  # it exits 0 even if it may not read
            raise _tool_failed(0, printed)
        return value[1]

    def call(self, settings: Settings, tool: str, *options: str, reads: str | None = None) -> str:
        """The output of the tool of that class, which reads the line `reads`. Raises Failed with the reported
        exception if it exits with a nonzero status."""
        file = write_properties(settings, self._folder / f"tool-{next(self._numbers)}.properties")
        where = ("--bootstrap-server", settings["bootstrap.servers"], "--command-config", str(file))
        given = () if reads is None else (f"<{reads}",)
        answer = self._asked.ask(*given, tool, *options, *where)
        printed: str = answer["output"]
        if answer["exit"] == 0 and not re.search(r"(?m)^Error\b", printed):
            return printed
        raise _tool_failed(answer["exit"], printed)


def _tool_failed(code: int, printed: str) -> Failed:
    found = re.findall(r"\b(\w+Exception)\b", printed)
    named = [each for each in found if each != "ExecutionException"]
    return Failed(named[0] if named else f"exit {code}", printed)


class Kcat:
    def produce(self, settings: Settings, topic: str, value: str) -> None:
        self._run(settings, "-P", "-t", topic, reads=value)

    def consume(self, settings: Settings, topic: str, group: str) -> str:
        earliest = ("-X", "auto.offset.reset=earliest")
        return self._run(settings, *earliest, "-c", "1", "-G", group, topic).rstrip("\n")

    def _run(self, settings: Settings, *options: str, reads: str = "") -> str:
        given = [part for name, value in settings.items() for part in ("-X", f"{name}={value}")]
        done = subprocess.run(
            ["kcat", *given, *options],
            input=reads,
            capture_output=True,
            text=True,
            timeout=SOON_S,
            check=False,
        )
        if done.returncode != 0:
            raise Failed(f"exit {done.returncode}", done.stderr)
        return done.stdout


class Clients:
    """Clients by name. A program starts when first used; leaving the block ends all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, Client] = {}
        self._running = ExitStack()

    def __getitem__(self, name: str) -> Client:
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    @property
    def tools(self) -> Tools:
        tools = self["kafka-console-tools"]
        assert isinstance(tools, Tools)
        return tools

    def _make(self, name: str) -> Client:
        match name:
            case "confluent-kafka":
                return Confluent()
            case "kafka-python":
                return KafkaPython()
            case "aiokafka":
                return Aiokafka()
            case "kcat":
                KCAT.prepare()
                return Kcat()
            case "kafka-console-tools":
                CONSOLE.prepare()
                return self._running.enter_context(closing(Tools(self._folder, CONSOLE.classpath())))
            case "muster-kafka":
                return Muster()
            case "java-client":
                JAVA.prepare()
                # It parses tokens with Jackson, which it does not bring along.
                classpath = os.pathsep.join((JAVA.classpath(), broker_classpath()))
                return self._program(name, [*java(classpath), "Errands"], write_properties)
            case "franz-go":
                FRANZ_GO.prepare()
                return self._program(name, [*FRANZ_GO.command(), "errands"], write_json)
            case "kafkajs":
                KAFKAJS.prepare()
                return self._program(name, KAFKAJS.command("errands.js"), write_json)
        raise ValueError(f"no client {name!r}")

    def _program(self, name: str, command: Sequence[str], write: Callable[[Settings, Path], Path]) -> Client:
        folder = self._folder / name
        folder.mkdir()
        return Program(self._running.enter_context(closing(Asked(command))), folder, write)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()
