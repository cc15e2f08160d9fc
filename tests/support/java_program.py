"""A single-file Java program in a JVM of its own, queried line by line over a pipe."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from threading import Timer
from types import TracebackType
from typing import Final, Self

from tests.support.java import java

_OPTIONS: Final = ("-Xmx1g", "-XX:+UseSerialGC")  # both compilers: it may work for minutes
_LIFE_SECONDS_MAX: Final = 900


class JavaProgram:
    """Runs inside a `with` block; it ends when the block does, or after a quarter of an hour."""

    def __init__(self, source: Path, classpath: str) -> None:
        self._command = [*java(classpath, options=_OPTIONS, log="off"), str(source)]

    def __enter__(self) -> Self:
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            encoding="utf-8",
        )
        self._end = Timer(_LIFE_SECONDS_MAX, self._process.kill)
        self._end.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.cancel()
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def say(self, *lines: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("".join(f"{line}\n" for line in lines))
        self._process.stdin.flush()

    def hear(self) -> str:
        """The next line, without its end. Raises AssertionError with its error output if there is none."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise AssertionError(f"the Java program ended:\n{self._errors.read().decode()}")
        return line.removesuffix("\n")
