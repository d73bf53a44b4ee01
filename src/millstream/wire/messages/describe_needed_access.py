"""DescribeNeededAccess: what principals needed while the authorizer of a broker was learning.

This API is Millstream's own.
"""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import array, boolean, int8, int16, int64, nullable_string, string
from millstream.wire.schema import Message, message, struct


@message(ApiKey.DESCRIBE_NEEDED_ACCESS, versions=(0, 0))
class DescribeNeededAccessRequest(Message):
    pass


@message(ApiKey.DESCRIBE_NEEDED_ACCESS, versions=(0, 0))
class DescribeNeededAccessResponse(Message):
    @struct
    class Need:
        principal: str = string()
        #: The last address that the principal used.
        host: str = string()
        operation: int = int8()
        resource_type: int = int8()
        resource_name: str = string()
        #: Whether the present ACLs would deny the operation.
        is_denied: bool = boolean()

    error_code: int = int16()
    error_message: str | None = nullable_string()
    is_learning: bool = boolean()
    #: Operations that the full table of the broker left out.
    omitted: int = int64()
    needs: list[Need] = array(Need)
