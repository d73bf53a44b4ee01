"""The topic of ticks on brokers: reading the last tick of each job, and appending one.

The topic is compacted, with the name of the job as the key, so it stays short. Ticks younger than a
week stay in any case: a group that is behind still finds them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, Final

from millstream.client.admin import Admin
from millstream.client.consumer.consumer import Consumer
from millstream.client.producer.producer import Producer
from millstream.client.worker.cron.ticks import Tick

_DAY_MS: Final = 86_400_000
TOPIC_CONFIG: Final = {
    "cleanup.policy": "compact",
    "min.compaction.lag.ms": str(7 * _DAY_MS),
    "segment.ms": str(_DAY_MS),
}
#: How long to wait for records before the end of the topic. Compaction may have removed them.
_READ_S: Final = 10.0


class TopicTickLog:
    """The `TickLog` of a group. Its clients are opened when they are needed.

    `clients` are the keywords that all clients of the worker have.
    """

    def __init__(
        self, topic: str, bootstrap_servers: str | Sequence[str] | None, clients: Mapping[str, Any]
    ) -> None:
        self._topic = topic
        self._servers = bootstrap_servers
        self._clients = dict(clients)
        self._producer: Producer | None = None

    def last_ticks(self) -> dict[str, dt.datetime]:
        with Admin(self._servers, **self._clients) as admin:
            end = max(admin.offsets(self._topic).values())
        found: dict[str, dt.datetime] = {}
        with Consumer(self._servers, topics=[self._topic], **self._clients) as consumer:
            position = 0
            while position < end and (records := consumer.poll(timeout=_READ_S)):
                for record in records:
                    position = record.offset + 1
                    name = (record.raw_key or b"").decode(errors="replace")
                    at = dt.datetime.fromtimestamp((record.timestamp or 0) / 1000, dt.UTC)
                    found[name] = max(at, found.get(name, at))
        return found

    def send(self, tick: Tick) -> None:
        if self._producer is None:
            self._producer = Producer(self._servers, linger_ms=0, **self._clients)
        timestamp = int(tick.at.timestamp() * 1000)
        delivery = self._producer.send(
            self._topic, tick.at.isoformat(), key=tick.name, timestamp=timestamp
        )
        delivery.result()

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()
