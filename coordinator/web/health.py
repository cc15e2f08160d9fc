"""`/healthz` and `/readyz`: whether the process is alive, and whether its brokers are ready for clients."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from aiohttp import web

from muster.coordinator.server.broker import Broker
from muster.coordinator.storage.store import LeaseKind, StoreError
from muster.coordinator.web.keys import BROKERS, LIFE
from muster.coordinator.web.login import is_let_in

_ASK_S: Final = 4.0


def add_routes(app: web.Application) -> None:
    """Add `/healthz` and `/readyz`."""
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)


async def healthz(_: web.Request) -> web.Response:
    """200 if the event loop responds. The database does not count: restarting would not bring it back."""
    return web.json_response({"alive": True})


async def readyz(request: web.Request) -> web.Response:
    """200 if every broker of the process is ready in the sense of `muster cluster ready`, else 503. Only
    clients that are let in learn which one is not, and why."""
    running = request.app[BROKERS].running
    stopping = request.app[LIFE].stopping
    brokers = await asyncio.gather(*(_state(each, stopping) for each in running))
    ready = bool(brokers) and all(each["ready"] for each in brokers)
    told = {"ready": ready, "brokers": brokers} if is_let_in(request) else {"ready": ready}
    return web.json_response(told, status=200 if ready else 503)


async def _state(broker: Broker, stopping: bool) -> dict[str, Any]:
    why = "it is stopping" if stopping else await why_not_ready(broker)
    return {"node_id": broker.node_id, "ready": why is None, "why": why}


async def why_not_ready(broker: Broker) -> str | None:
    """Why a broker is not ready; None if it is: registered in the store, with everything it holds announced,
    and able to claim what it lacks. This asks the store, which knows better than the broker."""
    try:
        async with asyncio.timeout(_ASK_S):
            nodes = await broker.store.nodes()
            grants = [each for kind in LeaseKind for each in (await broker.store.holders(kind)).values()]
    except TimeoutError:
        return f"its store did not respond within {_ASK_S:.0f} s"
    except StoreError as error:
        return f"its store cannot be read: {error}"
    if all((each.node_id, each.incarnation) != (broker.node_id, broker.incarnation) for each in nodes):
        return "its registration in the cluster has expired"
    loading = sum(each.node_id == broker.node_id and not each.announced for each in grants)
    if loading:
        return f"it is still loading {loading} shards"
    return broker.membership.why_short({each.lease for each in grants})
