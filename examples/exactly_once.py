"""From topic to topic, exactly once: output and progress are one transaction.

python -m examples.exactly_once
"""

from __future__ import annotations

import sys

from millstream import Consumer, Producer

NUMBERS = 20


def main(bootstrap_servers: str | None = None) -> None:
    """Square numbers. Kill it at any point and start it again: no square is lost or duplicated."""
    with Producer(bootstrap_servers) as producer:
        for number in range(NUMBERS):
            producer.send("numbers", str(number), key=str(number))

    with (
        Producer(bootstrap_servers, transactional_id="squares-1") as producer,
        Consumer(
            bootstrap_servers,
            topics=["numbers"],
            group_id="squares",
            delivery="exactly_once",
            producer=producer,
        ) as consumer,
    ):
        squared = 0
        while squared < NUMBERS:
            for record in consumer.poll(max_records=500):
                producer.send("squares", str(int(record.value or 0) ** 2), key=record.key)
                squared += 1
            consumer.commit()
    print(f"{squared} squares")


if __name__ == "__main__":
    main(*sys.argv[1:])
