"""The APIs, declared in one file per message family beside their handlers; `muster.coordinator.server.api`
says how.

A handler checks what needs the broker's view (topics, bounds of the settings), hands the work to the group
core or the partitions, and puts the answer together.

Some may exist only to be refused (acls, consumer_group, delegation_tokens, sasl), as in Kafka without an
authorizer, on a plaintext listener and with group.version=0. A client that did not see them would give up
silently, take the broker for an old one, or wait forever. Refusals other than NotServed are not logged: tools
ask about ACLs and tokens without needing them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from muster.coordinator.server.api import LISTING_BYTES_MAX, Api
from muster.coordinator.server.apis import (
    acls,
    classic_group,
    cluster,
    configs,
    connection,
    consumer_group,
    delegation_tokens,
    features,
    fetching,
    group_admin,
    log_offsets,
    metadata,
    offsets,
    producers,
    producing,
    quotas,
    reassignments,
    sasl,
    scram,
    topics,
    transactions,
    txn_offsets,
)
from muster.coordinator.server.wire import GREETING_BYTES_MAX, Traffic
from muster.protocol.api import ApiKey
from muster.protocol.errors import TooLargeError
from muster.protocol.frame import impossible_size

_FAMILIES: Final = (
    acls,
    classic_group,
    cluster,
    configs,
    connection,
    consumer_group,
    delegation_tokens,
    features,
    fetching,
    group_admin,
    log_offsets,
    metadata,
    offsets,
    producers,
    producing,
    quotas,
    reassignments,
    sasl,
    scram,
    topics,
    transactions,
    txn_offsets,
)

_DECLARED: Final = [api for family in _FAMILIES for api in family.APIS]

APIS: Final[Mapping[int, Api]] = MappingProxyType(
    {api.key: api for api in sorted(_DECLARED, key=lambda api: api.key)}
)
"""By key, in order: what is advertised and answered."""


def check_request_size(api_key: int, size: int) -> None:
    """Raises TooLargeError for a request larger than its API allows; unknown APIs have a limit too."""
    api = APIS.get(api_key)
    size_max = LISTING_BYTES_MAX if api is None else api.size_max
    if size_max is not None and size > size_max:
        raise TooLargeError(f"{_name(api_key)}: a request of {size} bytes; the limit is {size_max}")


def check_greeting_size(api_key: int, size: int) -> None:
    """`check_request_size` for a client that is not recognised yet. Raises DecodeError, too, for a request of
    more than GREETING_BYTES_MAX, unless its API has no limit."""
    api = APIS.get(api_key)
    if size > GREETING_BYTES_MAX and (api is None or api.size_max is not None):
        raise impossible_size(size, GREETING_BYTES_MAX)
    check_request_size(api_key, size)


def _name(api_key: int) -> str:
    try:
        return ApiKey(api_key).name
    except ValueError:
        return f"api key {api_key}"


TRAFFIC: Final = Traffic(
    check_request_size,
    check_greeting_size,
    paced=frozenset(int(key) for key, api in APIS.items() if api.paced),
    outlives=frozenset(int(key).to_bytes(2, "big") for key, api in APIS.items() if api.closing),
)
