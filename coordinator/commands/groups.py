"""`muster groups`: list, describe, delete, evict (the other actions are in `group_*`)."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping
from typing import Any, Final

from muster.client.admin import groups as group_calls
from muster.client.admin.groups import CONSUMER_PROTOCOL_TYPES, GroupDescription
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.coordinator.arguments import printable
from muster.coordinator.commands import group_offsets, group_timeline, group_views, group_why, output
from muster.coordinator.commands.group_reads import of_groups
from muster.coordinator.commands.options import actions, any_name, command, one_of
from muster.coordinator.commands.run import Usage, report_failures, report_outcomes, require_names_or_all
from muster.protocol.errors import ErrorCode, KafkaError

_LIST_JSON = """\
JSON: [{"group_id": text, "type": text, "protocol_type": text, "state": text}], by group id"""

_DESCRIBE_JSON = """\
JSON: the same in every view,
  [{"group_id": text, "state": text, "protocol_type": text, "assignor": text, "type": text,
    "epoch": number or null, "target_epoch": number or null,
    "coordinator": {"node_id": number, "host": text, "port": number},
    "members": [{"member_id": text, "name": text, "group_instance_id": text or null, "client_id": text,
                 "host": text, "protocol": "classic" or "consumer", "epoch": number or null,
                 "assignment": [{"topic": text, "partition": number}] or null,
                 "target": [{"topic": text, "partition": number}] or null}],
    "offsets": [{"topic": text, "partition": number, "committed_offset": number or null,
                 "log_end_offset": number or null, "lag": number or null, "metadata": text or null,
                 "member_id": text or null}]}]
