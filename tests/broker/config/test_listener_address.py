"""Addresses of listeners in settings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.broker.config.listener_address import parse_address, parse_listeners, parse_pairs
from millstream.metadata.cluster_record import Endpoint


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:9092", ("localhost", 9092)),
        (":0", ("", 0)),
        ("[::1]:65535", ("::1", 65535)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "h", "h:", "h:x", "h:65536", "::1:9092", "[]:1", "a b:1"])
def test_invalid_addresses_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        parse_address(text)


def test_listener_names_become_upper_case() -> None:
    assert parse_listeners(["my_name-1://h:1"]) == (Endpoint("MY_NAME-1", "h", 1),)


def test_several_listeners_may_have_port_0() -> None:
    assert len(parse_listeners(["A://h:0", "B://h:0"])) == 2


def test_pairs_split_at_the_last_colon() -> None:
    assert parse_pairs(["a:b", "::1:5"], "x") == {"a": "b", "::1": "5"}
    for bad in ("a", ":b", "a:"):
        with pytest.raises(ValueError, match="list of x"):
            parse_pairs([bad], "x")


@given(st.text(max_size=30))
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    for parse in (parse_address, lambda text: parse_listeners([text])):
        try:
            parse(text)
        except ValueError:
            continue
