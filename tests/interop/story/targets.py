"""The brokers that the story is played against, each a process of its own, set up as users have them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tests.support.apache_kafka import ApacheKafka
from tests.support.kafka_artifacts import KAFKA_VERSION
from tests.support.proxy import Proxy
from tests.support.served import Served

_LOG_LINES_SHOWN: Final = 40
# Kafka's default of 3 s is there for people who start members by hand. The story waits for facts, and needs
# it only long enough that members which are started together share their first rebalance.
_INITIAL_REBALANCE_DELAY_MS: Final = 500


def _cannot() -> None:
    raise NotImplementedError("this broker is not to be killed")


@dataclass(frozen=True)
class Target:
    """A broker that runs."""

    name: str
    bootstrap: str
    log: Path
    proxy: Proxy | None = None
    """What all connections go through, where they are to be cut."""
    kill_and_start: Callable[[], None] = _cannot
    """SIGKILL to the broker, and start it again on the same data."""

    def last_log_lines(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
        return "\n".join(f"    {line[:500]}" for line in lines) or "    (nothing)"


KAFKA: Final = "kafka"
CUT: Final = "cut"
TARGETS: Final = {
    KAFKA: f"Apache Kafka {KAFKA_VERSION}",
    "serve": "`muster serve`",
    "brokers3": "`muster serve --brokers 3`",
    CUT: "`muster serve`, connections cut, `kill -9`",
}
"""By their names on the command line: as in the README's table, Apache Kafka first."""
KAFKA_CUT: Final = "kafka-cut"
"""Apache Kafka with its connections cut: to try a change of that story, not in the table."""


@contextmanager
def running(name: str) -> Iterator[Target]:
    """Start one of `TARGETS`, or `KAFKA_CUT`; its folder goes with it."""
    if name in (CUT, KAFKA_CUT):
        with Proxy() as proxy, _running(name, proxy) as target:
            yield replace(target, bootstrap=f"127.0.0.1:{proxy.port}", proxy=proxy)
    else:
        with _running(name, None) as target:
            yield target


@contextmanager
def _running(name: str, proxy: Proxy | None) -> Iterator[Target]:
    if name in (KAFKA, KAFKA_CUT):
        configs = {
            "group.initial.rebalance.delay.ms": str(_INITIAL_REBALANCE_DELAY_MS),
            "auto.create.topics.enable": "true",
        }
        with ApacheKafka(configs, advertised_port=proxy.port if proxy else None) as kafka:
            if proxy is not None:
                proxy.upstream_port = kafka.port
            yield Target(name, kafka.bootstrap, kafka.folder / "output.txt")
        return
    brokers = 3 if name == "brokers3" else 1
    options = {
        "--group-initial-rebalance-delay-ms": str(_INITIAL_REBALANCE_DELAY_MS),
        "--brokers": str(brokers),
    }
    if proxy is not None:
        options["--advertised"] = f"127.0.0.1:{proxy.port}"
    flat = [word for option in options.items() for word in option]
    folder = Path(tempfile.mkdtemp(prefix="muster-story-"))
    log = folder / "log.txt"
    try:
        with Served(folder / "data", *flat, log=log, ports=brokers) as served:
            if proxy is not None:
                proxy.upstream_port = served.port
            ports = range(served.port, served.port + brokers)
            addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
            yield Target(name, addresses, log, kill_and_start=lambda: _kill_and_start(served))
    finally:
        shutil.rmtree(folder)


def _kill_and_start(served: Served) -> None:
    served.kill()
    served.start()
