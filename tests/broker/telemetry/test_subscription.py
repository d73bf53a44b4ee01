"""Subscriptions: valid settings, and the push plans of clients."""

from __future__ import annotations

import random

import pytest

from millstream.broker.telemetry.subscription import parse_subscription, push_plan
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.map import Map

ID_A, ID_B = b"a" * 16, b"b" * 16
CLIENT: dict[str, str | None] = {
    "client_instance_id": "AAAAAAAAAAAAAAAAAAAAAA",
    "client_id": "orders service/7",
    "client_software_name": "apache-kafka-java",
    "client_software_version": "4.3.0",
    "client_source_address": "::1",
    "client_source_port": "50001",
}


def matches(match: str, **changed: str | None) -> bool:
    subscription = parse_subscription("s", Map({"match": match}))
    return subscription.matches({**CLIENT, **changed})


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        ("", True),
        ("client_software_name=apache-kafka-java", True),
        ("client_software_name=apache", False),
        ("client_software_name=apache.*,client_software_version=4\\.[0-9]+\\..*", True),
        ("client_software_name=apache.*,client_software_version=3.*", False),
        ("client_id = orders service/[0-9]", True),
        ("client_id=orders\\s\\w+/\\d", True),
        ("client_id=[^/]*", False),
        ("client_id=[[:print:]]+", True),
        ("client_source_address=[0-9a-f:]+", True),
        ("client_source_port=50001", True),
        ("client_instance_id=A{22}", True),
        ("client_id=a,client_id=orders.*", True),
    ],
)
def test_clients_are_matched(match: str, expected: bool) -> None:
    assert matches(match) == expected


def test_characters_outside_of_ascii_match_a_dot_and_no_class() -> None:
    assert matches("client_id=b.r", client_id="bär")
    assert matches("client_id=b[^a]r", client_id="bär")
    assert not matches("client_id=b[a-z]r", client_id="bär")
    assert not matches("client_id=[[:print:]]*", client_id="b\0r")


def test_an_attribute_that_is_not_known_matches_nothing() -> None:
    assert not matches("client_software_name=.*", client_software_name=None)


def test_a_pattern_never_backtracks() -> None:
    assert not matches("client_id=(a*)*(a|aa)*b", client_id="a" * 5000)


def test_a_pattern_that_takes_too_long_matches_nothing() -> None:
    text = "".join(random.Random(7).choices("ab", k=32_000))
    assert matches("client_id=(a|b)*", client_id=text)
    assert not matches("client_id=(.*a.{300})*(.*b.{300})*.*", client_id=text)


@pytest.mark.parametrize(
    ("name", "configs", "code"),
    [
        ("", {}, ErrorCode.INVALID_REQUEST),
        ("n" * 250, {}, ErrorCode.INVALID_REQUEST),
        ("s", {"nope": "1"}, ErrorCode.INVALID_REQUEST),
        ("s", {"interval.ms": "99"}, ErrorCode.INVALID_REQUEST),
        ("s", {"interval.ms": "3600001"}, ErrorCode.INVALID_REQUEST),
        ("s", {"interval.ms": "often"}, ErrorCode.INVALID_CONFIG),
        ("s", {"interval.ms": ""}, ErrorCode.INVALID_CONFIG),
        ("s", {"metrics": "a,,b"}, ErrorCode.INVALID_CONFIG),
        ("s", {"match": "client_id"}, ErrorCode.INVALID_CONFIG),
        ("s", {"match": "client_id="}, ErrorCode.INVALID_CONFIG),
        ("s", {"match": "client_id=a=b"}, ErrorCode.INVALID_CONFIG),
        ("s", {"match": "client_name=a"}, ErrorCode.INVALID_CONFIG),
        ("s", {"match": "client_id=("}, ErrorCode.INVALID_CONFIG),
        ("s", {"match": "client_id=(?!a)b"}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_invalid_subscriptions_are_rejected(
    name: str, configs: dict[str, str], code: ErrorCode
) -> None:
    with pytest.raises(BrokerError) as raised:
        parse_subscription(name, Map(configs))
    assert raised.value.code is code


def test_without_a_subscription_the_plan_is_empty() -> None:
    plan = push_plan([], CLIENT, ID_A)
    assert (plan.metrics, plan.interval_ms) == ((), 300_000)


def test_subscriptions_are_added_up() -> None:
    one = parse_subscription("1", Map({"metrics": "b,a", "interval.ms": "5000"}))
    two = parse_subscription("2", Map({"metrics": "a,c", "interval.ms": "1000"}))
    other = parse_subscription("3", Map({"metrics": "x", "match": "client_id=no"}))
    everything = parse_subscription("4", Map({"metrics": "d,*", "interval.ms": "9000"}))
    plan = push_plan([one, two, other], CLIENT, ID_A)
    assert (plan.metrics, plan.interval_ms) == (("a", "b", "c"), 1000)
    assert push_plan([one, everything], CLIENT, ID_A)[:2] == (("*",), 5000)


def test_the_id_is_the_same_on_every_broker_and_differs_by_plan() -> None:
    one = parse_subscription("1", Map({"metrics": "a,b"}))
    swapped = parse_subscription("1", Map({"metrics": "b,a"}))
    often = parse_subscription("1", Map({"metrics": "a,b", "interval.ms": "1000"}))
    ids = [
        push_plan(each, CLIENT, instance_id).subscription_id
        for each, instance_id in (([one], ID_A), ([swapped], ID_A), ([often], ID_A), ([one], ID_B))
    ]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3
    assert all(-(2**31) <= each < 2**31 for each in ids)
