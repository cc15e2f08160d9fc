"""Consumer groups (KIP-848) on the page's JSON and in the metrics."""

from __future__ import annotations

from muster.protocol.errors import ErrorCode
from muster.protocol.messages.consumer_group import ConsumerGroupHeartbeatRequest
from tests.http.conftest import Shown
from tests.http.test_metrics import scrape
from tests.support.wire import Wire


async def test_a_consumer_group_with_one_member(shown: Shown) -> None:
    async with await Wire.connect(shown.port, client_id="web-1") as wire:
        joining = ConsumerGroupHeartbeatRequest(
            group_id="billing",
            member_id="web-1-id",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=["orders"],
            topic_partitions=[],
        )
        answer = await wire.call(joining, 1)
        assert answer.error_code == ErrorCode.NONE
        await shown.journalled("rebalance_completed")
        status, told = await shown.get("/api/groups/billing")
        assert status == 200
        assert (told["type"], told["state"], told["generation"]) == (
            "consumer",
            "Stable",
            answer.member_epoch,
        )
        assert told["members"][0]["assigned"] == {"orders": [0, 1, 2]}
        status, why = await shown.get("/api/groups/billing/why")
        assert (status, why["type"], why["diagnosis"]) == (200, "consumer", "new-member")
        assert why["phases"]["join_ms"] is None
        assert why["phases"]["target_ms"] is not None
        found = await scrape(shown)
        kafka = "kafka_server_group_coordinator_metrics"
        assert found.value(f"{kafka}_group_count", protocol="consumer") == 1
        assert found.value(f"{kafka}_consumer_group_count", state="Stable") == 1
        for state in ("Empty", "Assigning", "Reconciling", "Dead"):
            assert found.value(f"{kafka}_consumer_group_count", state=state) == 0
        for state in ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead"):
            assert found.value(f"{kafka}_classic_group_count", state=state) == 0
        assert found.value(f"{kafka}_consumer_group_rebalance_count") == 1
        assert found.value(f"{kafka}_group_completed_rebalance_count") == 0
        for phase in ("target", "reconcile"):
            where = {"group": "billing", "phase": phase}
            assert found.value("muster_group_rebalance_phase_seconds_count", **where) == 1
