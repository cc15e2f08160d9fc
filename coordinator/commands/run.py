"""Runs a client command: connects to a cluster and handles errors, Ctrl-C and closed pipes."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import sys
from argparse import Namespace
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from muster.client.errors import ClientError, Unreachable
from muster.client.network.cluster import Cluster, parse_bootstrap
from muster.client.security.properties import ClientProperties, read_properties
from muster.coordinator.arguments import (
    EXIT_FAILED,
    EXIT_USAGE,
    fail,
    output_failed,
    output_in_utf8,
    printable,
)
from muster.coordinator.base.system import on_signals
from muster.coordinator.commands import output
from muster.coordinator.commands.options import BOOTSTRAP_DEFAULT, BOOTSTRAP_VARIABLE, CONFIG_VARIABLE
from muster.protocol.errors import EncodeError, ErrorCode, KafkaError

CLIENT_ID: Final = "muster"
_SIGNALLED: Final = 128  # shells add the signal's number to this
_SETTINGS_OF_OPTIONS: Final = re.compile(r"\b(group_protocol|group_remote_assignor)=")

Work = Callable[[Cluster, Namespace], Awaitable[int]]
Words = Callable[[str], str]
"""Puts a client's error in the command's terms; `given.in_words` is one."""


class Failed(Exception):
    """The command failed; the text says why and what to do."""


class Usage(Exception):
    """An argument is invalid or conflicts with another."""


def run(work: Work, given: Namespace, variables: Mapping[str, str]) -> int:
    """Call `work` with a cluster and return the exit code."""
    command = given.prog
    try:
        properties = _properties(given, variables)
        security = properties.settings().security
    except ValueError as error:
        return fail(command, f"{_named(given)}: {error}", EXIT_USAGE)
    option, text = "--bootstrap-server", given.bootstrap_server
    if text is None and properties.bootstrap_servers is not None:
        option, text = f"bootstrap.servers of {_named(given)}", properties.bootstrap_servers
    elif text is None:
        option, text = BOOTSTRAP_VARIABLE, variables.get(BOOTSTRAP_VARIABLE) or BOOTSTRAP_DEFAULT
    try:
        bootstrap, given.bootstrap = parse_bootstrap(text), text
    except ValueError as error:
        return fail(command, f"{option}: {error}", EXIT_USAGE)
    client_id = properties.client_id or CLIENT_ID
    given.client_options = {**properties.security, "client_id": client_id}
    given.in_words = in_words = _in_words(properties, in_file=bool(_path(given, variables)))
    # Print the client's warnings (lost offsets, for example) on one line as well.
    printed = logging.StreamHandler()
    printed.setFormatter(_Formatter(command, in_words))
    logging.basicConfig(level=logging.WARNING, handlers=[printed])

    def body() -> int:
        with _unreachable_said_once(), asyncio.Runner() as runner:
            cluster = Cluster(bootstrap, client_id=client_id, security=security)
            return runner.run(_connected(work, cluster, given))

    return reported(given, body, in_words)


class _Formatter(logging.Formatter):
    def __init__(self, command: str, in_words: Words) -> None:
        super().__init__(f"{command}: %(message)s")
        self._in_words = in_words

    def format(self, record: logging.LogRecord) -> str:
        return self._in_words(super().format(record))


def _in_words(properties: ClientProperties, *, in_file: bool) -> Words:
    """Put a client's errors in the command's terms: name its settings as options or properties, and hint at
    --command-config if there is no file."""

    def said(text: str) -> str:
        text = _in_options(text)
        of_properties = properties.in_properties(text)
        if of_properties == text or in_file:
            return of_properties
        return f"{of_properties}; properties are in a file, for --command-config"

    return said


def _in_options(text: str) -> str:
    return _SETTINGS_OF_OPTIONS.sub(lambda found: f"--{found[1].replace('_', '-')} ", text)


def reported(given: Namespace, body: Callable[[], int], in_words: Words = str) -> int:
    """Call `body`, which prints as the command's options say; report its errors in the command's terms and
    return the exit code."""
    command = given.prog
    if given.output in ("json", "csv"):
        output_in_utf8()
    elif (reconfigure := getattr(sys.stdout, "reconfigure", None)) is not None:
        reconfigure(errors="backslashreplace")  # names may contain characters that the terminal cannot show
    try:
        code = body()
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except Usage as error:
        return fail(command, f"{error}; {command} --help says more", EXIT_USAGE)
    except Unreachable as error:
        hint = "is a broker running there? use --bootstrap-server for another"
        return fail(command, f"{in_words(str(error))} ({hint})", EXIT_FAILED)
    except KafkaError as error:
        return fail(command, _explained(error), EXIT_FAILED)
    except (Failed, ClientError, EncodeError) as error:
        return fail(command, in_words(str(error)), EXIT_FAILED)
    except OSError as error:  # disk full, unreadable file
        return output_failed(command, error)
    except KeyboardInterrupt:
        return _SIGNALLED + signal.SIGINT
    except asyncio.CancelledError:
        return _SIGNALLED + signal.SIGTERM


def _path(given: Namespace, variables: Mapping[str, str]) -> str | None:
    return given.command_config or variables.get(CONFIG_VARIABLE)


def _named(given: Namespace) -> str:
    """What names the file of properties: the option, or the variable without it."""
    return "--command-config" if given.command_config else CONFIG_VARIABLE


def _properties(given: Namespace, variables: Mapping[str, str]) -> ClientProperties:
    """The properties in --command-config, if given. Raises ValueError."""
    path = _path(given, variables)
    if not path:
        return ClientProperties()
    try:
        return read_properties(path)
    except OSError as error:
        raise ValueError(f"{path}: {(error.strerror or str(error)).lower()}") from None


@contextmanager
def _unreachable_said_once() -> Iterator[None]:
    """Silence the client's warning: the command's own error already says so."""
    log = logging.getLogger("muster.client.network.pool")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


async def _connected(work: Work, cluster: Cluster, given: Namespace) -> int:
    """SIGINT and SIGTERM cancel this task, so that a member leaves its group and connections are closed."""
    task = asyncio.current_task()
    assert task is not None
    with suppress(RuntimeError, ValueError):  # not in the main thread
        on_signals((signal.SIGTERM,), lambda _: task.cancel())
    async with cluster:
        return await work(cluster, given)


def _explained(error: KafkaError) -> str:
    """The broker's message, the error code, and a hint."""
    hints = {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "muster topics list shows the topics",
        ErrorCode.GROUP_ID_NOT_FOUND: "muster groups list shows the groups",
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "muster transactions list shows the transactional ids",
        ErrorCode.RESOURCE_NOT_FOUND: "muster users list shows the users",
        ErrorCode.NON_EMPTY_GROUP: "stop its members, or remove dead ones with muster groups evict",
        ErrorCode.UNSUPPORTED_VERSION: "the broker's version does not support this",
    }
    hint = hints.get(error.code)
    return f"{_in_options(error.why)} ({error.code.name}{'; ' + hint if hint else ''})"


