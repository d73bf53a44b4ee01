"""The topics of a worker on the brokers: its own ones are created, and its lag is measured."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.client.admin import Admin, ConfigResource
from millstream.client.record import Partition
from millstream.client.schedule import PARKED_S, parked_topic, scheduled_topic
from millstream.client.worker.cron.tick_log import TOPIC_CONFIG
from millstream.client.worker.hint import lag_of
from millstream.client.worker.message.header import HEADERS_BYTES_MAX
from millstream.client.worker.policy.policy import WorkerSettings


class WorkerTopics:
    """Measures the lag of a worker's topics, and creates the topics that it needs."""

    def __init__(self, servers: str | Sequence[str] | None, settings: WorkerSettings) -> None:
        self._servers = servers
        self._settings = settings

    def lag(self, group: str, topics: Sequence[str]) -> tuple[int, int]:
        """Return the group's lag in these topics, and their number of partitions."""
        ends: dict[Partition, int] = {}
        with self._admin() as admin:
            for topic in topics:
                ends |= admin.list_topic_offsets(topic)
            return lag_of(ends, admin.list_group_offsets(group)), len(ends)

    def create(self, topics: Sequence[str], cron_topic: str | None) -> None:
        """Create the worker's own topics where they are missing, unless the settings forbid it."""
        if not self._settings.create_topics:
            return
        with self._admin() as admin:
            if cron_topic is not None:
                admin.create_topic(cron_topic, partitions=1, config=TOPIC_CONFIG, if_missing=True)
            existing = set(admin.list_topics())
            for name, topic in self._settings.created_topics(topics).items():
                config = self._settings.topic_config(name)
                if name not in existing:
                    self._create_topic(admin, name, topic, config)
                elif name == scheduled_topic(topic) and not config.items() <= (
                    _topic_config(admin, name).items()
                ):
                    # A producer created the topic by sending to it.
                    admin.alter_config(ConfigResource.topic(name), config)

    def _create_topic(self, admin: Admin, name: str, topic: str, config: dict[str, str]) -> None:
        """Create `name` for `topic`, with as many partitions. A parked topic has its own number."""
        is_parked = name == parked_topic(topic)
        partitions = len(PARKED_S) if is_parked else len(admin.describe_topic(topic).partitions)
        # Leave room for the headers that the worker adds to the largest message.
        size = int(_topic_config(admin, topic)["max.message.bytes"] or 0) + HEADERS_BYTES_MAX
        config |= {"max.message.bytes": str(size)}
        admin.create_topic(name, partitions=partitions, config=config, if_missing=True)

    def _admin(self) -> Admin:
        return Admin(self._servers, **self._settings.admin_options)


def _topic_config(admin: Admin, topic: str) -> dict[str, str | None]:
    entries = admin.describe_config(ConfigResource.topic(topic))
    return {name: entry.value for name, entry in entries.items()}
