"""Events that Kafka rejects for good are put aside, and the others of their shard continue."""

from __future__ import annotations

import random

from client.outbox.outbox_home import OutboxHome, values_by_key
from harness.process.broker_process import wait_until
from millstream.client import Admin, ConfigResource

#: Relays compress batches, and these do not compress well.
CHANCE = random.Random(1)
LARGE = CHANCE.randbytes(3000).hex()


def test_an_event_that_is_too_large_blocks_no_other_event(home: OutboxHome, topic: str) -> None:
    """All events have one key, and so one shard. Together the small ones are too large as well."""
    with Admin(home.bootstrap) as admin:
        admin.create_topic(topic, partitions=1, config={"max.message.bytes": "2000"})
    small = [CHANCE.randbytes(300).hex() for _ in range(10)]
    values = [*small[:5], LARGE, *small[5:]]
    home.write(topic, [("k", value) for value in values])
    home.drain()
    assert values_by_key(home.bootstrap, topic) == {"k": small}
    (event,) = home.database.rejected(10)
    assert (event.topic, event.key, event.value) == (topic, b"k", LARGE.encode())
    assert "too large" in event.error
    assert sum(status.rejected for status in home.database.status()) == 1
    with Admin(home.bootstrap) as admin:
        admin.alter_config(ConfigResource.topic(topic), {"max.message.bytes": "10000"})
    assert home.database.retry([event.id]) == 1
    home.drain()
    assert values_by_key(home.bootstrap, topic) == {"k": [*small, LARGE]}


def test_other_reasons(home: OutboxHome, topic: str) -> None:
    """A partition that does not exist, an invalid topic name and invalid headers, in one relay."""
    with Admin(home.bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
    connection = home.connect()
    home.outbox.write(connection, topic, key="k", value="1")
    home.outbox.write(connection, topic, key="k", value="2", partition=7)
    home.outbox.write(connection, "no such/topic", key="k", value="3")
    insert = "INSERT INTO millstream_outbox (topic, key, value, headers) VALUES ('{}', {}, {}, '5')"
    binary = ("X'6b'", "X'34'") if home.address.startswith("sqlite") else ("'k'", "'4'")
    connection.execute(insert.format(topic, *binary))
    home.outbox.write(connection, topic, key="k", value="5")
    connection.commit()
    connection.close()
    relay = home.start_relay("-X", "topic.metadata.propagation.max.ms=200")
    wait_until(lambda: home.pending() == 0, "the rest to be sent", 90)
    home.kill(relay)
    assert values_by_key(home.bootstrap, topic) == {"k": ["1", "5"]}
    assert [bytes(event.value or b"") for event in home.database.rejected(10)] == [b"2", b"3", b"4"]
    assert home.database.discard(None) == 3
    assert home.database.rejected(10) == []
