"""ApiVersions: versions 0 to 4.

Answered from the table that requests are dispatched by. A version this broker does not have is
answered in version 0 with UNSUPPORTED_VERSION and the versions it does have. No features are
finalized.
"""

from __future__ import annotations

import re

from millstream.broker.context import Context
from millstream.model.error import ErrorCode
from millstream.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

_LEGAL_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?\Z")
_SOFTWARE_SINCE = 3


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
    response.api_keys = [
        ApiVersionsResponse.Api(
            api_key=api.key, min_version=api.version_min, max_version=api.version_max
        )
        for api in context.services.apis
    ]
    return response
