"""`muster acls`: list, allow, deny, remove."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Iterator
from itertools import chain
from typing import Any, Final, NamedTuple

from muster.client.admin import acls as acl_calls
from muster.client.admin.acls import (
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
)
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.coordinator.arguments import Parser, printable
from muster.coordinator.commands import output
from muster.coordinator.commands.options import actions, command, one_of
from muster.coordinator.commands.run import Usage, error_json, report_failures
from muster.coordinator.security.acls import OPERATIONS
from muster.protocol.errors import KafkaError
from muster.protocol.messages.acls import CLUSTER_NAME, USER

_ACL_JSON: Final = """\
{"principal": text, "permission": "ALLOW" or "DENY", "operation": Kafka's name,
   "resource_type": Kafka's name, "resource_name": text, "pattern_type": "LITERAL" or "PREFIXED",
   "host": text}"""

_LIST: Final = f"""\
With --topic, --group or --transactional-id it lists what applies to that one: its own ACLs, those of prefixes
of its name, and those of all (*).

JSON: [{_ACL_JSON}]"""

_NAMING: Final = """\
A USER is a name, with or without User: before it; * is everyone, also clients that have not authenticated.
Names may have colons (system:serviceaccount:shop:web). A TOPIC, GROUP or ID is a name, with --prefixed the
beginning of names, or * for all."""

_ALLOW: Final = f"""\
  muster acls allow alice --consume orders --group billing
  muster acls allow alice --produce orders
  muster acls allow ops --operation describe --operation alter --cluster
  muster acls allow alice --operation all --topic alice. --prefixed

{_NAMING}
What is denied goes before what is allowed. READ, WRITE, DELETE and ALTER include DESCRIBE; ALTER_CONFIGS
includes DESCRIBE_CONFIGS.

