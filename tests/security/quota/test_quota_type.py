"""Entities and quotas that are valid, and the sentences for those that are not."""

from __future__ import annotations

import math

import pytest

from millstream.security.quota.quota_type import check_quota, make_entity

USER = (("user", "alice"),)
ADDRESS = (("ip", "10.0.0.1"),)


def test_an_entity_is_sorted_by_type() -> None:
    assert make_entity([("user", "a"), ("client-id", None)]) == (("client-id", None), ("user", "a"))


@pytest.mark.parametrize(
    ("name", "stored"), [("10.0.0.1", "10.0.0.1"), ("::0:1", "::1"), (None, None)]
)
def test_an_address_is_stored_as_connections_show_it(name: str | None, stored: str | None) -> None:
    assert make_entity([("ip", name)]) == (("ip", stored),)


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [("group", "g")],
        [("user", "")],
        [("user", "x" * 1025)],
        [("user", "a"), ("user", "b")],
        [("ip", "10.0.0.1"), ("user", "a")],
        [("ip", "not an address")],
    ],
)
def test_entities_that_are_not_valid(pairs: list[tuple[str, str | None]]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        make_entity(pairs)


@pytest.mark.parametrize(
    ("entity", "name", "value"),
    [
        (USER, "producer_byte_rate", 1024),
        (USER, "producer_byte_rate", None),
        (USER, "request_percentage", 0.5),
        (USER, "controller_mutation_rate", 2.5),
        (ADDRESS, "connection_creation_rate", 10),
    ],
)
def test_quotas_that_are_valid(
    entity: tuple[tuple[str, str | None], ...], name: str, value: float | None
) -> None:
    check_quota(entity, name, value)


@pytest.mark.parametrize(
    ("entity", "name", "value"),
    [
        (USER, "no_such_quota", 1),
        (USER, "no_such_quota", None),
        (USER, "connection_creation_rate", 1),
        (ADDRESS, "producer_byte_rate", 1),
        (USER, "producer_byte_rate", 0),
        (USER, "producer_byte_rate", -1),
        (USER, "producer_byte_rate", 1.5),
        (USER, "producer_byte_rate", 2.0**64),
        (USER, "request_percentage", math.nan),
        (USER, "request_percentage", math.inf),
        (ADDRESS, "connection_creation_rate", 2.0**31),
    ],
)
def test_quotas_that_are_not_valid(
    entity: tuple[tuple[str, str | None], ...], name: str, value: float | None
) -> None:
    with pytest.raises(ValueError, match=name):
        check_quota(entity, name, value)
