"""How every command of `muster` reads its arguments and says what is wrong with them."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final, NoReturn

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130


class Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=44, width=118)


class Parser(argparse.ArgumentParser):
    """A parser whose refusals are one line that names what is wrong, and exit code 2."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"formatter_class": Help, "allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        sys.exit(fail(self.prog, f"{message}; {self.prog} --help says more", EXIT_USAGE))


def fail(command: str, why: str, code: int) -> int:
    """Say on standard error why the command is not carried out; its exit code."""
    print(f"{command}: {printable(why)}", file=sys.stderr)
    return code


def printable(text: str) -> str:
    """The text with what a terminal would obey written out: names and brokers' words may hold anything."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
