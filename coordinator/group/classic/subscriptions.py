"""What members say about themselves in JoinGroup, as far as the coordinator can read it.

Metadata belongs to the assignor and is opaque; a consumer's is usually a ConsumerProtocolSubscription.
Whatever cannot be read is left out, never an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from muster.coordinator.group.classic.member import LISTED_MAX, Protocols
from muster.protocol.embedded import ConsumerProtocolSubscription, decode_subscription, subscribed_topics
from muster.protocol.errors import DecodeError

_REMEMBERED_BYTES_MAX: Final = 1024

PartitionCounts = Mapping[str, int]
"""Partition count of each topic; 0: there is no such topic."""


class Difference(NamedTuple):
    """How a member's metadata differs, as `events.MetadataChanged` reports it."""

    topics_added: tuple[str, ...]
    topics_removed: tuple[str, ...]
    protocols_before: tuple[str, ...]
    protocols_after: tuple[str, ...]
    user_data_changed: bool
    owned_changed: bool


def protocol_names(protocols: Protocols) -> tuple[str, ...]:
    return tuple(name for name, _ in protocols)


def topics(protocols: Protocols) -> tuple[str, ...] | None:
    """The topics a consumer subscribes to by its most preferred protocol, in its order; None: not known.
    Members subscribe alike by each of their protocols."""
    if not protocols:
        return None
    metadata = protocols[0][1]
    return _remembered(metadata) if len(metadata) <= _REMEMBERED_BYTES_MAX else _topics(metadata)


def _topics(metadata: bytes) -> tuple[str, ...] | None:
    try:
        return tuple(subscribed_topics(metadata, LISTED_MAX))
    except DecodeError:
        return None


# Members of one application subscribe alike, so thousands of them share one entry.
_remembered = lru_cache(maxsize=1024)(_topics)


def subscribes_alike(before: Protocols, after: Protocols, *, consumers: bool) -> bool:
    """Whether a member asks for the same topics by the same protocols; the rest of its metadata changes with
    every rebalance."""
    if protocol_names(before) != protocol_names(after):
        return False
    return not consumers or before == after or topics(before) == topics(after)


def difference(before: Protocols, after: Protocols, *, consumers: bool) -> Difference:
    """How `after` differs from `before`. For members other than consumers, only the protocols' names and
    whether the bytes are equal are known."""
    earlier, later = (topics(before), topics(after)) if consumers else (None, None)
    added: Iterable[str] = ()
    removed: Iterable[str] = ()
    if earlier != later and earlier is not None and later is not None:
        added, removed = set(later) - set(earlier), set(earlier) - set(later)
    user_data_changed = owned_changed = False
    for old, new in _changed(before, after, consumers=consumers):
        if old is None or new is None:
            user_data_changed = True
        else:
            user_data_changed |= old.user_data != new.user_data
            owned_changed |= _owned(old) != _owned(new)
    return Difference(
        tuple(sorted(added)),
        tuple(sorted(removed)),
        protocol_names(before),
        protocol_names(after),
        user_data_changed,
        owned_changed,
    )


def _changed(
    before: Protocols, after: Protocols, *, consumers: bool
) -> Iterator[tuple[ConsumerProtocolSubscription | None, ConsumerProtocolSubscription | None]]:
    """The subscriptions, before and after, of the protocols in both whose metadata has changed; None where it
    cannot be read, as of members other than consumers."""
    known = dict(before)
    listed_max = LISTED_MAX // max(len(after), 1)  # all of them may list as much as one
    for name, metadata in after:
        if name in known and known[name] != metadata:
            yield (
                _subscription(known[name], listed_max) if consumers else None,
                _subscription(metadata, listed_max) if consumers else None,
            )


def _subscription(metadata: bytes, listed_max: int) -> ConsumerProtocolSubscription | None:
    try:
        return decode_subscription(metadata, listed_max)
    except DecodeError:
        return None


def _owned(subscription: ConsumerProtocolSubscription) -> set[tuple[str, int]]:
    return {
        (each.topic, partition) for each in subscription.owned_partitions for partition in each.partitions
    }


def given_up(before: Protocols, after: Protocols) -> set[tuple[str, int]]:
    """The partitions that a consumer owned when it last joined, and does not own now."""
    found: set[tuple[str, int]] = set()
    for old, new in _changed(before, after, consumers=True):
        if old is not None and new is not None:
            found |= _owned(old) - _owned(new)
    return found


def grown(before: PartitionCounts, partitions: PartitionCounts) -> list[tuple[str, int, int]]:
    """The topics of `before` whose partition count has changed: name, then, now."""
    return [
        (name, count, partitions.get(name, 0))
        for name, count in sorted(before.items())
        if partitions.get(name, 0) != count
    ]
