"""What error codes mean to a transaction, and which settings exclude one."""

from __future__ import annotations

from typing import Any

import pytest

from muster.client import ErrorCode, Producer
from muster.client.produce.transaction_errors import Fate, fate_of
from muster.protocol.api import ApiKey


@pytest.mark.parametrize(
    ("api_key", "code", "fate"),
    [
        (ApiKey.END_TXN, ErrorCode.CONCURRENT_TRANSACTIONS, Fate.AGAIN),
        (ApiKey.END_TXN, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, Fate.AGAIN),
        (ApiKey.END_TXN, ErrorCode.NOT_COORDINATOR, Fate.ELSEWHERE),
        (ApiKey.END_TXN, ErrorCode.INVALID_TXN_STATE, Fate.GONE),
        (ApiKey.END_TXN, ErrorCode.INVALID_PRODUCER_EPOCH, Fate.FENCED),
        (ApiKey.END_TXN, ErrorCode.UNKNOWN_SERVER_ERROR, Fate.FATAL),
        (ApiKey.PRODUCE, ErrorCode.INVALID_PRODUCER_EPOCH, Fate.ABORT),
        (ApiKey.PRODUCE, ErrorCode.PRODUCER_FENCED, Fate.FENCED),
        (ApiKey.PRODUCE, ErrorCode.MESSAGE_TOO_LARGE, Fate.ABORT),
        (ApiKey.PRODUCE, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Fate.FATAL),
        (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.TOPIC_AUTHORIZATION_FAILED, Fate.ABORT),
        (ApiKey.ADD_OFFSETS_TO_TXN, ErrorCode.GROUP_AUTHORIZATION_FAILED, Fate.ABORT),
        (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.ILLEGAL_GENERATION, Fate.ABORT),
        (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.INVALID_PRODUCER_EPOCH, Fate.ABORT),
        (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.PRODUCER_FENCED, Fate.FENCED),
        (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.INVALID_PRODUCER_ID_MAPPING, Fate.FATAL),
    ],
)
def test_what_a_code_means(api_key: ApiKey, code: ErrorCode, fate: Fate) -> None:
    assert fate_of(api_key, code) is fate


@pytest.mark.parametrize("off", [{"acks": 1}, {"acks": 0}, {"enable_idempotence": False}])
def test_transactions_require_idempotence(off: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"transactional_id is given with .*: transactions require"):
        Producer("127.0.0.1:9092", transactional_id="t", **off)
