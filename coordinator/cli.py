"""The `muster` command.

A broker must start in a fraction of a second, so modules that only some commands need are imported late.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from os import environ
from typing import TYPE_CHECKING, Any

from muster.coordinator import command_line, config
from muster.coordinator.arguments import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    fail,
    give_up,
    open_standard_error,
    output_failed,
    output_to_readers,
)

if TYPE_CHECKING:
    from argparse import Namespace

    from muster.coordinator.server.brokers import Brokers
    from muster.coordinator.web.app import Running
    from muster.coordinator.web.binding import Prepared

_GARBAGE_THRESHOLDS = (5_000, 5, 40)
"""Thresholds of the cyclic garbage collector. A broker creates few cycles, and Python's default of 700
rescans requests in flight over and over, which costs a tenth of the time. Few young collections before one of
the next generation, because a collection takes 50 ms while thousands of members join; a million objects
before a full collection, which takes half a second on a heap of that size."""
_HTTP_VARIABLE, _TOKEN_VARIABLE = config.variable("http"), config.variable("http_token_file")
_FROM_VARIABLE = "the value is from the variable {}, which `muster test` reads too"
_LAST_LINES_S = 1.0  # how long to wait at exit for the log to drain


def main(arguments: Sequence[str] | None = None, variables: Mapping[str, str] = environ) -> int:
    """Run the command and return its exit code: 1 if it failed, 2 if the command line or a variable is
    invalid, 130 on Ctrl-C. Raises SystemExit from argparse: 2 for a command line it cannot parse, 0 for
    --help and --version."""
    began = time.perf_counter()
    open_standard_error()
    try:
        return _main(sys.argv[1:] if arguments is None else list(arguments), variables, began)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _main(arguments: list[str], variables: Mapping[str, str], began: float) -> int:
    with output_to_readers():
        chosen = next((each for each in arguments if not each.startswith("-")), None)
        parser = command_line.parser({chosen} if chosen is not None else (), arguments)
        parsed = parser.parse_args(arguments)
        given = vars(parsed)
        command = given.pop("command")
        if command is None:
            parser.print_help()
            return EXIT_USAGE
        if command in command_line.CLIENTS:
            return _run_client(parsed, variables)
        if command in command_line.OTHERS:
            return _run_other(parsed, variables)
    try:
        settings = config.read_settings(given, variables)
    except config.SettingError as error:
        shared = error.given in (_HTTP_VARIABLE, _TOKEN_VARIABLE)
        said = f"{error}; {_FROM_VARIABLE.format(error.given)}" if shared else str(error)
        return fail("muster serve", said, EXIT_USAGE)
    from_variable = given.get("http") is None and settings.http is not None
    return _serve(settings, began, from_variable)


def _run_client(parsed: Namespace, variables: Mapping[str, str]) -> int:
    from muster.coordinator.commands.run import run

    return run(parsed.work, parsed, variables)


def _run_other(parsed: Namespace, variables: Mapping[str, str]) -> int:
    try:
        code = int(parsed.work(parsed, variables))
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except OSError as error:
        return output_failed(parsed.prog, error)


# --- serve --------------------------------------------------------------------------------------------------


def _serve(settings: config.Settings, began: float, http_from_variable: bool) -> int:
    # Imported modules stay; collecting garbage meanwhile takes a tenth of the startup time.
    gc.disable()
    try:
        return _run(settings, began, http_from_variable)
    finally:
        gc.enable()


def _run(settings: config.Settings, began: float, http_from_variable: bool) -> int:
    import asyncio

    from muster.coordinator.base.log import configure, end_background
    from muster.coordinator.base.system import open_standard_files, raise_open_files_limit
    from muster.coordinator.security.exchange import SecurityError
    from muster.coordinator.server.listener import BindError
    from muster.coordinator.storage.store import NodeIdTaken, StoreError
    from muster.coordinator.web.binding import MissingPackages

    open_standard_files()
    configure(settings.log_level, settings.log_format, background=True)
    raise_open_files_limit()
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_serve_until_stopped(settings, began, http_from_variable))
    except NodeIdTaken as error:
        return fail("muster serve", f"{error}; every broker needs a --node-id of its own", EXIT_FAILED)
    except (BindError, MissingPackages, SecurityError, StoreError) as error:
        return fail("muster serve", str(error), EXIT_FAILED)
    finally:
        end_background(_LAST_LINES_S)


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:  # Windows, PyPy
        return None
    return uvloop.new_event_loop


async def _serve_until_stopped(settings: config.Settings, began: float, http_from_variable: bool) -> int:
    import asyncio

    from muster.coordinator.base.log import Logger, warm_up
    from muster.coordinator.base.system import keep_freed_memory
    from muster.coordinator.server.brokers import Brokers

    brokers = Brokers(settings)
    http = None if settings.http is None else await _prepare_http(brokers, http_from_variable)
    stopped: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    _handle_signals(stopped)
    starting = asyncio.create_task(brokers.start())
    # Opening a large store takes a while; Ctrl-C must not wait for it.
    await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
        return _exit_code(stopped.result())
    await starting  # raises the startup error, if any
    page = None if http is None else await _serve_http(http)
    _read_certificates_on_hangup(brokers, page)
    gc.freeze()
    gc.set_threshold(*_GARBAGE_THRESHOLDS)
    gc.enable()
    _say(_ready(brokers, page, time.perf_counter() - began))
    keep_freed_memory()
    warming = asyncio.get_running_loop().run_in_executor(None, warm_up)
    superseded = asyncio.create_task(brokers.superseded())
    ended, _ = await asyncio.wait([stopped, superseded], return_when=asyncio.FIRST_COMPLETED)
    superseded.cancel()
    await warming
    Logger(part="broker").info("stopping", grace_ms=settings.shutdown_grace_ms)
    if page is not None:
        page.stopping()
    await brokers.stop()
    if page is not None:
        await page.close()
    if superseded in ended:
        raise superseded.result()
    return 0


async def _prepare_http(brokers: Brokers, from_variable: bool) -> Prepared:
    from muster.coordinator.server.listener import BindError
    from muster.coordinator.web.binding import prepare

    try:
        return await prepare(brokers)
    except BindError as error:
        if not from_variable:
            raise
        raise BindError(f"{error}; {_FROM_VARIABLE.format(_HTTP_VARIABLE)}") from None


async def _serve_http(prepared: Prepared) -> Running:
    """Import and start the page after the brokers: the import takes as long as starting them."""
    import asyncio

    app = await asyncio.to_thread(import_module, "muster.coordinator.web.app")
    running: Running = await app.start(prepared)
    return running


def _ready(brokers: Brokers, page: Running | None, took_s: float) -> str:
    settings = brokers.settings
    where = "in memory" if settings.ephemeral else f"sqlite, {settings.data}"
    if settings.store is not None:
        from muster.coordinator.storage.postgres import server_of

        where = f"postgresql, {server_of(settings.store)}"
    text = f"muster ready on {brokers.bootstrap} ({where}, {brokers.shards} shards, {took_s * 1000:.0f} ms)"
    return text if page is None else f"{text}, {page.url}"


def _say(line: str) -> None:
    """Print on standard output. That nobody can read it (a closed pipe, a full disk) is no reason to stop."""
    from muster.coordinator.base.log import Logger

    try:
        print(line, flush=True)
    except OSError as error:
        give_up(sys.stdout)
        Logger(part="broker").warning("cannot write to standard output", said=line, why=error.strerror)


def _read_certificates_on_hangup(brokers: Brokers, page: Running | None) -> None:
    """Read certificates again on SIGHUP. Without TLS, SIGHUP ends the broker as SIGTERM does."""
    import signal

    from muster.coordinator.base.system import on_signals

    def on_hangup(_: int) -> None:
        brokers.read_certificates()
        if page is not None:
            page.read_certificates()

    has_tls = any("SSL" in protocol for protocol in brokers.settings.protocols)
    if hasattr(signal, "SIGHUP") and (has_tls or (page is not None and page.has_tls)):
        on_signals((signal.SIGHUP,), on_hangup)


def _handle_signals(stopped: Any) -> None:
    """The first SIGTERM, SIGINT or SIGHUP completes `stopped`, for a graceful shutdown; a further SIGTERM or
    SIGINT exits at once. A terminal that is closed may send two SIGHUPs; under nohup they are ignored."""
    import os
    import signal

    from muster.coordinator.base.system import on_signals

    hangup = getattr(signal, "SIGHUP", None)  # Windows has none

    def on_signal(number: int) -> None:
        if not stopped.done():
            stopped.set_result(number)
        elif number != hangup:
            os._exit(_exit_code(number))

    on_signals((signal.SIGTERM, signal.SIGINT), on_signal)
    if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:
        on_signals((hangup,), on_signal)


def _exit_code(number: int) -> int:
    """What a shell reports for a process killed by this signal."""
    return 128 + number