An assignment is null if it is not in the consumer protocol's format. Epochs and targets, the assignments that
members are to have, are those of consumer groups, and null in classic ones."""

_DELETE_JSON = """\
JSON: [{"group_id": text, "error": null or {"code": Kafka's name, "message": text}}]"""

_EVICT_JSON = """\
Members that still run rejoin. Short names are those shown by groups describe and groups why: a client id, an
instance id, or a client id with the end of the member id, such as rdkafka/005299. The reason goes to the
group's journal and the broker's log.

JSON: [{"member": text, "error": null or {"code": Kafka's name, "message": text}}]"""

_STATES: Final = (
    "Stable",
    "Empty",
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "NotReady",
    "Dead",
)
_NAMED_MAX: Final = 8
_TYPES: Final = ("classic", "consumer", "share", "streams")


def declare(commands: Any, name: str, summary: str) -> None:
    """Add the command and its actions."""
    below = actions(commands, name, summary)

    listing = command(below, "list", "list groups", _LIST_JSON, output=output.FORMATS)
    for name, values in (("state", _STATES), ("type", _TYPES)):
        added: Any = listing.add_argument(
            f"--{name}",
            type=one_of(values),
            action="append",
            default=[],
            metavar=name.upper(),
            help=f"only {', '.join(values)}; may be repeated",
        )
        added.known = values
    listing.set_defaults(work=list_groups)

    describe = command(
        below,
        "describe",
        "show positions, members or states of groups",
        "LAG is the number of records between the committed offset and the end of the log. MEMBER is "
        "the short name\nthat every command uses; --verbose, csv and json have member ids.\n\n"
        + _DESCRIBE_JSON,
        output=output.FORMATS,
    )
    describe.add_argument("groups", type=any_name, metavar="GROUP", nargs="*")
    describe.add_argument("--all-groups", action="store_true", help="all groups")
    views = describe.add_mutually_exclusive_group()
    for view, meaning in (
        ("offsets", "committed offset, log end and lag of each partition (the default)"),
        ("members", "members and their number of partitions"),
        ("state", "coordinator, assignor, state and number of members"),
    ):
        views.add_argument(f"--{view}", dest="view", action="store_const", const=view, help=meaning)
    describe.add_argument(
        "--verbose",
        action="store_true",
        help="also member ids, assigned partitions, commit metadata, group types; epochs and targets of "
        "consumer groups",
    )
    describe.set_defaults(work=describe_groups, view="offsets")

    delete = command(below, "delete", "delete groups that have no members, with their offsets", _DELETE_JSON)
    delete.add_argument("groups", type=any_name, metavar="GROUP", nargs="+")
    delete.set_defaults(work=delete_groups)

    group_offsets.declare(below)
    group_why.declare(below)
    group_timeline.declare(below)

    evict = command(below, "evict", "remove members from a group", _EVICT_JSON, aliases=("remove-members",))
    evict.add_argument("group", type=any_name, metavar="GROUP")
    evict.add_argument(
        "--member",
        type=any_name,
        action="append",
        metavar="NAME",
        help="this member id or short name; may be repeated",
    )
    evict.add_argument(
        "--instance",
        type=any_name,
        action="append",
        metavar="ID",
        help="this group instance id; may be repeated",
    )
    evict.add_argument("--all", action="store_true", help="all members")
    evict.add_argument("--reason", default=group_calls.REASON, metavar="TEXT", help="why")
    evict.set_defaults(work=evict_members)


async def list_groups(cluster: Cluster, given: Namespace) -> int:
    """List groups, one per line."""
    groups = await group_calls.list_groups(
        cluster, deadline(given.timeout), states=given.state, types=given.type
    )
    if given.output == "json":
        shown = [
            {
                "group_id": each.group_id,
                "type": each.group_type,
                "protocol_type": each.protocol_type,
                "state": each.state,
            }
            for each in groups
        ]
        print(output.document(shown))
    else:
        _show(given, group_views.View(("group_id", "type", "protocol_type", "state"), list(groups)))
    return 0


async def describe_groups(cluster: Cluster, given: Namespace) -> int:
    """Show groups in the chosen view."""
    require_names_or_all("GROUP", bool(given.groups), "--all-groups", given.all_groups)
    until = deadline(given.timeout)
    wanted = await _all_groups(cluster, until) if given.all_groups else given.groups
    groups, failures = await _existing(cluster, wanted, until, may_be_gone=given.all_groups)
    positions = given.output == "json" or given.view == "offsets"
    described, more_failures = await group_views.describe(cluster, groups, until, positions=positions)
    if given.output == "json":
        print(output.document([group_views.as_json(each) for each in described]))
    else:
        view = group_views.VIEWS[given.view](described, given.verbose)
        if given.output == "csv":
            view = view.without("name")  # programs use ids
        elif not given.verbose:
            view = view.without("member_id")
        _show(given, view)
        if given.view == "offsets" and not given.all_groups:
            _say_whose_positions_are_unknown(given, described)
    return report_failures(given, _in_short({**failures, **more_failures}))


def _in_short(failures: Mapping[str, KafkaError]) -> dict[str, KafkaError]:
    """The failures, with those of many for one reason as one: a broker may lead thousands of partitions."""
    alike: dict[tuple[ErrorCode, str], list[str]] = {}
    for name, error in failures.items():
        alike.setdefault((error.code, error.why.removeprefix(f"{name}: ")), []).append(name)
    short: dict[str, KafkaError] = {}
    for (code, why), names in alike.items():
        if len(names) > _NAMED_MAX:
            names = [f"{', '.join(names[:_NAMED_MAX])} and {len(names) - _NAMED_MAX} more"]
        short |= dict.fromkeys(names, KafkaError(code, why))
    return short


def _say_whose_positions_are_unknown(given: Namespace, described: list[group_views.Described]) -> None:
    """Explain an empty table: the group's members are not consumers but, for example, Connect workers."""
    for group, positions in described:
        if group.protocol_type not in CONSUMER_PROTOCOL_TYPES and not positions:
            print(
                f"{given.prog}: {printable(group.group_id)} is not a consumer group "
                f"({printable(group.protocol_type)}) and has no positions; --members shows its members",
                file=sys.stderr,
            )


async def _all_groups(cluster: Cluster, until: float) -> list[str]:
    return [each.group_id for each in await group_calls.list_groups(cluster, until)]


async def _existing(
    cluster: Cluster, wanted: list[str], until: float, *, may_be_gone: bool
) -> tuple[dict[str, GroupDescription], dict[str, KafkaError]]:
    """Groups that exist, and why others cannot be described. `may_be_gone`: not named by the user, so ignore
    those deleted meanwhile. Raises ClientError and KafkaError if that leaves only failures."""
    outcomes = await of_groups(group_calls.describe_groups, cluster, wanted, until)
    failed = {
        name: error
        for name, error in outcomes.failed.items()
        if not (may_be_gone and error.code == ErrorCode.GROUP_ID_NOT_FOUND)
    }
    if not outcomes.succeeded:
        for error in failed.values():
            raise error
    return outcomes.succeeded, group_views.failures_of_groups(failed)


def _show(given: Namespace, view: group_views.View) -> None:
    if given.output == "csv":
        print(output.csv([view.columns, *view.rows]), end="")
    else:
        print(output.table(group_views.headings(view.columns), view.rows))


async def delete_groups(cluster: Cluster, given: Namespace) -> int:
    """Delete groups."""
    outcomes = await group_calls.delete_groups(cluster, given.groups, deadline(given.timeout))
    return report_outcomes(given, outcomes, "group_id", "deleted")


async def evict_members(cluster: Cluster, given: Namespace) -> int:
    """Remove members; those that still run rejoin."""
    named = bool(given.member or given.instance)
    require_names_or_all("--member, --instance", named, "--all", given.all)
    until = deadline(given.timeout)
    outcomes = await group_calls.remove_members(
        cluster,
        given.group,
        until,
        member_ids=None if given.all else await _member_ids(cluster, given, until),
        instance_ids=None if given.all else given.instance or [],
        reason=given.reason,
    )
    if not outcomes and given.output != "json":
        print(f"group {printable(given.group)} has no members")
    return report_outcomes(given, outcomes, "member", "evicted")


async def _member_ids(cluster: Cluster, given: Namespace, until: float) -> list[str]:
    """The member ids that `--member` refers to. A name that matches nobody is passed on for the coordinator
    to reject. Raises Usage for an ambiguous name."""
    if not given.member:
        return []
    described = (await group_calls.describe_groups(cluster, [given.group], until)).succeeded
    if given.group not in described:
        return list(given.member)
    names = group_views.names_of(described[given.group])
    found: dict[str, None] = {}
    for name in given.member:
        meant = names.meant(name)
        if len(meant) > 1:
            which = ", ".join(names.short(each) for each in meant[:_NAMED_MAX])
            more = f" and {len(meant) - _NAMED_MAX} more" if len(meant) > _NAMED_MAX else ""
            raise Usage(
                f"--member: {name} is the name of {len(meant)} members: {which}{more}; use a member id"
            )
        found[meant[0].id if meant else name] = None
    return list(found)
