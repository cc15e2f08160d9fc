"""Options that several commands share, and the parsing of their values."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Final

from muster import durations
from muster.coordinator.arguments import Parser, did_you_mean
from muster.settings import INT16_MAX

BOOTSTRAP_DEFAULT: Final = "127.0.0.1:9092"
BOOTSTRAP_VARIABLE: Final = "MUSTER_BOOTSTRAP_SERVERS"
CONFIG_VARIABLE: Final = "MUSTER_COMMAND_CONFIG"
TIMEOUT_DEFAULT_S: Final = 30.0
_SECONDS_MAX: Final = 86_400.0
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIME: Final = "epoch milliseconds or a time like 2026-01-31T12:00:00Z"
_DATES: Final = {
    8: ("a date", "%Y%m%d", "%Y-%m-%d"),
    10: ("a date and hour", "%Y%m%d%H", "%Y-%m-%dT%H:00"),
    12: ("a date and time", "%Y%m%d%H%M", "%Y-%m-%dT%H:%M"),
    14: ("a date and time", "%Y%m%d%H%M%S", "%Y-%m-%dT%H:%M:%S"),
}
"""Dates without hyphens, by their number of digits: what they are, how to read and how to write them."""

EXIT_CODES: Final = """\
Exit codes: 0 done; 1 failed, the message says why; 2 wrong usage; 130 interrupted."""


def command(
    commands: Any,
    name: str,
    summary: str,
    description: str,
    *,
    output: tuple[str, ...] = ("table", "json"),
    aliases: tuple[str, ...] = (),
) -> Parser:
    """Add a command with the common options; `description` follows its summary in the help."""
    parser: Parser = commands.add_parser(
        name,
        aliases=aliases,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.\n\n{description}".rstrip() + f"\n\n{EXIT_CODES}",
    )
    parser.set_defaults(prog=parser.prog)
    shared = parser.add_argument_group("common options")
    shared.add_argument(
        "--bootstrap-server",
        "--bootstrap-servers",
        metavar="HOST:PORT[,HOST:PORT]",
        help=f"brokers to contact first (variable {BOOTSTRAP_VARIABLE}; default {BOOTSTRAP_DEFAULT})",
    )
    shared.add_argument(
        "--command-config",
        type=_file,
        metavar="FILE",
        help="client.properties with TLS and SASL settings, by Kafka's names; also bootstrap.servers and "
        f"client.id (variable {CONFIG_VARIABLE})",
    )
    shared.add_argument(
        "--timeout",
        type=seconds,
        default=TIMEOUT_DEFAULT_S,
        metavar="SECONDS",
        help=f"how long to wait for the cluster (default {TIMEOUT_DEFAULT_S:g})",
    )
    shared.add_argument(
        "--output",
        choices=output,
        default=output[0],
        help=f"{output[0]} for people, {' or '.join(output[1:])} for programs",
    )
    return parser


def actions(commands: Any, name: str, summary: str) -> Any:
    """Add a command that has actions, and return where to add them."""
    parser: Parser = commands.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
    )
    return parser.add_subparsers(dest="action", metavar="ACTION", required=True)


def _file(text: str) -> str:
    """Parse a path. Empty, such as a script's unset variable, is not the same as no option."""
    if not text:
        raise argparse.ArgumentTypeError("'' is not allowed; it takes the path of a file")
    return text


def number(low: int, high: int = 2**31 - 1) -> Callable[[str], int]:
    """Parse a whole number from `low` to `high`."""

    def read(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,19}", text) or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not allowed; it takes a whole number, {low} to {high}"
            )
        return int(text)

    return read


def one_of(values: Sequence[str]) -> Callable[[str], str]:
    """Parse one of these names in any case; returns it as spelled in `values`."""
    by_lower = {each.lower(): each for each in values}

    def read(text: str) -> str:
        found = by_lower.get(text.lower())
        if found is None:
            meant = did_you_mean(text, values)
            raise argparse.ArgumentTypeError(
                f"{text!r} is not allowed{meant or ';'} it takes {', '.join(values)}"
            )
        return found

    return read


