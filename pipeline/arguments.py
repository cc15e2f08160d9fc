"""How `muster-pipeline` parses its arguments; an error is one line, with exit code 2."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from typing import Any, Final, NoReturn

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2

CONFIG_VARIABLE: Final = "MUSTER_COMMAND_CONFIG"
BOOTSTRAP_DEFAULT: Final = "127.0.0.1:9092"
BOOTSTRAP_VARIABLE: Final = "MUSTER_BOOTSTRAP_SERVERS"
LOG_LEVELS: Final = ("off", "fatal", "error", "warn", "info", "debug")

_EXIT_CODES: Final = """\
Exit codes: 0 done; 1 failed, the message says why; 2 wrong usage; 130 interrupted (Ctrl-C),
143 terminated."""
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_DAY_MS: Final = 86_400_000


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=44, width=110)


class Parser(argparse.ArgumentParser):
    """A parser that accepts no abbreviations, and reports an error in one line."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"formatter_class": _Help, "allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        sys.exit(fail(self.prog, f"{message}; {self.prog} --help says more", EXIT_USAGE))


def command(commands: Any, name: str, summary: str, description: str, *, on_spark: bool = True) -> Parser:
    """Add a command to `commands`; `on_spark`: with the common options of commands that run on Spark."""
    parser: Parser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.\n\n{description.strip()}\n\n{_EXIT_CODES}",
    )
    parser.set_defaults(prog=parser.prog)
    if not on_spark:
        parser.set_defaults(bootstrap_server="", command_config="")
        return parser
    parser.set_defaults(servers_from="--bootstrap-server", config_from="--command-config")
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
        help="client.properties with settings of TLS and SASL, as for Kafka's tools "
        f"(variable {CONFIG_VARIABLE})",
    )
    shared.add_argument(
        "--master",
        metavar="URL",
        help="Spark's master (default local[*], all cores of this machine; under spark-submit, what it says)",
    )
    shared.add_argument(
        "--conf",
        type=spark_setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of Spark's, say spark.executor.memory=4g; may be repeated",
    )
    shared.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        default="off",
        help="how much Spark itself logs to standard error (default off: failures are told here anyway)",
    )
    return parser


def _file(text: str) -> str:
    """Reads a path. Empty, such as a script's unset variable, is not the same as no option."""
    if not text:
        raise argparse.ArgumentTypeError("'' is not allowed; it takes the path of a file")
    return text


def add_pace(parser: Parser) -> Any:
    """Add --once and --every to the parser of a command that follows topics. Returns their mutually exclusive
    group."""
    when = parser.add_mutually_exclusive_group()
    when.add_argument(
        "--once", action="store_true", help="read up to the ends that the topics have now, then end (default)"
    )
    when.add_argument(
        "--every",
        type=duration_ms,
        metavar="DURATION",
        help="go on for ever, a batch each 10s, 500ms, 5m, ...",
    )
    return when


def duration_ms(text: str) -> int:
    """Reads a duration such as 500ms, 10s, 5m or 1h, at most a day. Returns milliseconds."""
    found = re.fullmatch(r"([0-9]{1,9})(ms|s|m|h)", text.strip())
    ms = int(found[1]) * _UNITS_MS[found[2]] if found else 0
    if not 0 < ms <= _DAY_MS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not allowed; it takes a duration like 10s, 500ms or 5m, of a day at most"
        )
    return ms


def positive(text: str) -> int:
    """Reads a whole number above 0."""
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; it takes a whole number above 0")
    return int(text)


def setting(text: str) -> tuple[str, str]:
    """Reads NAME=VALUE; the value may be empty and may contain =."""
    name, equals, value = text.partition("=")
    if not (equals and name):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; it takes NAME=VALUE")
    return name, value


def spark_setting(text: str) -> tuple[str, str]:
    """Reads a Spark setting, NAME=VALUE."""
    name, value = setting(text)
    if not name.startswith("spark."):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; the settings of Spark begin with spark.")
    if name == "spark.master":
        raise argparse.ArgumentTypeError("spark.master is given by --master")
    return name, value


def in_arguments(text: str, arguments: Mapping[str, str]) -> str:
    """An error about the source's options, with the arguments of the command that stand for them."""
    for option, argument in arguments.items():
        text = re.sub(rf"\boption {re.escape(option)}\b", argument, text)
    return text


def fail(command: str, why: str, code: int) -> int:
    """Print to standard error why the command failed. Returns the exit code."""
    print(f"{command}: {printable(why)}", file=sys.stderr)
    return code


def printable(text: str) -> str:
    """The text with nonprintable characters escaped, except line breaks."""
    return "".join(each if each.isprintable() or each == "\n" else repr(each)[1:-1] for each in text)
