"""ApiVersions: versions 0 to 4.

The response lists the APIs of the table that requests are dispatched by, without Millstream's own
APIs, which only brokers use. A request of an unknown version gets a response of version 0 with
UNSUPPORTED_VERSION and the supported versions. A client that is not authenticated may ask a few
times only.

`model/feature` defines the features and their levels; `broker/feature` returns the finalized
levels. A feature at level 0 is not listed as finalized. Every feature may be at level 0, and
clients of version 3 fail on that, so supported features are listed from version 4.
"""

from __future__ import annotations

import re
from typing import Final

from millstream.broker import feature
from millstream.broker.context import Context
from millstream.broker.dispatch import OPEN, ApiEntry
from millstream.model.error import ErrorCode
from millstream.model.feature import FEATURES
from millstream.wire.api import PRIVATE_FROM
from millstream.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

_LEGAL_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?\Z")
_SOFTWARE_SINCE = 3
_LEVEL_ZERO_SINCE = 4


def handle(request: ApiVersionsRequest | None, context: Context) -> ApiVersionsResponse:
    if context.client.login is not None:
        context.client.login.note_version_request()
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
        context.client.software_name = request.client_software_name
        context.client.software_version = request.client_software_version
    response.api_keys = [
        ApiVersionsResponse.Api(
            api_key=api.key, min_version=api.listed_from, max_version=api.version_max
        )
        for api in context.services.apis
        if api.key < PRIVATE_FROM
    ]
    _add_features(response, context)
    return response


API: Final = ApiEntry(
    ApiVersionsRequest,
    ApiVersionsResponse,
    versions=(0, 4),
    handle=handle,
    access=OPEN,
)


def _add_features(response: ApiVersionsResponse, context: Context) -> None:
    services = context.services
    if context.version >= _LEVEL_ZERO_SINCE:
        response.supported_features = [
            ApiVersionsResponse.SupportedFeature(
                name=each.name, min_version=0, max_version=each.level_max
            )
            for each in FEATURES.values()
        ]
    # Clients keep the features with the highest epoch.
    image = services.catalog.image
    response.finalized_features_epoch = image.revision
    response.finalized_features = [
        ApiVersionsResponse.FinalizedFeature(
            name=name, max_version_level=level, min_version_level=level
        )
        for name, level in feature.levels(image.features.levels, services.config).items()
        if level
    ]