def seconds(text: str) -> float:
    """Parse a positive number of seconds, at most a day."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= _SECONDS_MAX:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not allowed; it takes a number of seconds, above 0 and up to {_SECONDS_MAX:g}"
        )
    return value


def duration_ms(text: str) -> int:
    """Parse a duration such as 90m or PT1H30M; whole milliseconds."""
    try:
        return durations.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def valid_name(text: str) -> str:
    """Parse the name of a group or assignor: not blank, and such that a request can carry it."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; it takes a name that is not blank")
    return any_name(text)


def any_name(text: str) -> str:
    """Parse the name of something that may exist, if also a blank one, or a pattern of names: such that a
    request can carry it."""
    try:
        fits = len(text.encode()) <= INT16_MAX
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise argparse.ArgumentTypeError(
            f"{text[:100]!r} is not allowed; it takes text in UTF-8 of at most {INT16_MAX} bytes"
        )
    return text


def setting(text: str) -> tuple[str, str]:
    """Parse NAME=VALUE; the value may be empty and may contain =."""
    name, equals, value = text.partition("=")
    if not (equals and name):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; it takes NAME=VALUE")
    return name, value


def replicas(text: str) -> list[int]:
    """Parse node ids separated by colons, such as 3:1."""
    if not re.fullmatch(r"[0-9]{1,9}(:[0-9]{1,9})*", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not allowed; it takes node ids separated by colons, such as 3:1"
        )
    return [int(each) for each in text.split(":")]


def replica_lists(text: str) -> list[list[int]]:
    """Parse the replicas of each partition, separated by commas, such as 3:1,2:3."""
    return [replicas(each) for each in text.split(",")]


def partition_replicas(text: str) -> tuple[int, list[int]]:
    """Parse PARTITION=REPLICAS, such as 0=3:1."""
    partition, equals, wanted = text.partition("=")
    if not (equals and re.fullmatch(r"[0-9]{1,9}", partition)):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not allowed; it takes PARTITION=REPLICAS, such as 0=3:1"
        )
    return int(partition), replicas(wanted)


def timestamp_ms(text: str) -> int:
    """Parse the time of a record, as epoch milliseconds: these, or ISO 8601 (without a zone: local time)."""
    at_ms = _epoch_ms(text)
    if at_ms < 0:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not allowed: records have no time before 1970; it takes {_TIME}, from"
            " 1970-01-01T00:00:00Z on"
        )
    return at_ms


def since_ms(text: str, zone: tzinfo | None = None) -> int:
    """Parse the time from which to read, in `zone` (None: local time) if it names none. One before 1970 means
    1970: no record is older."""
    return max(_epoch_ms(text, zone), 0)


def _epoch_ms(text: str, zone: tzinfo | None = None) -> int:
    if re.fullmatch(r"[0-9]{1,18}", text):
        if (likely := _likely(text)) is not None:
            kind, written = likely
            raise argparse.ArgumentTypeError(
                f"{text!r} is not allowed: it looks like {kind}; write {written}"
            )
        return int(text)
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo is None:
            at = at.replace(tzinfo=zone)
        return (at.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; it takes {_TIME}") from None


def _likely(digits: str) -> tuple[str, str] | None:
    """What such digits are meant as, if hardly as epoch milliseconds (of 1970 to 1976, or of the year 2600),
    and how that is written; None if they are milliseconds."""
    date = _date(digits)
    if re.fullmatch(r"[1-9][0-9]{9}", digits):
        if date is None:
            return "epoch seconds", f"{digits}000"
        return f"epoch seconds, or {date[0]}", f"{digits}000, or {date[1]}"
    return date


def _date(digits: str) -> tuple[str, str] | None:
    """What kind of date of this century or the last the digits are, if any, and how that is written."""
    if len(digits) not in _DATES or not digits.startswith(("19", "20")):
        return None
    kind, read, written = _DATES[len(digits)]
    try:
        return kind, f"{datetime.strptime(digits, read):{written}}"
    except ValueError:
        return None
