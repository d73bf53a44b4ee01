"""UpdateFeatures: versions 0 to 2. Any broker executes it, by compare-and-swap.

Finalizes levels of the features in `model/feature`, all or none: the first update that is not
allowed is the error of the response. `validate_only`, from version 1, changes nothing. Version 0
has `allow_downgrade` instead of the upgrade type. Versions 0 and 1 list every changed feature.

A new level is in force on a broker once the broker has applied the metadata; the response waits for
the broker that sends it. Clients see the level with their next connection. Brokers do not register
the levels that they support, so whether every broker supports a level is not checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millstream.broker import feature
from millstream.broker.audit import change
from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.metadata.feature_change import alter_features
from millstream.metadata.store.port import MetadataStoreError
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.feature import FeatureUpdate, UpgradeType, updated
from millstream.wire.messages.update_features import (
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

_TYPE_SINCE = 1


async def handle(request: UpdateFeaturesRequest, context: Context) -> UpdateFeaturesResponse:
    context.require_cluster(Operation.ALTER)
    services = context.services
    updates = [
        FeatureUpdate(each.feature, each.max_version_level, _upgrade_type(each, context))
        for each in request.feature_updates
    ]

    def decide(finalized: Mapping[str, int]) -> Mapping[str, int]:
        after = updated(feature.levels(finalized, services.config), updates)
        return {**finalized, **{update.name: after[update.name] for update in updates}}

    try:
        if request.validate_only or not updates:
            decide(services.catalog.image.features.levels)
        else:
            await alter_features(services.catalog, decide)
    except BrokerError as error:
        return UpdateFeaturesResponse(error_code=error.code, error_message=error.message)
    except MetadataStoreError as error:
        return UpdateFeaturesResponse(
            error_code=ErrorCode.FEATURE_UPDATE_FAILED, error_message=str(error)
        )
    return UpdateFeaturesResponse(
        results=[UpdateFeaturesResponse.Result(feature=update.name) for update in updates]
    )


API: Final = ApiEntry(
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
    versions=(0, 2),
    handle=handle,
    audit=change.features_updated,
    access=(Right(Operation.ALTER, ResourceType.CLUSTER),),
)


def _upgrade_type(update: UpdateFeaturesRequest.Update, context: Context) -> int:
    if context.version >= _TYPE_SINCE:
        return update.upgrade_type
    return UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else UpgradeType.UPGRADE
