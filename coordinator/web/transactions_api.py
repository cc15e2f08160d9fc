"""Transactions as JSON: the ids, one of them, and what open transactions hold back."""

from __future__ import annotations

from heapq import nsmallest
from typing import Any, Final

from aiohttp import web

from muster.coordinator.storage.store import LeaseKind
from muster.coordinator.transactions.states import BY_WIRE_NAME
from muster.coordinator.transactions.transaction import NO_TIME
from muster.coordinator.web import facts, transaction_facts
from muster.coordinator.web.guard import refusal, route, whole_number
from muster.coordinator.web.keys import BROKERS
from muster.coordinator.web.transaction_facts import Known

TRANSACTIONS_MAX: Final = 1_000
HELD_MAX: Final = 1_000
PARTITIONS_MAX: Final = 5_000
_TOPICS_SHOWN: Final = 20
_GROUPS_SHOWN: Final = 1_000


def add_routes(app: web.Application) -> None:
    """Add `/api/transactions` and below. Slashes in a transactional id are %2F in the path."""
    app.router.add_get("/api/transactions", transactions)
    app.router.add_get(route("/api/transactions/{id}"), transaction)


async def transactions(request: web.Request) -> web.Response:
    """The ids that brokers of this process coordinate: those with an open transaction first, oldest first;
    and what open transactions hold back here."""
    brokers = request.app[BROKERS]
    wanted, state = request.query.get("find", "").lower(), request.query.get("state")
    limit = whole_number(request, "limit", TRANSACTIONS_MAX, TRANSACTIONS_MAX)
    if state is not None and state not in BY_WIRE_NAME:
        names = ", ".join(BY_WIRE_NAME)
        raise refusal(web.HTTPBadRequest, f"state: {state[:40]!r} is not allowed; it takes {names}")
    now_ms = facts.any_broker(brokers).clock.now_ms()
    others = facts.elsewhere(brokers, LeaseKind.TRANSACTION)
    found = [
        each
        async for each in transaction_facts.known(brokers)
        if wanted in each.transactional_id.lower() and state in (None, each.transaction.state.wire_name)
    ]
    held = await transaction_facts.held_back(brokers)
    return web.json_response(
        {
            "at_ms": now_ms,
            "transactions": [_summary(each) for each in nsmallest(limit, found, key=_rank)],
            "more": max(len(found) - limit, 0),
            "held_back": [each.to_json() for each in held[:HELD_MAX]],
            "more_held_back": max(len(held) - HELD_MAX, 0),
            "brokers": [facts.broker_json(each) for each in brokers.running],
            "elsewhere": [each.to_json() for each in others],
        }
    )


def _rank(known: Known) -> tuple[bool, int, str]:
    return not known.is_open, known.transaction.started_ms if known.is_open else 0, known.transactional_id


def _summary(known: Known) -> dict[str, Any]:
    transaction = known.transaction
    topics = sorted({topic for topic, _ in transaction.partitions})
    started_ms = transaction.started_ms if known.is_open else NO_TIME
    return {
        "transactional_id": known.transactional_id,
        "state": transaction.state.wire_name,
        "updated_ms": transaction.last_update_ms,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "timeout_ms": transaction.timeout_ms,
        "started_ms": None if started_ms == NO_TIME else started_ms,
        "partitions": len(transaction.partitions),
        "unmarked": len(known.owed),
        "topics": topics[:_TOPICS_SHOWN],
        "more_topics": max(len(topics) - _TOPICS_SHOWN, 0),
        "broker": known.broker.node_id,
    }


async def transaction(request: web.Request) -> web.Response:
    """One id: the partitions of its transaction, the groups whose offsets it commits, and what it holds back
    here."""
    brokers = request.app[BROKERS]
    transactional_id = request.match_info["id"]
    transaction_facts.find(brokers, transactional_id)
    held = await transaction_facts.held_back(brokers)
    known = transaction_facts.find(brokers, transactional_id)  # it may have changed by now
    owed, producer_id = known.owed, known.transaction.producer_id
    groups = transaction_facts.groups_of(brokers, producer_id)
    partitions = sorted(known.transaction.partitions)
    return web.json_response(
        {
            **_summary(known),
            "at_ms": known.broker.clock.now_ms(),
            "partitions": [
                {"topic": topic, "partition": number, "marked": (topic, number) not in owed}
                for topic, number in partitions[:PARTITIONS_MAX]
            ],
            "more_partitions": max(len(partitions) - PARTITIONS_MAX, 0),
            "groups": groups[:_GROUPS_SHOWN],
            "more_groups": max(len(groups) - _GROUPS_SHOWN, 0),
            "held_back": [each.to_json() for each in held if each.producer_id == producer_id][:HELD_MAX],
        }
    )
