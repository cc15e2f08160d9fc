"""`muster transactions`: list, describe (the other actions are in `hanging_transactions`)."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Iterable
from typing import Any, Final

from muster.client.admin import transactions as transaction_calls
from muster.client.admin.transactions import STATES, TransactionDescription, TransactionListing
from muster.client.network.cluster import Cluster
from muster.client.network.connection import deadline
from muster.client.partitions import TopicPartition, grouped
from muster.coordinator.base.clock import wall_ms
from muster.coordinator.commands import hanging_transactions, output
from muster.coordinator.commands.options import actions, any_name, command, duration_ms, number, one_of
from muster.coordinator.commands.run import report_failures
from muster.coordinator.journal.explain.names import duration

_INT64_MAX: Final = 2**63 - 1

_LIST: Final = """\
Ids without a transaction are listed, too. Those that you may not describe are left out.

JSON: [{"transactional_id": text, "coordinator": number, "producer_id": number, "state": text}], by id"""

_DESCRIBE: Final = """\
A transaction that is ending shows the partitions that it has not ended on yet. SINCE is when the latest
transaction began.

JSON: [{"transactional_id": text, "coordinator": number, "state": text, "producer_id": number,
        "producer_epoch": number, "timeout_ms": number, "start_timestamp": epoch ms or null,
        "open_ms": number or null, "partitions": [{"topic": text, "partition": number}]}]"""


def declare(commands: Any, name: str, summary: str) -> None:
    """Add the command and its actions."""
    below = actions(commands, name, summary)

    listing = command(below, "list", "list transactional ids", _LIST, output=output.FORMATS)
    state: Any = listing.add_argument(
        "--state",
        type=one_of(STATES),
        action="append",
        default=[],
        metavar="STATE",
        help=f"only {', '.join(STATES)}; may be repeated",
    )
    state.known = STATES
    listing.add_argument(
        "--producer-id",
        type=number(0, _INT64_MAX),
        action="append",
        default=[],
        metavar="ID",
        help="only with this producer id; may be repeated",
    )
    listing.add_argument(
        "--longer-than",
        type=duration_ms,
        metavar="DURATION",
        help="only with a transaction open for longer, such as 5m or 2h",
    )
    listing.add_argument(
        "--pattern",
        type=any_name,
        metavar="REGEX",
        help="only ids that this regular expression matches whole",
    )
    listing.set_defaults(work=list_transactions)

    describe = command(
        below, "describe", "show where transactional ids stand", _DESCRIBE, output=output.FORMATS
    )
    describe.add_argument("ids", type=_transactional_id, metavar="ID", nargs="+")
    describe.set_defaults(work=describe_transactions)

    hanging_transactions.declare(below)


def _transactional_id(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("'' is not allowed; it takes a name")
    return any_name(text)


async def list_transactions(cluster: Cluster, given: Namespace) -> int:
    """List transactional ids, one per line."""
    found = await transaction_calls.list_transactions(
        cluster,
        deadline(given.timeout),
        states=given.state,
        producer_ids=given.producer_id,
        longer_than_ms=given.longer_than,
        pattern=given.pattern,
    )
    if given.output == "json":
        print(output.document([each._asdict() for each in found]))
    elif given.output == "csv":
        print(output.csv([TransactionListing._fields, *found]), end="")
    else:
        print(output.table(("TRANSACTIONAL ID", "COORDINATOR", "PRODUCER ID", "STATE"), found))
    return 0


async def describe_transactions(cluster: Cluster, given: Namespace) -> int:
    """Show transactional ids, one per line."""
    outcomes = await transaction_calls.describe_transactions(cluster, given.ids, deadline(given.timeout))
    now_ms = wall_ms()
    found = [_Described(each, now_ms) for each in outcomes.succeeded.values()]
    if given.output == "json":
        print(output.document([each.as_json() for each in found]))
    elif given.output == "csv":
        print(output.csv([_CSV_COLUMNS, *(each.raw() for each in found)]), end="")
    elif found:
        print(output.table(_COLUMNS, [each.shown() for each in found]))
    return report_failures(given, outcomes.failed)


_COLUMNS: Final = (
    *("TRANSACTIONAL ID", "STATE", "COORDINATOR", "PRODUCER ID", "EPOCH"),
    *("TIMEOUT", "SINCE", "OPEN FOR", "PARTITIONS"),
)
_CSV_COLUMNS: Final = (
    *("transactional_id", "state", "coordinator", "producer_id", "producer_epoch"),
    *("timeout_ms", "start_timestamp", "open_ms", "partitions"),
)


class _Described:
    """A transactional id, and how long its transaction has been open."""

    def __init__(self, told: TransactionDescription, now_ms: int) -> None:
        self._told = told
        is_timed = told.is_open and told.start_timestamp is not None
        self._open_ms = max(0, now_ms - (told.start_timestamp or 0)) if is_timed else None

    def as_json(self) -> dict[str, Any]:
        partitions = [each._asdict() for each in self._told.partitions]
        return self._told._asdict() | {"open_ms": self._open_ms, "partitions": partitions}

    def raw(self) -> list[object]:
        told = self._told
        return [*self._identity(), told.timeout_ms, told.start_timestamp, self._open_ms, told.partitions]

    def shown(self) -> list[object]:
        told = self._told
        return [
            *self._identity(),
            duration(told.timeout_ms),
            None if told.start_timestamp is None else output.local_time(told.start_timestamp),
            None if self._open_ms is None else duration(self._open_ms),
            _partitions(told.partitions),
        ]

    def _identity(self) -> list[object]:
        told = self._told
        return [told.transactional_id, told.state, told.coordinator, told.producer_id, told.producer_epoch]


def _partitions(partitions: Iterable[TopicPartition]) -> str:
    """For example: orders:0,1 payments:2."""
    topics = grouped((each, None) for each in partitions)
    return " ".join(
        f"{topic}:{','.join(str(index) for index, _ in parts)}" for topic, parts in topics.items()
    )
