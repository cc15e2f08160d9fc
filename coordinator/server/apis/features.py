"""UpdateFeatures (KIP-584)."""

from __future__ import annotations

from typing import Final

from muster.coordinator.base.step import RequestContext
from muster.coordinator.server.api import Api
from muster.coordinator.server.apis.several import Attempts
from muster.coordinator.server.features import UPGRADE, FeatureUpdate
from muster.coordinator.server.needs import Needs, cluster
from muster.coordinator.server.serving import Broker
from muster.protocol.api import ApiKey
from muster.protocol.errors import ErrorCode
from muster.protocol.messages.acls import Operation
from muster.protocol.messages.features import UpdateFeaturesRequest, UpdateFeaturesResponse

_TYPED_FROM: Final = 1
_RESULTS_UNTIL: Final = 1


async def update_features(
    broker: Broker, request: UpdateFeaturesRequest, context: RequestContext
) -> UpdateFeaturesResponse:
    """Refused as a whole (INVALID_UPDATE_VERSION) unless every named feature can have the requested level. v0
    has no update types, and only upgrades: Kafka ignores its allow_downgrade."""
    typed = context.api_version >= _TYPED_FROM
    updates = {
        each.feature: FeatureUpdate(
            each.feature, each.max_version_level, each.upgrade_type if typed else UPGRADE
        )
        for each in request.feature_updates
    }
    attempts = Attempts(ApiKey.UPDATE_FEATURES, context, request.timeout_ms)
    await attempts.make(
        broker.features.update(list(updates.values()), validate_only=typed and request.validate_only)
    )
    return UpdateFeaturesResponse(
        results=[
            UpdateFeaturesResponse.UpdatableFeatureResult(
                feature=name, error_code=ErrorCode.NONE, error_message=None
            )
            for name in updates
        ]
        if context.api_version <= _RESULTS_UNTIL
        else [],
        error_message=None,
    )


APIS: Final = (Api(ApiKey.UPDATE_FEATURES, update_features, needs=Needs((cluster(Operation.ALTER),))),)
