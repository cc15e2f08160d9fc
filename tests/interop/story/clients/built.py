"""Clients in other languages, built once per machine into the user's cache, and kcat, a system package."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tests.interop.programs import wrapped
from tests.interop.story.clients.base import PROGRAMS
from tests.interop.story.clients.program import ALL_CODECS, ProgramClient, need, run
from tests.support.cache import digest, filled_once


@dataclass(frozen=True)
class KafkaJs(ProgramClient):
    """Programs for Node.js; npm installs their dependencies beside a copy of them."""

    def version(self) -> str:
        manifest = self._folder() / "node_modules" / "kafkajs" / "package.json"
        return str(json.loads(manifest.read_text())["version"])

    def prepare(self) -> None:
        need("node", "npm", hint="install Node.js 18 or later with npm")
        self._folder()

    def command(self, program: str = "client.js") -> list[str]:
        return ["node", str(self._folder() / program)]

    def _folder(self) -> Path:
        sources = _sources("kafkajs", "*.js", "package.json")
        return filled_once(f"kafkajs/{_digest(sources)}", partial(_npm_install, sources))


@dataclass(frozen=True)
class FranzGo(ProgramClient):
    """A Go program."""

    def version(self) -> str:
        """The version reported by the built program."""
        told = run(["go", "version", "-m", *self.command()])
        (version,) = re.findall(r"\sgithub\.com/twmb/franz-go\s+v(\S+)", told)
        return str(version)

    def prepare(self) -> None:
        need("go", hint="install Go; its version stands in tests/interop/programs/franz_go/go.mod")
        self.command()

    def command(self) -> list[str]:
        sources = _sources("franz_go", "*.go", "go.mod", "go.sum")
        return [str(filled_once(f"franz-go/{_digest(sources)}", _go_build) / "franz_go")]


@dataclass(frozen=True)
class Kcat(ProgramClient):
    """kcat behind a wrapper that converts its output into the story's lines."""

    def version(self) -> str:
        found = re.search(r"Version (\S+) .*(librdkafka [\d.]+)", run(["kcat", "-V"]))
        assert found is not None, "kcat -V tells no version"
        return f"{found[1]} ({found[2]})"

    def prepare(self) -> None:
        need("kcat", hint="make interop-tools installs it (Debian's package kcat)")
        need("stdbuf", hint="it is part of GNU coreutils")

    def command(self) -> list[str]:
        return [sys.executable, "-m", f"{wrapped.__name__}.kcat"]

    def admin(self, bootstrap: str, prefix: str) -> list[str] | None:
        return None


def _sources(folder: str, *patterns: str) -> list[Path]:
    return sorted(path for pattern in patterns for path in (PROGRAMS / folder).glob(pattern))


def _digest(sources: Sequence[Path]) -> str:
    return digest(*(f"{source.name}\n{source.read_text()}" for source in sources))


def _npm_install(sources: Sequence[Path], folder: Path) -> None:
    for source in sources:
        shutil.copy(source, folder)
    # These packages' install scripts are not needed, nor is a lock file.
    options = ["--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    run(["npm", "install", *options], folder)


def _go_build(folder: Path) -> None:
    run(["go", "build", "-trimpath", "-o", str(folder / "franz_go"), "."], PROGRAMS / "franz_go")


KAFKAJS: Final = KafkaJs("kafkajs", ("none", "gzip", "snappy", "zstd"), looks_only_when_joining=True)
FRANZ_GO: Final = FranzGo("franz-go", ALL_CODECS, may_rejoin=True)
# It takes no token from outside, and its librdkafka before 2.6.1 cannot log in with SCRAM anywhere.
KCAT: Final = Kcat("kcat", ALL_CODECS, doors=("mTLS", "PLAIN"))
