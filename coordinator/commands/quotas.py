"""`muster quotas`: list, set, remove."""

from __future__ import annotations

import argparse
import re
from argparse import Namespace
from typing import Any, Final

from muster.client.admin import quotas as quota_calls
from muster.client.admin.quotas import QUOTAS, Name, QuotaEntity, QuotaName, Quotas
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.coordinator.arguments import Parser, printable
from muster.coordinator.commands import output
from muster.coordinator.commands.options import actions, command
from muster.coordinator.commands.run import Usage, error_json, report_failures

_QUOTAS_JSON: Final = """\
[{"entity": {"user": text or null, "client_id": text or null, "ip": text or null,
     "default": [those of these three that stand for all without quotas of their own]},
   "quotas": {Kafka's name: number}}]"""

_OUTCOME_JSON: Final = '{"entity": text, "error": null or {"code": Kafka\'s name, "message": text}}'

_LIST: Final = f"""\
With --user, --client-id or --ip it lists the quotas that are set for that one, also together with others.

JSON: {_QUOTAS_JSON}"""

_WHOM: Final = """\
A quota is for a user, for a client id, for a user with a client id, or for an address. Of those that a client
is, the most specific one counts, alone. The default of a user, client id or address is for all that have no
quota by their name."""

_SET: Final = f"""\
  muster quotas set --user alice --producer-byte-rate 1048576
  muster quotas set --client-id etl --request-percentage 50
  muster quotas set --user alice --client-id-default --consumer-byte-rate 1048576
  muster quotas set --user-default --controller-mutation-rate 10
  muster quotas set --ip-default --connection-creation-rate 5

{_WHOM} Each broker counts by itself.

JSON: {_OUTCOME_JSON}"""

_REMOVE: Final = f"""\
  muster quotas remove --user alice --producer-byte-rate
  muster quotas remove --client-id etl --all

{_WHOM}

JSON: {_OUTCOME_JSON}"""

_MEANINGS: Final = {
    "producer_byte_rate": ("BYTES", "bytes a second that it may produce"),
    "consumer_byte_rate": ("BYTES", "bytes a second that it may fetch"),
    "request_percentage": ("PERCENT", "of a thread's time that its requests may take"),
    "controller_mutation_rate": ("PARTITIONS", "that it may create and delete in a second"),
    "connection_creation_rate": ("CONNECTIONS", "that an address may open in a second"),
}
_WHOLE: Final = frozenset({"producer_byte_rate", "consumer_byte_rate", "connection_creation_rate"})
_KINDS: Final = {"user": "NAME", "client_id": "ID", "ip": "ADDRESS"}


def declare(commands: Any, name: str, summary: str) -> None:
    """Add the command and its actions."""
    below = actions(commands, name, summary)

    listing = command(below, "list", "list quotas", _LIST, output=output.FORMATS)
    _add_entity(listing)
    listing.set_defaults(work=list_quotas)

    setting = command(below, "set", "set quotas", _SET)
    _add_entity(setting)
    for quota, (shape, meaning) in _MEANINGS.items():
        setting.add_argument(_option(quota), type=_value(quota), metavar=shape, help=meaning)
    setting.set_defaults(work=set_quotas)

    removing = command(below, "remove", "remove quotas", _REMOVE)
    _add_entity(removing)
    for quota in QUOTAS:
        removing.add_argument(_option(quota), action="store_true", help=f"its {quota}")
    removing.add_argument("--all", action="store_true", help="all its quotas")
    removing.set_defaults(work=remove_quotas)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _add_entity(parser: Parser) -> None:
    for kind, shape in _KINDS.items():
        words = kind.replace("_", " ")
        either = parser.add_mutually_exclusive_group()
        either.add_argument(_option(kind), type=_name, metavar=shape, help=f"of this {words}")
        either.add_argument(_option(f"{kind}_default"), action="store_true", help=f"of the default {words}")


