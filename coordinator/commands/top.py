"""`muster top`: watch groups in the terminal."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from muster.client.errors import ClientError
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.coordinator.base.system import on_signals
from muster.coordinator.commands import output
from muster.coordinator.commands.group_events import TOPIC
from muster.coordinator.commands.options import any_name, command, seconds
from muster.coordinator.commands.run import Usage
from muster.coordinator.commands.top_facts import GROUPS_MAX, Look, Watched
from muster.coordinator.commands.top_rows import COLUMNS, KEYS, SORTS, cells, more_said, sort
from muster.protocol.errors import KafkaError

if TYPE_CHECKING:
    from muster.coordinator.commands.top_screen import Keys, Screen

_INTERVAL_S: Final = 2.0
_INTERVAL_MIN_S: Final = 0.2
_TICK_S: Final = 1.0
"""How often the screen is redrawn while waiting for a response."""
_LOOK_MAX_S: Final = 10.0
"""The time limit of one refresh."""

_DESCRIPTION: Final = f"""\
On a terminal, refreshes every few seconds. The keys g, s, m, l, r and b sort by group, state, members, lag,
rate and rebalances; q or Ctrl-C quits. If a broker goes away it says so and retries. With --once, or if the
output is not a terminal, prints one snapshot and exits.

LAG: records between the committed offsets and the ends of the logs; unknown if one end is. RECORDS/S: how
fast the committed offsets move. REBALANCES/H: rebalances completed within the last hour, from the topic
{TOPIC}, which only muster has (- with Apache Kafka). Shows at most {GROUPS_MAX} groups, the first by id;
name others to see them.

JSON: [{{"group_id": text, "state": text, "members": number, "partitions": number, "lag": number or null,
        "records_per_second": number or null, "rebalances": number or null}}]"""


def declare(commands: Any, name: str, summary: str) -> None:
    """Add the command."""
    parser = command(commands, name, summary, _DESCRIPTION, output=output.FORMATS)
    parser.add_argument("groups", type=any_name, metavar="GROUP", nargs="*", help="only these groups")
    parser.add_argument(
        "--interval",
        type=seconds,
        default=_INTERVAL_S,
        metavar="SECONDS",
        help=f"seconds between refreshes (default {_INTERVAL_S:g}, at least {_INTERVAL_MIN_S:g})",
    )
    parser.add_argument("--sort", choices=SORTS, default="lag", help="sort by this column (default lag)")
    parser.add_argument("--once", action="store_true", help="print one snapshot and exit")
    parser.set_defaults(work=top)


async def top(cluster: Cluster, given: Namespace) -> int:
    """Show groups until the user quits."""
    if given.interval < _INTERVAL_MIN_S:
        raise Usage(f"--interval: {given.interval:g} is not allowed; it takes {_INTERVAL_MIN_S:g} or more")
    watched = Watched(cluster, given.groups)
    try:
        if given.once or given.output != "table" or not _is_screen():
            _print(given, await watched.look(given.timeout, whole_journal=True))
        else:
            await _watch(watched, given)
    finally:
        await watched.close()
    return 0


def _is_screen() -> bool:
    """Whether standard output is a terminal that can be drawn on."""
    return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


# --- once ---------------------------------------------------------------------------------------------------


def _print(given: Namespace, look: Look) -> None:
    rows = sort(look.rows, given.sort)
    if given.output == "json":
        print(output.document([each._asdict() for each in rows]))
    elif given.output == "csv":
        print(output.csv([list(COLUMNS), *rows]), end="")
    else:
        print(output.table(list(COLUMNS.values()), [cells(each) for each in rows]))
    for said in (look.trouble, more_said(look)):
        if said:
            print(f"{given.prog}: {said}", file=sys.stderr)


# --- refreshing ---------------------------------------------------------------------------------------------


async def _watch(watched: Watched, given: Namespace) -> None:
    # Errors in the first refresh are reported like those of any command.
    first = await watched.look(given.timeout)
    from muster.coordinator.commands.top_screen import Keys, Screen

    with (
        _quiet_log(),
        _hang_up_held(),
        Keys() as keys,
        Screen(given.bootstrap, given.interval, given.sort) as screen,
    ):
        screen.found(first)
        while await _go_on(keys, screen, given.interval):
            looking = asyncio.create_task(watched.look(min(given.timeout, _LOOK_MAX_S)))
            try:
                began = time.monotonic()
                while not looking.done():
                    if not await _go_on(keys, screen, _TICK_S, until=looking):
                        return
                    if not looking.done():
                        screen.trouble(f"no response for {time.monotonic() - began:.0f} s")
                screen.found(looking.result())
            except (ClientError, KafkaError) as error:
                screen.trouble(given.in_words(str(error)))
            finally:
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)


async def _go_on(
    keys: Keys, screen: Screen, wait_s: float, *, until: asyncio.Task[Look] | None = None
) -> bool:
    """Wait `wait_s` seconds or until `until` is done, handling keys meanwhile; False if the user quits."""
    end = deadline(wait_s)
    pressed = asyncio.ensure_future(keys.next())
    try:
        while (left_s := end - deadline(0)) > 0:
            waited_for: list[asyncio.Future[Any]] = [pressed] if until is None else [pressed, until]
            await asyncio.wait(waited_for, timeout=min(left_s, _TICK_S), return_when=asyncio.FIRST_COMPLETED)
            if pressed.done():
                key = pressed.result().lower()
                if key == "q":
                    return False
                screen.sort_by(KEYS.get(key))
                pressed = asyncio.ensure_future(keys.next())
            if until is not None and until.done():
                break
            screen.draw()
        return True
    finally:
        pressed.cancel()


@contextmanager
def _hang_up_held() -> Iterator[None]:
    """Have SIGHUP end us only once the terminal is as it was. Under nohup it is ignored, and stays so."""
    if not hasattr(signal, "SIGHUP") or signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL:
        yield
        return
    task = asyncio.current_task()
    assert task is not None
    received: list[int] = []

    def hang_up(number: int) -> None:
        received.append(number)
        task.cancel()

    on_signals((signal.SIGHUP,), hang_up)
    try:
        yield
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
        if received:
            signal.raise_signal(signal.SIGHUP)


@contextmanager
def _quiet_log() -> Iterator[None]:
    """Silence the client's warnings: they would garble the screen, which shows errors itself."""
    handlers = [(each, each.level) for each in logging.getLogger().handlers]
    for handler, _ in handlers:
        handler.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for handler, level in handlers:
            handler.setLevel(level)
