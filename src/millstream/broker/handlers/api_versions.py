"""ApiVersions: versions 0 to 4.

Answered from the table that requests are dispatched by. A version this broker does not have is
answered in version 0 with UNSUPPORTED_VERSION and the versions it does have.

Of Kafka's features, two matter to clients: `transaction.version` says which transaction protocol
producers speak (the setting `transaction.version`), `group.version` that consumers may use the
newer group protocol. Features that may be at level 0 are told as supported from version 4 on:
clients of version 3 fail on them.
"""

from __future__ import annotations

import re

from millstream.broker.context import Context
from millstream.model.error import ErrorCode
from millstream.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

_LEGAL_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?\Z")
_SOFTWARE_SINCE = 3
_LEVEL_ZERO_SINCE = 4
_GROUP_FEATURE = "group.version"
_TRANSACTION_FEATURE = "transaction.version"
_GROUP_LEVEL = 1
_TRANSACTION_LEVEL_MAX = 2


def handle(request: ApiVersionsRequest | None, context: Context) -> ApiVersionsResponse:
    response = ApiVersionsResponse()
    if request is None:
        response.error_code = ErrorCode.UNSUPPORTED_VERSION
    elif context.version >= _SOFTWARE_SINCE and not (
        _LEGAL_SOFTWARE.match(request.client_software_name)
        and _LEGAL_SOFTWARE.match(request.client_software_version)
    ):
        response.error_code = ErrorCode.INVALID_REQUEST
        return response
    elif context.version >= _SOFTWARE_SINCE:
        context.peer.software_name = request.client_software_name
        context.peer.software_version = request.client_software_version
    response.api_keys = [
        ApiVersionsResponse.Api(
            api_key=api.key, min_version=api.version_min, max_version=api.version_max
        )
        for api in context.services.apis
    ]
    _add_features(response, context)
    return response


def _add_features(response: ApiVersionsResponse, context: Context) -> None:
    services = context.services
    if context.version >= _LEVEL_ZERO_SINCE:
        response.supported_features = [
            ApiVersionsResponse.SupportedFeature(name=name, min_version=0, max_version=level_max)
            for name, level_max in (
                (_GROUP_FEATURE, _GROUP_LEVEL),
                (_TRANSACTION_FEATURE, _TRANSACTION_LEVEL_MAX),
            )
        ]
    # Clients keep what they heard with the highest epoch.
    response.finalized_features_epoch = services.catalog.image.revision
    response.finalized_features = [
        ApiVersionsResponse.FinalizedFeature(
            name=name, max_version_level=level, min_version_level=level
        )
        for name, level in (
            (_GROUP_FEATURE, _GROUP_LEVEL),
            (_TRANSACTION_FEATURE, services.config.transaction_version),
        )
        if level
    ]
