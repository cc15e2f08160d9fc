"""What a client is told about an unexpected error."""

from __future__ import annotations

import os
from typing import Final

from muster.coordinator.base.log import Logger
from muster.coordinator.storage.store import StoreError
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode, KafkaError

_log: Final = Logger(part="router")


def unexpected(error: Exception, api_key: int, version: int, client_id: str | None) -> KafkaError:
    """Log the error; the client gets a reference to the log line, and no internals."""
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
