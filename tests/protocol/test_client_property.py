from __future__ import annotations

import pytest

from millstream.protocol.client_property import ClientProperties
from millstream.protocol.error import SettingError


def test_a_popped_property_no_longer_remains() -> None:
    properties = ClientProperties({"client.id": "a", "retry.backoff.ms": "7", "other": "x"})
    assert properties.pop_text("client.id", "default") == "a"
    assert properties.pop_text("client.id", "default") == "default"
    assert properties.pop_number("retry.backoff.ms", 50, 1) == 7
    assert properties.pop_number("retry.backoff.ms", 50, 1) == 50
    assert properties.pop("missing") is None
    assert properties.remaining == {"other": "x"}


def test_only_options_with_the_prefix_are_properties() -> None:
    options = {"kafka.client.id": "a", "subscribe": "t"}
    assert ClientProperties.from_options(options, "kafka.").remaining == {"client.id": "a"}


def test_a_choice_matches_in_any_case() -> None:
    properties = ClientProperties({"security.protocol": "sasl_ssl"})
    assert properties.pop_choice("security.protocol", "PLAINTEXT", ("SASL_SSL",)) == "SASL_SSL"


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5"])
def test_a_number_below_the_minimum_is_rejected_by_its_full_name(text: str) -> None:
    properties = ClientProperties.from_options({"kafka.retry.backoff.ms": text}, "kafka.")
    with pytest.raises(SettingError, match=r"kafka\.retry\.backoff\.ms must be .* from 1 on"):
        properties.pop_number("retry.backoff.ms", 50, 1)


def test_an_unknown_choice_lists_the_allowed_ones() -> None:
    properties = ClientProperties({"acks": "2"})
    with pytest.raises(SettingError, match="acks must be one of all, 1, not '2'"):
        properties.pop_choice("acks", "all", ("all", "1"))
