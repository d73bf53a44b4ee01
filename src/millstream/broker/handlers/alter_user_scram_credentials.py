"""AlterUserScramCredentials: version 0.

Sets and deletes SCRAM credentials. The changes of one user are applied together or not at all, and
each user has an error code of its own. The request has salted passwords, of which the broker stores
only the keys that SCRAM needs. Iterations are limited to 4096 to 16384, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from millstream.broker.audit import change
from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry
from millstream.broker.error_response import FAILURE_MESSAGE
from millstream.metadata.security_record import user_key
from millstream.model.error import BrokerError, ErrorCode
from millstream.security.user_change import CredentialChange, edit_user, mechanism_of, upsertion
from millstream.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)

_Row = AlterUserScramCredentialsResponse.Result
_Changes = dict[str, list[Callable[[], CredentialChange]]]


async def handle(
    request: AlterUserScramCredentialsRequest, context: Context
) -> AlterUserScramCredentialsResponse:
    rows = []
    for user, changes in _by_user(request).items():
        row = _Row(user=user)
        rows.append(row)
        try:
            wanted = [change() for change in changes]
            if len({change.mechanism for change in wanted}) < len(wanted):
                raise BrokerError(
                    ErrorCode.DUPLICATE_RESOURCE,
                    "A user credential cannot be altered twice in the same request",
                )
            await context.services.catalog.alter_key(user_key(user), edit_user(wanted))
        except BrokerError as error:
            row.error_code, row.error_message = error.code, error.message
    return AlterUserScramCredentialsResponse(results=rows)


def _by_user(request: AlterUserScramCredentialsRequest) -> _Changes:
    """Return the changes by user, in the order of the request. Each raises BrokerError if it is
    invalid."""
    found: _Changes = {}
    for deletion in request.deletions:
        found.setdefault(deletion.name, []).append(partial(_deletion, deletion))
    for each in request.upsertions:
        found.setdefault(each.name, []).append(partial(_upsertion, each))
    return found


def _deletion(given: AlterUserScramCredentialsRequest.Deletion) -> CredentialChange:
    return CredentialChange(mechanism_of(given.name, given.mechanism), None)


def _upsertion(given: AlterUserScramCredentialsRequest.Upsertion) -> CredentialChange:
    mechanism = mechanism_of(given.name, given.mechanism)
    return upsertion(mechanism, given.salted_password, given.salt, given.iterations)


def _error_response(
    request: AlterUserScramCredentialsRequest, context: Context, code: ErrorCode
) -> AlterUserScramCredentialsResponse:
    return AlterUserScramCredentialsResponse(
        results=[
            _Row(user=user, error_code=code, error_message=FAILURE_MESSAGE)
            for user in _by_user(request)
        ]
    )


API: Final = ApiEntry(
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    versions=(0, 0),
    handle=handle,
    audit=change.users_altered,
    error_response=_error_response,
)
