"""The features of this broker (KIP-584), told in ApiVersions and fixed: no level can be chosen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.connection import ApiVersionsResponse


class Feature(NamedTuple):
    """The levels of one feature that can be chosen, and the one in force; 0 is off."""

    first: int
    last: int
    level: int


METADATA_VERSION: Final = 33
"""The level of Apache Kafka 4.4: tools read from it as which release a cluster answers."""

FEATURES: Final[Mapping[str, Feature]] = {
    # Off: members of the consumer protocol (KIP-848) are not served.
    "group.version": Feature(0, 0, 0),
    # There is no log of metadata here whose format could be older.
    "metadata.version": Feature(METADATA_VERSION, METADATA_VERSION, METADATA_VERSION),
    # Off: there are no transactions.
    "transaction.version": Feature(0, 0, 0),
}

EPOCH: Final = 1
"""To be raised whenever FEATURES change: clients keep what they have read under the highest epoch."""

_FROM_ZERO_SINCE: Final = 4
"""In earlier versions of ApiVersions, Java clients refuse a feature whose levels begin at 0."""

_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3


def tell(response: ApiVersionsResponse, version: int) -> None:
    """Add the features to an ApiVersions response of `version`, which has room for them from 3 on."""
    response.supported_features = [
        ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=each.first, max_version=each.last)
        for name, each in FEATURES.items()
        if each.first > 0 or version >= _FROM_ZERO_SINCE
    ]
    response.finalized_features_epoch = EPOCH
    response.finalized_features = [
        ApiVersionsResponse.FinalizedFeatureKey(
            name=name, max_version_level=each.level, min_version_level=each.level
        )
        for name, each in FEATURES.items()
        if each.level > 0
    ]


def check_update(name: str, level: int, upgrade_type: int) -> None:
    """INVALID_UPDATE_VERSION unless the update leaves the feature at the level it has."""
    for why in _refusals(name, level, upgrade_type):
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION, f"Invalid update version {level} for feature {name}: {why}"
        )


def _refusals(name: str, level: int, upgrade_type: int) -> Iterator[str]:
    feature = FEATURES.get(name)
    if upgrade_type not in (_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE):
        yield f"unknown upgrade type {upgrade_type}"
    elif feature is None:
        yield "muster has no such feature"
    elif level != feature.level:
        yield f"muster has it at level {feature.level}, which cannot be changed"