def _name(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("'' is not allowed; it takes a name")
    return text


def _value(quota: str) -> Any:
    kind, shape = (
        ("a whole number", r"[0-9]{1,18}") if quota in _WHOLE else ("a number", r"[0-9]+(\.[0-9]+)?")
    )

    def read(text: str) -> float:
        if re.fullmatch(shape, text) is None or float(text) == 0:
            raise argparse.ArgumentTypeError(f"{text!r} is not allowed; it takes {kind} above 0")
        return float(text)

    return read


def _entity(given: Namespace) -> QuotaEntity:
    names: dict[str, Name] = {}
    for kind in _KINDS:
        if getattr(given, f"{kind}_default"):
            names[kind] = QuotaName.DEFAULT
        elif getattr(given, kind) is not None:
            names[kind] = getattr(given, kind)
    if "ip" in names and len(names) > 1:
        option = "--ip" if given.ip is not None else "--ip-default"
        raise Usage(f"{option}: an address has quotas by itself, without a user or client id")
    return QuotaEntity(**names)


def _named(given: Namespace) -> QuotaEntity:
    entity = _entity(given)
    if entity == QuotaEntity():
        raise Usage("say whose quota it is: --user, --client-id or --ip, or the default of one")
    return entity


# --- list ---------------------------------------------------------------------------------------------------

_COLUMNS: Final = ("USER", "CLIENT ID", "ADDRESS", "QUOTA", "VALUE")
_DEFAULT: Final = "<default>"


async def list_quotas(cluster: Cluster, given: Namespace) -> int:
    """List quotas, one per line."""
    found = await quota_calls.describe_client_quotas(cluster, _entity(given), deadline(given.timeout))
    entries = sorted(found.items(), key=lambda entry: [_cell(name) for name in entry[0]])
    if given.output == "json":
        print(output.document([_shown(entity, quotas) for entity, quotas in entries]))
        return 0
    rows = [
        (*map(_cell, entity), quota, f"{value:.15g}")
        for entity, quotas in entries
        for quota, value in sorted(quotas.items())
    ]
    if given.output == "csv":
        print(output.csv([_COLUMNS, *rows]), end="")
    elif rows:
        print(output.table(_COLUMNS, rows))
    else:
        print("no quotas")
    return 0


def _cell(name: Name | None) -> str:
    return "" if name is None else name if isinstance(name, str) else _DEFAULT


def _shown(entity: QuotaEntity, quotas: Quotas) -> dict[str, Any]:
    names = entity._asdict()
    return {
        "entity": {
            **{kind: name if isinstance(name, str) else None for kind, name in names.items()},
            "default": [kind for kind, name in names.items() if name is QuotaName.DEFAULT],
        },
        "quotas": dict(sorted(quotas.items())),
    }


# --- set and remove -----------------------------------------------------------------------------------------


async def set_quotas(cluster: Cluster, given: Namespace) -> int:
    """Set quotas of an entity."""
    values = {quota: getattr(given, quota) for quota in QUOTAS if getattr(given, quota) is not None}
    if not values:
        raise Usage(f"say what it may have: {', '.join(map(_option, QUOTAS))}")
    return await _alter(cluster, given, _named(given), values)


async def remove_quotas(cluster: Cluster, given: Namespace) -> int:
    """Remove quotas of an entity."""
    entity, until = _named(given), deadline(given.timeout)
    named = [quota for quota in QUOTAS if getattr(given, quota)]
    if bool(named) == given.all:
        raise Usage(f"say which, or --all of them: {', '.join(map(_option, QUOTAS))}")
    there = (await quota_calls.describe_client_quotas(cluster, entity, until, strict=True)).get(entity, {})
    gone = {quota: None for quota in named or QUOTAS if quota in there}
    if not gone:
        nothing = output.document({"entity": str(entity), "error": None})
        print(nothing if given.output == "json" else "no such quotas")
        return 0
    return await _alter(cluster, given, entity, gone)


async def _alter(cluster: Cluster, given: Namespace, entity: QuotaEntity, changed: dict[str, Any]) -> int:
    outcomes = await quota_calls.alter_client_quotas(cluster, {entity: changed}, deadline(given.timeout))
    if given.output == "json":
        print(output.document({"entity": str(entity), "error": error_json(outcomes[entity])}))
    elif entity in outcomes.succeeded:
        for quota, value in changed.items():
            what = "removed" if value is None else f"{value:.15g}"
            print(printable(f"{entity}: {quota} {what}"))
    return report_failures(given, {str(entity): error for error in outcomes.failed.values()})
