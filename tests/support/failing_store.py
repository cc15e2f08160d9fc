"""A store that fails."""

from __future__ import annotations

from typing import Any

import pytest

from muster.coordinator.server.broker import Broker
from muster.coordinator.storage.store import StoreError


def fail_from(
    number: int, broker: Broker, call: str, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[Any, ...]]:
    """Make the store fail at this call, counted from 1, and at all that follow. Returns the growing list
    of calls."""
    real, calls = getattr(broker._store, call), []

    async def called(*given: Any, **named: Any) -> Any:
        calls.append(given)
        if len(calls) >= number:
            raise StoreError("the disk is on fire")
        return await real(*given, **named)

    monkeypatch.setattr(broker._store, call, called)
    return calls
