"""Topic patterns agree with Python's `re` where both support the syntax; their work is bounded."""

from __future__ import annotations

import re
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.groups.subscription.pattern import PATTERN_BYTES_MAX, compile_pattern
from millstream.model.error import BrokerError, ErrorCode

NAMES = [
    "orders",
    "orders-eu",
    "orders.eu",
    "Orders",
    "o",
    "orders-2024",
    "a_b",
    "aaab",
    "abab",
    "x-",
]

#: Repetitions. Nested ones make `re`, but not our patterns, take exponential time.
NESTED = re.compile(r"[*+?}]")

atoms = st.sampled_from(
    ["a", "b", "o", "orders", ".", "[a-c]", "[^a-y]", r"\d", r"\w", r"\W", r"\.", "-", "^", "$"]
)
patterns = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,}", "*?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=8,
).filter(lambda text: len(NESTED.findall(text)) < 3)


@settings(max_examples=300, deadline=None)
@given(patterns, st.lists(st.text("abo2.-_E", max_size=6), max_size=4))
def test_agrees_with_re(text: str, more: list[str]) -> None:
    pattern = compile_pattern(text)
    reference = re.compile(text)
    for name in NAMES + [each for each in more if each]:
        expected = reference.fullmatch(name) is not None
        assert pattern.matches(name) == expected, (text, name)
        assert not expected or name.startswith(pattern.prefix)


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("(?i)ORD.*", "orders", True),
        ("(?i:ORD)ers", "OrDers", True),
        ("(?i:ORD)ers", "ordErs", False),
        ("(?P<a>o)(?<b>r)ders", "orders", True),
        (r"\Qa.b\E+", "a.bb", True),
        (r"\Qa.b\E", "a.b", True),
        (r"\Qa.b\E", "axb", False),
        ("[[:alpha:]]+[[:^alpha:]]", "abc1", True),
        ("[]a]+", "aa", True),
        (r"[\d.]+", "1.2", True),
        ("[a-]+", "a-a", True),
        (r"\x61\x{62}", "ab", True),
        ("a{,2}", "a", False),
        ("", "a", False),
        (r"\Aab\z", "ab", True),
        ("a$b", "ab", False),
        ("orders", "orders-eu", False),
    ],
)
def test_syntax_of_re2(text: str, name: str, expected: bool) -> None:
    assert compile_pattern(text).matches(name) == expected


REJECTED = """
( ) a) [a * a** \\1 (?=a) (?<=a) (?!a) (?<!a)b \\b a{2,1} a{1001} \\ [b-a] [[:nope:]] \\xzz (?P<
(?P<1>a) (?z) \\p{L} (? ((a{1000}){1000}){1000} \\x{110000}
""".split()  # noqa: SIM905 - a table


@pytest.mark.parametrize("text", [*REJECTED, "(" * 200 + ")" * 200, "a" * (PATTERN_BYTES_MAX + 1)])
def test_rejected_patterns(text: str) -> None:
    with pytest.raises(BrokerError) as caught:
        compile_pattern(text)
    assert caught.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30) | st.text("(){}[]\\?*+|^$a1-:,PQEx<>=!", max_size=20))
def test_any_text_is_a_pattern_or_rejected(text: str) -> None:
    try:
        compile_pattern(text).matches("orders")
        refusal = None
    except BrokerError as error:
        refusal = error.code
    assert refusal in (None, ErrorCode.INVALID_REGULAR_EXPRESSION)


def test_matching_does_not_backtrack() -> None:
    assert not compile_pattern("(a*)*(a|aa)*b").matches("a" * 249)
    assert compile_pattern("(.*)(.*)(.*)(.*)(.*)x").matches("a" * 248 + "x")


def test_work_is_bounded() -> None:
    # One state set per suffix of 300 characters: far more than the cache holds.
    pattern = compile_pattern("(.*a.{300}|.*b.{300}|.*c.{300}){1,20}")
    random = Random(1)
    names = ["".join(random.choices("abc", k=249)) for _ in range(200)]
    with pytest.raises(BrokerError) as caught:
        pattern.resolve(names)
    assert caught.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_resolve() -> None:
    assert compile_pattern("orders.*").resolve(NAMES) == {
        "orders",
        "orders-eu",
        "orders.eu",
        "orders-2024",
    }
