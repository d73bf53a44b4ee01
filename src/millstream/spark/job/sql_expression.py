"""Spark SQL expressions over the source's columns that several jobs share.

Pure: the functions return SQL text and need no session.
"""

from __future__ import annotations

from typing import Final

#: How many bytes of binary data are shown.
_HEX_BYTES_MAX: Final = 32


def literal(text: str) -> str:
    """Return `text` as an SQL string literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def readable(column: str, characters_max: int = 200) -> str:
    """Bytes as text if they are valid UTF-8, else the first bytes in hex."""
    text = f"try_validate_utf8(cast({column} as string))"
    digits = f"concat('0x', hex(substring({column}, 1, {_HEX_BYTES_MAX})))"
    return f"substring(coalesce({text}, {digits}), 1, {characters_max})"


def header(name: str) -> str:
    """The last value of a header as bytes, or NULL if the record has no such header."""
    return f"try_element_at(filter(headers, each -> each.key = {literal(name)}), -1).value"


def header_text(name: str) -> str:
    """The last value of a header as text, or NULL if it is missing or not valid UTF-8."""
    return f"try_validate_utf8(cast({header(name)} as string))"


def content_id() -> str:
    """A hash of key and value."""
    length = "cast(coalesce(cast(octet_length(key) as string), '-') as binary)"
    return (
        f"md5(concat({length}, cast(':' as binary), coalesce(key, cast('' as binary)), "
        "coalesce(concat(cast('+' as binary), value), cast('-' as binary))))"
    )


def between(column: str, since_ms: int | None, until_ms: int | None) -> str:
    """The condition that a timestamp is in `[since_ms, until_ms)`, in milliseconds since 1970."""
    given = [
        None if since_ms is None else f"{column} >= timestamp_millis({since_ms})",
        None if until_ms is None else f"{column} < timestamp_millis({until_ms})",
    ]
    return " and ".join(each for each in given if each is not None) or "true"


def bucket(column: str, seconds: int) -> str:
    """The start of the time bucket in seconds since 1970."""
    return f"cast(floor(unix_micros({column}) / {seconds * 1_000_000}) * {seconds} as bigint)"


def bucket_seconds(span_s: float, buckets_max: int = 120) -> int:
    """Return a round width that divides a time span into about `buckets_max` buckets or fewer."""
    widths = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 86_400)
    for width in widths:
        if span_s / width <= buckets_max:
            return width
    return 86_400 * max(1, round(span_s / 86_400 / buckets_max))
