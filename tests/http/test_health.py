"""`/healthz` and `/readyz`."""

from __future__ import annotations

import pytest

from muster.coordinator.storage.store import Lease, StoreBusy
from muster.coordinator.web import health
from tests.http.conftest import Show, Shown
from tests.support.facts import until


async def test_ready_when_every_broker_is(show: Show) -> None:
    shown = await show(brokers=2)
    assert await shown.get("/healthz") == (200, {"alive": True})
    told = [{"node_id": node_id, "ready": True, "why": None} for node_id in (1, 2)]
    assert await shown.get("/readyz") == (200, {"ready": True, "brokers": told})


async def test_not_ready_while_a_lease_is_not_announced(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    holders = shown.broker._store.holders

    async def loading(kind):  # type: ignore[no-untyped-def]
        found = dict(await holders(kind))
        if not found:  # there are no replica lists, so nobody holds a lease of them
            return found
        number, grant = next(iter(found.items()))
        return {**found, number: grant._replace(announced=False)}

    monkeypatch.setattr(shown.broker._store, "holders", loading)
    status, answer = await shown.get("/readyz")
    assert (status, answer["ready"]) == (503, False)
    assert answer["brokers"][0]["why"] == "it is still loading 3 shards"  # one of each kind


async def test_not_ready_while_it_cannot_claim_what_no_broker_has(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody(kind):  # type: ignore[no-untyped-def]
        return {}

    async def busy(*_, **__):  # type: ignore[no-untyped-def]
        raise StoreBusy("too many connections")

    monkeypatch.setattr(shown.broker._store, "holders", nobody)
    monkeypatch.setattr(shown.broker._store, "claim", busy)
    membership = shown.broker.membership
    for kind, number in list(membership.topology.holders):
        membership.reclaim(Lease(kind, number), 1)
    await until(lambda: membership._standing.failing, "a claim that fails")
    status, answer = await shown.get("/readyz")
    assert (status, answer["ready"]) == (503, False)
    assert answer["brokers"][0]["why"] == "it cannot claim 150 shards that no broker has"
    monkeypatch.undo()
    await until(lambda: len(membership._held) == 150, "everything claimed")
    await until(lambda: not membership.unannounced(), "everything loaded")
    assert (await shown.get("/readyz"))[0] == 200


async def test_not_ready_without_a_registration(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nobody():  # type: ignore[no-untyped-def]
        return []

    monkeypatch.setattr(shown.broker._store, "nodes", nobody)
    status, answer = await shown.get("/readyz")
    assert (status, answer["brokers"][0]["why"]) == (503, "its registration in the cluster has expired")


async def test_not_ready_when_the_store_hangs_and_alive_all_the_same(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "_ASK_S", 0.05)
    shown.broker.pause()
    try:
        status, answer = await shown.get("/readyz")
        assert (status, answer["ready"]) == (503, False)
        assert "did not respond" in answer["brokers"][0]["why"]
        assert (await shown.get("/healthz"))[0] == 200
        assert (await shown.get("/api/groups"))[0] == 200
    finally:
        shown.broker.resume()


async def test_not_ready_while_stopping_and_without_brokers(shown: Shown) -> None:
    await shown.brokers.kill_one(0)
    assert await shown.get("/readyz") == (503, {"ready": False, "brokers": []})
    status, answer = await shown.get("/api/groups")
    assert (status, answer["error"]) == (503, "no broker of this process is running")
    await shown.brokers.start_one(0)
    assert (await shown.get("/readyz"))[0] == 200
    shown.page.stopping()
    status, answer = await shown.get("/readyz")
    assert (status, answer["brokers"][0]["why"]) == (503, "it is stopping")
