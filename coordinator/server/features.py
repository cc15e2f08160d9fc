"""The features of the cluster (KIP-584): reported in ApiVersions, and changed by UpdateFeatures where there
is a choice. A chosen level is kept in the store, for all brokers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from muster.coordinator.config import CONSUMER
from muster.coordinator.server.config_rows import ConfigRows, Rows
from muster.protocol.errors import ErrorCode, KafkaError
from muster.protocol.messages.connection import ApiVersionsResponse


class Feature(NamedTuple):
    """The levels of one feature that can be chosen, and the default level; 0 is off."""

    first: int
    last: int
    level: int
    fixed: bool = True
    """No other level can be chosen."""


class FeatureUpdate(NamedTuple):
    """A requested level; `type` 1: upgrade, 2: a downgrade that loses nothing, 3: any downgrade."""

    name: str
    level: int
    type: int


METADATA_VERSION: Final = 33
"""The level of Apache Kafka 4.4: tools infer the release of a cluster from it."""

GROUP_VERSION: Final = "group.version"
TRANSACTION_VERSION: Final = "transaction.version"

FEATURES: Final[Mapping[str, Feature]] = {
    # 1: members of the consumer protocol (KIP-848) are served.
    GROUP_VERSION: Feature(0, 1, 1, fixed=False),
    # There is no metadata log here whose format could be older.
    "metadata.version": Feature(METADATA_VERSION, METADATA_VERSION, METADATA_VERSION),
    # 2: clients leave it to brokers to add partitions, and get a new epoch with each transaction (KIP-890).
    TRANSACTION_VERSION: Feature(0, 2, 2, fixed=False),
}

EPOCH: Final = 3
"""To be raised whenever FEATURES change: clients keep what they have read with the highest epoch."""

_ROW: Final = "features"
_CHANGES: Final = "changes"
"""Key of the number of changes, kept beside the levels."""

_FROM_ZERO_SINCE: Final = 4
"""In earlier versions of ApiVersions, Java clients refuse a feature whose levels begin at 0."""

UPGRADE: Final = 1
_DOWNGRADES: Final = (2, 3)


class Features:
    """The levels in force, as last read."""

    def __init__(self, rows: ConfigRows, protocols: Collection[str]) -> None:
        """`protocols`: the group protocols that the broker was started with."""
        self._rows = rows
        self._consumer = CONSUMER in protocols
        self._levels: dict[str, int] = {name: each.level for name, each in FEATURES.items()}
        self._epoch = EPOCH
        self.consumer_groups = self._consumer
        """Whether members of the consumer protocol (KIP-848) are served."""
        rows.listeners.append(self._read)

    def __repr__(self) -> str:
        return f"<Features {self._levels} epoch={self._epoch}>"

    def level(self, name: str) -> int:
        """The level in force; 0: off."""
        return self._levels[name]

    def tell(self, response: ApiVersionsResponse, version: int) -> None:
        """Add the features to an ApiVersions response of `version`, which has room for them from 3 on."""
        response.supported_features = [
            ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=each.first, max_version=each.last)
            for name, each in FEATURES.items()
            if each.first > 0 or version >= _FROM_ZERO_SINCE
        ]
        response.finalized_features_epoch = self._epoch
        response.finalized_features = [
            ApiVersionsResponse.FinalizedFeatureKey(
                name=name, max_version_level=level, min_version_level=level
            )
            for name, level in self._levels.items()
            if level > 0
        ]

    async def update(self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False) -> None:
        """Put all levels into force, or none: INVALID_UPDATE_VERSION. Raises StoreError."""

        def after(before: Mapping[str, str]) -> Mapping[str, str]:
            now = _levels(before)
            levels = dict(now)
            for update in updates:
                _check(update, now)
                levels[update.name] = update.level
            if levels == now:
                return before
            chosen = {name: str(level) for name, level in levels.items() if not FEATURES[name].fixed}
            return {**before, **chosen, _CHANGES: str(_number(before.get(_CHANGES)) + 1)}

        await self._rows.change(_ROW, after, validate_only=validate_only)

    def _read(self, rows: Rows) -> None:
        row = rows.get(_ROW, {})
        self._levels = _levels(row)
        self.consumer_groups = self._consumer and self._levels[GROUP_VERSION] > 0
        self._epoch = EPOCH + _number(row.get(_CHANGES))


def _levels(row: Mapping[str, str]) -> dict[str, int]:
    """The levels in force; one that only a newer muster has counts as this one's highest."""
    return {
        name: each.level if each.fixed or name not in row else min(_number(row[name]), each.last)
        for name, each in FEATURES.items()
    }


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0


def _check(update: FeatureUpdate, levels: Mapping[str, int]) -> None:
    for why in _refusals(update, levels):
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            "The update failed for all features since the following feature had an error: Invalid update "
            f"version {update.level} for feature {update.name}. {why}",
        )


def _refusals(update: FeatureUpdate, levels: Mapping[str, int]) -> Iterator[str]:
    name, level, type = update
    feature = FEATURES.get(name)
    if type not in (UPGRADE, *_DOWNGRADES):
        yield f"Unknown upgrade type {type}."
    elif feature is None:
        yield f"Feature {name} not found."
    elif level == levels[name]:
        return
    elif feature.fixed:
        yield f"muster has it at level {feature.level}, which cannot be changed."
    elif not feature.first <= level <= feature.last:
        yield f"muster has it in levels {feature.first} to {feature.last}."
    elif level < levels[name] and type not in _DOWNGRADES:
        yield (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or "
            "unsafe downgrade."
        )
    elif level > levels[name] and type in _DOWNGRADES:
        yield "Can't downgrade to a newer version."
