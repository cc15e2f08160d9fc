"""The command line of `muster`: its commands and the module that declares each."""

from __future__ import annotations

from argparse import SUPPRESS
from collections.abc import Container, Iterable
from importlib import import_module
from typing import Any, Final

from muster.build import version
from muster.coordinator import by_listener, config
from muster.coordinator.arguments import Parser
from muster.settings import Setting, either, text_of

CLIENTS: Final = {
    "topics": "list, create, describe, alter and delete topics; reassign their partitions",
    "groups": "list, describe and delete groups; explain rebalances; evict members; reset and delete offsets",
    "top": "watch groups: lag, rate, members, rebalances",
    "produce": "send records, one per line",
    "consume": "print records as they arrive",
    "cluster": "describe the cluster, drain brokers, check whether one is ready",
    "acls": "list, allow, deny and remove what users may do",
    "quotas": "list, set and remove how much users and clients may use",
    "transactions": "list and describe transactions; find and abort those that hang",
}
"""Client commands: `muster.coordinator.commands.<name>` declares and runs each."""
OTHERS: Final = {
    "users": ("users_command", "list, create and delete SCRAM users; change passwords"),
    "store": ("store_command", "prepare a database for brokers, or check stored data"),
    "test": ("test_mode_command", "move the clock of brokers in test mode and inject faults"),
    "completion": ("completion_command", "print a completion script for a shell"),
}
"""Commands that do not, or not always, speak the Kafka protocol, with their modules below
`muster.coordinator`."""
SERVE: Final = "serve"
EVERYTHING: Final = frozenset({SERVE, *CLIENTS, *OTHERS})


def parser(chosen: Container[str], arguments: Iterable[str] = ()) -> Parser:
    """The parser for `arguments`. Besides `serve`, only the `chosen` commands are declared in full, since
    declaring a command imports its module."""
    made = Parser(
        prog="muster",
        description="A Kafka-wire-compatible broker with an exact consumer-group coordinator, and the\n"
        "commands of a Kafka client, for this broker and any other.",
    )
    made.add_argument("--version", action="version", version=f"muster {version()}")
    commands = made.add_subparsers(dest="command", metavar="COMMAND")
    _declare_serve(commands, arguments)
    modules = {name: (f"commands.{name}", summary) for name, summary in CLIENTS.items()} | OTHERS
    for name, (module, summary) in modules.items():
        if name in chosen:
            import_module(f"muster.coordinator.{module}").declare(commands, name, summary)
        else:
            commands.add_parser(name, help=summary)
    return made


def _declare_serve(commands: Any, arguments: Iterable[str]) -> None:
    serve = commands.add_parser(
        "serve",
        usage="muster serve [options]",
        help="run one or more brokers in this process",
        description="Run one or more brokers in this process.\n\nEvery option can also be set with a "
        "variable: --group-max-size is MUSTER_GROUP_MAX_SIZE. Options that\nKafka has too "
        "use Kafka's name and default.\n\nSettings of TLS and SASL can be given for one listener alone: "
        "--listener-name-external-ssl-client-auth is\nKafka's listener.name.external.ssl.client.auth.",
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
        # Validated together with the variables, not by argparse.
        added.known = ("true", "false") if flag else each.choices or None
    for name in config.WITHOUT_EFFECT:
        serve.add_argument(config.option(name), dest=name, help=SUPPRESS)
    for given in _by_listener(arguments):
        flag = any(given.endswith(config.option(name)[1:]) for name in config.BY_LISTENER_FLAGS)
        serve.add_argument(
            given,
            dest=by_listener.normalised(given[2:]),
            help=SUPPRESS,
            **({"nargs": "?", "const": "true"} if flag else {}),
        )


def _by_listener(arguments: Iterable[str]) -> set[str]:
    """The options in the arguments that are for one listener alone: users choose listeners' names."""
    named = {each.partition("=")[0] for each in arguments}
    return {each for each in named if each.startswith(config.option(by_listener.PREFIX))}


def _metavar(each: Setting) -> str:
    if each.unit is not None:
        return each.unit.upper()
    return each.shape if each.shape is not None else each.name.rpartition(".")[2].upper()


def _meaning(each: Setting) -> str:
    notes = [
        either(each.choices) if each.choices else None,
        each.unit,
        f"default {'none' if each.default is None else text_of(each.default)}",
        f"Kafka: {each.name}" if each.kafka else None,
    ]
    return f"{each.meaning} ({'; '.join(filter(None, notes))})"
