"""All other clients read byte for byte what one client wrote.

Each writer fills one topic once: a partition for each codec with every sample it can send, and
one more with a 5 MiB record. Each reader reads all of it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from clients.catalogue import CLIENTS
from clients.contract import CODECS, Client, Record, Settings
from clients.sample import large_record, samples_for

LARGE_PARTITION = len(CODECS)
Written = dict[int, list[Record]]


@pytest.fixture(scope="module")
def written_by(
    client_named: Callable[[str], Client], new_topic: Callable[..., str]
) -> Callable[[str], tuple[str, Written]]:
    """Return the topic that a client has filled, and its records."""
    done: dict[str, tuple[str, Written]] = {}

    def write(name: str) -> tuple[str, Written]:
        if name not in done:
            client = client_named(name)
            topic = new_topic(partitions=len(CODECS) + 1)
            written: Written = {LARGE_PARTITION: [large_record()]}
            client.produce(topic, LARGE_PARTITION, written[LARGE_PARTITION], Settings())
            for codec in client.codecs:
                partition = CODECS.index(codec)
                written[partition] = samples_for(client.lacks)
                client.produce(topic, partition, written[partition], Settings(codec=codec))
            done[name] = topic, written
        return done[name]

    return write


@pytest.mark.parametrize("client", CLIENTS, indirect=True)
@pytest.mark.parametrize("writer", CLIENTS)
def test_written_by_one_read_by_another(
    writer: str, client: Client, written_by: Callable[[str], tuple[str, Written]]
) -> None:
    topic, written = written_by(writer)
    for partition, records in written.items():
        found = client.consume(topic, partition, 0, len(records))
        assert [one.content() for one in found] == [one.content() for one in records]
        assert [one.offset for one in found] == list(range(len(records)))
