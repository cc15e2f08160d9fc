"""How a broker asks another."""

from __future__ import annotations

from typing import Any, Protocol

from muster.coordinator.storage.store import Lease
from muster.protocol.api import ApiKey
from muster.protocol.message import Message


class Ask(Protocol):
    """`post.Post.ask`."""

    async def __call__(
        self,
        node_id: int,
        api: ApiKey,
        request: Message,
        *,
        timeout_ms: int,
        under: tuple[Lease, int] | None = None,
    ) -> Any:
        """The response to a request in its newest version. `under`: a lease and its epoch, without which the
        question is not to be asked any more. Raises KafkaError: the refusal of who was asked,
        REQUEST_TIMED_OUT, COORDINATOR_NOT_AVAILABLE when the store failed, NOT_COORDINATOR when the epoch of
        the lease is over."""
