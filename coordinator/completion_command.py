"""`muster completion`: a completion script for a shell.

shtab generates it from the parser's declarations. It completes what is known without a broker: commands,
options, fixed values, files.
"""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any, Final

from muster.coordinator import command_line
from muster.coordinator.arguments import Parser

SHELLS: Final = ("bash", "zsh", "fish")
_FILES: Final = frozenset({"PATH", "FILE", "DATA", "DIR"})
"""Metavars of arguments that name a file or directory."""

_DESCRIPTION: Final = """\
Load it into the current shell, or install it for new ones:

  bash   eval "$(muster completion bash)"
         muster completion bash > ~/.local/share/bash-completion/completions/muster
  zsh    eval "$(muster completion zsh)"         (after compinit)
         muster completion zsh > "${fpath[1]}/_muster"
  fish   muster completion fish | source
         muster completion fish > ~/.config/fish/completions/muster.fish

Completes commands, options and their values, but not topic or group names. Regenerate it after upgrading
muster.

Exit codes: 0 done; 2 wrong usage."""


def declare(commands: Any, name: str, summary: str) -> None:
    """Add the command."""
    parser: Parser = commands.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.\n\n{_DESCRIPTION}"
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    parser.set_defaults(work=completion, prog=parser.prog)


def completion(given: Namespace, variables: Mapping[str, str]) -> int:
    """Print the script for a shell."""
    import shtab

    parser = command_line.parser(command_line.EVERYTHING)
    for each in _actions(parser):
        if each.choices is None and isinstance(each.metavar, str):
            each.choices = getattr(each, "known", None)
            if each.metavar in _FILES:
                each.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, shell=given.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments of every command."""
    for each in parser._actions:
        yield each
        if isinstance(each, argparse._SubParsersAction):
            for below in dict.fromkeys(each.choices.values()):
                yield from _actions(below)
