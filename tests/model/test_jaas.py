"""The syntax of sasl.jaas.config."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.model.jaas import check_jaas, parse_jaas, plain_users

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f"{PLAIN} required;", {}),
        (f'{PLAIN} required username="a" password="b c";', {"username": "a", "password": "b c"}),
        (f"{PLAIN} required username=a password=b;", {"username": "a", "password": "b"}),
        (f'  {PLAIN}  required\n  user_al="\\"q\\"\\\\" ;', {"user_al": '"q"\\'}),
        (f'{PLAIN} REQUIRED username = "a"', {"username": "a"}),
        (f"{PLAIN} required username='a' password='b \"c\" \\'d';",
         {"username": "a", "password": "b \"c\" 'd"}),
        (f'{PLAIN} required password="it\'s";', {"password": "it's"}),
        (f'{PLAIN} required password="a\\tb\\101\\$";', {"password": "a\tbA$"}),
    ],
)  # fmt: skip
def test_options_are_parsed(text: str, options: dict[str, str]) -> None:
    assert parse_jaas(text) == options


@pytest.mark.parametrize(
    "text",
    ["", PLAIN, f"{PLAIN} required username=", f'{PLAIN} required "x";', f"{PLAIN} never a=b;",
     f'{PLAIN} required password="open;', f"{PLAIN} required password='open;"],
)  # fmt: skip
def test_other_text_is_rejected_without_showing_it(text: str) -> None:
    with pytest.raises(ValueError, match="a login module such as") as caught:
        check_jaas(text)
    assert "open" not in str(caught.value)


def test_users_of_plain() -> None:
    options = parse_jaas(f'{PLAIN} required username=x password=y user_al="p" user_empty="";')
    assert plain_users(options) == {"al": "p"}


@given(st.text())
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    with suppress(ValueError):
        parse_jaas(text)
