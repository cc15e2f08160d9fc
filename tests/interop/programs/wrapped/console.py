"""Kafka's console producer and consumer, and its other tools as admin calls.

The consumer prints records; its group's rebalances are in its log, which goes to standard output too, so that
both stay in order. It commits automatically, ten times a second.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Final

from tests.interop.programs.python.lines import records, run
from tests.interop.programs.wrapped.child import feed, follow
from tests.interop.programs.wrapped.console_admin import admin
from tests.interop.programs.wrapped.console_consumer import ConsoleConsumer, consumer_command

_PRODUCER: Final = "org.apache.kafka.tools.ConsoleProducer"
_AUTO_COMMIT_INTERVAL_MS: Final = 100
# The producer's own defaults, 3 retries and 1.5 s, give up a record when its partition has no leader for a
# second; it says so, and exits 0.
_PATIENCE: Final = ("--message-send-max-retries", "2147483647", "--request-timeout-ms", "30000")
_RECORD_GIVEN_UP: Final = "Error when sending message"


def produce(java: Sequence[str], bootstrap: str, topic: str, codec: str, first: int, count: int) -> None:
    options = ["--bootstrap-server", bootstrap, "--topic", topic, "--compression-codec", codec, *_PATIENCE]
    for each in ("parse.key=true", "key.separator=\t"):
        options += ["--reader-property", each]
    lines = "".join(f"{key.decode()}\t{value.decode()}\n" for key, value in records(codec, first, count))
    feed([*java, _PRODUCER, *options], lines, failure=_RECORD_GIVEN_UP)


def member(java: Sequence[str], bootstrap: str, group: str, topic: str, session_timeout_ms: int) -> None:
    properties = {
        "auto.commit.interval.ms": _AUTO_COMMIT_INTERVAL_MS,
        "session.timeout.ms": session_timeout_ms,
        "heartbeat.interval.ms": session_timeout_ms // 20,
    }
    follow(consumer_command(java, bootstrap, group, topic, properties), ConsoleConsumer())


def main() -> None:
    """The arguments before `--` call Java, with the class path at their end."""
    end = sys.argv.index("--")
    java, sys.argv[1:] = sys.argv[1:end], sys.argv[end + 1 :]
    run(partial(produce, java), partial(member, java), partial(admin, java))


if __name__ == "__main__":
    main()
