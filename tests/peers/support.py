"""Nodes with a post each on a shared store, and a handler controlled by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID, uuid4

from muster.coordinator.base.clock import ManualClock, PausableClock
from muster.coordinator.peers.post import Post
from muster.coordinator.server.pausing import PausableStore
from muster.coordinator.storage.memory import MemoryStore
from muster.coordinator.storage.store import Letter, NodeRow, Posted, Store
from muster.protocol.api import ApiKey
from muster.protocol.message import Message
from muster.protocol.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse

MARKERS = ApiKey.WRITE_TXN_MARKERS
TIMEOUT_MS = 5_000
EVERYONE = range(1, 10)
"""The ids of more nodes than a test has."""
_Marker = WriteTxnMarkersRequest.WritableTxnMarker
_Result = WriteTxnMarkersResponse.WritableTxnMarkerResult


def markers(*producer_ids: int, topic: str = "orders") -> WriteTxnMarkersRequest:
    """A question with one marker for each producer."""
    topics = [WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=[0])]
    return WriteTxnMarkersRequest(
        markers=[
            _Marker(
                producer_id=each,
                producer_epoch=0,
                transaction_result=True,
                topics=topics,
                coordinator_epoch=1,
            )
            for each in producer_ids
        ]
    )


def results(*producer_ids: int) -> WriteTxnMarkersResponse:
    """The answer to `markers`."""
    return WriteTxnMarkersResponse(markers=[_Result(producer_id=each, topics=[]) for each in producer_ids])


class LetterStore(MemoryStore):
    """Records the letters posted; loses or delays them, or fails, when the test says so."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(now_ms=clock.now_ms)
        self.letters: list[Letter] = []
        self.losing = False
        self.failing: Exception | None = None
        self.open_gate = asyncio.Event()
        self.open_gate.set()

    async def post(self, letters: Sequence[Letter]) -> list[Posted]:
        self.letters += letters
        await self.open_gate.wait()
        if self.failing is not None:
            raise self.failing
        if self.losing:
            return [Posted.SENT] * len(letters)
        return await super().post(letters)


class Peer:
    """A broker reduced to its post. It answers with the producer ids of the question."""

    def __init__(self, node_id: int, store: Store, clock: ManualClock) -> None:
        self.node_id = node_id
        self.incarnation: UUID = uuid4()
        self.clock = PausableClock(clock)
        self.store = PausableStore(store)
        self.post = Post(
            self.store.as_store(),
            self.clock,
            node_id=node_id,
            incarnation=self.incarnation,
            serve=self._serve,
        )
        self.served: list[tuple[ApiKey, int, Message]] = []
        self.failing: Exception | None = None
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def start(self) -> Peer:
        row = NodeRow(self.node_id, "127.0.0.1", 9092, None, 3_600_000, self.incarnation)
        await self.store.as_store().register_node(row)
        self.post.start()
        return self

    async def ask(self, node_id: int, *producer_ids: int, timeout_ms: int = TIMEOUT_MS) -> Message:
        return await self.post.ask(node_id, MARKERS, markers(*producer_ids), timeout_ms=timeout_ms)

    async def _serve(self, api_key: ApiKey, version: int, request: Message) -> Message:
        self.served.append((api_key, version, request))
        await self.may_answer.wait()
        if self.failing is not None:
            raise self.failing
        assert isinstance(request, WriteTxnMarkersRequest)
        return results(*(each.producer_id for each in request.markers))

    def pause(self) -> None:
        self.clock.pause()
        self.store.pause()

    def resume(self) -> None:
        self.clock.resume()
        self.store.resume()

    def kill(self) -> None:
        self.clock.pause()
        self.post.kill()
        self.store.detach()

    def at_rest(self) -> bool:
        return next(self.post.under_way(EVERYONE), None) is None
