"""What can be typed behind `muster`: its commands and where each is declared."""

from __future__ import annotations

from collections.abc import Container
from importlib import import_module
from typing import Any, Final

from muster import __version__
from muster.coordinator import config
from muster.coordinator.arguments import Parser

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
    for each in config.settings_declared():
        spec = config.spec_of(each)
        if spec.section not in sections:
            sections[spec.section] = serve.add_argument_group(spec.section)
        flag = config.kind_of(each) is bool
        added: Any = sections[spec.section].add_argument(
            config.option(each.name),
            dest=each.name,
            metavar="[true|false]" if flag else _metavar(each.name, spec),
            help=_meaning(each, spec).replace("%", "%%"),
            **({"nargs": "?", "const": "true"} if flag else {}),
        )
        # Checked with what the variables say, so argparse is not told.
        added.known = ("true", "false") if flag else spec.choices


def _metavar(name: str, spec: config.Spec) -> str:
    if spec.unit is not None:
        return spec.unit.upper()
    return spec.shape if spec.shape is not None else name.rsplit("_", 1)[-1].upper()


def _meaning(each: Any, spec: config.Spec) -> str:
    default = (
        "none" if each.default is None else str(each.default).lower() if each.default is not None else ""
    )
    if isinstance(each.default, str):
        default = each.default
    notes = [f"default {default}"]
    if spec.unit is not None:
        notes.insert(0, spec.unit)
    if spec.choices is not None:
        notes.insert(0, " or ".join(spec.choices))
    if spec.kafka:
        notes.append(f"Kafka: {config.kafka_name(each.name)}")
    return f"{spec.meaning} ({'; '.join(notes)})"
