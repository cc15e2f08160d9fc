"""What can be typed behind `muster`: its commands and where each is declared."""

from __future__ import annotations

from collections.abc import Container
from importlib import import_module
from typing import Any, Final

from muster import __version__
from muster.coordinator import config
from muster.coordinator.arguments import Parser
from muster.settings import Setting, text_of

CLIENTS: Final = {
    "topics": "list, create, describe, alter and delete topics",
    "groups": "list, describe and delete consumer groups, reset and delete their offsets",
    "top": "watch groups: lag, speed, members, rebalances",
    "produce": "send records, a line each",
    "consume": "print records as they arrive",
    "cluster": "describe the cluster, drain its brokers, ask whether one is ready",
}
"""The commands that are clients: `muster.coordinator.commands.<name>` declares and carries out each."""
OTHERS: Final = {
    "store": ("store_command", "make a database ready for brokers, or check what is stored"),
    "test": ("test_mode_command", "move the clock of brokers in test mode, and have them fail on purpose"),
    "completion": ("completion_command", "print a script that completes commands and options in a shell"),
}
"""The commands that speak no Kafka protocol: the module of each, below `muster.coordinator`."""
SERVE: Final = "serve"
EVERYTHING: Final = frozenset({SERVE, *CLIENTS, *OTHERS})


def parser(chosen: Container[str]) -> Parser:
    """The parser; of the commands beside `serve` only the `chosen` ones are there in full, since declaring
    one imports it."""
    made = Parser(
        prog="muster",
        description="A Kafka-wire-compatible broker with an exact consumer-group coordinator, and the\n"
        "commands of a Kafka client, for this broker and any other.",
    )
    made.add_argument("--version", action="version", version=f"muster {__version__}")
    commands = made.add_subparsers(dest="command", metavar="COMMAND")
    _declare_serve(commands)
    modules = {name: (f"commands.{name}", summary) for name, summary in CLIENTS.items()} | OTHERS
    for name, (module, summary) in modules.items():
        if name in chosen:
            import_module(f"muster.coordinator.{module}").declare(commands, name, summary)
        else:
            commands.add_parser(name, help=summary)
    return made


def _declare_serve(commands: Any) -> None:
    serve = commands.add_parser(
        "serve",
        usage="muster serve [options]",
        help="run one or more brokers in this process",
        description="Run one or more brokers in this process.\n\n"
        "Every option can also be given as a variable, --group-max-size as MUSTER_GROUP_MAX_SIZE. What\n"
        "Kafka has too carries Kafka's name and default.",
    )
    sections: dict[str, Any] = {}
    for name, each in config.SETTINGS.items():
        if each.section not in sections:
            sections[each.section] = serve.add_argument_group(each.section)
        flag = each.kind is bool
        added: Any = sections[each.section].add_argument(
            config.option(name),
            dest=name,
            metavar="[true|false]" if flag else _metavar(each),
            help=_meaning(each).replace("%", "%%"),
            **({"nargs": "?", "const": "true"} if flag else {}),
        )
        # Checked with what the variables say, so argparse is not told.
        added.known = ("true", "false") if flag else each.choices or None


def _metavar(each: Setting) -> str:
    if each.unit is not None:
        return each.unit.upper()
    return each.shape if each.shape is not None else each.name.rpartition(".")[2].upper()


def _meaning(each: Setting) -> str:
    notes = [
        " or ".join(each.choices) or None,
        each.unit,
        f"default {'none' if each.default is None else text_of(each.default)}",
        f"Kafka: {each.name}" if each.kafka else None,
    ]
    return f"{each.meaning} ({'; '.join(filter(None, notes))})"
