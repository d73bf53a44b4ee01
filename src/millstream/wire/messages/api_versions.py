"""ApiVersions: the APIs, versions and features of the broker.

A broker responds to an unknown version with version 0 and UNSUPPORTED_VERSION, so the client can
retry. The response header is always version 0, because the client reads it before it knows the
broker's versions.
"""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import array, boolean, int16, int32, int64, string
from millstream.wire.schema import Message, message, struct


@message(ApiKey.API_VERSIONS, versions=(0, 4))
class ApiVersionsRequest(Message):
    client_software_name: str = string(since=3, ignorable=True)
    client_software_version: str = string(since=3, ignorable=True)


@message(ApiKey.API_VERSIONS, versions=(0, 4))
class ApiVersionsResponse(Message):
    @struct
    class Api:
        api_key: int = int16()
        min_version: int = int16()
        max_version: int = int16()

    @struct
    class SupportedFeature:
        name: str = string()
        min_version: int = int16()
        max_version: int = int16()

    @struct
    class FinalizedFeature:
        name: str = string()
        max_version_level: int = int16()
        min_version_level: int = int16()

    error_code: int = int16()
    api_keys: list[Api] = array(Api)
    throttle_time_ms: int = int32(since=1, ignorable=True)
    supported_features: list[SupportedFeature] = array(
        SupportedFeature, since=3, tag=0, ignorable=True
    )
    finalized_features_epoch: int = int64(since=3, tag=1, default=-1, ignorable=True)
    finalized_features: list[FinalizedFeature] = array(
        FinalizedFeature, since=3, tag=2, ignorable=True
    )
    zk_migration_ready: bool = boolean(since=3, tag=3, ignorable=True)
