"""Old keywords raise an error that names the new one, wherever they were accepted."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.client import (
    Admin,
    AsyncConsumer,
    AsyncProducer,
    Breaker,
    Consumer,
    Producer,
    UsageError,
    Worker,
)
from millstream.client.dedup import StoredOffsets, once, sqlite_store
from millstream.client.old_name import RENAMED, RENAMED_FOR_CONSUMERS

NOWHERE = "127.0.0.1:1"


def of_producer(**options: Any) -> object:
    return Producer(**{"bootstrap_servers": NOWHERE, **options})


def of_consumer(**options: Any) -> object:
    return Consumer(NOWHERE, topics=["t"], **{"group_id": "g", **options})


def of_worker(**options: Any) -> object:
    return Worker(NOWHERE, topics=["t"], **options)


#: The clients and methods that had each keyword.
OWNERS: dict[str, list[Callable[..., object]]] = {
    "servers": [Producer, lambda **o: Consumer(topics=["t"], **o), Admin, of_worker],
    "group": [lambda **o: Consumer(topics=["t"], **o), of_worker],
    "start": [of_consumer],
    "instance_id": [of_consumer],
    "compression": [of_producer],
    "batch_bytes": [of_producer],
    "idempotence": [of_producer],
    "timeout_s": [Admin],
    "delivery_timeout_s": [of_producer],
    "buffer_timeout_s": [of_producer],
    "transaction_timeout_s": [of_producer],
    "session_timeout_s": [of_consumer],
    "commit_interval_s": [of_consumer, of_worker],
    "backoff_s": [of_worker],
    "backoff_s_max": [of_worker],
    "visibility_s": [of_worker],
    "drain_s": [of_worker],
    "catch_up_s": [lambda **o: Worker(NOWHERE, topics=["t"], group_id="g").hint(**o)],
    "rest_s": [Breaker],
    "ttl_s": [],
    "lease_s": [],
    "wait_s": [],
    "key_serializer": [of_consumer],
    "value_serializer": [of_consumer],
}


@pytest.mark.parametrize(("old", "new"), [*RENAMED.items(), *RENAMED_FOR_CONSUMERS.items()])
def test_old_keywords_are_rejected_with_the_new_name(old: str, new: str, tmp_path: Path) -> None:
    owners = OWNERS[old] or [lambda **o: once(sqlite_store(str(tmp_path / "seen.db")), **o)]
    for owner in owners:
        with pytest.raises(UsageError, match=f"no option '{old}': .* it is called '{new}'"):
            owner(**{old: 1})


@pytest.mark.parametrize(
    ("owner", "name", "step"),
    [
        (of_consumer, "enable_auto_commit", "with commit_interval=0 only commit() commits"),
        (of_consumer, "auto_commit_interval_ms", "pass commit_interval=..., in seconds"),
        (of_consumer, "session_timeout_ms", "pass session_timeout=..., in seconds"),
        (of_consumer, "max_poll_records", "pass max_records to poll()"),
        (of_consumer, "consumer_timeout_ms", "pass a timeout to poll(), in seconds"),
        (of_consumer, "isolation_level", "config={'isolation.level': ...} changes it"),
        (of_consumer, "max_poll_interval_ms", "into config={'max.poll.interval.ms': ...}"),
        (of_producer, "delivery_timeout_ms", "pass delivery_timeout=..., in seconds"),
        (of_producer, "max_batch_size", "pass batch_size=..."),
        (of_producer, "buffer_memory", "pass buffer_bytes=..."),
        (of_producer, "max_block_ms", "pass buffer_timeout=..., in seconds"),
        (of_producer, "sasl_plain_username", "pass sasl_username=..."),
        (of_producer, "sasl_plain_password", "pass sasl_password=..."),
        (of_producer, "ssl_context", "pass ssl_cafile, ssl_certfile and ssl_keyfile"),
        (Admin, "request_timeout_ms", "into config={'request.timeout.ms': ...}"),
    ],
)
def test_keywords_of_other_clients_name_the_way_here(
    owner: Callable[..., object], name: str, step: str
) -> None:
    with pytest.raises(UsageError, match=f"no option '{name}'.*{re.escape(step)}"):
        owner(**{name: 1})


def test_a_timeout_in_milliseconds_names_the_one_in_seconds(bootstrap: str, topic: str) -> None:
    with Consumer(bootstrap, topics=[topic]) as consumer:
        with pytest.raises(UsageError, match=r"'timeout_ms': pass timeout=\.\.\., in seconds"):
            consumer.poll(timeout_ms=1000)  # type: ignore[call-arg]
        with pytest.raises(UsageError, match=r"max_records=1.0: .* wait is timeout=\.\.\."):
            consumer.poll(1.0)  # type: ignore[arg-type]


def test_the_migration_page_has_the_same_names() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "migrating-to-1.0.md"
    keywords = page.read_text(encoding="utf-8").partition("## Keywords")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", keywords, re.MULTILINE)
    assert listed == [*RENAMED.items(), *RENAMED_FOR_CONSUMERS.items()]


def test_stored_offsets_name_the_new_keyword() -> None:
    with pytest.raises(UsageError, match=r"'group': .* 'group_id'"):
        StoredOffsets(lambda: None, group="billing")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="pass group_id="):
        StoredOffsets(lambda: None)


def test_methods_name_the_new_keyword(bootstrap: str, topic: str) -> None:
    calls: list[Callable[..., object]] = []
    with Producer(bootstrap) as producer, Consumer(bootstrap, topics=[topic]) as consumer:
        delivery = producer.send(topic, b"x")
        calls += [producer.flush, producer.close, consumer.poll, delivery.result]
        calls += [delivery.exception]
        for call in calls:
            with pytest.raises(UsageError, match=r"'timeout_s': .* 'timeout'"):
                call(timeout_s=1)


def test_asyncio_methods_name_the_new_keyword(bootstrap: str, topic: str) -> None:
    async def main() -> None:
        async with (
            AsyncProducer(bootstrap) as producer,
            AsyncConsumer(bootstrap, topics=[topic]) as consumer,
        ):
            for call in (producer.flush, producer.close, consumer.poll):
                with pytest.raises(UsageError, match=r"'timeout_s': .* 'timeout'"):
                    await call(timeout_s=1)  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="takes topic and value by position"):
                await producer.send(topic, b"key", b"value")  # type: ignore[arg-type]

    asyncio.run(main())


def test_signatures_show_only_the_new_names() -> None:
    parameters = inspect.signature(Producer.send).parameters
    assert list(parameters)[1:3] == ["topic", "value"]
    assert {parameters[name].kind for name in list(parameters)[3:]} == {
        inspect.Parameter.KEYWORD_ONLY
    }
    assert list(inspect.signature(Consumer.poll).parameters) == ["self", "max_records", "timeout"]
    assert inspect.iscoroutinefunction(AsyncProducer.flush)
