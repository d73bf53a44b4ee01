from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.cli.support.message import (
    InputError,
    JsonReader,
    LineReader,
    TextMessage,
    column_formatter,
    json_formatter,
    template_formatter,
    unescape,
)

MESSAGE = TextMessage(b"k", b"v", [("h", b"1"), ("n", None)], 1_700_000_000_123, "t", 2, 7)

maybe_bytes = st.none() | st.binary(max_size=50) | st.text(max_size=50).map(str.encode)


def line_reader(
    key: bytes | None = None, separator: bytes | None = None, null: bytes | None = None
) -> LineReader:
    return LineReader(key, separator, null, [("h", b"1")])


def test_a_line_is_a_value() -> None:
    assert line_reader().read(b"some text") == TextMessage(None, b"some text", [("h", b"1")])
    assert line_reader(key=b"k").read(b"")[:2] == (b"k", b"")


def test_a_line_is_split_at_the_first_separator() -> None:
    reader = line_reader(separator=b"::", null=b"NULL")
    assert reader.read(b"k::v::w")[:2] == (b"k", b"v::w")
    assert reader.read(b"::v")[:2] == (b"", b"v")
    assert reader.read(b"k::NULL")[:2] == (b"k", None)
    assert reader.read(b"NULL::v")[:2] == (None, b"v")
    with pytest.raises(InputError, match="no separator '::'"):
        reader.read(b"k:v")


def test_json_lines() -> None:
    reader = JsonReader(b"default", [("h", b"1")])
    assert reader.read(b'{"value": "v"}') == TextMessage(b"default", b"v", [("h", b"1")])
    assert reader.read(b'{"key": "k", "value": null, "timestamp": 5}') == TextMessage(
        b"k", None, [("h", b"1")], 5
    )
    full = reader.read(
        b'{"value_base64": "/w==", "headers": [{"key": "a", "value_base64": "AA=="}]}'
    )
    assert full[1:3] == (b"\xff", [("h", b"1"), ("a", b"\x00")])
    assert reader.read(b'{"value": {"a": [1, "\xc3\xbc"]}}').value == '{"a":[1,"ü"]}'.encode()
    assert reader.read(b'{"value": 5, "headers": {"x": "y", "z": null}}').headers[1:] == [
        ("x", b"y"),
        ("z", None),
    ]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"text",
        b"[]",
        b"{}",
        b'"value"',
        b'{"key": "k"}',
        b'{"value": "v", "timestamp": "now"}',
        b'{"value": "v", "timestamp": -1}',
        b'{"value_base64": "%%"}',
        b'{"value_base64": 5}',
        b'{"value": "v", "headers": "h"}',
        b'{"value": "v", "headers": ["h"]}',
        b'{"value": "v", "headers": [{"value": "x"}]}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_a_malformed_json_line_is_rejected(line: bytes) -> None:
    with pytest.raises(InputError):
        JsonReader(None, []).read(line)


@given(
    maybe_bytes,
    maybe_bytes,
    st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"])), maybe_bytes), max_size=3),
    st.none() | st.integers(0, 2**62),
)
def test_produce_reads_the_json_that_consume_prints(
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
    timestamp: int | None,
) -> None:
    message = TextMessage(key, value, headers, timestamp, "t", 3, 9)
    line = json_formatter()(message)
    assert line.count(b"\n") == 1
    assert JsonReader(None, []).read(line) == TextMessage(key, value, headers, timestamp)


def test_json_shape() -> None:
    assert json.loads(json_formatter()(MESSAGE)) == {
        "topic": "t",
        "partition": 2,
        "offset": 7,
        "timestamp": 1_700_000_000_123,
        "key": "k",
        "value": "v",
        "headers": [{"key": "h", "value": "1"}, {"key": "n", "value": None}],
    }


def test_templates() -> None:
    template = "%t-%p@%o %T %D [%k=%v] {%h} 100%%\\t"
    assert template_formatter(template, b"-", b"\n")(MESSAGE) == (
        b"t-2@7 1700000000123 2023-11-14T22:13:20.123Z [k=v] {h=1,n=-} 100%\t\n"
    )
    nothing = TextMessage(None, None, [])
    assert template_formatter("%k|%v|%h|%T|%D", b"NULL", b"")(nothing) == b"NULL|NULL||NULL|NULL"
    assert template_formatter("", b"", b"\x00")(MESSAGE) == b"\x00"


def test_values_are_not_templates() -> None:
    message = MESSAGE._replace(value=b"%k \\n \xff")
    assert template_formatter("%v", b"", b"")(message) == b"%k \\n \xff"


@pytest.mark.parametrize("template", ["%", "%x", "a%", "%v%"])
def test_bad_templates(template: str) -> None:
    with pytest.raises(InputError, match="is not a directive"):
        template_formatter(template, b"", b"")


def test_columns_have_a_fixed_order() -> None:
    formatter = column_formatter(["key", "offset", "headers"], b"null", b"\n")
    assert formatter(MESSAGE) == b"7\tk\th=1,n=null\tv\n"
    assert column_formatter([], b"null", b"\n")(TextMessage(None, None, [])) == b"null\n"
    everything = ["topic", "partition", "offset", "timestamp", "key", "headers"]
    assert column_formatter(everything, b"", b"")(MESSAGE).split(b"\t")[:4] == [
        b"t",
        b"2",
        b"7",
        b"2023-11-14T22:13:20.123Z",
    ]


def test_unescape() -> None:
    assert unescape(r"a\tb\n\\n\0\x") == "a\tb\n\\n\0\\x"
