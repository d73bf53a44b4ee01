"""AlterUserScramCredentials: sets and deletes SCRAM credentials of users (KIP-554)."""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import array, int8, int16, int32, nullable_string, octets, string
from millstream.wire.schema import Message, message, struct


@message(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, versions=(0, 0))
class AlterUserScramCredentialsRequest(Message):
    @struct
    class Deletion:
        name: str = string()
        mechanism: int = int8()

    @struct
    class Upsertion:
        name: str = string()
        mechanism: int = int8()
        iterations: int = int32()
        salt: bytes = octets()
        salted_password: bytes = octets()

    deletions: list[Deletion] = array(Deletion)
    upsertions: list[Upsertion] = array(Upsertion)


@message(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, versions=(0, 0))
class AlterUserScramCredentialsResponse(Message):
    @struct
    class Result:
        user: str = string()
        error_code: int = int16()
        error_message: str | None = nullable_string()

    throttle_time_ms: int = int32()
    results: list[Result] = array(Result)
