"""Messages as text: the input of `produce` and the output of `consume`. No I/O.

Both use the same JSON form, one object per line, so that `produce --json` reads the output of
`consume --json`:

    {"topic": "t", "partition": 0, "offset": 7, "timestamp": 1700000000000, "key": "k",
     "value": "v", "headers": [{"key": "h", "value": "x"}]}

A key or value is a string or null. Bytes that are not UTF-8 are in `key_base64` and `value_base64`
instead, also in headers. Input needs only one of `value` and `value_base64`. In input `headers` may
be an object, a value that is neither string nor null is sent as JSON, and topic, partition and
offset are ignored.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from millstream.cli.support.terminal import format_time

Headers: TypeAlias = list[tuple[str, bytes | None]]


class TextMessage(NamedTuple):
    """A message of the input or the output. In the input topic, partition and offset are unset."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int | None = None
    topic: str = ""
    partition: int = -1
    offset: int = -1


class InputError(ValueError):
    """A line is not a message; the text says why."""


# Input


class LineReader:
    """Parses lines: `value`, or `key<separator>value`."""

    __slots__ = ("_headers", "_key", "_null", "_separator")

    def __init__(
        self, key: bytes | None, separator: bytes | None, null: bytes | None, headers: Headers
    ) -> None:
        self._key = key
        self._separator = separator
        self._null = null
        self._headers = headers

    def read(self, line: bytes) -> TextMessage:
        key: bytes | None = self._key
        value: bytes | None = line
        if self._separator is not None:
            key, found, value = line.partition(self._separator)
            if not found:
                raise InputError(
                    f"it has no separator {self._separator.decode(errors='replace')!r};"
                    " every line must be KEY, separator, VALUE"
                )
        if self._null is not None:
            key = None if key == self._null else key
            value = None if value == self._null else value
        return TextMessage(key, value, self._headers)


class JsonReader:
    """Parses JSON objects, one per line."""

    __slots__ = ("_headers", "_key")

    def __init__(self, key: bytes | None, headers: Headers) -> None:
        self._key = key
        self._headers = headers

    def read(self, line: bytes) -> TextMessage:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"not JSON: {error}") from None
        if not isinstance(row, dict) or not ("value" in row or "value_base64" in row):
            raise InputError('not an object with "value" (or "value_base64")')
        timestamp = row.get("timestamp")
        if timestamp is not None and (not isinstance(timestamp, int) or timestamp < 0):
            raise InputError('"timestamp" must be milliseconds since the epoch')
        key = _bytes_field(row, "key")
        return TextMessage(
            self._key if key is None else key,
            _bytes_field(row, "value"),
            self._headers + _header_list(row.get("headers")),
            timestamp,
        )


def _bytes_field(row: dict[str, Any], name: str) -> bytes | None:
    encoded = row.get(f"{name}_base64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise InputError(f'"{name}_base64" is not base64') from None
    value = row.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _header_list(headers: object) -> Headers:
    if headers is None:
        return []
    if isinstance(headers, dict):
        return [(key, _bytes_field({"value": value}, "value")) for key, value in headers.items()]
    if not isinstance(headers, list):
        raise InputError('"headers" must be a list of {"key", "value"} or an object')
    found: Headers = []
    for header in headers:
        if not isinstance(header, dict) or not isinstance(header.get("key"), str):
            raise InputError('each of "headers" must be an object with a string "key"')
        found.append((header["key"], _bytes_field(header, "value")))
    return found


# Output

Formatter: TypeAlias = Callable[[TextMessage], bytes]

PRINTABLE: Final = ("topic", "partition", "offset", "timestamp", "key", "headers")


def json_formatter() -> Formatter:
    """Format messages as JSON objects, one per line."""

    def format_message(message: TextMessage) -> bytes:
        row: dict[str, Any] = {
            "topic": message.topic,
            "partition": message.partition,
            "offset": message.offset,
            "timestamp": message.timestamp_ms,
        }
        put_bytes(row, "key", message.key)
        put_bytes(row, "value", message.value)
        row["headers"] = [put_bytes({"key": key}, "value", value) for key, value in message.headers]
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"

    return format_message


def column_formatter(columns: Sequence[str], null: bytes, delimiter: bytes) -> Formatter:
    """Format messages as columns and the value, separated by tabs."""
    wanted = [name for name in PRINTABLE if name in columns]

    def format_message(message: TextMessage) -> bytes:
        cells = [_column(message, name, null) for name in wanted]
        cells.append(null if message.value is None else message.value)
        return b"\t".join(cells) + delimiter

    return format_message


def template_formatter(template: str, null: bytes, delimiter: bytes) -> Formatter:
    """Format messages by a template with `_DIRECTIVES`, %% and the escapes of `unescape`."""
    parts: list[bytes | str] = []
    for text, directive in re.findall(r"([^%]*)(%.?|$)", unescape(template), re.DOTALL):
        if text:
            parts.append(text.encode())
        if directive:
            parts.append(b"%" if directive == "%%" else directive[1:])
    unknown = [part for part in parts if isinstance(part, str) and part not in _DIRECTIVES]
    if unknown:
        raise InputError(
            f"%{unknown[0]} is not a directive; use"
            f" {' '.join('%' + name for name in _DIRECTIVES)} or %%"
        )

    def format_message(message: TextMessage) -> bytes:
        return (
            b"".join(
                part if isinstance(part, bytes) else _column(message, _DIRECTIVES[part], null)
                for part in parts
            )
            + delimiter
        )

    return format_message


_DIRECTIVES: Final = {
    "k": "key",
    "v": "value",
    "h": "headers",
    "t": "topic",
    "p": "partition",
    "o": "offset",
    "T": "timestamp_ms",
    "D": "timestamp",
}
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}


def unescape(text: str) -> str:
    """Replace backslash escapes as typed in a shell: `\\t` is a tab."""
    return re.sub(r"\\([ntr0\\])", lambda match: _ESCAPES[match[1]], text)


def _column(message: TextMessage, name: str, null: bytes) -> bytes:
    if name == "headers":
        pairs = [
            key.encode("utf-8", "surrogateescape") + b"=" + (null if value is None else value)
            for key, value in message.headers
        ]
        return b",".join(pairs)
    if name == "timestamp":
        stamp = message.timestamp_ms
        return null if stamp is None else format_time(stamp).encode()
    cell: bytes | str | int | None = getattr(message, name)
    if cell is None:
        return null
    return cell if isinstance(cell, bytes) else str(cell).encode()


def put_bytes(row: dict[str, Any], name: str, data: bytes | None) -> dict[str, Any]:
    """Set `name` to the text of `data`, or `name_base64` if it is not UTF-8."""
    try:
        row[name] = None if data is None else data.decode()
    except UnicodeDecodeError:
        assert data is not None
        row[f"{name}_base64"] = base64.b64encode(data).decode()
    return row