JSON: [{{"acl": {_ACL_JSON},
  "error": null or {{"code": Kafka's name, "message": text}}}}]"""

_DENY: Final = f"""\
  muster acls deny mallory --operation all --topic '*'
  muster acls deny alice --produce orders --host 10.0.0.0/8

{_NAMING}
What is denied goes before what is allowed. To deny READ leaves DESCRIBE.

JSON: [{{"acl": {_ACL_JSON},
  "error": null or {{"code": Kafka's name, "message": text}}}}]"""

_REMOVE: Final = f"""\
Removes ACLs that allow and that deny; without --operation those of every operation, without --host those of
every host. Removing takes names as they were given: --topic orders leaves an ACL of all topics.

  muster acls remove alice --consume orders --group billing
  muster acls remove alice --topic orders
  muster acls remove alice --all

{_NAMING}

JSON: [{_ACL_JSON}], those that were removed"""

_OPERATIONS: Final = {
    each.name.lower().replace("_", "-"): each for each in AclOperation if each is not AclOperation.ANY
}
_KINDS: Final = {
    "topic": AclResourceType.TOPIC,
    "group": AclResourceType.GROUP,
    "transactional_id": AclResourceType.TRANSACTIONAL_ID,
}
"""The types of resources with names, by argument."""


class _Resource(NamedTuple):
    type: AclResourceType
    name: str
    pattern: PatternType


def declare(commands: Any, name: str, summary: str) -> None:
    """Add the command and its actions."""
    below = actions(commands, name, summary)

    listing = command(below, "list", "list ACLs", _LIST, output=output.FORMATS)
    listing.add_argument("--user", type=principals, metavar="USER", help="only those of this user")
    _add_resources(listing, repeated=False)
    listing.set_defaults(work=list_acls)

    for action, what, description, permission in (
        ("allow", "allow users to do something", _ALLOW, AclPermission.ALLOW),
        ("deny", "deny users something, whatever else allows it", _DENY, AclPermission.DENY),
    ):
        adding = command(below, action, what, description)
        adding.add_argument("users", type=principal, metavar="USER", nargs="+")
        _add_what(adding)
        adding.set_defaults(work=add_acls, permission=permission)

    removing = command(below, "remove", "remove ACLs", _REMOVE)
    removing.add_argument("users", type=principals, metavar="USER", nargs="+")
    _add_what(removing)
    removing.add_argument("--all", action="store_true", help="all ACLs of these users")
    removing.set_defaults(work=remove_acls)


def _add_what(parser: Parser) -> None:
    parser.add_argument(
        "--consume", action="append", default=[], metavar="TOPIC", help="to read a topic; may be repeated"
    )
    parser.add_argument(
        "--produce", action="append", default=[], metavar="TOPIC", help="to write to a topic; may be repeated"
    )
    operation: Any = parser.add_argument(
        "--operation",
        action="append",
        default=[],
        type=operation_name,
        metavar="OPERATION",
        help=f"{', '.join(_OPERATIONS)}; may be repeated",
    )
    operation.known = tuple(_OPERATIONS)
    _add_resources(parser, repeated=True)
    parser.add_argument("--prefixed", action="store_true", help="names are what names begin with")
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="HOST",
        help="from this address or network (10.0.0.0/8) alone; may be repeated",
    )


def _add_resources(parser: Parser, *, repeated: bool) -> None:
    again = "; may be repeated" if repeated else ""
    how: dict[str, Any] = {"action": "append", "default": []} if repeated else {}
    parser.add_argument("--topic", metavar="TOPIC", help=f"this topic{again}", **how)
    consuming, producing = (
        (f"; with --{word} no --operation is needed" if repeated else "") for word in ("consume", "produce")
    )
    parser.add_argument("--group", metavar="GROUP", help=f"this group{again}{consuming}", **how)
    parser.add_argument(
        "--transactional-id", metavar="ID", help=f"this transactional id{again}{producing}", **how
    )
    parser.add_argument("--cluster", action="store_true", help="the cluster itself")


def principal(text: str) -> str:
    """Parse a user's name, with or without `User:` before it. It may have colons itself, as that of a
    Kubernetes service account does."""
    name = text.removeprefix(USER)
    if not name:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not allowed; it takes a user's name, or a principal such as User:alice"
        )
    return USER + name


def principals(text: str) -> tuple[str, ...]:
    """Parse whose ACLs are sought. With a colon, the text may be a principal of another type too, for which
    another tool has made ACLs."""
    user = principal(text)
    kind, _, name = text.partition(":")
    return (user, text) if kind and name and user != text else (user,)


def operation_name(text: str) -> AclOperation:
    """Parse an operation's name, as Kafka or its tools write it."""
    return _OPERATIONS[one_of(list(_OPERATIONS))(text.replace("_", "-"))]


# --- list ---------------------------------------------------------------------------------------------------

_COLUMNS: Final = ("PRINCIPAL", "PERMISSION", "OPERATION", "RESOURCE", "NAME", "PATTERN", "HOST")


async def list_acls(cluster: Cluster, given: Namespace) -> int:
    """List ACLs, one per line."""
    users = given.user or (None,)
    filters = [
        AclFilter(type, getattr(given, argument), PatternType.MATCH, user)
        for user in users
        for argument, type in _KINDS.items()
        if getattr(given, argument) is not None
    ]
    if given.cluster:
        filters += [AclFilter(AclResourceType.CLUSTER, principal=user) for user in users]
    until = deadline(given.timeout)
    found: set[Acl] = set()
    for by in filters or [AclFilter(principal=user) for user in users]:
        found.update(await acl_calls.describe_acls(cluster, by, until))
    acls = sorted(found, key=lambda acl: (acl.principal, acl))
    if given.output == "json":
        print(output.document([_shown(each) for each in acls]))
        return 0
    rows = [tuple(_shown(each).values()) for each in acls]
    if given.output == "csv":
        print(output.csv([_COLUMNS, *rows]), end="")
    elif rows:
        print(output.table(_COLUMNS, rows))
    else:
        print("no ACLs")
    return 0


def _shown(acl: Acl) -> dict[str, str]:
    return {
        "principal": acl.principal,
        "permission": acl.permission.name,
        "operation": acl.operation.name,
        "resource_type": acl.resource_type.name,
        "resource_name": acl.resource_name,
        "pattern_type": acl.pattern_type.name,
        "host": acl.host,
    }


# --- allow and deny -----------------------------------------------------------------------------------------


async def add_acls(cluster: Cluster, given: Namespace) -> int:
    """Create ACLs."""
    pairs = list(_asked(given))
    for resource, operation in pairs:
        _check_operation(resource.type, operation)
    acls = [
        Acl(resource.type, resource.name, user, operation, given.permission, resource.pattern, host)
        for user in given.users
        for resource, operation in pairs
        for host in given.host or ["*"]
    ]
    outcomes = await acl_calls.create_acls(cluster, acls, deadline(given.timeout))
    if given.output == "json":
        shown = [{"acl": _shown(acl), "error": error_json(error)} for acl, error in outcomes.items()]
        print(output.document(shown))
    else:
        for acl in outcomes.succeeded:
            print(printable(str(acl)))
    return report_failures(given, {str(acl): error for acl, error in outcomes.failed.items()})


def _asked(given: Namespace) -> Iterator[tuple[_Resource, AclOperation]]:
    """The resources and operations that the options stand for. Raises Usage."""
    named = list(_named(given))
    for topic in given.consume:
        yield _resource(given, AclResourceType.TOPIC, topic), AclOperation.READ
    for topic in given.produce:
        yield _resource(given, AclResourceType.TOPIC, topic), AclOperation.WRITE
    if not named and not given.consume and not given.produce:
        raise Usage(
            "say what it is about: --consume, --produce, --topic, --group, --transactional-id or --cluster"
        )
    if given.operation and not named:
        raise Usage("--operation: say what it is about: --topic, --group, --transactional-id or --cluster")
    for resource in named:
        if given.operation:
            yield from ((resource, operation) for operation in given.operation)
        elif (implied := _implied(given, resource.type)) is not None:
            yield resource, implied
        else:
            option = _option(resource.type)
            raise Usage(f"--{option}: say what may be done with it: --operation, such as --operation read")


def _check_operation(type: AclResourceType, operation: AclOperation) -> None:
    """Raises Usage if no request needs the operation on a resource of this type."""
    known = [AclOperation.ALL, *OPERATIONS[type]]
    if type is AclResourceType.CLUSTER:
        known.append(AclOperation.DELETE)  # of any topic; kafka-acls does not know it
    if operation not in known:
        names = ", ".join(map(_option, known))
        raise Usage(
            f"--operation {_option(operation)} does not apply to --{_option(type)}, which takes {names}"
        )


def _option(named: AclOperation | AclResourceType) -> str:
    """As it is written on the command line."""
    return named.name.lower().replace("_", "-")


def _implied(given: Namespace, type: AclResourceType) -> AclOperation | None:
    """The operation that a consumer needs on its group, or a producer on its transactional id."""
    if type is AclResourceType.GROUP and given.consume:
        return AclOperation.READ
    if type is AclResourceType.TRANSACTIONAL_ID and given.produce:
        return AclOperation.WRITE
    return None


def _named(given: Namespace) -> Iterator[_Resource]:
    for argument, type in _KINDS.items():
        for name in getattr(given, argument):
            yield _resource(given, type, name)
    if given.cluster:
        yield _Resource(AclResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL)


def _resource(given: Namespace, type: AclResourceType, name: str) -> _Resource:
    if not name:
        raise Usage(f"the name of a {type.name.lower().replace('_', ' ')} is empty")
    if given.prefixed and name == "*":
        raise Usage("--prefixed: * stands for all names only without it")
    return _Resource(type, name, PatternType.PREFIXED if given.prefixed else PatternType.LITERAL)


# --- remove -------------------------------------------------------------------------------------------------


async def remove_acls(cluster: Cluster, given: Namespace) -> int:
    """Delete ACLs."""
    filters = [
        by._replace(principal=user, host=host)
        for user in dict.fromkeys(chain.from_iterable(given.users))
        for by in _filters(given)
        for host in given.host or [None]
    ]
    outcomes = await acl_calls.delete_acls(cluster, filters, deadline(given.timeout))
    removed = sorted({acl for acls in outcomes.succeeded.values() for acl in acls})
    if given.output == "json":
        print(output.document([_shown(each) for each in removed]))
    else:
        for acl in removed:
            print(f"removed: {printable(str(acl))}")
        if not removed and not outcomes.failed:
            print("no such ACLs")
    failures: dict[str, KafkaError] = {}
    for by, error in outcomes.failed.items():
        failures[f"ACLs of {by.principal}"] = error
    return report_failures(given, failures)


def _filters(given: Namespace) -> Iterator[AclFilter]:
    """Filters for the ACLs to remove, of any user. Raises Usage."""
    named = list(_named(given))
    if given.all:
        if named or given.consume or given.produce or given.operation:
            raise Usage("--all: it stands alone, with --host at most")
        yield AclFilter()
        return
    if not named and not given.consume and not given.produce:
        raise Usage(
            "say which: --consume, --produce, --topic, --group, --transactional-id, --cluster, or --all"
        )
    topics = [(topic, AclOperation.READ) for topic in given.consume]
    topics += [(topic, AclOperation.WRITE) for topic in given.produce]
    for topic, operation in topics:
        yield _selecting(_resource(given, AclResourceType.TOPIC, topic), operation)
    for resource in named:
        implied = _implied(given, resource.type) or AclOperation.ANY
        for operation in given.operation or [implied]:
            yield _selecting(resource, operation)


def _selecting(resource: _Resource, operation: AclOperation) -> AclFilter:
    return AclFilter(resource.type, resource.name, resource.pattern, operation=operation)
