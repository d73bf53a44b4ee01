"""Common errors name a page of the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from millstream.client.error import from_kafka
from millstream.client.error_page import PAGES, page_of

ERRORS = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"


@pytest.mark.parametrize(
    ("code", "page"),
    [
        (KafkaError._ALL_BROKERS_DOWN, "errors#no-connection"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, "errors#unknown-topic"),
        (KafkaError.MSG_SIZE_TOO_LARGE, "errors#record-too-large"),
        (KafkaError.PRODUCER_FENCED, "errors#fenced"),
        (KafkaError.INVALID_CONFIG, ""),
    ],
)
def test_an_error_names_its_page_in_a_note(code: int, page: str) -> None:
    assert page_of(code) == page
    error = from_kafka(KafkaError(code), "Sending")
    notes = [f"See: millstream docs {page}"] if page else []
    assert getattr(error, "__notes__", []) == notes
    assert "millstream docs" not in str(error)


def test_every_page_is_a_section() -> None:
    headings = {
        line.removeprefix("### ").lower().replace(" ", "-")
        for line in ERRORS.read_text().splitlines()
        if line.startswith("### ")
    }
    assert {page.partition("#")[2] for page in PAGES} <= headings
