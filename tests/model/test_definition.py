"""Parsing, limits and text forms of settings."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.model.definition import ConfigType, Definition


def definition(kind: ConfigType, **options: object) -> Definition:
    return Definition(name="a.b", kind=kind, default=None, doc="", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (ConfigType.BOOLEAN, " True ", True),
        (ConfigType.BOOLEAN, "FALSE", False),
        (ConfigType.STRING, " a b ", "a b"),
        (ConfigType.INT, "-2147483648", -(2**31)),
        (ConfigType.INT, "+5", 5),
        (ConfigType.LONG, "9223372036854775807", 2**63 - 1),
        (ConfigType.DOUBLE, "1e3", 1000.0),
        (ConfigType.LIST, "a, b ,c", ("a", "b", "c")),
        (ConfigType.LIST, " ", ()),
    ],
)
def test_valid_text_is_parsed(kind: ConfigType, text: str, value: object) -> None:
    assert definition(kind).parse(text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (ConfigType.BOOLEAN, "yes"),
        (ConfigType.BOOLEAN, ""),
        (ConfigType.INT, "2147483648"),
        (ConfigType.INT, "1_000"),
        (ConfigType.INT, "1.0"),
        (ConfigType.INT, ""),
        (ConfigType.INT, "\u0661"),
        (ConfigType.INT, "9" * 5000),
        (ConfigType.SHORT, "32768"),
        (ConfigType.LONG, "9223372036854775808"),
        (ConfigType.DOUBLE, "nan"),
        (ConfigType.DOUBLE, "inf"),
        (ConfigType.DOUBLE, "x"),
    ],
)
def test_invalid_text_is_rejected(kind: ConfigType, text: str) -> None:
    with pytest.raises(ValueError, match=r"number|true or false"):
        definition(kind).parse(text)


def test_limits_are_inclusive_and_named_in_the_error() -> None:
    limited = definition(ConfigType.INT, minimum=3, maximum=5)
    assert [limited.parse(text) for text in "345"] == [3, 4, 5]
    for text in "26":
        with pytest.raises(ValueError, match=r"^a whole number from 3 to 5$"):
            limited.parse(text)


def test_choices_apply_to_text_and_to_each_element() -> None:
    with pytest.raises(ValueError, match=r"^one of x, y$"):
        definition(ConfigType.STRING, choices=("x", "y")).parse("z")
    several = definition(ConfigType.LIST, choices=("x", "y"), container=frozenset)
    assert several.parse("y,x,y") == {"x", "y"}
    with pytest.raises(ValueError, match=r"^a comma-separated list of x, y$"):
        several.parse("x,z")


@given(st.integers(-(2**63), 2**63 - 1))
def test_numbers_survive_the_round_trip(number: int) -> None:
    long = definition(ConfigType.LONG)
    text = long.format(number)
    assert text is not None
    assert long.parse(text) == number


@given(st.text())
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    for kind in ConfigType:
        with contextlib.suppress(ValueError):
            definition(kind).parse(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (0.5, "0.5"),
        (0.001, "0.001"),
        (0.0001, "1.0E-4"),
        (9_999_999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (2.5e7, "2.5E7"),
        (-123456789.0, "-1.23456789E8"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
    ],
)
def test_floats_are_formatted_like_in_java(value: float, text: str) -> None:
    double = definition(ConfigType.DOUBLE)
    assert double.format(value) == text
    assert double.parse(text) == value


def test_texts_are_normalized() -> None:
    assert definition(ConfigType.DOUBLE).normalize("25000000") == "2.5E7"
    assert definition(ConfigType.INT).normalize("+07") == "7"
    assert definition(ConfigType.BOOLEAN).normalize("TRUE") == "true"
    # A list keeps its given order.
    assert definition(ConfigType.LIST, container=frozenset).normalize("b, a") == "b,a"
    assert definition(ConfigType.LIST).normalize("") == ""
