"""Arguments that `send` does not take raise an error that names the next step."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from millstream.client import AsyncProducer, Job, Producer, UsageError
from millstream.client.outbox import Outbox

NOWHERE = "127.0.0.1:1"
BY_KEYWORD = r"also got 'alice': pass the key by keyword, send\(topic, value, key=\.\.\.\)"
OF_PRODUCER = r"acks is a setting of the producer, Producer\(acks=\.\.\.\)"
WRONG: list[tuple[tuple[object, ...], dict[str, object], str]] = [
    (("alice",), {}, BY_KEYWORD),
    ((), {"acks": 1}, OF_PRODUCER),
    ((), {"acks": "all", "key": "alice"}, OF_PRODUCER),
]


@pytest.mark.parametrize(("extra", "keywords", "complaint"), WRONG)
@pytest.mark.parametrize("tracing", [False, TracerProvider()], ids=["plain", "traced"])
def test_producers(
    extra: tuple[Any, ...], keywords: dict[str, Any], complaint: str, tracing: Any
) -> None:
    producer = Producer(NOWHERE, tracing=tracing)
    for send in (producer.send, producer.send_and_wait):
        with pytest.raises(UsageError, match=complaint):
            send("orders", "2 apples", *extra, **keywords)
    producer.close(0)


@pytest.mark.parametrize(("extra", "keywords", "complaint"), WRONG)
@pytest.mark.parametrize("tracing", [False, TracerProvider()], ids=["plain", "traced"])
def test_asyncio_producers(
    extra: tuple[Any, ...], keywords: dict[str, Any], complaint: str, tracing: Any
) -> None:
    async def main() -> None:
        async with AsyncProducer(NOWHERE, tracing=tracing) as producer:
            for send in (producer.send, producer.send_and_wait):
                with pytest.raises(UsageError, match=complaint):
                    await send("orders", "2 apples", *extra, **keywords)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("keywords", "complaint"),
    [
        ({"acks": 1}, OF_PRODUCER),
        ({"keys": "alice"}, "There is no option 'keys': did you mean 'key'"),
    ],
)
def test_jobs(keywords: dict[str, Any], complaint: str) -> None:
    job: Job[Any] = object.__new__(Job)
    with pytest.raises(UsageError, match=complaint):
        job.send("orders", "2 apples", **keywords)
    with pytest.raises(UsageError, match=BY_KEYWORD):
        job.send("orders", "2 apples", "alice")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "method", [Producer.send, AsyncProducer.send, Job.send, Outbox.write, Producer.send_and_wait]
)
def test_the_documented_signature_has_no_wrong_arguments(method: Callable[..., Any]) -> None:
    names = inspect.signature(method).parameters
    assert not {"extra", "unknown", "acks"} & names.keys()
    assert "key" in names or method is Producer.send_and_wait


def test_a_traced_producer_has_the_same_signature() -> None:
    producers = [Producer(NOWHERE, tracing=each) for each in (False, TracerProvider())]
    plain, traced = (inspect.signature(each.send) for each in producers)
    assert plain == traced
    for producer in producers:
        producer.close(0)
