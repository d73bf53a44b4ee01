"""Send and receive records.

python -m examples.hello
"""

from __future__ import annotations

import sys

from millstream import Consumer, JsonSerializer, Producer


def main(bootstrap_servers: str | None = None) -> None:
    """Send three greetings, and read them as a group."""
    with Producer(bootstrap_servers, value_serializer=JsonSerializer()) as producer:
        for name in ("alice", "bob", "carol"):
            producer.send("greetings", {"hello": name}, key=name)
    # Leaving the block waited for the acknowledgements.

    with Consumer(
        bootstrap_servers,
        topics=["greetings"],
        group_id="readers",
        value_deserializer=JsonSerializer(),
    ) as consumer:
        left = 3
        for record in consumer:
            print(record.partition, record.offset, record.key, record.value)
            left -= 1
            if left == 0:
                break


if __name__ == "__main__":
    main(*sys.argv[1:])
