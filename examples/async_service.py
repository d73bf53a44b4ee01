"""A service on asyncio: it answers requests of one topic in another topic.

python -m examples.async_service
"""

from __future__ import annotations

import asyncio
import sys

from millstream import Admin, AsyncConsumer, AsyncProducer


async def serve(bootstrap_servers: str | None, count: int) -> None:
    """Answer `count` requests."""
    async with (
        AsyncProducer(bootstrap_servers) as producer,
        AsyncConsumer(bootstrap_servers, topics=["requests"], group_id="service") as consumer,
    ):
        async for record in consumer:
            await producer.send("responses", (record.value or b"").upper(), key=record.key)
            count -= 1
            if count == 0:
                return


async def call(bootstrap_servers: str | None, names: list[str]) -> None:
    """Send requests and print the responses."""
    async with AsyncProducer(bootstrap_servers) as producer:
        for name in names:
            await producer.send("requests", f"hello {name}", key=name)
    left = len(names)
    async with AsyncConsumer(bootstrap_servers, topics=["responses"]) as consumer:
        async for record in consumer:
            print(record.key, "got", record.value)
            left -= 1
            if left == 0:
                return


async def serve_and_call(bootstrap_servers: str | None, names: list[str]) -> None:
    """Run the service and its caller on one event loop."""
    await asyncio.gather(serve(bootstrap_servers, len(names)), call(bootstrap_servers, names))


def main(bootstrap_servers: str | None = None) -> None:
    """Create the topics, and run everything."""
    with Admin(bootstrap_servers) as admin:
        for topic in ("requests", "responses"):
            admin.create_topic(topic, if_missing=True)
    asyncio.run(serve_and_call(bootstrap_servers, ["alice", "bob"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
