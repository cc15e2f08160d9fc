"""Argument parsing and usage errors shared by all commands."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NoReturn, TextIO, cast

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130


class Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=44, width=118)

    def _split_lines(self, text: str, width: int) -> list[str]:
        """Do not break names such as muster-kafka[http]."""
        import textwrap  # only needed to print help, not to start a broker

        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """A parser that reports a usage error in one line and exits with code 2."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"formatter_class": Help, "allow_abbrev": False, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Reject unknown arguments in the command they were given to."""
        self._refuse_early_option(args[0] if args else "")
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self._refuse(unknown[0])
        return parsed, unknown

    def _print_message(self, message: str, file: Any = None) -> None:
        """As argparse does, but exit with 1 if the output cannot be written."""
        try:
            write = (file or sys.stderr).write
        except AttributeError:  # the shell closed it
            return
        try:
            write(message)
        except OSError as error:
            sys.exit(output_failed(self.prog, error))

    def _refuse_early_option(self, first: str) -> None:
        """Say where options go: if one comes too early, argparse takes its value for the command."""
        name = first.partition("=")[0]
        below = next((each for each in self._actions if isinstance(each, argparse._SubParsersAction)), None)
        if below is None or not name.startswith("--") or name in ("--", *self._option_string_actions):
            return
        meant = did_you_mean(name, {*self._option_string_actions} - {"-h", "--help"})
        why = meant or f": options go after {below.metavar}"
        self._end(f"unknown option {name}{why}", "lists them")

    def _refuse(self, unknown: str) -> NoReturn:
        name = unknown.partition("=")[0]
        if not name.startswith("-"):
            self.error(f"unexpected argument {unknown!r}")
        meant = did_you_mean(name, self._option_string_actions)
        self._end(f"unknown option {name}{meant}", "lists them")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = action.choices
        if choices is None or value in choices:
            return
        meant = did_you_mean(value, choices)
        if isinstance(action, argparse._SubParsersAction):
            noun = str(action.metavar or "command").lower()
            self._end(f"unknown {noun} {value!r}{meant}", "lists them")
        raise argparse.ArgumentError(
            action, f"invalid choice: {value!r}{meant} (choose from {', '.join(map(str, choices))})"
        )

    def error(self, message: str) -> NoReturn:
        self._end(message, "says more")

    def _end(self, message: str, help_does: str) -> NoReturn:
        stop = "" if message.endswith("?") else ";"
        sys.exit(fail(self.prog, f"{message}{stop} {self.prog} --help {help_does}", EXIT_USAGE))


def did_you_mean(given: str, names: Iterable[str]) -> str:
    """`, did you mean X?`, or "" if no name is similar."""
    from difflib import get_close_matches

    by_lower = {each.lower(): each for each in names}
    found = get_close_matches(given.lower(), by_lower, n=1, cutoff=0.6)
    return f", did you mean {by_lower[found[0]]}?" if found else ""


def open_standard_error() -> None:
    """Open the null device as standard error if the shell closed it (`2>&-`): without one, `print` writes
    errors to standard output, among what a program reads."""
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")


def fail(command: str, why: str, code: int) -> int:
    """Print the error on standard error and return the exit code."""
    try:
        print(f"{command}: {printable(why)}", file=sys.stderr, flush=True)
    except OSError:  # the terminal is gone, and with it whoever would have read this
        give_up(sys.stderr)
    return code


def output_failed(command: str, error: OSError) -> int:
    """End the output, say why it failed, and return the exit code. A reader that is gone (`| head`) has all
    it wanted, which is no failure."""
    if sys.stdout is not None:
        give_up(sys.stdout)
    if isinstance(error, BrokenPipeError):
        return 0
    return fail(command, f"I/O error: {error.strerror or error}", EXIT_FAILED)


def output_in_utf8() -> None:
    """For JSON and CSV, which are always UTF-8, whatever the terminal shows."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(encoding="utf-8", errors="strict")


@contextmanager
def output_to_readers() -> Iterator[None]:
    """Discard what is printed once its reader is gone (`| head`). The command goes on, and its exit code
    says what it did. Raises SystemExit if the last of the output cannot be written."""
    stdout = sys.stdout
    if stdout is None:  # the shell closed it: `>&-`
        yield
        return
    output = _Output(stdout)
    sys.stdout = cast(TextIO, output)
    try:
        yield
    finally:
        sys.stdout = stdout
        try:
            output.flush()
        except OSError as error:
            sys.exit(output_failed("muster", error))


class _Output:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            give_up(self._stream)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            give_up(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def give_up(stream: TextIO) -> None:
    """Discard what is still written to a broken stream, including what the interpreter flushes at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def printable(text: str) -> str:
    """The text with control characters escaped: names and broker messages may contain anything."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
