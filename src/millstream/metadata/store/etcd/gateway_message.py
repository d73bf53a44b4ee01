"""The messages of etcd's JSON gateway that the store uses: encoded requests, decoded responses.

Pure: no I/O. The gateway writes 64-bit numbers as text and bytes in base64, and omits fields that
are zero or empty. A streaming response has one object per line, with a `result` or an `error`.
Errors carry gRPC's code; their structure differs between versions of the gateway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec

from millstream.metadata.store.port import Change, Condition, LeaseId, Put, ValueIs

_T = TypeVar("_T")

#: The gRPC codes of etcd's errors that the store distinguishes.
INVALID_ARGUMENT: Final = 3
NOT_FOUND: Final = 5
RESOURCE_EXHAUSTED: Final = 8
OUT_OF_RANGE: Final = 11
UNAUTHENTICATED: Final = 16

_encode = msgspec.json.Encoder().encode


class Header(msgspec.Struct, frozen=True):
    cluster_id: str = ""
    #: The store's revision at the time of the response.
    revision: int = 0


class Item(msgspec.Struct, frozen=True):
    key: bytes = b""
    value: bytes = b""
    mod_revision: int = 0


class RangeResponse(msgspec.Struct, frozen=True):
    header: Header
    kvs: list[Item] = []
    more: bool = False


class TransactionResponse(msgspec.Struct, frozen=True):
    header: Header
    succeeded: bool = False


class LeaseResponse(msgspec.Struct, frozen=True, rename={"lease": "ID", "ttl_s": "TTL"}):
    lease: LeaseId = 0
    #: 0 (missing in the response) if the lease to renew has expired.
    ttl_s: int = 0


class KeepAliveResponse(msgspec.Struct, frozen=True):
    result: LeaseResponse = LeaseResponse()


class EmptyResponse(msgspec.Struct, frozen=True):
    """A response without content."""


class TokenResponse(msgspec.Struct, frozen=True):
    token: str


class VersionResponse(msgspec.Struct, frozen=True):
    etcdserver: str


class GatewayEvent(msgspec.Struct, frozen=True):
    kv: Item
    type: str = "PUT"


class WatchResult(msgspec.Struct, frozen=True):
    header: Header = Header()
    created: bool = False
    canceled: bool = False
    compact_revision: int = 0
    cancel_reason: str = ""
    events: list[GatewayEvent] = []


class WatchLine(msgspec.Struct, frozen=True):
    result: WatchResult | None = None
    error: dict[str, Any] | None = None


class ErrorResponse(msgspec.Struct, frozen=True):
    message: str
    code: int


def decode(body: bytes | bytearray, kind: type[_T]) -> _T:
    """Decode a response; ValueError if it is malformed."""
    return msgspec.json.decode(body, type=kind, strict=False)


def decode_error(body: bytes) -> ErrorResponse | None:
    """Return the error in a response or line; None if it is not an error of etcd."""
    try:
        found = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        return None
    return error_of(found)


def error_of(found: dict[str, Any]) -> ErrorResponse | None:
    inner = found.get("error")
    if isinstance(inner, dict):
        found = inner
    message = found.get("message", inner)
    code = found.get("code", found.get("grpc_code"))
    if not isinstance(message, str) or not isinstance(code, int):
        return None
    return ErrorResponse(message, code)


def range_request(
    start: bytes, end: bytes | None = None, *, revision: int = 0, limit: int = 0
) -> bytes:
    """Encode a read of the key `start`, or of all keys in `[start, end)`."""
    body: dict[str, object] = {"key": start, "revision": revision, "limit": limit}
    if end is not None:
        body["range_end"] = end
    return _encode(body)


def transaction_request(
    root: str, compares: Sequence[Condition], changes: Sequence[Change]
) -> bytes:
    return _encode(
        {
            "compare": [_comparison(root, compare) for compare in compares],
            "success": [_operation(root, change) for change in changes],
        }
    )


def _comparison(root: str, compare: Condition) -> dict[str, object]:
    key = f"{root}{compare.key}".encode()
    if isinstance(compare, ValueIs):
        return {"key": key, "target": "VALUE", "result": "EQUAL", "value": compare.value}
    return {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": compare.revision}


def _operation(root: str, change: Change) -> dict[str, object]:
    key = f"{root}{change.key}".encode()
    if isinstance(change, Put):
        put = {"key": key, "value": change.value, "lease": change.lease or 0}
        return {"request_put": put}
    return {"request_delete_range": {"key": key}}


def watch_request(start: bytes, end: bytes, from_revision: int) -> bytes:
    return _encode(
        {
            "create_request": {
                "key": start,
                "range_end": end,
                "start_revision": from_revision,
                "progress_notify": True,
            }
        }
    )


def grant_request(ttl_s: int) -> bytes:
    return _encode({"TTL": ttl_s})


def lease_request(lease: LeaseId) -> bytes:
    return _encode({"ID": lease})


def authenticate_request(username: str, password: str) -> bytes:
    return _encode({"name": username, "password": password})


def after_prefix(prefix: bytes) -> bytes:
    """Return the first key after all keys with `prefix`. Its last byte must be below 255."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
