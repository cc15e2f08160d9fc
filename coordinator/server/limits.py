"""How large a request may be, by its API.

Kafka takes `socket.request.max.bytes`, 100 MiB, of every API. Of most APIs that is a thousand times what any
client sends, and few bytes can stand for much work: a topic name takes three. So only Produce, whose bytes
are stored as they come, has that bound alone. The others have in addition the bounds below; a frame above its
bound is refused at its second byte, before any of it is kept. What a request lists is bounded by
`request.elements.max`, which the decoder counts.
"""

from __future__ import annotations

from typing import Final

from muster.protocol.api import ApiKey
from muster.protocol.errors import TooLargeError

_GROUP_BYTES_MAX: Final = 16 * 1024 * 1024
"""The subscription of a member, or the assignments of all members of a group. Kafka could not store the
sixteenth part: a group's members have to fit one record of its offsets topic, a megabyte."""
_LISTING_BYTES_MAX: Final = 4 * 1024 * 1024
"""Names, partitions, offsets: some hundred thousand partitions, or twenty thousand names of full length."""

_BYTES_MAX: Final = {ApiKey.JOIN_GROUP: _GROUP_BYTES_MAX, ApiKey.SYNC_GROUP: _GROUP_BYTES_MAX}


def check_request_size(api_key: int, size: int) -> None:
    """Raises TooLargeError for a frame larger than its API may have. Unknown APIs are refused elsewhere."""
    if size <= _LISTING_BYTES_MAX or api_key == ApiKey.PRODUCE:
        return
    bytes_max = _BYTES_MAX.get(api_key, _LISTING_BYTES_MAX)  # type: ignore[call-overload]
    if size > bytes_max:
        raise TooLargeError(f"{_name(api_key)}: a request of {size} bytes; allowed are {bytes_max}")


def _name(api_key: int) -> str:
    try:
        return ApiKey(api_key).name
    except ValueError:
        return f"api key {api_key}"
