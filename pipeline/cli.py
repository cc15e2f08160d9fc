"""The `muster-pipeline` command.

A command is a module with `declare(commands)`, which adds its parser and sets `work`: a function from the
arguments to the exit code. Such a module imports Spark only when it runs, so --help needs neither Spark nor
Java.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from muster import __version__
from muster.pipeline.arguments import (
    BOOTSTRAP_DEFAULT,
    BOOTSTRAP_VARIABLE,
    CONFIG_VARIABLE,
    EXIT_FAILED,
    EXIT_USAGE,
    Parser,
    fail,
)
from muster.pipeline.environment import check_packages
from muster.pipeline.errors import OptionError, PipelineError, from_spark
from muster.pipeline.progress import Stopped

COMMANDS: Final = {
    "ingest": ("muster.pipeline.ingest", "topics to Parquet"),
    "rebalances": (
        "muster.pipeline.journal.command",
        "tables of why groups rebalanced, how long that took and what it cost",
    ),
    "report": ("muster.pipeline.report.command", "a page with pictures from the tables of rebalances"),
}
"""The module and summary of each command."""

_SUBMIT_FILE: Final = Path(__file__).with_name("submit") / "muster_pipeline.py"
_SIGNALLED: Final = 128  # what a shell adds to the number of the signal that ended a process


class _Terminated(BaseException):
    """SIGTERM arrived. Not an Exception, like KeyboardInterrupt, so that error handlers do not catch it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code: 2 if the command line is wrong, 1 if the command fails."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = _parser(next((each for each in arguments if not each.startswith("-")), None))
    given = parser.parse_args(arguments)
    if given.command is None:
        parser.print_help()
        return EXIT_USAGE
    if given.bootstrap_server is None:
        given.bootstrap_server = os.environ.get(BOOTSTRAP_VARIABLE) or BOOTSTRAP_DEFAULT
        given.servers_from = BOOTSTRAP_VARIABLE
    if given.command_config is None:
        given.command_config, given.config_from = os.environ.get(CONFIG_VARIABLE), CONFIG_VARIABLE
    # SIGINT too: a script that starts this with & makes it inherit an ignored SIGINT, but may still end it
    # with kill -INT.
    before = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, _terminate),
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
    }
    try:
        check_packages()
        return int(given.work(given))
    except OptionError as error:
        return fail(given.prog, f"{error}; {given.prog} --help says more", EXIT_USAGE)
    except PipelineError as error:
        return fail(given.prog, str(error), EXIT_FAILED)
    except Stopped as stopped:
        return _SIGNALLED + stopped.number
    except KeyboardInterrupt:
        return _SIGNALLED + signal.SIGINT
    except _Terminated:
        return _SIGNALLED + signal.SIGTERM
    except Exception as error:
        told = from_spark(error)
        if told is None:
            raise
        return fail(given.prog, told, EXIT_FAILED)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise _Terminated


def _parser(chosen: str | None) -> Parser:
    """The parser. Only the chosen command is declared in full, since that imports its module."""
    parser = Parser(
        prog="muster-pipeline",
        description="Jobs on Spark over the topics of a cluster, and over the journal of its groups.",
    )
    parser.add_argument("--version", action="version", version=f"muster-pipeline {__version__}")
    parser.add_argument(
        "--submit-file",
        action="version",
        version=str(_SUBMIT_FILE),
        help="print the path of the file that stands for this command in spark-submit:\n"
        'spark-submit --master spark://HOST:PORT "$(muster-pipeline --submit-file)" ingest ...',
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, (module, summary) in COMMANDS.items():
        if name == chosen:
            import_module(module).declare(commands)
        else:
            commands.add_parser(name, help=summary)
    return parser


if __name__ == "__main__":
    sys.exit(main())