def report_outcomes(given: Namespace, outcomes: Mapping[str, KafkaError | None], noun: str, done: str) -> int:
    """Print each outcome: successes on standard output, failures on standard error."""
    if given.output == "json":
        shown = [{noun: name, "error": error_json(error)} for name, error in outcomes.items()]
        print(output.document(shown))
    else:
        for name, error in outcomes.items():
            if error is None:
                print(f"{printable(name)} {done}")
    return report_failures(given, {name: error for name, error in outcomes.items() if error is not None})


def report_failures(given: Namespace, failures: Mapping[str, KafkaError]) -> int:
    """Print failures on standard error and return the exit code."""
    for name, error in failures.items():
        why = _explained(error)
        for about in (name, name.rpartition(", ")[2]):  # a partition alone in `group a, t-0`
            why = why.removeprefix(f"{about}: ")
        fail(given.prog, f"{name}: {why}", EXIT_FAILED)
    return EXIT_FAILED if failures else 0


def error_json(error: KafkaError | None) -> dict[str, str] | None:
    """The JSON form of an error."""
    return None if error is None else {"code": error.code.name, "message": error.why}


def require_names_or_all(names: str, named: bool, everything: str, all_given: bool) -> None:
    """Raise Usage unless exactly one was given: names, or the option `everything` for all there are."""
    if named and all_given:
        raise Usage(f"argument {everything}: not allowed with {names}")
    if not (named or all_given):
        raise Usage(f"{names} or {everything} is required")


def distinct(pairs: list[tuple[str, str]] | None, option: str) -> dict[str, str]:
    """NAME=VALUE pairs as a dict. Raises Usage for a name given twice."""
    settings: dict[str, str] = {}
    for name, value in pairs or []:
        if name in settings:
            raise Usage(f"{option}: {name} is given twice")
        settings[name] = value
    return settings
