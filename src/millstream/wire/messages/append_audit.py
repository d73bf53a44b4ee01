"""AppendAudit: a broker sends audit events to the leader of the audit topic.

This API is Millstream's own.
"""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import array, int16, int64, octets, string
from millstream.wire.schema import Message, message, struct


@message(ApiKey.APPEND_AUDIT, versions=(0, 0))
class AppendAuditRequest(Message):
    @struct
    class Event:
        timestamp_ms: int = int64()
        #: The principal, which is the record's key.
        key: str = string()
        #: The event in JSON.
        value: bytes = octets()

    events: list[Event] = array(Event)


@message(ApiKey.APPEND_AUDIT, versions=(0, 0))
class AppendAuditResponse(Message):
    error_code: int = int16()
