"""Settings for creating and deleting topics."""

from __future__ import annotations

import dataclasses

from millstream.model.definition import ConfigScope, ConfigType, setting

_BOOLEAN, _INT = ConfigType.BOOLEAN, ConfigType.INT


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopicSection:
    """Creation and deletion of topics. `config.topics`."""

    num_partitions: int = setting(
        _INT, 1, "Default number of partitions of a new topic.", minimum=1
    )
    default_replication_factor: int | None = setting(
        _INT,
        None,
        "Default number of replicas of a new topic. If not set: 3, or the number of brokers if"
        " there are fewer.",
        minimum=1,
        scope=ConfigScope.CLUSTER_WIDE,
    )
    max_partitions_per_topic: int = setting(
        _INT, 10_000, "Maximum number of partitions of a topic.", minimum=1, maximum=10_000
    )
    auto_create_topics_enable: bool = setting(
        _BOOLEAN, True, "Create a topic when a client first requests it."
    )
    delete_topic_enable: bool = setting(_BOOLEAN, True, "Allow clients to delete topics.")
