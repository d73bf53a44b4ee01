"""DescribeUserScramCredentials: version 0.

Lists the mechanisms and iterations of users' credentials, never salts or keys. No users in the
request means all users. A user that is named twice gets DUPLICATE_RESOURCE, a user without
credentials RESOURCE_NOT_FOUND.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry
from millstream.metadata.security_record import Credentials
from millstream.model.error import ErrorCode
from millstream.security.user_change import TYPES
from millstream.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

_Row = DescribeUserScramCredentialsResponse.Result


def handle(
    request: DescribeUserScramCredentialsRequest, context: Context
) -> DescribeUserScramCredentialsResponse:
    users = context.services.catalog.image.users
    if not request.users:
        rows = [_row(name, users[name]) for name in sorted(users)]
        return DescribeUserScramCredentialsResponse(results=rows)
    rows = []
    for name, count in Counter(user.name for user in request.users).items():
        if count > 1:
            text = f"Cannot describe SCRAM credentials for the same user twice in a request: {name}"
            rows.append(
                _Row(user=name, error_code=ErrorCode.DUPLICATE_RESOURCE, error_message=text)
            )
        elif name not in users:
            text = f"Attempt to describe a user credential that does not exist: {name}"
            rows.append(
                _Row(user=name, error_code=ErrorCode.RESOURCE_NOT_FOUND, error_message=text)
            )
        else:
            rows.append(_row(name, users[name]))
    return DescribeUserScramCredentialsResponse(results=rows)


def _row(name: str, credentials: Credentials) -> _Row:
    infos = [
        _Row.Credential(mechanism=TYPES[mechanism], iterations=credential.iterations)
        for mechanism, credential in sorted(credentials.items())
        if mechanism in TYPES
    ]
    return _Row(user=name, credential_infos=infos)


API: Final = ApiEntry(
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    versions=(0, 0),
    handle=handle,
)
