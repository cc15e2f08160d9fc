"""UpdateFeatures (KIP-584)."""

from __future__ import annotations

from typing import Final

from muster.coordinator.base.step import RequestContext
from muster.coordinator.server import features
from muster.coordinator.server.api import Api
from muster.coordinator.server.serving import Broker
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.features import UpdateFeaturesRequest, UpdateFeaturesResponse

_TYPED_FROM: Final = 1
_RESULTS_UNTIL: Final = 1
_UPGRADE, _UNSAFE_DOWNGRADE = 1, 3


async def update_features(
    broker: Broker, request: UpdateFeaturesRequest, context: RequestContext
) -> UpdateFeaturesResponse:
    """Refused as a whole (INVALID_UPDATE_VERSION) unless every feature named has the level asked for: the
    levels are fixed."""
    for each in request.feature_updates:
        type = each.upgrade_type
        if context.api_version < _TYPED_FROM:
            type = _UNSAFE_DOWNGRADE if each.allow_downgrade else _UPGRADE
        features.check_update(each.feature, each.max_version_level, type)
    return UpdateFeaturesResponse(
        results=[
            UpdateFeaturesResponse.UpdatableFeatureResult(
                feature=each.feature, error_code=ErrorCode.NONE, error_message=None
            )
            for each in request.feature_updates
        ]
        if context.api_version <= _RESULTS_UNTIL
        else [],
        error_message=None,
    )


APIS: Final = (Api(ApiKey.UPDATE_FEATURES, update_features),)
