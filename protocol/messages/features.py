"""Features of the cluster: UpdateFeatures. ApiVersions lists them."""

from __future__ import annotations

from muster.protocol.message import Message, Struct, field, request, response, struct
from muster.protocol.types import Array, Boolean, Int8, Int16, Int32, String


@request(57, versions="0-2", flexible="0+")
class UpdateFeaturesRequest(Message):
    """UpdateFeatures v0-2 (KIP-584): v1 upgrade_type in place of allow_downgrade, and validate_only
    (KIP-778), v2 no change here.

    `upgrade_type` 1: upgrade; 2: a lossless downgrade; 3: any downgrade. Level 0 switches a feature off.
    """

    @struct
    class FeatureUpdateKey(Struct):
        feature: str = field(String, "0+")
        max_version_level: int = field(Int16, "0+")
        allow_downgrade: bool = field(Boolean, "0", default=False)
        upgrade_type: int = field(Int8, "1+", default=1)

    timeout_ms: int = field(Int32, "0+", default=60000)
    feature_updates: list[FeatureUpdateKey] = field(Array(FeatureUpdateKey), "0+")
    validate_only: bool = field(Boolean, "1+", default=False)


@response(57, versions="0-2", flexible="0+")
class UpdateFeaturesResponse(Message):
    """UpdateFeatures v0-2 (KIP-584): v1 no change here, v2 a single error, and no results (all features are
    updated, or none)."""

    @struct
    class UpdatableFeatureResult(Struct):
        feature: str = field(String, "0+")
        error_code: int = field(Int16, "0+", default=0)
        error_message: str | None = field(String, "0+", nullable="0+")

    throttle_time_ms: int = field(Int32, "0+", default=0)
    error_code: int = field(Int16, "0+", default=0)
    error_message: str | None = field(String, "0+", nullable="0+")
    results: list[UpdatableFeatureResult] = field(
        Array(UpdatableFeatureResult), "0-1", default_factory=list, ignorable=True
    )
