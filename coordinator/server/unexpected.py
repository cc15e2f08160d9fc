"""What a client is told about an error that is not a refusal."""

from __future__ import annotations

import os
from typing import Final

from muster.coordinator.base.clock import monotonic_ms
from muster.coordinator.base.log import Logger
from muster.coordinator.base.rate_limiter import RateLimiter
from muster.coordinator.storage.store import StoreError, StoreFull
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError

_log: Final = Logger(part="router")
_SAY_AGAIN_MS: Final = 60_000
_REASONS_MAX: Final = 20
"""How many reasons why the store is full are logged within that time."""
_full: Final = RateLimiter(1, _SAY_AGAIN_MS, keys_max=_REASONS_MAX)


def unexpected(error: Exception, api_key: int, version: int, client_id: str | None) -> KafkaError:
    """Log the error; the client gets a reference to the log line, and no internals. A full store is named."""
    if isinstance(error, StoreFull):
        return _store_full(error, api_key, client_id)
    reference = os.urandom(4).hex()
    _log.error(
        "request failed",
        reference=reference,
        api=ApiKey(api_key).name,
        version=version,
        client=client_id,
        exc_info=error,
    )
    # What failed in the store may succeed later, and clients retry after this code.
    code = ErrorCode.KAFKA_STORAGE_ERROR if isinstance(error, StoreError) else ErrorCode.UNKNOWN_SERVER_ERROR
    return KafkaError(code, f"the broker failed to process the request; its log says why under {reference}")


def _store_full(error: StoreFull, api_key: int, client_id: str | None) -> KafkaError:
    """Each reason is logged now and then, since clients try again and again."""
    withheld = _full.take(why := str(error), monotonic_ms())
    if withheld is not None:
        more = {"more": f"and {withheld} more requests since the last line"} if withheld else {}
        _log.error("the store is full", api=ApiKey(api_key).name, client=client_id, why=why, **more)
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the broker's store is full: free some space there")
