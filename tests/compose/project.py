"""The compose file, run for real: its own project, on free ports, broken and repaired through `docker`."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from tests.support.ports import free_ports

ROOT: Final = Path(__file__).parents[2]
BROKERS: Final = ("broker-1", "broker-2", "broker-3")
FOURTH: Final = "broker-4"
COMMAND_S: Final = 300.0
"""Timeout of one `docker compose` command; the first one builds the image."""
FACT_S: Final = 90.0
_PAUSE_S: Final = 0.05  # poll interval

T = TypeVar("T")


def eventually(ask: Callable[[], T], what: str, within_s: float = FACT_S) -> T:
    """Wait until `ask` returns a true value and return it; AssertionError with the last value on timeout."""
    deadline = time.monotonic() + within_s
    while True:
        answer = ask()
        if answer:
            return answer
        assert time.monotonic() < deadline, (
            f"{what}: not within {within_s:.0f} s; the last answer: {answer!r}"
        )
        time.sleep(_PAUSE_S)


class Project:
    """`docker compose` on the repository's file, under a unique project name."""

    def __init__(self) -> None:
        self.name = f"muster-test-{os.getpid()}"
        first = free_ports(8)
        self.ports = {broker: first + index for index, broker in enumerate((*BROKERS, FOURTH))}
        self.pages = {broker: port + 4 for broker, port in self.ports.items()}
        self._environment = {
            name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")
        }
        for broker, port in self.ports.items():
            variable = broker.upper().replace("-", "_")
            self._environment[f"{variable}_PORT"] = str(port)
            self._environment[f"{variable}_HTTP_PORT"] = str(self.pages[broker])

    @property
    def bootstrap(self) -> str:
        """The addresses of the three brokers for clients outside the containers."""
        return ",".join(f"127.0.0.1:{self.ports[broker]}" for broker in BROKERS)

    # --- commands -------------------------------------------------------------------------------------------

    def compose(self, *arguments: str) -> str:
        """Output of `docker compose`; AssertionError with its full output if it fails."""
        # The repository's example is the only settings file: the user's own .env is not under test.
        files = ["--file", str(ROOT / "docker-compose.yml"), "--env-file", str(ROOT / ".env.example")]
        return self.docker("compose", "--project-name", self.name, *files, *arguments)

    def docker(self, *arguments: str) -> str:
        """Output of `docker`."""
        ran = self._run(*arguments)
        said = f"docker {' '.join(arguments)}: {ran.returncode}\n{ran.stdout}{ran.stderr}"
        assert ran.returncode == 0, said
        return ran.stdout

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["docker", *arguments], capture_output=True, text=True, timeout=COMMAND_S, env=self._environment
        )

    def muster(self, service: str, *arguments: str) -> str:
        """Output of the `muster` command inside a running container."""
        return self.compose("exec", "--no-TTY", service, "muster", *arguments)

    # --- containers -----------------------------------------------------------------------------------------

    def container(self, service: str) -> dict[str, Any]:
        """The output of `docker inspect` for a service's container, which may have exited."""
        container_id = self.compose("--profile", "*", "ps", "--all", "--quiet", service).strip()
        (facts,) = json.loads(self.docker("inspect", container_id))
        found: dict[str, Any] = facts
        return found

    def state(self, service: str) -> dict[str, Any]:
        """`Status`, `ExitCode`, `Health` and so on."""
        found: dict[str, Any] = self.container(service)["State"]
        return found

    def wait_until_ready(self, *services: str) -> None:
        """Wait until each broker reports ready, with its health check's question but polling faster."""
        for service in services:
            eventually(partial(self._is_ready, self.container(service)["Id"]), f"{service} is ready")

    def _is_ready(self, container_id: str) -> bool:
        return self._run("exec", container_id, "muster", "cluster", "ready").returncode == 0

    def disconnect(self, service: str) -> None:
        """Disconnect a container from the network: it and everyone else lose sight of each other."""
        self.docker("network", "disconnect", f"{self.name}_default", self.container(service)["Id"])

    def reconnect(self, service: str) -> None:
        """Reconnect it under the name by which the others know it."""
        container_id = self.container(service)["Id"]
        self.docker("network", "connect", "--alias", service, f"{self.name}_default", container_id)

    def remove(self) -> None:
        """Stop and remove everything, including the volume."""
        self.compose("--profile", "*", "down", "--volumes", "--timeout", "20")
