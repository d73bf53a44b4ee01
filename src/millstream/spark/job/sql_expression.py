"""Spark SQL for what several jobs ask of records: columns of the source `format("millstream")`.

Pure: these are texts of SQL, so that nothing here needs a session.
"""

from __future__ import annotations

from typing import Final

#: Of bytes that are no text, this many are shown.
_HEX_BYTES_MAX: Final = 32


def literal(text: str) -> str:
    """`text` as a string of SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def readable(column: str, characters_max: int = 200) -> str:
    """Bytes for people: their text where they are UTF-8, else the first of them in hex."""
    text = f"try_validate_utf8(cast({column} as string))"
    digits = f"concat('0x', hex(substring({column}, 1, {_HEX_BYTES_MAX})))"
    return f"substring(coalesce({text}, {digits}), 1, {characters_max})"


def header(name: str) -> str:
    """The last value of a header, as bytes; NULL where the record has none of that name."""
    return f"try_element_at(filter(headers, each -> each.key = {literal(name)}), -1).value"


def header_text(name: str) -> str:
    return f"try_validate_utf8(cast({header(name)} as string))"


def content_id() -> str:
    """What is the same for records with the same key and value, and for no others."""
    length = "cast(coalesce(cast(octet_length(key) as string), '-') as binary)"
    return (
        f"md5(concat({length}, cast(':' as binary), coalesce(key, cast('' as binary)), "
        "coalesce(concat(cast('+' as binary), value), cast('-' as binary))))"
    )


def between(column: str, since_ms: int | None, until_ms: int | None) -> str:
    """The condition that a time is in `[since_ms, until_ms)`, of milliseconds since 1970."""
    given = [
        None if since_ms is None else f"{column} >= timestamp_millis({since_ms})",
        None if until_ms is None else f"{column} < timestamp_millis({until_ms})",
    ]
    return " and ".join(each for each in given if each is not None) or "true"


def bucket(column: str, seconds: int) -> str:
    """The start of the time bucket, in seconds since 1970."""
    return f"cast(floor(unix_micros({column}) / {seconds * 1_000_000}) * {seconds} as bigint)"


def bucket_seconds(span_s: float, buckets_max: int = 120) -> int:
    """A round width that cuts a span of time into at most about `buckets_max` buckets."""
    widths = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 86_400)
    for width in widths:
        if span_s / width <= buckets_max:
            return width
    return 86_400 * max(1, round(span_s / 86_400 / buckets_max))
