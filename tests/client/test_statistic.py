"""librdkafka's statistics reach the application's callback, and its errors do no harm."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from harness.process.broker_process import wait_until
from millstream.client import AsyncConsumer, AsyncProducer, Consumer, Producer, UsageError

SECONDS_MAX = 60.0


def test_a_producer_reports_while_it_is_idle(bootstrap: str) -> None:
    seen: list[dict[str, Any]] = []
    with Producer(
        bootstrap, client_id="teller", on_statistics=seen.append, statistics_interval=0.1
    ):
        wait_until(lambda: len(seen) >= 2, "two reports")
    assert {each["type"] for each in seen} == {"producer"}
    assert {each["client_id"] for each in seen} == {"teller"}


def test_a_consumer_reports_while_it_polls(bootstrap: str, topic: str) -> None:
    seen: list[dict[str, Any]] = []
    with Consumer(
        bootstrap, topics=[topic], on_statistics=seen.append, statistics_interval=0.1
    ) as consumer:
        wait_until(lambda: consumer.poll(timeout=0.1) is not None and seen, "a report")
    assert seen[0]["type"] == "consumer"


def test_asyncio_clients_report(bootstrap: str, topic: str) -> None:
    seen: list[str] = []

    async def main() -> None:
        options: dict[str, Any] = {
            "on_statistics": lambda statistics: seen.append(statistics["type"]),
            "statistics_interval": 0.1,
        }
        async with (
            AsyncProducer(bootstrap, **options) as producer,
            AsyncConsumer(bootstrap, topics=[topic], **options) as consumer,
            asyncio.timeout(SECONDS_MAX),
        ):
            while {"producer", "consumer"} - set(seen):
                await consumer.poll(timeout=0.1)
            # A report in between does not delay deliveries.
            assert (await producer.send_and_wait(topic, b"x")).offset == 0

    asyncio.run(main())


def test_an_error_of_the_callback_is_logged(
    bootstrap: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_statistics: dict[str, Any]) -> None:
        raise ZeroDivisionError

    with (
        caplog.at_level(logging.ERROR, "millstream.client.statistic"),
        Producer(bootstrap, on_statistics=fail, statistics_interval=0.1) as producer,
    ):
        wait_until(lambda: "ZeroDivisionError" in caplog.text, "the error in the log")
        assert producer.send_and_wait(topic, b"x").offset == 0


async def coroutine(_statistics: dict[str, Any]) -> None:
    pass


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"on_statistics": coroutine}, "is a coroutine function: pass a plain one"),
        ({"on_statistics": 5}, "is not callable"),
        ({"statistics_interval": 0}, "out of range"),
    ],
)
def test_wrong_options_are_explained(options: dict[str, Any], sentence: str) -> None:
    for make in (Producer, Consumer):
        with pytest.raises(UsageError, match=sentence):
            make("127.0.0.1:1", **options)
