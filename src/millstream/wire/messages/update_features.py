"""UpdateFeatures: changes the finalized levels of features.

`upgrade_type`: 1 upgrade, 2 downgrade without loss, 3 downgrade with loss.
"""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import array, boolean, int8, int16, int32, nullable_string, string
from millstream.wire.schema import Message, message, struct


@message(ApiKey.UPDATE_FEATURES, versions=(0, 2))
class UpdateFeaturesRequest(Message):
    @struct
    class Update:
        feature: str = string()
        max_version_level: int = int16()
        allow_downgrade: bool = boolean(until=0, ignorable=True)
        upgrade_type: int = int8(since=1, default=1)

    timeout_ms: int = int32(default=60000)
    feature_updates: list[Update] = array(Update)
    validate_only: bool = boolean(since=1)


@message(ApiKey.UPDATE_FEATURES, versions=(0, 2))
class UpdateFeaturesResponse(Message):
    @struct
    class Result:
        feature: str = string()
        error_code: int = int16()
        error_message: str | None = nullable_string()

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string()
    results: list[Result] = array(Result, until=1, ignorable=True)
