"""DescribeUserScramCredentials: the mechanisms and iterations of users' credentials (KIP-554)."""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import (
    array,
    int8,
    int16,
    int32,
    nullable_array,
    nullable_string,
    string,
)
from millstream.wire.schema import Message, message, struct


@message(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, versions=(0, 0))
class DescribeUserScramCredentialsRequest(Message):
    @struct
    class User:
        name: str = string()

    users: list[User] | None = nullable_array(User)


@message(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, versions=(0, 0))
class DescribeUserScramCredentialsResponse(Message):
    @struct
    class Result:
        @struct
        class Credential:
            mechanism: int = int8()
            iterations: int = int32()

        user: str = string()
        error_code: int = int16()
        error_message: str | None = nullable_string()
        credential_infos: list[Credential] = array(Credential)

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string()
    results: list[Result] = array(Result)
