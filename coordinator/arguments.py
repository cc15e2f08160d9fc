"""How every command of `muster` reads its arguments and says what is wrong with them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import Any, Final, NoReturn

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130


class Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=44, width=118)

    def _split_lines(self, text: str, width: int) -> list[str]:
        """Names such as muster-kafka[http] stay whole."""
        import textwrap  # for a help that is shown, so not for a broker that starts

        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """A parser whose refusals are one line that names what is wrong, and exit code 2."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"formatter_class": Help, "allow_abbrev": False, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Nothing is passed over: the command that does not know an argument says so itself."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self._refuse(unknown[0])
        return parsed, unknown

    def _refuse(self, unknown: str) -> NoReturn:
        name = unknown.partition("=")[0]
        if not name.startswith("-"):
            self.error(f"{unknown!r} is one argument too many")
        meant = did_you_mean(name, self._option_string_actions)
        self._end(f"{name} is not one of its options{meant}", "lists them")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = action.choices
        if choices is None or value in choices:
            return
        meant = did_you_mean(value, choices)
        if isinstance(action, argparse._SubParsersAction):
            noun = str(action.metavar or "command").lower()
            self._end(f"there is no {noun} {value!r}{meant}", "lists them")
        raise argparse.ArgumentError(
            action, f"invalid choice: {value!r}{meant} (choose from {', '.join(map(str, choices))})"
        )

    def error(self, message: str) -> NoReturn:
        self._end(message, "says more")

    def _end(self, message: str, help_does: str) -> NoReturn:
        stop = "" if message.endswith("?") else ";"
        sys.exit(fail(self.prog, f"{message}{stop} {self.prog} --help {help_does}", EXIT_USAGE))


def did_you_mean(given: str, names: Iterable[str]) -> str:
    """`, did you mean X?`, or nothing when no name is like what was given."""
    from difflib import get_close_matches

    by_lower = {each.lower(): each for each in names}
    found = get_close_matches(given.lower(), by_lower, n=1, cutoff=0.6)
    return f", did you mean {by_lower[found[0]]}?" if found else ""


def fail(command: str, why: str, code: int) -> int:
    """Say on standard error why the command is not carried out; its exit code."""
    print(f"{command}: {printable(why)}", file=sys.stderr)
    return code


def printable(text: str) -> str:
    """The text with what a terminal would obey written out: names and brokers' words may hold anything."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
